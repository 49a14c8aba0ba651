"""Shape buckets: a graph for each shape, captured once, in a thread, and kept while it is used."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

import oxide
from oxide import ArgumentError, DeviceOperation, GraphError, d2h, h2d
from oxide.driver.cpu import CpuDriver
from oxide.serving import Batcher, Bucket, Buckets
from oxide.testing import RecordingDriver, step_driver, use_driver
from oxide_kernels import ops
from tests.serving.test_batcher import all_of

Runner = Callable[[Callable[[], Awaitable[Any]]], Any]
Row = NDArray[np.float32]


def row(number: float) -> Row:
    return np.full(3, number, np.float32)


class Made:
    """Makes buckets that apply relu to rows, and records the shapes and the threads."""

    def __init__(self) -> None:
        self.shapes: list[int] = []
        self.threads: list[int] = []

    def __call__(self, rows: int) -> Bucket[Row, Row]:
        self.shapes.append(rows)
        self.threads.append(threading.get_ident())
        x = np.zeros((rows, 3), np.float32)

        def fill(requests: list[Row]) -> None:
            x[: len(requests)] = requests

        return Bucket(ops.relu(h2d(x)), fill, lambda y, requests: d2h(y[: len(requests)]))


def rows_of(requests: list[Row]) -> int:
    return 1 << (len(requests) - 1).bit_length()


def test_a_batch_is_run_by_the_graph_of_its_shape_captured_once(run: Runner) -> None:
    made = Made()

    async def main() -> None:
        buckets = Buckets(rows_of, made)
        whole: Batcher[Row, Row] = Batcher(buckets, max_batch=4, max_wait=60)
        async with whole as batcher, Batcher(buckets, max_batch=1) as single:
            for first in range(-4, 8, 4):
                outcomes = await all_of(batcher, *map(row, range(first, first + 4)))
                np.testing.assert_array_equal(outcomes, [row(max(0, n)) for n in range(first, first + 4)])
            np.testing.assert_array_equal(await single(row(5)), row(5))
            assert buckets.captured == (4, 1)

    run(main)
    assert made.shapes == [4, 1]
    assert threading.get_ident() not in made.threads


def test_an_operation_that_copies_to_the_host_is_refused(run: Runner) -> None:
    """Its array would be filled again by the next batch, before ``finish`` has seen it."""

    def make(rows: int) -> Bucket[Row, Row]:
        return Bucket(ops.relu(h2d(np.zeros((rows, 3), np.float32))).to_host(), print, lambda y, _: oxide.value(y))

    async def main() -> None:
        async with Batcher(Buckets(rows_of, make), max_batch=1) as batcher:
            with pytest.raises(ArgumentError, match=r"a Bucket's operation copies to the host.*copy them in finish"):
                await batcher(row(1))

    run(main)


def test_batches_in_flight_of_one_shape_keep_their_own_numbers() -> None:
    async def main() -> None:
        with use_driver(step_driver(), completion="callback") as driver:
            async with Batcher(Buckets(lambda _: 1, Made()), max_batch=1, max_in_flight=3) as batcher:
                outcomes: list[Any] = []

                async def ask_all() -> None:
                    outcomes.extend(await all_of(batcher, row(1), row(2), row(3)))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask_all)
                    while batcher.statistics().batches_in_flight < 3:
                        await trio.sleep(0.001)
                    while not outcomes:
                        driver.step()
                        await trio.sleep(0.001)
            np.testing.assert_array_equal(outcomes, [row(1), row(2), row(3)])

    trio.run(main)


def test_concurrent_first_uses_of_a_shape_capture_once(run: Runner) -> None:
    made = Made()

    async def main() -> None:
        async with Batcher(Buckets(lambda _: 8, made), max_batch=1, max_in_flight=4) as batcher:
            outcomes = await all_of(batcher, *map(row, range(4)))
        np.testing.assert_array_equal(outcomes, [row(n) for n in range(4)])

    run(main)
    assert made.shapes == [8]


def test_the_loop_goes_on_during_a_capture() -> None:
    captures, goes_on = threading.Event(), threading.Event()

    def make(rows: int) -> Bucket[Row, Row]:
        captures.set()
        assert goes_on.wait(60)
        return Made()(rows)

    async def main() -> None:
        async with Batcher(Buckets(lambda _: 1, make), max_wait=0) as batcher, trio.open_nursery() as nursery:
            nursery.start_soon(batcher, row(1))
            while not captures.is_set():
                await trio.sleep(0.001)
            goes_on.set()

    trio.run(main)


def test_the_shape_unused_for_longest_is_released(run: Runner) -> None:
    made = Made()

    async def main(driver: RecordingDriver) -> None:
        buckets = Buckets(rows_of, made, limit=2)
        for count in (1, 2, 1, 4, 1, 2):
            async with Batcher(buckets, max_batch=count, max_wait=60) as batcher:
                np.testing.assert_array_equal(await all_of(batcher, *[row(1)] * count), [row(1)] * count)
        assert buckets.captured == (1, 2)
        oxide.reclaim.drain()
        assert driver.outstanding()["graphs"] == 2

    with use_driver(RecordingDriver(CpuDriver(1))) as driver:
        run(lambda: main(driver))
    assert made.shapes == [1, 2, 4, 2]


def test_prepare_captures_the_listed_shapes(run: Runner) -> None:
    made = Made()

    async def main() -> None:
        buckets = Buckets(rows_of, made, keys=[1, 4])
        async with Batcher(buckets, max_wait=0) as batcher:
            await oxide.prepare(batcher)
            assert buckets.captured == (1, 4)
            await batcher(row(1))
        await oxide.prepare(buckets)

    run(main)
    assert made.shapes == [1, 4]


def test_prepare_asks_for_the_shapes(run: Runner) -> None:
    async def main() -> None:
        with pytest.raises(ArgumentError, match=r"cannot know the shapes of the batches: list them, Buckets\(key"):
            await oxide.prepare(Batcher(Buckets(rows_of, Made())))
        with pytest.raises(TypeError, match=r"takes a Batcher of Buckets; for another, prepare the operation"):
            await oxide.prepare(Batcher(lambda rows: d2h(h2d(np.stack(rows)))))

    run(main)


@pytest.mark.parametrize(
    ("key", "make", "error", "words"),
    [
        (lambda _: [], Made(), TypeError, "unhashable"),
        (lambda _: 1 / 0, Made(), ZeroDivisionError, "division by zero"),
        (lambda _: 1, lambda _: 3, TypeError, "make must return a Bucket, not int"),
        (lambda _: 1, lambda _: 1 / 0, ZeroDivisionError, "division by zero"),
    ],
)
def test_an_error_of_the_buckets_is_raised_to_all_and_the_next_batch_tries_again(
    run: Runner, key: Any, make: Any, error: type[Exception], words: str
) -> None:
    async def main() -> list[Any]:
        async with Batcher(Buckets(key, make), max_batch=2) as batcher:
            outcomes = await all_of(batcher, row(1), row(2), row(3), row(4))
        assert batcher.statistics().batches == 0
        assert batcher.statistics().failed == 4
        return outcomes

    outcomes = run(main)
    for outcome in outcomes:
        with pytest.raises(error, match=words):
            raise outcome


def test_an_operation_that_cannot_be_captured_names_the_bucket(run: Runner) -> None:
    def make(rows: int) -> Bucket[Row, Row]:
        graph = ops.relu(h2d(row(1))).graph()
        return Bucket(graph.launch(), lambda _: None, lambda _, requests: oxide.value(requests))

    async def main() -> None:
        async with Batcher(Buckets(lambda _: 7, make)) as batcher:
            with pytest.raises(GraphError, match="cannot be captured into another") as caught:
                await batcher(row(1))
        assert "when the bucket 7 was captured" in caught.value.__notes__

    run(main)


def test_a_request_that_fails_in_a_bucket_fails_alone(run: Runner) -> None:
    made = Made()

    def make(rows: int) -> Bucket[Any, Row]:
        bucket = made(rows)

        def fill(requests: list[Any]) -> None:
            if any(request is None for request in requests):
                raise ValueError("no row")
            bucket.fill(requests)

        return Bucket(bucket.operation, fill, bucket.finish)

    async def main() -> list[Any]:
        async with Batcher(Buckets(rows_of, make), max_batch=4, max_wait=60) as batcher:
            return await all_of(batcher, row(1), None, row(3), row(4))

    outcomes = run(main)
    assert isinstance(outcomes[1], ValueError)
    np.testing.assert_array_equal([outcomes[0], *outcomes[2:]], [row(1), row(3), row(4)])
    assert made.shapes == [4]  # a part is run again in the bucket of its batch


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"key": 3}, TypeError, r"Buckets\(key=…\) takes a function, not int"),
        ({"make": 3}, TypeError, r"Buckets\(make=…\) takes a function, not int"),
        ({"limit": 0}, ValueError, r"Buckets\(limit=0\): the limit must be an integer of 1 or more"),
        ({"limit": 1, "keys": [1, 2]}, ValueError, "an integer of 2, the number of keys, or more"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Buckets(**{"key": rows_of, "make": Made(), **arguments})


def test_a_bucket_is_of_an_operation_and_two_functions() -> None:
    def finish(output: Any, requests: list[Any]) -> DeviceOperation[Any]:
        return oxide.value(requests)

    with pytest.raises(TypeError, match="takes an operation to capture, not int"):
        Bucket(3, print, finish)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Bucket\(fill=…\) takes a function, not int"):
        Bucket(oxide.value(1), 3, finish)  # type: ignore[arg-type]
