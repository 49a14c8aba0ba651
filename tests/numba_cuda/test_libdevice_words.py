"""libdevice's functions on words, against Python's integers, which do not overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda import libdevice

from oxide import kernel
from tests.numba_cuda.launching import launch

EDGES = [0, 1, -1, 2, 7, -8, 2**23 - 1, -(2**23), 2**24 + 5, 2**31 - 1, -(2**31)]
SIGNED = np.array([(a, b) for a in EDGES for b in EDGES], np.int64)


def low24(value: int) -> int:
    value &= 0xFFFFFF
    return value - (1 << 24) if value >= 1 << 23 else value


@kernel
def signed(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i, 0] = libdevice.sad(x[i], y[i], 3)
        out[i, 1] = libdevice.hadd(x[i], y[i])
        out[i, 2] = libdevice.rhadd(x[i], y[i])
        out[i, 3] = libdevice.mul24(x[i], y[i])


@kernel
def unsigned(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i, 0] = libdevice.usad(x[i], y[i], 3)
        out[i, 1] = libdevice.uhadd(x[i], y[i])
        out[i, 2] = libdevice.urhadd(x[i], y[i])
        out[i, 3] = libdevice.umul24(x[i], y[i])


@pytest.mark.parametrize(("function", "dtype"), [(signed, np.int32), (unsigned, np.uint32)])
def test_differences_averages_and_products_of_words(function: Any, dtype: Any) -> None:
    x, y = SIGNED.astype(dtype).T.copy()
    part = low24 if dtype is np.int32 else lambda value: value & 0xFFFFFF
    pairs = [(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    expected = [(abs(a - b) + 3, (a + b) >> 1, (a + b + 1) >> 1, part(a) * part(b)) for a, b in pairs]
    *_, found = launch(function, 1, len(pairs), x, y, np.zeros((len(pairs), 4), dtype))
    wrapped = np.array([[value & 0xFFFFFFFF for value in row] for row in expected], np.uint32)
    np.testing.assert_array_equal(found.view(np.uint32), wrapped)


@kernel
def taken_apart(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = libdevice.hiloint2double(libdevice.double2hiint(x[i]), libdevice.double2loint(x[i]))


def test_a_double_is_its_two_halves() -> None:
    x = np.array([0.0, -0.0, 1 / 3, -1e300, 5e-324, np.inf, np.pi])
    _, found = launch(taken_apart, 1, len(x), x, np.zeros_like(x))
    np.testing.assert_array_equal(found.view(np.int64), x.view(np.int64))
