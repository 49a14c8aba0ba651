"""Names of numba.cuda that are more than one of oxide's own, and ``install()``, which puts all of them in its place.

``reduce``, ``vectorize`` and ``guvectorize`` are copies of numba-cuda's own code, in which the name ``cuda`` refers to
``oxide.numba_cuda``. The states of random number generators are computed on the host. Names of the host side that oxide
does not have are functions that raise an error with the name.

``install()`` is for programs whose imports cannot be changed. It replaces the names inside numba.cuda's modules. So it
does not matter whether a program imports these modules before or after the call. But a name that was imported from them
before the call, as with ``from numba.cuda import jit``, still refers to numba.cuda's object.
"""

from __future__ import annotations

import importlib
import operator
from types import ModuleType
from typing import Any, Final

import numpy as np

from oxide.host.locks import new_lock, unheld
from oxide.interop.numba_cuda import device_arrays as arrays
from oxide.interop.numba_cuda import devices, streams

UNSERVED = {
    "declare_device": "linking with foreign device code: oxide.module launches foreign kernels",
    "mapped": "mapping memory of the program's own: mapped_array makes some that kernels use in place",
    "open_ipc_array": "memory of other processes",
    "set_memory_manager": "other memory managers: its own pools are asynchronous and ordered by streams",
    "compile_all": "numba-cuda's compiler: .kernel.specialize(…).ptx() of a jitted function is oxide's PTX",
}


def attribute_of(module: str, name: str) -> Any:
    """Returns the attribute ``name`` of a submodule of numba.cuda, such as ``cudadrv.driver``; of numba.cuda itself if
    ``module`` is "". Raises ``AttributeError`` if there is none."""
    if name.startswith("__"):
        raise AttributeError(name)
    from oxide.compiler.frontend.lowering.numba_programs import numba_cuda

    found = numba_cuda()
    return getattr(operator.attrgetter(module)(found) if module else found, name)


def unserved(name: str) -> Any:
    """Returns a function that raises ``NotImplementedError`` for the name."""

    def refuse(*args: Any, **options: Any) -> Any:
        raise NotImplementedError(f"cuda.{name}: oxide has no {UNSERVED[name]}")

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


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
            from oxide.compiler.frontend.lowering.numba_programs import reductions_on

            self._reduce = reductions_on(served[0]).Reduce(self._functor)
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
        "CudaAPIError": streams.CudaAPIError,
        "CudaDriverError": streams.CudaDriverError,
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


# install()

_lock = new_lock()
_replaced: list[tuple[Any, str, Any]] = []
_ABSENT = object()


class Installed:
    """A context manager that uninstalls at its end. ``install()`` returns it."""

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        uninstall()


def install() -> Installed:
    """Makes the names of ``numba.cuda`` and its submodules refer to oxide's objects until ``uninstall()``, in all
    threads. ``with install():`` uninstalls at its end. A second call has no further effect."""
    with unheld(_lock):
        if not _replaced:
            _install()
    return Installed()


def uninstall() -> None:
    """Restores numba.cuda's own objects. Functions that were decorated in between remain oxide's kernels."""
    with unheld(_lock):
        while _replaced:
            module, name, value = _replaced.pop()
            if value is _ABSENT:
                delattr(module, name)
            else:
                setattr(module, name, value)


def _replace(module: Any, names: dict[str, Any]) -> None:
    for name, value in names.items():
        _replaced.append((module, name, vars(module).get(name, _ABSENT)))
        setattr(module, name, value)


def _install() -> None:
    from oxide.compiler.frontend.lowering.numba_programs import numba_cuda, vectorizers_on

    (ours,) = served
    importlib.import_module("oxide.compiler.frontend.frontend")  # takes numba-cuda's own names before they change
    cuda = numba_cuda()
    names = {name: getattr(ours, name) for name in ours.__all__}
    kept = {"create_xoroshiro128p_states", "install", "uninstall", "without_gpu", "cudadrv", "vectorize", "guvectorize"}
    _replace(cuda, {name: value for name, value in names.items() if name not in kept})
    _replace(cuda, {name: unserved(name) for name in UNSERVED})

    def module(name: str) -> Any:
        return importlib.import_module(f"{cuda.__name__}.{name}")

    ufuncs = vectorizers_on(ours)
    for name in ("CUDAVectorize", "CUDAGUFuncVectorize"):
        _replace(module("vectorizers"), {name: getattr(ufuncs, name)})
    _replace(
        module("random"),
        {
            "create_xoroshiro128p_states": create_xoroshiro128p_states,
            "init_xoroshiro128p_states": init_xoroshiro128p_states,
        },
    )
    # Not ``decorators.jit``: numba-cuda itself compiles its implementations of functions with it.
    _replace(module("kernels.transpose"), {"transpose": transpose})
    for name, replaced in CUDADRV.items():
        _replace(module(f"cudadrv.{name}"), replaced)
    _replace(module("api"), {name: value for name, value in names.items() if name in vars(module("api"))})
