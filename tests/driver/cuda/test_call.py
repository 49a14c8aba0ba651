"""What C hands the driver: each number in its place, a launch's parameters as they are."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import pytest

from oxide.host import core

LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)


def call(function: Callable[..., int], *arguments: Any) -> int:
    entry = LAUNCH(function)
    code: int = core.launch(ctypes.cast(entry, ctypes.c_void_p).value, *arguments)
    return code


def test_the_driver_is_handed_each_number_and_the_parameters() -> None:
    seen: list[Any] = []

    def driver(*arguments: Any) -> int:
        pointer_key, pointer, size_key, size, end = (ctypes.c_void_p * 5).from_address(arguments[-1])
        assert (pointer_key, size_key, end) == (1, 2, None)
        seen.append((*arguments[:-1], ctypes.string_at(pointer, ctypes.c_size_t.from_address(size).value)))
        return 719

    params = bytes(range(100))
    assert call(driver, 2**63 + 1, (2**31 - 1, 65535, 3), (1024, 1, 2), 227 * 1024, params, 2**48) == 719
    assert seen == [(2**63 + 1, 2**31 - 1, 65535, 3, 1024, 1, 2, 227 * 1024, 2**48, None, params)]


def test_other_threads_run_while_the_driver_waits() -> None:
    gate = threading.Event()

    def driver(*_: Any) -> int:
        gate_opener = threading.Thread(target=gate.set)
        gate_opener.start()
        assert gate.wait(60)
        gate_opener.join()
        return 0

    assert call(driver, 1, (1, 1, 1), (1, 1, 1), 0, b"", 0) == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((1, (1, 1), (1, 1, 1), 0, b"", 0), TypeError),
        ((1, (1, 1, 1), [1, 1, 1], 0, b"", 0), TypeError),
        ((1, (1, 1, 1), (1, 1, 1), 0, bytearray(), 0), TypeError),
        ((1, (2**32, 1, 1), (1, 1, 1), 0, b"", 0), OverflowError),
        ((1, (-1, 1, 1), (1, 1, 1), 0, b"", 0), OverflowError),
        ((1, (1, 1, 1), (1, 1, 1), -1, b"", 0), OverflowError),
        ((1, (1, 1, 1), (1, 1, 1), 2**32, b"", 0), OverflowError),
        (("1", (1, 1, 1), (1, 1, 1), 0, b"", 0), TypeError),
        ((1, (1, 1, 1), (1, 1, 1), 0, b""), TypeError),
    ],
)
def test_what_is_no_launch_is_refused_and_the_driver_not_called(
    arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    def driver(*_: Any) -> int:
        raise AssertionError("called")

    with pytest.raises(error):
        call(driver, *arguments)


def test_no_address_is_no_driver() -> None:
    with pytest.raises(ValueError, match="address"):
        core.launch(0, 1, (1, 1, 1), (1, 1, 1), 0, b"", 0)


class Calls(core.Calls):
    """A driver whose functions are Python's."""

    def __init__(self, **functions: Callable[..., int]) -> None:
        self.kept: list[Any] = []
        for name, function in functions.items():
            handles = 2 if name in ("event_record", "launch_graph") else 1
            self.kept.append(ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * handles)(function))
            setattr(self, f"_{name}", ctypes.cast(self.kept[-1], ctypes.c_void_p).value)

    def call_failure(self, code: int, call: str) -> Exception:
        return RuntimeError(f"{call}: {code}")


def handle(address: int) -> Any:
    made = core.Handle()
    made.address = address
    return made


METHODS = {
    "query_stream": ("stream_query", 1), "query_event": ("event_query", 1), "record_event": ("event_record", 2),
    "synchronize_event": ("event_synchronize", 1), "launch_graph": ("launch_graph", 2),
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_the_driver_is_handed_each_handle(method: str) -> None:
    seen: list[Any] = []
    function, count = METHODS[method]
    code = 0

    def driver(*arguments: Any) -> int:
        seen.append(arguments)
        return code

    calls = Calls(**{function: driver})
    addresses = (2**63 + 1, 2**48)[:count]
    handles = [handle(address) for address in addresses]
    queries = method.startswith("query")
    assert getattr(calls, method)(*handles) is (True if queries else None)
    assert seen == [addresses]
    for code in (600, 719):  # CUDA_ERROR_NOT_READY, which only a query may answer, and CUDA_ERROR_LAUNCH_FAILED
        if queries and code == 600:
            assert getattr(calls, method)(*handles) is False
        else:
            with pytest.raises(RuntimeError, match=f"cu.*: {code}"):
                getattr(calls, method)(*handles)


def test_other_threads_run_while_the_driver_waits_for_a_handle() -> None:
    gate = threading.Event()

    def driver(_: Any) -> int:
        threading.Thread(target=gate.set).start()
        return 0 if gate.wait(60) else 1

    Calls(event_synchronize=driver).synchronize_event(handle(1))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("handles", [(), (1,), (None, None), (1, 2, 3)])
def test_what_is_no_handle_is_refused_and_the_driver_not_called(method: str, handles: tuple[Any, ...]) -> None:
    def driver(*_: Any) -> int:
        raise AssertionError("called")

    calls = Calls(**{METHODS[method][0]: driver})
    with pytest.raises((TypeError, AttributeError)):
        getattr(calls, method)(*handles)


def test_a_driver_without_the_function_is_not_called() -> None:
    with pytest.raises((TypeError, AttributeError)):
        Calls().query_stream(handle(1))
