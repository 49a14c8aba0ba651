"""10,000 random schedules: every request gets its own answer, its own error or its cancellation, exactly once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving.schedules import Schedule, play, stepping

pytestmark = pytest.mark.skipif(os.environ.get("OXIDE_DEVICE") == "cuda", reason="the driver that steps is the CPU's")
EACH = 1000


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with stepping() as driver:
        yield driver


@pytest.mark.parametrize("first", range(0, 10_000, EACH))
def test_every_request_has_one_outcome_and_it_is_its_own(driver: Any, first: int) -> None:
    heard: Counter[str] = Counter()
    for seed in range(first, first + EACH):
        heard.update(play(seed, driver))
    kinds = {"int", "str", "TimeoutError", "Overloaded", "OperationCancelledError", "BatcherClosedError"}
    assert set(heard) >= kinds | {"BoundsError", "PoisonError", "DriverError"}, heard
    assert heard["int"] > EACH  # most requests are answered


def test_a_schedule_follows_from_its_seed() -> None:
    assert Schedule(5).asked == Schedule(5).asked
