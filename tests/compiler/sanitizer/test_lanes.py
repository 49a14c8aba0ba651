"""Planted in every warp function: lanes that do not exist, that the mask does not name, and that have left. Beside each
plant, the same kernel with lanes that are all there is clean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

from oxide import (
    DisjointSlice,
    Kernel,
    LaunchConfig,
    Slice,
    d2h,
    f32,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u32,
    warp,
    zeros,
)
from oxide import numba_cuda as oxide_cuda
from tests.compiler.sanitizer.sanitized import BOTH, error_of, on_the_cpu_device

pytestmark = on_the_cpu_device

FULL = warp.FULL_MASK

NAMED: dict[str, Any] = {
    "all": lambda v, by, mask: i32(warp.all(v >= 0, mask)),
    "any": lambda v, by, mask: i32(warp.any(v >= 0, mask)),
    "ballot": lambda v, by, mask: i32(warp.ballot(v >= 0, mask)),
    "elect": lambda v, by, mask: i32(warp.elect(mask)),
    "match_any": lambda v, by, mask: i32(warp.match_any(v, mask)),
    "match_any of i64": lambda v, by, mask: i32(warp.match_any(i64(v), mask)),
    "match_all": lambda v, by, mask: i32(warp.match_all(f32(v), mask)),
    "reduce_add": lambda v, by, mask: warp.reduce_add(v, mask),
    "reduce_add of f32": lambda v, by, mask: i32(warp.reduce_add(f32(v), mask)),
    "reduce_min": lambda v, by, mask: warp.reduce_min(v, mask),
    "reduce_max": lambda v, by, mask: i32(warp.reduce_max(i64(v), mask)),
    "reduce_and": lambda v, by, mask: warp.reduce_and(v, mask),
    "reduce_or": lambda v, by, mask: warp.reduce_or(v, mask),
    "reduce_xor": lambda v, by, mask: warp.reduce_xor(v, mask),
}
SHUFFLES: dict[str, Any] = {
    "shuffle": lambda v, by, mask: warp.shuffle(v, by, mask),
    "shuffle of f32": lambda v, by, mask: i32(warp.shuffle(f32(v), by, mask)),
    "shuffle_up": lambda v, by, mask: warp.shuffle_up(v, by, mask),
    "shuffle_down": lambda v, by, mask: i32(warp.shuffle_down(i64(v), by, mask)),
    "shuffle_xor": lambda v, by, mask: warp.shuffle_xor(v, by, mask),
}
OF_NUMBA: dict[str, Any] = {
    "all_sync": lambda v, by, mask: cuda.all_sync(mask, v >= 0),
    "any_sync": lambda v, by, mask: cuda.any_sync(mask, v >= 0),
    "eq_sync": lambda v, by, mask: cuda.eq_sync(mask, v >= 0),
    "ballot_sync": lambda v, by, mask: cuda.ballot_sync(mask, v >= 0),
    "match_any_sync": lambda v, by, mask: cuda.match_any_sync(mask, v),
    "match_all_sync": lambda v, by, mask: cuda.match_all_sync(mask, v)[0],
    "shfl_sync": lambda v, by, mask: cuda.shfl_sync(mask, v, by),
    "shfl_up_sync": lambda v, by, mask: cuda.shfl_up_sync(mask, v, by),
    "shfl_down_sync": lambda v, by, mask: cuda.shfl_down_sync(mask, v, by),
    "shfl_xor_sync": lambda v, by, mask: cuda.shfl_xor_sync(mask, v, by),
}


def kernel_of(name: str) -> Kernel:
    """Returns a kernel whose lanes in ``stays`` do not return, and whose lanes in ``comes`` call the function."""
    if name in OF_NUMBA:
        called = oxide_cuda.jit(device=True)(OF_NUMBA[name])

        @kernel(sanitize=BOTH)
        def of_numba(stays, comes, mask, by, x, y):  # type: ignore[no-untyped-def]
            i = cuda.grid(1)
            bit = 1 << (i & 31)
            if stays & bit:
                v = x[i]
                if comes & bit:
                    v = called(v, by, mask)
                y[i] = v

        return of_numba
    call = cuda.jit(device=True)({**NAMED, **SHUFFLES}[name])

    @kernel(sanitize=BOTH)
    def typed(stays: u32, comes: u32, mask: u32, by: i32, x: Slice[i32], y: DisjointSlice[i32]) -> None:
        i = thread.index_1d()
        bit = u32(1) << u32(warp.lane_id())
        if stays & bit:
            v = x[i.get()]
            if comes & bit:
                v = call(v, by, mask)
            e = y.get_mut(i)
            if e is not None:
                e.value = v

    return typed


class Launched:
    """A kernel, launched with blocks of ``block`` threads whose lanes ``stays`` do not return and ``comes`` call."""

    def __init__(self, name: str) -> None:
        self._kernel = kernel_of(name)

    def __call__(self, block: int, mask: int, *, stays: int = FULL, comes: int | None = None, by: int = 0) -> Any:
        words = [np.uint32(each & FULL) for each in (stays, mask if comes is None else comes, mask)]
        boxes = h2d(np.arange(block, dtype=np.int32)), zeros(block, np.int32)
        return self._kernel[LaunchConfig(1, block)](*words, np.int32(by), *boxes).last()

    def clean(self, block: int, mask: int, **more: Any) -> Any:
        return d2h(self(block, mask, **more)).sync()

    def finds(self, problem: str, block: int, mask: int, **more: Any) -> None:
        error = error_of(self(block, mask, **more))
        assert (error.kind, error.access) == ("missing-lanes", "warp operation")
        assert f"needs {problem}" in str(error)


VOTES_OF_NUMBA = [name for name in OF_NUMBA if "shfl" not in name]
SHUFFLES_OF_NUMBA = [name for name in OF_NUMBA if "shfl" in name]


@pytest.mark.parametrize("name", [*NAMED, *VOTES_OF_NUMBA])
def test_a_mask_that_names_lanes_that_do_not_come(name: str) -> None:
    launch = Launched(name)
    launch.finds("lanes 8 to 15 of its warp, which the 8 threads of its warp, in a block of 8, do not incl", 8, 0xFFFF)
    launch.finds("lanes 8 to 15 of its warp, which the 8 threads of its warp, in a block of 40,", 40, 0xFFFF)
    launch.finds("lane 31 of its warp, which the 31 threads", 31, 0xFFFFFFFE)
    launch.finds("lanes 3 to 4 of its warp, which had returned", 8, 0xFF, stays=~0x18)
    launch.finds("lanes 3 to 4 of its warp, which had returned", 40, FULL, stays=~0x18)
    for block in (8, 31, 32, 40, 64):
        launch.clean(block, FULL)  # the full mask stands for all lanes that there are
        launch.clean(block, 0x5A)
        launch.clean(block, 0x42, stays=~0x18)


@pytest.mark.parametrize("name", [*SHUFFLES, *SHUFFLES_OF_NUMBA])
def test_a_shuffle_from_a_lane_that_takes_no_part(name: str) -> None:
    launch = Launched(name)
    way = next(way for way in ("up", "down", "xor", "") if way in name)
    # Lane 5 calls, and its value comes from lane 7, but of a shuffle up from lane 3.
    by, source = {"up": (2, 3), "down": (2, 7), "xor": (2, 7), "": (7, 7)}[way]
    launch.finds(f"lane {source} of its warp, which its mask does not name", 32, 1 << 5, by=by)
    launch.finds(f"lane {source} of its warp, which had returned", 32, FULL, by=by, stays=~(1 << source))
    launch.finds(f"lane {source} of its warp, which had ret", 32, 1 << 5 | 1 << source, by=by, stays=~(1 << source))
    if way != "up":  # a lane below one that there is, is there
        for mask in (FULL, 1 << 5, 1 << 5 | 1 << 7):
            launch.finds("lane 7 of its warp, which the 7 threads of its warp, in a block of 7,", 7, mask, by=by)
        launch.finds("lane 7 of its warp, which the 7 threads of its warp, in a block of 39,", 39, FULL, by=by)
    launch.clean(32, 1 << 5 | 1 << source, by=by if way in ("xor", "") else 0)
    for block in (8, 32, 40, 64):
        launch.clean(block, FULL, by=0)
    launch.clean(32, FULL, by=2)  # up and down: at the warp's ends a lane keeps its value
    launch.clean(64, 1 << 5, by=0 if way else 5)


def test_a_synchronisation_waits_for_those_that_there_are() -> None:
    @kernel(sanitize=BOTH)
    def syncs(mask: u32, stays: u32, y: DisjointSlice[i32]) -> None:
        i = thread.index_1d()
        bit = u32(1) << u32(warp.lane_id())
        if stays & bit:
            if mask & bit:
                warp.sync(mask)
            e = y.get_mut(i)
            if e is not None:
                e.value = 1

    for block, mask, stays in ((8, 0xFFFF, FULL), (40, FULL, FULL), (32, FULL, ~0x18), (64, 0xFF, 0xF)):
        syncs[1, block](np.uint32(mask), np.uint32(stays & FULL), zeros(block, i32)).sync()


def test_a_sum_by_shuffles_in_a_partial_warp_is_found_and_one_by_reduce_add_is_right() -> None:
    @kernel(sanitize=BOTH)
    def by_shuffles(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        i = thread.index_1d()
        v = x[i.get()]
        d = 16
        while d > 0:
            v += warp.shuffle_down(v, d)
            d //= 2
        e = y.get_mut(i)
        if e is not None:
            e.value = v

    @kernel(sanitize=BOTH)
    def by_reduce_add(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        i = thread.index_1d()
        total = warp.reduce_add(x[i.get()])
        e = y.get_mut(i)
        if e is not None:
            e.value = total

    ones = np.ones(96, np.float32)
    error = error_of(by_shuffles[2, 48](h2d(ones), zeros(96)))
    assert "needs lane 16 of its warp, which the 16 threads of its warp, in a block of 48, do not include" in str(error)
    assert error.thread == (32, 0, 0)
    sums = by_reduce_add[2, 48](h2d(ones), zeros(96)).last()
    assert d2h(sums).sync().tolist() == ([32] * 32 + [16] * 16) * 2
