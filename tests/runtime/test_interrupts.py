"""Ctrl-C at any line of a submission leaves none of its locks held: the next operation runs."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import oxide
from oxide import DisjointSlice, Stream, f32, kernel, thread, zeros
from oxide.native import is_compiled

RUNTIME = Path(oxide.__file__).parent / "runtime"
# The steps that take locks, or run while one is held.
STEPS = {"begin", "end", "_submit", "mark", "close", "event_of", "note_passed", "adopt", "_let_go", "launch", "ask"}


@kernel(block=32)
def bump(x: DisjointSlice[f32]) -> None:
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value = element.value + f32(1.0)


class Interrupt(BaseException):
    """As ``KeyboardInterrupt``, but nobody else's."""


class InterruptAt:
    """``with InterruptAt(n):`` raises at the n-th line of the steps that is reached, as a signal's handler would.

    Not at the line of a ``with``, which Python shows once more at the end of the block, nor at a ``try``: there it does
    nothing, and looks at no signal."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.at = ""  # the line

    def __enter__(self) -> InterruptAt:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        return self._step if code.co_name in STEPS and Path(code.co_filename).parent == RUNTIME else None

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not line.startswith(("with ", "try:")):
            self.left -= 1
            if self.left == 0:
                self.at = f"{frame.f_code.co_name}: {line}"
                raise Interrupt
        return self._step


def locks_held(stream: Stream, graph: oxide.CudaGraph[Any]) -> list[str]:
    locks: dict[str, Any] = {
        "the runtime's": stream.device.runtime.submission,
        "the stream's": stream._timeline._lock,
        "the graph's": graph._require_open()._lock,
    }
    held = [name for name, lock in locks.items() if lock.locked()]
    loose: Any = stream._loose._lock
    return [*held, "the loose results'"] if loose._is_owned() else held


@pytest.mark.skipif(is_compiled(), reason="a signal's handler does not run between the steps of compiled code")
@pytest.mark.skipif(sys.gettrace() is not None, reason="another tracer is there, coverage or a debugger")
@pytest.mark.parametrize("run", ["async_on", "sync_on", "graph"])
def test_an_interrupt_at_any_line_leaves_no_lock_held(run: str) -> None:
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
    interrupted = number = 0
    while interrupted == number:  # until a run has no such line any more
        number += 1
        for _ in range(5):  # with results of before that are let go
            submit()
        interrupt = InterruptAt(number)
        try:
            with interrupt:
                submit()
        except Interrupt:
            interrupted += 1
        held = locks_held(stream, graph)
        assert not held, f"{interrupt.at}: {held}"
    assert interrupted > 20
    submit()
    stream.synchronize()
    graph.close()
