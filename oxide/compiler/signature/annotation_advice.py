"""Advice for annotation errors: what to annotate a kernel's parameter as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oxide.language.types import OF_PYTHON, SCALAR_NAMES, SCALARS, of_dtype

from .signature import SLICES


def of_annotation(annotation: Any) -> str:
    """Returns advice for the annotation of a kernel's parameter. ``annotation`` is the refused annotation."""
    scalars = _scalars_for(annotation)
    if scalars:
        return f"annotate it as {scalars}"
    if annotation in SLICES:
        return f"say of what, as in {annotation.__name__}[f32]"
    if annotation is np.ndarray or getattr(annotation, "__origin__", annotation) in (list, np.ndarray, Sequence):
        return "an input is Slice[f32] or Slice2[f32], an output DisjointSlice[f32], an array Array[f32, 2]"
    return (
        f"annotate it as a scalar ({SCALAR_NAMES}), a tuple or a NamedTuple of scalars, Slice[T], "
        "DisjointSlice[T], AtomicSlice[T], Array[T, ndim] or Callable, where T may be a TypeVar, or not at all"
    )


def of_element(annotation: Any) -> str:
    """Returns advice for the element type of a slice. ``annotation`` is the refused element type."""
    scalars = _scalars_for(annotation)
    shown = getattr(annotation, "__name__", repr(annotation))
    return f"write {scalars}, not {shown}" if scalars else SCALAR_NAMES


def _scalars_for(annotation: Any) -> str:
    """Returns oxide's scalar types for a number type of Python or NumPy, or an empty string."""
    if annotation in OF_PYTHON:
        plain = OF_PYTHON[annotation]
        kinds = "iu" if plain.kind == "i" else plain.kind
        *first, last = (
            name for name, each in SCALARS.items() if each.kind in kinds and each.bits in (plain.bits, plain.bits // 2)
        )
        return f"{', '.join(first)} or {last}" if first else last
    return dtype_name(annotation) or ""


def dtype_name(value: Any) -> str | None:
    """Returns oxide's name for a scalar type of NumPy, or None."""
    if not (isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic))):
        return None
    try:
        known = of_dtype(np.dtype(value))
    except TypeError:
        return None
    return None if known is None else known.name
