"""Annotated local variables: each assignment converts to the annotated type."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import (
    BoundsError,
    CompileError,
    DisjointSlice,
    Slice,
    d2h,
    device,
    f32,
    h2d,
    i8,
    i32,
    i64,
    kernel,
    thread,
    u8,
    u32,
    zeros,
)
from oxide.language.types import SCALARS


@kernel(block=64)
def hashes(x: Slice[u32], y: DisjointSlice[u32]):
    index = thread.index_1d()
    out = y.get_mut(index)
    if out is not None:
        h: u32 = 2166136261
        for i in range(10):
            h = h * 31 + i
            h ^= x[index.get()]
        out.value = h


def test_each_assignment_converts_to_the_annotated_type() -> None:
    x = np.array([0, 1, 2**32 - 1], np.uint32)
    expected = []
    for each in x.tolist():
        h = 2166136261
        for i in range(10):
            h = ((h * 31 + i) % 2**32) ^ each
        expected.append(h)
    found = hashes(h2d(x), zeros(3, u32)).last().to_host().sync()
    np.testing.assert_array_equal(found, np.array(expected, np.uint32))
    assert ".f64" not in hashes.ptx()


@kernel(block=64)
def sums(x: Slice[i8], narrow: DisjointSlice[i64], wide: DisjointSlice[i64]):
    index = thread.index_1d()
    first = narrow.get_mut(index)
    second = wide.get_mut(index)
    if first is not None and second is not None:
        count: i8 = 0
        total: i32 = 0
        for each in x:
            count += each
            total = total + each
        first.value = count
        second.value = total


def test_an_accumulator_has_the_annotated_width() -> None:
    x = np.array([100, 100, 127], np.int8)
    narrow, wide = sums(h2d(x), zeros(2, i64), zeros(2, i64)).sync()[1:]
    np.testing.assert_array_equal(d2h(narrow).sync(), [71, 71])
    np.testing.assert_array_equal(d2h(wide).sync(), [327, 327])


@kernel(block=64)
def chosen(x: Slice[i64], y: DisjointSlice[i64]):
    index = thread.index_1d()
    out = y.get_mut(index)
    if out is not None:
        v: u8
        w: i8 = -1
        if x[index.get()] > 0:
            v = x[index.get()]
        else:
            v = 255
        v, w = w, v
        w += v
        out.value = 1000 * i64(v) + w


def test_branches_and_tuples() -> None:
    found = chosen(h2d(np.array([-5, 257, 130], np.int64)), zeros(3, i64)).last().to_host().sync()
    np.testing.assert_array_equal(found, [255000 - 2, 255000, 255000 - 127])


@device
def scaled(x: Any, n: u32) -> f32:
    p: f32 = x * n
    return p + x


@kernel(block=64)
def of_function(x: Slice[f32], y: DisjointSlice[f32]):
    index = thread.index_1d()
    out = y.get_mut(index)
    if out is not None:
        out.value = scaled(x[index.get()], 3)


def test_in_device_functions_and_a_product_with_a_name_is_rounded() -> None:
    x = np.array([0.1, 1 / 3, 1e30], np.float32)
    found = of_function(h2d(x), zeros(3)).last().to_host().sync()
    np.testing.assert_array_equal(found, (x.astype(np.float64) * 3).astype(np.float32) + x)


@kernel(block=64)
def counted(y: DisjointSlice[i64]):
    out = y.get_mut(thread.index_1d())
    if out is not None:
        i: u8
        total: i64 = 0
        for i in range(300):
            total += i
        out.value = total


def test_the_variable_of_a_loop() -> None:
    found = counted(zeros(1, i64)).last().to_host().sync()
    assert found[0] == sum(i % 256 for i in range(300))


def test_constants_of_two_types_are_two_numbers() -> None:
    assert made("a: f32 = 0.1\nb: f64 = 0.1\nout.value = 1 if a == b else 0", "i64", [0]) == [0]
    assert made("a: bool_ = 2\nout.value = 1 if a == 2 else 0", "i64", [0]) == [0]
    assert made("a: u32 = 0\nout.value = a - 1", "i64", [0]) == [2**32 - 1]


def test_the_chain_of_an_index_ends_where_an_assignment_may_not_hold_the_number() -> None:
    x = [2**16, 3, 7, 9, 11]
    for body in ("h: u32 = u32(x[0]) * u32(x[0])", "h: u64 = u32(x[0]) * u32(x[0])"):
        with pytest.raises(BoundsError, match=r"x\[4294967296\]"):
            made(f"{body}\nout.value = x[h]", "i64", x)
    for body in (
        "h: u16 = u32(x[0]) * u32(x[0])",
        "h: u16\ng: u32\nh, g = x[0], u32(x[0])",
        "h: u16\nfor h in range(65533, 65536):\n    h += 1",
    ):
        assert made(f"{body}\nout.value = x[h]", "i64", x) == [2**16] * 5
    assert made("h: u32 = i32(x[0] - 2**16 - 1) + i32(x[1])\nout.value = x[h]", "i64", x) == [7] * 5


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("h: u32 = 1.5", r"h is annotated as u32 and the value is f64; convert it, as in u32\(x\)"),
        ("h: u8 = 0\nh = 300", "h is annotated as u8 and the value is 300, which does not fit; u8 holds 0 to 255"),
        ("h: u32 = -1", r"the value is -1, which does not fit; u32 holds 0 to 4294967295, and u32\(-1\) wraps"),
        ("h: int = 3", "h: int is no scalar type of kernels: write one, as in h: f32"),
        ("h: np.float32 = 3", "h: np.float32 is no scalar type of kernels: write h: f32"),
        ("h: Slice[f32] = x", r"h: Slice\[f32\] is no scalar type of kernels"),
        ("h: u32 = 1\nh: i32 = 2", "h is annotated as u32 before: a variable has one type"),
        ("x: u32 = 1", "x is a parameter, and its type is that of the call"),
        ("out.value: i64 = 1", r"only a local variable has an annotation in a kernel: write out.value = i64\(1\)"),
        ("h: f32 = index", "h is annotated as f32 and the value is ThreadIndex"),
        ("h: f32\nout.value = h", "h is read here before it is assigned"),
    ],
)
def test_refused(body: str, problem: str) -> None:
    with pytest.raises(CompileError, match=problem):
        made(body, "i64", [1])


def made(body: str, kind: str, values: list[int]) -> list[Any]:
    """Runs the body for each number ``x[index.get()]``. Returns the numbers that it writes."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    source = f"""@kernel(block=64)
def k(x: Slice[i64], y: DisjointSlice[{kind}]):
    index = thread.index_1d()
    out = y.get_mut(index)
    if out is not None:
{lines}
"""
    name = f"<annotated {hash(source)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    names: dict[str, Any] = {name: getattr(oxide, name) for name in oxide.__all__} | {"np": np}
    exec(compile(source, name, "exec"), names)
    found = names["k"](h2d(np.array(values, np.int64)), zeros(len(values), SCALARS[kind])).last().to_host().sync()
    return list(found.tolist())
