"""The packages that compile kernels, and the error for a kernel that must be compiled although a package is missing.

A program whose kernels were all built ahead of time needs none of these packages. Compiling a tile kernel, or fusing
kernels that are already in IR, needs only llvmlite. The parameters and the body of any other kernel are typed by
numba-cuda, which imports CUDA's bindings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oxide.compiler.source.source import located
from oxide.errors import CompileError
from oxide.host.environment import is_installed

if TYPE_CHECKING:
    from oxide.compiler.declaration.description import KernelDescription

__all__ = ["missing_package", "not_installed"]

_FOR_CODE = {"llvmlite": "llvmlite"}
_FOR_TYPES = {
    "numba": "numba",
    "numba_cuda": "numba-cuda",
    **_FOR_CODE,
    "cuda.bindings": "cuda-bindings",
    "cuda.core": "cuda-core",
}
"""Maps each module that types kernels to the package to install for it. ``_FOR_CODE`` does so for the modules that
compile IR."""


def missing_package(kernel: KernelDescription, *, types: bool = True) -> str | None:
    """Returns the first package that is needed to compile a kernel and not installed, or None. If ``types`` is False,
    the kernel is already in IR, and the packages that type kernels are not needed."""
    typed = types and kernel.tile is None and kernel.fusion is None
    needed = _FOR_TYPES if typed else _FOR_CODE
    return next((package for module, package in needed.items() if not is_installed(module)), None)


def not_installed(kernel: KernelDescription, package: str) -> CompileError:
    """Returns the error for a kernel that cannot be compiled without a package."""
    kind = "tile kernels" if kernel.tile is not None else "typed kernels"
    return located(
        kernel.function,
        f"kernel {kernel.name} must be compiled, and {package}, which compiles {kind}, is not installed: python -m pip "
        f"install {package}, or build the kernel ahead of time with `oxide build` and load it with oxide.load",
    )
