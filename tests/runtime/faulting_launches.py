"""Kernel faults in a row over any driver: what they may leave behind, which is nothing."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import BoundsError, d2h, h2d, zeros
from oxide.driver.base import Driver
from oxide.testing import RecordingDriver, use_driver
from oxide_kernels import matvec_naive

MATRIX, VECTOR = np.ones((64, 64), np.float32), np.ones(64, np.float32)


def product(vector: Any) -> oxide.DeviceOperation[Any]:
    """A matrix of ones times ``vector``; a fault where the vector is shorter than the matrix is wide."""
    return matvec_naive[1, 64](64, 64, h2d(MATRIX), h2d(vector), zeros(64)).last().and_then(d2h)


def require_that_faults_leak_nothing(inner: Driver, faults: int) -> None:
    """``faults`` launches fail; what is outstanding at the driver is then as before, and a right launch is right."""
    with use_driver(RecordingDriver(inner)) as driver:
        matrix, short, out = h2d(MATRIX).sync(), h2d(VECTOR[:-1]).sync(), zeros(64).sync()

        def fail(times: int) -> dict[str, int]:
            for _ in range(times):
                with pytest.raises(BoundsError):
                    matvec_naive[1, 64](64, 64, matrix, short, out).sync()
            gc.collect()
            oxide.reclaim.drain()
            return driver.outstanding()

        before, after = fail(100), fail(faults)
        # Events are pooled: how many there are is how many were ever in use at once.
        assert after.pop("events") < before.pop("events") + 100
        assert after == before
        np.testing.assert_array_equal(product(VECTOR).sync(), 64)
