"""In which type a kernel of the library adds up, for each dtype of its elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import f32, f64, i32, i64, u32, u64

_BY_DTYPE = {np.dtype(kind): kind for kind in (f64, i32, u32, i64, u64)}


def accumulator(dtype: np.dtype[Any]) -> Any:
    """The scalar type that sums of such elements are made in: f32 for f32 and what is narrower, f16 and bf16, as their
    own few digits are lost after some additions; else the elements' own. What no kernel takes has f32 too: the launch
    is refused by name."""
    return _BY_DTYPE.get(dtype, f32)
