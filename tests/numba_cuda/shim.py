"""``numba.cuda`` on top of oxide: enough of its host side to run programs that were written for it.

``install()`` replaces ``cuda.jit`` by a shim onto ``oxide.kernel``, and the functions that make device arrays by ones
that make boxes. A launch is run at once; NumPy arrays are copied to the device and back, as numba-cuda does. What asks
for numba-cuda's own machine code, driver or debug mode raises ``unittest.SkipTest``, which says so.
"""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda
from numba.core import errors as core_errors
from numba.cuda import compiler, testing, types
from numba.cuda.core import sigutils
from numba.cuda.core.errors import NumbaError, TypingError
from numba.cuda.cudadrv import devices, libs, nvrtc
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.memory_management import nrt

import oxide
from oxide import CompileError, DeviceBox, LaunchConfig, d2h, h2d


def install() -> None:
    """Puts the shim in the place of ``numba.cuda``'s host side, for the rest of the process."""
    # numba-cuda's own modules, loaded now, use what is replaced below; so this is for a process without a cache.
    oxide.kernel(_nothing).specialize()
    replaced = {
        "jit": jit,
        "to_device": to_device,
        "as_cuda_array": _unsupported("cuda.as_cuda_array"),
        "device_array": lambda shape, dtype=np.float64, strides=None, order="C", stream=0: to_device(
            np.zeros(shape, dtype)
        ),
        "device_array_like": _like,
        "pinned_array": lambda shape, dtype=np.float64, **_: np.zeros(shape, dtype),
        "pinned_array_like": _like,
        "mapped_array": _unsupported("mapped memory"),
        "mapped_array_like": _unsupported("mapped memory"),
        "managed_array": _unsupported("managed memory"),
        "synchronize": lambda: None,
        "stream": Stream,
        "default_stream": Stream,
        "per_thread_default_stream": Stream,
        "legacy_default_stream": Stream,
        "is_available": lambda: True,
        "is_float16_supported": lambda: True,
        "is_bfloat16_supported": lambda: True,
        "get_current_device": lambda: _DEVICE,
        "current_context": lambda *_: _CONTEXT,
        "select_device": lambda number: _CONTEXT,
        "close": lambda: None,
        "compile_ptx": _unsupported("numba-cuda's machine code"),
        "compile": _unsupported("numba-cuda's machine code"),
        "compile_for_current_device": _unsupported("numba-cuda's machine code"),
        "compile_ptx_for_current_device": _unsupported("numba-cuda's machine code"),
        "declare_device": _unsupported("linking with foreign device code"),
        "event": _unsupported("events"),
        "reduce": _unsupported("numba-cuda's reduction on the host"),
        "Reduce": _unsupported("numba-cuda's reduction on the host"),
        "vectorize": _unsupported("vectorize"),
        "guvectorize": _unsupported("guvectorize"),
        "defer_cleanup": contextlib.nullcontext,
        "pinned": lambda *arrays: contextlib.nullcontext(),
        "profiling": contextlib.nullcontext,
        "runtime": SimpleNamespace(get_version=lambda: (13, 0)),
    }
    for name, value in replaced.items():
        setattr(cuda, name, value)
    devices.get_context = lambda *_: _CONTEXT
    for name in [name for name in dir(nrt.rtsys) if name.startswith("memsys_")]:
        setattr(nrt.rtsys, name, lambda *_: None)
    nrt.rtsys.get_allocation_stats = lambda *_: SimpleNamespace(alloc=0, free=0, mi_alloc=0, mi_free=0)
    CUDADispatcher.inspect_asm = CUDADispatcher.inspect_llvm = _unsupported("numba-cuda's machine code")
    testing.cudadevrt_missing = lambda: True
    libs.get_cuda_include_dir = _missing
    nvrtc.get_supported_ccs = _unsupported("compiling CUDA C++")
    for name in (
        "compile",
        "compile_ptx",
        "compile_all",
        "compile_for_current_device",
        "compile_ptx_for_current_device",
    ):
        setattr(compiler, name, _unsupported("numba-cuda's machine code"))
    nvrtc.compile = _unsupported("compiling CUDA C++")


def _missing(*_: Any) -> Any:
    raise FileNotFoundError("the CUDA toolkit")


class _NumbaTypingError(TypingError, core_errors.TypingError):  # type: ignore[misc]
    """Whichever of its two classes of that name a test expects."""


def _nothing() -> None:
    pass


class Stream:
    """Work is done when the call returns, so every stream is empty."""

    handle = 0

    def __init__(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    @contextlib.contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        yield self


_DEVICE = SimpleNamespace(
    compute_capability=(9, 0),
    WARP_SIZE=32,
    MAX_THREADS_PER_BLOCK=1024,
    MULTIPROCESSOR_COUNT=16,
    MAX_GRID_DIM_X=2**31 - 1,
    MAX_SHARED_MEMORY_PER_BLOCK=48 * 1024,
    name="oxide",
    id=0,
)


class _Context:
    device = _DEVICE

    def get_memory_info(self) -> Any:
        return SimpleNamespace(free=2**30, total=2**30)

    def synchronize(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise unittest.SkipTest(f"{name} of numba-cuda's contexts")


_CONTEXT = _Context()


class DeviceArray:
    """numba-cuda's device array, as a box."""

    def __init__(self, box: DeviceBox) -> None:
        self.box = box

    shape = property(lambda self: self.box.shape)
    dtype = property(lambda self: self.box.dtype)
    size = property(lambda self: self.box.size)
    ndim = property(lambda self: self.box.ndim)
    nbytes = alloc_size = property(lambda self: self.box.nbytes)
    strides = property(lambda self: np.empty(self.shape, self.dtype).strides)

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> Any:
        found = d2h(self.box).sync()
        if ary is None:
            return found
        ary[...] = found
        return ary

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        source = ary.copy_to_host() if isinstance(ary, DeviceArray) else np.asarray(ary)
        oxide.memcpy(self.box, to_device(np.ascontiguousarray(source, self.dtype).reshape(self.shape)).box).sync()

    def reshape(self, *shape: Any, order: str = "C") -> DeviceArray:
        return DeviceArray(self.box.reshape(*shape))

    def ravel(self, order: str = "C") -> DeviceArray:
        return DeviceArray(self.box.reshape(-1))

    def view(self, dtype: Any) -> DeviceArray:
        return to_device(self.copy_to_host().view(dtype))

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Any:
        found = self.copy_to_host()[index]
        return to_device(found) if isinstance(found, np.ndarray) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        host = self.copy_to_host()
        host[index] = value.copy_to_host() if isinstance(value, DeviceArray) else value
        self.copy_to_device(host)

    def __getattr__(self, name: str) -> Any:
        raise unittest.SkipTest(f"{name} of numba-cuda's device arrays")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.copy_to_host().astype(dtype or self.dtype)


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> DeviceArray:
    if to is not None:
        to.copy_to_device(obj)
        return to
    return DeviceArray(h2d(np.array(obj, order="C", copy=True)).sync())


def _like(array: Any, stream: Any = 0) -> DeviceArray:
    if not (isinstance(array, DeviceArray) or array.flags.c_contiguous):
        raise unittest.SkipTest("device arrays of another layout")
    return to_device(np.zeros(array.shape, array.dtype))


class _Compiled:
    def __getattr__(self, name: str) -> Any:
        raise unittest.SkipTest("asks for numba-cuda's machine code")


class Dispatcher:
    """What ``@cuda.jit`` makes: a kernel, or, if it gets called from one, a device function."""

    def __init__(self, function: Any, signatures: list[tuple[Any, ...]], options: dict[str, Any]) -> None:
        self.py_func = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.targetoptions = options
        self.overloads = dict.fromkeys(signatures, _Compiled())
        self._can_compile = not signatures
        self._kernel: Any = None
        self.specialized = False
        if signatures:
            for types_ in self.kernel.signatures:
                with _numbas_errors():
                    names = [parameter.name for parameter in self.kernel.parameters]
                    self.kernel.specialize(**dict(zip(names, types_, strict=True)))

    @property
    def signatures(self) -> Any:
        raise unittest.SkipTest("asks for numba-cuda's machine code")

    @property
    def kernel(self) -> Any:
        if self._kernel is None:
            with _numbas_errors():
                self._kernel = oxide.kernel(self)
        return self._kernel

    def __getitem__(self, configuration: Any) -> Any:
        grid, block, *rest = configuration
        shared = rest[1] if len(rest) > 1 else 0
        config = LaunchConfig(_shape(grid), _shape(block), shared)
        return lambda *args: self._launch(config, args)

    def __call__(self, *args: Any) -> Any:
        raise ValueError("Kernel launch configuration was not specified: use kernel[grid, block](...)")

    def forall(self, count: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Any:
        if count < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {count}")
        if count == 0:
            return lambda *args: None
        threads = tpb or 128
        return self[-(-count // threads), threads, stream, sharedmem]

    def specialize(self, *args: Any) -> Dispatcher:
        return self

    def configure(self, grid: Any, block: Any, stream: Any = 0, sharedmem: int = 0) -> Any:
        return self[grid, block, stream, sharedmem]

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("inspect_", "get_", "compile", "_compile", "extensions", "stats", "_cache")):
            raise unittest.SkipTest("asks for numba-cuda's machine code")
        raise AttributeError(name)

    def _launch(self, config: LaunchConfig, args: tuple[Any, ...]) -> None:
        back: list[tuple[Any, Any]] = []
        with _numbas_errors():
            self.kernel[config](*[_argument(arg, back) for arg in args]).sync()
        for array, box in back:
            if array.flags.writeable:
                array[...] = d2h(box).sync()


def jit(function: Any = None, device: bool = False, inline: str = "never", **options: Any) -> Any:
    """``numba.cuda.jit``."""
    if options.get("debug"):
        raise unittest.SkipTest("numba-cuda's debug mode")
    if options.pop("link", None):
        raise unittest.SkipTest("linking with foreign device code")
    if options.get("lto") or options.get("cache"):
        raise unittest.SkipTest("numba-cuda's linker or cache")
    inline = {True: "always", False: "never"}.get(inline, inline)
    target: dict[str, Any] = {"device": device, "inline": inline, "fastmath": bool(options.get("fastmath"))}
    if function is None:
        return lambda decorated: jit(decorated, device=device, inline=inline, **options)
    if isinstance(function, str | tuple | list) or sigutils.is_signature(function):
        given = function if isinstance(function, list) else [function]
        signatures = [sigutils.normalize_signature(signature) for signature in given]

        def decorate(decorated: Any) -> Any:
            returned = {returns for _, returns in signatures}
            if device or not returned <= {None, types.void}:
                return CUDADispatcher(decorated, {**target, "device": True})
            return Dispatcher(decorated, [args for args, _ in signatures], target)

        return decorate
    if device:
        return CUDADispatcher(function, target)
    return Dispatcher(function, [], target)


def _argument(value: Any, back: list[tuple[Any, Any]]) -> Any:
    if isinstance(value, DeviceArray):
        return value.box
    if isinstance(value, np.void):
        value = np.asarray(value)  # a view of the same record
    if isinstance(value, np.ndarray):
        for array, box in back:
            if array is value:
                return box
        box = h2d(np.array(value, order="C", copy=True)).sync()
        back.append((value, box))
        return box
    if type(value) is tuple:
        return tuple(_argument(part, back) for part in value)
    if isinstance(value, tuple):
        return type(value)(*(_argument(part, back) for part in value))
    return value


def _shape(value: Any) -> Any:
    return tuple(int(part) for part in value) if isinstance(value, tuple | list) else int(value)


def _unsupported(what: str) -> Any:
    def refuse(*args: Any, **options: Any) -> Any:
        raise unittest.SkipTest(what)

    return refuse


@contextlib.contextmanager
def _numbas_errors() -> Iterator[None]:
    try:
        yield
    except CompileError as error:
        if isinstance(error.__cause__, NumbaError | ValueError | TypeError):
            if isinstance(error.__cause__, TypingError | core_errors.TypingError):
                raise _NumbaTypingError(str(error.__cause__)) from error
            raise error.__cause__ from None
        raise _NumbaTypingError(str(error)) from error
