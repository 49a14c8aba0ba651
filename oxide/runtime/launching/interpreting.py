"""Launches that are interpreted, by ``k.interpret(…)`` or under ``OXIDE_INTERPRET=1``.

Such a launch waits until the device has finished all work that it depends on. It runs in the thread that submits it, so
that a debugger can use the terminal. It writes its first fault to the record that a compiled launch would fill, so the
fault is raised where and when a compiled launch's fault would be.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from oxide.compiler.interpreter.run import InterpretedKernel
from oxide.compiler.interpreter.threads import Fault, TooLong
from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.source.faults import RECORD, FaultSite
from oxide.driver.base import MAX_THREADS_PER_BLOCK
from oxide.errors import LaunchError
from oxide.host.environment import whole_number
from oxide.language import narrow, slices, thread, types
from oxide.runtime.awaiting.loading import loaded_function
from oxide.runtime.memory.allocation import Allocation
from oxide.runtime.memory.pinned import PinnedBlock
from oxide.runtime.submission.capture import InterpretedInGraphError

if TYPE_CHECKING:
    from oxide.compiler.kernel.specialization import Specialization
    from oxide.runtime.devices.runtime import Device
    from oxide.runtime.launching.launch_config import LaunchConfig
    from oxide.runtime.submission.submission import ExecutionContext

LIMIT: Final = "OXIDE_INTERPRET_LIMIT"

MOST_THREADS: Final = 2**12
"""The most threads of an interpreted cooperative launch, in which each thread is a thread of Python."""


def interpret(
    special: Specialization,
    context: ExecutionContext,
    values: Sequence[Any],
    config: LaunchConfig,
    reads: list[Allocation],
    writes: list[Allocation],
) -> None:
    """Interprets a launch. ``values`` are the values passed for its parameters. Raises ``LaunchError`` if the launch
    cannot be interpreted or makes more accesses than ``OXIDE_INTERPRET_LIMIT`` allows."""
    name = special.kernel.name
    device = context.device
    if device.driver.name != "cpu":
        raise LaunchError(
            f"kernel {name} cannot be interpreted on {device.label}: the interpreter runs on the CPU device; set "
            "OXIDE_DEVICE=cpu"
        )
    recording = context.recording
    if recording is not None and not recording.rehearses:
        recording.refuse(
            f"kernel {name} cannot be interpreted in a graph: a graph holds compiled launches; run the operation "
            f"itself",
            InterpretedInGraphError,
        )
    grid, block, shared_bytes = config._grid, config._block, config._shared_mem_bytes
    threads = math.prod(block)
    if threads > MAX_THREADS_PER_BLOCK:
        raise LaunchError(
            f"kernel {name}: CUDA_ERROR_INVALID_VALUE: a block of {block}, {threads} threads; the most is "
            f"{MAX_THREADS_PER_BLOCK}"
        )
    if special.cooperative and threads * math.prod(grid) > MOST_THREADS:
        raise LaunchError(
            f"kernel {name}: thread.sync_grid() needs all blocks on the device at once: the launch has "
            f"{threads * math.prod(grid)} threads, and the interpreter holds {MOST_THREADS} of them"
        )
    interpreted = _interpreted(special, device)
    with context.submission_lock:
        context.begin(reads, writes)
    if recording is not None:
        recording.launch(None, grid, block, shared_bytes, b"", None)
        recording.uses_noted()
        return
    try:
        context.timeline.synchronize()
        limit = whole_number(LIMIT, least=1)
        fault = interpreted.run(values, grid, block, shared_bytes, limit=limit)
    except TooLong:
        raise LaunchError(
            f"kernel {name}: the launch makes more accesses to memory than {LIMIT} allows an interpreted one"
        ) from None
    finally:
        with context.submission_lock:
            context.end(reads, writes, submitted=True)
    if fault is not None:
        _record(fault, special, context)


@final
class _Faulted:
    """The part of a specialization that a fault report reads: the kernel, and the fault sites of this launch."""

    def __init__(self, special: Specialization, sites: tuple[FaultSite, ...]) -> None:
        self.kernel = special.kernel
        self.sites = sites


def _record(fault: Fault, special: Specialization, context: ExecutionContext) -> None:
    """Takes a fault record for an interpreted launch and writes the fault to it."""
    sites = (fault.site,) if fault.other is None else (fault.site, fault.other)
    faulted: Any = _Faulted(special, sites)
    address = context.fault_address(faulted)
    record = PinnedBlock(address, RECORD.itemsize).memory.view(RECORD)
    record["site"] = 0
    record["index"] = fault.index if fault.other is None else 1
    record["length"], record["block"], record["thread"] = fault.length, fault.block, fault.thread
    for number, (index, length) in enumerate(fault.others):
        record["other_indices"][..., number], record["other_lengths"][..., number] = index, length
    record["claimed"] = fault.claimed


def _interpreted(special: Specialization, device: Device) -> InterpretedKernel:
    """Returns the kernel as Python functions. Raises ``LaunchError`` if it cannot be interpreted."""
    found = special.interpreted
    if found is None:
        assert special.typed is not None
        fastmath = special.description.fastmath

        def native(text: str, names: dict[str, Any], kinds: tuple[str, ...], result: str) -> Callable[..., Any]:
            return _native(text, names, kinds, result, fastmath, device)

        found = special.interpreted = InterpretedKernel(special.typed, native)
    kernel: InterpretedKernel = found
    return kernel


_natives: dict[Any, Callable[..., Any]] = {}
_FILE: Final = "<oxide interpreter {}>"


def _native(
    text: str, names: dict[str, Any], kinds: tuple[str, ...], result: str, fastmath: bool, device: Device
) -> Callable[..., Any]:
    """Returns a compiled function that computes an expression of scalars, so that the result equals a compiled
    kernel's."""
    key = text, tuple(names.items()), kinds, result, fastmath, device.id
    found = _natives.get(key)
    if found is None:
        found = _natives[key] = _compiled(text, names, kinds, result, fastmath, device)
    return found


def _compiled(
    text: str, names: dict[str, Any], kinds: tuple[str, ...], result: str, fastmath: bool, device: Device
) -> Callable[..., Any]:
    parameters = "".join(f"x{place}: {kind}, " for place, kind in enumerate(kinds))
    source = (
        f"def call({parameters}y: DisjointSlice[{result}]):\n"
        "    e = y.get_mut(index_1d())\n"
        "    if e is not None:\n"
        f"        e.value = {text}\n"
    )
    file = _FILE.format(len(_natives))
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    outside: dict[str, Any] = {
        **{kind: getattr(types, kind) for kind in (*kinds, result)},
        "DisjointSlice": slices.DisjointSlice,
        "index_1d": thread.index_1d,
        "__name__": "oxide.interpreted",
        **names,
    }
    exec(compile(source, file, "exec", dont_inherit=True), outside)
    special = Kernel(outside["call"], fastmath=fastmath, sanitizable=False).specialize()
    function: Any = loaded_function(special, device)
    closed: Any = special.parameters
    bits = result in types.NARROW
    memory = np.zeros(1, closed[-1].scalar.bits_dtype if bits else closed[-1].dtype)
    address = memory.ctypes.data
    all_words = [parameter.words for parameter in closed[:-1]]

    def call(*args: Any) -> Any:
        words = [word for words_of, arg in zip(all_words, args, strict=True) for word in words_of(arg)]
        function.bind((1, 1, 1), (1, 1, 1), 0, special.pack_words([*words, address, 1], 0))(0, 1)
        value = memory.item(0)
        return narrow.number_of(result, value) if bits else value

    return call
