"""Small mistakes that the front end used to tell in words of its own: each has the kernel's line, and what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from oxide import Array, CompileError, f32

TYPED = "def wrong(n: i64, x: Slice[f32], y: DisjointSlice[f32]):"
UNTYPED = "def wrong(n, x, y):"
LARGE = "does not fit in 64 bits; the largest integer, a u64, is 2**64 - 1"
ONE_NUMBER = "converts one number, given by position; the call has"
OF_ITS_LOOP = "unroll is written in the line of its loop, as in: for i in unroll(range(8))"
OF_THE_HOST = "is a function of the host, which makes operations or runs them: call it outside the kernel"

IN_BOTH = [
    ("a = 1 << 70", f"{2**70} {LARGE}"),
    ("a = 2**64", f"{2**64} {LARGE}"),
    ("a = 100000000000000000000000", f"100000000000000000000000 {LARGE}"),
    ("a = (1, (2, 2**64))", f"{2**64} {LARGE}"),
    ("a = -2**63 - 1", f"{-(2**63) - 1} does not fit in 64 bits; the least integer, an i64, is -2**63"),
    ("p, q = 1, 2, 3", "the value has 3 elements, and here it becomes 2"),
    ("p, q, r = n, n", "the value has 2 elements, and here it becomes 3"),
    ("a, b = n", "the value is i64, which is no tuple, and here it becomes a, b"),
    ("a, b = thread.index_1d().get()", "the value is i64, which is no tuple, and here it becomes a, b"),
    ("a = int()", f"int(...) {ONE_NUMBER} 0"),
    ("a = float()", f"float(...) {ONE_NUMBER} 0"),
    ("a = bool()", f"bool(...) {ONE_NUMBER} 0"),
    ("a = int(1, 2, 3)", f"int(...) {ONE_NUMBER} 3"),
    ("a = len()", "len(...) takes one argument, by position; the call has 0"),
    ("a = len(x, y)", "len(...) takes one argument, by position; the call has 2"),
    ("u = unroll(range(3))", OF_ITS_LOOP),
    ("u = unroll(range(3))\n    for i in u: n += i", OF_ITS_LOOP),
    ("n += thread.index_1d().get", "thread.index_1d().get is a method: call it, as in thread.index_1d().get()"),
    ("a = x[thread.index_1d().get]", "thread.index_1d().get is a method: call it"),
    ("a = h2d(3)", f"h2d {OF_THE_HOST}"),
    ("a = zeros(3)", f"zeros {OF_THE_HOST}"),
    ("a = ops.gelu(x)", f"ops.gelu {OF_THE_HOST}"),
]
IN_TYPED = [
    ("y.unchecked_mut[0] = thread.index_1d().get", "thread.index_1d().get is a method: call it"),
    ("y.get_mut = 3", "y.get_mut is a method, which cannot be assigned to"),
    ("a = round()", "round takes 1 or 2 arguments, by position"),
    ("a = round(1.5, 2, 3)", "round takes 1 or 2 arguments, by position"),
    ("a = round(number=1.5)", "round takes 1 or 2 arguments, by position"),
    ("a = LocalArray(4, float)", "the elements of LocalArray: write f32 or f64, not float"),
    ("a = SharedArray(4, dtype=int)", "the elements of SharedArray: write i32, i64, u32 or u64, not int"),
    ("a = math.ldexp(1.0, 2.5)", "math.ldexp(x, n) takes an integer n, not f64; convert it, as in i32(n)"),
    ("a = math.ldexp(x[0], x[1])", "math.ldexp(x, n) takes an integer n, not f32; convert it, as in i32(n)"),
]


@pytest.mark.parametrize(
    ("head", "body", "problem"),
    [
        *((head, body, problem) for head in (TYPED, UNTYPED) for body, problem in IN_BOTH),
        *((TYPED, body, problem) for body, problem in IN_TYPED),
    ],
)
def test_a_small_mistake_is_told_at_its_line(head: str, body: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    imports = "import math\nfrom oxide import *\nfrom oxide_kernels import ops\n"
    path.write_text(f"{imports}@kernel\n{head}\n    m = 1\n    {body}\n")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    types: dict[str, Any] = {} if head == TYPED else {"n": names["i64"], "x": Array[f32, 1], "y": Array[f32, 1]}
    with pytest.raises(CompileError, match=re.escape(problem)) as caught:
        names["wrong"].specialize(**types)
    assert "wrong.py:7: " in str(caught.value)
    assert "numba" not in str(caught.value)
