"""The memory safety of the core in C, in small; ``make test-core`` does more of each."""

from __future__ import annotations

import contextlib
import copy
import pickle
import subprocess
import sys
import threading
import types
from typing import Any

import pytest

import oxide
from oxide.host import core
from oxide.host.core import FORM
from tests.core import misuse, no_memory
from tests.core.scenarios import bump, new_box

pytestmark = pytest.mark.skipif(FORM != "C", reason="the core is its twin in Python")
MISUSED = "DeviceFuture,Frame,Timeline,Walk,Zip"


def test_misuse_of_a_type_is_an_exception() -> None:
    assert not misuse.batch(MISUSED, steps=60)


@pytest.mark.skipif(no_memory.set_nomemory is None, reason="this Python has no _testcapi")
def test_without_memory_an_operation_fails_or_succeeds() -> None:
    assert not no_memory.batch("chain", most=25)


def test_a_chain_leaves_nothing_behind() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.core.leaks",
        "failing_stages",
    ]  # in a process without what other tests leave
    done = subprocess.run(command, capture_output=True, text=True, cwd=misuse.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_chain_of_a_hundred_thousand_operations_is_dropped() -> None:
    operation: Any = oxide.value(1)
    for _ in range(100_000):
        operation = operation.map(lambda one: one)
    operation.consume()
    del operation
    deep: Any = oxide.value(1)
    for _ in range(100_000):
        deep = oxide.zip(deep)
    deep.consume()
    del deep


def test_an_operation_is_made_once_and_after_its_source() -> None:
    bare = core.Stage.__new__(core.Stage)
    with pytest.raises(TypeError, match="source"):
        bare.__init__(bare, repr, "map", core.MAP)
    stage = oxide.value(1).map(repr)
    with pytest.raises(TypeError, match="once"):
        core.Stage.__init__(stage, stage, repr, "map", core.MAP)
    assert stage.sync() == "1"


def test_a_stage_that_empties_its_frame_is_an_error() -> None:
    from oxide.runtime.submission.walk import Walk

    context = core.context_for(oxide.value(1), oxide.devices()[0].new_stream())

    def empty(one: int) -> int:
        walk._frames[0].results.clear()
        del walk._frames[0].context
        return one

    walk = Walk(oxide.value(1).map(empty).map(repr), context)
    with pytest.raises(IndexError):
        walk.advance(False)


def test_a_frame_without_an_operation_is_an_error_of_a_traced_walk() -> None:
    from oxide.runtime.submission.walk import Walk

    context = core.context_for(oxide.value(1), oxide.devices()[0].new_stream())
    context.traced = types.SimpleNamespace()
    walk = Walk(oxide.value(1).map(repr), context)
    walk._frames.append(core.Frame.__new__(core.Frame))
    walk._frames[0].inner = context
    with pytest.raises(TypeError, match="operation"):
        walk.advance(True)


@pytest.mark.parametrize("method", ["query", "record_event"])
def test_a_driver_that_drops_the_device_of_a_stream_is_an_error(method: str) -> None:
    timeline = oxide.devices()[0].new_stream()._timeline
    mark = timeline.mark()

    def fail(*_: object) -> None:
        del timeline.device
        raise oxide.DeviceLostError("gone")

    device, driver = timeline.device, timeline.driver
    # The stream is asked, or the event of a mark on a stream that other tests have used.
    timeline.driver = types.SimpleNamespace(query_stream=fail, query_event=fail, record_event=fail)
    try:
        with pytest.raises(oxide.DeviceLostError):
            timeline.ask(mark) if method == "query" else timeline._record(mark)
    finally:
        device.lost, timeline.device, timeline.driver = None, device, driver


def test_an_outcome_that_is_no_exception_is_an_error() -> None:
    future = bump(new_box(), 1.0).into_future()
    future._error = 5
    with pytest.raises(TypeError):
        future.outcome()
    future.consume()


def test_one_future_that_two_threads_start_is_submitted_once() -> None:
    runs: list[int] = []
    for _ in range(50):
        future = oxide.value(1).map(runs.append).into_future()
        ready = threading.Barrier(2)

        def start(future: Any = future, ready: threading.Barrier = ready) -> None:
            ready.wait()
            future.start()

        both = [threading.Thread(target=start) for _ in range(2)]
        for each in both:
            each.start()
        for each in both:
            each.join()
        future.outcome()
    assert len(runs) == 50


def test_the_core_takes_no_class_of_another_type() -> None:
    with pytest.raises(TypeError):
        core._core.setup(Walk=int)


def test_no_object_of_the_core_is_copied_without_its_fields() -> None:
    for kind in misuse.core_types().values():
        if kind.__name__ not in ("Points", "Lock"):
            made = kind.__new__(kind)
            for change in (copy.copy, pickle.dumps):
                with contextlib.suppress(TypeError, AttributeError):
                    change(made)
