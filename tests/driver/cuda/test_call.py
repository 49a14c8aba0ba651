"""What C hands the driver: each number in its place, a launch's parameters as they are."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import pytest

cuda_call: Any = pytest.importorskip("oxide.driver.cuda.call", reason="runs interpreted; make test-wheel tests it")

LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)


def call(function: Callable[..., int], *arguments: Any) -> int:
    entry = LAUNCH(function)
    code: int = cuda_call.launch(ctypes.cast(entry, ctypes.c_void_p).value, *arguments)
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
        cuda_call.launch(0, 1, (1, 1, 1), (1, 1, 1), 0, b"", 0)


HANDLES = {
    1: ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p),
    2: ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2),
}


@pytest.mark.parametrize("handles", [(2**63 + 1,), (2**48, 1)])
def test_the_driver_is_handed_each_handle(handles: tuple[int, ...]) -> None:
    seen: list[Any] = []

    def driver(*arguments: Any) -> int:
        seen.append(arguments)
        return 600

    entry = HANDLES[len(handles)](driver)
    assert cuda_call.call(ctypes.cast(entry, ctypes.c_void_p).value, *handles) == 600
    assert seen == [handles]


def test_other_threads_run_while_the_driver_waits_for_a_handle() -> None:
    gate = threading.Event()

    def driver(_: Any) -> int:
        threading.Thread(target=gate.set).start()
        return 0 if gate.wait(60) else 1

    entry = HANDLES[1](driver)
    assert cuda_call.call(ctypes.cast(entry, ctypes.c_void_p).value, 1) == 0


@pytest.mark.parametrize(
    ("handles", "error"), [((), TypeError), ((1, 2, 3), TypeError), (("1",), TypeError), ((1, 2**64), OverflowError)]
)
def test_what_is_no_handle_is_refused_and_the_driver_not_called(
    handles: tuple[Any, ...], error: type[Exception]
) -> None:
    def driver(*_: Any) -> int:
        raise AssertionError("called")

    entry = HANDLES[2](driver)
    with pytest.raises(error):
        cuda_call.call(ctypes.cast(entry, ctypes.c_void_p).value, *handles)


def test_no_address_is_no_function_of_the_driver() -> None:
    with pytest.raises(ValueError, match="address"):
        cuda_call.call(0, 1)
