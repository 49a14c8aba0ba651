"""Arrays on the CPU device's memory that live longer than the driver is open."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import d2h, h2d, pinned_empty
from oxide.driver.cpu import CpuDriver
from oxide.errors import DriverError
from oxide.testing import failing_seed, seeded_driver, step_driver, use_driver


@pytest.mark.parametrize("make", [step_driver, partial(seeded_driver, 1), CpuDriver], ids=["step", "seed", "threads"])
@pytest.mark.parametrize("size", [4, 100_000])
def test_arrays_outlive_their_driver(make: Callable[[], CpuDriver], size: int) -> None:
    data = np.random.default_rng(size).random(size)
    driver = make()
    with use_driver(driver):
        box = h2d(data).sync()
        result, view, pinned = d2h(box).sync(), box.host_view(), pinned_empty(size, np.float64)
        pinned[:] = data
        del box
    driver.close()
    heaps = [weakref.ref(heap) for heap in (driver._host, *driver._heaps)]
    del driver
    gc.collect()
    other = make()
    with use_driver(other):  # would take what was freed
        again = [d2h(h2d(np.zeros(size)).sync()).sync() for _ in range(8)]
    for array in (result, view, pinned):
        assert np.array_equal(array, data)
    assert not any(map(np.any, again))
    del result, view, pinned, array
    oxide.reclaim.collect()  # as the next operation does, whichever runtime's it is
    gc.collect()
    assert not any(heap() for heap in heaps)  # the last of them took the memory along
    other.close()


def test_arrays_of_a_failing_seed_are_there_afterwards() -> None:
    results: list[np.ndarray[Any, Any]] = []

    def program() -> None:
        results.append(h2d(np.arange(100_000.0)).and_then(d2h).sync())
        raise ValueError("always")

    assert failing_seed(program) is not None
    assert np.array_equal(results[0], np.arange(100_000.0))


def test_a_closed_driver_gives_back_what_is_returned_and_no_more() -> None:
    driver = step_driver()
    stream = driver.create_stream(0)
    device, host, kept = driver.allocate(64, stream), driver.allocate_host(64), driver.allocate_host(128)
    driver.close()
    driver.free(device, stream)
    driver.free_host(host)
    assert (driver.live_allocations.device_bytes, driver.live_allocations.host_bytes) == (0, 128)
    assert ctypes.string_at(kept, 128) == b"\xff" * 128
    with pytest.raises(DriverError, match="not a live allocation"):
        driver.free_host(host)


def test_a_driver_that_is_dropped_frees_what_is_left_only_once_it_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    for close, freed in ((True, 1), (False, 0)):
        driver = CpuDriver()
        given_back: list[int] = []
        driver.allocate_host(64)
        driver._host._give_back = given_back.append  # type: ignore[assignment]
        if close:
            driver.close()
        del driver
        gc.collect()
        assert len(given_back) == freed
