"""``ldmatrix``, ``stmatrix``, ``load``, ``store`` and ``copy_async`` on either device, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import (
    BoundsError,
    CompileError,
    DisjointSlice2,
    KernelAssertionError,
    LaunchConfig,
    SharedArray,
    Slice,
    Slice2,
    Slice3,
    bf16,
    d2h,
    f8e4m3,
    f16,
    f32,
    f64,
    h2d,
    i8,
    i32,
    i64,
    kernel,
    tensor,
    thread,
    u8,
    unroll,
    warp,
    zeros,
)
from tests.compiler.assembler import assembled, needs_ptxas
from tests.language.tensor.products import NUMPY, host_type

RANDOM = np.random.default_rng(12)
WARP = LaunchConfig(1, 32)


def numbers(dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Different small numbers, which the type holds exactly."""
    if dtype is f8e4m3:
        return (
            (np.arange(np.prod(shape)) * 7 % 113).astype(np.uint8).view(dtype.dtype).reshape(shape).astype(np.float32)
        )
    return (np.arange(np.prod(shape)).reshape(shape) * 7 % 113).astype(NUMPY[str(host_type(dtype))])


def through_shared(
    kind: str, shape: tuple[int, int], dtype: Any, how: Any, *, transposed: bool, place: tuple[int, int] = (0, 0)
) -> Any:
    """Returns a kernel that fills a shared array, loads a fragment from it, and writes the fragment's elements."""
    declared, host = getattr(tensor, kind), host_type(dtype)
    (rows, columns), (first, second) = shape, place
    taken = (columns, rows) if transposed else (rows, columns)
    height, width = taken[0] + first, -(-(taken[1] + second) // 16) * 16 + 16

    @kernel
    def move(x: Slice2[host], y: DisjointSlice2[host]) -> None:  # type: ignore[valid-type]
        tile = SharedArray((height, width), dtype)
        for i in range(height):
            for j in range(warp.lane_id(), width, 32):
                tile[i, j] = dtype(0)
        thread.sync_threads()
        for i in range(x.shape[0]):
            for j in range(warp.lane_id(), x.shape[1], 32):
                tile[first + i, second + j] = dtype(x[i, j])
        thread.sync_threads()
        fragment = declared((rows, columns), dtype)
        how(fragment, tile, (first, second), transposed)
        for i in range(len(fragment)):
            y.scatter[fragment.row(i), fragment.column(i)] = host(fragment[i])

    return move


def check_load(kind: str, shape: tuple[int, int], dtype: Any, how: Any, **options: Any) -> Any:
    matrix = numbers(dtype, shape)
    made = through_shared(kind, shape, dtype, how, **options)
    given = h2d(np.ascontiguousarray(matrix.T if options["transposed"] else matrix))
    result = made[WARP](given, zeros(shape, matrix.dtype)).last().and_then(d2h).sync()
    assert np.array_equal(result, matrix)
    return made


BLOCKS = [
    *[("FragmentA", shape, dtype, False) for dtype in (f16, bf16) for shape in ((16, 16), (32, 48))],
    *[("FragmentA", shape, dtype, True) for dtype in (f16, bf16) for shape in ((16, 16), (48, 32))],
    *[("FragmentB", shape, dtype, False) for dtype in (f16, bf16) for shape in ((16, 8), (16, 32), (48, 24))],
    *[("FragmentB", shape, dtype, True) for dtype in (f16, bf16) for shape in ((16, 8), (16, 32), (48, 24))],
    *[("FragmentA", shape, f32, False) for shape in ((16, 8), (32, 24))],
    *[("FragmentB", shape, f32, True) for shape in ((8, 8), (8, 24), (24, 40))],
    *[("FragmentA", shape, dtype, False) for dtype in (i8, u8, f8e4m3) for shape in ((16, 32), (32, 64))],
    *[("FragmentB", shape, dtype, True) for dtype in (i8, u8) for shape in ((32, 8), (64, 24))],
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "shape", "dtype", "transposed"), BLOCKS, ids=str)
def test_ldmatrix_brings_each_element_to_its_lane(
    kind: str, shape: tuple[int, int], dtype: Any, transposed: bool
) -> None:
    check_load(kind, shape, dtype, tensor.ldmatrix, transposed=transposed)


def test_ldmatrix_begins_at_any_row_and_at_multiples_of_16_bytes() -> None:
    for place in ((1, 8), (5, 16)):
        check_load("FragmentA", (16, 16), f16, tensor.ldmatrix, transposed=False, place=place)
        check_load("FragmentB", (16, 24), f16, tensor.ldmatrix, transposed=True, place=place)


EVERY = [
    *[(kind, (16, 16), dtype) for kind in ("FragmentA", "FragmentB") for dtype in (f16, bf16, f32, f64)],
    *[(kind, (32, 32), dtype) for kind in ("FragmentA", "FragmentB") for dtype in (i8, u8)],
    *[("Accumulator", (16, 24), dtype) for dtype in (f16, bf16, f32, f64, i32)],
]


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("kind", "shape", "dtype"), EVERY, ids=str)
def test_load_takes_every_fragment(kind: str, shape: tuple[int, int], dtype: Any, transposed: bool) -> None:
    check_load(kind, shape, dtype, tensor.load, transposed=transposed, place=(3, 5))


def test_load_and_store_reach_slices_of_two_and_three_axes() -> None:
    @kernel
    def move(x: Slice2[f32], z: Slice3[f32], y: DisjointSlice2[f32]) -> None:
        a = tensor.Accumulator((16, 8), f32)
        b = tensor.Accumulator((16, 8), f32)
        tensor.load(a, x, (1, 2))
        tensor.load(b, z, (1, 0, 3), transposed=True)
        for i in unroll(range(len(a))):
            a[i] += b[i]
        tensor.store(y.scatter, (2, 1), a)
        tensor.store(y.unchecked_mut, (18, 0), b)

    x, z = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((17, 11), (2, 8, 19)))
    result = move[WARP](h2d(x), h2d(z), zeros((40, 9))).last().and_then(d2h).sync()
    expected = np.zeros((40, 9), np.float32)
    expected[2:18, 1:] = x[1:, 2:10] + z[1, :, 3:].T
    expected[18:34, :8] = z[1, :, 3:].T
    assert np.array_equal(result, expected)


def test_store_converts_as_an_assignment_does() -> None:
    @kernel
    def move(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
        tile = SharedArray((16, 8), bf16)
        c = tensor.Accumulator((16, 8), f32)
        tensor.load(c, x, (0, 0))
        tensor.store(tile, (0, 0), c)
        thread.sync_threads()
        for i in unroll(range(len(c))):
            y.scatter[c.row(i), c.column(i)] = f32(tile[c.row(i), c.column(i)])

    x = RANDOM.standard_normal((16, 8)).astype(np.float32)
    result = move[WARP](h2d(x), zeros((16, 8))).last().and_then(d2h).sync()
    bits = x.view(np.uint32).astype(np.uint64)
    expected = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    assert np.array_equal(result, expected)


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize(
    ("kind", "shape"),
    [("Accumulator", (16, 8)), ("Accumulator", (16, 24)), ("Accumulator", (32, 16)), ("FragmentA", (16, 32))],
    ids=str,
)
def test_stmatrix_is_store_in_blocks(kind: str, shape: tuple[int, int], dtype: Any, transposed: bool) -> None:
    declared, (rows, columns) = getattr(tensor, kind), shape
    height, width = (columns, rows) if transposed else (rows, columns)
    taller = height + 1

    @kernel
    def move(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
        tile = SharedArray((taller, 56), dtype)
        fragment = declared((rows, columns), dtype)
        for i in range(len(fragment)):
            fragment[i] = dtype(x[fragment.row(i), fragment.column(i)])
        tensor.stmatrix(tile, (1, 8), fragment, transposed)
        thread.sync_threads()
        for i in range(height):
            for j in range(warp.lane_id(), width, 32):
                y.scatter[i, j] = f32(tile[1 + i, 8 + j])

    x = numbers(f32, shape)
    try:
        result = move[WARP](h2d(x), zeros((height, width))).last().and_then(d2h).sync()
    except CompileError as error:
        pytest.skip(str(error))  # an older GPU
    assert np.array_equal(result, x.T if transposed else x)
    assert "stmatrix.sync.aligned.m8n8.x" in move.ptx(cc=(9, 0))
    with pytest.raises(CompileError, match=r"tensor.stmatrix needs compute capability 9.0, .* 8.9; tensor.store"):
        move.ptx(cc=(8, 9))


def test_a_product_becomes_the_left_operand_of_the_next_element_by_element() -> None:
    @kernel
    def twice(a: Slice2[f32], b: Slice2[f32], y: DisjointSlice2[f32]) -> None:
        left = tensor.FragmentA((32, 16), f16)
        right = tensor.FragmentB((16, 16), f16)
        for i in unroll(range(len(left))):
            left[i] = f16(a[left.row(i), left.column(i)])
        for i in unroll(range(len(right))):
            right[i] = f16(b[right.row(i), right.column(i)])
        product = tensor.Accumulator((32, 16), f32)
        tensor.mma(product, left, right)
        for i in unroll(range(len(product))):
            left[i] = f16(product[i])
        product.fill(0.0)
        tensor.mma(product, left, right)
        tensor.store(y.scatter, (0, 0), product)

    a, b = (RANDOM.integers(-2, 3, shape).astype(np.float32) for shape in ((32, 16), (16, 16)))
    result = twice[WARP](h2d(a), h2d(b), zeros((32, 16))).last().and_then(d2h).sync()
    assert np.array_equal(result, a @ b @ b)


# Faults


def test_a_matrix_that_is_partly_outside_is_a_fault() -> None:
    @kernel
    def move(row: i64, column: i64, y: DisjointSlice2[f32]) -> None:
        tile = SharedArray((20, 40), f16)
        a = tensor.FragmentA((16, 16), f16)
        tensor.ldmatrix(a, tile, (row, column))
        y.scatter[warp.lane_id(), 0] = f32(a[0])

    for row, column, index in ((5, 0, "20, 15"), (-1, 0, "-1, 0"), (0, 32, "15, 47"), (0, -8, "0, -8")):
        with pytest.raises(BoundsError, match=rf"is outside SharedArray.* \(\[{index}\] of shape"):
            move[WARP](row, column, zeros((32, 1))).sync()
    problem = r"tensor.ldmatrix\(…\) needs a column of SharedArray\(\(20, 40\), f16\) that is a multiple of 8, so that"
    with pytest.raises(KernelAssertionError, match=problem):
        move[WARP](0, 4, zeros((32, 1))).sync()


def test_a_store_that_is_partly_outside_writes_nothing() -> None:
    @kernel
    def put(row: i64, column: i64, y: DisjointSlice2[f32]) -> None:
        c = tensor.Accumulator((16, 8), f32)
        c.fill(1.0)
        tensor.store(y.scatter, (row, column), c)

    box = zeros((20, 10)).sync()
    for row, column in ((5, 0), (0, 3), (-1, 0), (2**62, 0)):
        with pytest.raises(BoundsError, match="y"):
            put[WARP](row, column, box).sync()
        assert not d2h(box).sync().any()


# Asynchronous copies


def copying(dtype: Any, count: int, width: int) -> Any:
    @kernel
    def copy(x: Slice2[dtype], row: i64, column: i64, y: DisjointSlice2[dtype]) -> None:  # type: ignore[valid-type]
        tile = SharedArray((8, width), dtype)
        t = thread.index_1d().get()
        for i in range(t, 8 * width // count, 32):
            place = i * count
            r, c = place // width, place % width
            tensor.copy_async(tile, (r, c), x, (row + r, column + c), count)
        tensor.commit()
        tensor.wait(0)
        thread.sync_threads()
        for i in range(t, 8 * width, 32):
            y.scatter[i // width, i % width] = tile[i // width, i % width]

    return copy


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "counts"), [(f32, (1, 2, 4)), (f16, (2, 4, 8)), (i8, (4, 8, 16)), (f64, (1, 2)), (i64, (1, 2))], ids=str
)
def test_copies_of_every_size_fill_what_is_outside_with_zeros(dtype: Any, counts: tuple[int, ...]) -> None:
    kind = {"f16": np.float16, "f64": np.float64, "i8": np.int8, "i64": np.int64}.get(str(dtype), np.float32)
    for count in counts:
        made = copying(dtype, count, 32)
        for shape in ((8, 32), (20, 64), (7, 33), (3, 1), (1, 31), (12, 48)):
            x = RANDOM.integers(-100, 100, shape).astype(kind)
            for row, column in ((0, 0), (2, 16), (0, 5), (-3, -7), (7, 40), (-100, 0), (0, -100)):
                result = made[WARP](h2d(x), row, column, zeros((8, 32), dtype)).last().and_then(d2h).sync()
                padded = np.zeros((8 + 1000, 32 + 1000), x.dtype)
                padded[500 : 500 + shape[0], 500 : 500 + shape[1]] = x
                assert np.array_equal(result, padded[500 + row : 508 + row, 500 + column : 532 + column])


def test_copies_from_a_slice_of_one_axis_and_from_the_middle_of_a_box() -> None:
    @kernel
    def copy(x: Slice[f32], first: i64, y: DisjointSlice2[f32]) -> None:
        row = SharedArray(128, f32)
        t = thread.index_1d().get()
        tensor.copy_async(row, 4 * t, x, first + 4 * t, 4)
        tensor.commit()
        tensor.wait()
        thread.sync_threads()
        for i in unroll(range(4)):
            y.scatter[i, t] = row[i * 32 + t]

    x = RANDOM.standard_normal(130).astype(np.float32)
    box = h2d(x).sync()
    for start in (0, 1, 3, 8):
        for first in (0, 1, 4, 100, 127):
            expected = np.zeros(128, np.float32)
            kept = x[start:][first : first + 128]
            expected[: len(kept)] = kept
            result = copy[WARP](box[start:], first, zeros((4, 32))).last().and_then(d2h).sync()
            assert np.array_equal(result.reshape(-1), expected)


def test_groups_are_waited_for_in_order() -> None:
    @kernel
    def pipeline(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
        stages = SharedArray((3, 32, 4), f32)
        t = thread.index_1d().get()
        for k in range(2):
            tensor.copy_async(stages, (k, t, 0), x, (k * 32 + t, 0), 4)
            tensor.commit()
        for k in range(x.shape[0] // 32):
            tensor.wait(1)
            thread.sync_threads()
            total = f32(0.0)
            for i in unroll(range(4)):
                total += stages[k % 3, 31 - t, i]
            y.scatter[k, t] = total
            tensor.copy_async(stages, ((k + 2) % 3, t, 0), x, ((k + 2) * 32 + t, 0), 4)
            tensor.commit()

    x = RANDOM.integers(-9, 10, (32 * 7, 4)).astype(np.float32)
    result = pipeline[WARP](h2d(x), zeros((7, 32))).last().and_then(d2h).sync()
    assert np.array_equal(result, x.sum(1).reshape(7, 32)[:, ::-1])


def test_a_copy_out_of_the_array_or_between_its_vectors_is_a_fault() -> None:
    @kernel
    def copy(x: Slice[f32], place: i64, y: DisjointSlice2[f32]) -> None:
        tile = SharedArray((4, 8), f32)
        tensor.copy_async(tile, (0, place), x, 0, 4)
        tensor.commit()
        tensor.wait()
        y.scatter[0, 0] = tile[0, 0]

    x = h2d(np.ones(8, np.float32)).sync()
    for place, index in ((8, "0, 8"), (6, "0, 9"), (-1, "0, -1")):
        with pytest.raises(BoundsError, match=rf"is outside SharedArray.* \(\[{index}\] of shape"):
            copy[LaunchConfig(1, 1)](x, place, zeros((1, 1))).sync()
    problem = r"tensor.copy_async\(…\) needs an index of SharedArray\(\(4, 8\), f32\) that is a multiple of 4"
    with pytest.raises(KernelAssertionError, match=problem):
        copy[LaunchConfig(1, 1)](x, 2, zeros((1, 1))).sync()


# PTX


@kernel
def tiled(a: Slice2[bf16], b: Slice2[bf16], c: DisjointSlice2[bf16]) -> None:
    left = SharedArray((64, 32 + 8), bf16)
    right = SharedArray((32, 64 + 8), bf16)
    x = tensor.FragmentA((32, 16), bf16)
    y = tensor.FragmentB((16, 32), bf16)
    z = tensor.Accumulator((32, 32), f32)
    t = thread.index_1d().get()
    for k in range(a.shape[1] // 32):
        for i in unroll(range(2)):
            place = (t + i * 128) * 8
            tensor.copy_async(left, (place // 32, place % 32), a, (place // 32, k * 32 + place % 32), 8)
            tensor.copy_async(right, (place // 64, place % 64), b, (k * 32 + place // 64, place % 64), 8)
        tensor.commit()
        tensor.wait(0)
        thread.sync_threads()
        for j in unroll(range(2)):
            tensor.ldmatrix(x, left, (warp.warp_id() // 2 * 32, j * 16))
            tensor.ldmatrix(y, right, (j * 16, warp.warp_id() % 2 * 32))
            tensor.mma(z, x, y)
        thread.sync_threads()
    tensor.store(c.scatter, (warp.warp_id() // 2 * 32, warp.warp_id() % 2 * 32), z)


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("cc", [(8, 0), (9, 0)])
def test_a_tiled_product_is_instructions_on_registers(cc: tuple[int, int]) -> None:
    ptx = tiled.ptx(cc=cc)
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16") == 4
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") == 4
    assert ptx.count("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") == 16
    assert ptx.count("cp.async.cg.shared.global") == 4
    assert "cp.async.commit_group" in ptx
    assert "cp.async.wait_group" in ptx
    assert ".local" not in ptx
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in assembled(ptx, cc)


def test_older_gpus_are_told_what_they_have_instead() -> None:
    problem = r"kernel tiled: tensor.copy_async needs compute capability 8.0, and this code is for 7.5; assign the"
    with pytest.raises(CompileError, match=problem):
        tiled.ptx(cc=(7, 5))
    made = through_shared("FragmentA", (16, 16), f16, tensor.ldmatrix, transposed=False)
    assert "ldmatrix" in made.ptx(cc=(7, 5))
    problem = r"tensor.ldmatrix needs compute capability 7.5, and this code is for 7.0; tensor.load reads the same"
    with pytest.raises(CompileError, match=problem):
        made.ptx(cc=(7, 0))


@pytest.mark.slow
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_matrices_go_to_swizzled_tiles_and_back(dtype: Any, transposed: bool) -> None:
    @kernel
    def move(x: Slice2[f32], y: DisjointSlice2[f32], z: DisjointSlice2[f32]) -> None:
        tiles = tensor.SharedTiles(2, (40, 64), dtype)
        fragment, read = tensor.FragmentA((16, 32), dtype), tensor.FragmentA((16, 32), dtype)
        for i in range(len(fragment)):
            fragment[i] = dtype(x[fragment.row(i), fragment.column(i)])
        tensor.stmatrix(tiles, (1, 5, 24), fragment, transposed)
        thread.sync_threads()
        for i in range(32 if transposed else 16):
            for j in range(warp.lane_id(), 16 if transposed else 32, 32):
                y.scatter[i, j] = f32(tiles[1, 5 + i, 24 + j])
        tensor.ldmatrix(read, tiles, (1, 5, 24), transposed)
        tensor.store(z.scatter, (0, 0), read)

    x = numbers(f32, (16, 32))
    outputs = zeros((32, 16) if transposed else (16, 32)), zeros((16, 32))
    moved, read = (d2h(box).sync() for box in move[WARP](h2d(x), *outputs).sync()[1:])
    assert np.array_equal(moved, x.T if transposed else x)
    assert np.array_equal(read, x)


# What is refused

REFUSED = [
    ("tensor.ldmatrix(a, x, (0, 0))", "tensor.ldmatrix reads a SharedArray or SharedTiles, not Slice2[f16] x; "
     "tensor.load takes slices too"),
    ("tensor.ldmatrix(c, s, (0, 0))", "tensor.ldmatrix loads a FragmentA or a FragmentB, not Accumulator((16, 8), f32);"
     " tensor.load takes every fragment"),
    ("tensor.ldmatrix(a, s, 0)", "SharedArray((32, 40), f16) has 2 axes, and the index 1"),
    ("tensor.ldmatrix(a, s, (0, 1.5))", "an index of SharedArray((32, 40), f16) is an integer, not f64; convert it, as "
     "in i64(…)"),
    ("tensor.ldmatrix(a, SharedArray(64, f16), 0)", "tensor.ldmatrix: SharedArray(64, f16) has 1 axis; a matrix is in "
     "the last two axes of an array"),
    ("tensor.ldmatrix(a, SharedArray((8, 40), f16), (0, 0))", "tensor.ldmatrix: FragmentA((16, 16), f16) takes 16 rows "
     "and 16 columns of the array, which is smaller: SharedArray((8, 40), f16)"),
    ("tensor.ldmatrix(a, SharedArray((16, 20), f16), (0, 0))", "tensor.ldmatrix needs rows of a multiple of 16 bytes, "
     "and those of SharedArray((16, 20), f16) have 40; make them longer by 4"),
    ("tensor.ldmatrix(a, SharedArray((16, 16), bf16), (0, 0))", "tensor.ldmatrix: SharedArray((16, 16), bf16) has "
     "elements of bf16, and FragmentA((16, 16), f16) of f16; the two are the same"),
    ("tensor.ldmatrix(q, SharedArray((32, 16), i8), (0, 0))", "tensor.ldmatrix cannot turn elements of i8, which have "
     "no 16 bits: read it from its transpose, with transposed=True, or use tensor.load"),
    ("tensor.ldmatrix(d, SharedArray((8, 8), f64), (0, 0))", "tensor.ldmatrix moves elements of 8, 16 or 32 bits, not "
     "those of FragmentA((8, 4), f64); use tensor.load"),
    ("tensor.ldmatrix(a, s, (0, 0), n > 0)", "tensor.ldmatrix: transposed is the constant True or False, not bool_"),
    ("tensor.ldmatrix(a, s)", "tensor.ldmatrix takes (fragment, array, index, transposed), the last"),
    ("tensor.ldmatrix(s, s, (0, 0))", "tensor.ldmatrix: the fragment is a SharedArray((32, 40), f16); declare one, as "
     "FragmentA((16, 16), bf16)"),
    ("tensor.load(a, y, (0, 0))", "tensor.load reads a SharedArray, a Slice2 or a Slice3, not DisjointSlice2[f16] y"),
    ("tensor.load(c, x, (0, 0))", "tensor.load: x has elements of f16, and Accumulator((16, 8), f32) of f32; the two "
     "are the same"),
    ("tensor.store(y, (0, 0), c)", "tensor.store: y is a DisjointSlice2[f16], where another thread could use the same "
     "index; store in y.scatter, if no other thread has these elements"),
    ("tensor.store(x, (0, 0), c)", "tensor.store writes a SharedArray, or the scatter of a DisjointSlice2 or 3, not "
     "Slice2[f16] x"),
    ("tensor.store(SharedArray((16, 8), i32), (0, 0), c)", "the element is i32 and the value is f32; convert it, as in "
     "i32(x)"),
    ("tensor.stmatrix(s, (0, 0), c)", "tensor.stmatrix stores a FragmentA or an Accumulator of f16 or bf16, not "
     "Accumulator((16, 8), f32); tensor.store takes every fragment"),
    ("tensor.copy_async(s, (0, 0), x, (0, 0), 3)", "tensor.copy_async copies 4, 8 or 16 bytes, and 3 elements of f16 "
     "take 6; the count is one of 2, 4, 8"),
    ("tensor.copy_async(s, (0, 0), x, (0, 0), n)", "tensor.copy_async: the count is a constant, not i64"),
    ("tensor.copy_async(s, (0, 0), y, (0, 0), 8)", "tensor.copy_async copies from a Slice, a Slice2 or a Slice3, not "
     "from DisjointSlice2[f16] y"),
    ("tensor.copy_async(x, (0, 0), x, (0, 0), 8)", "tensor.copy_async copies to a SharedArray, not to Slice2[f16] x"),
    ("tensor.copy_async(SharedArray((8, 12), f16), (0, 0), x, (0, 0), 8)", "tensor.copy_async needs rows of a multiple "
     "of 16 bytes, and those of SharedArray((8, 12), f16) have 24"),
    ("tensor.copy_async(SharedArray((8, 8), f32), (0, 0), x, (0, 0), 4)", "tensor.copy_async: x has elements of f16, "
     "and SharedArray((8, 8), f32) of f32; the two are the same"),
    ("tensor.wait(n)", "tensor.wait takes a constant number of groups, 0 or more, not i64"),
    ("tensor.wait(-1)", "tensor.wait takes a constant number of groups, 0 or more, not i64"),
    ("tensor.commit(1)", "tensor.commit takes no argument"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "message"), REFUSED, ids=[each[0] for each in REFUSED])
def test_what_does_not_fit_is_refused_by_name(expression: str, message: str, tmp_path: Any) -> None:
    path = tmp_path / "refused.py"
    path.write_text(
        "from oxide import *\n"
        "@kernel\n"
        "def refused(n: i64, x: Slice2[f16], y: DisjointSlice2[f16]):\n"
        "    s = SharedArray((32, 40), f16)\n"
        "    a = tensor.FragmentA((16, 16), f16)\n"
        "    q = tensor.FragmentB((32, 8), i8)\n"
        "    d = tensor.FragmentA((8, 4), f64)\n"
        "    c = tensor.Accumulator((16, 8), f32)\n"
        f"    {expression}\n",
        encoding="utf-8",
    )
    scope: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), scope)
    with pytest.raises(CompileError) as caught:
        scope["refused"].ptx()
    assert message in str(caught.value)
    assert f"{path}:9" in str(caught.value)
