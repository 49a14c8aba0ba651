"""Device functions that numba has compiled for given types alone: arguments are converted, and others are refused."""

from __future__ import annotations

from types import SimpleNamespace

import numba
import numpy as np
import pytest
from numba import cuda

from oxide import CompileError, kernel
from tests.numba_cuda.launching import launch


@numba.jit("(i4, i4)")
def host_sum(x, y):
    return x + y


def test_arguments_are_converted_to_what_a_device_function_was_compiled_for() -> None:
    @cuda.jit(device=True)
    def whole_sum(x, y):
        return x + y

    # As `@cuda.jit("int32(int32, int32)", device=True)` leaves it, which needs a GPU.
    types = numba.int32, numba.int32
    whole_sum.overloads[types] = SimpleNamespace(signature=numba.int32(*types), objectmode=False)
    whole_sum.disable_compile()

    @kernel
    def add(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = whole_sum(x[i], 0.75)

    x = np.random.default_rng(3).uniform(-100, 100, 33)
    _, out = launch(add, 1, 64, x, np.zeros(33))
    whole_sum.overloads.clear()  # numba-cuda would look for machine code in them when it drops the function
    np.testing.assert_array_equal(out, np.trunc(x))


def test_a_host_function_with_explicit_signatures_is_refused_in_a_kernel() -> None:
    @kernel
    def add(x):
        x[0] = host_sum(x[0], 1)

    with pytest.raises(CompileError, match="host_sum"):
        launch(add, 1, 1, np.zeros(1))
