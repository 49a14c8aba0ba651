"""Arithmetic in fused kernels, beside NumPy 2: what a stage stores narrows on its way to the next, in registers too."""

from __future__ import annotations

import numpy as np
import pytest

from oxide import d2h, h2d, zeros
from oxide.compiler.fusion.fusion import Stage, fused
from oxide.language.types import SCALARS
from tests.kernels.test_numbers import binary, pairs

STAGES = [
    ("u8", "u8", "a * b + a", "u8", "a * 3 - b", "u8"),
    ("i8", "u8", "a * b - 5", "i8", "a * a // b", "i8"),
    ("u32", "u32", "(a * b) >> 3 ^ a", "u16", "a << 9", "u32"),
    ("i32", "u32", "a * b % 1000", "i8", "a ^ b", "i32"),
    ("i64", "i32", "a * b // (b | 1)", "i16", "a * b", "i64"),
    ("u64", "u32", "a * b | b", "u32", "a * b", "u64"),
    ("f16", "i8", "a * b", "f16", "a + b", "f16"),
    ("f32", "u16", "a * b", "f16", "a + b", "f32"),
    ("f32", "i32", "a - b", "f32", "a * b", "f64"),
    ("bool_", "i32", "a + b", "i8", "a + b", "i64"),
]
"""The types of two inputs, what the first stage computes from them, the type in which it stores the result, what the
second stage computes from that and the first input, and the type of its output."""


@pytest.mark.parametrize(
    ("first", "second", "before", "narrow", "after", "result"), STAGES, ids=["-".join(each[:2]) for each in STAGES]
)
@pytest.mark.parametrize("dead", [True, False])
def test_a_fused_kernel_computes_as_numpy(
    first: str, second: str, before: str, narrow: str, after: str, result: str, dead: bool
) -> None:
    a, b = pairs(first, second)
    stages = [
        Stage(binary(first, second, narrow, before).specialize(), (0, 1, 2)),
        Stage(binary(narrow, first, result, after).specialize(), (2, 0, 3)),
    ]
    made = fused(stages, {2} if dead else set())
    values = {0: h2d(a), 1: h2d(b), 2: zeros(len(a), SCALARS[narrow]), 3: zeros(len(a), SCALARS[result])}
    boxes = {place: value.sync() for place, value in values.items()}
    made.kernel(*[boxes[place] for place in made.arguments]).sync()
    with np.errstate(all="ignore"):
        between = np.asarray(eval(before, {"a": a, "b": b})).astype(SCALARS[narrow].dtype)
        expected = np.asarray(eval(after, {"a": between, "b": a})).astype(SCALARS[result].dtype)
    np.testing.assert_array_equal(d2h(boxes[3]).sync(), expected)
    if not dead:
        np.testing.assert_array_equal(d2h(boxes[2]).sync(), between)
