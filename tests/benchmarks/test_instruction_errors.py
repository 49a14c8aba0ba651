"""The errors of tensor cores are within the bounds that the book states, and are measured against the exact sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.instruction_errors import INSTRUCTIONS, UNITS, as_read, error_of
from oxide import CompileError, devices, f32

PLAIN = ("mma f16 f16 f16", "mma bf16 bf16 f32", "mma f64 f64 f64", "wgmma f32 f32 f32", "wgmma i8 u8 i32")


@pytest.mark.slow
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_each_instruction_is_within_its_bound(name: str) -> None:
    on_gpu = devices()[0].kind == "cuda"
    if not on_gpu and name not in PLAIN:
        pytest.skip("the CPU device runs a few of them")
    kinds = ("normal",) if name.endswith("i32") else ("normal", "wide", "positive")
    for kind in kinds:
        for k in (128, 1024) if on_gpu else (128,):
            try:
                error = error_of(INSTRUCTIONS[name], kind, 64 if on_gpu else 1, k)
            except CompileError as refused:
                pytest.skip(str(refused))
            assert error <= INSTRUCTIONS[name].bound


def test_an_error_is_a_multiple_of_k_and_the_unit_roundoff(monkeypatch: Any) -> None:
    exact = error_of(INSTRUCTIONS["mma bf16 bf16 f32"], "positive", 1, 128)
    monkeypatch.setitem(UNITS, f32, 2.0**-25)
    assert np.isclose(error_of(INSTRUCTIONS["mma bf16 bf16 f32"], "positive", 1, 128), 2 * exact)
    assert exact > 0


def test_tf32_operands_are_read_without_their_low_bits() -> None:
    numbers = np.float32([1 + 2.0**-11, 1 + 2.0**-10, -(1 + 2.0**-23)])
    assert as_read(numbers, f32).tolist() == [1, 1 + 2.0**-10, -1]


def test_the_book_says_how_to_measure_them() -> None:
    book = Path(__file__).parents[2] / "docs" / "tensor.md"
    assert "python -m benchmarks.instruction_errors" in book.read_text(encoding="utf-8")
