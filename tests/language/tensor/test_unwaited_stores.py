"""The CPU device's sanitizer finds each access to a tile or an output that ``store_tile`` still copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import (
    DisjointSlice2,
    SanitizerError,
    SharedArray,
    Slice2,
    d2h,
    empty,
    f32,
    h2d,
    kernel,
    tensor,
    thread,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.testing import use_driver
from tests.source_lines import line_of

RANDOM = np.random.default_rng(29)


@pytest.fixture(autouse=True)
def _on_the_cpu_device() -> Any:
    with use_driver(CpuDriver()):
        yield


def stores(
    kinds: Any = "race",
    *,
    waits: bool = True,
    commits: bool = True,
    pending: int = 0,
    waits_at_end: bool = True,
    read_only: bool = True,
    reads_output: bool = False,
) -> Any:
    """Each block copies two tiles of eight rows of x to y through one tile in shared memory."""

    @kernel(block=32, sanitize=kinds)
    def copied(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
        tile = SharedArray((8, 32), f32, 128)
        t = thread.thread_idx.x
        first = thread.block_idx.x * 16
        for half in range(2):
            for row in range(8):
                tile[row, t] = x[first + half * 8 + row, t]  # the write
            tensor.fence_stores()
            thread.sync_threads()
            if t == 0:
                tensor.store_tile(y.scatter, (first + half * 8, 0), tile, None)  # the store
                if commits:
                    tensor.commit_stores()
                if waits and (half == 0 or waits_at_end):
                    tensor.wait_stores(pending, read_only)
            thread.sync_threads()
        if reads_output and t == 0:
            y.unchecked_mut[first, 0] += f32(1)  # the use

    return copied


def run(copied: Any, blocks: int = 2) -> Any:
    x = RANDOM.standard_normal((16 * blocks, 32)).astype(np.float32)
    found = copied[blocks, 32](h2d(x), zeros((16 * blocks, 32))).last().and_then(d2h).sync()
    return x, found


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["race", "memory", ("memory", "race")])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_kernel_that_waits_for_its_stores_is_clean(kinds: Any, read_only: bool) -> None:
    x, found = run(stores(kinds, read_only=read_only))
    assert np.array_equal(found, x)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", [{"waits": False}, {"commits": False}, {"pending": 1}])
def test_a_tile_that_is_written_while_a_store_reads_it_is_found(mistake: Any) -> None:
    with pytest.raises(SanitizerError) as caught:
        run(stores(**mistake))
    error = caught.value
    assert error.kind == "race"
    assert error.what == "a SharedArray"
    assert error.access == "write"
    assert error.line == line_of(stores, "the write")
    assert error.other is not None
    assert error.other.access == "store"
    assert error.other.line == line_of(stores, "the store")
    assert error.other.thread == (0, 0, 0)
    assert "no tensor.wait_stores orders it, and a tensor.store_tile of a SharedArray" in str(error)


def test_a_block_that_ends_while_a_store_reads_its_tile_is_found() -> None:
    with pytest.raises(SanitizerError, match=r"may still read it after the thread.*tensor.wait_stores") as caught:
        run(stores(waits_at_end=False))
    error = caught.value
    assert error.kind == "unfinished-store"
    assert error.access == "store"
    assert error.what == "a SharedArray"
    assert error.line == line_of(stores, "the store")
    assert error.thread == (0, 0, 0)


def test_an_output_that_is_used_while_a_store_writes_it_is_found() -> None:
    with pytest.raises(SanitizerError) as caught:
        run(stores(reads_output=True))
    error = caught.value
    assert error.kind == "race"
    assert error.what == "y"
    assert error.line == line_of(stores, "the use")
    assert error.other is not None
    assert error.other.access == "copy"
    assert error.other.line == line_of(stores, "the store")
    assert "no tensor.wait_stores orders it" in str(error)


def test_an_output_may_be_used_by_its_thread_after_the_wait() -> None:
    x, found = run(stores(("memory", "race"), read_only=False, reads_output=True))
    x[::16, 0] += 1
    assert np.array_equal(found, x)


@kernel(block=32, sanitize="race", partial=True)
def overlapping(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
    tile = SharedArray((8, 32), f32, 128)
    t = thread.thread_idx.x
    for row in range(8):
        tile[row, t] = x[row, t]
    tensor.fence_stores()
    thread.sync_threads()
    if t == 0:
        tensor.store_tile(y.scatter, (thread.block_idx.x * 4, 0), tile, None)
        tensor.commit_stores()
        tensor.wait_stores()


def test_stores_of_two_blocks_that_overlap_race() -> None:
    x = RANDOM.standard_normal((8, 32)).astype(np.float32)
    with pytest.raises(SanitizerError, match="kernel overlapping: race: a") as caught:
        overlapping[2, 32](h2d(x), zeros((12, 32))).sync()
    assert caught.value.what == "y"
    assert caught.value.block == (1, 0, 0)
    assert caught.value.other is not None
    assert caught.value.other.block == (0, 0, 0)


@kernel(block=32, sanitize=("memory", "race"), partial=True)
def beside(rows: f32, y: DisjointSlice2[f32]) -> None:
    tile = SharedArray((8, 32), f32, 128)
    t = thread.thread_idx.x
    for row in range(8):
        tile[row, t] = rows
    tensor.fence_stores()
    thread.sync_threads()
    if t == 0:
        tensor.store_tile(y.scatter, (0, 0), tile, None)
        tensor.commit_stores()
        tensor.wait_stores()
    thread.sync_threads()
    if t < 16:
        y.unchecked_mut[11, t] = y.unchecked_mut[8 if rows < f32(0) else 7, t]


def test_only_what_a_store_writes_counts_as_written() -> None:
    beside[1, 32](1.0, empty((12, 40))).sync()
    with pytest.raises(SanitizerError, match="finds memory that nothing has written") as caught:
        beside[1, 32](-1.0, empty((12, 40))).sync()
    assert caught.value.kind == "uninitialized"
    assert caught.value.what == "y"
