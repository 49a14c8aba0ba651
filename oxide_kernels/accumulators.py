"""The types in which the library's kernels compute, for each dtype of their elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import device, f32, f64, i32, i64, u32, u64

_BY_DTYPE = {np.dtype(kind): kind for kind in (f64, i32, u32, i64, u64)}


def accumulator(dtype: np.dtype[Any]) -> Any:
    """Returns the scalar type for running sums of elements of ``dtype``. It is the elements' own type for f32, f64 and
    integers. It is f32 for f16 and bf16, which would lose digits after a few additions. It is also f32 for a dtype that
    no kernel takes: the launch then raises an error that names this dtype."""
    return _BY_DTYPE.get(dtype, f32)


def total(dtype: np.dtype[Any]) -> Any:
    """Returns the scalar type for the sum of all elements of an array of ``dtype``. It is ``accumulator(dtype)``,
    except for integers: i64 or u64, as in NumPy."""
    return {i32: i64, u32: u64}.get(accumulator(dtype), accumulator(dtype))


def total_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the dtype of a sum over elements of ``dtype``. For f16 and bf16 it is ``dtype`` itself: the sum is
    rounded at the end."""
    made: np.dtype[Any] = total(dtype).dtype
    return dtype if dtype.itemsize < made.itemsize and made.kind == "f" else made


@device
def widen(x: Any) -> Any:
    """Converts an f16 or bf16 to f32, and returns any other float unchanged. Kernels compute their formulas in this
    type."""
    return x * f32(1)
