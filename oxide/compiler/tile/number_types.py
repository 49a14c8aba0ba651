"""The types of tile arithmetic: NumPy's promotion, and NEP 50 for Python literals."""

from __future__ import annotations

from collections.abc import Sequence

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
    weak = [each for _, each in operands if each is not None]
    if not strong:
        widest = max(weak, key=(bool, int, float).index)
        return OF_PYTHON[widest], widest
    if any(scalar.ml_dtypes for scalar in strong):  # NumPy's rule for literals covers only its own types
        weak = []
    try:
        found = of_dtype(np.result_type(*[scalar.dtype for scalar in strong], *[each(1) for each in weak]))
    except TypeError:
        return None
    return None if found is None else (found, None)
