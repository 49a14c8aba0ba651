"""Kernels that read rows, with rows that begin anywhere: on a GPU, warps take different versions of the loop."""

from __future__ import annotations

import numpy as np
import pytest

from oxide import DisjointSlice, LaunchConfig, Slice, f32, f64, h2d, i32, kernel, thread, u32, zeros
from oxide_kernels import matvec_2d, matvec_naive, sgemm_2d, sgemm_naive


@pytest.mark.parametrize("k", [0, 1, 4, 7, 8, 31, 33, 130, 1024])
def test_products_are_right_for_rows_of_any_length(k: int) -> None:
    m, n = 37, 41
    random = np.random.default_rng(k)
    a, b, c = (random.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    expected = 0.5 * a.astype(np.float64) @ b.astype(np.float64) + 2.0 * c
    config = LaunchConfig(grid=(3, 3), block=(16, 16))
    launches = (
        sgemm_naive[config](m, n, k, 0.5, h2d(a), h2d(b), 2.0, h2d(c)),
        sgemm_2d[config](0.5, h2d(a), h2d(b), 2.0, h2d(c)),
    )
    for launch in launches:
        result = launch.last().to_host().sync()
        assert np.abs(result - expected).max() <= 1e-5 * max(1.0, float(np.abs(expected).max()))


@pytest.mark.parametrize("n", [0, 1, 3, 4, 9, 12, 33, 1003])
def test_products_with_a_vector_are_right_for_rows_of_any_length(n: int) -> None:
    m = 1001
    random = np.random.default_rng(n)
    matrix, vector = random.standard_normal((m, n)).astype(np.float32), random.standard_normal(n).astype(np.float32)
    expected = matrix.astype(np.float64) @ vector
    launches = (
        matvec_naive[LaunchConfig.for_num_elems(m)](m, n, h2d(matrix), h2d(vector), zeros(m)),
        matvec_2d(h2d(matrix), h2d(vector), zeros(m)),
    )
    for launch in launches:
        found = launch.last().to_host().sync()
        assert np.abs(found - expected).max() <= 1e-5 * max(1.0, float(np.abs(expected).max()))


@kernel(block=64)
def sums_from(starts: Slice[i32], length: u32, x: Slice[f64], sums: DisjointSlice[f64]) -> None:
    """``sums[i]`` is the sum of ``length`` elements of ``x`` from ``starts[i]`` on."""
    index = thread.index_1d()
    element = sums.get_mut(index)
    if element is not None:
        start = starts[index.get()]
        total = f64(0.0)
        for i in range(length):
            total += x[start + i]
        element.value = total


@pytest.mark.parametrize("step", [1, 2, 4])
def test_the_threads_of_a_warp_may_begin_where_they_like(step: int) -> None:
    x = np.random.default_rng(step).standard_normal(5000)
    starts = (step * np.arange(999)).astype(np.int32)
    result = sums_from(h2d(starts), 100, h2d(x), zeros(999, dtype=f64)).last().to_host().sync()
    np.testing.assert_allclose(result, [x[start : start + 100].sum() for start in starts], rtol=1e-12, atol=1e-12)


@kernel(block=64)
def total_of(length: u32, x: Slice[f32], sums: DisjointSlice[f32]) -> None:
    element = sums.get_mut(thread.index_1d())
    if element is not None:
        total = f32(0.0)
        for i in range(length):
            total += x[i]
        element.value = total


@pytest.mark.parametrize("piece", [1, 2, 5, 501, 502, 503, 504])
def test_a_piece_of_a_box_may_begin_off_the_boundary(piece: int) -> None:
    x = np.random.default_rng(piece).standard_normal(2 * piece).astype(np.float32)
    second = h2d(x).sync().split(piece)[1]
    result = total_of(piece, second, zeros(3)).last().to_host().sync()
    np.testing.assert_allclose(result, [x[piece:].astype(np.float64).sum()] * 3, rtol=1e-4, atol=1e-4)
