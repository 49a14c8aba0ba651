"""PTX into a launchable function.

Through ``cuModuleLoadDataEx`` and not cuda.core's ObjectCode, which has no way to get at the PTX assembler's error log.

Loading and unloading code waits until nothing runs on the device: 0.15 s beside a kernel of 0.15 s on an H100, through
modules or libraries, lazily or eagerly. Loading cannot help it. Unloading can: a function may be dropped by the garbage
collector in the middle of an event loop, so its module is only set aside, and unloaded by the next load.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, final

from cuda.bindings import driver

from oxide.driver.base import Code
from oxide.driver.cuda.cooperative import CooperativeLimit
from oxide.driver.cuda.errors import check, failure
from oxide.dropping import calls_drop, nothing
from oxide.errors import DriverError

_INVALID_IMAGE = driver.CUresult.CUDA_ERROR_INVALID_IMAGE
_JIT_LOG_BYTES = 16384


@final
class CudaFunction:
    """A loaded kernel; dropping the last one of a module retires the module. ``shared_limit`` is the dynamic shared
    memory that it may be launched with as things stand, ``parameter_bytes`` the least that its parameters take,
    ``cooperative`` how many of its blocks are on the device at once, for a kernel whose blocks must all be, ``reports``
    whether it can report a fault."""

    __slots__ = (
        "__weakref__",
        "address",
        "cooperative",
        "device",
        "entry",
        "handle",
        "module",
        "parameter_bytes",
        "reports",
        "shared_limit",
    )

    def __init__(
        self,
        device: int,
        entry: str,
        handle: Any,
        parameter_bytes: int,
        module: LoadedModule,
        cooperative: CooperativeLimit | None,
        reports: bool,
    ) -> None:
        self.device = device
        self.entry = entry
        self.handle = handle
        self.address = int(handle)
        self.parameter_bytes = parameter_bytes
        self.module = module
        self.cooperative = cooperative
        self.reports = reports
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        error, self.shared_limit = driver.cuFuncGetAttribute(attribute, handle)
        check(error, f"cuFuncGetAttribute({entry})")


@final
class LoadedModule:
    """What the functions of one module hold, and nobody else."""

    __slots__ = ("_drop",)

    def __init__(self, module: Any, retired: deque[Any]) -> None:
        """From here on the module is retired when this is dropped."""
        self._drop: Any = partial(retired.append, module)

    def retire(self) -> None:
        """Retires the module now."""
        self._drop()
        self._drop = nothing

    def __del__(self) -> None:
        self._drop()


calls_drop(LoadedModule)


def load_function(device: int, code: Code, retired: deque[Any]) -> CudaFunction:
    """Loads code into the current context, after unloading the context's retired modules."""
    return load_functions(device, code, (code.entry,), retired)[0]


def load_functions(device: int, code: Code, entries: Sequence[str], retired: deque[Any]) -> list[CudaFunction]:
    """``load_function`` for code with several entries: one module, and a function for each of ``entries``."""
    if code.target.kind != "ptx":
        raise DriverError(
            int(_INVALID_IMAGE),
            _INVALID_IMAGE.name,
            f"kernel {code.entry} was compiled as {code.target.kind} code for {code.target.arch}, and a CUDA device "
            f"runs PTX; compile it for the device's own target",
        )
    unload(retired)
    ptx = code.image.decode()
    module = _load_module(code)
    functions = []
    loaded = LoadedModule(module, retired)
    try:
        for entry in entries:
            error, handle = driver.cuModuleGetFunction(module, entry.encode())
            check(error, f"cuModuleGetFunction({entry})")
            # With lazy loading, the default, the first launch would load the code, and wait for the device.
            check(driver.cuFuncLoad(handle)[0], f"cuFuncLoad({entry})")
            places, size = parameter_layout(ptx, entry)
            limit = CooperativeLimit(device, handle, places) if code.cooperative else None
            functions.append(CudaFunction(device, entry, handle, size, loaded, limit, uses_last_parameter(ptx, entry)))
    except BaseException:
        loaded.retire()
        raise
    return functions


def unload(retired: deque[Any]) -> None:
    """Unloads what was set aside, in the current context."""
    while retired:
        check(driver.cuModuleUnload(retired.popleft())[0], "cuModuleUnload")


def _load_module(code: Code) -> Any:
    log = bytearray(_JIT_LOG_BYTES)
    options = driver.CUjit_option
    error, module = driver.cuModuleLoadDataEx(
        code.image.rstrip(b"\0") + b"\0",
        2,
        [options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES],
        [log, _JIT_LOG_BYTES],
    )
    if error:
        message = log.split(b"\0", 1)[0].decode(errors="replace").strip()
        if error == driver.CUresult.CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
            message += (
                "; the NVIDIA driver is older than this PTX: compile for the device's target, or update the driver"
            )
        raise failure(error, f"cuModuleLoadDataEx({code.entry}, {code.target.arch} {code.target.features})", message)
    return module


def parameter_layout(ptx: str, entry: str) -> tuple[tuple[int, ...], int]:
    """Where each parameter of an entry begins, naturally aligned, and the least that all take, read off its PTX.

    Not ``cuFuncGetParamInfo``: its list ends with an error, which compute-sanitizer reports as the program's.
    """
    places = []
    end = 0
    for declaration in _declarations(ptx, entry):
        size = re.search(r"\.[busf](8|16|32|64)\b", declaration)
        if size is None:
            continue
        element = int(size[1]) // 8
        alignment = re.search(r"\.align\s+(\d+)\s+\.b8", declaration)
        count = re.search(r"\[(\d+)\]\s*$", declaration.strip())
        step = int(alignment[1]) if alignment is not None else element
        places.append(-(-end // step) * step)
        end = places[-1] + element * (int(count[1]) if count is not None else 1)
    return tuple(places), end


def uses_last_parameter(ptx: str, entry: str) -> bool:
    """Whether an entry's last parameter, in our kernels the fault record's address, is used: LLVM leaves out what reads
    it where every access was proved to be inside, and where there is none that could fail."""
    declared = _declarations(ptx, entry)
    name = re.search(r"([\w$]+)\s*(\[\d+\])?$", declared[-1].strip()) if declared else None
    return name is None or len(re.findall(rf"(?<![\w$]){re.escape(name[1])}(?![\w$])", ptx)) > 1


def _declarations(ptx: str, entry: str) -> list[str]:
    """An entry's parameters, as it declares them."""
    head = re.search(rf"\.entry\s+{re.escape(entry)}\s*\(([^)]*)\)", ptx)
    return [declaration for declaration in head[1].split(",") if declaration.strip()] if head is not None else []
