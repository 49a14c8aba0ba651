"""The native function that wakes a loop, both ways of making it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import pytest

from oxide.compiler.cpu.native_functions import compile_host_function
from oxide.compiler.ir.files import ir_file
from oxide.runtime.loop import alarm


@pytest.mark.parametrize(
    "make",
    [
        lambda: (alarm.notify_function(), None),
        lambda: compile_host_function(ir_file(alarm.__file__, "alarm.ll"), "oxide_notify"),
    ],
    ids=["loaded", "compiled"],
)
def test_each_call_of_the_native_function_makes_the_alarm_readable(make: Callable[[], tuple[int, Any]]) -> None:
    address, _keep = make()
    notify = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
    bell = alarm.Alarm()
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
    bell = alarm.Alarm.take()
    bell.give_back()
    assert alarm.Alarm.take() is bell
    bell.give_back()
