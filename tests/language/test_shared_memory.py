"""Shared, dynamic and local arrays, and barriers: the same kernels on either device, against NumPy."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

from oxide import (
    BarrierError,
    BoundsError,
    CompileError,
    DisjointSlice,
    DynamicSharedArray,
    LaunchConfig,
    LaunchError,
    LocalArray,
    SharedArray,
    Slice,
    d2h,
    device,
    f32,
    f64,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u8,
    u32,
    zeros,
    zip,
)
from oxide.compiler.ptx.ptx import target_of

RANDOM = np.random.default_rng(7)
WIDTH = 16
PADDED = 17


@kernel
def block_sums(x: Slice[f32], sums: DisjointSlice[f32]) -> None:
    """Each thread gets the sum of its block's elements, by halving; right for a block of any size."""
    partial = SharedArray(1024, f32)
    index = thread.index_1d()
    t = thread.thread_idx.x
    n = thread.block_dim.x
    partial[t] = x[index.get()]
    thread.sync_threads()
    while n > 1:
        half = (n + 1) // 2
        if t < n - half:
            partial[t] = partial[t] + partial[t + half]
        thread.sync_threads()
        n = half
    element = sums.get_mut(index)
    if element is not None:
        element.value = partial[0]


def launch(config: LaunchConfig, kernel: Any, *args: Any) -> Any:
    """The kernel's last argument after the launch."""
    return kernel[config](*args).last().and_then(d2h).sync()


@pytest.mark.parametrize("threads", [*range(1, 70), 127, 128, 129, 255, 256, 511, 513, 1000, 1023, 1024])
def test_a_block_of_any_size_sums_through_shared_memory(threads: int) -> None:
    x = RANDOM.random(3 * threads, np.float32)
    sums = launch(LaunchConfig(3, threads), block_sums, h2d(x), zeros(3 * threads))
    expected = x.astype(np.float64).reshape(3, threads).sum(1)
    np.testing.assert_allclose(sums.reshape(3, threads), np.repeat(expected[:, None], threads, 1), rtol=1e-5)


def test_blocks_of_three_axes_meet_at_their_barriers() -> None:
    @kernel
    def turned(x: Slice[i32], y: DisjointSlice[i32]) -> None:
        values = SharedArray((4, 3, 5), i32)
        a, b, c = thread.thread_idx.z, thread.thread_idx.y, thread.thread_idx.x
        values[a, b, c] = x[(a * 3 + b) * 5 + c]
        thread.sync_threads()
        if a == 0:
            index = thread.index_2d(5)
            if index is not None:
                element = y.get_mut(index)
                if element is not None:
                    element.value = values[3, 2 - b, 4 - c]

    x = np.arange(60, dtype=np.int32)
    with pytest.raises(LaunchError, match="z of 1"):
        turned[1, (5, 3, 4)](h2d(x), zeros(15, np.int32)).sync()

    @kernel
    def total(x: Slice[i32], y: DisjointSlice[i32]) -> None:
        values = SharedArray((4, 3, 5), i32)
        a, b, c = thread.thread_idx.z, thread.thread_idx.y, thread.thread_idx.x
        values[a, b, c] = a * 100 + b * 10 + c
        count = thread.sync_threads_count(values[a, b, c] >= 300)
        x_here = x[(a * 3 + b) * 5 + c]
        values[a, b, c] = x_here * count
        thread.sync_threads()

    # No thread index is unique here, so nothing is written: that the launch ends is what is shown.
    total[2, (5, 3, 4)](h2d(x), zeros(15, np.int32)).sync()


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (33, 70), (1, 5), (100, 1)])
def test_a_tile_in_shared_memory_transposes(rows: int, columns: int) -> None:
    x = RANDOM.random((rows, columns), np.float32)
    grid = (-(-rows // WIDTH), -(-columns // WIDTH))
    turned = launch(LaunchConfig(grid, (WIDTH, WIDTH)), transpose, rows, columns, h2d(x), zeros((columns, rows)))
    np.testing.assert_array_equal(turned, x.T)


@kernel
def transpose(rows: u32, columns: u32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray((WIDTH, PADDED), f32)
    tx, ty = thread.thread_idx.x, thread.thread_idx.y
    row = thread.block_idx.x * WIDTH + ty
    column = thread.block_idx.y * WIDTH + tx
    if row < rows and column < columns:
        tile[ty, tx] = x[row * columns + column]
    thread.sync_threads()
    index = thread.index_2d(rows)
    if index is not None:
        element = y.get_mut(index)
        if element is not None:
            element.value = tile[tx, ty]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["u8", "i32", "i64", "f64"])
def test_dynamic_shared_memory_is_as_long_as_the_launch_says(dtype: str) -> None:
    import oxide

    scalar = getattr(oxide, dtype)

    @kernel
    def reversed_block(x: Slice[scalar], lengths: DisjointSlice[i64], y: DisjointSlice[scalar]) -> None:  # type: ignore[valid-type]
        values = DynamicSharedArray(scalar)
        index = thread.index_1d()
        t = thread.thread_idx.x
        values[t] = x[index.get()]
        thread.sync_threads()
        length = lengths.get_mut(index)
        if length is not None:
            length.value = len(values)
        element = y.get_mut(index)
        if element is not None:
            element.value = values[thread.block_dim.x - 1 - t]

    x = RANDOM.integers(0, 200, 200).astype(scalar.dtype)
    config = LaunchConfig(2, 100, shared_mem_bytes=100 * scalar.dtype.itemsize)
    lengths = zeros(200, np.int64)
    _, got, y = reversed_block[config](h2d(x), lengths, zeros(200, scalar.dtype)).sync()
    np.testing.assert_array_equal(d2h(y).sync(), x.reshape(2, 100)[:, ::-1].reshape(-1))
    assert set(d2h(got).sync()) == {100}


def test_static_and_dynamic_shared_memory_do_not_overlap() -> None:
    @kernel
    def both(y: DisjointSlice[f64]) -> None:
        fixed = SharedArray(3, u8)
        more = SharedArray(64, f64)
        sized = DynamicSharedArray(f64)
        t = thread.thread_idx.x
        if t < 3:
            fixed[t] = 255
        more[t] = f64(t)
        sized[t] = f64(1000 + t)
        thread.sync_threads()
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = more[t] + sized[63 - t] + f64(fixed[t % 3])

    y = launch(LaunchConfig(1, 64, shared_mem_bytes=512), both, zeros(64, np.float64))
    np.testing.assert_array_equal(y, np.full(64, 1063.0 + 255.0))


def test_more_than_48_kib_of_dynamic_shared_memory_is_granted() -> None:
    @kernel
    def far(y: DisjointSlice[i32]) -> None:
        values = DynamicSharedArray(i32)
        values[len(values) - 1] = 5
        thread.sync_threads()
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = values[len(values) - 1]

    assert launch(LaunchConfig(1, 1, shared_mem_bytes=96 * 1024), far, zeros(1, np.int32))[0] == 5


@kernel
def large_tiles(x: Slice[i32], y: DisjointSlice[i32]) -> None:
    """Reverses 128 numbers through 68 KiB of arrays, each of which a mistaken offset would overwrite."""
    odd = SharedArray(3, u8)
    rows = SharedArray((128, 64), i32, alignment=1024)
    last = SharedArray((2, 64, 64), i32, alignment=256)
    wide = SharedArray(7, f64)
    t = thread.thread_idx.x
    for column in range(64):
        rows[t, column] = x[t] + column
        last[t // 64, t % 64, column] = x[t] - column
    if t < 3:
        odd[t] = 200
    if t < 7:
        wide[t] = 0.5
    thread.sync_threads()
    other, total = 127 - t, 0
    for column in range(64):
        total += rows[other, column] + last[other // 64, other % 64, column]
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = i32(total // 128 + i64(odd[t % 3]) - 200 + i64(2.0 * wide[t % 7]) - 1)


def test_static_arrays_beyond_48_kib_are_separate_and_whole() -> None:
    x = RANDOM.integers(-1000, 1000, 128).astype(np.int32)
    np.testing.assert_array_equal(
        launch(LaunchConfig(3, 128), large_tiles, h2d(x), zeros(384, np.int32))[:128], x[::-1]
    )


def test_large_arrays_are_in_a_graph_as_in_a_launch() -> None:
    x = RANDOM.integers(-1000, 1000, 128).astype(np.int32)
    source, output = h2d(x).sync(), zeros(128, np.int32).sync()
    graph = large_tiles[1, 128](source, output).graph()
    graph.launch().sync()
    graph.launch().sync()
    np.testing.assert_array_equal(d2h(output).sync(), x[::-1])


def test_a_dynamic_array_begins_after_large_static_ones_with_the_length_of_the_launch() -> None:
    @kernel
    def both(y: DisjointSlice[i64]) -> None:
        first = SharedArray((100, 130), f32)
        second = SharedArray(5, u8)
        sized = DynamicSharedArray(i64)
        t = thread.thread_idx.x
        for row in range(t, 100, 64):
            for column in range(130):
                first[row, column] = -1.0
        if t < 5:
            second[t] = 255
        thread.sync_threads()
        sized[t] = 100 + t
        sized[len(sized) - 1 - t] = 1000 + t
        thread.sync_threads()
        wrong = 0
        for row in range(100):
            for column in range(130):
                if first[row, column] != -1.0:
                    wrong += 1
        for i in range(5):
            if second[i] != 255:
                wrong += 1
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = sized[t] + sized[len(sized) - 1 - t] + 1_000_000 * len(sized) + 10_000_000_000 * wrong

    t = np.arange(64)
    y = launch(LaunchConfig(1, 64, shared_mem_bytes=8 * 160 + 4), both, zeros(64, np.int64))
    np.testing.assert_array_equal(y, 1100 + 2 * t + 160_000_000)


def test_large_arrays_of_all_blocks_live_across_the_barrier_of_the_grid() -> None:
    @kernel
    def passed_on(y: DisjointSlice[i32]) -> None:
        kept = SharedArray((64, 256), i32, alignment=512)
        t = thread.thread_idx.x
        for column in range(256):
            kept[t, column] = thread.block_idx.x * 1000 + t
        thread.sync_grid()
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = kept[63 - t, t]

    y = launch(LaunchConfig(4, 64), passed_on, zeros(256, np.int32))
    np.testing.assert_array_equal(y.reshape(4, 64), np.arange(4)[:, None] * 1000 + 63 - np.arange(64))


def test_an_index_outside_a_large_array_is_a_fault_of_that_array() -> None:
    @kernel
    def outside(n: i64, y: DisjointSlice[f32]) -> None:
        first = SharedArray((64, 200), f32)
        second = SharedArray((32, 4), f32)
        first[0, 0] = 1.0
        second[n, 2] = 2.0
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = first[0, 0]

    with pytest.raises(BoundsError) as caught:
        outside[1, 1](32, zeros(1)).sync()
    assert (caught.value.parameter, caught.value.indices) == ("SharedArray((32, 4), f32)", (32, 2))


def test_the_gpus_code_has_large_arrays_at_offsets_of_one_aligned_region() -> None:
    ptx = large_tiles.ptx()
    (declared,) = re.findall(r"\.shared .*", ptx)
    assert declared == ".shared .align 1024 .b8 oxide_dynamic_shared[];"
    assert ".extern .shared" in ptx
    assert "ld.shared" in ptx
    assert not re.search(r"\b(ld|st)\.(b|u|s|f)\d", ptx), "an access is generic"
    code = large_tiles.specialize().code(target_of("large_tiles", (9, 0)))
    assert code.array_bytes == 1024 + 128 * 64 * 4 * 2 + 64
    assert block_sums.specialize().code(target_of("block_sums", (9, 0))).array_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("alignment", [16, 128, 1024])
def test_an_array_has_the_alignment_that_it_asks_for(alignment: int) -> None:
    @kernel
    def aligned(y: DisjointSlice[f32]) -> None:
        before = SharedArray(1, u8)
        values = SharedArray(32, f32, alignment=alignment)
        t = thread.thread_idx.x
        before[0] = 1
        values[t] = f32(t)
        thread.sync_threads()
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = values[31 - t] + f32(before[0])

    np.testing.assert_array_equal(launch(LaunchConfig(1, 32), aligned, zeros(32)), 32 - np.arange(32))
    assert re.search(rf"\.shared \.align {alignment} \.b8 \S+\[128\]", aligned.ptx())


@pytest.mark.parametrize("size", [-1, 2**20, True, 1.5])
def test_a_size_that_no_block_has_is_refused(size: Any) -> None:
    with pytest.raises(LaunchError, match="shared_mem_bytes"):
        LaunchConfig(1, 1, shared_mem_bytes=size)


def test_shared_memory_without_a_barrier_keeps_the_plain_loop() -> None:
    @kernel
    def scratch(y: DisjointSlice[f32]) -> None:
        values = SharedArray(256, f32)
        index = thread.index_1d()
        values[thread.thread_idx.x] = f32(index.get())
        element = y.get_mut(index)
        if element is not None:
            element.value = values[thread.thread_idx.x] + 1

    np.testing.assert_array_equal(launch(LaunchConfig(2, 256), scratch, zeros(512)), np.arange(1, 513))
    assert not scratch.specialize().portable.suspends


def test_a_local_array_belongs_to_its_thread() -> None:
    @kernel
    def digits(n: u32, y: DisjointSlice[i64]) -> None:
        counts = LocalArray(10, i64)
        for digit in range(10):
            counts[digit] = 0
        index = thread.index_1d()
        number = index.get() * n
        thread.sync_threads()
        while number > 0:
            counts[number % 10] += 1
            number = number // 10
        thread.sync_threads()
        best = i64(0)
        for digit in range(10):
            best = max(best, counts[digit])
        element = y.get_mut(index)
        if element is not None:
            element.value = best

    expected = [max(str(12345 * i).count(d) for d in "0123456789") if i else 0 for i in range(128)]
    np.testing.assert_array_equal(launch(LaunchConfig(2, 64), digits, 12345, zeros(128, np.int64)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("scalar", [u8, f32, f64], ids=str)
@pytest.mark.parametrize("count", [255, 256, 257, 2049])
def test_a_local_array_begins_with_zeros_however_large_it_is(count: int, scalar: Any) -> None:
    """A kernel should not read what it has not written; where it does, it finds nobody else's data."""

    @kernel
    def mark(n: u32, y: DisjointSlice[f64]) -> None:
        own = LocalArray(count, scalar)
        index = thread.index_1d()
        own[index.get() * 7 % n] = 1
        thread.sync_threads()
        total = f64(0)
        for i in range(count):
            total += own[i] * (i + 1.0)
        element = y.get_mut(index)
        if element is not None:
            element.value = total

    y = launch(LaunchConfig(2, 33), mark, count, zeros(66, f64))
    np.testing.assert_array_equal(y, np.arange(66) * 7 % count + 1)


def test_the_code_of_a_large_local_array_does_not_grow_with_it() -> None:
    def lines(count: int) -> int:
        @kernel
        def filled(y: DisjointSlice[f64]) -> None:
            own = LocalArray(count, f64)
            index = thread.index_1d()
            for i in range(count):
                own[i] = f64(i)
            element = y.get_mut(index)
            if element is not None:
                element.value = own[index.get()]

        return filled.llvm_ir().count("\n") + filled.ptx(cc=(9, 0)).count("\n")

    assert lines(65_536) < lines(1000) + 20


def test_a_device_function_takes_a_shared_array_and_holds_barriers() -> None:
    @device
    def broadcast(slots, value, source):  # type: ignore[no-untyped-def]
        if thread.thread_idx.x == source:
            slots[0] = value
        thread.sync_threads()
        result = slots[0]
        thread.sync_threads()
        return result

    @kernel
    def from_two(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        slots = SharedArray(1, f32)
        index = thread.index_1d()
        first = broadcast(slots, x[index.get()], 3)
        second = broadcast(slots, x[index.get()], 60)
        element = y.get_mut(index)
        if element is not None:
            element.value = first - 2 * second

    x = RANDOM.random(128, np.float32)
    blocks = x.reshape(2, 64)
    expected = np.repeat(blocks[:, 3] - 2 * blocks[:, 60], 64)
    np.testing.assert_allclose(launch(LaunchConfig(2, 64), from_two, h2d(x), zeros(128)), expected, rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 31, 32, 33, 100, 1024])
def test_the_counting_barriers_count_every_thread(threads: int) -> None:
    @kernel
    def count(limit: i64, counts: DisjointSlice[i32], alls: DisjointSlice[i32], anys: DisjointSlice[i32]) -> None:
        index = thread.index_1d()
        t = thread.thread_idx.x
        total = i32(0)
        for round in range(3):
            total += thread.sync_threads_count(t + round < limit)
        every = thread.sync_threads_and(t < limit)
        some = thread.sync_threads_or(t == limit)
        a, b, c = counts.get_mut(index), alls.get_mut(index), anys.get_mut(index)
        if a is not None and b is not None and c is not None:
            a.value = total
            b.value = every
            c.value = some

    for limit in (0, 1, threads - 1, threads, threads + 5):
        results = count[LaunchConfig(2, threads)](limit, *(zeros(2 * threads, np.int32) for _ in range(3))).sync()[1:]
        totals, alls, anys = (d2h(box).sync() for box in results)
        t = np.arange(threads)
        assert set(totals) == {sum(int((t + round < limit).sum()) for round in range(3))}
        assert set(alls) == {int((t < limit).all())}
        assert set(anys) == {int((t == limit).any())}


def test_threads_that_have_returned_are_not_waited_for() -> None:
    @kernel
    def early(n: i64, y: DisjointSlice[i32]) -> None:
        values = SharedArray(128, i32)
        t = thread.thread_idx.x
        if t >= n:
            return
        values[t] = i32(t)
        here = thread.sync_threads_count(True)
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = values[n - 1 - t] + here

    for n in (1, 32, 50, 127, 128):
        y = launch(LaunchConfig(1, 128), early, n, zeros(128, np.int32))
        np.testing.assert_array_equal(y[:n], np.arange(n)[::-1] + n)
        assert not y[n:].any()


@kernel
def out_of_bounds(at: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray((4, 32), f32)
    t = thread.thread_idx.x
    tile[0, t] = x[t]
    tile[1, t + at] = f32(7)
    thread.sync_threads()
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = tile[0, 31 - t]


def test_an_index_outside_is_a_fault_of_its_axis_and_the_others_still_meet() -> None:
    line = inspect.getsourcelines(out_of_bounds.function)[1] + 5
    x = np.arange(32, dtype=np.float32)
    y = zeros(32).sync()
    with pytest.raises(BoundsError) as caught:
        out_of_bounds[1, 32](3, h2d(x), y).sync()
    fault = caught.value
    assert (fault.index, fault.length, fault.file, fault.line) == (32, 32, __file__, line)
    assert fault.thread == (29, 0, 0) or fault.index > 32
    assert (fault.parameter, fault.axis) == ("SharedArray((4, 32), f32)", 1)
    assert fault.shape == (4, 32)
    assert fault.indices[1] == fault.index
    np.testing.assert_array_equal(d2h(y).sync(), x[::-1])


@kernel(block=32)
def shapes(y: DisjointSlice[i64]) -> None:
    element = y.get_mut(thread.index_1d())
    tile = SharedArray((4, 32, 2), f32)
    own = LocalArray((3, 5), f32)
    dynamic = DynamicSharedArray(f32)
    if element is not None:
        t = tile.shape
        element.value = t[0] * 1000 + t[1] * 10 + t[2] + own.shape[1] * 10000 + dynamic.shape[0] * 100000


def test_arrays_have_a_shape() -> None:
    config = LaunchConfig(grid=(1, 1), block=(32, 1), shared_mem_bytes=28)
    assert shapes[config](zeros(3, i64)).first().and_then(d2h).sync().tolist() == [754322] * 3


def test_a_negative_index_is_a_fault() -> None:
    with pytest.raises(BoundsError, match=r"index -5 of axis 1"):
        out_of_bounds[1, 1](-5, h2d(np.zeros(32, np.float32)), zeros(32)).sync()


@kernel
def divergent(y: DisjointSlice[f32]) -> None:
    if thread.thread_idx.x < 20:
        thread.sync_threads()
    else:
        thread.sync_threads()


def test_threads_at_two_barriers_are_a_fault_that_names_both(device: str) -> None:
    if device == "cuda":
        pytest.skip("a GPU does not tell")
    line = inspect.getsourcelines(divergent.function)[1]
    with pytest.raises(BarrierError, match="move it out of the branch") as caught:
        divergent[3, 64](zeros(1)).sync()
    assert caught.value.places == ((__file__, line + 3), (__file__, line + 5))
    assert caught.value.kernel == "divergent"
    # The device goes on.
    np.testing.assert_array_equal(launch(LaunchConfig(1, 1), block_sums, h2d(np.ones(1, np.float32)), zeros(1)), [1])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("a = SharedArray(n, f32)", "the shape of SharedArray is a constant"),
        ("a = SharedArray((2, 0), f32)", "every length is 1 or more"),
        ("a = SharedArray(4, n)", "dtype of SharedArray"),
        ("a = SharedArray(4)", "takes a shape and a dtype"),
        (
            "a = SharedArray(4, f32, 24)",
            "alignment of SharedArray is a constant power of two from 16 to 1024; it is 24",
        ),
        ("a = SharedArray(4, f32, alignment=2048)", "from 16 to 1024; it is 2048"),
        ("a = SharedArray(4, f32, alignment=n)", "alignment of SharedArray .* it is i64, and no constant"),
        ("a = LocalArray(4, f32, alignment=64)", "LocalArray takes a shape and a dtype, as in"),
        ("a = SharedArray((4, 4), f32); a[1] = f32(0)", "has 2 axes, and the index 1"),
        ("a = SharedArray(4, i32); a[0] = 1.5", "the element is i32 and the value is f64"),
        ("a = SharedArray(4, i32); a[1.0] = 1", "an index of SharedArray.* is an integer, not f64"),
        ("a = SharedArray((300, 200), f32); a[0, 0] = f32(n)", "240000 bytes together, .* more than 232448"),
        ("thread.sync_threads_count(1.5)", "takes a condition, not f64"),
        ("b = thread.sync_threads", "can only be called"),
    ],
)
def test_a_wrong_array_or_barrier_is_a_compile_error(body: str, message: str, tmp_path: Any) -> None:
    source = f"from oxide import *\n@kernel\ndef wrong(n: i64, y: DisjointSlice[f32]):\n    {body}\n"
    path = tmp_path / "wrong.py"
    path.write_text(source)
    names: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), names)
    with pytest.raises(CompileError, match=message) as caught:
        names["wrong"].specialize()
    assert "wrong.py:" in str(caught.value)


def test_a_barrier_is_one_instruction_and_shared_accesses_are_shared() -> None:
    ptx = block_sums.ptx()
    assert ptx.count("bar.sync") == 2
    assert "ld.shared.b32" in ptx
    assert "st.shared.b32" in ptx
    assert re.search(r"\.shared \.align 16 \.b8 \w*\$?\S*\[4096\]", ptx)
    assert ".local" not in ptx


def test_zip_of_two_blocks_of_one_launch_do_not_share() -> None:
    x = np.repeat(np.arange(40, dtype=np.float32), 8)
    sums = zip(h2d(x), zeros(320)).and_then(lambda boxes: block_sums[40, 8](*boxes)).last().and_then(d2h).sync()
    np.testing.assert_array_equal(sums, x * 8)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("extreme", [max, min])
def test_extremes_over_part_of_a_shared_array_compile_and_leave_nans_out(dtype: Any, extreme: Any) -> None:
    # LLVM's vectoriser ended the process for this loop: see object_code.py.
    @kernel
    def found(n: u32, x: Slice[dtype], y: DisjointSlice[dtype]) -> None:  # type: ignore[valid-type]
        index = thread.index_1d()
        values = SharedArray(32, dtype)
        values[thread.thread_idx.x] = x[index.get()]
        thread.sync_threads()
        most = values[0]
        for number in range(1, n):
            most = extreme(most, values[number])
        thread.sync_threads()
        element = y.get_mut(index)
        if element is not None:
            element.value = most

    x = np.random.default_rng(1).standard_normal(32).astype(dtype.dtype)
    x[5] = np.nan
    for n in (1, 2, 7, 32):
        y = np.zeros(32, dtype.dtype)
        y = found[1, 32](n, h2d(x), h2d(y)).last().to_host().sync()
        expected = np.nanmax(x[:n]) if extreme is max else np.nanmin(x[:n])
        np.testing.assert_array_equal(y, np.full(32, expected))
