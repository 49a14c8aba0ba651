"""``oxide.numba_cuda`` as numba-cuda's own tests expect it.

``install()`` installs it in the place of ``numba.cuda``. What the tests ask of numba-cuda's own machine code, driver,
linker or debug mode raises ``unittest.SkipTest``, which says so. A kernel that cannot be compiled raises numba's error:
the tests expect its type.
"""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from numba import cuda
from numba.core import errors as core_errors
from numba.cuda import compiler, testing
from numba.cuda.core.errors import NumbaError, TypingError
from numba.cuda.cudadrv import devices, libs, nvrtc
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.memory_management import nrt

from oxide import CompileError, numba_cuda
from oxide.interop.numba_cuda import dispatcher
from oxide.interop.numba_cuda.devices import Context

_CODE = "numba-cuda's machine code"

launched: set[str] = set()
"""The kernels launched since ``suite`` last emptied the set, by qualified name and line."""


def install() -> None:
    """Installs ``oxide.numba_cuda`` for the rest of the process."""
    numba_cuda.install()
    dispatcher.Dispatcher = Dispatcher  # type: ignore[misc]
    names = ("compile", "compile_ptx", "compile_all", "compile_for_current_device", "compile_ptx_for_current_device")
    for name in names:
        setattr(compiler, name, _unsupported(_CODE))
        setattr(cuda, name, _unsupported(_CODE))
    cuda.jit = jit
    cuda.declare_device = _unsupported("linking with foreign device code")
    cuda.is_bfloat16_supported = cuda.is_float16_supported = lambda: True
    cuda.runtime = SimpleNamespace(get_version=lambda: (13, 0))
    Context.__getattr__ = lambda context, name: _skip(f"{name} of numba-cuda's contexts")  # type: ignore[method-assign]
    devices.get_context = cuda.current_context
    for name in [name for name in dir(nrt.rtsys) if name.startswith("memsys_")]:
        setattr(nrt.rtsys, name, lambda *_: None)
    nrt.rtsys.get_allocation_stats = lambda *_: SimpleNamespace(alloc=0, free=0, mi_alloc=0, mi_free=0)
    CUDADispatcher.inspect_asm = CUDADispatcher.inspect_llvm = _unsupported(_CODE)
    testing.cudadevrt_missing = lambda: False
    libs.get_cuda_include_dir = _missing
    nvrtc.get_supported_ccs = nvrtc.compile = _unsupported("compiling CUDA C++")


def jit(function: Any = None, device: bool = False, **options: Any) -> Any:
    """``numba_cuda.jit``, which skips tests of numba-cuda's debug mode, linker and cache."""
    if options.get("debug"):
        _skip("numba-cuda's debug mode")
    if options.get("link"):
        _skip("linking with foreign device code")
    if options.get("lto") or options.get("cache"):
        _skip("numba-cuda's linker or cache")
    if function is None:
        return lambda decorated: jit(decorated, device=device, **options)
    made = numba_cuda.jit(function, device=device, **options)
    if isinstance(made, Dispatcher | CUDADispatcher):
        return made

    def decorate(decorated: Any) -> Any:
        found = made(decorated)
        if isinstance(found, Dispatcher):
            found.compile_signatures()
        return found

    return decorate


class Dispatcher(dispatcher.Dispatcher):
    """A kernel that compiles its explicit signatures when it is decorated, and raises numba's errors."""

    def compile_signatures(self) -> None:
        for types in self.kernel.signatures:
            with _numbas_errors():
                names = [parameter.name for parameter in self.kernel.parameters]
                self.kernel.specialize(**dict(zip(names, types, strict=True)))

    @property
    def kernel(self) -> Any:
        with _numbas_errors():
            return super().kernel

    @property
    def overloads(self) -> Any:
        return dict.fromkeys(super().overloads, _Compiled())

    @property
    def signatures(self) -> Any:
        _skip(_CODE)

    def __getitem__(self, configuration: Any) -> Callable[..., None]:
        launch = super().__getitem__(configuration)

        def run(*args: Any) -> None:
            code = self.py_func.__code__
            launched.add(f"{self.py_func.__qualname__}, line {code.co_firstlineno}")
            with _numbas_errors():
                launch(*args)
                cuda.synchronize()

        return run

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("inspect_", "get_", "compile", "_compile", "extensions", "stats", "_cache")):
            _skip(_CODE)
        raise AttributeError(name)


for _name in [name for name in vars(dispatcher.Dispatcher) if name.startswith(("inspect_", "get_"))]:
    setattr(Dispatcher, _name, property(lambda self: _skip(_CODE)))


class _Compiled:
    def __getattr__(self, name: str) -> Any:
        _skip(_CODE)


class _NumbaTypingError(TypingError, core_errors.TypingError):  # type: ignore[misc]
    """Whichever of its two classes of that name a test expects."""


def _missing(*_: Any) -> Any:
    raise FileNotFoundError("the CUDA toolkit")


def _skip(what: str) -> Any:
    raise unittest.SkipTest(what)


def _unsupported(what: str) -> Any:
    return lambda *args, **options: _skip(what)


@contextlib.contextmanager
def _numbas_errors() -> Iterator[None]:
    try:
        yield
    except NotImplementedError as error:
        _skip(str(error))
    except CompileError as error:
        if isinstance(error.__cause__, NumbaError | ValueError | TypeError):
            if isinstance(error.__cause__, TypingError | core_errors.TypingError):
                raise _NumbaTypingError(str(error.__cause__)) from error
            raise error.__cause__ from None
        raise _NumbaTypingError(str(error)) from error
