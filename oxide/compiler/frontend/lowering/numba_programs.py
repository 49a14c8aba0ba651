"""Host-side steps of numba-cuda programs, without the GPU that numba-cuda itself needs for these steps.
``oxide.numba_cuda`` calls them."""

from __future__ import annotations

import ast
import functools
import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numba.cuda.core import errors, sigutils
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.random import init_xoroshiro128p_states_cpu, xoroshiro128p_dtype
from numba.cuda.types import void
from numba.cuda.typing.templates import Signature

from oxide.compiler.frontend.lowering.types import numba_type
from oxide.compiler.signature.signature import Closed, NumbaParameter
from oxide.compiler.source.source import keep_text
from oxide.errors import LaunchError
from oxide.host.locks import new_lock, unheld


class _Uncompiled:
    """A placeholder for the machine code of an explicit signature, with the attributes that numba-cuda expects."""

    objectmode = False

    def __init__(self, signature: Any) -> None:
        self.signature = signature
        self.entry_point = self  # numba-cuda removes the signature's code by this key

    def launch(self, *_: Any) -> None:
        """Raises ``LaunchError``. numba-cuda calls this to launch a kernel."""
        raise LaunchError(
            "numba-cuda compiled nothing for a kernel that was decorated in oxide.numba_cuda.without_gpu(): make a "
            "kernel of it, oxide.kernel(f), and launch that"
        )


@contextmanager
def without_gpu() -> Iterator[None]:
    """Makes numba-cuda keep the explicit signatures of the functions that are decorated in the ``with`` block, without
    compiling anything for these signatures."""

    def keep(dispatcher: Any, arguments: Any, returns: Any = None) -> Any:
        arguments, said = sigutils.normalize_signature(arguments)
        kept = _Uncompiled(Signature(returns or said, arguments, None))
        return dispatcher.overloads.setdefault(arguments, kept)

    originals = CUDADispatcher.compile, CUDADispatcher.compile_device
    CUDADispatcher.compile = CUDADispatcher.compile_device = keep
    try:
        yield
    finally:
        CUDADispatcher.compile, CUDADispatcher.compile_device = originals


def kernel_types(parameters: tuple[Closed, ...]) -> tuple[Any, ...]:
    """Returns numba's types of the parameters of an adopted kernel's specialization."""
    return tuple(numba_type(parameter.type) for parameter in parameters if isinstance(parameter, NumbaParameter))


def kernel_signature(types: tuple[Any, ...]) -> Any:
    """Returns numba's signature of a kernel with parameters of numba's ``types``."""
    return Signature(void, types, None)


def random_states(n: int, seed: int, subsequence_start: int) -> np.ndarray[Any, Any]:
    """Returns the states of ``n`` random number generators, as numba-cuda creates them."""
    states = np.empty(n, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(states, np.uint64(seed % 2**64), np.uint64(subsequence_start))
    return states


def numba_cuda() -> Any:
    """Returns the module ``numba.cuda``."""
    return importlib.import_module("numba.cuda")


_original_jit = importlib.import_module("numba.cuda.decorators").jit
_decorating = new_lock()


def is_signature(given: Any) -> bool:
    """Returns whether numba takes an object for one or several signatures."""
    return isinstance(given, list) or bool(sigutils.is_signature(given))


def decorated(function: Any, signature: Any, device: bool, options: dict[str, Any]) -> Any:
    """Returns numba-cuda's dispatcher of a function, with the explicit signatures in ``signature``. Compiles
    nothing."""
    function = getattr(function, "py_func", function)
    keep_text(function)
    with unheld(_decorating), without_gpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.NumbaWarning)
        if signature is None:
            return _original_jit(function, device=device, opt=True, debug=False, **options)
        return _original_jit(signature, device=device, opt=True, debug=False, **options)(function)


@functools.cache
def reductions_on(cuda: Any) -> ModuleType:
    """Returns a copy of numba-cuda's module of reductions that uses the module ``cuda`` instead of ``numba.cuda``."""
    return _on(cuda, "numba.cuda.kernels.reduction")


@functools.cache
def vectorizers_on(cuda: Any) -> ModuleType:
    """Returns a copy of numba-cuda's module of ufuncs that uses the module ``cuda`` instead of ``numba.cuda``."""
    made = _on(cuda, "numba.cuda.vectorizers")

    class Mechanism(made.CUDAUFuncMechanism):  # type: ignore[misc, name-defined]
        """Broadcasts by NumPy's rule. numba-cuda's own code repeats the first element of an array that has fewer axes
        than the result."""

        def _broadcast(self, arys: Any) -> Any:
            shape = np.broadcast_shapes(*(array.shape for array in arys))
            return [array if array.shape == shape else self._stretched(array, shape) for array in arys]

        def _stretched(self, array: Any, shape: tuple[int, ...]) -> Any:
            if not self.is_device_array(array):
                return np.ascontiguousarray(np.broadcast_to(array, shape))
            whole = cuda.device_array(shape, array.dtype)
            whole[...] = array
            return whole

    made.CUDAUFuncMechanism = Mechanism  # type: ignore[attr-defined]
    return made


def _on(cuda: Any, name: str) -> ModuleType:
    """Returns a new module, compiled from the source of a module of numba-cuda. In the new module, every
    ``from numba import cuda`` gives ``cuda`` instead."""
    module = importlib.import_module(name)
    path = module.__file__
    assert path is not None
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    made = ModuleType(name, module.__doc__)
    made.__file__ = path
    vars(made)["__oxide_cuda__"] = cuda
    exec(compile(ast.fix_missing_locations(_Importing().visit(tree)), path, "exec"), vars(made))
    return made


class _Importing(ast.NodeTransformer):
    """Replaces ``from numba import cuda`` by an assignment of the global ``__oxide_cuda__`` to ``cuda``."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        if node.module != "numba" or [alias.name for alias in node.names] != ["cuda"]:
            return node
        return ast.copy_location(
            ast.Assign([ast.Name("cuda", ast.Store())], ast.Name("__oxide_cuda__", ast.Load())), node
        )
