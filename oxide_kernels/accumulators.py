"""The types in which the library's kernels compute, for each dtype of their elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import device, f32, f64, i32, i64, u32, u64

_BY_DTYPE = {np.dtype(kind): kind for kind in (f64, i32, u32, i64, u64)}


def accumulator(dtype: np.dtype[Any]) -> Any:
    """Returns the scalar type for running sums of elements of ``dtype``: f32 for f32, f16 and bf16, since f16 and bf16
    would lose digits after a few additions; otherwise the elements' own type. A dtype that no kernel takes also gets
    f32, and the launch then refuses the dtype by name."""
    return _BY_DTYPE.get(dtype, f32)


def total(dtype: np.dtype[Any]) -> Any:
    """Returns the scalar type for the sum of all elements, which are of ``dtype``. It is ``accumulator(dtype)``, but
    i64 or u64 for integers, as in NumPy."""
    return {i32: i64, u32: u64}.get(accumulator(dtype), accumulator(dtype))


def total_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype of a sum over elements of ``dtype``. For f16 and bf16 it is ``dtype`` itself: the sum is
    rounded at the end."""
    made: np.dtype[Any] = total(dtype).dtype
    return dtype if dtype.itemsize < made.itemsize and made.kind == "f" else made


@device
def widen(x: Any) -> Any:
    """Returns an f16 or bf16 as an f32, any other float unchanged. Formulas are computed in the result's type."""
    return x * f32(1)
