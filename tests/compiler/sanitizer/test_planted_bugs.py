"""Bugs that people new to GPUs write, each beside the kernel as it should be: the one is found, the other is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numba import cuda

from oxide import (
    Array,
    AtomicSlice,
    DisjointSlice,
    DynamicSharedArray,
    Kernel,
    LaunchConfig,
    LocalArray,
    SharedArray,
    Slice,
    atomic,
    d2h,
    empty,
    f32,
    h2d,
    i32,
    kernel,
    thread,
    u32,
    warp,
    zeros,
)
from tests.compiler.sanitizer.sanitized import BOTH, error_of, on_the_cpu_device
from tests.source_lines import line_of

N = 128
X = np.arange(N, dtype=np.float32)


pytestmark = on_the_cpu_device


@dataclass(frozen=True)
class Planted:
    """A bug of ``kind``, on the line of ``wrong`` that ends with ``# bug``; ``right`` gives ``expected``.

    ``arguments`` makes the operands of either, the output last."""

    kind: str
    what: str
    wrong: Kernel
    right: Kernel
    arguments: Callable[[], tuple[Any, ...]]
    expected: Any
    grid: int = 1
    block: int = 64
    shared: int = 0


BUGS: dict[str, Planted] = {}


# A missing barrier


@kernel(sanitize=BOTH)
def reversed_at_once(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray(64, f32)
    t = thread.thread_idx.x
    tile[t] = x[t]
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = tile[63 - t]  # bug


@kernel(sanitize=BOTH)
def reversed_behind_a_barrier(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray(64, f32)
    t = thread.thread_idx.x
    tile[t] = x[t]
    thread.sync_threads()
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = tile[63 - t]


BUGS["a missing barrier"] = Planted(
    "race", "a SharedArray", reversed_at_once, reversed_behind_a_barrier, lambda: (h2d(X), zeros(64)), X[63::-1]
)


# The second barrier of a loop over tiles: one warp overwrites what another still reads


@kernel(sanitize=BOTH)
def tiles_with_one_barrier(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray(64, f32)
    t = thread.thread_idx.x
    total = f32(0)
    for part in range(2):
        tile[t] = x[part * 64 + t]  # bug
        thread.sync_threads()
        total += tile[(t + 32) % 64]
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = total


@kernel(sanitize=BOTH)
def tiles_with_two_barriers(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray(64, f32)
    t = thread.thread_idx.x
    total = f32(0)
    for part in range(2):
        tile[t] = x[part * 64 + t]
        thread.sync_threads()
        total += tile[(t + 32) % 64]
        thread.sync_threads()
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = total


BUGS["a tile written while another warp reads it"] = Planted(
    "race",
    "a SharedArray",
    tiles_with_one_barrier,
    tiles_with_two_barriers,
    lambda: (h2d(X), zeros(64)),
    np.roll(X[:64] + X[64:], -32),
)


# The last steps of a sum in a warp, which does not run in step


@kernel(sanitize=BOTH)
def warp_sum_in_step(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray(64, f32)
    t = thread.thread_idx.x
    tile[t] = x[t]
    thread.sync_threads()
    if t < 32:
        step = 32
        while step > 0:
            tile[t] = tile[t] + tile[t + step]  # bug
            step //= 2
    out = y.get_mut(thread.index_1d())
    if out is not None and t == 0:
        out.value = tile[0]


@kernel(sanitize=BOTH)
def warp_sum_synchronised(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray(64, f32)
    t = thread.thread_idx.x
    tile[t] = x[t]
    thread.sync_threads()
    if t < 32:
        step = 32
        while step > 0:
            value = tile[t] + tile[t + step]
            warp.sync()
            tile[t] = value
            warp.sync()
            step //= 2
    out = y.get_mut(thread.index_1d())
    if out is not None and t == 0:
        out.value = tile[0]


BUGS["a warp without warp.sync"] = Planted(
    "race",
    "a SharedArray",
    warp_sum_in_step,
    warp_sum_synchronised,
    lambda: (h2d(X), zeros(1)),
    [X[:64].sum()],
)


# A running sum in one buffer


@kernel(sanitize=BOTH)
def running_sum_in_one_buffer(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray(64, f32)
    t = thread.thread_idx.x
    tile[t] = x[t]
    thread.sync_threads()
    step = 1
    while step < 64:
        if t >= step:
            tile[t] = tile[t] + tile[t - step]  # bug
        thread.sync_threads()
        step *= 2
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = tile[t]


@kernel(sanitize=BOTH)
def running_sum_in_turns(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray(64, f32)
    t = thread.thread_idx.x
    tile[t] = x[t]
    thread.sync_threads()
    step = 1
    while step < 64:
        before = tile[t - step] if t >= step else f32(0)
        thread.sync_threads()
        tile[t] = tile[t] + before
        thread.sync_threads()
        step *= 2
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = tile[t]


BUGS["a scan in one buffer"] = Planted(
    "race",
    "a SharedArray",
    running_sum_in_one_buffer,
    running_sum_in_turns,
    lambda: (h2d(X), zeros(64)),
    X[:64].cumsum(),
)


# An accumulator that one thread clears, and that all add to


@kernel(sanitize=BOTH)
def counted_before_it_is_cleared(x: Slice[f32], y: DisjointSlice[i32]) -> None:
    count = SharedArray(1, i32)
    t = thread.thread_idx.x
    if t == 0:
        count[0] = 0
    if x[t] > f32(9):
        count.fetch_add(0, 1)  # bug
    thread.sync_threads()
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = count[0]


@kernel(sanitize=BOTH)
def counted_once_it_is_cleared(x: Slice[f32], y: DisjointSlice[i32]) -> None:
    count = SharedArray(1, i32)
    t = thread.thread_idx.x
    if t == 0:
        count[0] = 0
    thread.sync_threads()
    if x[t] > f32(9):
        count.fetch_add(0, 1)
    thread.sync_threads()
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = count[0]


BUGS["an accumulator cleared without a barrier"] = Planted(
    "race",
    "a SharedArray",
    counted_before_it_is_cleared,
    counted_once_it_is_cleared,
    lambda: (h2d(X + 10), zeros(64, np.int32)),
    [64] * 64,
)


# Two blocks that write one element


@kernel(sanitize=BOTH)
def indexed_in_the_block(x, y):
    i = cuda.threadIdx.x
    y[i] = x[cuda.grid(1)]  # bug


@kernel(sanitize=BOTH)
def indexed_in_the_grid(x, y):
    i = cuda.grid(1)
    y[i] = x[i]


BUGS["two blocks that write one element"] = Planted(
    "race", "y", indexed_in_the_block, indexed_in_the_grid, lambda: (h2d(X), zeros(N)), X, grid=2
)


# A sum that every thread adds to


@kernel(sanitize=BOTH)
def summed_plainly(x, y):
    y[0] += x[cuda.grid(1)]  # bug


@kernel(sanitize=BOTH)
def summed_atomically(x, y):
    cuda.atomic.add(y, 0, x[cuda.grid(1)])


BUGS["a sum without atomics"] = Planted(
    "race", "y", summed_plainly, summed_atomically, lambda: (h2d(X), zeros(1)), [X.sum()], grid=2
)


# A neighbour's element, in place


@kernel(sanitize=BOTH)
def smoothed_in_place(x, y):
    i = cuda.grid(1)
    if 0 < i < y.size - 1:
        y[i] = y[i - 1] + x[i] + y[i + 1]  # bug


@kernel(sanitize=BOTH)
def smoothed_apart(x, y):
    i = cuda.grid(1)
    if 0 < i < y.size - 1:
        y[i] = x[i - 1] + x[i] + x[i + 1]


BUGS["a stencil in place"] = Planted(
    "race",
    "y",
    smoothed_in_place,
    smoothed_apart,
    lambda: (h2d(X), zeros(N)),
    [0, *(3 * X[1:-1]), 0],
    grid=2,
)


# Atomics on one side, and a plain access on the other


@kernel(sanitize=BOTH)
def looked_at_plainly(count: AtomicSlice[u32], plain: Slice[u32], y: DisjointSlice[u32]) -> None:
    count.fetch_add(0, 1)
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = u32(plain[0] > 0)  # bug


@kernel(sanitize=BOTH)
def looked_at_atomically(count: AtomicSlice[u32], plain: Slice[u32], y: DisjointSlice[u32]) -> None:
    count.fetch_add(0, 1)
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = u32(count.load(0) > 0)


def counted() -> tuple[Any, ...]:
    box = zeros(1, np.uint32).sync()
    return box, box, zeros(N, np.uint32)


BUGS["atomics mixed with plain reads"] = Planted(
    "race", "plain", looked_at_plainly, looked_at_atomically, counted, [1] * N, grid=2
)


# A message without a fence


@kernel(sanitize=BOTH)
def passed_on_without_fences(
    data: DisjointSlice[u32], seen: Slice[u32], flag: AtomicSlice[u32], y: DisjointSlice[u32]
) -> None:
    if thread.block_idx.x == 0:
        data.unchecked_mut[0] = u32(42)
        flag.store(0, 1)
    elif flag.load(0) == 1:
        y.unchecked_mut[0] = seen[0]  # bug


@kernel(sanitize=BOTH)
def passed_on_with_fences(
    data: DisjointSlice[u32], seen: Slice[u32], flag: AtomicSlice[u32], y: DisjointSlice[u32]
) -> None:
    if thread.block_idx.x == 0:
        data.unchecked_mut[0] = u32(42)
        atomic.fence()
        flag.store(0, 1)
    elif flag.load(0) == 1:
        atomic.fence()
        y.unchecked_mut[0] = seen[0]


def message() -> tuple[Any, ...]:
    box = zeros(1, np.uint32).sync()
    return box, box, zeros(1, np.uint32), zeros(1, np.uint32)


BUGS["a message without fences"] = Planted(
    "race", "seen", passed_on_without_fences, passed_on_with_fences, message, [42], grid=2, block=1
)


# Blocks that do not wait for one another


@kernel(sanitize=BOTH)
def turned_behind_a_block(x: Slice[f32], own: DisjointSlice[f32], all_: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    first, out = own.get_mut(i), y.get_mut(i)
    if first is not None:
        first.value = x[i.get()]
    thread.sync_threads()
    if out is not None:
        out.value = all_[len(x) - 1 - i.get()]  # bug


@kernel(sanitize=BOTH)
def turned_behind_the_grid(x: Slice[f32], own: DisjointSlice[f32], all_: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    first, out = own.get_mut(i), y.get_mut(i)
    if first is not None:
        first.value = x[i.get()]
    thread.sync_grid()
    if out is not None:
        out.value = all_[len(x) - 1 - i.get()]


def between() -> tuple[Any, ...]:
    box = zeros(N).sync()
    return h2d(X), box, box, zeros(N)


BUGS["a block's barrier in place of the grid's"] = Planted(
    "race", "all_", turned_behind_a_block, turned_behind_the_grid, between, X[::-1], grid=2
)


# Indices


@kernel(unchecked=True, sanitize=BOTH)
def difference_to_the_next(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None:
        out.value = x[i.get() + 1] - x[i.get()]  # bug


@kernel(unchecked=True, sanitize=BOTH)
def difference_to_the_next_there_is(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None and i.get() + 1 < len(x):
        out.value = x[i.get() + 1] - x[i.get()]


BUGS["an off-by-one into the next buffer"] = Planted(
    "out-of-bounds",
    "x",
    difference_to_the_next,
    difference_to_the_next_there_is,
    lambda: (h2d(X), zeros(N)),
    [1] * (N - 1) + [0],
    grid=2,
)


@kernel(sanitize=BOTH)
def without_a_guard(x, y):
    i = cuda.grid(1)
    y[i] = x[i]  # bug


@kernel(sanitize=BOTH)
def with_a_guard(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i]


BUGS["a raw array without a guard"] = Planted(
    "out-of-bounds", "x", without_a_guard, with_a_guard, lambda: (h2d(X[:100]), zeros(100)), X[:100], grid=2
)


@kernel(unchecked=True, sanitize=BOTH)
def a_step_before_the_first(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None:
        out.value = x[i.get() - 1]  # bug


@kernel(unchecked=True, sanitize=BOTH)
def from_the_second_on(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None and i.get() > 0:
        out.value = x[i.get() - 1]


BUGS["a negative index"] = Planted(
    "out-of-bounds",
    "x",
    a_step_before_the_first,
    from_the_second_on,
    lambda: (h2d(X), zeros(N)),
    [0, *X[:-1]],
    grid=2,
)


@kernel(unchecked=True, sanitize=BOTH)
def as_many_as_there_are(k: i32, y: DisjointSlice[f32]) -> None:
    own = LocalArray(4, f32)
    for place in range(k + 1):
        own[place] = f32(place)  # bug
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = own[k - 1]


@kernel(unchecked=True, sanitize=BOTH)
def no_more_than_there_are(k: i32, y: DisjointSlice[f32]) -> None:
    own = LocalArray(4, f32)
    for place in range(k):
        own[place] = f32(place)
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = own[k - 1]


BUGS["a local array out of bounds"] = Planted(
    "out-of-bounds", "a LocalArray", as_many_as_there_are, no_more_than_there_are, lambda: (4, zeros(64)), [3] * 64
)


@kernel(unchecked=True, sanitize=BOTH)
def a_tile_for_fewer_threads(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray(32, f32)
    halo = SharedArray(64, f32)
    t = thread.thread_idx.x
    halo[t] = f32(0)
    thread.sync_threads()
    tile[t] = x[t]  # bug
    thread.sync_threads()
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = halo[t] + tile[t % 32]


@kernel(unchecked=True, sanitize=BOTH)
def a_tile_for_all_threads(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray(64, f32)
    halo = SharedArray(64, f32)
    t = thread.thread_idx.x
    halo[t] = f32(0)
    thread.sync_threads()
    tile[t] = x[t]
    thread.sync_threads()
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = halo[t] + tile[t % 32]


BUGS["a tile smaller than the block"] = Planted(
    "out-of-bounds",
    "a SharedArray",
    a_tile_for_fewer_threads,
    a_tile_for_all_threads,
    lambda: (h2d(X), zeros(64)),
    np.tile(X[:32], 2),
)


@kernel(sanitize=BOTH)
def rows_and_columns_exchanged(x: Array[f32, 2], y: Array[f32, 1]) -> None:
    column = cuda.grid(1)
    for row in range(x.shape[0]):
        y[column] += x[column, row]  # bug


@kernel(sanitize=BOTH)
def rows_before_columns(x: Array[f32, 2], y: Array[f32, 1]) -> None:
    column = cuda.grid(1)
    for row in range(x.shape[0]):
        y[column] += x[row, column]


BUGS["rows and columns exchanged"] = Planted(
    "out-of-bounds",
    "x",
    rows_and_columns_exchanged,
    rows_before_columns,
    lambda: (h2d(X.reshape(2, 64)), zeros(64)),
    X.reshape(2, 64).sum(0),
)


# Memory that nothing has written


@kernel(sanitize=BOTH)
def a_tile_half_filled(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = DynamicSharedArray(f32)
    t = thread.thread_idx.x
    if t < 50:
        tile[t] = x[t]
    thread.sync_threads()
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = tile[63 - t]  # bug


@kernel(sanitize=BOTH)
def a_tile_padded(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = DynamicSharedArray(f32)
    t = thread.thread_idx.x
    tile[t] = x[t] if t < 50 else f32(0)
    thread.sync_threads()
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = tile[63 - t]


BUGS["shared memory that nothing wrote"] = Planted(
    "uninitialized",
    "a DynamicSharedArray",
    a_tile_half_filled,
    a_tile_padded,
    lambda: (h2d(X), zeros(64)),
    [*[0] * 14, *X[49::-1]],
    shared=256,
)


@kernel(sanitize=BOTH)
def added_to_what_is_there(x, y):
    i = cuda.grid(1)
    y[i] += x[i]  # bug


BUGS["empty() taken for zeros()"] = Planted(
    "uninitialized", "y", added_to_what_is_there, indexed_in_the_grid, lambda: (h2d(X), empty(N)), X, grid=2
)


@kernel(sanitize=BOTH)
def a_local_sum_from_nothing(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    own = LocalArray(2, f32)
    i = thread.index_1d()
    for k in range(2):
        own[k] += x[i.get()]  # bug
    out = y.get_mut(i)
    if out is not None:
        out.value = own[0] + own[1]


@kernel(sanitize=BOTH)
def a_local_sum_from_zero(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    own = LocalArray(2, f32)
    i = thread.index_1d()
    for k in range(2):
        own[k] = f32(0)
        own[k] += x[i.get()]
    out = y.get_mut(i)
    if out is not None:
        out.value = own[0] + own[1]


BUGS["a local array that nothing wrote"] = Planted(
    "uninitialized",
    "a LocalArray",
    a_local_sum_from_nothing,
    a_local_sum_from_zero,
    lambda: (h2d(X), zeros(64)),
    2 * X[:64],
)


# Vectors


@kernel(unchecked=True, sanitize=BOTH)
def pairs_from_the_second_on(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None:
        first, second = x.load2(2 * i.get() + 1)  # bug
        out.value = first + second


@kernel(unchecked=True, sanitize=BOTH)
def pairs_from_the_first_on(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None:
        first, second = x.load2(2 * i.get())
        out.value = first + second


BUGS["a misaligned vector"] = Planted(
    "misaligned",
    "x",
    pairs_from_the_second_on,
    pairs_from_the_first_on,
    lambda: (h2d(X), zeros(60)),
    X[:120:2] + X[1:120:2],
)


# A warp operation that a part of the warp does not reach


@kernel(sanitize=BOTH)
def totals_of_those_inside(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None:
        out.value = warp.reduce_add(x[i.get()])  # bug


@kernel(sanitize=BOTH)
def totals_with_every_lane(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    total = warp.reduce_add(x[i.get()] if i.get() < len(x) else f32(0))
    out = y.get_mut(i)
    if out is not None:
        out.value = total


BUGS["a reduction behind a test of the index"] = Planted(
    "missing-lanes",
    "a warp operation",
    totals_of_those_inside,
    totals_with_every_lane,
    lambda: (h2d(X[:50]), zeros(50)),
    np.repeat([X[:32].sum(), X[32:50].sum()], 32)[:50],
)


@kernel(sanitize=BOTH)
def votes_of_the_rest(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    if i.get() == 3:
        return
    out = y.get_mut(i)
    votes = warp.ballot(x[i.get()] > f32(0))  # bug
    if out is not None:
        out.value = f32(votes & u32(15))


@kernel(sanitize=BOTH)
def votes_of_named_lanes(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    if i.get() == 3:
        return
    out = y.get_mut(i)
    votes = warp.ballot(x[i.get()] > f32(0), ~u32(8) if i.get() < 32 else warp.FULL_MASK)
    if out is not None:
        out.value = f32(votes & u32(15))


BUGS["a vote that names a lane that has returned"] = Planted(
    "missing-lanes",
    "a warp operation",
    votes_of_the_rest,
    votes_of_named_lanes,
    lambda: (h2d(X[:64]), zeros(64)),
    np.where(np.arange(64) == 3, 0, np.where(np.arange(64) < 32, 6, 15)),
)


@kernel(sanitize=BOTH)
def neighbours_that_returned(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None:
        out.value = warp.shuffle_xor(x[i.get()], 16)  # bug


@kernel(sanitize=BOTH)
def neighbours_that_are_there(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None:
        out.value = warp.shuffle_xor(x[i.get()], 8)


BUGS["a shuffle from a lane that has returned"] = Planted(
    "missing-lanes",
    "a warp operation",
    neighbours_that_returned,
    neighbours_that_are_there,
    lambda: (h2d(X[:48]), zeros(48)),
    np.arange(48) ^ 8,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_found_where_it_is(name: str) -> None:
    bug = BUGS[name]
    error = error_of(bug.wrong[LaunchConfig(bug.grid, bug.block, bug.shared)](*bug.arguments()))
    line = line_of(bug.wrong, "bug")
    both = [error, error.other] if error.other else [error]
    assert error.kind == bug.kind
    assert bug.what in {access.what for access in both}
    assert line in {access.line for access in both}
    assert error.file == __file__


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_the_kernel_as_it_should_be_is_clean(name: str) -> None:
    bug = BUGS[name]
    launch = bug.right[LaunchConfig(bug.grid, bug.block, bug.shared)](*bug.arguments())
    np.testing.assert_array_equal(d2h(launch.last()).sync(), bug.expected)
