"""The kernel library against NumPy in float64, compiled for the host."""

from __future__ import annotations

import numpy as np
import pytest

from oxide import BoundsError, f32
from oxide_kernels import matvec_naive, relu, sgemm_naive
from tests.compiler.native_runner import fault_of, run, run_blocks


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 5), (1, 1, 1), (31, 33, 7), (64, 64, 64), (33, 17, 0), (5, 70, 129)])
def test_sgemm_naive_equals_numpy(m: int, n: int, k: int) -> None:
    random = np.random.default_rng(m * 1000 + n)
    a, b, c = (random.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    expected = 1.5 * a.astype(np.float64) @ b.astype(np.float64) - 0.5 * c
    grid = (max(1, -(-n // 16)), max(1, -(-m // 16)), 1)
    record = run_blocks(sgemm_naive, grid, (16, 16, 1), m, n, k, 1.5, a, b, -0.5, c)
    assert fault_of(sgemm_naive, record) is None
    np.testing.assert_allclose(c, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("m", "n"), [(0, 3), (1, 1), (31, 33), (1000, 257), (5, 0)])
def test_matvec_naive_equals_numpy(m: int, n: int) -> None:
    random = np.random.default_rng(m)
    matrix, vector = random.standard_normal((m, n)).astype(np.float32), random.standard_normal(n).astype(np.float32)
    result = np.full(m, 9, np.float32)
    run(matvec_naive, m, m, n, matrix, vector, result, block=256)
    np.testing.assert_allclose(result, matrix.astype(np.float64) @ vector, rtol=2e-5, atol=2e-5)


def test_a_matrix_one_element_too_short_is_a_fault_that_names_it() -> None:
    a, b, c = np.ones(15, np.float32), np.ones(16, np.float32), np.zeros(16, np.float32)
    record = run_blocks(sgemm_naive, (1, 1, 1), (4, 4, 1), 4, 4, 4, 1.0, a, b, 0.0, c)
    fault = fault_of(sgemm_naive, record)
    assert isinstance(fault, BoundsError)
    assert (fault.parameter, fault.index, fault.length, fault.thread) == ("a", 15, 15, (0, 3, 0))
    np.testing.assert_array_equal(c, [4] * 12 + [0] * 4)  # the threads of the last row left


def test_what_each_kernel_asks_of_a_launch() -> None:
    assert sgemm_naive.specialize().needs.index_2d
    assert not sgemm_naive.specialize().needs.index_1d
    for kernel, special in ((matvec_naive, matvec_naive.specialize()), (relu, relu.specialize(T=f32))):
        assert kernel.default_block == (256, 1, 1)
        assert special.needs.index_1d
