"""The types of tile arithmetic: NumPy's promotion, and NEP 50 for Python literals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oxide.language import types
from oxide.language.types import ScalarType, of_dtype

DTYPES = tuple(
    getattr(types, name)
    for name in [
        "i8",
        "i16",
        "i32",
        "i64",
        "u8",
        "u16",
        "u32",
        "u64",
        "f8e4m3",
        "f8e5m2",
        "f16",
        "bf16",
        "f32",
        "f64",
        "bool_",
    ]
)
"""The types of a tile's elements."""


def _typed(name: str) -> ScalarType:
    found: ScalarType = getattr(types, name)
    return found


# The types are looked up by name, because a static type checker takes the attributes of `types` for Python's types.
BOOL, I32, I64, U64, F32, F64 = map(_typed, ("bool_", "i32", "i64", "u64", "f32", "f64"))

Operand = tuple[ScalarType, type | None]
"""An operand's type, and the class of the Python number that it behaves like (None for other operands)."""


def promoted(operands: Sequence[Operand]) -> Operand | None:
    """Returns the common type of operands, as ``numpy.result_type`` does, or None if there is none."""
    strong = [scalar for scalar, weak in operands if weak is None]
    weak: list[Any] = [each(1) for _, each in operands if each is not None]
    if not strong:
        widest = max((each for _, each in operands if each is not None), key=(bool, int, float).index)
        return default_of(widest), widest
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


def default_of(kind: type) -> ScalarType:
    """Returns the type of a Python number that meets no typed operand."""
    return {bool: BOOL, int: I64, float: F64}[kind]


def limits(scalar: ScalarType) -> tuple[int, int]:
    """Returns the least and the greatest integer of a type."""
    info = np.iinfo(scalar.dtype)
    return int(info.min), int(info.max)
