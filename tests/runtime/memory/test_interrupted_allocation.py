"""Ctrl-C at any place where memory is allocated loses none."""

from __future__ import annotations

import gc
from pathlib import Path
from types import CodeType

import pytest

import oxide
from oxide import zeros
from oxide.driver.cpu import CpuDriver
from oxide.testing import use_driver
from tests.interrupting import interrupts, needs_calls

# In the core's C form the first two are no places: what they call is.
STEPS = {"_new_box", "obtain", "allocate"}


def is_allocating(code: CodeType) -> bool:
    return code.co_name in STEPS and "oxide" in Path(code.co_filename).parts


@needs_calls
@pytest.mark.parametrize("size", [10, 2_000_000])
def test_an_interrupt_at_any_place_of_an_allocation_loses_no_memory(size: int) -> None:
    driver = CpuDriver(threads=1)
    with use_driver(driver):
        stream = oxide.devices()[0].new_stream()
        zeros(size).sync_on(stream)
        for interrupt in interrupts(is_allocating, more_than=4):
            with interrupt:
                zeros(size).sync_on(stream)
            gc.collect()
            oxide.reclaim.drain()
            assert driver.live_allocations.device_bytes == 0, interrupt.at
    driver.close()
