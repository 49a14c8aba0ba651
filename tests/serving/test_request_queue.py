"""The order of the queue, against a list that is sorted anew at each batch."""

from __future__ import annotations

import math
import random
from contextvars import copy_context
from typing import Any

import pytest

from oxide.serving.request_queue import Pending, RequestQueue

MAX_BATCH, MAX_COST, MAX_WAIT = 4, 9.0, 2.0


def effective_priority(pending: Pending[Any, Any], now: float, ageing: float) -> float:
    return pending.priority + (now - pending.arrived) / ageing


def expected_batch(
    waiting: list[Pending[Any, Any]], now: float, ageing: float, held: set[int]
) -> list[Pending[Any, Any]]:
    """The next batch, from the definition: of the groups that are full or due, the one whose first request is first."""

    def order(pending: Pending[Any, Any]) -> tuple[float, float]:
        return -effective_priority(pending, now, ageing), pending.arrived

    batches = []
    for key in {pending.key for pending in waiting} - held:
        group = sorted((pending for pending in waiting if pending.key == key), key=order)
        full = len(group) >= MAX_BATCH or sum(pending.cost for pending in group) >= MAX_COST
        if full or min(pending.arrived for pending in group) + MAX_WAIT <= now:
            batch: list[Pending[Any, Any]] = []
            for pending in group[:MAX_BATCH]:
                if batch and sum(one.cost for one in batch) + pending.cost > MAX_COST:
                    break
                batch.append(pending)
            batches.append(batch)
    return min(batches, key=lambda batch: order(batch[0]), default=[])


@pytest.mark.parametrize("ageing", [0.5, 1.0, 4.0, math.inf])
@pytest.mark.parametrize("seed", range(5))
def test_batches_are_those_of_a_list_sorted_by_priority_and_waiting(ageing: float, seed: int) -> None:
    draw = random.Random(seed)
    queue: RequestQueue[int, int] = RequestQueue(MAX_BATCH, MAX_COST, MAX_WAIT, ageing)
    waiting: list[Pending[Any, Any]] = []
    now, taken = 100.0, 0
    for number in range(600):
        now += draw.choice([0.0, 0.125, 0.5])  # exact in binary, as ties are to be ties in both
        arrival = now + number / 2**30  # no two arrive at once
        kind = draw.random()
        if kind < 0.55:
            pending: Pending[Any, Any] = Pending(
                number,
                key=draw.randrange(3),
                cost=float(draw.randrange(1, 5)),
                priority=draw.choice([0, 0, 1, -1, 5]),
                arrived=arrival,
                context=copy_context(),
                sleeper=None,  # type: ignore[arg-type]
            )
            queue.add(pending)
            waiting.append(pending)
        elif kind < 0.65 and waiting:
            left = waiting.pop(draw.randrange(len(waiting)))
            queue.remove(left)
        else:
            held = {draw.randrange(3)} if draw.random() < 0.2 else set()
            expected = expected_batch(waiting, now, ageing, held)
            due = [pending.arrived + MAX_WAIT for pending in waiting if pending.arrived + MAX_WAIT > now]
            batch = queue.take(now, held)
            assert batch == expected
            waiting = [pending for pending in waiting if pending not in batch]
            taken += len(batch)
            assert queue.next_due(now) >= min(due, default=math.inf)
        assert len(queue) == len(waiting)
    assert taken > 200


def test_with_no_bound_of_time_everything_is_taken() -> None:
    queue: RequestQueue[int, int] = RequestQueue(MAX_BATCH, MAX_COST, 1e300, 1.0)
    for number in range(10):
        queue.add(Pending(number, number % 3, 1.0, 0, 0.0, copy_context(), None))  # type: ignore[arg-type]
    assert not queue.take(1000.0, {0})
    batches = [queue.take(math.inf) for _ in range(3)]
    assert sorted(pending.value for batch in batches for pending in batch) == list(range(10))
    assert not queue.take(math.inf)
    assert len(queue) == 0
