"""What the driver says of a kernel's resources, beside what the kernel's text makes it need."""

from __future__ import annotations

import pytest

from oxide import (
    AtomicSlice,
    DisjointSlice,
    DriverError,
    LaunchConfig,
    LocalArray,
    SharedArray,
    Slice,
    d2h,
    f32,
    f64,
    i32,
    kernel,
    thread,
    unroll,
    zeros,
)
from oxide_kernels import relu


@kernel(block=256)
def light(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get()]


@kernel(block=256)
def shared(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray(8192, f32)
    index = thread.index_1d()
    at = thread.thread_idx.x
    tile[at] = x[index.get()]
    thread.sync_threads()
    element = y.get_mut(index)
    if element is not None:
        element.value = tile[8191 - at]


@kernel(block=256)
def local(x: Slice[i32], y: AtomicSlice[i32]) -> None:
    values = LocalArray(512, i32)
    for i in range(512):
        values[i] = x[i]
    y.fetch_add(0, values[x[0]])


@kernel(block=256)
def many(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """Holds thirty-two numbers at a time."""
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is None:
        return
    values = LocalArray(32, f32)
    for i in unroll(range(32)):
        values[i] = x.unchecked[index.get() + i]
    for _ in range(len(x)):
        for i in unroll(range(32)):
            values[i] = values[i] * values[(i + 7) % 32] + values[(i + 1) % 32]
    total = f32(0)
    for i in unroll(range(32)):
        total += values[i]
    element.value = total


squeezed = kernel(block=256, max_registers=32)(many.function)


def test_a_light_kernel_fills_the_multiprocessors() -> None:
    found = light.resources()
    assert 1 <= found.registers <= 32
    assert (found.local_bytes, found.spill_bytes, found.shared_bytes) == (0, 0, 0)
    assert found.max_threads_per_block == 1024
    assert (found.block, found.dynamic_shared_bytes) == (256, 0)
    assert found.blocks_per_multiprocessor >= 4
    assert found.occupancy == 1.0


def test_shared_memory_bounds_the_blocks_of_a_multiprocessor() -> None:
    found = shared.resources()
    assert found.shared_bytes == 32 * 1024
    more = shared.resources(shared_mem_bytes=64 * 1024)
    assert 1 <= more.blocks_per_multiprocessor < found.blocks_per_multiprocessor
    assert more.occupancy < found.occupancy <= 1.0
    assert more.dynamic_shared_bytes == 64 * 1024


def test_arrays_beyond_48_kib_count_as_the_others_do() -> None:
    @kernel(block=256)
    def large(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        tile = SharedArray(25_000, f32, alignment=1024)
        index = thread.index_1d()
        tile[thread.thread_idx.x] = x[index.get()]
        thread.sync_threads()
        element = y.get_mut(index)
        if element is not None:
            element.value = tile[255 - thread.thread_idx.x]

    found = large.resources()
    assert (found.shared_bytes, found.dynamic_shared_bytes) == (100_000, 0)
    assert found.blocks_per_multiprocessor == 2
    more = large.resources(shared_mem_bytes=64 * 1024)
    assert (more.shared_bytes, more.dynamic_shared_bytes, more.blocks_per_multiprocessor) == (100_000, 65536, 1)
    with pytest.raises(DriverError, match=r"240000 bytes of .*, 100000 of them for its SharedArrays"):
        large[LaunchConfig(1, 256, shared_mem_bytes=140_000)](zeros(256), zeros(256)).sync()


def test_an_array_indexed_by_a_variable_is_in_local_memory() -> None:
    for _ in range(2):  # the second time the driver has it in its cache
        found = local.resources()
        assert found.local_bytes >= 2048
        assert found.spill_bytes == 0  # of which none is a register's
    assert squeezed.resources().registers <= 32 < many.resources().registers


def test_a_launch_whose_threads_take_more_memory_than_the_gpu_has_says_so() -> None:
    from oxide.driver.cuda.contexts import memory_info  # only where there is CUDA

    if memory_info(0)[1] > 120 << 30:
        pytest.skip("all threads together may have less local memory than this GPU has")

    @kernel(block=32)
    def greedy(y: DisjointSlice[f64]) -> None:
        mine = LocalArray(60_000, f64)
        index = thread.index_1d()
        for i in range(60_000):
            mine[i] = f64(index.get() + i)
        element = y.get_mut(index)
        if element is not None:
            element.value = mine[59_999 - index.get()]

    with pytest.raises(DriverError, match=r"a thread takes 480\d{3} bytes of local memory, and .*LocalArrays smaller"):
        greedy(zeros(4, f64)).sync()
    assert list(relu[1, 4](zeros(4), zeros(4)).last().and_then(d2h).sync()) == [0] * 4  # the device goes on


@pytest.mark.parametrize("block", [32, 100, 1024])
def test_occupancy_counts_whole_warps(block: int) -> None:
    found = light.resources(block)
    assert found.block == block
    assert 0 < found.occupancy <= 1.0
    assert found.blocks_per_multiprocessor * -(-block // 32) * 32 <= 2048


def test_a_generic_kernel_has_the_resources_of_its_f32() -> None:
    assert relu.resources() == relu.specialize(T=f32).resources()
    assert relu.resources().block == 256
    assert relu.specialize(T=f64).resources().registers >= relu.resources().registers
