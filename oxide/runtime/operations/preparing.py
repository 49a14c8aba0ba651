"""``prepare``: compiles and captures before the first request, in a thread, while the event loop runs.

A kernel is typed, lowered, compiled and loaded. An operation is captured, and the capture is discarded. The capture
runs nothing on the device but the sources of shared operations. It calls the operation's functions, so it finds their
kernels too, up to functions that see host data, and it makes the page-locked memory that the operation needs. Without
``prepare``, the first run of a kernel waits for it to be compiled and loaded (``awaiting/loading.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.kernel.specialization import Specialization
from oxide.errors import ArgumentError, GraphError
from oxide.runtime.awaiting.loading import load_announced, loaded_function
from oxide.runtime.devices.launch_places import add_note_once
from oxide.runtime.devices.runtime import Runtime, current_runtime
from oxide.runtime.loop.event_loops import current_loop
from oxide.runtime.operations.captured_graph import discard, record
from oxide.runtime.operations.operation import DeviceOperation
from oxide.runtime.ordering.stream import Stream
from oxide.runtime.submission.capture import Recording
from oxide.runtime.submission.stops import Unknown
from oxide.runtime.submission.submission import ExecutionContext

Preparable: TypeAlias = "Kernel | Specialization | DeviceOperation[Any]"


class Preparing(Protocol):
    """An object that prepares itself, such as a ``Batcher`` with ``Buckets``."""

    def prepare_in_thread(self) -> None:
        """Compiles and captures. Called in a thread."""


_PREPARES_ITSELF: Final = "prepare_in_thread"


async def prepare(*things: Preparable | Preparing | Callable[[], Preparable]) -> None:
    """Compiles and captures ahead of time, off the loop: a service awaits it before it begins to serve.

    Each of ``things`` is a kernel, an operation, ``kernel.specialize(…)`` of a generic kernel, a ``Batcher`` of
    ``Buckets``, or a function without arguments that returns one of the first three and is called in the thread.
    Building a launch of boxes compiles too: ``prepare(lambda: relu(x, y))`` keeps this compilation off the loop. An
    operation is not run, and may be run afterwards. Its functions of ``and_then`` and ``map`` are called one extra
    time, as by ``graph()``, but for those that would see host data: what depends on their results is not prepared.
    Sources of its ``shared`` operations are run.

    Always a checkpoint. The first error, such as a ``CompileError``, ends the preparation and is raised, with a note
    that names the kernel or the operation. Raises ``GraphError`` for an operation that cannot be captured,
    ``ArgumentError`` for a generic kernel without its types, ``TypeError`` for any other kind of argument. If the task
    is cancelled, the thread finishes what it has begun.
    """
    loop = current_loop()
    await loop.checkpoint_if_cancelled()
    for thing in things:
        if isinstance(thing, DeviceOperation):
            thing.consume()
        elif not callable(thing) and not isinstance(thing, Specialization) and not hasattr(thing, _PREPARES_ITSELF):
            raise TypeError(
                f"oxide.prepare takes kernels, operations, or functions that return one, not {type(thing).__name__}"
            )
    await loop.in_thread(partial(_prepare_all, current_runtime(), things))


def _prepare_all(runtime: Runtime, things: tuple[Any, ...]) -> None:
    for thing in things:
        if hasattr(thing, _PREPARES_ITSELF):
            thing.prepare_in_thread()
            continue
        made = thing if isinstance(thing, (Kernel, Specialization, DeviceOperation)) else thing()
        try:
            _prepare(runtime, made)
        except Exception as error:
            what = f"kernel {made.name}" if isinstance(made, Kernel) else repr(made)
            add_note_once(error, f"when oxide.prepare prepared {what}")
            raise


def _prepare(runtime: Runtime, thing: Any) -> None:
    device = runtime.default_device
    if isinstance(thing, Kernel):
        if thing.is_generic:
            raise ArgumentError(
                f"oxide.prepare({thing.name}): the kernel is generic, and its types follow from the arguments of a "
                f"launch; give a function that names them, prepare(lambda: {thing.name}.specialize(…)), or one "
                f"that builds a launch"
            )
        thing = thing.specialize()
    if isinstance(thing, Specialization):
        loaded_function(thing, device)
    elif isinstance(thing, DeviceOperation):
        device = thing._home(runtime)
        load_announced(device)
        try:
            _rehearse(thing, device.new_stream())
        except GraphError as error:
            raise GraphError(
                f"oxide.prepare cannot capture {thing!r}: {error}. Prepare the kernels that it launches, or "
                f"the parts of it that can be captured"
            ) from error
    else:
        raise TypeError(
            f"a function given to oxide.prepare returned {type(thing).__name__}; it must return a kernel, a "
            f"specialization or an operation"
        )


def _rehearse(operation: DeviceOperation[Any], stream: Stream) -> None:
    """Captures ``operation`` and discards the capture. This compiles and loads all kernels that the operation launches,
    but for those that depend on the result of a function that sees host data. It runs nothing but the sources of shared
    operations."""
    operation.consume()
    context = ExecutionContext(stream, Recording(stream, rehearses=True))

    def work() -> None:
        with suppress(Unknown):
            operation.run(context)

    record(context, operation, work)
    discard(context)
