"""Elementary functions of floats on the CPU device: rounded as a double's result would be, over all kinds of floats."""

from __future__ import annotations

import math
import os
import re
from typing import Any

import numpy as np
import pytest

from oxide import DisjointSlice, Slice, f32, h2d, kernel, thread, tile, zeros
from tests.compiler.native_runner import run_blocks

pytestmark = pytest.mark.skipif(
    os.environ.get("OXIDE_DEVICE") == "cuda", reason="a GPU has libdevice's functions, with errors of an ulp or two"
)


@kernel
def functions(x: Slice[f32], out: DisjointSlice[f32], which: Slice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        value = x[index.get()]
        if which[0] == f32(0):
            element.value = math.exp(value)
        if which[0] == f32(1):
            element.value = math.exp2(value)
        if which[0] == f32(2):
            element.value = math.tanh(value)
        if which[0] == f32(3):
            element.value = math.log(value)
        if which[0] == f32(4):
            element.value = math.log2(value)
        if which[0] == f32(5):
            element.value = math.log10(value)
        if which[0] == f32(6):
            element.value = math.erf(value)


@kernel
def one_tanh(x: Slice[f32], out: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        element.value = math.tanh(x[index.get()])


def erf(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.array([math.erf(each) for each in x.tolist()])


REFERENCES = [np.exp, np.exp2, np.tanh, np.log, np.log2, np.log10, erf]


@pytest.mark.parametrize("which", range(len(REFERENCES)), ids=lambda which: REFERENCES[which].__name__)
def test_a_function_of_a_float_is_the_nearest_float_or_almost(which: int) -> None:
    rng = np.random.default_rng()
    anything = rng.integers(0, 2**32, 200_000, np.uint64).astype(np.uint32).view(np.float32)
    usual = rng.standard_normal(100_000, np.float32) * np.float32(10)
    near_one = np.float32(1) + np.float32(1e-3) * rng.standard_normal(20_000, np.float32)
    x = np.concatenate([anything, usual, near_one, np.abs(usual), np.array(EDGES, np.float32)])
    out = np.empty_like(x)
    run_blocks(functions, (-(-x.size // 256), 1, 1), (256, 1, 1), x, out, np.array([which], np.float32))
    with np.errstate(all="ignore"):
        exact = REFERENCES[which](x.astype(np.float64))
        nearest = exact.astype(np.float32)
        error = np.abs(out.astype(np.float64) - exact) / np.spacing(np.abs(nearest)).astype(np.float64)
    finite = np.isfinite(nearest)
    np.testing.assert_array_equal(out[~finite], nearest[~finite])
    assert error[finite].max() < 0.501
    np.testing.assert_array_equal(np.signbit(out[finite]), np.signbit(nearest[finite]))


EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-45,
    1.2e-38,
    3.4e38,
    88.8,
    88.7,
    -103.9,
    -104.0,
    128.0,
]


def test_threads_compute_a_function_several_at_once() -> None:
    assert not re.search(r"\btanhf\b", one_tanh.native_asm())
    assert re.search(r"\bv?divpd\b|fdiv\s+v\d+\.2d", one_tanh.native_asm())


@tile.kernel
def exponentials(y: tile.Partition[f32, 1], x: tile.Tensor[f32, 1]) -> None:
    y.store(tile.exp(tile.load_like(x, y)))


def test_a_tiles_exponential_is_within_an_ulp() -> None:
    rng = np.random.default_rng()
    anything = rng.integers(0, 2**32, 200_000, np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([anything, rng.uniform(-106, 90, 200_000).astype(np.float32), np.array(EDGES, np.float32)])
    out = exponentials(zeros(x.shape).partition(1024), h2d(x)).first().unpartition().to_host().sync()
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.float64))
        nearest = exact.astype(np.float32)
        error = np.abs(out.astype(np.float64) - exact) / np.spacing(np.abs(nearest)).astype(np.float64)
    finite = np.isfinite(nearest)
    np.testing.assert_array_equal(out[~finite], nearest[~finite])
    assert error[finite].max() < 1
