"""An index that wrapped in its type is outside of every array: compiled and interpreted, and what ends the chain of
operations for which this holds."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import BoundsError, h2d, zeros

OUTSIDE = [
    ("i32", "x[a * b]", 65536, 65537, 4295032832),
    ("u32", "x[a * b]", 65536, 65537, 4295032832),
    ("u32", "x[a - b]", 5, 6, -1),
    ("u8", "x[a + b]", 200, 100, 300),
    ("u8", "x[a * b * 100]", 100, 200, 2000000),
    ("i32", "x[-(a * b)]", 65536, 65536, -(2**32)),
    ("i32", "x[+(a * b)]", 65536, 65536, 2**32),
    ("i32", "x[a << 31]", 2, 0, 2**32),
    ("i32", "x[a << 40]", 2, 0, 2**41),
    ("i32", "x[a << b]", 2, 31, 2**32),
    ("i32", "x[1 << b]", 0, 33, 2**33),
    ("i32", "x[min(a * b, 9)]", 65536, 65536, 2**32),
    ("i32", "x[a * b if n > 3 else 0]", 65536, 65536, 2**32),
    ("u8", "x[(a * b if n > 20 and n > 4 or n < 10 else a) + 1]", 20, 30, 601),
    ("u8", "x[a * b or b]", 20, 30, 600),
    ("i32", "x[n - 7 + a * b]", 65536, 65536, 2**32),
    ("u8", "x[a * b + len(x)]", 100, 200, 20256),
    ("u8", "x[a * b + (n > 3)]", 100, 200, 20001),
    ("i32", "x2[a * b, 1]", 65536, 65536, 2**32),
    ("i32", "x2[1, a * b]", 65536, 65536, 2**32),
    ("i32", "x2.row(a * b) is None", 65536, 65536, None),
    ("i32", "x2.tile(a * b, 0, 1, 1) is None", 65536, 65536, None),
    ("u8", "x[(a * b, 100)[0]]", 100, 200, 20000),
]
"""The type of ``a`` and ``b``, an access, their values, and the index that the fault tells: of a view that is None, no
index."""

ENDED = [
    ("u32", "x[a - b + 1]", 5, 6),
    ("u8", "x[a * b - a * b]", 100, 200),
    ("i32", "x[i32(a * b)]", 65536, 65536),
    ("i32", "x[i64(a * b)]", 65536, 65536),
    ("i32", "x[int(a * b)]", 65536, 65536),
    ("u8", "x[(a * b) >> 1]", 100, 200),
    ("u8", "x[(a * b) | 1]", 100, 200),
    ("i32", "x[(a * b) // 2]", 65536, 65536),
    ("i32", "x[-5 % (a * b + 100)]", 65536, 65536),
    ("u8", "x[divmod(a * b, 100)[1]]", 100, 200),
    ("i32", "x[a ** 2]", 65536, 0),
    ("i32", "x[a ** b]", 65536, 2),
    ("i32", "x[abs(a * b)]", 65536, 65536),
    ("i32", "x[round(a * b)]", 65536, 65536),
    ("i32", "x[max(3, a * b)]", 65536, 65536),
]
"""Accesses that are inside although an operation wrapped: its result was undone, converted, or went through an
operation that ends the chain."""

STATEMENTS = [
    ("j = a * b\n        if n > 3:\n            o.value = x[j]", 100, 200, 20000),
    ("j = a * b\n        if n > 3:\n            j = a + a\n        o.value = x[j]", 200, 200, 400),
    ("j = a * b\n        if n < 3:\n            j = a + a\n        o.value = x[j + 1]", 200, 200, 40001),
    ("j = a * b\n        for q in range(3):\n            o.value = x[j + q]", 200, 200, 40000),
    ("j = a\n        for q in range(3):\n            j = j * b\n        o.value = x[j]", 200, 200, None),
    ("j = a * b\n        t = (j, 1)\n        o.value = x[t[0]]", 200, 200, 40000),
    ("p, q = a * b, 1\n        o.value = x[p]", 200, 200, 40000),
    ("j = a\n        j *= b\n        o.value = x[j]", 200, 200, 40000),
    ("s = LocalArray(4, i32)\n        s[a * b - 64] = 7\n        o.value = s[0]", 200, 200, 39936),
    ("s = LocalArray(4, u8)\n        s[0] = a * b\n        o.value = x[s[0]]", 200, 200, None),
]
"""Statements, of ``u8``; the last number is the index that the fault tells, or None where there is no fault."""


def made(kind: str, statements: str) -> Any:
    source = f"""@kernel(block=32)
def k(x: Slice[u8], x2: Slice2[u8], a: {kind}, b: {kind}, n: i64, out: DisjointSlice[i64]):
    o = out.get_mut(thread.index_1d())
    if o is not None:
        {statements}
"""
    name = f"<wrapped indices {hash(source)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    namespace: dict[str, Any] = {each: getattr(oxide, each) for each in oxide.__all__}
    exec(compile(source, name, "exec"), namespace)
    return namespace["k"]


def found(way: Any, a: int, b: int) -> int:
    x = np.arange(256, dtype=np.uint8)
    return int(way(h2d(x), h2d(x.reshape(16, 16)), a, b, 7, zeros(1, np.int64)).last().to_host().sync()[0])


@pytest.mark.parametrize("way", ["compiled", "interpreted"])
@pytest.mark.parametrize(("kind", "access", "a", "b", "index"), OUTSIDE)
def test_an_index_that_wrapped_is_outside(way: str, kind: str, access: str, a: int, b: int, index: int | None) -> None:
    k = made(kind, f"o.value = {access}")
    run = k if way == "compiled" else k.interpret
    if index is None:
        assert found(run, a, b) == 1
        return
    with pytest.raises(BoundsError) as caught:
        found(run, a, b)
    assert caught.value.index == index


@pytest.mark.parametrize("way", ["compiled", "interpreted"])
@pytest.mark.parametrize(("kind", "access", "a", "b"), ENDED)
def test_the_chain_of_an_index_ends(way: str, kind: str, access: str, a: int, b: int) -> None:
    k = made(kind, f"o.value = {access}")
    found(k if way == "compiled" else k.interpret, a, b)


@pytest.mark.parametrize("way", ["compiled", "interpreted"])
@pytest.mark.parametrize(("statements", "a", "b", "index"), STATEMENTS)
def test_variables_belong_to_the_chain(way: str, statements: str, a: int, b: int, index: int | None) -> None:
    k = made("u8", statements)
    run = k if way == "compiled" else k.interpret
    if index is None:
        found(run, a, b)
        return
    with pytest.raises(BoundsError) as caught:
        found(run, a, b)
    assert caught.value.index == index


def test_a_number_that_wrapped_looks_like_any_other(capfd: pytest.CaptureFixture[str]) -> None:
    """In a debugger, too: the interpreter's number has the value that it has in the kernel."""
    k = made("u8", "p = a * b\n        print(p, p == 32, p // 2)")
    for run in (k, k.interpret):
        found(run, 100, 200)
    first, second = capfd.readouterr().out.splitlines()
    assert first == second
