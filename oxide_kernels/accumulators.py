"""In which type the library's kernels compute, for each dtype of their elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import device, f32, f64, i32, i64, u32, u64

_BY_DTYPE = {np.dtype(kind): kind for kind in (f64, i32, u32, i64, u64)}


def accumulator(dtype: np.dtype[Any]) -> Any:
    """The scalar type that running sums of such elements are made in: f32 for f32 and what is narrower, f16 and bf16,
    as their own few digits are lost after some additions; else the elements' own. What no kernel takes has f32 too: the
    launch is refused by name."""
    return _BY_DTYPE.get(dtype, f32)


def total(dtype: np.dtype[Any]) -> Any:
    """The scalar type that one sum over all such elements is made in: as ``accumulator``, but of integers i64 or u64,
    as in NumPy."""
    return {i32: i64, u32: u64}.get(accumulator(dtype), accumulator(dtype))


def total_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of such a sum: f16 and bf16 are rounded to in the end."""
    made: np.dtype[Any] = total(dtype).dtype
    return dtype if dtype.itemsize < made.itemsize and made.kind == "f" else made


@device
def widen(x: Any) -> Any:
    """An f16 or bf16 as an f32, any other float as it is: the type that a formula is computed in."""
    return x * f32(1)
