"""``map_`` and ``zip_map``: any function over any dtypes and sizes, compiled once for all that it captures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import LaunchError, d2h, f32, h2d, i32, zeros
from oxide_kernels import map_, zip_map

RANDOM = np.random.default_rng(5)
SIZES = (0, 1, 31, 32, 33, 1025)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8])
def test_a_function_of_one_buffer(dtype: Any, size: int) -> None:
    x = RANDOM.integers(0, 50, size).astype(dtype)
    result = d2h(map_(lambda v: v * type(v)(2) + type(v)(1), h2d(x), zeros(size, dtype)).last()).sync()
    np.testing.assert_array_equal(result, x * 2 + 1)


@pytest.mark.parametrize("size", SIZES)
def test_a_function_of_two_buffers_of_different_types(size: int) -> None:
    x, y = RANDOM.standard_normal(size, dtype=np.float32), RANDOM.integers(-9, 9, size).astype(np.int32)
    shift = 0.5
    result = d2h(zip_map(lambda a, b: a * b - shift, h2d(x), h2d(y), zeros(size, np.float64)).last()).sync()
    np.testing.assert_allclose(result, x.astype(np.float64) * y - shift, rtol=1e-12)


def test_the_output_may_be_of_another_type_and_the_buffer_the_same() -> None:
    x = h2d(RANDOM.standard_normal(100)).sync()
    expected = d2h(x).sync()
    signs = d2h(map_(lambda v: i32(v > 0), x, zeros(100, np.int32)).last()).sync()
    np.testing.assert_array_equal(signs, expected > 0)
    np.testing.assert_array_equal(d2h(map_(lambda v: -v, x, x).last()).sync(), -expected)


def test_another_factor_is_no_other_kernel() -> None:
    x = h2d(np.ones(3, np.float32)).sync()
    special = set()
    for factor in (1.0, 2.0, 3.0):
        launch = map_(lambda v: v * factor, x, zeros(3, f32))  # noqa: B023 - meant
        special.add(launch._specialization)
        assert d2h(launch.last()).sync().tolist() == [factor] * 3
    assert len(special) == 1


def test_an_input_that_is_too_short_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"map_ requires len\(x\) == len\(out\)"):
        map_(lambda v: v, h2d(np.ones(3, np.float32)), zeros(4, f32)).sync()
