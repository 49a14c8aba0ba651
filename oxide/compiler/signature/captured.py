"""Device arrays that a kernel with numba-cuda's semantics names, but does not take as arguments: globals and variables
of the function around it.

numba-cuda writes the address of such an array into the kernel's code. Here the array is a hidden parameter behind the
kernel's own ones. So a launch is ordered with other uses of the array, and the sanitizer knows the array's bounds. As
in numba-cuda, the kernel keeps the array that it found when it was compiled.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, final

import numpy as np

from .untyped_arguments import ArrayType, of_box


@final
@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A captured array: the object ``value``, the kernel's name for it, and its layout."""

    value: Any
    name: str
    type: ArrayType
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def captured(value: Any, name: str) -> Captured | None:
    """Returns a description of a device array: a box, an array of ``oxide.numba_cuda``, or an object with
    ``__cuda_array_interface__``. Returns None for any other object."""
    as_argument = getattr(type(value), "as_argument", None)
    if as_argument is not None:
        kind = as_argument(value).type
        return Captured(value, name, kind, value.shape, value.strides) if isinstance(kind, ArrayType) else None
    interface = None if isinstance(value, ModuleType | type) else getattr(value, "__cuda_array_interface__", None)
    if not isinstance(interface, dict):
        return None
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    view = np.lib.stride_tricks.as_strided(np.empty((), dtype), shape, interface.get("strides"))  # never accessed
    kind = of_box(dtype, len(shape), not view.flags.c_contiguous)
    return Captured(value, name, kind, shape, view.strides) if isinstance(kind, ArrayType) else None
