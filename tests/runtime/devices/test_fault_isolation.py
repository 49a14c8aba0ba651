"""A kernel's fault is its launch's alone: what runs beside and behind it is right, and nothing leaks."""

from __future__ import annotations

import numpy as np
import pytest
import trio

import oxide
from oxide import BoundsError, gather
from oxide.driver.cpu import CpuDriver
from tests.runtime.faulting_launches import VECTOR, product, require_that_faults_leak_nothing


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


def test_ten_thousand_faults_in_a_row_leak_nothing() -> None:
    require_that_faults_leak_nothing(CpuDriver(), 10_000)
