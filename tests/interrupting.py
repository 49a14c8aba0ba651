"""Ctrl-C at a place of one's choice: what a signal's handler raises there, raised by a profiler.

And at random moments, in processes of their own: ``python -m tests.interrupting --mode sync --interrupts 500``.
"""

from __future__ import annotations

import argparse
import dis
import inspect
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, TypeVar

import pytest

T = TypeVar("T", "InterruptAt", "InterruptAtCheck")

MODES = ("sync", "graph", "async_on", "trio", "asyncio")

needs_calls = pytest.mark.skipif(sys.getprofile() is not None, reason="another profiler takes the place of ours")


class Interrupt(BaseException):
    """As ``KeyboardInterrupt``, but nobody else's."""


class InterruptAt:
    """``with InterruptAt(n, steps):`` raises at the n-th place that is reached where Python looks at signals, in the
    functions that ``steps`` is true for: as one begins, and behind each call of a function in C, the release of a lock
    at the end of its ``with`` too. Python does so as a loop goes round as well, which is left out; and a generator that
    is given up begins once more, where what is raised goes nowhere. What it raised ends with the block."""

    def __init__(self, number: int, steps: Callable[[CodeType], bool]) -> None:
        self.left = number
        self.at = ""
        self.ended = False  # the block
        self._steps = steps

    def __enter__(self) -> InterruptAt:
        sys.setprofile(self._look)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.setprofile(None)
        self.ended = kind is Interrupt
        return self.ended

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_name != "<genexpr>" and self._steps(frame.f_code):
            self.left -= 1
            if self.left == 0:
                self.at = f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_name}: {event} {argument}"
                raise Interrupt


class InterruptAtCheck:
    """``with InterruptAtCheck(n, steps):`` raises at the n-th place where Python itself would: behind the ``RESUME`` of
    a function that ``steps`` is true for, behind a call of anything in C, a type too, and as a loop goes round. Finer
    than ``InterruptAt``, and slower: every instruction is looked at."""

    def __init__(self, number: int, steps: Callable[[CodeType], bool]) -> None:
        self.left = number
        self.at = ""
        self.ended = False
        self._steps = steps
        self._before: dict[FrameType, str] = {}  # the instruction that ran last

    def __enter__(self) -> InterruptAtCheck:
        self._tracer = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 reports no instruction if no frame asks for it before
        sys.settrace(self._begin)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(self._tracer)
        self._before.clear()
        self.ended = kind is Interrupt
        return self.ended

    def _begin(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._steps(frame.f_code) or frame.f_code.co_flags & inspect.CO_GENERATOR:
            return self._left
        frame.f_trace_opcodes = True
        return self._look

    def _left(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "return" and frame.f_back is not None:
            self._before[frame.f_back] = ""  # Python does not look as a function of Python's returns
        return self._left

    def _look(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            before = self._before.get(frame, "")
            self._before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before in ("RESUME", "JUMP_BACKWARD") or before.startswith("CALL"):
                self.left -= 1
                if self.left == 0:
                    self.at = f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_name}: behind {before}"
                    raise Interrupt
        elif event == "exception":
            self._before[frame] = ""  # nor as a call raises
        elif event == "return":
            self._before.pop(frame, None)
            self._left(frame, event, argument)
        return self._look


def interrupts_at_checks(steps: Callable[[CodeType], bool], *, more_than: int) -> Iterator[InterruptAtCheck]:
    """As ``interrupts``, at the places of ``InterruptAtCheck``."""
    yield from _one_after_the_other(InterruptAtCheck, steps, more_than)


def interrupts(steps: Callable[[CodeType], bool], *, more_than: int) -> Iterator[InterruptAt]:
    """For a run in ``with`` each: an interrupt at its first place, at its second and so on, until it has no such place
    any more. There must have been ``more_than`` so many."""
    yield from _one_after_the_other(InterruptAt, steps, more_than)


def _one_after_the_other(kind: type[T], steps: Callable[[CodeType], bool], more_than: int) -> Iterator[T]:
    ended = 0
    while True:
        interrupt = kind(ended + 1, steps)
        yield interrupt
        if not interrupt.ended:
            break
        ended += 1
    assert ended > more_than, f"{ended} places"


def interrupt_child(mode: str, number: int, seed: int) -> None:
    """Runs a process that is interrupted ``number`` times. Raises ``AssertionError`` if an interrupt was lost or left
    something behind, or Python could only print one."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.interrupted_child", mode, str(number), str(seed)]
    environment = {**os.environ, "OXIDE_DEVICE": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120 + number)
    said = f"{' '.join(command[3:])}: {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, said
    assert done.stdout == f"interrupted {number}\n", said
    assert "Exception ignored" not in done.stderr, said


def main() -> None:
    arguments = argparse.ArgumentParser(description="Interrupts processes at work, and looks at what is left.")
    arguments.add_argument("--mode", choices=MODES, action="append")
    arguments.add_argument("--interrupts", type=int, default=500)
    arguments.add_argument("--children", type=int, default=10, help="processes that share the interrupts")
    arguments.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    asked = arguments.parse_args()
    for mode in asked.mode or MODES:
        each = -(-asked.interrupts // asked.children)
        for child in range(asked.children):
            interrupt_child(mode, each, asked.seed + child)
        print(f"{mode}: {each * asked.children} interrupts in {asked.children} processes, seed {asked.seed}: none lost")


if __name__ == "__main__":
    main()
