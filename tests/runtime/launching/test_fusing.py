"""The pass that merges consecutive launches of elementwise kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import (
    DeviceBox,
    DisjointSlice,
    DisjointSlice2,
    Kernel,
    LaunchConfig,
    Slice,
    Slice2,
    d2h,
    f32,
    h2d,
    kernel,
    thread,
    zeros,
)
from oxide.runtime.device.memory import Allocation
from oxide.runtime.launching.fusing import FusibleLaunch, fuse
from oxide_kernels import axpy, relu


@kernel(block=64)
def scale(a: f32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = a * x[i.get()]


@kernel(block=64)
def rotate(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = x[(i.get() + 1) % len(x)]


@kernel(block=64)
def by_lane(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = x[i.get()] + f32(thread.thread_idx.x)


def launch(launched: Kernel, *arguments: Any, threads: int | None = None) -> FusibleLaunch:
    special = launched.specialize(T=f32) if launched.is_generic else launched.specialize()
    boxes = [each for each in arguments if isinstance(each, DeviceBox)]
    config = LaunchConfig.for_num_elems(boxes[-1].size if threads is None else threads, 64)
    return FusibleLaunch(
        special,
        tuple((each.ptr, each.size) if isinstance(each, DeviceBox) else each for each in arguments),
        tuple(each._allocation if isinstance(each, DeviceBox) else None for each in arguments),
        config,
    )


def box(n: int = 100) -> DeviceBox:
    return zeros(n, f32).sync()


def names(launches: list[FusibleLaunch]) -> list[str]:
    return [each.special.kernel.name for each in launches]


def always(allocation: Allocation, index: int) -> bool:
    return True


def test_a_chain_becomes_one_launch_without_the_arrays_between() -> None:
    x, t, u, y = box(), box(), box(), box()
    launches = [launch(relu, x, t), launch(scale, 2.0, t, u), launch(axpy, 3.0, u, y)]
    between = {t._allocation, u._allocation}
    (found,), reasons = fuse(launches, lambda allocation, index: allocation not in between)
    assert found.special.kernel.name == "relu+scale+axpy"
    assert found.values == ((x.ptr, 100), 2.0, 3.0, (y.ptr, 100))
    assert found.allocations == (x._allocation, None, None, y._allocation)
    assert found.config == LaunchConfig(1, 256)
    assert reasons == []


def test_arrays_that_are_needed_are_written() -> None:
    x, t, y = box(), box(), box()
    asked: list[tuple[Allocation, int]] = []

    def needed(allocation: Allocation, index: int) -> bool:
        asked.append((allocation, index))
        return True

    launches = [launch(by_lane, y, x), launch(relu, x, t), launch(scale, 2.0, t, y), launch(by_lane, y, x)]
    (_, found, _), _ = fuse(launches, needed)
    assert found.allocations == (x._allocation, t._allocation, None, y._allocation)
    assert {index for _, index in asked} == {2}


def apart() -> dict[str, tuple[list[FusibleLaunch], str]]:
    x, t, y, other = box(), box(), box(), box(99)
    return {
        "not elementwise": (
            [launch(relu, x, t), launch(by_lane, t, y), launch(relu, y, x)],
            "kernel by_lane is not fused: it uses its thread in other ways than by its index",
        ),
        "another array": (
            [launch(relu, x, t), launch(scale, 2.0, y, y)],
            "kernel scale is not fused with relu: it accesses none of their arrays",
        ),
        "another length": (
            [launch(relu, x, t), launch(relu, t[:99], other)],
            "kernel relu is not fused with relu: its arrays have 99 elements, theirs 100",
        ),
        "several lengths": (
            [launch(relu, x, t), launch(scale, 2.0, t, other)],
            "kernel scale is not fused: its arrays have different shapes: (99,), (100,)",
        ),
        "other threads' elements": (
            [launch(relu, x, t), launch(rotate, t, y)],
            "kernel rotate is not fused with relu: one writes relu_output, and another reads it at other indices than "
            "its thread's",
        ),
        "too few threads": (
            [launch(scale, 2.0, x, t, threads=64), launch(relu, t, y)],
            "kernel scale is not fused: its launch has fewer threads than its arrays have elements",
        ),
    }


@pytest.mark.parametrize("case", apart())
def test_other_launches_stay_apart_for_a_reason(case: str) -> None:
    launches, reason = apart()[case]
    found, reasons = fuse(launches, always)
    assert found == launches
    assert reasons[0] == reason


def test_arrays_that_overlap_in_part_stay_apart() -> None:
    whole, x = box(101), box()
    launches = [launch(relu, x, whole[:100]), launch(relu, x, whole[1:])]
    found, reasons = fuse(launches, always)
    assert found == launches
    assert reasons == ["kernel relu is not fused with relu: an array overlaps another in part"]


@kernel(block=(32, 8))
def bias(x: Slice2[f32], b: Slice[f32], y: DisjointSlice2[f32]) -> None:
    row, column = thread.index_2d_row(), thread.index_2d_col()
    e = y.get_mut(thread.index_2d(y.shape[1]))
    if e is not None:
        e.value = x[row, column] + b[column]


def test_matrices_and_their_elements_in_a_row_are_one_chain() -> None:
    x, t, y, b = (zeros(shape, f32).sync() for shape in ((20, 30), (20, 30), (20, 30), 30))
    special = bias.specialize()
    values = ((t.ptr, 20, 30), (b.ptr, 30), (y.ptr, 20, 30))
    allocations = (t._allocation, b._allocation, y._allocation)
    launches = [
        launch(relu, x, t),
        FusibleLaunch(special, values, allocations, LaunchConfig.for_shape((20, 30), (32, 8))),
        launch(relu, y, y),
    ]
    (found,), _ = fuse(launches, lambda allocation, index: allocation is not t._allocation)
    assert found.values == ((x.ptr, 600), (b.ptr, 30), (y.ptr, 20, 30))
    narrow = FusibleLaunch(special, values, allocations, LaunchConfig((1, 2), (32, 8)))
    assert fuse([narrow], always)[1] == [
        "kernel bias is not fused: its launch has fewer threads than its arrays have elements"
    ]


def test_the_launches_that_remain_give_the_same_numbers() -> None:
    numbers = np.random.default_rng(0).standard_normal(1001).astype(np.float32)

    def results(fuses: bool) -> list[bytes]:
        boxes = x, t, u, y, z = [h2d(numbers).sync() if each < 2 else box(1001) for each in range(5)]
        launches = [
            launch(relu, x, t),
            launch(scale, 2.5, t, u),
            launch(rotate, u, y),
            launch(axpy, -1.1, y, z),
            launch(relu, z, z),
        ]
        if fuses:
            launches, _ = fuse(launches, lambda allocation, index: allocation is not t._allocation)
            assert names(launches) == ["relu+scale", "rotate+axpy+relu"]
        by_address = {each.ptr: each for each in boxes}
        for each in launches:
            arguments = [by_address[value[0]] if isinstance(value, tuple) else value for value in each.values]
            each.special.kernel[each.config](*arguments).sync()
        return [d2h(each).sync().tobytes() for each in (u, y, z)]

    assert results(fuses=True) == results(fuses=False)
