"""Ctrl-C at any place in a submission leaves none of its locks held: the next operation runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import oxide
from oxide import DisjointSlice, Event, Stream, f32, kernel, thread, zeros
from oxide.host.core import FORM
from oxide.host.locks import DRIVER_LOCK, RUNTIME_LOCK
from oxide.runtime.devices.fault_records import FaultPage, FaultReport
from oxide.runtime.memory.pinned import PinnedBuffer
from oxide.runtime.operations.captured_graph import Captured
from oxide.runtime.ordering.timeline import Mark
from oxide.runtime.submission.submission import Submission
from tests.interrupting import interrupts, needs_calls

PACKAGE = Path(oxide.__file__).parent
# The steps of the runtime that take locks. In the core's C form most of them are no places, and what they call is.
STEPS = {"begin", "end", "_submit", "mark", "close", "event_of", "note_passed", "adopt", "_let_go", "launch", "ask"}


@kernel(block=32)
def bump(x: DisjointSlice[f32]) -> None:
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value = element.value + f32(1.0)


def is_step(code: CodeType) -> bool:
    if not code.co_filename.startswith(str(PACKAGE)):
        return False
    in_runtime = Path(code.co_filename).is_relative_to(PACKAGE / "runtime")
    return (in_runtime and code.co_name in STEPS) or RUNTIME_LOCK._is_owned() or DRIVER_LOCK._is_owned()


def locks_held(stream: Stream, graph: oxide.CudaGraph[Any]) -> list[str]:
    locks: dict[str, Any] = {
        "the runtime's": stream.device.runtime.submission,
        "the driver's": DRIVER_LOCK,
        "the page-locked memory's": stream.device.runtime.pinned._lock,
        "the graph's": graph._require_open()._lock,
    }
    return [name for name, lock in locks.items() if lock._is_owned()]


@needs_calls
@pytest.mark.parametrize("run", ["async_on", "sync_on", "graph"])
def test_an_interrupt_at_any_place_leaves_no_lock_held(run: str) -> None:
    stream = oxide.devices()[0].new_stream()
    box = zeros(32).sync_on(stream)
    operation = bump(box)
    graph = operation.graph_on(stream)
    graph.take_output()
    submit: Callable[[], object] = {
        "async_on": lambda: operation.async_on(stream),
        "sync_on": lambda: operation.sync_on(stream),
        "graph": lambda: graph.launch().async_on(stream),
    }[run]
    more_than = 20
    if stream.device.kind == "cuda":
        more_than = 5 if FORM == "Python" else -1  # C calls that driver itself
    for interrupt in interrupts(is_step, more_than=more_than):
        for _ in range(5):  # with results of before that are let go
            submit()
        with interrupt:
            submit()
        held = locks_held(stream, graph)
        assert not held, f"{interrupt.at}: {held}"
    submit()
    stream.synchronize()
    graph.close()


@needs_calls
@pytest.mark.parametrize(
    "kind",
    [Submission, Mark, FaultReport, FaultPage, PinnedBuffer, Stream, Event, Captured],
    ids=lambda kind: kind.__name__,
)
def test_what_an_interrupt_kept_from_being_made_goes_silently(
    kind: type[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    kind.__new__(kind)
    assert not printed
