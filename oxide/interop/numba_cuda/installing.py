"""``install()``: puts oxide in the place of ``numba.cuda``, for programs whose imports cannot be changed.

It replaces the names inside numba.cuda's modules. So it does not matter whether a program imports these modules before
or after the call. But a name that was imported from them before the call, as with ``from numba.cuda import jit``, still
refers to numba.cuda's object.
"""

from __future__ import annotations

import importlib
from typing import Any

from oxide.host.locks import new_lock, unheld

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
    from oxide.interop.numba_cuda import substitutes
    from oxide.interop.numba_cuda.unserved import UNSERVED, unserved

    (served,) = substitutes.served
    importlib.import_module("oxide.compiler.frontend.frontend")  # takes numba-cuda's own names before they change
    cuda = numba_cuda()
    ours = {name: getattr(served, name) for name in served.__all__}
    kept = {"create_xoroshiro128p_states", "install", "uninstall", "without_gpu", "cudadrv", "vectorize", "guvectorize"}
    _replace(cuda, {name: value for name, value in ours.items() if name not in kept})
    _replace(cuda, {name: unserved(name) for name in UNSERVED})

    def module(name: str) -> Any:
        return importlib.import_module(f"{cuda.__name__}.{name}")

    ufuncs = vectorizers_on(served)
    for name in ("CUDAVectorize", "CUDAGUFuncVectorize"):
        _replace(module("vectorizers"), {name: getattr(ufuncs, name)})
    _replace(
        module("random"),
        {
            "create_xoroshiro128p_states": substitutes.create_xoroshiro128p_states,
            "init_xoroshiro128p_states": substitutes.init_xoroshiro128p_states,
        },
    )
    # Not ``decorators.jit``: numba-cuda itself compiles its implementations of functions with it.
    _replace(module("kernels.transpose"), {"transpose": substitutes.transpose})
    for name, names in substitutes.CUDADRV.items():
        _replace(module(f"cudadrv.{name}"), names)
    _replace(module("api"), {name: value for name, value in ours.items() if name in vars(module("api"))})
