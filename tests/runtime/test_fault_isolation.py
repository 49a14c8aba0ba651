"""A kernel's fault is its launch's alone: what runs beside and behind it is right, and nothing leaks."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import trio

import oxide
from oxide import BoundsError, d2h, gather, h2d, zeros
from oxide.driver.cpu import CpuDriver
from oxide.testing import RecordingDriver, use_driver
from oxide_kernels import matvec_naive

MATRIX, VECTOR = np.ones((64, 64), np.float32), np.ones(64, np.float32)


def product(vector: np.ndarray) -> oxide.DeviceOperation:  # type: ignore[type-arg]
    return matvec_naive[1, 64](64, 64, h2d(MATRIX), h2d(vector), zeros(64)).last().and_then(d2h)


def test_a_slice_one_too_short_is_named_and_work_beside_and_behind_it_is_right() -> None:
    good, bad = (oxide.devices()[0].new_stream() for _ in range(2))
    beside = product(VECTOR).async_on(good)
    with pytest.raises(
        BoundsError, match=r"kernel matvec_naive: vec_in\[63\] is outside vec_in, which has 63"
    ) as raised:
        product(VECTOR[:-1]).sync_on(bad)
    assert (raised.value.index, raised.value.length) == (63, 63)
    np.testing.assert_array_equal(product(VECTOR).sync_on(bad), 64)
    good.synchronize()
    np.testing.assert_array_equal(beside, 64)


def test_a_fault_among_gathered_launches_is_its_own() -> None:
    async def main() -> None:
        good = [product(VECTOR) for _ in range(8)]
        with pytest.raises(BoundsError, match=r"vec_in\[63\]"):
            await gather(*good[:4], product(VECTOR[:-1]), *good[4:])
        for result in await gather(*good):
            np.testing.assert_array_equal(result, 64)

    trio.run(main)


def test_many_faults_in_a_row_leak_nothing() -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        matrix, short, out = h2d(MATRIX).sync(), h2d(VECTOR[:-1]).sync(), zeros(64).sync()

        def fail() -> None:
            with pytest.raises(BoundsError):
                matvec_naive[1, 64](64, 64, matrix, short, out).sync()

        for _ in range(50):
            fail()
        gc.collect()
        oxide.reclaim.drain()
        before = driver.outstanding()
        for _ in range(10_000):
            fail()
        gc.collect()
        oxide.reclaim.drain()
        after = driver.outstanding()
        # Events are pooled: how many there are is how many were ever in use at once.
        assert after.pop("events") < before.pop("events") + 100
        assert after == before
        np.testing.assert_array_equal(product(VECTOR).sync(), 64)
