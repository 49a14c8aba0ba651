"""Loads code as launchable functions, and reads the GPU resources that they take.

Loading goes through ``cuModuleLoadDataEx``, which takes PTX, cubins and fatbins: cuda.core's ObjectCode gives no access
to the PTX assembler's error log.

Loading and unloading code waits until nothing runs on the device. On an H100 it took 0.15 s while a kernel of 0.15 s
ran, whether through modules or libraries, lazily or eagerly. Loading cannot avoid this, but unloading can. The garbage
collector may drop a function in the middle of an event loop, so the function's module is only queued, and the next load
unloads it.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from cuda import core
from cuda.bindings import driver

from oxide.driver.base import Code, KernelResources
from oxide.driver.cuda.errors import check, failure
from oxide.driver.cuda.tensor_maps import MAP_BYTES, TensorMaps, tensor_maps
from oxide.driver.ptx_parameters import KernelParameter, declarations, entries, kernel_parameters, parameter_layout
from oxide.errors import DriverError
from oxide.host.core import Dropping, Function

_INVALID_IMAGE = driver.CUresult.CUDA_ERROR_INVALID_IMAGE
_OTHER_DEVICES = (driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU, _INVALID_IMAGE)
_JIT_LOG_BYTES = 16384


@final
class CudaFunction(Function):
    """A loaded kernel. Dropping the last kernel of a module retires the module.

    ``parameter_bytes`` is the least size of the parameters, and ``places`` has their offsets. ``maps`` are the tensor
    maps of a kernel that copies tiles. ``reports`` is True if the kernel can report a fault. The blocks of a
    ``cooperative`` kernel must all be resident at once; a ``dependent`` kernel, which is never cooperative, may begin
    early. ``persistent`` is the number of threads of a persistent block, or 0. ``resident`` keeps the number of blocks
    that the device holds at once, by the threads and the bytes of dynamic shared memory of a block. ``plain`` is True
    if a launch takes nothing but its parameters.

    ``shared_limit`` is the dynamic shared memory that a launch may ask for without a further step; for more,
    ``whole_shared`` computes the size and opts in. ``shared_limit`` is -1 if ``array_bytes``, the memory of the
    kernel's ``SharedArray``s, must be added at each launch. ``shared_granted`` is the size that the driver allows so
    far."""

    __slots__ = (
        "array_bytes", "cooperative", "dependent", "device", "entry", "handle", "maps", "module", "persistent",
        "places", "resident", "shared_granted",
    )  # fmt: skip

    def __init__(
        self,
        device: int,
        entry: str,
        handle: Any,
        module: LoadedModule,
        parameter_bytes: int,
        *,
        places: tuple[int, ...] = (),
        maps: TensorMaps | None = None,
        reports: bool = False,
        cooperative: bool = False,
        dependent: bool = False,
        persistent: int = 0,
        array_bytes: int = 0,
    ) -> None:
        self.device = device
        self.entry = entry
        self.handle = handle
        self.address = int(handle)
        self.module = module
        self.parameter_bytes = parameter_bytes
        self.places = places
        self.maps = maps
        self.reports = reports
        self.cooperative = cooperative
        self.dependent = dependent
        self.persistent = persistent
        self.resident: dict[tuple[int, int], int] = {}
        self.array_bytes = array_bytes
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        error, self.shared_granted = driver.cuFuncGetAttribute(attribute, handle)
        check(error, f"cuFuncGetAttribute({entry})")
        self.shared_limit = -1 if array_bytes else self.shared_granted
        self.plain = not (cooperative or dependent or persistent or maps is not None)


@final
class LoadedModule(Dropping):
    """The owner of a loaded module. Only the ``CudaFunction``s of the module reference it."""

    __slots__ = ()

    def __init__(self, module: Any, retired: deque[Any]) -> None:
        """Takes the module over. When this object is dropped, it retires the module: puts it into ``retired``."""
        self._drop = partial(retired.append, module)

    def retire(self) -> None:
        """Retires the module now."""
        self._drop()
        self._drop = None


def load_functions(device: int, code: Code, names: Sequence[str], retired: deque[Any]) -> list[CudaFunction]:
    """Loads code into the current context as one module, and returns a kernel for each name. Unloads the context's
    retired modules first."""
    if code.target.kind != "ptx":
        raise DriverError(
            int(_INVALID_IMAGE),
            _INVALID_IMAGE.name,
            f"kernel {code.entry} was compiled as {code.target.kind} code for {code.target.arch}, and a CUDA device "
            f"runs PTX; compile it for the device's own target",
        )
    ptx = code.image.decode()
    module = _load_module(code, retired)
    functions = []
    loaded = LoadedModule(module, retired)
    try:
        for entry in names:
            handle = _entry(module, entry)
            places, size = parameter_layout(ptx, entry)
            maps = tensor_maps(ptx, entry, handle, len(places))
            if maps is not None:
                places = places[: -len(maps.places)] + maps.places
                size = places[-1] + MAP_BYTES
            function = CudaFunction(
                device,
                entry,
                handle,
                loaded,
                size,
                places=places,
                maps=maps,
                reports=uses_last_parameter(ptx, entry),
                cooperative=code.cooperative,
                dependent=code.dependent and not code.cooperative,
                persistent=code.persistent,
                array_bytes=code.array_bytes,
            )
            functions.append(function)
    except BaseException:
        loaded.retire()
        raise
    return functions


def _entry(module: Any, name: str) -> Any:
    """Returns the handle of a module's kernel."""
    error, handle = driver.cuModuleGetFunction(module, name.encode())
    check(error, f"cuModuleGetFunction({name})")
    # With lazy loading, the default, the first launch would load the code and wait for the device.
    check(driver.cuFuncLoad(handle)[0], f"cuFuncLoad({name})")
    return handle


def whole_shared(function: CudaFunction, shared_bytes: int) -> int:
    """Returns the bytes of dynamic shared memory for a launch that asks for ``shared_bytes``. The bytes include the
    kernel's ``SharedArray``s if these are in dynamic shared memory. If the driver allows less so far, by default 48
    KiB, opts in to this size. Raises the driver's error if a block cannot have so much."""
    whole = function.array_bytes + shared_bytes
    if whole > function.shared_granted:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (error,) = driver.cuFuncSetAttribute(function.handle, attribute, whole)
        if error:
            most = core.Device(function.device).properties.max_shared_memory_per_block_optin
            arrays = f", {function.array_bytes} of them for its SharedArrays" if function.array_bytes else ""
            raise failure(
                error,
                "cuFuncSetAttribute",
                f"kernel {function.entry} was launched with {whole} bytes of dynamic shared memory{arrays}; the device "
                f"gives a block {most} at most, static shared memory included",
            )
        function.shared_granted = whole
        if not function.array_bytes:
            function.shared_limit = whole
    return whole


def unload(retired: deque[Any]) -> None:
    """Unloads the retired modules, in the current context."""
    while retired:
        check(driver.cuModuleUnload(retired.popleft())[0], "cuModuleUnload")


def _load_module(code: Code, retired: deque[Any]) -> Any:
    unload(retired)
    log = bytearray(_JIT_LOG_BYTES)
    options = driver.CUjit_option
    names = [options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    values: list[Any] = [log, _JIT_LOG_BYTES]
    if has_lines(code.image):
        names.append(options.CU_JIT_GENERATE_LINE_INFO)
        values.append(1)
    image = code.image if code.is_binary else code.image.rstrip(b"\0") + b"\0"
    error, module = driver.cuModuleLoadDataEx(image, len(names), names, values)
    if error:
        message = log.split(b"\0", 1)[0].decode(errors="replace").strip()
        if error == driver.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
            message += (
                "; the NVIDIA driver is older than this PTX: compile for the device's target, or update the driver"
            )
        if code.is_binary and error in _OTHER_DEVICES:
            message += (
                f"; the binary holds no code for this device, {code.target.arch}: compile it for that architecture, or "
                f"pass PTX"
            )
        raise failure(error, f"cuModuleLoadDataEx({code.entry}, {code.target.arch} {code.target.features})", message)
    return module


def has_lines(image: bytes) -> bool:
    """Returns whether PTX has line tables. The driver's assembler drops line tables unless an option keeps them."""
    return b"\n\t.loc\t" in image


def uses_last_parameter(ptx: str, entry: str) -> bool:
    """Returns whether an entry uses its last parameter, which in oxide's kernels is the fault record's address.

    LLVM removes the uses if every access is proved to be in bounds, or if there is no access that could fail.
    """
    declared = declarations(ptx, entry)
    name = re.search(r"([\w$]+)\s*(\[\d+\])?$", declared[-1].strip()) if declared else None
    return name is None or len(re.findall(rf"(?<![\w$]){re.escape(name[1])}(?![\w$])", ptx)) > 1


# The code of other compilers


@final
@dataclass(frozen=True, slots=True)
class ForeignFunctions:
    """The kernels of a loaded module by name, and the parameters of each kernel by the kernel's name."""

    kernels: dict[str, CudaFunction]
    parameters: dict[str, tuple[KernelParameter, ...]]


def load_foreign(device: int, code: Code, retired: deque[Any]) -> ForeignFunctions:
    """Loads the code of another compiler into the current context, with all its kernels, which share a module because
    they may share variables. Unloads the context's retired modules first."""
    module = _load_module(code, retired)
    loaded = LoadedModule(module, retired)
    kernels: dict[str, CudaFunction] = {}
    parameters: dict[str, tuple[KernelParameter, ...]] = {}
    try:
        ptx = "" if code.is_binary else code.image.decode()
        for name in entries(ptx) if ptx else _names(module):
            handle = _entry(module, name)
            found = kernel_parameters(ptx, name) if ptx else _parameters(handle, name)
            end = max([each.offset + each.nbytes for each in found], default=0)
            parameters[name] = found
            kernels[name] = CudaFunction(device, name, handle, loaded, end)
    except BaseException:
        loaded.retire()
        raise
    return ForeignFunctions(kernels, parameters)


def _names(module: Any) -> list[str]:
    """Returns the names of a module's kernels."""
    error, count = driver.cuModuleGetFunctionCount(module)
    check(error, "cuModuleGetFunctionCount")
    error, functions = driver.cuModuleEnumerateFunctions(count, module)
    check(error, "cuModuleEnumerateFunctions")
    names = []
    for function in functions:
        error, name = driver.cuFuncGetName(function)
        check(error, "cuFuncGetName")
        names.append(name.decode())
    return names


def _parameters(function: Any, name: str) -> tuple[KernelParameter, ...]:
    """Returns the parameters of a kernel without PTX: their places are known, their types are not."""
    found: list[KernelParameter] = []
    while True:
        error, offset, nbytes = driver.cuFuncGetParamInfo(function, len(found))
        if error == driver.CUresult.CUDA_ERROR_INVALID_VALUE:  # the driver's way to say that there are no more
            return tuple(found)
        check(error, f"cuFuncGetParamInfo({name})")
        found.append(KernelParameter(int(offset), int(nbytes)))


# Resources

_WARP = 32
_LOG_BYTES = 16384
_MUCH_LOCAL = 16384  # bytes of local memory; a launch with less failed for another reason
_SPILLS = re.compile(r"(\d+) bytes spill stores")


def resources_of(
    function: CudaFunction, code: Code, threads: int, shared_bytes: int, whole_shared: int
) -> KernelResources:
    """Returns the resources of a kernel loaded from ``code``, for launches that ask for ``shared_bytes`` and take
    ``whole_shared`` bytes of dynamic shared memory. The kernel's context must be current."""

    def attribute(name: str) -> int:
        return _attribute(function, name)

    most = attribute("MAX_THREADS_PER_BLOCK")
    blocks = 0
    if threads <= most:
        error, blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function.handle, threads, whole_shared)
        check(error, f"cuOccupancyMaxActiveBlocksPerMultiprocessor({function.entry}, {threads}, {whole_shared})")
    resident = core.Device(function.device).properties.max_threads_per_multiprocessor
    local = attribute("LOCAL_SIZE_BYTES")
    return KernelResources(
        registers=attribute("NUM_REGS"),
        local_bytes=local,
        spill_bytes=_spilled(code) if local else 0,
        shared_bytes=attribute("SHARED_SIZE_BYTES") + function.array_bytes,
        constant_bytes=attribute("CONST_SIZE_BYTES"),
        max_threads_per_block=most,
        block=threads,
        dynamic_shared_bytes=shared_bytes,
        blocks_per_multiprocessor=int(blocks),
        occupancy=blocks * -(-threads // _WARP) / (resident // _WARP),
    )


def _spilled(code: Code) -> int | None:
    """Returns the spilled bytes per thread, None if unknown. Assembles the PTX once more to get the assembler's log."""
    log = bytearray(_LOG_BYTES)
    options = driver.CUjit_option
    error, state = driver.cuLinkCreate(
        3,
        [options.CU_JIT_INFO_LOG_BUFFER, options.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, options.CU_JIT_LOG_VERBOSE],
        [log, _LOG_BYTES, 1],
    )
    check(error, "cuLinkCreate")
    try:
        # The driver caches code by its text, without the log. A new text each time makes the driver assemble again.
        text = code.image.rstrip(b"\0") + f"\n// {time.time_ns()}\n\0".encode()
        kind = driver.CUjitInputType.CU_JIT_INPUT_PTX
        (error,) = driver.cuLinkAddData(state, kind, text, len(text), code.entry.encode(), 0, [], [])
        check(error, f"cuLinkAddData({code.entry})")
        error, _, _ = driver.cuLinkComplete(state)
        check(error, f"cuLinkComplete({code.entry})")
    finally:
        check(driver.cuLinkDestroy(state)[0], "cuLinkDestroy")
    return spill_bytes(log.split(b"\0", 1)[0].decode(errors="replace"))


def spill_bytes(log: str) -> int | None:
    """Returns the spilled bytes per thread in an assembler's log; None if the log does not have them."""
    found = _SPILLS.findall(log)
    return sum(map(int, found)) if found else None


def launch_detail(function: CudaFunction, code: int) -> str:
    """Returns an explanation of the driver's refusal of a launch with ``code``, if the likely reason is the kernel's
    local memory: 16 KiB or more for each thread. Otherwise returns an empty string."""
    if int(code) not in (int(driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY), int(driver.CUresult.CUDA_ERROR_INVALID_VALUE)):
        return ""
    local = _attribute(function, "LOCAL_SIZE_BYTES")
    if local < _MUCH_LOCAL:
        return ""
    properties = core.Device(function.device).properties
    threads = properties.max_threads_per_multiprocessor * properties.multiprocessor_count
    return (
        f"a thread takes {local} bytes of local memory, and the driver sets that aside for all {threads} threads that "
        f"the GPU has room for, {threads * local} bytes; make the kernel's LocalArrays smaller"
    )


def _attribute(function: CudaFunction, name: str) -> int:
    kind = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
    error, value = driver.cuFuncGetAttribute(kind, function.handle)
    check(error, f"cuFuncGetAttribute({function.entry}, {name})")
    return int(value)
