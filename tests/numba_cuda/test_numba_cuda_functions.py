"""numba.cuda's functions on the host that are programs of kernels: reductions, ufuncs, random states."""

from __future__ import annotations

import numpy as np
import pytest
from numba.cuda.random import xoroshiro128p_uniform_float64

from oxide import numba_cuda as cuda
from oxide.numba_cuda import random as cuda_random

RNG = np.random.default_rng(3)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 31, 128, 1000, 10007])
def test_reductions(size: int) -> None:
    x = RNG.random(size)
    total = cuda.reduce(lambda a, b: a + b)
    np.testing.assert_allclose(total(x), x.sum(), rtol=1e-12)
    d = cuda.to_device(x)
    result = cuda.device_array(1)
    assert total(d, res=result, init=2.0) is None
    np.testing.assert_allclose(result[0], x.sum() + 2, rtol=1e-12)
    np.testing.assert_array_equal(d.copy_to_host(), x)
    assert cuda.Reduce(lambda a, b: a if a > b else b)(d, init=-1.0) == x.max()
    assert total(d[:0], init=5.0) == 5


def test_ufuncs() -> None:
    @cuda.vectorize(["float32(float32, float32)", "float64(float64, float64)"], target="cuda")
    def mean(a, b):
        return (a + b) / 2

    x, y = RNG.random((5, 7)), RNG.random(7)
    np.testing.assert_array_equal(mean(x, y), (x + y) / 2)
    np.testing.assert_array_equal(mean(cuda.to_device(x), cuda.to_device(y)).copy_to_host(), (x + y) / 2)
    on_device = mean(cuda.to_device(x), cuda.to_device(np.full((5, 7), 2.0)))
    np.testing.assert_array_equal(on_device.copy_to_host(), (x + 2) / 2)
    assert mean(x.astype(np.float32), y.astype(np.float32)).dtype == np.float32
    with pytest.raises(TypeError, match="needs signatures"):
        cuda.vectorize(mean)
    with pytest.raises(NotImplementedError, match="parallel"):
        cuda.vectorize(["f8(f8)"], target="parallel")


def test_generalised_ufuncs() -> None:
    @cuda.guvectorize(["void(float64[:,:], float64[:,:], float64[:,:])"], "(m,n),(n,p)->(m,p)", target="cuda")
    def product(a, b, c):
        for i in range(c.shape[0]):
            for j in range(c.shape[1]):
                total = 0.0
                for k in range(a.shape[1]):
                    total += a[i, k] * b[k, j]
                c[i, j] = total

    a, b = RNG.random((6, 3, 4)), RNG.random((6, 4, 5))
    np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-12)


def test_random_states_are_device_arrays() -> None:
    states = cuda_random.create_xoroshiro128p_states(64, seed=5)

    @cuda.jit
    def draw(states, out):
        i = cuda.grid(1)
        out[i] = xoroshiro128p_uniform_float64(states, i)

    one, two, again = (np.zeros(64) for _ in range(3))
    draw[1, 64](states, one)
    draw[1, 64](states, two)
    cuda_random.init_xoroshiro128p_states(states, 5)
    draw[1, 64](states, again)
    np.testing.assert_array_equal(one, again)
    assert not np.any(one == two)
    assert (one >= 0).all()
    assert (one < 1).all()


def test_a_module_of_numba_cudas_is_used_in_a_kernel_through_the_import() -> None:
    @cuda.jit
    def draw(states, out):
        i = cuda.grid(1)
        out[i] = cuda.random.xoroshiro128p_normal_float32(states, i)

    out = np.zeros(32)
    draw[1, 32](cuda.random.create_xoroshiro128p_states(32, 1), out)
    assert np.unique(out).size == 32
