"""Uses that oxide does not see, declared with ctx.reads and ctx.writes; and strict ordering, which never waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import (
    DeviceOperation,
    ExecutionContext,
    GraphError,
    OrderingError,
    d2h,
    h2d,
    memcpy,
    value,
    with_context,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.testing import step_driver, use_driver
from oxide_kernels import relu


def streams(count: int) -> list[oxide.Stream]:
    return [oxide.devices()[0].new_stream() for _ in range(count)]


def unseen(declare: Callable[[ExecutionContext], None], work: Callable[[], object]) -> DeviceOperation[None]:
    def put_on_stream(context: ExecutionContext) -> DeviceOperation[None]:
        declare(context)
        context.stream.launch_host_function(lambda: (work(), None)[1])
        return value(None)

    return with_context(put_on_stream)


def test_declared_reads_run_after_the_write_before_and_before_the_write_after() -> None:
    with use_driver(step_driver()) as driver:
        writer, reader, again = streams(3)
        box = h2d(np.zeros(4)).sync()
        memory = box.host_view()
        seen: list[float] = []
        memcpy(box, h2d(np.ones(4)).sync()).async_on(writer)
        two = h2d(np.full(4, 2.0)).sync_on(again)
        unseen(lambda context: context.reads(box), lambda: seen.append(memory[0])).async_on(reader)
        memcpy(box, two).async_on(again)
        for late in (again, reader):  # each goes as far as it can before the one it must wait for
            while driver.step(late._timeline.handle):
                pass
        for stream in (again, reader, writer):
            stream.synchronize()
        assert seen == [1.0]
        assert memory[0] == 2.0


def test_declared_writes_cover_what_is_put_on_the_stream_after_the_function_has_returned() -> None:
    with use_driver(step_driver()) as driver:
        first, second = streams(2)
        box = h2d(np.zeros(4)).sync()
        memory = box.host_view()

        def declare(context: ExecutionContext) -> DeviceOperation[None]:
            context.writes(box)
            return value(None)

        def later(context: ExecutionContext, _: None) -> DeviceOperation[None]:
            context.stream.launch_host_function(lambda: memory.fill(7.0))
            return value(None)

        with_context(declare).and_then_with_context(later).async_on(first)
        result = d2h(box).async_on(second)
        while driver.step(second._timeline.handle):
            pass
        second.synchronize()
        np.testing.assert_array_equal(result, np.full(4, 7.0))


@pytest.mark.parametrize(("declared", "refused"), [("writes", "reads"), ("reads", "writes"), ("writes", "writes")])
def test_a_conflicting_use_while_a_declared_one_is_being_submitted_is_refused(declared: str, refused: str) -> None:
    """Nothing could order the two: what the declaring function still puts on its stream is not known yet."""
    first, second = streams(2)
    box = h2d(np.zeros(4)).sync()
    other = h2d(np.ones(4)).sync()

    def during(context: ExecutionContext) -> DeviceOperation[None]:
        getattr(context, declared)(box)
        conflicting = d2h(box) if refused == "reads" else memcpy(box, other)
        with pytest.raises(OrderingError, match=rf"box 4 float64 at 0x.* declared ctx\.{declared}.*still being"):
            conflicting.async_on(second)
        return value(None)

    with_context(during).sync_on(first)
    d2h(box).sync_on(second)
    memcpy(box, other).sync_on(second)  # and afterwards it is free again


def test_readers_do_not_refuse_one_another_and_a_failed_run_leaves_the_box_free() -> None:
    first, second = streams(2)
    box = h2d(np.zeros(4)).sync()

    def failing(context: ExecutionContext) -> DeviceOperation[None]:
        context.reads(box, oxide.Arc(box))
        d2h(box).async_on(second)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        with_context(failing).sync_on(first)
    memcpy(box, h2d(np.ones(4)).sync()).sync_on(second)


def test_declaring_what_is_no_box_of_the_device_is_refused() -> None:
    with use_driver(CpuDriver(2)):
        here, there = (device.new_stream() for device in oxide.devices())
        box = h2d(np.zeros(4)).sync_on(here)
        for thing, error in ((np.zeros(4), TypeError), (box, oxide.DeviceError)):

            def declare(context: ExecutionContext, thing: Any = thing) -> DeviceOperation[None]:
                context.reads(thing)
                return value(None)

            with pytest.raises(error):
                with_context(declare).sync_on(there)


# Strict ordering


def test_strict_ordering_raises_where_a_wait_would_be_inserted() -> None:
    with use_driver(step_driver(), ordering="strict"):
        first, second = streams(2)
        box = h2d(np.zeros(4)).async_on(first)
        with pytest.raises(OrderingError, match=r"box 4 float64 .* is read on stream 0x.* was written on stream 0x"):
            d2h(box).async_on(second)
        first.synchronize()
        new = h2d(np.ones(4)).sync_on(second)
        d2h(box).async_on(first)
        with pytest.raises(OrderingError, match=r"is written on .* was read on"):
            memcpy(box, new).async_on(second)
        with pytest.raises(OrderingError):
            unseen(lambda context: context.writes(box), lambda: None).async_on(second)
        first.synchronize()
        second.synchronize()


def test_strict_ordering_allows_one_stream_joined_streams_and_what_is_done() -> None:
    with use_driver(step_driver(), ordering="strict"):
        first, second = streams(2)
        box = h2d(np.arange(4.0)).async_on(first)
        d2h(box).async_on(first)
        second.join(first)
        joined = d2h(box).async_on(second)
        second.synchronize()
        np.testing.assert_array_equal(joined, np.arange(4.0))
        done = h2d(np.ones(3)).sync_on(first)
        d2h(done).sync_on(second)


def test_strict_ordering_keeps_to_the_order_that_a_graph_promises() -> None:
    """Launches run after the updates before them, and after one another, with a kernel's fault record and without."""
    with use_driver(step_driver(seed=2), ordering="strict"):
        home, first, second = streams(3)
        x, y = zeros(4).sync_on(home), zeros(4).sync_on(home)
        with_kernel = relu[1, 4](x, y).graph_on(home)
        copy = memcpy(y, x).graph_on(home)
        for number, graph in enumerate((with_kernel, copy), 1):
            graph.update(memcpy(x, np.full(4, number, np.float32)))
            graph.launch().async_on(first)
            graph.launch().async_on(second)
            result = d2h(y).async_on(second)
            with pytest.raises(OrderingError, match="box 4 float32"):  # an update may come too early for a launch
                graph.update(memcpy(x, np.zeros(4, np.float32)))
            for stream in (second, first, home):
                stream.synchronize()
            np.testing.assert_array_equal(result, np.full(4, number))


def test_the_ordering_mode_comes_from_the_environment_and_a_wrong_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OXIDE_ORDERING", "strict")
    with use_driver(step_driver()):
        first, second = streams(2)
        with pytest.raises(OrderingError):
            d2h(h2d(np.zeros(4)).async_on(first)).async_on(second)
    with pytest.raises(ValueError, match="wait, strict"), use_driver(step_driver(), ordering="lax"):  # type: ignore[arg-type]
        pass


# Memoised fan-out from many threads


@pytest.mark.parametrize("turn", range(20))
def test_a_shared_source_runs_once_for_many_threads_on_many_streams(turn: int) -> None:
    runs: list[int] = []
    data = np.arange(100.0) + turn
    shared = h2d(data).inspect(lambda _: runs.append(1)).and_then(d2h).shared()
    left, right = oxide.zip(shared, value(1)).unzip()
    results: list[Any] = []
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        barrier.wait()
        stream = oxide.devices()[0].new_stream()
        results.append((shared, left)[number % 2].sync_on(stream))
        assert right.sync_on(stream) == 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runs == [1]
    assert len(results) == 8
    assert all(result is results[0] for result in results)
    np.testing.assert_array_equal(results[0], data)


def test_strict_ordering_allows_what_an_event_orders_and_no_more() -> None:
    with use_driver(step_driver(), ordering="strict"):
        first, second = streams(2)
        box = zeros(4).async_on(first)
        event = first.record_event()
        late = zeros(4).async_on(first)
        second.wait(event)
        assert d2h(box).async_on(second).shape == (4,)
        with pytest.raises(OrderingError, match="was written on"):
            d2h(late).async_on(second)


@pytest.mark.parametrize("declare", ["reads", "writes"])
@pytest.mark.parametrize("how", ["run", "shared", "failed", "placed"])
def test_a_declaration_that_comes_after_the_run_is_refused_and_harms_nothing(declare: str, how: str) -> None:
    with use_driver(step_driver(2)):
        contexts: list[ExecutionContext] = []
        box = zeros(4).on(1).sync() if how == "placed" else zeros(4).sync()

        def keep(context: ExecutionContext) -> DeviceOperation[int]:
            contexts.append(context)
            context.writes(box)
            if how == "failed":
                raise KeyError("refused")
            return value(0)

        operation = with_context(keep)
        if how == "placed":
            operation = operation.on(1)
        with suppress(KeyError):
            (operation.shared() if how == "shared" else oxide.zip(value(1), operation)).sync()
        with pytest.raises(OrderingError, match=rf"ctx\.{declare} came too late.*inside the function of with_context"):
            getattr(contexts[0], declare)(box)
        for _ in range(2):  # on two streams
            assert list(d2h(box).on(box.device).sync()) == [0, 0, 0, 0]


def test_a_declaration_in_a_capture_is_refused_and_harms_nothing() -> None:
    box = zeros(4).sync()

    def declare(context: ExecutionContext) -> DeviceOperation[int]:
        context.writes(box)
        return value(0)

    with pytest.raises(GraphError, match=r"ctx\.writes cannot be captured"):
        with_context(declare).graph()
    assert list(d2h(box).sync()) == [0, 0, 0, 0]
