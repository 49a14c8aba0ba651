"""Tells by a file whose code it is: numba's and the compiler's, the rest of oxide's, or a kernel author's."""

from __future__ import annotations

import os
from pathlib import Path

import numba
import numba.cuda

from oxide.compiler.check import advice


def is_numbas(file: str) -> bool:
    """Returns whether a file belongs to numba or to oxide's compiler, and so not to a kernel's author."""
    return rank_of(file) == 0


def rank_of(file: str) -> int:
    """Ranks how near a file is to a kernel's author: 0 for numba and oxide's compiler, 1 for the rest of oxide and for
    ``oxide_kernels``, 2 for any other file."""
    if file.startswith(_COMPILERS):
        return 0
    return 1 if file.startswith(_LIBRARIES) else 2


def _folder(file: str) -> str:
    return str(Path(file).parent) + os.sep


_OXIDE = Path(advice.__file__).parents[2]
_COMPILERS = (_folder(numba.__file__), _folder(numba.cuda.__file__), f"{_OXIDE / 'compiler'}{os.sep}")
_LIBRARIES = (f"{_OXIDE}{os.sep}", f"{_OXIDE}_kernels{os.sep}")
