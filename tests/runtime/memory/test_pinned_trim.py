"""Page-locked memory that goes back to the driver: once, and not while somebody may be given it."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType
from typing import Any

import numpy as np
import pytest

from oxide.driver.cpu import CpuDriver
from oxide.errors import DriverError
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.memory.pinned import PinnedPool
from oxide.testing import use_driver
from tests.interrupting import interrupts, needs_calls


@pytest.fixture
def pool() -> Iterator[PinnedPool]:
    driver = CpuDriver(threads=1)
    with use_driver(driver):
        yield current_runtime().pinned
    driver.close()


def is_trimming(code: CodeType) -> bool:
    """In the pool, and in the driver, which may have freed the memory by then."""
    return code.co_name in ("trim", "_trim_pages", "_collect", "free_host", "retire", "release", "_give_back")


@needs_calls
def test_an_interrupted_trim_leaves_nothing_that_was_freed(pool: PinnedPool) -> None:
    for interrupt in interrupts(is_trimming, more_than=5):
        buffers = [pool.acquire(size) for size in (100, 100, 10_000)]
        del buffers
        with interrupt:
            pool.trim()
        for size in (100, 100, 10_000):
            pool.acquire(size).array((size,), np.dtype("u1"))[:] = 1
        pool.trim()  # and frees nothing twice
        assert pool.free_bytes == 0


def test_what_the_driver_refuses_to_take_back_stays(pool: PinnedPool, monkeypatch: pytest.MonkeyPatch) -> None:
    driver: Any = current_runtime().driver
    free, refused = driver.free_host, []

    def refuse_once(address: int) -> None:
        if not refused:
            refused.append(address)
            raise DriverError(999, "CUDA_ERROR_UNKNOWN")
        free(address)

    monkeypatch.setattr(driver, "free_host", refuse_once)
    del [pool.acquire(100)][0]
    held = pool.free_bytes
    with pytest.raises(DriverError):
        pool.trim()
    assert pool.free_bytes == held > 0
    pool.trim()
    assert pool.free_bytes == 0
