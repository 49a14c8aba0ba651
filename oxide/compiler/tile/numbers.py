"""The types of tile arithmetic: NumPy's promotion, and NEP 50 for Python literals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oxide.language.types import OF_PYTHON, SCALARS, ScalarType, of_dtype

DTYPES = tuple(scalar for scalar in SCALARS.values() if scalar.kind != "c")
"""The types of a tile's elements."""

# The types are looked up by name, because a static type checker takes the attributes of `types` for Python's types.
BOOL, I32, I64, U64, F32, F64 = (SCALARS[name] for name in ("bool_", "i32", "i64", "u64", "f32", "f64"))

Operand = tuple[ScalarType, type | None]
"""An operand's type, and the class of the Python number that it behaves like (None for other operands)."""


def promoted(operands: Sequence[Operand]) -> Operand | None:
    """Returns the common type of operands, as ``numpy.result_type`` does, or None if there is none."""
    strong = [scalar for scalar, weak in operands if weak is None]
    weak: list[Any] = [each(1) for _, each in operands if each is not None]
    if not strong:
        widest = max((each for _, each in operands if each is not None), key=(bool, int, float).index)
        return OF_PYTHON[widest], widest
    kinds = {scalar.kind for scalar in strong}
    narrow = [scalar for scalar in strong if scalar.numpys is None]
    try:
        if narrow and "f" in kinds:
            if len({scalar.name for scalar in strong if scalar.kind == "f"}) == 1 and kinds == {"f"}:
                return strong[0], None
            found = np.result_type(*[scalar.dtype for scalar in strong])
        else:
            found = np.result_type(*[scalar.dtype for scalar in strong], *weak)
    except TypeError:
        return None
    scalar = of_dtype(found)
    return None if scalar is None else (scalar, None)
