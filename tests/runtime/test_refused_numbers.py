"""Numbers that nothing holds: each is refused by the name of what was called, and by the number, however long it is."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from oxide import f16, f32, f64, full, i32, i64, u8

LONG = 10**5000  # 16610 bits, 5001 digits, which Python does not write


@pytest.mark.parametrize(
    ("x", "dtype", "error", "message"),
    [
        (float("nan"), i32, TypeError, "full: nan is no int32; give a whole number, or a dtype of floating point"),
        (np.float16("nan"), u8, TypeError, r"full: np.float16\(nan\) is no uint8"),
        (complex("nan"), i64, TypeError, r"full: \(nan\+0j\) is no int64"),
        (1.5, i32, TypeError, "full: 1.5 is no int32; give a whole number"),
        (float("inf"), i32, OverflowError, "full: inf does not fit int32, which holds -2147483648 to 2147483647; give"),
        (float("-inf"), u8, OverflowError, "full: -inf does not fit uint8, which holds 0 to 255"),
        (1e30, i64, OverflowError, r"full: 1e\+30 does not fit int64"),
        (LONG, i32, OverflowError, "full: an int of 16610 bits does not fit int32"),
        (-LONG, u8, OverflowError, "full: a negative int of 16610 bits does not fit uint8"),
        (LONG, f32, OverflowError, "full: an int of 16610 bits is too large for float32; give a smaller one"),
        (10**400, f64, OverflowError, "full: an int of 1329 bits is too large for float64"),
        (10**400, np.complex64, OverflowError, "full: an int of 1329 bits is too large for complex64"),
        (2**70, f16, OverflowError, f"full: {2**70} is too large for float16"),
        (70000, f16, OverflowError, "full: 70000 is too large for float16"),
        (1e300, f32, OverflowError, r"full: 1e\+300 is too large for float32"),
        (1j, f32, TypeError, "full: 1j is no float32; give a real number, or a complex dtype"),
        (np.complex64(1 + 2j), f64, TypeError, r"full: np.complex64\(1\+2j\) is no float64"),
        (1j, i32, TypeError, "full: 1j is no int32"),
    ],
    ids=itertools.count(),  # pytest would write the numbers
)
def test_full_refuses_what_its_dtype_does_not_hold(x: Any, dtype: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        full(3, x, dtype)


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (float("nan"), f32),
        (float("-inf"), f16),
        (3.0, i32),
        (np.float32(-7), i64),
        (2 + 0j, f64),
        (2 + 0j, u8),
        (complex("inf"), np.complex64),
        (2**31 - 1, i32),
        (65504, f16),
        (2**127, f32),
        (True, u8),
        (np.True_, f32),
    ],
)
def test_full_takes_what_its_dtype_holds(x: Any, dtype: Any) -> None:
    found = full(3, x, dtype).to_host().sync()
    number = x if np.iscomplexobj(found) else x.real
    np.testing.assert_array_equal(found, np.full(3, number, found.dtype))
