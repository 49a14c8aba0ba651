"""What errors advise exists: every name in an advice is looked up, and every name refused is Python's or NumPy's."""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numba import cuda

import oxide
import oxide_kernels
from oxide import CompileError, DisjointSlice, Slice, f32, kernel, thread, warp
from oxide.compiler.check import advice, constructs
from oxide.compiler.signature import annotations
from oxide.driver.base import KernelResources
from oxide.language import arrays, tile
from tests.compiler.check.test_wrong_kernels import snapshots


@kernel
def sample(y: DisjointSlice[oxide.f64]) -> None:
    pass


KNOWN: dict[str, Any] = {
    **vars(builtins),
    **{name: getattr(oxide, name) for name in oxide.__all__},
    "math": math,
    "np": np,
    "cuda": cuda,
    "oxide_kernels": oxide_kernels,
    "kernel": sample,
    "Array": arrays.Array,
}
# What stands for a name of the reader's own: "." after it is not looked up.
THEIRS = {"x", "y", "a", "b", "c", "e", "element", "c_elem", "index", "Shape", "helper", "i"}
# An attribute of a slice and of what get_mut gives.
METHODS = {"get_mut", "fetch_add", "value", "get", "scatter", "shape"}
# Words of prose, and names of the kernels in the snapshots, that a parenthesis follows.
PROSE = {"scalar", "into", "copy", "add", "fsum", "fill", "tile", "forall", "popc", "index_ld"}


def texts() -> Iterator[str]:
    for table in (advice.NUMPY, advice.BUILTINS, advice.INSTEAD, constructs.UNSUPPORTED):
        yield from table.values()
    for style in (False, True):
        yield advice.allocating(style)
    yield annotations.of_annotation(complex)
    yield annotations.of_annotation(np.ndarray)
    for answer in snapshots().values():
        problem = answer.split("\n")[0]
        yield problem.partition("use ")[2] or problem.partition("write ")[2]


def exists(name: str) -> bool:
    first, *rest = name.split(".")
    if first in THEIRS:
        return all(part in METHODS for part in rest)
    found = KNOWN.get(first)
    if found is None and first in METHODS:
        return True
    for part in rest:
        if found == sample.resources:
            found = KernelResources
        found = True if part in getattr(found, "__dataclass_fields__", ()) else getattr(found, part, None)
    return found is not None


@pytest.mark.parametrize("text", sorted(set(texts())))
def test_every_name_in_an_advice_exists(text: str) -> None:
    without_calls = text.replace("kernel.resources().", "kernel.resources.")
    names = set(re.findall(r"(?<![\w.'])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)", without_calls))
    names |= set(re.findall(r"(?<![\w.'@])([A-Za-z_]\w*)(?=\()", text))
    for name in sorted(names - PROSE):
        assert exists(name), (name, text)


def test_the_lookup_finds_what_is_missing() -> None:
    assert all(map(exists, ("math.exp", "kernel.resources.local_bytes", "oxide_kernels.ops.reduce_sum")))
    assert not any(map(exists, ("math.add", "thread.index_4d", "kernel.forall")))


def test_what_is_refused_by_name_is_a_name_of_python_and_numpy() -> None:
    assert all(hasattr(builtins, name) for name in advice.BUILTINS)
    here = {name for name in advice.NUMPY if hasattr(np, name)}
    assert set(advice.NUMPY) - here <= {"pow"}  # from NumPy 2 on


OF_INTEGERS = {"gcd", "lcm", "isqrt"}


@pytest.mark.parametrize("instead", sorted({text for text in advice.NUMPY.values() if text.startswith("math.")}))
def test_the_mathematics_that_is_advised_compiles(instead: str) -> None:
    name, _, arguments = instead.removeprefix("math.").removesuffix(")").partition("(")
    function, given = getattr(math, name), arguments.split(", ")

    @kernel
    def of_one(x: Slice[oxide.f64], n: oxide.i64) -> None:
        result = function(x[0])  # noqa: F841

    @kernel
    def of_two(x: Slice[oxide.f64], n: oxide.i64) -> None:
        result = function(x[0], x[1])  # noqa: F841

    @kernel
    def of_a_float_and_an_integer(x: Slice[oxide.f64], n: oxide.i64) -> None:
        result = function(x[0], n)  # noqa: F841

    @kernel
    def of_two_integers(x: Slice[oxide.f64], n: oxide.i64) -> None:
        result = function(n, n)  # noqa: F841

    made = of_a_float_and_an_integer if name == "ldexp" else of_two_integers if name in OF_INTEGERS else of_two
    (made if len(given) == 2 else of_one).llvm_ir()


def test_a_near_name_is_offered_and_a_far_one_is_not() -> None:
    assert advice.similar("suffle_down", vars(warp)) == "; did you mean shuffle_down?"
    assert advice.similar("zzz", vars(warp)) == ""


def test_the_hints_for_sign_and_round_have_the_same_results() -> None:
    assert "(x > 0) - (x < 0)" in advice.NUMPY["sign"]
    assert advice.NUMPY["round"] == "np.rint(x)"


def test_no_advice_is_kept_for_a_word_that_tile_kernels_have() -> None:
    assert not tile.WORDS.keys() & {*tile._INSTEAD, *tile._INSTEAD_OF_BUILTINS}


def test_a_function_of_numpy_that_is_called_wrongly_names_the_one_of_numbers() -> None:
    def body(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = np.arctan(x)

    with pytest.raises(CompileError, match=r"use math\.atan\(x\)"):
        kernel(body).specialize()
