"""Variables from outside of a kernel that have no value, and missing attributes: numba prunes the branches that name
them."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numba import cuda

from oxide import CompileError, DisjointSlice, Kernel, Slice, device, f32, i64, kernel, thread
from tests.numba_cuda.launching import launch


def scaled(feature: bool) -> Any:
    if feature:
        weight = 3.0

        @cuda.jit(device=True)
        def twice(value):
            return value * 2

        @device
        def thrice(value):
            return value * weight

    def body(x, out):
        i = cuda.grid(1)
        if i < x.size:
            if feature:
                out[i] = twice(x[i]) + thrice(x[i]) + weight
            else:
                out[i] = x[i]

    return body


@pytest.mark.parametrize("make", [kernel, lambda body: kernel(cuda.jit(body))], ids=["kernel", "adopted"])
def test_a_variable_that_is_bound_only_when_a_feature_is_on_may_be_named_behind_it(make: Any) -> None:
    x = np.arange(5.0)
    for feature, expected in ((True, 5 * x + 3), (False, x)):
        _, out = launch(make(scaled(feature)), 1, 8, x, np.zeros(5))
        np.testing.assert_array_equal(out, expected)


FLAG = False
features = ModuleType("features")


def with_dead_branches(flag: int, nothing: object, text: str) -> list[Any]:
    """Kernels that add one. Each has a branch that a value from outside makes dead, with an attribute that is
    missing."""

    @cuda.jit(device=True)
    def add_in_function(value):
        if flag == 1:
            return features.missing(value)
        return value + 1

    def comparison(x):
        if flag == 1:
            t = features.missing.array(3)
            t[0] = x[0]
        elif flag == 0:
            x[0] += 1

    def a_global(x):
        if FLAG:
            x[0] = features.missing(x[0])
        else:
            x[0] += 1

    def none(x):
        if nothing is not None:
            x[0] = features.missing[3]
        x[0] += 1

    def of_texts(x):
        if text == "other":
            x[0] = math.missing(x[0])
        x[0] += 1

    def negation(x):
        if not flag:
            x[0] += 1
        else:
            x[0] = features.missing

    def expression(x):
        x[0] += features.missing if flag else 1

    def in_a_function(x):
        x[0] = add_in_function(x[0])

    return [comparison, a_global, none, of_texts, negation, expression, in_a_function]


@pytest.mark.parametrize("body", with_dead_branches(0, None, "this"), ids=lambda body: body.__name__)
@pytest.mark.parametrize("make", [kernel, lambda body: kernel(cuda.jit(body))], ids=["kernel", "adopted"])
def test_an_attribute_may_be_missing_in_a_branch_that_a_value_from_outside_makes_dead(make: Any, body: Any) -> None:
    x = launch(make(body), 1, 1, np.zeros(1))
    assert x[0] == 1


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (with_dead_branches(1, None, "this")[0], "features has no missing"),
        (with_dead_branches(0, None, "other")[3], "math has no missing"),
        (lambda x: math.sqroot(x[0]), r"math has no sqroot; did you mean sqrt\?"),  # type: ignore[attr-defined]
        (lambda x: np.no_such(x[0]), "np has no no_such"),  # type: ignore[attr-defined]
    ],
)
def test_an_attribute_that_is_missing_in_a_live_branch_is_refused_at_its_line(body: Any, problem: str) -> None:
    with pytest.raises(CompileError, match=rf"test_closures\.py:\d+: {problem}"):
        launch(kernel(body), 1, 1, np.zeros(1))


def test_a_kernel_may_be_declared_before_its_surroundings_are_assigned() -> None:
    def make() -> Kernel:
        @kernel
        def add(out: DisjointSlice[i64]) -> None:
            element = out.get_mut(thread.index_1d())
            if element is not None:
                element.value = later

        later = 7
        return add

    out = launch(make(), 1, 4, np.zeros(4, np.int64))
    np.testing.assert_array_equal(out, np.full(4, 7))


def test_a_typed_kernel_that_reads_one_without_a_value_is_refused_at_its_line() -> None:
    def make(feature: bool) -> Kernel:
        if feature:
            weight = 2.0

        @kernel
        def scale(x: Slice[f32], out: DisjointSlice[f32]) -> None:
            element = out.get_mut(thread.index_1d())
            if element is not None:
                element.value = x[0] * weight

        return scale

    assert make(True).ptx()
    with pytest.raises(CompileError, match=r"weight has no value: the function around scale has not assigned it yet\n"):
        make(False).ptx()
