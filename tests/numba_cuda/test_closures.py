"""Variables of the function around a kernel that have no value: numba prunes the branches that name them."""

from __future__ import annotations

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
