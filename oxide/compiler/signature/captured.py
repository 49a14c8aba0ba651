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
    """Returns a description of a device array: a box, an array of ``oxide.numba_cuda``, or another library's array with
    ``__cuda_array_interface__`` or ``__dlpack__``. Returns None for any other object, NumPy's arrays included."""
    as_argument = getattr(type(value), "as_argument", None)
    if as_argument is not None:
        argument = as_argument(value)
        kind, shape, strides = None if argument is None else argument.type, value.shape, value.strides
    elif isinstance(value, ModuleType | type | np.ndarray) or (view := _like(value)) is None:
        return None
    else:
        kind, shape, strides = of_box(view.dtype, view.ndim, not view.flags.c_contiguous), view.shape, view.strides
    return Captured(value, name, kind, shape, strides) if isinstance(kind, ArrayType) else None


def _like(value: Any) -> np.ndarray[Any, Any] | None:
    """Returns a NumPy array of the layout of another library's array, whose elements must not be accessed."""
    interface = getattr(value, "__cuda_array_interface__", None)
    if isinstance(interface, dict):
        element = np.empty((), np.dtype(interface["typestr"]))
        return np.lib.stride_tricks.as_strided(element, interface["shape"], interface.get("strides"))
    if not hasattr(value, "__dlpack__"):
        return None
    try:
        return np.from_dlpack(value)
    except Exception:  # of another device, for example
        return None
