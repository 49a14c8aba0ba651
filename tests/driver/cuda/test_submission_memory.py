"""The C memory behind a launch: what the driver would read through the addresses that it is given."""

from __future__ import annotations

import ctypes
import struct
import sys
from types import SimpleNamespace

import pytest

from oxide.driver.cuda.launches import HostFunctions, ParameterPacket


def test_the_pointers_to_the_parameters_stay_valid_as_long_as_the_packet() -> None:
    packet = ParameterPacket(struct.pack("@QIxxxxd", 1, 2, 3.0), (0, 8, 16))

    others = [(ctypes.c_void_p * 3)(7, 7, 7) for _ in range(1000)]  # takes memory of that size that is free
    first, second, third = (ctypes.c_void_p * 3).from_address(packet.address)
    assert ctypes.c_uint64.from_address(first).value == 1
    assert ctypes.c_uint32.from_address(second).value == 2
    assert ctypes.c_double.from_address(third).value == 3.0
    del others


def call(functions: HostFunctions, key: int) -> None:
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(functions.entry)(key)


def test_the_entry_point_runs_the_function_of_its_key_once_and_forgets_it() -> None:
    functions = HostFunctions()
    calls: list[str] = []
    first = functions.add(lambda: calls.append("first"))
    second = functions.add(lambda: calls.append("second"))

    call(functions, second)
    call(functions, first)

    assert calls == ["second", "first"]
    assert len(functions) == 0


def test_a_discarded_function_is_forgotten() -> None:
    functions = HostFunctions()

    functions.discard(functions.add(lambda: None))

    assert len(functions) == 0


def test_what_a_host_function_raises_goes_to_the_unraisable_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    caught: list[SimpleNamespace] = []
    monkeypatch.setattr(sys, "unraisablehook", caught.append)
    functions = HostFunctions()

    def fail() -> None:
        raise LookupError("from the host function")

    call(functions, functions.add(fail))

    assert [type(each.exc_value) for each in caught] == [LookupError]
    assert len(functions) == 0
