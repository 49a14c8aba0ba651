"""``.streaming``: vectors with the hint on a GPU, the same vectors everywhere."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import numpy as np
import pytest

from oxide import CompileError, DisjointSlice, Slice, d2h, f16, f32, f64, h2d, i8, i32, i64, kernel, thread, u16
from tests.compiler.assembler import assembled, needs_ptxas

T = TypeVar("T", i8, u16, i32, i64, f16, f32, f64)
TYPES = (i8, u16, i32, i64, f16, f32, f64)


@kernel(block=64, items_per_thread=4)
def doubled(x: Slice[T], y: DisjointSlice[T]) -> None:
    i, out = 4 * thread.index_1d().get(), y.unchecked_mut
    if i + 4 <= len(y):
        a, b = x.unchecked.streaming.load2(i)
        c, d = x.unchecked.streaming.load2(i + 2)
        out.streaming.store4(i, a + a, b + b, c + c, d + d)


@kernel(block=64, items_per_thread=4)
def turned(x: Slice[T], y: DisjointSlice[T]) -> None:
    i, out = 4 * thread.index_1d().get(), y.unchecked_mut
    if i + 4 <= len(y):
        a, b, c, d = x.unchecked.streaming.load4(i)
        out.streaming.store2(i, d, c)
        out.streaming.store2(i + 2, b, a)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_vectors_that_stream_are_the_same_vectors(kind: Any) -> None:
    x = np.random.default_rng(1).integers(-50, 50, 1024).astype(kind.dtype)
    empty = np.zeros_like(x)
    np.testing.assert_array_equal(d2h(doubled(h2d(x), h2d(empty)).last()).sync(), x + x)
    found = d2h(turned(h2d(x), h2d(empty)).last()).sync()
    np.testing.assert_array_equal(found, x.reshape(-1, 4)[:, ::-1].ravel())
    box = h2d(x).sync()  # each thread reads before it writes
    np.testing.assert_array_equal(d2h(turned(box, box).last()).sync(), found)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_gpu_gets_the_hint(kind: Any) -> None:
    for each, loads, stores in ((doubled, 2, 4), (turned, 4, 2)):
        ptx = each.specialize(T=kind).ptx()
        # Vectors of less than 32 bits stay as they are.
        assert ("ld.global.cs." in ptx) == (loads * kind.dtype.itemsize >= 4)
        assert ("st.global.cs." in ptx) == (stores * kind.dtype.itemsize >= 4)


@needs_ptxas
@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("each", [doubled, turned], ids=lambda each: each.name)
def test_the_assembler_takes_the_hint(each: Any, kind: Any) -> None:
    assembled(each.specialize(T=kind).ptx())


def test_a_vector_of_16_bytes_is_one_instruction() -> None:
    ptx = turned.specialize(T=f32).ptx()
    assert re.findall(r"ld\.global\.cs\S*", ptx) == ["ld.global.cs.v4.b32"]
    assert re.findall(r"st\.global\.cs\S*", ptx) == ["st.global.cs.v2.b32"] * 2


def test_only_outputs_are_written() -> None:
    @kernel
    def writes(x: Slice[f32]) -> None:
        x.unchecked.streaming.store2(0, f32(1), f32(2))

    with pytest.raises(CompileError, match=r"x is a StreamingSlice\[f32\], which is read-only"):
        writes.ptx()
