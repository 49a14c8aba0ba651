"""The CPU device's code: loads object files, and binds launches to functions that run a range of blocks.

A kernel's object file exports ``void entry(void *launch, int64 first_block, int64 end_block)``; ``launch`` points to a
``LAUNCH``. Blocks are numbered with x fastest. ``driver/object.py`` loads most object files; LLVM loads those that need
more. llvmlite is imported only to load such a file, or to name this machine's processor for the first time. LLVM is not
thread-safe, so one lock guards loading and queries of the processor.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
from collections.abc import Callable
from functools import partial
from typing import Any, final

from oxide.driver.base import Code, Dim3, Target
from oxide.driver.cpu.cooperative_launch import CooperativeRun
from oxide.driver.cpu.errors import driver_error
from oxide.driver.cpu.perf_map import announce
from oxide.driver.cpu.streams import BlockRange, LoopFree, ThreadPace
from oxide.driver.object import MappedObject, MissingFunction, Unloadable, load_object
from oxide.driver.records import LAUNCH
from oxide.driver.tools import gdb_is_served, perf_map_is_wanted
from oxide.host import disk
from oxide.host.environment import is_installed
from oxide.host.locks import new_lock, unheld
from oxide.host.uninterrupted import uninterrupted

_llvm_lock = new_lock()


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
            return CooperativeRun(self, grid, block, shared_bytes, params, seed)
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


@functools.cache
def host_target() -> Target:
    """Returns the target of this machine. LLVM detects it once; later processes read it from the cache on disk.

    Without llvmlite, the target is made from Linux's description of the processor, and serves to select code that was
    built ahead of time.
    """
    if not is_installed("llvmlite"):
        from oxide.driver.cpu.processor import target_without_llvm

        return target_without_llvm()
    processor = _processor()
    name = "processor-" + disk.digest((__name__, processor)) if processor is not None else None
    if name is not None and (known := disk.read(name)) is not None:
        arch, _, features = known.decode().partition("\n")
        return Target("native", arch, features)
    target = uninterrupted(_ask_llvm)
    if name is not None:
        disk.write(name, f"{target.arch}\n{target.features}".encode())
    return target


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
def host_name() -> str:
    """Returns the processor's name as its maker writes it, or a general name if the system does not provide it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, text = line.partition(":")
                if key.strip() == "model name" and text.strip():
                    return text.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


def _processor() -> str | None:
    """Returns a text that identifies the processor and llvmlite: the processor's model and features as the system
    reports them, and llvmlite's version, because a newer LLVM may know more names. Returns None if the system does not
    describe its processor."""
    found = [disk.version_text("llvmlite"), platform.machine()]
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key = line.partition(":")[0].strip()
                if not key:
                    return "\n".join(found)  # the first processor is enough
                if key in _PROCESSOR_KEYS:
                    found.append(line.strip())
    except OSError:
        pass
    return None


_PROCESSOR_KEYS = {"vendor_id", "cpu family", "model", "model name", "stepping", "flags"}


def _load(code: Code) -> tuple[Any, int]:
    """Loads an object file. Returns the object that holds its code, and the address of its entry."""
    if gdb_is_served():  # LLVM's loader tells gdb what it loads
        memory, address = uninterrupted(partial(_load_with_llvm, code, None))
    else:
        found: list[MappedObject] = []
        try:
            memory, address = load_object(code.image, code.entry, found.append if perf_map_is_wanted() else None)
        except Unloadable as problem:
            memory, address = uninterrupted(partial(_load_with_llvm, code, problem))
        for each in found:
            announce(each, memory)
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
