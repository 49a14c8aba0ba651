"""Temporaries of a graph share memory where their lives do not overlap, and only there."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from numba import cuda

import oxide
from oxide import (
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    OutOfMemoryError,
    Slice,
    d2h,
    dup,
    empty,
    f32,
    h2d,
    kernel,
    thread,
    value,
    zeros,
)
from oxide.runtime.plan.reuse import GraphMemory
from oxide.testing import FailingDriver, step_driver, use_driver

SIZE = 1000
BYTES = 4 * SIZE


@kernel(block=128)
def plus_one(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get()] + f32(1)


@kernel(block=128)
def plus(x: Slice[f32], y: Slice[f32], z: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = z.get_mut(index)
    if element is not None:
        element.value = x[index.get()] + y[index.get()]


@kernel
def numbas_plus_one(x, y):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i] + 1


def chain(x: Any, length: int, launch: Any = plus_one) -> DeviceOperation[DeviceBox]:
    operation: Any = value(x) if isinstance(x, DeviceBox) else x
    for _ in range(length):
        operation = operation.and_then(lambda box: launch(box, empty(SIZE)).last())
    return operation


@pytest.mark.parametrize("length", [1, 2, 3, 7])
@pytest.mark.parametrize("launch", [plus_one, numbas_plus_one[8, 128]], ids=["typed", "numba"])
def test_a_chain_needs_two_temporaries_and_its_result(length: int, launch: Any) -> None:
    x = np.random.default_rng(length).random(SIZE, np.float32)
    box = h2d(x).sync()
    graph = chain(box, length, launch).graph()
    assert graph.memory() == GraphMemory(length * BYTES, min(length, 3) * BYTES)
    result = graph.take_output()
    assert result is not None
    for _ in range(2):
        graph.launch().sync()
        expected = x
        for _ in range(length):
            expected = expected + np.float32(1)
        np.testing.assert_array_equal(d2h(result).sync(), expected)


def test_copies_fills_and_downloads_of_temporaries_move_too() -> None:
    graph = (
        zeros(SIZE)
        .and_then(lambda a: plus_one(a, empty(SIZE)).last())
        .and_then(dup)
        .and_then(lambda a: plus_one(a, empty(SIZE)).last())
        .and_then(lambda a: dup(a[10:20]))
        .and_then(d2h)
        .graph()
    )
    memory = graph.memory()
    assert (memory.before, memory.after) == (4 * BYTES + 40, 2 * BYTES)
    assert str(memory) == "7.812 KiB instead of 15.66 KiB"
    graph.launch().sync()
    np.testing.assert_array_equal(graph.take_output(), np.full(10, 2, np.float32))


def test_a_box_that_the_program_keeps_shares_no_memory() -> None:
    kept: list[DeviceBox] = []
    x = h2d(np.ones(SIZE, np.float32)).sync()
    graph = chain(chain(x, 2).inspect(kept.append), 4).graph()
    assert graph.memory() == GraphMemory(6 * BYTES, 4 * BYTES)
    graph.launch().sync()
    np.testing.assert_array_equal(d2h(kept[0]).sync(), np.full(SIZE, 3, np.float32))


def test_a_view_keeps_its_memory_as_a_box_does() -> None:
    kept: list[DeviceBox] = []
    x = h2d(np.ones(SIZE, np.float32)).sync()
    graph = chain(chain(x, 2).inspect(lambda box: kept.append(box[5:7])), 4).graph()
    assert graph.memory() == GraphMemory(6 * BYTES, 4 * BYTES)
    graph.launch().sync()
    np.testing.assert_array_equal(d2h(kept[0]).sync(), np.full(2, 3, np.float32))


def test_branches_share_nothing_that_would_order_them() -> None:
    with use_driver(step_driver()):
        x = h2d(np.ones(SIZE, np.float32)).sync()
        joined = oxide.zip(chain(x, 3), chain(x, 3)).and_then(lambda both: plus(*both, empty(SIZE)).last())
        graph = joined.graph()
        assert graph.memory() == GraphMemory(7 * BYTES, 5 * BYTES)
        launches = [node for node in graph.picture().nodes if node.kind == "launch"]
        edges = {(edge.source, edge.target) for edge in graph.picture().edges}
        first, second = [node.key for node in launches[:3]], [node.key for node in launches[3:6]]
        assert not any((one, other) in edges or (other, one) in edges for one in first for other in second)
        result = graph.take_output()
        graph.launch().sync()
        assert result is not None
        np.testing.assert_array_equal(d2h(result).sync(), np.full(SIZE, 8, np.float32))


def test_a_scalar_that_equals_an_address_stays_what_it_is() -> None:
    @kernel(block=128)
    def store(number: oxide.u64, x: Slice[f32], y: DisjointSlice[oxide.u64]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = number

    x = h2d(np.ones(SIZE, np.float32)).sync()
    seen: list[int] = []

    def step(box: DeviceBox) -> DeviceOperation[DeviceBox]:
        seen.append(box.ptr)
        return store(box.ptr, box, zeros(SIZE, oxide.u64)).last()

    graph = chain(x, 5).and_then(step).graph()
    assert graph.memory().after < graph.memory().before
    result = graph.take_output()
    assert result is not None
    graph.launch().sync()
    assert set(d2h(result).sync()) == set(seen)


def test_exported_memory_is_left_alone() -> None:
    if oxide.devices()[0].kind != "cpu":
        pytest.skip("reads the memory on the host")
    x = h2d(np.ones(SIZE, np.float32)).sync()
    views: list[Any] = []
    graph = chain(chain(x, 2).inspect(lambda box: views.append(np.from_dlpack(box))), 4).graph()
    graph.launch().sync()
    np.testing.assert_array_equal(views[0], np.full(SIZE, 3, np.float32))


def test_all_memory_is_returned_at_the_end_and_after_a_failure() -> None:
    with use_driver(FailingDriver(step_driver())) as failing:
        x = h2d(np.ones(SIZE, np.float32)).sync()
        oxide.reclaim.drain()
        before = failing.inner.live_allocations.device_count
        # 6 boxes, the fault record is made by kernels that can fail: none here. Then the two shared pieces.
        for at in range(1, 12):
            failing.fail("allocate", OutOfMemoryError("no more"), at=at)
            with suppress(OutOfMemoryError):  # the last of these calls is not made
                chain(x, 6).graph().launch().sync()
            failing.forget()
            gc.collect()
            oxide.reclaim.drain()
            assert failing.inner.live_allocations.device_count == before


def test_planning_a_thousand_nodes_is_quick_enough_to_count() -> None:
    x = h2d(np.ones(SIZE, np.float32)).sync()
    graph = chain(x, 1000).graph()
    assert graph.memory() == GraphMemory(1000 * BYTES, 3 * BYTES)
