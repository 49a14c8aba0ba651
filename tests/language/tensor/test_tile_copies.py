"""Copies of tiles between slices of one to five axes and shared memory, both ways, and their waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxide import (
    ArgumentError,
    BoundsError,
    CompileError,
    DisjointSlice,
    DisjointSlice2,
    DisjointSlice3,
    DisjointSlice4,
    DisjointSlice5,
    KernelAssertionError,
    LaunchError,
    SanitizerError,
    SharedArray,
    Slice,
    Slice2,
    Slice3,
    Slice4,
    Slice5,
    bf16,
    d2h,
    devices,
    empty,
    f16,
    f32,
    h2d,
    i8,
    i64,
    kernel,
    tensor,
    thread,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.testing import use_driver
from tests.compiler.assembler import assembled, needs_ptxas

RANDOM = np.random.default_rng(23)


def copied(array: Any, place: tuple[int, ...], sides: tuple[int, ...]) -> Any:
    """Returns the tile that begins at a place of an array, zeros outside. It has one element along the first axes."""
    sides = (1,) * (array.ndim - len(sides)) + sides
    tile = np.zeros(sides, array.dtype)
    for index in np.ndindex(sides):
        at = tuple(p + i for p, i in zip(place, index, strict=True))
        if all(0 <= p < n for p, n in zip(at, array.shape, strict=True)):
            tile[index] = array[at]
    return tile


def stored(array: Any, place: tuple[int, ...], tile: Any) -> Any:
    """Returns an array after a store of a tile, of which the parts outside are not written."""
    array = array.copy()
    for index in np.ndindex(tile.shape):
        at = tuple(p + i for p, i in zip(place, index, strict=True))
        if all(0 <= p < n for p, n in zip(at, array.shape, strict=True)):
            array[at] = tile[index]
    return array


@kernel(partial=True)
def of_one(p: i64, q: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    tile = SharedArray((2, 64), f32, 128)
    full = tensor.Barrier(1, 1)
    if thread.thread_idx.x == 0:
        full.expect(0, 64 * 4)
        tensor.load_tile(tile, 1, x, p, full, 0)
        full.wait(0, 0)
        tensor.store_tile(y.scatter, q, tile, 1)
        tensor.commit_stores()
        tensor.wait_stores()


@kernel(partial=True)
def of_two(p0: i64, p1: i64, q0: i64, q1: i64, x: Slice2[f16], y: DisjointSlice2[f16]) -> None:
    tile = SharedArray((12, 24), f16, 128)
    full = tensor.Barrier(1, 1)
    if thread.thread_idx.x == 0:
        full.expect(0, 12 * 24 * 2)
        tensor.load_tile(tile, None, x, (p0, p1), full, 0)
        full.wait(0, 0)
        tensor.store_tile(y.scatter, (q0, q1), tile, None)
        tensor.commit_stores()
        tensor.wait_stores()


@kernel(partial=True)
def of_three(p0: i64, p1: i64, p2: i64, q0: i64, q1: i64, q2: i64, x: Slice3[i8], y: DisjointSlice3[i8]) -> None:
    tile = SharedArray((3, 4, 32), i8, 128)
    full = tensor.Barrier(1, 1)
    if thread.thread_idx.x == 0:
        full.expect(0, 3 * 4 * 32)
        tensor.load_tile(tile, None, x, (p0, p1, p2), full, 0)
        full.wait(0, 0)
        tensor.store_tile(y.unchecked_mut, (q0, q1, q2), tile, None)
        tensor.commit_stores()
        tensor.wait_stores()


@kernel(partial=True)
def of_four(
    p0: i64, p1: i64, p2: i64, p3: i64, q0: i64, q1: i64, q2: i64, q3: i64, x: Slice4[bf16], y: DisjointSlice4[bf16]
) -> None:
    tile = SharedArray((2, 8, 8), bf16, 128)
    full = tensor.Barrier(1, 1)
    if thread.thread_idx.x == 0:
        full.expect(0, 128)
        tensor.load_tile(tile, 1, x, (p0, p1, p2, p3), full, 0)
        full.wait(0, 0)
        tensor.store_tile(y.scatter, (q0, q1, q2, q3), tile, 1)
        tensor.commit_stores()
        tensor.wait_stores()


@kernel(partial=True)
def of_five(
    p0: i64,
    p1: i64,
    p2: i64,
    p3: i64,
    p4: i64,
    q0: i64,
    q1: i64,
    q2: i64,
    q3: i64,
    q4: i64,
    x: Slice5[f32],
    y: DisjointSlice5[f32],
) -> None:
    tile = SharedArray((2, 3, 4), f32, 128)
    full = tensor.Barrier(1, 1)
    if thread.thread_idx.x == 0:
        full.expect(0, 2 * 3 * 4 * 4)
        tensor.load_tile(tile, None, x, (p0, p1, p2, p3, p4), full, 0)
        full.wait(0, 0)
        tensor.store_tile(y.scatter, (q0, q1, q2, q3, q4), tile, None)
        tensor.commit_stores()
        tensor.wait_stores()


CASES: dict[int, tuple[Any, Any, tuple[int, ...], tuple[int, ...], int]] = {
    # By axes: the kernel, the type, an array's shape, a tile's, and the elements of 16 bytes.
    1: (of_one, f32, (203,), (64,), 4),
    2: (of_two, f16, (21, 40), (12, 24), 8),
    3: (of_three, i8, (5, 7, 48), (3, 4, 32), 16),
    4: (of_four, bf16, (3, 4, 10, 24), (8, 8), 8),
    5: (of_five, f32, (2, 3, 4, 5, 12), (2, 3, 4), 4),
}


def places(shape: tuple[int, ...], sides: tuple[int, ...], part: int) -> list[tuple[int, ...]]:
    """Returns places inside, at each edge, beyond all edges, and far outside."""
    sides = (1,) * (len(shape) - len(sides)) + sides
    whole = [max(0, n - s) for n, s in zip(shape, sides, strict=True)]
    over = [n - s // 2 for n, s in zip(shape, sides, strict=True)]
    before = [-(s // 2) for s in sides]
    found = [[0] * len(shape), whole, over, before, [2**40 for _ in shape], [-(2**40) for _ in shape]]
    found += [[*(0 for _ in shape[1:]), before[-1]], [over[0], *(0 for _ in shape[1:])]]
    return [(*each[:-1], each[-1] // part * part) for each in map(tuple, found)]


@pytest.mark.slow
@pytest.mark.parametrize("axes", CASES)
def test_a_tile_is_copied_from_and_to_any_place(axes: int) -> None:
    made, dtype, shape, sides, part = CASES[axes]
    x = RANDOM.integers(-100, 100, shape).astype(dtype.dtype)
    targets = places(shape, sides, part)
    for place, target in zip(targets, targets[1:] + targets[:1], strict=True):
        target = tuple(max(0, number) for number in target)
        y = RANDOM.integers(-100, 100, shape).astype(dtype.dtype)
        result = made[1, 32](*place, *target, h2d(x), h2d(y)).last().and_then(d2h).sync()
        assert np.array_equal(result, stored(y, target, copied(x, place, sides))), (place, target)


@pytest.mark.parametrize("length", [1, 3, 4, 31, 33, 64])
def test_a_slice_of_one_axis_may_have_any_length(length: int) -> None:
    x, y = (RANDOM.random(length, np.float32) for _ in range(2))
    result = of_one[1, 32](-4, 4, h2d(x), h2d(y)).last().and_then(d2h).sync()
    assert np.array_equal(result, stored(y, (4,), copied(x, (-4,), (64,))))


@kernel(partial=True)
def transposed(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
    """Each block reads 32 rows and columns and stores their transpose, which its threads wrote to a swizzled tile."""
    given, turned = tensor.SharedTiles(1, (32, 32), f32), tensor.SharedTiles(2, (32, 32), f32)
    full = tensor.Barrier(1, 1)
    t = thread.thread_idx.x
    row, col = thread.block_idx.y * 32, thread.block_idx.x * 32
    if t == 0:
        full.expect(0, 32 * 128)
        tensor.load_tile(given, 0, x, (row, col), full, 0)
    full.wait(0, 0)
    for r in range(32):
        turned[1, t, r] = given[0, r, t]
    tensor.fence_stores()
    thread.sync_threads()
    if t == 0:
        tensor.store_tile(y.scatter, (col, row), turned, 1)
        tensor.commit_stores()
        tensor.wait_stores(0, read=True)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(32, 32), (4, 100), (100, 36), (252, 68)])
def test_tiles_that_threads_have_written_are_stored(shape: tuple[int, int]) -> None:
    rows, columns = shape
    x = RANDOM.random(shape, np.float32)
    grid = (-(-columns // 32), -(-rows // 32))
    y = transposed[grid, 32](h2d(x), zeros((columns, rows))).last().and_then(d2h).sync()
    assert np.array_equal(y, x.T)


def test_a_store_in_a_graph_is_made_at_each_launch() -> None:
    x, y = h2d(RANDOM.random((64, 64), np.float32)).sync(), zeros((64, 64)).sync()
    graph = transposed[(2, 2), 32](x, y).graph()
    graph.launch().sync()
    assert np.array_equal(d2h(y).sync(), d2h(x).sync().T)


def test_the_elements_of_many_axes_are_reached_one_by_one() -> None:
    @kernel(block=64)
    def doubled(x: Slice5[f32], y: DisjointSlice5[f32]) -> None:
        i = thread.index_1d()
        out = y.get_mut(i)
        if out is not None:
            out.value = 2.0 * x.flat[i.get()] + f32(x.shape[3])

    x = RANDOM.random((2, 3, 1, 5, 7), np.float32)
    assert np.array_equal(doubled(h2d(x), zeros(x.shape)).last().and_then(d2h).sync(), 2 * x + 5)
    with pytest.raises(ArgumentError, match="takes one of 5 axes"):
        doubled(h2d(x[0]), zeros(x.shape))


def copy_of_tiles(kinds: str | tuple[str, ...], meets: bool = True) -> Any:
    @kernel(partial=True, sanitize=kinds)
    def through(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
        tile = tensor.SharedTiles(1, (8, 32), f32)
        t = thread.thread_idx.x
        for r in range(8):
            tile[0, r, t] = x[r, t]
        tensor.fence_stores()
        if meets:
            thread.sync_threads()
        if t == 0:
            tensor.store_tile(y.scatter, (0, 0), tile, 0)
            tensor.store_tile(y.scatter, (10, 48), tile, 0)
            tensor.commit_stores()
            tensor.wait_stores()

    return through


def test_the_sanitizer_knows_what_a_store_reads_and_writes() -> None:
    @kernel(block=64, sanitize="memory")
    def summed(rows: i64, columns: i64, y: Slice2[f32], z: DisjointSlice[f32]) -> None:
        out = z.get_mut(thread.index_1d())
        if out is not None:
            total = f32(0)
            for r in range(rows):
                for c in range(columns):
                    total += y[r, c]
            out.value = total

    with use_driver(CpuDriver()):
        x = RANDOM.integers(-9, 9, (8, 32)).astype(np.float32)
        for kinds in ("memory", "race", ("memory", "race")):
            uninitialised = empty((12, 52), f32).sync()
            copy_of_tiles(kinds)[1, 32](h2d(x), uninitialised).sync()
        assert summed(8, 32, uninitialised, zeros(1)).last().and_then(d2h).sync()[0] == x.sum()
        with pytest.raises(SanitizerError, match="uninitialized"):
            summed(9, 32, uninitialised, zeros(1)).sync()
        with pytest.raises(SanitizerError, match="uninitialized"):
            summed(8, 33, uninitialised, zeros(1)).sync()
        with pytest.raises(SanitizerError, match="race"):
            copy_of_tiles("race", meets=False)[1, 32](h2d(x), uninitialised).sync()


@pytest.mark.parametrize(("shape", "told"), [((5, 6), "expected a matrix whose rows"), ((0, 8), "expected a matrix")])
def test_an_output_with_uneven_rows_is_refused(shape: tuple[int, int], told: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        transposed[1, 32](zeros((8, 8)), zeros(shape)).sync()
    assert f"kernel transposed, parameter y: {told}" in str(caught.value)
    assert "as tensor.store_tile copies to it" in str(caught.value)


def test_a_slice_of_one_axis_without_elements_is_refused() -> None:
    with pytest.raises(ArgumentError, match="parameter x: expected elements that begin at a multiple of 16 bytes"):
        of_one[1, 32](0, 0, zeros(0), zeros(8)).sync()


@pytest.mark.parametrize("target", [(-8, 0), (0, -8), (-(2**40), 0)])
def test_a_store_before_the_beginning_is_a_fault(target: tuple[int, int]) -> None:
    with pytest.raises(KernelAssertionError, match="the tile begins before the output"):
        of_two[1, 32](0, 0, *target, zeros((21, 40), f16), zeros((21, 40), f16)).sync()


def test_a_column_or_number_of_no_tile_is_a_fault() -> None:
    x = h2d(np.zeros((21, 40), np.float16)).sync()
    with pytest.raises(Exception, match="the first column of the tile is no multiple of 8 elements, 16 bytes"):
        of_two[1, 32](0, 0, 0, 4, x, zeros((21, 40), f16)).sync()

    @kernel(partial=True)
    def numbered(n: i64, y: DisjointSlice[f32]) -> None:
        tile = SharedArray((2, 32), f32, 128)
        tile[0, thread.thread_idx.x] = 1.0
        tile[1, thread.thread_idx.x] = 1.0
        tensor.fence_stores()
        thread.sync_threads()
        if thread.thread_idx.x == 0:
            tensor.store_tile(y.scatter, (0,), tile, n)
            tensor.commit_stores()
            tensor.wait_stores()

    assert numbered[1, 32](1, zeros(32)).last().and_then(d2h).sync().sum() == 32
    for n in (2, -1):
        with pytest.raises(BoundsError) as caught:
            numbered[1, 32](n, zeros(32)).sync()
        assert (caught.value.parameter, caught.value.index) == ("SharedArray((2, 32), f32)", n)


REFUSED = {
    "tensor.store_tile(y, (0, 0), tiles, 0)": (
        "tensor.store_tile copies to the scatter of a DisjointSlice of one to five axes, as c.scatter, not to "
        "DisjointSlice2[f16] y"
    ),
    "tensor.store_tile(y.scatter, (0, 0), tiles)": "tensor.store_tile takes (target, index, tiles, number)",
    "tensor.store_tile(y.scatter, 0, tiles, 0)": (
        "tensor.store_tile: the index is a row and a column, and the numbers are integers"
    ),
    "tensor.store_tile(y.scatter, (0, 0), tiles, None)": "tensor.store_tile: tiles have a number",
    "tensor.store_tile(y.scatter, (0, 0), local, None)": (
        "tensor.store_tile copies tensor.SharedTiles or a SharedArray, not LocalArray(8, f16)"
    ),
    "tensor.store_tile(y.scatter, (0, 0), floats, None)": (
        "y is Scatter2[f16], and the tiles are SharedArray(64, f32): the types must be the same"
    ),
    "tensor.store_tile(y.scatter, (0, 0), uneven, None)": (
        "tensor.store_tile: each tile begins at a multiple of 128 bytes: declare SharedArray(shape, dtype, 128)"
    ),
    "tensor.store_tile(y.scatter, (0, 0), narrow, None)": (
        "sides up to 256, and rows of a multiple of 16 bytes; this one, of SharedArray((8, 4), f16), is (8, 4)"
    ),
    "tensor.store_tile(y.scatter, (0, 0), long, None)": "this one, of SharedArray(512, f16), is (512,)",
    "tensor.store_tile(y.scatter, (0, 0), deep, None)": (
        "tensor.store_tile: a tile has at most the axes of y, 2, sides up to 256"
    ),
    "tensor.load_tile(long, 0, z, 0, full, 0)": (
        "tensor.load_tile: the number of a tile is an index of the first axis of SharedArray(512, f16), which has no "
        "other; write None for the whole array"
    ),
    "tensor.load_tile(tiles, 0, z, 0, full, 0)": ("tensor.load_tile: a Slice of one axis is copied to a SharedArray"),
    "tensor.load_tile(tiles, 0, w, (0, 0, 0), full, 0)": (
        "tensor.load_tile: the index is 4 integers, and the numbers are integers"
    ),
    "tensor.load_tile(tiles, 0, w, (0, 0, 0, 0), full)": "tensor.load_tile takes (tiles, number, source, index,",
    "tensor.load_tile(tiles, 0, w, (0, 0, 0, 0), 0, 0)": "tensor.load_tile counts in a tensor.Barrier; it got i64",
    "tensor.fence_stores(1)": "tensor.fence_stores takes no argument",
    "tensor.commit_stores(1)": "tensor.commit_stores takes no argument",
    "tensor.wait_stores(8)": "tensor.wait_stores: groups is a constant from 0 to 7, and read is True or False",
    "tensor.wait_stores(n)": "tensor.wait_stores: groups is a constant from 0 to 7, and read is True or False",
    "tensor.wait_stores(0, read=1)": "tensor.wait_stores: groups is a constant from 0 to 7, and read is True or False",
    "tensor.wait_stores(0, True, 1)": "tensor.wait_stores takes (groups, read), the last two optional",
    "local[0] = w[0, 0, 0, 0]": (
        "w is a Slice4[f16], which has too many axes for an index: its elements are read by tensor.load_tile, and one "
        "by one through w.flat"
    ),
    "tiles[0, 0] = f16(1)": "the index of SharedTiles(1, (64, 64), f16) is a tile's number, a row and a column",
    "tiles[0, 0, 0] = z": "the element is f16 and",
}


@pytest.mark.parametrize("statement", REFUSED)
def test_a_mistake_has_one_clear_sentence(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "refused.py"
    path.write_text(
        "from oxide import DisjointSlice2, LocalArray, SharedArray, Slice, Slice4, f16, f32, i64, kernel, tensor\n\n"
        "@kernel\n"
        "def refused(n: i64, z: Slice[f16], w: Slice4[f16], y: DisjointSlice2[f16]):\n"
        "    tiles, local = tensor.SharedTiles(1, (64, 64), f16), LocalArray(8, f16)\n"
        "    floats, uneven, narrow = SharedArray(64, f32, 128), SharedArray((8, 8), f16), SharedArray((8, 4), f16)\n"
        "    long, deep = SharedArray(512, f16, 128), SharedArray((2, 8, 8), f16, 128)\n"
        "    full = tensor.Barrier(1, 1)\n"
        f"    {statement}\n",
        encoding="utf-8",
    )
    scope: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), scope)
    with pytest.raises(CompileError) as caught:
        scope["refused"].ptx(cc=(9, 0))
    assert REFUSED[statement] in str(caught.value)
    assert "refused.py:9" in str(caught.value)


def test_a_store_to_a_slice_that_is_chosen_at_run_time_is_refused() -> None:
    @kernel(partial=True)
    def chosen(n: i64, y: DisjointSlice2[f32], z: DisjointSlice2[f32]) -> None:
        tile = tensor.SharedTiles(1, (8, 32), f32)
        out = y if n > 0 else z
        tensor.store_tile(out.scatter, (0, 0), tile, 0)

    with pytest.raises(CompileError, match=r"tensor\.store_tile copies to a slice that is a parameter of the ke"):
        chosen.ptx()


def test_the_ptx_has_the_instructions_of_the_isa() -> None:
    for axes, (made, *_) in CASES.items():
        ptx = made.ptx()
        assert f"cp.async.bulk.tensor.{axes}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r" in ptx
        assert f"cp.async.bulk.tensor.{axes}d.global.shared::cta.tile.bulk_group [%rd" in ptx
        assert "cp.async.bulk.commit_group;" in ptx
        assert "cp.async.bulk.wait_group 0;" in ptx
    assert "// oxide.tensor_map 80 f32 1x1x2x3x4 plain x" in of_five.ptx()
    ptx = transposed.ptx()
    assert "fence.proxy.async.shared::cta;" in ptx
    assert "cp.async.bulk.wait_group.read 0;" in ptx
    assert "// oxide.tensor_map 24 f32 32x32 swizzled y" in ptx


@needs_ptxas
@pytest.mark.parametrize("made", [of_one, of_two, of_three, of_four, of_five, transposed])
def test_the_assembler_takes_the_ptx(made: Any) -> None:
    assert "registers" in assembled(made.ptx())


@pytest.mark.parametrize("made", [of_one, transposed])
def test_an_older_gpu_refuses_them(made: Any) -> None:
    with pytest.raises(CompileError, match=r"needs compute capability 9\.0, and this code is for 8\.9"):
        made.ptx(cc=(8, 9))


@pytest.mark.parametrize("made", [transposed, of_one])
def test_an_interpreted_kernel_with_copies_of_tiles_is_refused(made: Any) -> None:
    if devices()[0].kind != "cpu":
        pytest.skip("the interpreter runs on the CPU device")
    given = (zeros((32, 32)), zeros((32, 32))) if made is transposed else (0, 0, zeros(64), zeros(64))
    with pytest.raises(LaunchError, match=r"cannot be interpreted; launch it compiled"):
        made[1, 32].interpret(*given).sync()


def test_the_functions_have_no_meaning_outside_of_kernels() -> None:
    for function in (tensor.fence_stores, tensor.commit_stores, tensor.wait_stores):
        with pytest.raises(TypeError, match="only inside a @kernel"):
            function()
    with pytest.raises(TypeError, match="only inside a @kernel"):
        tensor.store_tile(None, 0, None, 0)  # type: ignore[arg-type]
