"""Each step of the chapter "Why is it slow?" computes what the first one does."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from examples.why_slow import __main__ as example


@pytest.mark.slow
@pytest.mark.parametrize("step", example.STEPS)
@pytest.mark.parametrize("shape", [(1, 1), (33, 31), (129, 1000)], ids=str)
def test_rows_have_unit_length(step: str, shape: tuple[int, int]) -> None:
    random = np.random.default_rng(7)
    batches = [random.standard_normal(shape).astype(np.float32) for _ in range(6)]
    results: dict[int, Any] = {}
    example.STEPS[step](batches, results.__setitem__)
    assert sorted(results) == list(range(len(batches)))
    for number, batch in enumerate(batches):
        found = results[number]
        wide = batch.astype(np.float64)
        expected = wide / np.linalg.norm(wide, axis=1, keepdims=True)
        assert found.shape == shape
        bound = 1e-3 if step == "halved" else 1e-6
        assert np.linalg.norm(found - expected) <= bound * np.linalg.norm(expected)


def test_the_program_prints_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["why_slow", "fused", "--rows", "40", "--columns", "30", "--batches", "2"])
    example.main()
    assert capsys.readouterr().out.startswith("fused: ")
