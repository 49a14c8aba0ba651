"""Loads PTX as launchable functions.

Loading goes through ``cuModuleLoadDataEx``: cuda.core's ObjectCode gives no access to the PTX assembler's error log.

Loading and unloading code waits until nothing runs on the device. On an H100 it took 0.15 s while a kernel of 0.15 s
ran, whether through modules or libraries, lazily or eagerly. Loading cannot avoid this, but unloading can. The garbage
collector may drop a function in the middle of an event loop, so the function's module is only queued, and the next load
unloads it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, final

from cuda import core
from cuda.bindings import driver

from oxide.driver.base import Code
from oxide.driver.cuda.cooperative_launch import CooperativeLimit
from oxide.driver.cuda.dependent import DependentLaunch
from oxide.driver.cuda.errors import check, failure
from oxide.driver.cuda.persistent import PersistentBlocks
from oxide.driver.cuda.tensor_maps import MAP_BYTES, TensorMaps, tensor_maps
from oxide.driver.ptx_parameters import declarations, parameter_layout
from oxide.errors import DriverError
from oxide.host.core import Dropping, Function

_INVALID_IMAGE = driver.CUresult.CUDA_ERROR_INVALID_IMAGE
_OTHER_DEVICES = (driver.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU, _INVALID_IMAGE)
_JIT_LOG_BYTES = 16384


@final
class CudaFunction(Function):
    """A loaded kernel. Dropping the last kernel of a module retires the module.

    ``shared_limit`` is the dynamic shared memory that a launch may ask for without a further step; for more,
    ``whole_shared`` computes the size and opts in. ``shared_limit`` is -1 if ``array_bytes``, the memory of the
    kernel's ``SharedArray``s, must be added at each launch. ``shared_granted`` is the size that the driver allows so
    far. ``parameter_bytes`` is the least size of the parameters. ``cooperative`` limits the blocks of a kernel whose
    blocks must all be resident at once, and ``dependent`` launches a kernel that may begin early; at most one of the
    two is not None. ``maps`` are the tensor maps of a kernel that copies tiles. ``persistent`` decides the number of
    blocks of a persistent kernel. ``reports`` is True if the kernel can report a fault. ``plain`` is True if a launch
    takes nothing but its parameters."""

    __slots__ = (
        "array_bytes", "cooperative", "dependent", "device", "entry", "handle", "maps", "module", "persistent",
        "shared_granted",
    )  # fmt: skip

    def __init__(
        self,
        device: int,
        entry: str,
        handle: Any,
        parameter_bytes: int,
        module: LoadedModule,
        cooperative: CooperativeLimit | None,
        dependent: DependentLaunch | None,
        reports: bool,
        array_bytes: int,
        maps: TensorMaps | None,
        persistent: PersistentBlocks | None,
    ) -> None:
        self.device = device
        self.entry = entry
        self.handle = handle
        self.address = int(handle)
        self.parameter_bytes = parameter_bytes
        self.module = module
        self.cooperative = cooperative
        self.dependent = dependent
        self.reports = reports
        self.maps = maps
        self.persistent = persistent
        self.array_bytes = array_bytes
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        error, self.shared_granted = driver.cuFuncGetAttribute(attribute, handle)
        check(error, f"cuFuncGetAttribute({entry})")
        self.shared_limit = -1 if array_bytes else self.shared_granted
        self.plain = cooperative is None and dependent is None and maps is None and persistent is None


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


def load_function(device: int, code: Code, retired: deque[Any]) -> CudaFunction:
    """Returns the kernel of ``code``, loaded into the current context. Unloads the context's retired modules first."""
    return load_functions(device, code, (code.entry,), retired)[0]


def load_functions(device: int, code: Code, entries: Sequence[str], retired: deque[Any]) -> list[CudaFunction]:
    """Loads code with several entries as one module, like ``load_function``. Returns a kernel for each entry."""
    if code.target.kind != "ptx":
        raise DriverError(
            int(_INVALID_IMAGE),
            _INVALID_IMAGE.name,
            f"kernel {code.entry} was compiled as {code.target.kind} code for {code.target.arch}, and a CUDA device "
            f"runs PTX; compile it for the device's own target",
        )
    unload(retired)
    ptx = code.image.decode()
    module = load_module(code)
    functions = []
    loaded = LoadedModule(module, retired)
    try:
        for entry in entries:
            error, handle = driver.cuModuleGetFunction(module, entry.encode())
            check(error, f"cuModuleGetFunction({entry})")
            # With lazy loading, the default, the first launch would load the code and wait for the device.
            check(driver.cuFuncLoad(handle)[0], f"cuFuncLoad({entry})")
            places, size = parameter_layout(ptx, entry)
            maps = tensor_maps(ptx, entry, handle, len(places))
            if maps is not None:
                places = places[: -len(maps.places)] + maps.places
                size = places[-1] + MAP_BYTES
            limit = CooperativeLimit(device, handle, places) if code.cooperative else None
            early = DependentLaunch(handle, places) if code.dependent and limit is None else None
            reports, arrays = uses_last_parameter(ptx, entry), code.array_bytes
            blocks = PersistentBlocks(device, handle, code.persistent) if code.persistent else None
            functions.append(
                CudaFunction(device, entry, handle, size, loaded, limit, early, reports, arrays, maps, blocks)
            )
    except BaseException:
        loaded.retire()
        raise
    return functions


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


def load_module(code: Code) -> Any:
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
