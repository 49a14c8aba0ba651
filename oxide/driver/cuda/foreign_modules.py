"""Loads the code of other compilers: PTX, cubins and fatbins, as one module with all its kernels.

Like oxide's own code, the code is loaded through ``cuModuleLoadDataEx``, which takes all three formats. cuda.core's
ObjectCode gives no access to the log of the PTX assembler. The kernels share a module, because they may share
variables.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, final

from cuda.bindings import driver

from oxide.driver.base import Code
from oxide.driver.cuda.errors import check
from oxide.driver.cuda.ptx_modules import CudaFunction, LoadedModule, load_module, unload
from oxide.driver.ptx_parameters import KernelParameter, entries, kernel_parameters


@final
@dataclass(frozen=True, slots=True)
class ForeignFunctions:
    """The kernels of a loaded module by name, and the parameters of each kernel by the kernel's name."""

    kernels: dict[str, CudaFunction]
    parameters: dict[str, tuple[KernelParameter, ...]]


def load_foreign(device: int, code: Code, retired: deque[Any]) -> ForeignFunctions:
    """Loads code into the current context and returns its kernels. Unloads the context's retired modules first."""
    unload(retired)
    module = load_module(code)
    loaded = LoadedModule(module, retired)
    kernels: dict[str, CudaFunction] = {}
    parameters: dict[str, tuple[KernelParameter, ...]] = {}
    try:
        ptx = "" if code.is_binary else code.image.decode()
        for name in entries(ptx) if ptx else _names(module):
            error, handle = driver.cuModuleGetFunction(module, name.encode())
            check(error, f"cuModuleGetFunction({name})")
            # With lazy loading, the default, the first launch would load the code and wait for the device.
            check(driver.cuFuncLoad(handle)[0], f"cuFuncLoad({name})")
            found = kernel_parameters(ptx, name) if ptx else _parameters(handle, name)
            end = max([each.offset + each.nbytes for each in found], default=0)
            parameters[name] = found
            kernels[name] = CudaFunction(device, name, handle, end, loaded, None, None, False, 0, None, None)
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
