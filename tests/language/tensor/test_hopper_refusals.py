"""What ``Barrier``, ``SharedTiles``, ``load_tile``, ``wgmma`` and the register functions refuse, word for word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oxide import (
    BoundsError,
    CompileError,
    DisjointSlice,
    Slice2,
    f16,
    f32,
    i64,
    kernel,
    tensor,
    thread,
    zeros,
)

REFUSED = {
    "tensor.Barrier(4)": (
        "tensor.Barrier takes the number of barriers and that of a phase's arrivals, as in Barrier(4, 1)"
    ),
    "tensor.Barrier(0, 1)": "tensor.Barrier: count is a constant from 1 to 256; it is 0",
    "tensor.Barrier(n, 1)": "tensor.Barrier: count is a constant from 1 to 256; it is i64",
    "tensor.Barrier(1, 0)": "tensor.Barrier: arrivals is a constant from 1 to 1048575; it is 0",
    "full.arrive()": "tensor.Barrier.arrive takes (index, rank), the last optional",
    "full.wait(0)": "tensor.Barrier.wait takes (index, phase)",
    "full.expect(0, nbytes=1.5)": "tensor.Barrier.expect: nbytes is an integer, not f64",
    "full.wait(index=0.5, phase=1)": "tensor.Barrier.wait: index is an integer, not f64",
    "tensor.SharedTiles(1, (64, 64))": (
        "tensor.SharedTiles takes a count, a shape and a dtype, as in SharedTiles(4, (128, 64), bf16)"
    ),
    "tensor.SharedTiles(n, (8, 64), f16)": "tensor.SharedTiles: the count and the two sides of the shape are constants",
    "tensor.SharedTiles(1, 64, f16)": "tensor.SharedTiles: the count and the two sides of the shape are constants",
    "tensor.SharedTiles(1, (64, 64), f64)": (
        "tensor.SharedTiles has elements of f16, bf16, f32, i8, u8, f8e4m3, f8e5m2, not f64"
    ),
    "tensor.SharedTiles(1, (64, 64), f32)": "a row of tensor.SharedTiles has 128 bytes, 32 elements of f32, not 64",
    "tensor.SharedTiles(1, (60, 64), f16)": (
        "tensor.SharedTiles has at least one tile, of 8 to 256 rows, a multiple of 8"
    ),
    "tensor.SharedTiles(0, (64, 64), f16)": (
        "tensor.SharedTiles has at least one tile, of 8 to 256 rows, a multiple of 8"
    ),
    "tensor.SharedTiles(1, (64, 32), f16)": ("a row of tensor.SharedTiles has 128 bytes, 64 elements of f16, not 32"),
    "a[0, 0]": "the index of SharedTiles(1, (64, 64), f16) is a tile's number, a row and a column, all integers",
    "tensor.load_tile(a, 0, x, (0, 0), full)": (
        "tensor.load_tile takes (tiles, number, source, index, barrier, at, tf32, multicast), the last two optional"
    ),
    "tensor.load_tile(a, 0, x, (0, 0), full, 0, tf32=True)": (
        "tensor.load_tile: tf32 is a constant, and True only for tiles of f32"
    ),
    "tensor.load_tile(total, 0, x, (0, 0), full, 0)": (
        "tensor.load_tile copies tensor.SharedTiles or a SharedArray, not Accumulator((16, 64), f32)"
    ),
    "tensor.load_tile(a, 0, y, (0, 0), full, 0)": (
        "tensor.load_tile copies from a Slice of one to five axes, not from DisjointSlice[f32] y"
    ),
    "tensor.load_tile(e, 0, x, (0, 0), full, 0)": (
        "x is Slice2[f16], and the tiles are SharedTiles(1, (64, 64), bf16): the types must be the same"
    ),
    "tensor.load_tile(a, 0, x, 0, full, 0)": (
        "tensor.load_tile: the index is a row and a column, and the numbers are integers"
    ),
    "tensor.load_tile(a, 0.5, x, (0, 0), full, 0)": (
        "tensor.load_tile: the index is a row and a column, and the numbers are integers"
    ),
    "tensor.wgmma(total, a, (0, 0), b)": (
        "tensor.wgmma takes (accumulator, a, a_index, b, b_number, a_transposed, b_transposed, add), the last three "
        "optional"
    ),
    "tensor.wgmma(narrow, a, (0, 0), b, 0)": (
        "tensor.wgmma takes an Accumulator((16, n), f32), or i32, the rows of one of the four warps, with n a multiple "
        "of 8 up to 256; it got Accumulator((16, 64), f16)"
    ),
    "tensor.wgmma(total, a, (0, 0), e, 0)": (
        "tensor.wgmma multiplies elements of one type, or of two of 8 bits of one kind; they are of f16 and bf16"
    ),
    "tensor.wgmma(total, weights, None, e, 0)": (
        "tensor.wgmma multiplies elements of one type, or of two of 8 bits of one kind; they are of f16 and bf16"
    ),
    "tensor.wgmma(total, x, (0, 0), b, 0)": (
        "tensor.wgmma multiplies tensor.SharedTiles, or a FragmentA, by SharedTiles, not Slice2[f16] x and SharedTiles("
    ),
    "tensor.wgmma(total, bytes, (0, 0), bytes, 0)": (
        "tensor.wgmma adds products of i8 to an Accumulator of i32; it is of f32"
    ),
    "tensor.wgmma(whole, bytes, (0, 0), bytes, 0)": (
        "tensor.wgmma adds integers to 8 or 24 columns or a multiple of 16, not to 40"
    ),
    "tensor.wgmma(total, floats, (0, 0), floats, 0, b_transposed=True)": (
        "tensor.wgmma: b_transposed is for f16 and bf16; SharedTiles(1, (64, 32), f32) is read as it is"
    ),
    "tensor.wgmma(total, weights, (0, 0), b, 0)": (
        "tensor.wgmma: a_index is None for a FragmentA, and b_number an integer"
    ),
    "tensor.wgmma(total, a, None, b, 0)": (
        "tensor.wgmma: a_index is a tile's number and its first row, and b_number an integer"
    ),
    "tensor.wgmma(total, weights, None, b, 0, True)": (
        "FragmentA((16, 64), f16) is in registers, which have one order; a_transposed is for SharedTiles"
    ),
    "tensor.wgmma(total, weights, None, low, 0, b_transposed=True)": (
        "tensor.wgmma multiplies a FragmentA of 16 rows, those of one of the four warps, and 32 columns by "
        "SharedTiles(1, (32, 64), f16), not FragmentA((16, 64), f16)"
    ),
    "tensor.wgmma(total, a, (0, 0), b, 0, add=n > 3)": "tensor.wgmma: add is a constant, True or False",
    "tensor.wgmma(total, a, (0, 0), b, 0, n > 3)": "tensor.wgmma: a_transposed is a constant, True or False",
    "tensor.wgmma(total, a, 0, b, 0)": (
        "tensor.wgmma: a_index is a tile's number and its first row, and b_number an integer"
    ),
    "tensor.wgmma(total, a, (0, 0), b, 0.5)": (
        "tensor.wgmma: a_index is a tile's number and its first row, and b_number an integer"
    ),
    "tensor.wgmma(total, a, (0, 0), low, 0, b_transposed=True)": (
        "tensor.wgmma adds 64 products of SharedTiles(1, (64, 64), f16), and SharedTiles(1, (32, 64), f16) has 32; "
        "they are the same multiple of 16"
    ),
    "tensor.wgmma(total, low, (0, 0), b, 0)": (
        "tensor.wgmma multiplies 64 rows, and SharedTiles(1, (32, 64), f16) has tiles of 32"
    ),
    "tensor.wgmma(total, a, (0, 0), low, 0)": (
        "tensor.wgmma: the accumulator has 64 columns, and the tiles of SharedTiles(1, (32, 64), f16) have 32 rows"
    ),
    "tensor.wgmma(uneven, a, (0, 0), b, 0, False, True)": (
        "tensor.wgmma: with b_transposed the accumulator's columns, 72, are up to 64 or a multiple"
    ),
    "tensor.convert(weights)": "tensor.convert takes (fragment, accumulator)",
    **{
        f"tensor.convert({given})": (
            "tensor.convert rounds an Accumulator of f32 to a FragmentA or Accumulator of f16 or bf16 with the same "
            f"shape; it got {found}"
        )
        for given, found in (
            ("weights, uneven", "FragmentA((16, 64), f16) and Accumulator((16, 72), f32)"),
            ("total, total", "Accumulator((16, 64), f32) and Accumulator((16, 64), f32)"),
            ("narrow, weights", "Accumulator((16, 64), f16) and FragmentA((16, 64), f16)"),
            ("weights, a", "FragmentA((16, 64), f16) and SharedTiles(1, (64, 64), f16)"),
        )
    },
    "tensor.wait_wgmma()": "tensor.wait_wgmma takes (accumulator, pending), the last optional",
    "tensor.wait_wgmma(total, 8)": "tensor.wait_wgmma: pending is a constant from 0 to 7; it is 8",
    "tensor.wait_wgmma(total, n)": "tensor.wait_wgmma: pending is a constant from 0 to 7; it is i64",
    "tensor.increase_registers(20)": ("tensor.increase_registers takes a constant, a multiple of 8 from 24 to 256"),
    "tensor.decrease_registers(n)": ("tensor.decrease_registers takes a constant, a multiple of 8 from 24 to 256"),
}


@pytest.mark.parametrize("statement", REFUSED)
def test_a_mistake_has_one_clear_sentence(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "refused.py"
    path.write_text(
        "from oxide import DisjointSlice, Slice2, bf16, f16, f32, f64, i8, i32, i64, kernel, tensor\n\n"
        "@kernel\n"
        "def refused(n: i64, x: Slice2[f16], y: DisjointSlice[f32]):\n"
        "    a = tensor.SharedTiles(1, (64, 64), f16)\n"
        "    b = tensor.SharedTiles(1, (64, 64), f16)\n"
        "    e = tensor.SharedTiles(1, (64, 64), bf16)\n"
        "    low = tensor.SharedTiles(1, (32, 64), f16)\n"
        "    full = tensor.Barrier(1, 1)\n"
        "    total = tensor.Accumulator((16, 64), f32)\n"
        "    narrow = tensor.Accumulator((16, 64), f16)\n"
        "    uneven, weights = tensor.Accumulator((16, 72), f32), tensor.FragmentA((16, 64), f16)\n"
        "    bytes, floats = tensor.SharedTiles(1, (64, 128), i8), tensor.SharedTiles(1, (64, 32), f32)\n"
        "    whole = tensor.Accumulator((16, 40), i32)\n"
        f"    {statement}\n",
        encoding="utf-8",
    )
    scope: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), scope)
    with pytest.raises(CompileError) as caught:
        scope["refused"].ptx(cc=(9, 0))
    message = str(caught.value)
    assert REFUSED[statement] in message
    assert "refused.py:15" in message


@kernel(block=128, partial=True)
def product(y: DisjointSlice[f32]) -> None:
    a = tensor.SharedTiles(1, (64, 64), f16)
    total = tensor.Accumulator((16, 8), f32)
    tensor.wgmma(total, a, (0, 0), a, 0)
    tensor.wait_wgmma(total)
    y.scatter[0] = total[0]


@kernel(block=128, partial=True)
def copied(x: Slice2[f16], y: DisjointSlice[f32]) -> None:
    a = tensor.SharedTiles(1, (64, 64), f16)
    tensor.load_tile(a, 0, x, (0, 0), tensor.Barrier(1, 1), 0)
    y.scatter[0] = f32(a[0, 0, 0])


@kernel(block=128, partial=True)
def met(y: DisjointSlice[f32]) -> None:
    full = tensor.Barrier(1, 1)
    full.arrive(0)
    y.scatter[0] = f32(1)


@kernel(block=128, partial=True)
def registers(y: DisjointSlice[f32]) -> None:
    tensor.decrease_registers(40)
    y.scatter[0] = f32(1)


@pytest.mark.parametrize(
    ("refused", "capability", "sentence"),
    [
        (product, (8, 0), "tensor.wgmma needs compute capability 9.0 itself, and this code is for 8.0; tensor.mma "),
        (product, (10, 0), "tensor.wgmma needs compute capability 9.0 itself, and this code is for 10.0; tensor.mma "),
        (copied, (8, 9), "needs compute capability 9.0, and this code is for 8.9; t"),
        (met, (8, 0), "tensor.Barrier needs compute capability 9.0, and this code is for 8.0; thread.sync_threads() "),
        (
            registers,
            (8, 0),
            "tensor.increase_registers needs compute capability 9.0 itself, and this code is for 8.0; ",
        ),
        (registers, (10, 0), "needs compute capability 9.0 itself, and this code is for 10.0; leave it out"),
    ],
)
def test_what_a_gpu_lacks_is_a_compile_error(refused: Any, capability: tuple[int, int], sentence: str) -> None:
    refused.ptx(cc=(9, 0))
    with pytest.raises(CompileError) as caught:
        refused.ptx(cc=capability)
    assert f"kernel {refused.__name__}: " in str(caught.value)
    assert sentence in str(caught.value)


@kernel(block=128, partial=True)
def indexed(barrier: i64, number: i64, row: i64, y: DisjointSlice[f32]) -> None:
    a = tensor.SharedTiles(2, (128, 64), f16)
    full = tensor.Barrier(3, 128)
    total = tensor.Accumulator((16, 8), f32)
    full.arrive(barrier)
    tensor.wgmma(total, a, (number, row), a, 0)
    tensor.wait_wgmma(total)
    y.scatter[thread.thread_idx.x] = total[0]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((3, 0, 0), "Barrier(3)"),
        ((-1, 0, 0), "Barrier(3)"),
        ((0, 2, 0), "SharedTiles(2, (128, 64), f16)"),
        ((0, -1, 0), "SharedTiles(2, (128, 64), f16)"),
        ((0, 0, 72), "SharedTiles(2, (128, 64), f16)'s rows by 8"),
        ((0, 0, 4), "SharedTiles(2, (128, 64), f16)'s rows by 8"),
    ],
)
def test_an_index_outside_is_a_fault_that_names_it(given: tuple[int, int, int], named: str) -> None:
    with pytest.raises(BoundsError) as caught:
        indexed[1, 128](*given, zeros(128)).sync()
    assert "indexed" in str(caught.value)
    assert named in str(caught.value)


def test_the_last_barrier_tile_and_row_are_inside() -> None:
    # Nothing is copied to the tiles, so that the product is of any elements.
    assert indexed[1, 128](2, 1, 64, zeros(128)).last().to_host().sync().shape == (128,)
