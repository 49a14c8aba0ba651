"""The sanitizer of the CPU device: it finds planted bugs, says where, and says nothing of kernels that are right."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import (
    AtomicSlice,
    DisjointSlice,
    DynamicSharedArray,
    Kernel,
    LaunchConfig,
    LocalArray,
    SanitizerError,
    SharedArray,
    Slice,
    atomic,
    bf16,
    d2h,
    device,
    f16,
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
from oxide.driver.cpu import CpuDriver
from oxide.runtime.operations.operation import with_context
from oxide.runtime.operations.transfers import new_box
from oxide_kernels import block_inclusive_sum, block_sum, matvec_naive, relu, sgemm_naive
from tests.compiler.sanitizer.sanitized import BOTH, error_of, on_the_cpu_device
from tests.language.asserting_kernels import square_roots
from tests.source_lines import line_of

pytestmark = on_the_cpu_device


def found(kernel: Kernel, *arguments: Any, grid: int = 1, block: int = 64, shared: int = 0) -> SanitizerError:
    return error_of(kernel[LaunchConfig(grid, block, shared)](*arguments))


def numbers(n: int) -> np.ndarray[Any, Any]:
    return np.arange(n, dtype=np.float32)


# Races between the threads of a block


@kernel(sanitize=BOTH)
def without_a_barrier(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray(64, f32)
    i = thread.index_1d()
    tile[i.get()] = x[i.get()]  # write
    out = y.get_mut(i)
    if out is not None:
        out.value = tile[63 - i.get()]  # read


def test_a_missing_barrier_is_a_race_with_both_lines_and_both_threads() -> None:
    error = found(without_a_barrier, h2d(numbers(64)), zeros(64))
    assert (error.kind, error.kernel, error.what) == ("race", "without_a_barrier", "a SharedArray")
    assert error.other is not None
    assert {error.line, error.other.line} == {
        line_of(without_a_barrier, "write"),
        line_of(without_a_barrier, "read"),
    }
    assert error.file == error.other.file == __file__
    assert {error.access, error.other.access} == {"read", "write"}
    assert error.thread[0] + error.other.thread[0] == 63
    assert str(error.line) in str(error)
    assert str(error.other.line) in str(error)


@kernel(sanitize="race")
def one_barrier_too_few_in_a_loop(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray(64, f32)
    i = thread.index_1d()
    total = f32(0)
    for k in range(4):
        tile[i.get()] = x[i.get()] + f32(k)  # write
        thread.sync_threads()
        total += tile[63 - i.get()]  # read
    out = y.get_mut(i)
    if out is not None:
        out.value = total


def test_a_tile_overwritten_while_others_still_read_it_is_a_race() -> None:
    error = found(one_barrier_too_few_in_a_loop, h2d(numbers(64)), zeros(64))
    assert error.kind == "race"
    assert error.other is not None
    assert {(error.access, error.line), (error.other.access, error.other.line)} == {
        ("write", line_of(one_barrier_too_few_in_a_loop, "write")),
        ("read", line_of(one_barrier_too_few_in_a_loop, "read")),
    }


@kernel(sanitize="race")
def warp_without_sync(y: DisjointSlice[f32]) -> None:
    tile = SharedArray(32, f32)
    i = thread.index_1d()
    tile[warp.lane_id()] = f32(warp.lane_id())
    out = y.get_mut(i)
    if out is not None:
        out.value = tile[31 - warp.lane_id()]  # read


@kernel(sanitize="race")
def warp_with_sync(y: DisjointSlice[f32]) -> None:
    tile = SharedArray(32, f32)
    i = thread.index_1d()
    tile[warp.lane_id()] = f32(warp.lane_id())
    warp.sync()
    out = y.get_mut(i)
    if out is not None:
        out.value = tile[31 - warp.lane_id()]


@kernel(sanitize="race")
def half_a_warp_synchronised(y: DisjointSlice[f32]) -> None:
    tile = SharedArray(32, f32)
    i = thread.index_1d()
    tile[warp.lane_id()] = f32(warp.lane_id())
    mask = u32(0xFFFF) if warp.lane_id() < 16 else u32(0xFFFF0000)
    warp.sync(mask)
    out = y.get_mut(i)
    if out is not None:
        out.value = tile[31 - warp.lane_id()]  # read


@kernel(sanitize="race")
def two_warps_with_sync(y: DisjointSlice[f32]) -> None:
    tile = SharedArray(64, f32)
    i = thread.index_1d()
    tile[i.get()] = f32(1)
    warp.sync()
    out = y.get_mut(i)
    if out is not None:
        out.value = tile[63 - i.get()]  # read


def test_a_warp_does_not_run_in_step_by_itself() -> None:
    error = found(warp_without_sync, zeros(32), block=32)
    assert error.kind == "race"
    assert error.other is not None
    assert line_of(warp_without_sync, "read") in (error.line, error.other.line)


def test_a_synchronised_warp_is_ordered() -> None:
    assert d2h(warp_with_sync[1, 32](zeros(32)).last()).sync()[0] == 31


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "block"), [(half_a_warp_synchronised, 32), (two_warps_with_sync, 64)])
def test_lanes_that_a_synchronisation_does_not_name_are_not_ordered(wrong: Kernel, block: int) -> None:
    error = found(wrong, zeros(block), block=block)
    assert error.kind == "race"
    assert line_of(wrong, "read") in (error.line, error.other.line if error.other else 0)


# Races between blocks


@kernel(sanitize="race")
def stencil(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None and i.get() + 1 < len(x):
        out.value = x[i.get() + 1]


def test_a_neighbour_read_in_place_is_a_race_between_blocks() -> None:
    box = h2d(numbers(128)).sync()
    error = found(stencil, box, box, grid=2, block=1)
    assert error.kind == "race"
    assert error.other is not None
    assert {error.block, error.other.block} == {(0, 0, 0), (1, 0, 0)}
    assert (error.what, error.other.what) == ("y", "x")


def test_the_same_stencil_out_of_place_is_clean() -> None:
    stencil[2, 64](h2d(numbers(128)), zeros(128)).sync()


@kernel(sanitize="race")
def everybody_first(y: DisjointSlice[f32]) -> None:
    y.unchecked_mut[thread.thread_idx.x] = f32(1)  # write


def test_two_blocks_that_write_one_element_race() -> None:
    error = found(everybody_first, zeros(4), grid=2, block=4)
    assert error.kind == "race"
    assert error.other is not None
    assert (error.access, error.other.access) == ("write", "write")
    assert (error.block, error.other.block) == ((1, 0, 0), (0, 0, 0))
    assert error.line == error.other.line == line_of(everybody_first, "write")
    assert error.offset == 0


@kernel(sanitize="race")
def counted_for_the_block_alone(y: AtomicSlice[i32]) -> None:
    y.fetch_add(0, 1, scope=atomic.BLOCK)


@kernel(sanitize="race")
def counted(y: AtomicSlice[i32]) -> None:
    y.fetch_add(0, 1)


def test_atomics_of_a_blocks_scope_race_with_other_blocks() -> None:
    error = found(counted_for_the_block_alone, zeros(1, np.int32), grid=2, block=32)
    assert error.kind == "race"
    assert error.access == "atomic"
    assert error.other is not None
    assert error.other.block != error.block


def test_atomics_do_not_race() -> None:
    counted_for_the_block_alone[1, 64](zeros(1, np.int32)).sync()
    assert d2h(counted[4, 64](zeros(1, np.int32)).last()).sync()[0] == 256


@kernel(sanitize="race")
def counted_and_read(y: AtomicSlice[i32], plain: Slice[i32], z: DisjointSlice[i32]) -> None:
    y.fetch_add(0, 1)
    out = z.get_mut(thread.index_1d())
    if out is not None:
        out.value = plain[0]  # read


def test_a_plain_read_races_with_atomics() -> None:
    box = zeros(1, np.int32).sync()
    error = found(counted_and_read, box, box, zeros(2, np.int32), grid=2, block=1)
    assert error.kind == "race"
    assert {error.access, error.other.access if error.other else ""} == {"atomic", "read"}


def message(ordering_of_flag: Any, ordering_of_look: Any) -> Kernel:
    @kernel(sanitize="race")
    def pass_on(data: DisjointSlice[i32], seen: Slice[i32], flag: AtomicSlice[i32], result: DisjointSlice[i32]) -> None:
        i = thread.index_1d()
        if i.get() == 0:
            cell = data.get_mut(i)
            if cell is not None:
                cell.value = 42
            flag.store(0, 1, ordering=ordering_of_flag)
        elif flag.load(0, ordering=ordering_of_look) == 1:
            out = result.get_mut(i)
            if out is not None:
                out.value = seen[0]  # read

    return pass_on


def test_a_message_without_release_and_acquire_is_a_race() -> None:
    box = zeros(2, np.int32).sync()
    relaxed = message(atomic.RELAXED, atomic.RELAXED)
    error = found(relaxed, box, box, zeros(1, np.int32), zeros(2, np.int32), grid=2, block=1)
    assert error.kind == "race"
    assert error.line == line_of(relaxed, "read")


def test_a_message_released_and_acquired_is_clean() -> None:
    box = zeros(2, np.int32).sync()
    kernel = message(atomic.RELEASE, atomic.ACQUIRE)
    *_, result = kernel[2, 1](box, box, zeros(1, np.int32), zeros(2, np.int32)).sync()
    np.testing.assert_array_equal(d2h(result).sync(), [0, 42])


@kernel(sanitize=BOTH)
def last_block_sums(
    x: Slice[f32], partial: DisjointSlice[f32], partials: Slice[f32], done: AtomicSlice[u32], y: AtomicSlice[f32]
) -> None:
    """Each block sums, and the last one to finish sums the blocks': CUDA's threadFenceReduction."""
    last = SharedArray(1, u32)
    i = thread.index_1d()
    total = block_sum(x[i.get()], f32)
    cell = partial.get_mut(i)
    if cell is not None:
        cell.value = total
    thread.sync_threads()
    if thread.thread_idx.x == 0:
        atomic.fence()
        last[0] = done.fetch_add(0, 1)
        atomic.fence()
    thread.sync_threads()
    if last[0] == thread.grid_dim.x - 1 and thread.thread_idx.x == 0:
        whole = f32(0)
        for block in range(thread.grid_dim.x):
            whole += partials[block * thread.block_dim.x]
        y.store(0, whole)


def test_what_a_block_leaves_for_the_last_one_is_ordered_by_fences() -> None:
    box = zeros(256).sync()
    *_, y = last_block_sums[4, 64](h2d(numbers(256)), box, box, zeros(1, np.uint32), zeros(1)).sync()
    assert d2h(y).sync()[0] == 255 * 128


# Memory


@kernel(unchecked=True, sanitize="memory")
def one_past_the_end(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None:
        out.value = x[i.get() + 1]  # read


def test_an_off_by_one_into_the_next_buffer_is_found_though_memory_is_there() -> None:
    whole = h2d(numbers(64)).sync()
    error = found(one_past_the_end, whole, zeros(64))
    assert (error.kind, error.what, error.offset) == ("out-of-bounds", "x", 256)
    assert (error.thread, error.line) == ((63, 0, 0), line_of(one_past_the_end, "read"))
    assert "element 64" in str(error)


@device
def before(x: Slice[f32], i: i64) -> f32:
    return x.unchecked[i - 1]  # read


@kernel(sanitize="memory")
def one_before_the_start(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None:
        out.value = before(x, i.get())


def test_a_read_before_the_start_in_a_device_function_names_its_line_there() -> None:
    error = found(one_before_the_start, h2d(numbers(64)), zeros(64))
    lines, first = inspect.getsourcelines(before.function)
    assert (error.kind, error.offset, error.thread) == ("out-of-bounds", -4, (0, 0, 0))
    assert error.line == first + len(lines) - 1


@kernel(unchecked=True, sanitize="memory")
def write_past_the_end(y: DisjointSlice[f32]) -> None:
    out = y.get_mut(thread.index_1d())
    out.value = f32(1)  # write


def test_a_write_past_the_end_is_found_and_not_made() -> None:
    neighbours = h2d(np.zeros(64, np.float32)).sync()
    error = found(write_past_the_end, zeros(60))
    assert (error.kind, error.access, error.offset) == ("out-of-bounds", "write", 240)
    assert not d2h(neighbours).sync().any()


@kernel(unchecked=True, sanitize="memory")
def past_a_shared_array(y: DisjointSlice[f32]) -> None:
    first = SharedArray(32, f32)
    second = SharedArray(32, f32)
    i = thread.index_1d()
    first[i.get()] = f32(1)
    second[i.get()] = f32(2)
    thread.sync_threads()
    out = y.get_mut(i)
    if out is not None:
        out.value = first[i.get() + 1]  # read


def test_an_index_past_a_shared_array_is_found_though_another_follows() -> None:
    error = found(past_a_shared_array, zeros(32), block=32)
    assert (error.kind, error.what, error.thread) == ("out-of-bounds", "a SharedArray", (31, 0, 0))


@kernel(sanitize="memory")
def half_filled_tile(y: DisjointSlice[f32]) -> None:
    tile = SharedArray(64, f32)
    i = thread.index_1d()
    if i.get() < 32:
        tile[i.get()] = f32(1)
    thread.sync_threads()
    out = y.get_mut(i)
    if out is not None:
        out.value = tile[i.get()]  # read


def test_a_read_of_uninitialised_shared_memory_is_found() -> None:
    error = found(half_filled_tile, zeros(64))
    assert (error.kind, error.thread, error.line) == ("uninitialized", (32, 0, 0), line_of(half_filled_tile, "read"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
def test_an_atomic_of_uninitialised_shared_memory_is_found_whatever_its_type(dtype: Any) -> None:
    @kernel(sanitize=BOTH)
    def counted(out: DisjointSlice[f32]) -> None:
        sums = SharedArray(4, dtype)
        sums.fetch_add(thread.index_1d().get() % 4, dtype(1.0))

    error = found(counted, zeros(4), block=4)
    assert (error.kind, error.what, error.access) == ("uninitialized", "a SharedArray", "atomic")


@kernel(sanitize=BOTH)
def half_filled_large_tile(y: DisjointSlice[f32]) -> None:
    before = SharedArray((100, 200), f32, alignment=1024)
    tile = SharedArray((64, 200), f32)
    i = thread.index_1d()
    before[99, i.get()] = f32(1)
    if i.get() < 32:
        tile[63, i.get()] = f32(1)
    thread.sync_threads()
    out = y.get_mut(i)
    if out is not None:
        out.value = tile[63, i.get()] + before[99, i.get()]  # read


def test_arrays_beyond_48_kib_are_watched_too() -> None:
    error = found(half_filled_large_tile, zeros(64))
    line = line_of(half_filled_large_tile, "read")
    assert (error.kind, error.what, error.thread, error.line) == ("uninitialized", "a SharedArray", (32, 0, 0), line)


@kernel(sanitize=BOTH)
def large_without_a_barrier(y: DisjointSlice[f32]) -> None:
    before = SharedArray((100, 200), f32)
    tile = SharedArray((64, 200), f32)
    i = thread.index_1d()
    before[0, i.get()] = f32(1)
    tile[63, i.get()] = f32(1)
    out = y.get_mut(i)
    if out is not None:
        out.value = tile[63, 63 - i.get()]


def test_races_in_arrays_beyond_48_kib_are_found() -> None:
    error = found(large_without_a_barrier, zeros(64))
    assert (error.kind, error.what) == ("race", "a SharedArray")


@kernel(sanitize="memory")
def filled_by_the_first_block(y: DisjointSlice[f32]) -> None:
    tile = SharedArray(8, f32)
    i = thread.index_1d()
    if thread.block_idx.x == 0:
        tile[thread.thread_idx.x] = f32(1)
    out = y.get_mut(i)
    if out is not None:
        out.value = tile[thread.thread_idx.x]


def test_a_block_finds_nothing_that_the_block_before_left_in_shared_memory() -> None:
    error = found(filled_by_the_first_block, zeros(16), grid=2, block=8)
    assert (error.kind, error.block) == ("uninitialized", (1, 0, 0))


@kernel(sanitize="memory")
def dynamic_tile(y: DisjointSlice[f32]) -> None:
    tile = DynamicSharedArray(f32)
    i = thread.index_1d()
    if i.get() > 0:
        tile[i.get()] = f32(1)
    out = y.get_mut(i)
    if out is not None:
        out.value = tile[i.get()]


def test_dynamic_shared_memory_is_watched_too() -> None:
    error = found(dynamic_tile, zeros(8), block=8, shared=32)
    assert (error.kind, error.what, error.thread) == ("uninitialized", "a DynamicSharedArray", (0, 0, 0))


def local_never_written(length: int) -> Kernel:
    @kernel(sanitize="memory")
    def unwritten(y: DisjointSlice[f32], k: i32) -> None:
        own = LocalArray(length, f32)
        own[0] = f32(1)
        out = y.get_mut(thread.index_1d())
        if out is not None:
            out.value = own[k]  # read

    return unwritten


@pytest.mark.slow
@pytest.mark.parametrize("length", [4, 3000])
def test_a_read_of_an_unwritten_local_array_is_found_whatever_its_length(length: int) -> None:
    unwritten = local_never_written(length)
    error = found(unwritten, zeros(8), length - 1, block=8)
    assert (error.kind, error.what, error.line) == ("uninitialized", "a LocalArray", line_of(unwritten, "read"))
    unwritten[1, 8](zeros(8), 0).sync()


@kernel(sanitize="memory")
def copied(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None:
        out.value = x[i.get()]


def unwritten(n: int) -> Any:
    return with_context(lambda context: oxide.value(new_box(context, (n,), np.dtype(np.float32))))


def test_device_memory_that_nothing_wrote_is_found_and_what_copies_wrote_is_not() -> None:
    error = found(copied, unwritten(64), zeros(64))
    assert (error.kind, error.what, error.offset) == ("uninitialized", "x", 0)
    copied[1, 64](h2d(numbers(64)), unwritten(64)).sync()
    written = copied[1, 64](h2d(numbers(64)), unwritten(64)).last()
    copied[1, 64](written, zeros(64)).sync()


@pytest.mark.parametrize("give", [lambda box: box.host_view(), np.from_dlpack], ids=["host_view", "DLPack"])
def test_memory_that_the_host_was_given_to_write_counts_as_written(give: Any) -> None:
    box = unwritten(64).sync()
    give(box)[:] = 1
    _, y = copied[1, 64](box, zeros(64)).sync()
    assert d2h(y).sync().sum() == 64
    part = unwritten(64).sync()
    give(part[:32])
    error = found(copied, part, zeros(64))
    assert (error.kind, error.what, error.offset) == ("uninitialized", "x", 128)


@kernel(unchecked=True, sanitize="memory")
def wide(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.get_mut(i)
    if out is not None:
        first, second = x.load2(2 * i.get() + 1)  # read
        out.value = first + second


def test_a_misaligned_vector_load_is_found() -> None:
    error = found(wide, h2d(numbers(64)), zeros(8), block=8)
    assert (error.kind, error.what, error.offset, error.line) == ("misaligned", "x", 4, line_of(wide, "read"))


# Kernels that are right


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(7)


def test_the_kernel_library_is_clean(generator: np.random.Generator) -> None:
    m, n, k = 17, 33, 9
    a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    gemm = copy_of(sgemm_naive, BOTH)
    *_, c = gemm[(3, 2), (16, 16)](m, n, k, 1.0, h2d(a), h2d(b), 0.0, zeros((m, n))).sync()
    np.testing.assert_allclose(d2h(c).sync(), a @ b, rtol=1e-5, atol=1e-5)
    vector = generator.standard_normal(k).astype(np.float32)
    *_, y = copy_of(matvec_naive, BOTH)(m, k, h2d(a), h2d(vector), zeros(m)).sync()
    np.testing.assert_allclose(d2h(y).sync(), a @ vector, rtol=1e-5, atol=1e-5)
    box = h2d(a.reshape(-1)).sync()
    copy_of(relu, BOTH)(box, box).sync()


@kernel(sanitize=BOTH)
def scans(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    total = block_inclusive_sum(x[i.get()], f32) + block_sum(x[i.get()], f32)
    out = y.get_mut(i)
    if out is not None:
        out.value = total


@pytest.mark.slow
@pytest.mark.parametrize("block", [1, 31, 33, 100, 256])
def test_block_scans_and_sums_are_clean(block: int) -> None:
    x = np.ones(3 * block, np.float32)
    *_, y = scans[3, block](h2d(x), zeros(3 * block)).sync()
    np.testing.assert_array_equal(d2h(y).sync(), np.tile(np.arange(1, block + 1) + block, 3))


# How it is asked for


def test_it_is_asked_for_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_SANITIZE", "race")
    error = found(copy_of(without_a_barrier, ()), h2d(numbers(64)), zeros(64))
    assert error.kind == "race"


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"copied.*memory and race.*'leaks' is neither"):
        copy_of(copied, ("memory", "leaks"))


def test_only_what_was_asked_for_is_looked_for() -> None:
    error = found(copy_of(without_a_barrier, "memory"), h2d(numbers(64)), zeros(64))
    assert error.kind == "uninitialized"


def test_machine_code_for_a_gpu_says_that_it_is_not_sanitized() -> None:
    with pytest.warns(RuntimeWarning, match=r"copied is to be sanitized.*compute-sanitizer --tool memcheck"):
        ptx = copy_of(copied).ptx()
    assert "sanitize" not in ptx


def test_a_kernel_that_is_not_sanitized_has_nothing_of_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = copy_of(matvec_naive, ())
        assert plain.specialize().code(CpuDriver().device_info(0).target).sanitized is None
        assert "oxide.place" not in plain.llvm_ir()


@kernel(sanitize=BOTH)
def met_by_the_grid(x: Slice[f32], y: DisjointSlice[f32], written: Slice[f32], z: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    own = SharedArray(4, f32)
    own[thread.thread_idx.x] = f32(thread.block_idx.x)
    out, after = y.get_mut(i), z.get_mut(i)
    if out is not None:
        out.value = x[i.get()]
    thread.sync_grid()
    if after is not None:
        after.value = written[len(x) - 1 - i.get()] + own[3 - thread.thread_idx.x]


@kernel(sanitize=BOTH)
def met_by_the_block(x: Slice[f32], y: DisjointSlice[f32], written: Slice[f32], z: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out, after = y.get_mut(i), z.get_mut(i)
    thread.sync_grid()
    if out is not None:
        out.value = x[i.get()]  # write
    thread.sync_threads()
    if after is not None:
        after.value = written[len(x) - 1 - i.get()]  # read


def test_the_grids_barrier_orders_blocks_and_keeps_what_each_has_in_shared_memory() -> None:
    x, between = numbers(8), zeros(8).sync()
    *_, z = met_by_the_grid[2, 4](h2d(x), between, between, zeros(8)).sync()
    np.testing.assert_array_equal(d2h(z).sync(), x[::-1] + np.repeat([0, 1], 4))


def test_blocks_race_behind_the_grids_barrier_as_before_it() -> None:
    between = zeros(8).sync()
    error = found(met_by_the_block, h2d(numbers(8)), between, between, zeros(8), grid=2, block=4)
    assert (error.kind, error.block != error.other.block if error.other else False) == ("race", True)
    assert error.other is not None
    assert {error.line, error.other.line} == {line_of(met_by_the_block, "write"), line_of(met_by_the_block, "read")}


def test_more_blocks_than_can_meet_are_refused_at_the_launch() -> None:
    between = zeros(8).sync()
    with pytest.raises(oxide.LaunchError, match=r"needs all blocks on the device at once"):
        met_by_the_grid[2**14, 4](h2d(numbers(8)), between, between, zeros(8)).sync()


# A thread whose value is nobody's


@kernel(sanitize=BOTH)
def until_a_one(x: Slice[f32], y: DisjointSlice[i64]) -> None:
    i = thread.index_1d()
    k = i.get()
    while x[k] != f32(1):  # read
        k += 1
    out = y.get_mut(i)
    if out is not None:
        out.value = k


until_a_one_unchecked = kernel(unchecked=True, sanitize=BOTH)(until_a_one.function)


def test_a_loop_past_the_end_of_its_slice_ends() -> None:
    with pytest.raises(oxide.BoundsError, match=r"x\[3\] is outside x") as caught:
        until_a_one[1, 1](h2d(np.zeros(3, np.float32)), zeros(1, np.int64)).sync()
    assert caught.value.line == line_of(until_a_one, "read")
    error = found(until_a_one_unchecked, h2d(np.zeros(3, np.float32)), zeros(1, np.int64), block=1)
    assert (error.kind, error.offset) == ("out-of-bounds", 12)


def test_a_loop_that_ends_in_time_gives_its_result() -> None:
    x = np.array([0, 0, 1, 0, 1], np.float32)
    for search in (until_a_one, until_a_one_unchecked):
        *_, y = search[1, 5](h2d(x), zeros(5, np.int64)).sync()
        np.testing.assert_array_equal(d2h(y).sync(), [2, 2, 2, 4, 4])


@kernel(sanitize=BOTH)
def as_often_as_it_says(written: i64, more: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    bound = LocalArray(2, i64)
    bound[written] = i64(3)
    total = f32(0)
    for k in range(bound[0] + more):  # read
        total += x[k % len(x)]
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = total


def test_a_loop_whose_bound_was_never_written_ends() -> None:
    error = found(as_often_as_it_says, 1, 1 << 62, h2d(numbers(3)), zeros(4), block=4)
    assert (error.kind, error.line) == ("uninitialized", line_of(as_often_as_it_says, "read"))
    assert d2h(as_often_as_it_says[1, 4](0, 2, h2d(numbers(3)), zeros(4)).last()).sync().tolist() == [4] * 4


@kernel(sanitize=BOTH)
def leaving_would_part_them(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    value = x[i.get()]
    thread.sync_threads()
    out = y.get_mut(i)
    if out is not None:
        out.value = value + f32(1)


def test_an_unchecked_kernel_has_no_asserts_here_either() -> None:
    unchecked = kernel(unchecked=True, sanitize=BOTH)(square_roots.function)
    *_, y = unchecked[1, 2](h2d(np.array([4, -1], np.float32)), zeros(2)).sync()
    np.testing.assert_array_equal(d2h(y).sync(), [8, -2])  # 0, had its thread left


def test_where_threads_wait_for_one_another_they_stay() -> None:
    y = zeros(4).sync()
    with pytest.raises(oxide.BoundsError):
        leaving_would_part_them[1, 4](h2d(numbers(3)), y).sync()
    assert d2h(y).sync().tolist() == [1, 2, 3, 1]


def test_a_graph_is_sanitized_at_each_launch() -> None:
    graph = half_filled_tile[1, 64](zeros(64)).graph()
    for _ in range(2):
        with pytest.raises(SanitizerError, match="uninitialized"):
            graph.launch().sync()


@kernel(block=64, unchecked=True, sanitize="memory")
def at_a_wrapped_index(w: u32, h: u32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[w * h]  # wraps


def test_an_index_that_wrapped_in_an_unchecked_kernel_is_found() -> None:
    error = found(at_a_wrapped_index, 65536, 65536, h2d(numbers(64)), zeros(1))
    assert (error.kind, error.what, error.offset) == ("out-of-bounds", "x", 4 * 2**32)
    assert error.line == line_of(at_a_wrapped_index, "wraps")


def test_every_finding_of_a_launch_is_told() -> None:
    error = found(without_a_barrier, h2d(numbers(64)), zeros(64))
    notes = "\n".join(error.__notes__)
    assert "uninitialized" in notes


# Helpers


def copy_of(found: Kernel, sanitize: Any = None) -> Kernel:
    """The same kernel, not yet compiled."""
    declared = found.description
    return kernel(
        block=declared.default_block,
        unchecked=declared.unchecked,
        sanitize=declared.sanitize if sanitize is None else sanitize,
    )(found.function)


def test_a_kernel_that_takes_a_function_is_clean() -> None:
    @kernel(block=32, sanitize=("memory", "race"))
    def apply(f: Callable[[f32], f32], x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = f(x[index.get()])

    x = np.arange(33, dtype=np.float32)
    _, _, y = apply(lambda value: value + value, h2d(x), zeros(33)).sync()
    np.testing.assert_array_equal(d2h(y).sync(), 2 * x)
