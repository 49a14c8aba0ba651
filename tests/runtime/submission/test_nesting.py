"""How long and how deep operations may be: chains of any length, and a clear error for what Python's stack limits."""

from __future__ import annotations

import gc
import inspect
import sys
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import h2d, value, zeros


def test_chains_of_any_length_run() -> None:
    operation: oxide.DeviceOperation[int] = value(0)
    for _ in range(10_000):
        operation = operation.and_then(lambda x: value(x + 1)).map(lambda x: x + 1).inspect(lambda _: None)
    assert operation.sync() == 20_000

    async def main() -> None:
        assert await operation == 20_000

    trio.run(main)


def test_shared_operations_may_follow_one_another_without_end_and_each_runs_once() -> None:
    calls = 0

    def step(x: int) -> oxide.DeviceOperation[int]:
        nonlocal calls
        calls += 1
        return value(x + 1)

    shared: list[oxide.DeviceOperation[int]] = [value(0)]
    for _ in range(2000):
        shared.append(shared[-1].and_then(step).shared())
    assert shared[-1].sync() == 2000
    assert calls == 2000
    assert shared[700].sync() == 700
    assert shared[-1].sync() == 2000
    assert calls == 2000


def test_an_error_deep_in_shared_operations_reaches_all_that_follow_as_one() -> None:
    def fail(_: int) -> oxide.DeviceOperation[int]:
        raise ZeroDivisionError("here")

    operation: oxide.DeviceOperation[int] = value(0).and_then(fail)
    consumers = []
    for _ in range(300):
        operation = operation.and_then(value).shared()
        consumers.append(operation)
    errors = []
    for consumer in (consumers[-1], consumers[5], consumers[-1]):
        with pytest.raises(ZeroDivisionError, match="here") as raised:
            consumer.sync()
        errors.append(raised.value)
    assert errors[0] is errors[1] is errors[2]


def test_results_of_shared_operations_behind_one_another_are_ordered() -> None:
    operation: oxide.DeviceOperation[Any] = h2d(np.zeros(100, np.float32)).shared()
    for _ in range(100):
        operation = operation.and_then(oxide.dup).shared()
    streams = [oxide.devices()[0].new_stream() for _ in range(3)]
    for stream in streams:
        np.testing.assert_array_equal(operation.to_host().sync_on(stream), 0)


def deep_zip() -> oxide.DeviceOperation[Any]:
    operation: oxide.DeviceOperation[Any] = value(0)
    for _ in range(1000):
        operation = oxide.zip(operation, value(0))
    return operation


def deep_copies() -> oxide.DeviceOperation[Any]:
    operation: oxide.DeviceOperation[Any] = zeros(3)
    for _ in range(1000):
        operation = oxide.dup(operation)
    return operation


def deep_placements() -> oxide.DeviceOperation[Any]:
    operation: oxide.DeviceOperation[Any] = zeros(3)
    for _ in range(5000):
        operation = operation.on(0)
    return operation


@pytest.mark.parametrize("make", [deep_zip, deep_copies, deep_placements])
def test_what_is_nested_too_deep_is_told_so(make: Any) -> None:
    with pytest.raises(RecursionError, match=r"operations inside one another.*zip\(a, b, c\)") as raised:
        make().sync()
    assert not getattr(raised.value, "__notes__", ())
    with pytest.raises(RecursionError, match="operations inside one another"):
        make().graph()

    async def main() -> None:
        with pytest.raises(RecursionError, match="operations inside one another"):
            await make()

    trio.run(main)
    np.testing.assert_array_equal(zeros(3).to_host().sync(), 0)  # the runtime goes on


@pytest.mark.filterwarnings("ignore:.*was never run")
def test_placements_inside_one_another_are_described_however_many_they_are() -> None:
    operation = deep_placements()
    assert repr(operation) == "<oxide operation on device 0: <oxide operation full of 3 float32>>"
    assert operation.spec() == zeros(3).spec()


def test_a_functions_own_recursion_is_its_own_error() -> None:
    def forever(x: int) -> Any:
        return forever(x + 1)

    with pytest.raises(RecursionError, match="maximum recursion depth") as raised:
        value(0).and_then(forever).sync()
    assert any("forever" in note for note in raised.value.__notes__)


def own_and_then() -> oxide.DeviceOperation[Any]:
    operations: list[oxide.DeviceOperation[Any]] = []
    operations.append(h2d(np.zeros(2)).and_then(lambda _: operations[0]))
    return operations[0]


def round_trip() -> oxide.DeviceOperation[Any]:
    return h2d(np.zeros(2)).and_then(oxide.d2h)


@pytest.mark.parametrize(("make", "left"), [(own_and_then, 950), (round_trip, 5)])
@pytest.mark.filterwarnings("ignore:.*was never run")
def test_a_stack_that_is_full_in_a_native_call_is_a_recursion_error_too(make: Any, left: int) -> None:
    """ctypes makes an ``ArgumentError`` of an error that arises while it converts an argument. The operation runs at
    many depths, so that the stack is full at each of its calls. At the first depth it leaves ``left`` frames free."""
    errors: list[Exception] = []

    def deep(levels: int) -> None:
        deep(levels - 1) if levels else make().sync()

    first = sys.getrecursionlimit() - len(inspect.stack(0)) - left
    for levels in range(first, max(first - 100, 0), -1):
        try:
            deep(levels)
        except Exception as error:
            errors.append(error)
    kinds = {type(error) for error in errors}
    errors.clear()
    gc.collect()  # the operations that were never run
    assert kinds == {RecursionError}
    np.testing.assert_array_equal(zeros(3).to_host().sync(), 0)  # the runtime goes on
