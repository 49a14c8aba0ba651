"""Cooperative launches on a real GPU: grids as large as the device holds, launches and graphs in flight together."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import (
    DynamicSharedArray,
    LaunchConfig,
    LaunchError,
    Slice,
    d2h,
    h2d,
    i32,
    kernel,
    thread,
    zeros,
)
from tests.runtime.grid_of_neighbours import neighbours, summed


@kernel
def shared_hog(x: Slice[i32]) -> None:
    scratch = DynamicSharedArray(i32)
    scratch[thread.thread_idx.x] = i32(len(x))
    thread.sync_grid()


def fitting(refused: Any) -> int:
    with pytest.raises(LaunchError, match=r"cuda:0 holds \d+ of them") as caught:
        refused.sync()
    found = re.search(r"holds (\d+) of them", str(caught.value))
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("threads", [32, 96, 256, 1024])
def test_the_largest_grid_that_fits_meets_a_hundred_times_and_one_more_block_is_refused(threads: int) -> None:
    most = fitting(neighbours[100_000, threads](1, zeros(1, i32), zeros(1, i32)))
    assert most >= 1
    x = np.random.default_rng(threads).integers(0, 1009, most * threads).astype(np.int32)
    _, result, _ = neighbours[most, threads](50, h2d(x), zeros(x.size, i32)).sync()
    np.testing.assert_array_equal(d2h(result).sync(), summed(x, 100))
    assert fitting(neighbours[most + 1, threads](1, zeros(1, i32), zeros(1, i32))) == most


def test_shared_memory_counts_in_what_fits() -> None:
    box = zeros(1, i32).sync()
    small, large = (
        fitting(shared_hog[LaunchConfig(100_000, 128, shared_mem_bytes=size)](box)) for size in (1024, 100 * 1024)
    )
    assert large < small
    shared_hog[LaunchConfig(large, 128, shared_mem_bytes=100 * 1024)](box).sync()


def test_launches_on_several_streams_do_not_share_a_barrier() -> None:
    x = np.arange(8 * 128, dtype=np.int32) % 1009
    streams = [oxide.devices()[0].new_stream() for _ in range(4)]
    launched = []
    for number in range(40):
        box, scratch = h2d(x).sync(), zeros(x.size, i32).sync()
        operation = neighbours[8, 128](1 + number % 7, box, scratch)
        operation.async_on(streams[number % 4])
        launched.append((number, box, scratch))
    for stream in streams:
        stream.synchronize()
    for number, box, _ in launched:
        np.testing.assert_array_equal(d2h(box).sync(), summed(x, 2 * (1 + number % 7)))


def test_replays_of_graphs_on_two_streams_at_once_are_right() -> None:
    streams = [oxide.devices()[0].new_stream() for _ in range(2)]
    x = np.arange(16 * 256, dtype=np.int32) % 1009
    boxes = [(h2d(x).sync(), zeros(x.size, i32).sync()) for _ in streams]
    graphs = [neighbours[16, 256](3, *pair).graph_on(stream) for pair, stream in zip(boxes, streams, strict=True)]
    before = [d2h(pair[0]).sync() for pair in boxes]
    for _ in range(25):
        for graph, stream in zip(graphs, streams, strict=True):
            graph.launch().async_on(stream)
    for stream in streams:
        stream.synchronize()
    for pair, start in zip(boxes, before, strict=True):
        np.testing.assert_array_equal(d2h(pair[0]).sync(), summed(start, 6 * 25))


def test_an_ordinary_kernel_between_cooperative_ones_changes_nothing() -> None:
    x = np.arange(4 * 64, dtype=np.int32)
    box, scratch = h2d(x).sync(), zeros(x.size, i32).sync()
    for _ in range(5):
        neighbours[4, 64](1, box, scratch).sync()
        oxide.full(1000, 1.0).sync()
    np.testing.assert_array_equal(d2h(box).sync(), summed(x, 10))
