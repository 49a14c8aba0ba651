"""Random schedules: every request gets its own answer, its own error or its cancellation, exactly once.

2,000 of them take half a minute. ``OXIDE_TEST_SCHEDULES=10000`` runs 10,000, of which these are the first.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.choosing import examples
from tests.serving.schedules import Schedule, play, stepping

pytestmark = pytest.mark.skipif(os.environ.get("OXIDE_DEVICE") == "cuda", reason="the driver that steps is the CPU's")
SCHEDULES = int(os.environ.get("OXIDE_TEST_SCHEDULES", "2000"))
EACH = 1000


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with stepping() as driver:
        yield driver


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SCHEDULES, EACH))
def test_every_request_has_one_outcome_and_it_is_its_own(driver: Any, first: int) -> None:
    heard: Counter[str] = Counter()
    for seed in range(first, first + examples(EACH)):
        heard.update(play(seed, driver))
    kinds = {"int", "str", "TimeoutError", "Overloaded", "OperationCancelledError", "BatcherClosedError"}
    assert set(heard) >= kinds | {"BoundsError", "PoisonError", "DriverError"}, heard
    assert heard["int"] > examples(EACH)  # most requests are answered


def test_a_schedule_follows_from_its_seed() -> None:
    assert Schedule(5).asked == Schedule(5).asked
