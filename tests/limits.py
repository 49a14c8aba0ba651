"""A case that takes too long fails alone, with the stacks of all threads, and the run goes on.

Two clocks are set as a case begins: 60 s of this process's time on a processor, whatever else the machine does, and ten
minutes by the wall for a case that waits for ever. A signal ends the case where its main thread runs or waits. The
signal comes again every few seconds, since a case may catch the first. A case that does not come back to Python ends
its process a minute later (``faulthandler_timeout`` in pyproject.toml). Another process then goes on behind that case
(``tests.spreading``).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
from collections.abc import Generator
from types import FrameType

import pytest

PROCESSOR_SECONDS = float(os.environ.get("OXIDE_TEST_PROCESSOR_SECONDS", 60))
WALL_SECONDS = float(os.environ.get("OXIDE_TEST_WALL_SECONDS", 600))
AGAIN = float(os.environ.get("OXIDE_TEST_AGAIN", 5))
"""Seconds after which a case that goes on is told again."""


class TooLong(BaseException):
    """Raised in a case that takes too long. No ``Exception``, so that a case that collects those does not keep it."""


_in_a_case = False  # between its parts pytest itself runs, which would end with the error


def _late(number: int, frame: FrameType | None) -> None:
    if not _in_a_case:
        return
    limit = f"{PROCESSOR_SECONDS:g} s of processor time" if number == signal.SIGPROF else f"{WALL_SECONDS:g} s"
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        raise TooLong(f"the case takes more than {limit}; the stacks of all threads:\n{file.read()}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    signal.signal(signal.SIGPROF, _late)
    signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS, AGAIN)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS, AGAIN)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    global _in_a_case
    _in_a_case = True
    try:
        return (yield)
    finally:
        _in_a_case = False


pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup
