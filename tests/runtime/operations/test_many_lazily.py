"""as_completed over generators, futures that nobody awaits, and arguments that are refused."""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import trio

from oxide import (
    DeviceOperation,
    NoEventLoopError,
    arange,
    as_completed,
    full,
    i8,
    init_device_contexts,
    spawn,
    u8,
    value,
    zeros,
)
from oxide.testing import step_driver, use_driver


def test_as_completed_takes_from_a_generator_what_there_is_room_for() -> None:
    made = 0

    def endless() -> Iterator[DeviceOperation[int]]:
        nonlocal made
        for number in itertools.count():
            made = number + 1
            yield value(number)

    async def main() -> None:
        seen = set()
        async for result in as_completed(endless(), limit=2):
            seen.add(result)
            assert made <= len(seen) + 1
            if len(seen) == 20:
                break
        assert len(seen) == 20

    trio.run(main)


def test_as_completed_refuses_what_a_generator_yields_and_ends_when_it_raises() -> None:
    def broken(what: object) -> Iterator[DeviceOperation[int]]:
        yield value(1)
        if what == "raises":
            raise KeyError("broken")
        yield what  # type: ignore[misc]

    async def main() -> None:
        for what, error in ((3, TypeError), (None, TypeError), ("raises", KeyError)):
            results = as_completed(broken(what), limit=1)
            assert await results.__anext__() == 1
            with pytest.raises(error):
                await results.__anext__()
            with pytest.raises(StopAsyncIteration):
                await results.__anext__()

    trio.run(main)


def test_a_future_that_was_never_awaited_warns_as_its_operation_would() -> None:
    future = zeros(4).into_future()
    with pytest.warns(RuntimeWarning, match="full of 4 float32> was never run"):
        del future
        gc.collect()


def test_a_future_that_was_awaited_warns_no_more_even_if_it_was_cancelled() -> None:
    async def main() -> None:
        await zeros(4).into_future()
        with trio.CancelScope() as scope:
            scope.cancel()
            await zeros(4).into_future()
        with trio.CancelScope() as scope:
            scope.cancel()
            await as_completed([zeros(4).into_future(), zeros(3)]).__anext__()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trio.run(main)
        gc.collect()


def test_spawn_from_another_thread_says_what_to_do() -> None:
    async def main() -> None:
        operation = value(3)
        async with trio.open_nursery() as nursery:
            with pytest.raises(NoEventLoopError, match=r"trio\.from_thread\.run_sync\(spawn, nursery, operation\)"):
                await trio.to_thread.run_sync(spawn, nursery, operation)
            assert await operation == 3

    trio.run(main)


@pytest.mark.parametrize("x", [300, -1])
def test_numbers_that_a_dtype_has_not_are_refused_by_name(x: int) -> None:
    with pytest.raises(OverflowError, match=f"full: {x} does not fit uint8, which holds 0 to 255"):
        full(3, x, dtype=u8)
    with pytest.raises(OverflowError, match="arange: 128 is too large for int8; its largest is 127"):
        arange(129, dtype=i8)
    np.testing.assert_array_equal(arange(128, dtype=i8).to_host().sync(), np.arange(128))


def test_empty_variables_of_the_environment_mean_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    with use_driver(step_driver()):
        for name in ("OXIDE_ORDERING", "OXIDE_COMPLETION"):
            monkeypatch.setenv(name, "")
        init_device_contexts()
