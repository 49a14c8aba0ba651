"""The parts of numba.cuda's host side that numba-cuda itself implements with ``cuda.jit`` and device arrays.

``reduce``, ``vectorize`` and ``guvectorize`` are copies of numba-cuda's own code, in which the name ``cuda`` refers to
``oxide.numba_cuda``. The states of random number generators are computed on the host.
"""

from __future__ import annotations

import functools
import operator
from types import ModuleType
from typing import Any, Final

import numpy as np

from oxide.interop.numba_cuda import current_device, devices
from oxide.interop.numba_cuda import device_arrays as arrays
from oxide.interop.numba_cuda.unserved import unserved


def attribute_of(module: str, name: str) -> Any:
    """Returns the attribute ``name`` of a submodule of numba.cuda, such as ``cudadrv.driver``; of numba.cuda itself if
    ``module`` is "". Raises ``AttributeError`` if there is none."""
    if name.startswith("__"):
        raise AttributeError(name)
    from oxide.compiler.frontend.lowering.numba_programs import numba_cuda

    found = numba_cuda()
    return getattr(operator.attrgetter(module)(found) if module else found, name)


def create_xoroshiro128p_states(n: int, seed: int, subsequence_start: int = 0, stream: Any = 0) -> Any:
    """Returns a device array with the states of ``n`` generators. They are the states that numba-cuda's function of
    this name makes."""
    from oxide.compiler.frontend.lowering.numba_programs import random_states

    return arrays.to_device(random_states(int(n), int(seed), int(subsequence_start)), stream)


def init_xoroshiro128p_states(states: Any, seed: int, subsequence_start: int = 0, stream: Any = 0) -> None:
    """Writes new states into a device array of generators, as many as it has elements."""
    from oxide.compiler.frontend.lowering.numba_programs import random_states

    states.copy_to_device(random_states(len(states), int(seed), int(subsequence_start)), stream)


served: Final[list[Any]] = []
"""The module ``oxide.numba_cuda``, once it is imported: it imports this one."""


@functools.cache
def _reduction() -> ModuleType:
    from oxide.compiler.frontend.lowering.numba_programs import reductions_on

    return reductions_on(served[0])


def transpose(a: Any, b: Any = None) -> Any:
    """Returns a transposed copy of a device matrix. If ``b`` is given, writes the copy to ``b`` and returns ``b``."""
    if b is None:
        b = arrays.device_array(a.shape[::-1], a.dtype)
    b[...] = a.T
    return b


class Reduce:
    """A reduction of an array by a function of two elements: ``Reduce(lambda a, b: a + b)(array)``."""

    def __init__(self, functor: Any) -> None:
        self._functor = functor
        self._reduce: Any = None

    def __call__(self, arr: Any, size: Any = None, res: Any = None, init: Any = 0, stream: Any = 0) -> Any:
        """Returns the reduction of ``arr``, or of its first ``size`` elements. If ``res`` is given, writes it to
        ``res[0]`` instead."""
        if self._reduce is None:
            self._reduce = _reduction().Reduce(self._functor)
        if isinstance(arr, np.ndarray):
            arr = arrays.to_device(np.ascontiguousarray(arr), stream)
        return self._reduce(arr, size, res, init, stream)


def vectorize(ftylist_or_function: Any = (), target: str = "cuda", **kws: Any) -> Any:
    """Makes a ufunc of a function of scalars, as numba's ``vectorize(..., target="cuda")``. Raises ``TypeError``
    without signatures."""
    if target != "cuda":
        raise NotImplementedError(f"vectorize(target={target!r}): numba's own vectorize makes it")
    if callable(ftylist_or_function) and not isinstance(ftylist_or_function, str | list | tuple):
        raise TypeError("vectorize for CUDA needs signatures: @vectorize(['float32(float32)'], target='cuda')")
    return _ufuncs_of("CUDAVectorize", ftylist_or_function, (), kws)


def guvectorize(ftylist: Any, signature: str, target: str = "cuda", **kws: Any) -> Any:
    """Makes a generalised ufunc, as numba's ``guvectorize(..., target="cuda")``."""
    if target != "cuda":
        raise NotImplementedError(f"guvectorize(target={target!r}): numba's own guvectorize makes it")
    return _ufuncs_of("CUDAGUFuncVectorize", ftylist, (signature,), kws)


def _ufuncs_of(builder: str, signatures: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Returns a decorator that makes ufuncs with the class ``builder`` of numba-cuda."""
    from oxide.compiler.frontend.lowering.numba_programs import vectorizers_on

    make = getattr(vectorizers_on(served[0]), builder)
    listed = signatures if isinstance(signatures, list | tuple) else [signatures]

    def wrap(function: Any) -> Any:
        made = make(function, *arguments, **options)
        for each in listed:
            made.add(each)
        return made.build_ufunc()

    return wrap


CUDADRV: dict[str, dict[str, Any]] = {
    "devicearray": {"DeviceNDArray": arrays.DeviceNDArray, "is_cuda_ndarray": arrays.is_cuda_ndarray},
    "devices": {
        "gpus": devices.gpus,
        "get_context": devices.current_context,
        "require_context": devices.require_context,
        "reset": devices.close,
    },
    "driver": {
        "CudaAPIError": current_device.CudaAPIError,
        "CudaDriverError": current_device.CudaDriverError,
        "driver": devices.driver,
        "get_version": devices.driver.get_version,
        "set_memory_manager": unserved("set_memory_manager"),
    },
    "runtime": {"runtime": devices.runtime, "get_version": devices.runtime.get_version},
}
"""The names that oxide provides for the modules of ``numba.cuda.cudadrv``, by module."""


class _Module(ModuleType):
    """A module in the place of one of numba.cuda's: oxide's names, and numba-cuda's own objects for all others."""

    def __init__(self, module: str, names: dict[str, Any]) -> None:
        super().__init__(f"oxide.numba_cuda.{module}", f"numba.cuda.{module}")
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        return attribute_of(self.__name__.removeprefix("oxide.numba_cuda."), name)


_ALSO: dict[str, dict[str, Any]] = {
    "devicearray": {
        "DeviceNDArrayBase": arrays.DeviceNDArray,
        "is_contiguous": lambda array: array.is_c_contiguous(),
    },
    "driver": {"Device": devices.Device, "Context": devices.Context},
}
"""Further names of these modules, which numba-cuda itself uses: ``install()`` leaves them."""

cudadrv: Any = _Module(
    "cudadrv",
    {name: _Module(f"cudadrv.{name}", names | _ALSO.get(name, {})) for name, names in CUDADRV.items()},
)
