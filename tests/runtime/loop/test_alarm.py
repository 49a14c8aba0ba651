"""The function that wakes a loop."""

from __future__ import annotations

import ctypes
import os

import pytest

from oxide.host.core import NOTIFY
from oxide.runtime.loop.event_loops import Alarm


def test_each_call_of_the_function_makes_the_alarm_readable() -> None:
    notify = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(NOTIFY)
    bell = Alarm()
    with pytest.raises(BlockingIOError):
        os.read(bell.descriptor, 8)
    for rings in (1, 3):
        for _ in range(rings):
            notify(bell.argument)
        if hasattr(os, "eventfd"):  # which adds up
            assert int.from_bytes(os.read(bell.descriptor, 8), "little") == rings
        bell.clear()
        with pytest.raises(BlockingIOError):
            os.read(bell.descriptor, 8)


def test_an_alarm_that_was_given_back_is_taken_again() -> None:
    bell = Alarm.take()
    bell.give_back()
    assert Alarm.take() is bell
    bell.give_back()
