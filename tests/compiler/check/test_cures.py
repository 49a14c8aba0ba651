"""Errors name the cure, and with the cure the kernel runs: no error leads to a second one."""

from __future__ import annotations

import itertools
import linecache
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import cuda

import oxide
from oxide import ArgumentError, CompileError, LaunchError, d2h, h2d, i32, tile, zeros

KERNEL = """
{outside}
@kernel(block=32)
def k(x: Slice[f32], m: Slice2[f32], h: {h}, pair: tuple[f32, f32], named: Pair, y: DisjointSlice[f32]):
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        {body}
"""
NUMBER = itertools.count()


class Pair(NamedTuple):
    """Two numbers by name, as an argument of a kernel."""

    first: oxide.f32
    second: oxide.f32


class Weights:
    """A class that holds numbers, which kernels do not look into."""

    W = (1.0,) * 65


MODULE = types.ModuleType("weights")
vars(MODULE)["W"] = (1.0,) * 65


def defined(text: str) -> Any:
    """Runs the text of a program, and returns its kernel ``k``."""
    name = f"<cure {next(NUMBER)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    names: dict[str, Any] = {**vars(oxide), "np": np, "cuda": cuda, "Pair": Pair, "C": Weights, "mod": MODULE}
    exec(compile(text, name, "exec", dont_inherit=True), names)
    return names["k"]


def run(outside: str, body: str, h: str = "AtomicSlice[i32]") -> float:
    """Runs the body for arrays of ones and pairs of 1 and 2. Returns the output's first element."""
    kernel = defined(KERNEL.format(outside=outside, body=body.replace("\n", "\n        "), h=h))
    ones = h2d(np.ones(4, np.float32))
    boxes = kernel(ones, h2d(np.ones((2, 2), np.float32)), zeros(4, i32), (1.0, 2.0), Pair(1.0, 2.0), zeros(4))
    return float(boxes.last().to_host().sync()[0])


LOOP = "for w in W:\n    e.value += w"
CURES = [
    # what is outside the kernel, the wrong body, what is said, the same cured, and the result
    ("", "v: i8 = 300\ne.value = v", "300, which does not fit; i8 holds -128", "", "v: i16 = 300\ne.value = v", 300),
    ("", "v: u32 = x[0]\ne.value = v", "the value is f32; convert it, as in u32(x)",
     "", "v: u32 = u32(x[0])\ne.value = v", 1),
    ("", "v: np.float32 = x[0]\ne.value = v", "write v: f32", "", "v: f32 = x[0]\ne.value = v", 1),
    ("", "v: float = x[0]\ne.value = v", "v: f32, or leave the annotation out", "", "v = x[0]\ne.value = v", 1),
    ("", "e.value: f32 = x[0]", "write e.value = f32(x[0])", "", "e.value = f32(x[0])", 1),
    ("", "v: f32\ne.value = v", "v is read here before it", "", "v: f32\nv = x[0]\ne.value = v", 1),
    ("W = (1.0,) * 65", LOOP, "write W = np.array(W, np.float32), and", "W = np.ones(65, np.float32)", LOOP, 65),
    ("W = [1, 2]", LOOP, "write W = np.array(W), and loop over it", "W = np.array([1, 2])", LOOP, 3),
    ("W = [True, False]", LOOP, "write W = np.array(W), and loop", "W = np.array([True, False])", LOOP, 1),
    ("W = 1.0, 2.0", "e.value = W[1]", "W = np.array(W, np.float32), which", "W = np.array((1.0, 2.0), np.float32)",
     "e.value = W[1]", 2),
    ("W = 1, 2", "e.value = W[i.get()]", "W = np.array(W), which", "W = np.array((1, 2))", "e.value = W[0]", 1),
    ("W = 1, 2", "for n in range(len(W)):\n    e.value += W[n]", "W = np.array(W), which", "W = np.array((1, 2))",
     "for n in range(len(W)):\n    e.value += W[n]", 3),
    ("W = (1,) * 65", "for n, w in enumerate(W):\n    e.value += w", "W = np.array(W), which", "W = np.ones(65, int)",
     "for n, w in enumerate(W):\n    e.value += w", 65),
    ("W = (1, 2), (3, 4)", LOOP, "write W = np.array(W), and loop", "W = np.array(((1, 2), (3, 4)))",
     "for n in range(len(W)):\n    e.value += W[n, 0]", 4),
    ("W = np.ones((2, 2), np.float32)", LOOP, "over rows, write: for i in range(len(W)), and W[i, j]",
     "W = np.ones((2, 2), np.float32)", "for n in range(len(W)):\n    e.value += W[n, 1]", 2),
    ("", "for w in mod.W:\n    e.value += w", "write W = np.array(mod.W, np.float32), and loop over it",
     "W = np.array(mod.W, np.float32)", LOOP, 65),
    ("", "for w in C.W:\n    e.value += w", "kernel, as in W = np.array(C.W, np.float32)",
     "W = np.array(C.W, np.float32)", LOOP, 65),
    ("W = 1, 2, 3", "for w in W[1:]:\n    e.value += w", "write numbers = np.array(W[1:]), and loop over it",
     "W = 1, 2, 3; numbers = np.array(W[1:])", "for w in numbers:\n    e.value += w", 5),
    ("", f"for w in ({'1.0, ' * 65}):\n    e.value += w", "outside the kernel write numbers = np.array([1.0, 1.0",
     "numbers = np.ones(65, np.float32)", "for w in numbers:\n    e.value += w", 65),
    ("", "for w in (x[0], 2.0):\n    e.value += w", "or store them in a LocalArray, and loop over it",
     "", "a = LocalArray(2, f32)\na[0] = x[0]\na[1] = 2.0\nfor w in a:\n    e.value += w", 3),
    ("R = range(3)", "for w in R:\n    e.value += w", "write range(0, 3) in the kernel", "",
     "for w in range(0, 3):\n    e.value += w", 3),
    ("", "for w in x[1:3]:\n    e.value += w", "write: for i in range(1, 3), and x[i]", "",
     "for n in range(1, 3):\n    e.value += x[n]", 2),
    ("", "for w in x[1:]:\n    e.value += w", "write: for i in range(1, len(x)), and x[i]", "",
     "for n in range(1, len(x)):\n    e.value += x[n]", 3),
    ("", "for w in m[:, 0]:\n    e.value += w", "m.col(0) is a view", "", "for w in m.col(0):\n    e.value += w", 2),
    ("", "for w in m:\n    e.value += w", "for i in range(m.shape[0]), and m[i, j]", "",
     "for n in range(m.shape[0]):\n    e.value += m[n, 0]", 2),
    ("", "for w in h:\n    e.value += w", "for i in range(len(h)), and h.load(i)", "",
     "for n in range(len(h)):\n    e.value += h.load(n) + 1", 4),
    ("", "for w in pair:\n    e.value += w", "for each element, as pair[0], or", "", "e.value = pair[0]", 1),
    ("", "for w in named:\n    e.value += w", "for each element, as named.first, or", "", "e.value = named.first", 1),
    ("", "for w in y:\n    e.value += w", "a thread reaches its own element, y.get_mut(index)", "", "e.value = 1", 1),
]  # fmt: skip


@pytest.mark.parametrize(("outside", "wrong", "said", "cured_outside", "cured", "result"), CURES)
def test_with_the_cure_that_an_error_names_the_kernel_runs(
    outside: str, wrong: str, said: str, cured_outside: str, cured: str, result: float
) -> None:
    with pytest.raises(CompileError) as error:
        run(outside, wrong)
    assert said in str(error.value)
    assert run(cured_outside, cured) == result


ATOMICS = {
    "add(h, 0, 1)": "h.fetch_add(0, 1)",
    "sub(h, i.get(), 1)": "h.fetch_sub(i.get(), 1)",
    "max(h, 0, 1)": "h.fetch_max(0, 1)",
    "min(h, 0, 1)": "h.fetch_min(0, 1)",
    "and_(h, 0, 1)": "h.fetch_and(0, 1)",
    "or_(h, 0, 1)": "h.fetch_or(0, 1)",
    "xor(h, 0, 1)": "h.fetch_xor(0, 1)",
    "exch(h, 0, 1)": "h.exchange(0, 1)",
    "cas(h, 0, 1, 2)": "h.compare_exchange(0, 1, 2)",
}


@pytest.mark.parametrize("annotation", ["AtomicSlice[i32]", "DisjointSlice[i32]", "Slice[i32]"])
@pytest.mark.parametrize("call", ATOMICS)
def test_atomics_of_numba_cuda_on_a_slice_are_answered_with_the_slices_own(call: str, annotation: str) -> None:
    with pytest.raises(CompileError) as error:
        run("", f"cuda.atomic.{call}", annotation)
    assert f"takes arrays: write {ATOMICS[call]}, where h is an AtomicSlice[...]" in str(error.value)
    assert run("", ATOMICS[call]) == 0


@pytest.mark.parametrize(
    "body",
    [
        "e.value = np.sum(x, dtype=np.float32)",
        "e.value = np.float32(np.sum(x))",
        "e.value = np.float32(0) + np.sum(x)",
        "total = np.float32(0)\ne.value = total + np.sum(x)",
        "e.value = np.sum(x[1:])",
        "e.value = np.sum(x).astype(np.float32)",
        "v: np.float32 = np.sum(x)",
    ],
)
def test_a_type_that_is_named_as_in_numpy_hides_no_function_of_numpy(body: str) -> None:
    with pytest.raises(
        CompileError, match=r"np\.sum is not supported in kernels: use a for loop over range\(len\(x\)\)"
    ):
        run("", body)


def test_methods_of_arrays_are_answered_as_numpys_functions_are() -> None:
    with pytest.raises(CompileError, match=r"x\.sum is not supported in kernels: use a for loop .*reduce_sum"):
        run("", "e.value = x.sum(dtype=np.float32)")
    with pytest.raises(CompileError, match=r"x\.astype is not supported in kernels: .* as in f32\(x\[i\]\)"):
        run("", "e.value = x.astype(np.float32)[0]")
    with pytest.raises(CompileError, match=r"np\.float32 is NumPy's: in a kernel the type is f32"):
        run("", "e.value = LocalArray(2, np.float32)[0]")


TILE = """
@tile.kernel
def k(y: tile.Partition[f32, 1], x: tile.Tensor[f32, 1]):
    v = tile.load_like(x, y)
    {body}
"""


def run_tile(body: str) -> float:
    y = zeros(4).sync()
    defined(TILE.format(body=body))(y.partition(4), h2d(np.array([4, 3, 2, 1], np.float32))).sync()
    return float(d2h(y).sync()[0])


@pytest.mark.parametrize(
    ("wrong", "said", "cured", "result"),
    [
        ("y.store(sorted(v))", "sorted is not supported in tile kernels; use sort(x)", "y.store(tile.sort(v))", 1),
        ("y.store(pow(v, 2))", "pow is not supported in tile kernels; use **", "y.store(v ** 2)", 16),
        ("y.store(exp(v - v))", "exp is not defined; did you mean tile.exp?", "y.store(tile.exp(v - v))", 1),
        ("y.store(w)", "w is not defined", "y.store(v)", 4),
        (
            "for n in enumerate(v): pass",
            "enumerate is not supported in tile kernels; use a loop over range(n)",
            "y.store(v)",
            4,
        ),
        ("y.store(v * len(v))", "x.shape[0] is the length of the first axis", "y.store(v * v.shape[0])", 16),
        ("if v.sum() > 0:\n        w = v\n    y.store(w)", "only one branch or a loop sets", "y.store(v)", 4),
    ],
)
def test_names_that_a_tile_kernel_does_not_have(wrong: str, said: str, cured: str, result: float) -> None:
    with pytest.raises(CompileError) as error:
        run_tile(wrong)
    assert said in str(error.value)
    assert "not known after it" not in str(error.value) or "branch" in said
    assert run_tile(cured) == result


@oxide.kernel(block=32)
def first_of(x: oxide.Slice[oxide.f32], y: oxide.DisjointSlice[oxide.f32]) -> None:
    e = y.get_mut(oxide.thread.index_1d())
    if e is not None:
        e.value = x[0]


@oxide.kernel
def untyped(x, y):  # type: ignore[no-untyped-def]
    y[0] = x[0]


@tile.kernel
def copied(y: tile.Partition[oxide.f32, 1], x: tile.Tensor[oxide.f32, 1]) -> None:
    y.store(tile.load_like(x, y))


@pytest.mark.parametrize("x", [[1, 2], [1.0, 2.0], (1.0, 2.0), range(1, 3), [np.float64(1)], [[1], [2]]])
def test_a_list_for_an_array_is_answered_with_the_upload_of_its_type(x: Any) -> None:
    advised = r"h2d\(np\.array\(x, 'float32'\)\)"
    with pytest.raises(ArgumentError, match=rf"kernel first_of, parameter x: .* with {advised}"):
        first_of(x, zeros(1))
    with pytest.raises(ArgumentError, match=rf"kernel copied: parameter x is .*; pass a box, as {advised} makes one"):
        copied(zeros(2).sync().partition(2), x)
    with pytest.raises(ArgumentError, match=rf"kernel copied: parameter y is .*; pass {advised}\.partition\(shape\)"):
        copied(x, zeros(2).sync())
    if not isinstance(x, tuple):
        with pytest.raises(ArgumentError, match=r"kernel untyped, parameter x: .* with h2d\(np\.array\(x\)\)"):
            untyped[1, 1](x, zeros(1))
    box = h2d(np.array(x, "float32"))
    assert first_of(box, zeros(1)).last().to_host().sync() == [1]


def test_a_tuple_of_a_launch_is_no_list_of_numbers() -> None:
    with pytest.raises(ArgumentError, match="a tuple, as a launch yields all its arguments; pick one of them"):
        first_of((1.0, zeros(1).sync()), zeros(1))


def test_an_upload_of_another_type_is_answered_with_the_conversion() -> None:
    x = np.ones(1)
    with pytest.raises(ArgumentError, match=r"a box of float64; .* before the upload: array\.astype\('float32'\)"):
        first_of(h2d(x), zeros(1))
    assert first_of(h2d(x.astype("float32")), zeros(1)).last().to_host().sync() == [1]


def test_a_partition_where_a_box_is_meant() -> None:
    part = h2d(np.ones(2, np.float32)).sync().partition(1)
    for copy in (d2h, h2d, oxide.dup):
        with pytest.raises(TypeError, match=r"its box is its unpartition\(\)"):
            copy(part)
    with pytest.raises(TypeError, match=r"its box is its unpartition\(\)"):
        oxide.value(part).and_then(d2h).sync()
    with pytest.raises(ArgumentError, match=r"a Partition, which is for tile kernels; pass partition\.unpartition\(\)"):
        first_of(part, zeros(1))
    np.testing.assert_array_equal(d2h(part.unpartition()).sync(), 1)
    assert first_of(part.unpartition(), zeros(1)).last().to_host().sync() == [1]


def test_a_tile_kernel_takes_no_brackets() -> None:
    said = r"kernel copied is a tile kernel, .* each tile of y, .*warps=.*; call copied\(y, x\)"
    for configuration in ((1, 32), oxide.LaunchConfig(1, 32), 1):
        with pytest.raises(LaunchError, match=said):
            copied[configuration](zeros(2).sync().partition(2), zeros(2).sync())
