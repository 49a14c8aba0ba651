"""Ctrl-C at a place of one's choice: what a signal's handler raises there, raised by a profiler."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest

from oxide.native import is_compiled

needs_calls = pytest.mark.skipif(
    is_compiled() or sys.getprofile() is not None,
    reason="a signal's handler does not run between the calls of compiled code; a profiler takes the place of ours",
)


class Interrupt(BaseException):
    """As ``KeyboardInterrupt``, but nobody else's."""


class InterruptAt:
    """``with InterruptAt(n, steps):`` raises at the n-th place that is reached where Python looks at signals, in the
    functions that ``steps`` is true for: as one begins, and behind each call of a function in C, the release of a lock
    at the end of its ``with`` too. Python does so as a loop goes round as well, which is left out; and a generator that
    is given up begins once more, where what is raised goes nowhere."""

    def __init__(self, number: int, steps: Callable[[CodeType], bool]) -> None:
        self.left = number
        self.at = ""
        self._steps = steps

    def __enter__(self) -> InterruptAt:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_name != "<genexpr>" and self._steps(frame.f_code):
            self.left -= 1
            if self.left == 0:
                self.at = f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_name}: {event} {argument}"
                raise Interrupt
