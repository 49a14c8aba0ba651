"""Wrong tile kernels and their errors, word for word: the line, the place in it and what to write."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from oxide import CompileError

HEAD = """\
from oxide import *
from oxide import tile
import numpy as np, math

def helper(v):
    return v

@tile.kernel
def wrong(
    z: tile.Partition[f32, 2],
    x: tile.Tensor[f32, 2],
    xh: tile.Tensor[f16, 2],
    t1: tile.Target[f32, 1],
    h16: tile.Target[f16, 1], counts: tile.Target[u8, 1],
    n: i32,
):
    a, h = tile.load_like(x, z), tile.load_like(xh, z)
"""
"""The beginning of each kernel, for tiles of shape (8, 8)."""

CASES: list[tuple[str, str, int, int, str]] = [
    (
        "broadcast_rows",
        "z.store(x.load((0, 0), (8, 4)) + x.load((0, 0), (8, 4)).sum(axis=1))",
        1,
        8,
        "(8, 4) and (8,) do not broadcast; did you mean x[:, None]?",
    ),
    (
        "broadcast_other",
        "z.store(a + tile.zeros((8, 4)))",
        1,
        8,
        "(8, 8) and (8, 4) do not broadcast",
    ),
    (
        "transposed_shapes",
        "z.store(x.load((0, 0), (8, 4)) * tile.zeros((4, 8)))",
        1,
        8,
        "(8, 4) and (4, 8) do not broadcast; did you mean x.T?",
    ),
    (
        "store_shape",
        "z.store(tile.zeros((8, 16)))",
        1,
        0,
        "the tiles of z have shape (8, 8), and this one has (8, 16)",
    ),
    (
        "store_dtype",
        "tile.scatter(counts, tile.arange(8), n)",
        1,
        0,
        "scatter: counts has elements of u8 and the value is i32, which may be negative; convert it, as in u8(x)",
    ),
    (
        "store_into_tensor",
        "x.store(a)",
        1,
        0,
        "x is a tile.Tensor, which a kernel only reads; declare it as tile.Partition",
    ),
    (
        "load_axes",
        "z.store(x.load(0, 8))",
        1,
        8,
        "x has 2 axes: load takes as many indices and lengths, not 1 and 1",
    ),
    (
        "load_fraction",
        "z.store(x.load((0.5, 0), (8, 8)))",
        1,
        8,
        "x.load takes integers that count in tiles, not a float",
    ),
    (
        "load_dynamic_shape",
        "z.store(x.load((0, 0), (n, 8)))",
        1,
        8,
        "x.load: the shape of a tile must be known when the kernel is compiled; pass its lengths as tile.Constant",
    ),
    (
        "load_empty",
        "z.store(x.load((0, 0), (0, 8)))",
        1,
        8,
        "x.load: a shape is one or more lengths of at least 1, not (0, 8)",
    ),
    (
        "load_padding",
        "z.store(x.load((0, 0), (8, 8), padding=n))",
        1,
        8,
        "the padding of a load is a number that is known when the kernel is compiled",
    ),
    (
        "whole_tensor",
        "z.store(x + 1)",
        1,
        8,
        "+ takes tiles, and x is a whole tensor; x.load(…) is one of its tiles",
    ),
    (
        "index_tensor",
        "z.store(x[0, 0])",
        1,
        8,
        "x[…] is no part of a tile kernel; x.load(index, shape) is a tile of it",
    ),
    (
        "index_tile",
        "z.store(a[0])",
        1,
        8,
        "a tile is indexed with : and None only, as in x[:, None]; sum, where and gather pick elements",
    ),
    (
        "assign_element",
        "a[0] = 1",
        1,
        0,
        "an element of a tile cannot be assigned; where(…) makes a tile with other elements",
    ),
    (
        "tile_attribute",
        "z.store(a.exp())",
        1,
        8,
        "a tile has no .exp; it has .shape .dtype .ndim .size .T and .sum() .max() .min() .argmax() "
        ".argmin() .cumsum() .reshape() .transpose() .astype(); tile.exp(x) may be what you mean",
    ),
    (
        "tensor_attribute",
        "n = x.strides",
        1,
        4,
        "a tensor has no .strides; it has .shape .dtype .ndim and .load(index, shape)",
    ),
    (
        "partition_attribute",
        "n = z.rows",
        1,
        4,
        "a partition has no .rows; it has .index .tile_shape .shape .dtype .ndim .load() and .store(tile)",
    ),
    (
        "unknown_word",
        "z.store(tile.dot(a, a))",
        1,
        8,
        "tile has no dot; use mma or @",
    ),
    (
        "near_word",
        "z.store(tile.maximun(a, 0))",
        1,
        8,
        "tile has no maximun; did you mean tile.maximum?",
    ),
    (
        "numpy_function",
        "z.store(np.exp(a))",
        1,
        8,
        "a tile kernel cannot call exp; tile.exp may be what you mean",
    ),
    (
        "math_function",
        "z.store(a * math.sqrt(n))",
        1,
        12,
        "sqrt takes numbers that are known when the kernel is compiled; tile.sqrt may be what you mean",
    ),
    (
        "own_function",
        "z.store(helper(a))",
        1,
        8,
        "a tile kernel cannot call helper; decorate a function of your own with @tile.function",
    ),
    (
        "mma_shapes",
        "z.store(tile.mma(a, x.load((0, 0), (4, 8)), a))",
        1,
        8,
        "mma takes tiles of shapes (m, k) and (k, n), not (8, 8) and (4, 8); did you mean b.T?",
    ),
    (
        "mma_sums",
        "z.store(tile.mma(a, a, tile.zeros((8, 8), f16)).astype(f32))",
        1,
        8,
        "mma: products of f32 are not summed in f16; use f32",
    ),
    (
        "mma_acc_shape",
        "z.store(tile.mma(a, a, tile.zeros((8, 4))))",
        1,
        8,
        "mma: (8, 8) times (8, 8) is (8, 8), and the sum that it adds to is (8, 4)",
    ),
    (
        "mma_tf32",
        "z.store(tile.mma(h, h, a, tf32=True))",
        1,
        8,
        "mma: tf32=True is for tiles of f32, not of f16",
    ),
    (
        "truth_of_tile",
        "if a > 0: z.store(a)",
        1,
        3,
        "if takes one truth value, and this is a tile (8, 8) of bool_; use where(…) for each element",
    ),
    (
        "while_tile",
        "while a: z.store(a)",
        1,
        0,
        "while takes one truth value, and this is a tile (8, 8) of f32; use where(…) for each element",
    ),
    (
        "changed_type",
        "t = 0.0\nfor k in range(n):\n    t = tile.zeros(8, i32)\n    t = t + 1",
        2,
        0,
        "t is f64 in line 18 and i32 in line 21, and both reach what follows: a variable has one type; convert one, or "
        "annotate it, as in t: i32 = …",
    ),
    (
        "changed_shape",
        "t = tile.zeros(8)\nfor k in range(n):\n    t = tile.zeros(4)",
        2,
        0,
        "t has shape (8,) before the loop and (4,) after an iteration of it",
    ),
    (
        "branch_types",
        "if n > 3: t = a\nelse:\n    t = a.astype(f64)\nz.store(t.astype(f32))",
        1,
        0,
        "t is f32 in line 18 and f64 in line 20, and both reach what follows: a variable has one type; convert one, or "
        "annotate it, as in t: f64 = …",
    ),
    (
        "only_one_branch",
        "if n > 3: t = a\nz.store(t)",
        2,
        8,
        "t is not defined here; a name that only one branch or a loop sets is not known after it",
    ),
    (
        "match",
        "match n:\n    case 0: z.store(a)",
        1,
        0,
        "a tile kernel cannot contain match; use if",
    ),
    (
        "returned",
        "return a",
        1,
        0,
        "a tile kernel returns nothing; it stores its result",
    ),
    (
        "comprehension",
        "t = [k for k in range(3)]",
        1,
        4,
        "a tile kernel cannot contain a comprehension; use a loop over static_range",
    ),
    (
        "lambda_",
        "t = (lambda v: v)(a)",
        1,
        5,
        "a tile kernel cannot contain a lambda; use a @tile.function",
    ),
    (
        "nested_function",
        "def f(v): return v",
        1,
        0,
        "a tile kernel cannot contain a function; decorate one outside of it with @tile.function",
    ),
    (
        "where_condition",
        "z.store(tile.where(a, a, a))",
        1,
        8,
        "where takes a condition of bools, not a tile (8, 8) of f32",
    ),
    (
        "bool_minus",
        "z.store(-(a > 0))",
        1,
        8,
        "- of bools: write &, | or ^ for logic, or convert to count, as in i32(x)",
    ),
    (
        "shift_floats",
        "z.store(a << 1)",
        1,
        8,
        "<< takes integers, not a tile (8, 8) of f32 and an int",
    ),
    (
        "big_literal",
        "z.store((a.astype(i8) + 1000).astype(f32))",
        1,
        9,
        "i8 + 1000: 1000 does not fit in i8, which holds -128 to 127; convert the other operand to a wider type, or "
        "write i8(1000), which wraps",
    ),
    (
        "reshape_size",
        "z.store(a.reshape(5, 5))",
        1,
        8,
        "a tile of shape (8, 8) cannot be reshaped to (5, 5)",
    ),
    (
        "reduce_axis",
        "z.store(a.sum(axis=2))",
        1,
        8,
        "sum: a tile of 2 axes has no axis 2",
    ),
    (
        "axis_dynamic",
        "z.store(a.sum(axis=n))",
        1,
        8,
        "sum: the axis is a number that is known when the kernel is compiled, not a scalar of i32",
    ),
    (
        "cat_shapes",
        "z.store(tile.cat((a, tile.zeros((8, 4))), axis=0))",
        1,
        8,
        "cat: (8, 8) and (8, 4) differ in another axis than 0",
    ),
    (
        "gather_float",
        "z.store(tile.gather(x, (a, a)))",
        1,
        8,
        "gather takes integers as indices, not a tile (8, 8) of f32",
    ),
    (
        "gather_axes",
        "z.store(tile.gather(x, tile.arange(8)))",
        1,
        8,
        "gather: x has 2 axes and takes as many tiles of indices, not 1",
    ),
    (
        "gather_tile",
        "z.store(tile.gather(a, (tile.arange(8), tile.arange(8))))",
        1,
        8,
        "gather takes a tensor, not a tile (8, 8) of f32",
    ),
    (
        "scatter_tensor",
        "tile.scatter(x, (tile.arange(8), tile.arange(8)), 1.0)",
        1,
        0,
        "x is a tile.Tensor, which a kernel only reads; declare it as tile.Target",
    ),
    (
        "atomic_type",
        "tile.atomic_max(h16, tile.arange(8), tile.zeros(8, f16))",
        1,
        0,
        "atomic_max changes elements of i32 i64 u32 u64 f32 f64, and h16 has f16",
    ),
    (
        "topk_k",
        "z.store(tile.topk(a, 9)[0])",
        1,
        8,
        "topk: k is a number from 1 to 8, the tile's length along axis 1, that is known when the kernel "
        "is compiled, not 9",
    ),
    (
        "missing_argument",
        "z.store(tile.where(a > 0, a))",
        1,
        8,
        "where needs b; it takes condition, a, b",
    ),
    (
        "extra_argument",
        "z.store(tile.exp(a, a))",
        1,
        8,
        "exp has 2 arguments, which are too many; it takes x",
    ),
    (
        "wrong_name",
        "z.store(tile.sum(a, dim=1))",
        1,
        8,
        "sum has no argument dim; it takes x, axis, keepdims",
    ),
    (
        "f_string",
        'print(f"{n}")',
        1,
        6,
        'a tile kernel cannot format strings; print("x", x) prints a text and values',
    ),
    (
        "unroll_dynamic",
        "for k in tile.static_range(n): z.store(a)",
        1,
        9,
        "static_range takes numbers that are known when the kernel is compiled; use range",
    ),
    (
        "loop_over_tile",
        "for k in a: z.store(a)",
        1,
        9,
        "a loop goes over range(…), tile.static_range(…) or a tuple, not over a tile (8, 8) of f32",
    ),
    (
        "undefined",
        "z.store(later)",
        1,
        8,
        "later is not defined",
    ),
    (
        "static_assert",
        'assert 1 > 2, "one is small"',
        1,
        0,
        "the assertion does not hold: one is small",
    ),
    (
        "assert_of_a_tile",
        "assert a > 0",
        1,
        0,
        "assert takes one truth value, and this is a tile (8, 8) of bool_; use where(…) for each element",
    ),
    (
        "unpack",
        "p, q = a",
        1,
        0,
        "2 names take a tuple of as many values, not a tile (8, 8) of f32",
    ),
    (
        "u64_and_i32",
        "z.store(a.astype(u64) // n)",
        1,
        8,
        "u64 // i32: no integer type holds both; convert one, as in i64(x) or u64(x)",
    ),
    (
        "literal_too_big_to_store",
        "tile.scatter(counts, tile.arange(8), 256)",
        1,
        0,
        "scatter: counts has elements of u8 and the value is 256, which does not fit; u8 holds 0 to 255, and u8(256) "
        "wraps",
    ),
    (
        "narrow_sum",
        "t = 0\nfor k in range(n):\n    t += a.astype(u8)",
        2,
        0,
        "t begins as an integer literal and takes the type u8, in which a sum soon wraps: write t: i32 = …, or t: u8 = "
        "… where that is meant",
    ),
    (
        "target_load",
        "t = t1.load(0, 8)",
        1,
        4,
        "a target has no .load; it has .shape .dtype .ndim, and gather, scatter and the atomic "
        "operations reach its elements",
    ),
]
"""Names, the statements, the line and the column of the error, and its words."""


@pytest.mark.parametrize(("name", "body", "line", "column", "problem"), CASES, ids=[case[0] for case in CASES])
def test_the_error(name: str, body: str, line: int, column: int, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    statements = body.split("\n")
    file.write_text(HEAD + "".join(f"    {each}\n" for each in statements), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"wrong_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    with pytest.raises(CompileError) as caught:
        module.wrong.specialize(z=(8, 8))
    number = HEAD.count("\n") + line
    assert str(caught.value) == f"{file}:{number}: {problem}\n    {statements[line - 1]}\n    {' ' * column}^"


def test_there_are_more_than_forty() -> None:
    assert len(CASES) > 40
