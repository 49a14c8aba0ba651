"""Any two operations that touch the same buffer are ordered, whatever streams they run on."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oxide
from oxide import DeviceBox, Stream, d2h, dup, h2d, memcpy, value, with_context
from oxide.testing import RecordingDriver, step_driver, use_driver
from tests.choosing import examples


def test_reading_a_box_written_on_another_stream_waits_for_the_write() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        writer, reader = (oxide.devices()[0].new_stream() for _ in range(2))
        box = h2d(np.arange(8.0)).async_on(writer)
        result = d2h(box).async_on(reader)
        while driver.step(reader._timeline.handle):
            pass  # the reader goes as far as it can before the writer has begun
        reader.synchronize()
        np.testing.assert_array_equal(result, np.arange(8.0))


def test_no_wait_is_inserted_on_the_same_stream_or_for_work_that_is_known_to_be_done() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        stream, other = (oxide.devices()[0].new_stream() for _ in range(2))
        box = h2d(np.ones(4)).sync_on(stream)
        driver.clear()
        dup(box).sync_on(stream)
        d2h(box).sync_on(other)
        assert driver.count("wait_event") == 0


def test_one_wait_serves_all_that_was_written_before_it() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        writer, reader = (oxide.devices()[0].new_stream() for _ in range(2))
        boxes = [h2d(np.full(4, float(i))).async_on(writer) for i in range(5)]
        driver.clear()
        d2h(boxes[4]).async_on(reader)
        for box in boxes[:4]:
            d2h(box).async_on(reader)
        assert driver.count("wait_event") == 1
        reader.synchronize()


def test_a_write_waits_for_the_reads_before_it() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        streams = [oxide.devices()[0].new_stream() for _ in range(3)]
        box, new = h2d(np.zeros(8)).sync(), h2d(np.ones(8)).sync()
        reads = [d2h(box).async_on(stream) for stream in streams[:2]]
        memcpy(box, new).async_on(streams[2])
        while driver.step(streams[2]._timeline.handle):
            pass  # the write goes as far as it can before either read has begun
        for stream in streams:
            stream.synchronize()
        for read in reads:
            np.testing.assert_array_equal(read, np.zeros(8))
        np.testing.assert_array_equal(d2h(box).sync(), np.ones(8))


ACTIONS = ["up", "up", "copy", "dup", "read", "drop", "step"]


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 2**32), program=st.data())
def test_random_programs_equal_their_sequential_meaning(seed: int, program: Any) -> None:
    """Copies between boxes on random streams, with drops, in a random order of the device's own choosing."""
    with use_driver(step_driver(seed=seed)) as driver:
        streams = [oxide.devices()[0].new_stream() for _ in range(3)]
        boxes: list[DeviceBox] = []
        model: list[np.ndarray[Any, Any]] = []
        reads: list[tuple[Any, Any]] = []

        def pick() -> int:
            return int(program.draw(st.integers(0, len(boxes) - 1)))

        for number in range(program.draw(st.integers(1, 25))):
            stream = program.draw(st.sampled_from(streams))
            action = program.draw(st.sampled_from(ACTIONS)) if boxes else "up"
            if action == "up":
                data = np.arange(6.0) + 100 * number
                boxes.append(h2d(data).async_on(stream))
                model.append(data)
            elif action == "dup":
                source = pick()
                boxes.append(dup(boxes[source]).async_on(stream))
                model.append(model[source])
            elif action == "copy":
                source, target = pick(), pick()
                memcpy(boxes[target], boxes[source]).async_on(stream)
                model[target] = model[source]
            elif action == "read":
                source = pick()
                reads.append((d2h(boxes[source]).async_on(stream), model[source].copy()))
            elif action == "drop":
                index = pick()
                del boxes[index], model[index]
                gc.collect(0)
            else:
                driver.step()
        reads += [(d2h(box).async_on(streams[0]), data) for box, data in zip(boxes, model, strict=True)]
        boxes.clear()
        for stream in streams:
            stream.synchronize()
        for result, expected in reads:
            np.testing.assert_array_equal(result, expected)
        oxide.reclaim.drain()
        assert driver.live_allocations.device_count == 0


def test_a_shared_result_is_ordered_for_consumers_on_other_streams() -> None:
    with use_driver(step_driver()) as driver:
        first, second = (oxide.devices()[0].new_stream() for _ in range(2))
        source = h2d(np.arange(4.0)).to_host().shared()
        source.async_on(first)
        result = oxide.zip(source).first().async_on(second)
        while driver.step(second._timeline.handle):
            pass
        assert not second.query()
        second.synchronize()
        np.testing.assert_array_equal(result, np.arange(4.0))


def test_fork_and_join_order_streams() -> None:
    with use_driver(step_driver()) as driver:
        order: list[str] = []

        def note(stream: Stream, name: str) -> None:
            stream.launch_host_function(lambda: order.append(name))

        main = oxide.devices()[0].new_stream()
        note(main, "before")
        branch = main.fork()
        note(branch, "branch")
        main.join(branch)
        note(main, "after")
        while driver.step(branch._timeline.handle):
            pass
        assert order == []
        main.synchronize()
        assert order == ["before", "branch", "after"]


def test_a_stream_can_wait_for_an_event_of_another() -> None:
    with use_driver(step_driver()) as driver:
        order: list[int] = []
        first, second = (oxide.devices()[0].new_stream() for _ in range(2))
        first.launch_host_function(lambda: order.append(1))
        event = first.record_event()
        second.wait(event)
        second.launch_host_function(lambda: order.append(2))
        driver.step(second._timeline.handle)
        assert not event.query()
        second.synchronize()
        assert order == [1, 2]
        assert event.query()


def test_strict_ordering_takes_waits_for_events_and_joins_also_through_a_third_stream() -> None:
    with use_driver(step_driver(), ordering="strict"):
        for through in ("event", "join"):
            first, second, third = (oxide.devices()[0].new_stream() for _ in range(3))
            box = h2d(np.ones(10)).async_on(first)
            for earlier, later in ((first, second), (second, third)):
                if through == "event":
                    later.wait(earlier.record_event())
                else:
                    later.join(earlier)
            result = d2h(box).async_on(third)
            h2d(np.ones(1)).async_on(first)
            third.synchronize()
            np.testing.assert_array_equal(result, 1)


def test_strict_ordering_refuses_what_an_event_recorded_too_early_does_not_cover() -> None:
    with use_driver(step_driver(), ordering="strict"):
        first, second, third = (oxide.devices()[0].new_stream() for _ in range(3))
        box = h2d(np.ones(10)).async_on(first)
        early = second.record_event()
        second.wait(first.record_event())
        third.wait(early)
        with pytest.raises(oxide.OrderingError):
            d2h(box).async_on(third)


def test_events_measure_time_between_them() -> None:
    stream = oxide.devices()[0].new_stream()
    start = stream.record_event()
    h2d(np.ones(1000)).async_on(stream)
    end = stream.record_event()
    end.synchronize()
    assert 0 <= start.elapsed_ms(end) < 60_000
    assert stream.query()


def test_async_on_returns_at_once_and_its_result_is_there_after_synchronize() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        stream = oxide.devices()[0].new_stream()
        result = h2d(np.arange(3.0)).to_host().async_on(stream)
        assert not stream.query()
        stream.synchronize()
        np.testing.assert_array_equal(result, np.arange(3.0))
        assert driver.count("synchronize_stream") == 1


def test_a_users_policy_picks_the_stream() -> None:
    class Mine:
        def __init__(self) -> None:
            self.stream = oxide.devices()[0].new_stream()

        def next_stream(self, device: oxide.Device) -> Stream:
            return self.stream

    policy = Mine()
    future = with_context(lambda context: value(context.stream)).schedule(policy)
    assert future.stream is policy.stream


def test_round_robin_takes_its_streams_in_turn_and_single_stream_has_one() -> None:
    device = oxide.devices()[0]
    policy = oxide.StreamPoolRoundRobin(3)
    turns = [policy.next_stream(device) for _ in range(7)]
    assert len(set(turns)) == 3
    assert turns[0] is turns[3] is turns[6]
    single = oxide.SingleStream()
    assert single.next_stream(device) is single.next_stream(device)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="1 or more"):
            oxide.StreamPoolRoundRobin(wrong)  # type: ignore[arg-type]
