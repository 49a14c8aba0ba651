"""The CPU device's code: loads object files, binds launches to functions that run a range of blocks, and names the
processor that runs them.

A kernel's object file exports ``void entry(void *launch, int64 first_block, int64 end_block)``; ``launch`` points to a
``LAUNCH``. Blocks are numbered with x fastest. ``driver/object.py`` loads most object files; LLVM loads those that need
more. With ``OXIDE_PERF=map``, Linux's perf shows kernels by name.

LLVM also detects this machine's target, once; later processes read it from the cache on disk. If llvmlite is not
installed, the target is made from Linux's description of the processor, and serves to select code that was built ahead
of time.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, final

from oxide.driver.base import Code, Dim3, Target
from oxide.driver.cpu.errors import driver_error
from oxide.driver.cpu.streams import BlockRange, CooperativeRun, LoopFree, ThreadPace
from oxide.driver.object import MappedFunction, MappedObject, MissingFunction, Unloadable, load_object
from oxide.driver.records import LAUNCH
from oxide.driver.tools import gdb_is_served, perf_map_is_wanted
from oxide.host import disk
from oxide.host.environment import is_installed
from oxide.host.locks import new_lock, unheld
from oxide.host.uninterrupted import uninterrupted

_llvm_lock = new_lock()  # LLVM is not thread-safe


@final
class CpuFunction:
    """A loaded kernel. It keeps its machine code in memory."""

    __slots__ = (
        "_call_holding",
        "_memory",
        "call",
        "cooperative",
        "device",
        "entry",
        "pace",
        "persistent",
        "sanitized",
    )

    reports = True  # machine code does not show which parameters it uses

    def __init__(self, device: int, code: Code) -> None:
        if code.target.kind != "native":
            raise driver_error(
                "CUDA_ERROR_INVALID_IMAGE",
                f"kernel {code.entry} was compiled for {code.target.kind} ({code.target.arch}), but cpu:{device} runs "
                "native code; compile it for the target in device_info",
            )
        self._memory, address = _load(code)
        self.device = device
        self.entry = code.entry
        self.sanitized = code.sanitized
        self.persistent = code.persistent
        self.cooperative = code.cooperative
        self.pace = ThreadPace() if code.loop_free else None
        self.call = _Entry(address)
        self._call_holding = _EntryHolding(address)
        # A queued launch keeps the code alive through the functions that it calls.
        self.call.memory = self._call_holding.memory = self._memory  # type: ignore[attr-defined]

    @property
    def code_range(self) -> tuple[int, int] | None:
        """Returns the first address of the code's memory and the address after its end; None if LLVM has loaded it."""
        if not isinstance(self._memory, mmap.mmap):
            return None
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        return first, first + len(self._memory)

    def bind(
        self, grid: Dim3, block: Dim3, shared_bytes: int, params: bytes, seed: int = 0
    ) -> Callable[[int, int], None]:
        """Returns a launch as a function, which takes a range of blocks and runs these blocks without the GIL.

        The blocks of a cooperative kernel run up to the grid's next barrier. If the code's target is ``seeded``, a
        ``seed`` other than 0 selects the order of a block's threads. Raises ``LaunchError`` for a cooperative grid
        whose blocks cannot all be live at once.
        """
        if self.cooperative:
            return CooperativeRun(self.call, self.device, grid, block, shared_bytes, params, seed)
        return partial(self.call, ctypes.byref(_LAUNCH(grid, block, shared_bytes, seed, params)))

    def launch(self, grid: Dim3, block: Dim3, shared_bytes: int, params: bytes, seed: int, blocks: int) -> BlockRange:
        """Returns a launch of ``blocks`` blocks as an item for a stream. The other parameters are as for ``bind``."""
        what = f"launch {self.entry}"
        if self.pace is None:
            return BlockRange(what, self.bind(grid, block, shared_bytes, params, seed), blocks)
        pointer = ctypes.byref(_LAUNCH(grid, block, shared_bytes, seed, params))
        small = LoopFree(partial(self._call_holding, pointer), self.pace, block[0] * block[1] * block[2])
        return BlockRange(what, partial(self.call, pointer), blocks, small)

    def __repr__(self) -> str:
        return f"<kernel {self.entry} on cpu:{self.device}>"


_LAUNCH = LAUNCH.structure  # an instance keeps the bytes object that ``params`` points to alive

_Entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_EntryHolding = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)  # with the GIL held


def _load(code: Code) -> tuple[Any, int]:
    """Loads an object file. Returns the object that holds its code, and the address of its entry."""
    if gdb_is_served():  # LLVM's loader tells gdb what it loads
        memory, address = uninterrupted(partial(_load_with_llvm, code, None))
    else:
        try:
            memory, address = load_object(code.image, code.entry, _name_for_perf if perf_map_is_wanted() else None)
        except Unloadable as problem:
            memory, address = uninterrupted(partial(_load_with_llvm, code, problem))
    if not address:
        raise driver_error(
            "CUDA_ERROR_NOT_FOUND",
            f"the object file of kernel {code.entry} exports no function of that name; "
            "Code.entry must be the symbol that the image exports",
        )
    return memory, address


def _load_with_llvm(code: Code, problem: Unloadable | None) -> tuple[Any, int]:
    if not is_installed("llvmlite"):
        raise driver_error(
            "CUDA_ERROR_INVALID_IMAGE",
            f"kernel {code.entry} is loaded by LLVM here ({problem or 'gdb is served'}), and llvmlite is not "
            "installed: python -m pip install llvmlite",
        )
    import llvmlite.binding as llvm
    from llvmlite.binding import ffi

    with unheld(_llvm_lock):
        # LLVM would make the kernel call address 0.
        if isinstance(problem, MissingFunction) and not llvm.address_of_symbol(problem.name):
            raise driver_error(
                "CUDA_ERROR_NOT_FOUND",
                f"kernel {code.entry} calls {problem.name}, which is in no library of this process; "
                "please report this with the kernel",
            )
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        # Not ObjectFileRef.from_data: for an unreadable image it wraps a null pointer, and crashes later.
        pointer = ffi.lib.LLVMPY_CreateObjectFile(code.image, len(code.image))
        if not pointer:
            raise driver_error(
                "CUDA_ERROR_INVALID_IMAGE",
                f"the image of kernel {code.entry}, {len(code.image)} bytes, is no object file of this machine; "
                "compile the kernel again (a cached one may be damaged)",
            )
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        engine.add_object_file(llvm.ObjectFileRef(pointer))
        engine.finalize_object()
        return engine, int(engine.get_function_address(code.entry))


_perf_lock = new_lock()
_named: list[Any] = []
_naming_failed = False


def _name_for_perf(loaded: MappedObject, memory: Any) -> None:
    """Adds the names of a loaded object's functions to ``/tmp/perf-PID.map``, where perf finds them. If that fails,
    warns with a ``RuntimeWarning``, once.

    perf reads the file when the process has ended. Until then the object's memory stays mapped: perf could not tell it
    from code that is loaded later to the same addresses.
    """
    global _naming_failed
    with unheld(_perf_lock):
        _named.append(memory)
        if _naming_failed:
            return
        lines = [f"{each.address:x} {each.size:x} {_perf_name(loaded, each)}\n" for each in loaded.functions]
        # perf looks in this folder only. A symbolic link of that name, perhaps by another user, is not followed.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(f"/tmp/perf-{os.getpid()}.map", flags, 0o600), "a", encoding="utf-8") as file:
                file.writelines(lines)
        except OSError as error:
            _naming_failed = True
            warnings.warn(f"oxide: OXIDE_PERF=map: {error}; perf gets no names", RuntimeWarning, stacklevel=2)


def _perf_name(loaded: MappedObject, function: MappedFunction) -> str:
    """Returns the name of a function: its kernel's name, followed by the symbol unless the function is the kernel's
    entry. The name begins with the word "kernel", because perf skips lines of a map with names of one or two letters.
    Returns the symbol alone if the object does not name a kernel."""
    if not loaded.file:
        return function.symbol
    kernel = f"kernel {loaded.file}"
    return kernel if function.symbol.startswith("oxide_run_") else f"{kernel} [{function.symbol}]"


@functools.cache
def host_target() -> Target:
    """Returns the target of this machine."""
    if not is_installed("llvmlite"):
        return target_without_llvm()
    described = _described()
    name = None
    if described:
        # With llvmlite's version, because a newer LLVM may know more names.
        lines = [f"{key}: {described[key]}" for key in _IDENTIFYING if key in described]
        text = "\n".join([disk.version_text("llvmlite"), platform.machine(), *lines])
        name = "processor-" + disk.digest((__name__, text))
        known = disk.read(name)
        if known is not None:
            arch, _, features = known.decode().partition("\n")
            return Target("native", arch, features)
    target = uninterrupted(_ask_llvm)
    if name is not None:
        disk.write(name, f"{target.arch}\n{target.features}".encode())
    return target


@functools.cache
def host_name() -> str:
    """Returns the processor's name as its maker writes it, or a general name if the system does not provide it."""
    return _described().get("model name") or platform.processor() or platform.machine() or "CPU"


def target_without_llvm() -> Target:
    """Returns a native target with the instruction sets that Linux reports; without any on other systems."""
    names = {_NAMES.get(flag) or _plain(flag) for flag in _described().get("flags", "").split()}
    if "sse4.2" in names:
        names.add("crc32")  # LLVM counts this instruction of SSE4.2 as a set of its own
    return Target("native", platform.machine(), ",".join(f"+{name}" for name in sorted(names)))


def _ask_llvm() -> Target:
    import llvmlite.binding as llvm

    with unheld(_llvm_lock):
        try:
            features = llvm.get_host_cpu_features().flatten()
        except RuntimeError:
            # LLVM does not know the features on every system. The CPU's name alone is then used.
            features = ""
        return Target("native", llvm.get_host_cpu_name(), features)


@functools.cache
def _described() -> dict[str, str]:
    """Returns Linux's description of the first processor; an empty one on other systems."""
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, text = line.partition(":")
                if not key.strip():
                    break
                found[key.strip()] = text.strip()
    except OSError:
        pass
    return found


_IDENTIFYING = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
"""The parts of the description that tell processors apart."""

_NAMES = {
    "3dnowprefetch": "prfchw",
    "abm": "lzcnt",
    "bmi1": "bmi",
    "fpu": "x87",
    "lahf_lm": "sahf",
    "lm": "64bit",
    "pclmulqdq": "pclmul",
    "pni": "sse3",
    "rdrand": "rdrnd",
    "sha_ni": "sha",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "user_shstk": "shstk",
}
"""LLVM's names by Linux's names, where the two differ by more than underscores and dashes."""

_DASHED = {"amxbf16": "amx-bf16", "amxint8": "amx-int8", "amxtile": "amx-tile", "amxfp16": "amx-fp16"}


def _plain(flag: str) -> str:
    name = flag.replace("_", "")
    return _DASHED.get(name, name)
