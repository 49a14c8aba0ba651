"""Vectors of elements: what they read and write, what is refused, and that they are one instruction."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import oxide
from oxide import (
    BoundsError,
    CompileError,
    DisjointSlice,
    DynamicSharedArray,
    KernelAssertionError,
    LaunchConfig,
    LocalArray,
    SharedArray,
    Slice,
    d2h,
    f32,
    f64,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u8,
    zeros,
)
from oxide.compiler.cpu.positions import scalarise
from oxide.compiler.ir.parser import parse_function

SIZES = (0, 1, 31, 32, 33, 1025, 1_000_003)


@kernel(block=128, items_per_thread=4)
def copy4(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    first = 4 * thread.index_1d().get()
    if first + 4 <= len(y) and y.is_aligned(4):
        a, b, c, d = x.load4(first)
        y.unchecked_mut.store4(first, a, b, c, d)
    else:
        for i in range(first, min(first + 4, len(y))):
            y.unchecked_mut[i] = x[i]


@kernel
def third_of_four(at: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    _, _, c, _ = x.load4(at)
    y.unchecked_mut[0] = c


@pytest.mark.parametrize("size", SIZES)
def test_a_copy_by_vectors_with_an_end_of_single_elements(size: int) -> None:
    x = np.random.default_rng(size).standard_normal(size, np.float32)
    np.testing.assert_array_equal(copy4(h2d(x), zeros(size)).last().and_then(d2h).sync(), x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["i32", "u32", "i64", "u64", "f32", "f64", "u8"])
@pytest.mark.parametrize("count", [2, 4])
def test_every_type_and_both_lengths_in_every_kind_of_memory(name: str, count: int) -> None:
    scalar = getattr(oxide, name)

    @kernel
    def four(x: Slice[scalar], y: DisjointSlice[scalar]) -> None:  # type: ignore[valid-type]
        tile = SharedArray((32, 4), scalar)
        dynamic = DynamicSharedArray(scalar)
        t = thread.thread_idx.x % 32
        a, b, c, d = x.load4(4 * t)
        tile.store4((t, 0), a, b, c, d)
        e, f, g, h = tile.load4((t, 0))
        dynamic.store4(4 * t, e, f, g, h)
        e, f, g, h = dynamic.load4(4 * t)
        y.unchecked_mut.store4(4 * t, h, g, f, e)

    @kernel
    def two(x: Slice[scalar], y: DisjointSlice[scalar]) -> None:  # type: ignore[valid-type]
        tile = SharedArray(128, scalar)
        dynamic = DynamicSharedArray(scalar)
        t = thread.thread_idx.x % 32
        for i in range(4 * t, 4 * t + 4, 2):
            a, b = x.load2(i)
            tile.store2(i, a, b)
            e, f = tile.load2(i)
            dynamic.store2(i, e, f)
            e, f = dynamic.load2(i)
            y.unchecked_mut.store2(i, f, e)

    x = np.random.default_rng(1).integers(0, 200, 128).astype(scalar.dtype)
    launch = (four if count == 4 else two)[LaunchConfig(1, 32, shared_mem_bytes=128 * x.itemsize)]
    got = launch(h2d(x), zeros(128, x.dtype)).last().and_then(d2h).sync()
    np.testing.assert_array_equal(got, x.reshape(-1, count)[:, ::-1].ravel())


@pytest.mark.parametrize(("at", "index"), [(8, 11), (-4, -4), (2**62, 2**62)])
def test_a_vector_that_is_not_wholly_inside_is_a_fault(at: int, index: int) -> None:
    with pytest.raises(BoundsError) as caught:
        third_of_four[1, 1](at, h2d(np.ones(9, np.float32)), zeros(1)).sync()
    assert (caught.value.parameter, caught.value.index, caught.value.length) == ("x", index, 9)
    assert caught.value.file == __file__


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_vector_at_no_multiple_of_its_size_is_a_fault_that_says_so(at: int) -> None:
    with pytest.raises(KernelAssertionError, match=r"x\.load4\(…\) needs an address that is a multiple of 16 bytes"):
        third_of_four[1, 1](at, h2d(np.ones(9, np.float32)), zeros(1)).sync()


def test_a_piece_that_begins_in_the_middle_of_a_vector_is_not_aligned() -> None:
    @kernel
    def ask(x: Slice[f32], y: DisjointSlice[i32]) -> None:
        y.unchecked_mut[0] = i32(x.is_aligned(2))
        y.unchecked_mut[1] = i32(x.is_aligned(4))

    box = h2d(np.ones(40, np.float32)).sync()
    for elements, expected in ((4, [1, 1]), (2, [1, 0]), (5, [0, 0])):
        piece = box.split(elements)[1]
        np.testing.assert_array_equal(ask[1, 1](piece, zeros(2, i32)).last().and_then(d2h).sync(), expected)
    with pytest.raises(KernelAssertionError, match=r"x\.load4"):
        third_of_four[1, 1](0, box.split(5)[1], zeros(1)).sync()


@kernel
def moved_unchecked(from_: i64, to: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    a, b = x.unchecked.load2(from_)
    out = y.unchecked_mut
    c, d, e, f = out.load4(to)
    out.store4(to, c + a, d + b, e, f)
    out.store2(to, a, b)


def test_without_bounds_checks_the_address_of_a_vector_is_checked() -> None:
    x, y = h2d(np.arange(1, 9, dtype=np.float32)).sync(), zeros(8).sync()
    assert moved_unchecked[1, 1](2, 4, x, y).last().and_then(d2h).sync().tolist() == [0, 0, 0, 0, 3, 4, 0, 0]
    for from_, to, message in ((3, 4, r"x\.load2"), (2, 3, r"y\.load4")):
        with pytest.raises(KernelAssertionError, match=message):
            moved_unchecked[1, 1](from_, to, x, y).sync()
    assert d2h(y).sync().tolist() == [0, 0, 0, 0, 3, 4, 0, 0]


def test_a_misaligned_store_into_an_output_is_a_fault_that_writes_nothing() -> None:
    @kernel
    def misplaced(at: i64, y: DisjointSlice[f32]) -> None:
        y.unchecked_mut.store4(at, f32(1), f32(2), f32(3), f32(4))

    whole = zeros(12).sync()
    with pytest.raises(KernelAssertionError, match=r"y\.store4\(…\) needs an address that is a multiple of 16 bytes"):
        misplaced[1, 1](1, whole).sync()
    with pytest.raises(KernelAssertionError, match=r"y\.store4"):
        misplaced[1, 1](0, whole.split(5)[1]).sync()
    assert not d2h(whole).sync().any()
    misplaced[1, 1](4, whole).sync()
    assert d2h(whole).sync().tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0]


def test_where_the_kernel_has_asked_the_address_is_not_checked_again() -> None:
    @kernel(block=128)
    def asked(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        first = 4 * thread.index_1d().get()
        if first + 4 <= len(y) and x.is_aligned(4) and y.is_aligned(4):
            a, b, c, d = x.unchecked.load4(first)
            y.unchecked_mut.store4(first, a, b, c, d)

    @kernel(block=128)
    def not_asked(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        first = 4 * thread.index_1d().get()
        if first + 4 <= len(y):
            a, b, c, d = x.unchecked.load4(first)
            y.unchecked_mut.store4(first, a, b, c, d)

    assert "atom" not in asked.ptx(cc=(9, 0))
    assert "atom" in not_asked.ptx(cc=(9, 0))
    assert "atom" not in kernel(unchecked=True)(not_asked.function).ptx(cc=(9, 0))


def test_a_vector_of_a_shared_array_is_checked_along_each_axis() -> None:
    @kernel
    def across(row: i64, column: i64, y: DisjointSlice[f32]) -> None:
        tile = SharedArray((4, 8), f32)
        tile.store4((row, column), f32(1), f32(2), f32(3), f32(4))
        a, _, _, d = tile.load4((row, column))
        y.unchecked_mut.store2(0, a, d)

    assert across[1, 1](3, 4, zeros(2)).last().and_then(d2h).sync().tolist() == [1, 4]
    for row, column in ((4, 0), (0, 8), (-1, 0)):
        with pytest.raises(BoundsError, match="axis"):
            across[1, 1](row, column, zeros(2)).sync()
    with pytest.raises(KernelAssertionError, match="store4"):
        across[1, 1](0, 2, zeros(2)).sync()


def test_a_misaligned_store_writes_nothing() -> None:
    @kernel
    def misplaced(at: i64, y: DisjointSlice[f32]) -> None:
        tile = SharedArray(8, f32)
        for i in range(8):
            tile[i] = f32(7)
        tile.store4(at, f32(1), f32(2), f32(3), f32(4))
        for i in range(8):
            y.unchecked_mut[i] = tile[i]

    result = zeros(8).sync()
    with pytest.raises(KernelAssertionError):
        misplaced[1, 1](1, result).sync()
    assert set(d2h(result).sync().tolist()) <= {
        0.0,
        7.0,
    }  # nothing, or all of what was before: the thread may end there


def test_an_unchecked_kernel_checks_neither_bounds_nor_alignment() -> None:
    unchecked = kernel(unchecked=True)(copy4.function)
    assert "atom." not in unchecked.ptx()  # what claims the fault record
    assert "ld.global.v4" in unchecked.ptx()


def test_a_vector_is_one_instruction() -> None:
    ptx = copy4.ptx()
    assert "ld.global.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx


def test_an_aligned_place_in_shared_memory_needs_no_check() -> None:
    @kernel
    def through(y: DisjointSlice[f32]) -> None:
        tile = SharedArray((32, 36), f32)
        t = thread.thread_idx.x % 32
        tile.store4((t, t % 8 * 4), f32(1), f32(2), f32(3), f32(4))
        thread.sync_threads()
        a, b, c, d = tile.load4((31 - t, t % 8 * 4))
        if y.is_aligned(4):
            y.unchecked_mut.store4(4 * t, a, b, c, d)

    ptx = through.ptx()
    assert "st.shared.v4.b32" in ptx
    assert "ld.shared.v4.b32" in ptx
    assert "atom." not in ptx  # what claims the fault record


def test_contracts_prove_a_vector_inside() -> None:
    @kernel(requires=("len(x) >= 4 * n",))
    def of_rows(n: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
        i = thread.index_1d().get()
        if i < n:
            a, _, _, _ = x.load4(4 * i)
            y.unchecked_mut[i] = a

    assert {check.place for check in of_rows.checks() if check.parameter == "x"} == {"proved"}


def refused(function: Any) -> str:
    with pytest.raises(CompileError) as caught:
        kernel(function).specialize()
    return str(caught.value)


def test_what_is_refused_says_why() -> None:
    def output_by_integer(y: DisjointSlice[f32]) -> None:
        y.load4(0)  # type: ignore[attr-defined]

    def stored_to_an_input(x: Slice[f32]) -> None:
        x.store4(0, f32(1), f32(2), f32(3), f32(4))  # type: ignore[attr-defined]

    def input_as_output(x: Slice[f32]) -> None:
        x.unchecked_mut[0] = f32(1)  # type: ignore[attr-defined]

    def of_registers(y: DisjointSlice[f32]) -> None:
        a = LocalArray(8, f32)
        y.unchecked_mut[0] = a.load4(0)[0]  # type: ignore[attr-defined]

    def at_a_float(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        y.unchecked_mut[0] = x.load4(f32(1))[0]  # type: ignore[arg-type]

    def a_float_in_an_integer(y: DisjointSlice[i32]) -> None:
        y.unchecked_mut.store2(0, 1, f32(2.5))  # type: ignore[arg-type]

    def three_together(x: Slice[f32], y: DisjointSlice[i32]) -> None:
        y.unchecked_mut[0] = i32(x.is_aligned(3))

    def too_few_values(y: DisjointSlice[f64]) -> None:
        y.unchecked_mut.store4(0, f64(1))  # type: ignore[call-arg]

    assert "another thread could use the same index" in refused(output_by_integer)
    assert "read-only" in refused(stored_to_an_input)
    assert "read-only" in refused(input_as_output)
    assert "LocalArray is in registers" in refused(of_registers)
    assert "convert the index" in refused(at_a_float) or "convert it, as in i64" in refused(at_a_float)
    assert "convert it, as in i32(x)" in refused(a_float_in_an_integer)
    assert "takes 2 or 4" in refused(three_together)
    assert "takes an index and 4 values" in refused(too_few_values)


def test_an_unchecked_output_takes_any_integer_and_reads_back() -> None:
    @kernel(block=32)
    def reverse(y: DisjointSlice[u8]) -> None:
        t = thread.thread_idx.x
        if t < len(y) // 2:
            out, other = y.unchecked_mut, len(y) - 1 - t
            first, last = out[t], out[other]
            out[t] = last
            out[other] = first

    assert reverse(h2d(np.arange(9, dtype=np.uint8))).last().and_then(d2h).sync().tolist() == list(range(8, -1, -1))
    assert reverse.checks() == ()


def test_a_vector_stored_twice_in_one_place_is_taken_apart_twice() -> None:
    store = "store <2 x float> %v, ptr %q, align 8"
    function = parse_function(f"""define void @f(ptr %p, ptr %q) {{
entry:
  %v = load <2 x float>, ptr %p, align 8
  {store}
  {store}
  ret void
}}""")
    scalarise(function)
    module = llvm.parse_assembly(str(function))
    module.verify()
    assert str(module).count("store float") == 4
