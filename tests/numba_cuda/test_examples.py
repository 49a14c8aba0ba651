"""The programs that numba-cuda's documentation shows: each kernel body as its users write it, under ``@kernel``."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest
from numba import cuda
from numba.cuda.random import (
    init_xoroshiro128p_states_cpu,
    xoroshiro128p_dtype,
    xoroshiro128p_normal_float32,
    xoroshiro128p_uniform_float32,
)

from oxide import kernel
from tests.numba_cuda.launching import launch

RNG = np.random.default_rng(8)
TPB = 16


@kernel
def vector_add(f, a, b):
    tid = cuda.grid(1)
    size = len(f)
    if tid < size:
        f[tid] = a[tid] + b[tid]


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 1025])
def test_vector_addition(n: int) -> None:
    a, b = RNG.random((2, n))
    f, *_ = launch(vector_add, max(1, -(-n // 256)), 256, np.zeros(n), a, b)
    np.testing.assert_array_equal(f, a + b)


@kernel
def increment_a_2d_array(an_array):
    x, y = cuda.grid(2)
    if x < an_array.shape[0] and y < an_array.shape[1]:
        an_array[x, y] += 1


def test_increment_of_a_matrix() -> None:
    x = RNG.random((33, 50))
    np.testing.assert_array_equal(launch(increment_a_2d_array, (3, 4), (16, 16), x), x + 1)


@kernel
def matmul(A, B, C):
    i, j = cuda.grid(2)
    if i < C.shape[0] and j < C.shape[1]:
        tmp = 0.0
        for k in range(A.shape[1]):
            tmp += A[i, k] * B[k, j]
        C[i, j] = tmp


@kernel
def fast_matmul(A, B, C):
    sA = cuda.shared.array(shape=(TPB, TPB), dtype=numba.float32)
    sB = cuda.shared.array(shape=(TPB, TPB), dtype=numba.float32)
    x, y = cuda.grid(2)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    bpg = cuda.gridDim.x
    tmp = numba.float32(0.0)
    for i in range(bpg):
        sA[ty, tx] = 0
        sB[ty, tx] = 0
        if y < A.shape[0] and (tx + i * TPB) < A.shape[1]:
            sA[ty, tx] = A[y, tx + i * TPB]
        if x < B.shape[1] and (ty + i * TPB) < B.shape[0]:
            sB[ty, tx] = B[ty + i * TPB, x]
        cuda.syncthreads()
        for j in range(TPB):
            tmp += sA[ty, j] * sB[j, tx]
        cuda.syncthreads()
    if y < C.shape[0] and x < C.shape[1]:
        C[y, x] = tmp


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(16, 16, 16), (24, 40, 33), (1, 7, 2)])
def test_products_of_matrices_with_and_without_shared_memory(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    a = RNG.random((rows, inner)).astype(np.float32)
    b = RNG.random((inner, columns)).astype(np.float32)
    c = np.zeros((rows, columns), np.float32)
    expected = a.astype(np.float64) @ b
    *_, plain = launch(matmul, (-(-rows // 16), -(-columns // 16)), (16, 16), a, b, c)
    np.testing.assert_allclose(plain, expected, rtol=1e-5)
    grid = -(-max(shape) // TPB)
    *_, tiled = launch(fast_matmul, (grid, grid), (TPB, TPB), a, b, c)
    np.testing.assert_allclose(tiled, expected, rtol=1e-5)


@kernel
def heat(old, new, k):
    i = cuda.grid(1)
    n = old.shape[0]
    if i == 0 or i == n - 1:
        new[i] = old[i]
    elif i < n:
        new[i] = old[i] + k * (old[i - 1] - 2 * old[i] + old[i + 1])


def test_heat_in_one_dimension() -> None:
    x = np.zeros(65)
    x[32] = 100.0
    expected = x.copy()
    for _ in range(20):
        _, x = launch(heat, 3, 32, x, np.zeros(65), 0.25)
        expected[1:-1] += 0.25 * (expected[:-2] - 2 * expected[1:-1] + expected[2:])
    np.testing.assert_allclose(x, expected, rtol=1e-12)


@cuda.jit(device=True)
def larger(a, b):
    return a if a >= b else b


@kernel
def jacobi_relax(A, Anew, error):
    err_sm = cuda.shared.array((16, 16), dtype=numba.float64)
    ty = cuda.threadIdx.x
    tx = cuda.threadIdx.y
    bx = cuda.blockIdx.x
    by = cuda.blockIdx.y
    n = A.shape[0]
    m = A.shape[1]
    i, j = cuda.grid(2)
    err_sm[ty, tx] = 0
    if j >= 1 and j < n - 1 and i >= 1 and i < m - 1:
        Anew[j, i] = 0.25 * (A[j, i + 1] + A[j, i - 1] + A[j - 1, i] + A[j + 1, i])
        err_sm[ty, tx] = Anew[j, i] - A[j, i]
    cuda.syncthreads()
    t = 16 // 2
    while t > 0:
        if ty < t:
            err_sm[ty, tx] = larger(err_sm[ty, tx], err_sm[ty + t, tx])
        t //= 2
        cuda.syncthreads()
    t = 16 // 2
    while t > 0:
        if tx < t and ty == 0:
            err_sm[ty, tx] = larger(err_sm[ty, tx], err_sm[ty, tx + t])
        t //= 2
        cuda.syncthreads()
    if tx == 0 and ty == 0:
        error[bx, by] = err_sm[0, 0]


def test_laplaces_equation() -> None:
    a = np.zeros((40, 40))
    a[:, 0] = 1.0
    expected = a.copy()
    for _ in range(5):
        _, new, error = launch(jacobi_relax, (3, 3), (16, 16), a, a.copy(), np.zeros((3, 3)))
        inner = 0.25 * (a[1:-1, 2:] + a[1:-1, :-2] + a[:-2, 1:-1] + a[2:, 1:-1])
        expected[1:-1, 1:-1] = inner
        np.testing.assert_allclose(new, expected, rtol=1e-12)
        np.testing.assert_allclose(error.max(), max(0.0, (inner - a[1:-1, 1:-1]).max()), rtol=1e-12)
        a = new


@kernel
def compute_pi(rng_states, iterations, out):
    thread_id = cuda.grid(1)
    inside = 0
    for _ in range(iterations):
        x = xoroshiro128p_uniform_float32(rng_states, thread_id)
        y = xoroshiro128p_uniform_float32(rng_states, thread_id)
        if x**2 + y**2 <= 1.0:
            inside += 1
    out[thread_id] = 4.0 * inside / iterations


def states(n: int) -> np.ndarray:
    made = np.empty(n, dtype=xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(made, np.uint64(1), np.uint64(0))
    return made


def test_pi_by_monte_carlo() -> None:
    before = states(64 * 4)
    after, out = launch(compute_pi, 4, 64, before, 2000, np.zeros(256, np.float32))
    assert abs(out.mean() - math.pi) < 0.02
    assert (after["s0"] != before["s0"]).all()


def test_normal_random_numbers() -> None:
    @kernel
    def draw(rng_states, out):
        i = cuda.grid(1)
        for j in range(out.shape[1]):
            out[i, j] = xoroshiro128p_normal_float32(rng_states, i)

    _, out = launch(draw, 2, 64, states(128), np.zeros((128, 50), np.float32))
    assert abs(out.mean()) < 0.05
    assert abs(out.std() - 1) < 0.05


@kernel
def array_sum(data):
    tid = cuda.threadIdx.x
    size = len(data)
    if tid < size:
        i = cuda.grid(1)
        shr = cuda.shared.array(1024, numba.int32)
        shr[tid] = data[i]
        cuda.syncthreads()
        s = 1
        while s < cuda.blockDim.x:
            if tid % (2 * s) == 0:
                shr[tid] += shr[tid + s]
            s *= 2
            cuda.syncthreads()
        if tid == 0:
            data[tid] = shr[tid]


def test_a_reduction_in_shared_memory() -> None:
    data = np.arange(1024, dtype=np.int32)
    assert launch(array_sum, 1, 1024, data)[0] == data.sum()


@kernel
def ufunc_like(r, x):
    i = cuda.grid(1)
    if i < x.size:
        r[i] = np.cos(x[i]) + np.log(np.hypot(x[i], 1.0)) - np.arctan2(x[i], 2.0)


def test_functions_of_numpy_on_elements() -> None:
    x = RNG.random(100) - 0.5
    r, _ = launch(ufunc_like, 4, 32, np.zeros(100), x)
    np.testing.assert_allclose(r, np.cos(x) + np.log(np.hypot(x, 1)) - np.arctan2(x, 2), rtol=1e-13)


@kernel
def mandelbrot(min_x, max_x, min_y, max_y, image, iterations):
    height, width = image.shape
    pixel_x = (max_x - min_x) / width
    pixel_y = (max_y - min_y) / height
    start_x, start_y = cuda.grid(2)
    step_x, step_y = cuda.gridsize(2)
    for x in range(start_x, width, step_x):
        for y in range(start_y, height, step_y):
            c = complex(min_x + x * pixel_x, min_y + y * pixel_y)
            z = 0.0j
            i = 0
            while i < iterations and z.real * z.real + z.imag * z.imag < 4:
                z = z * z + c
                i += 1
            image[y, x] = i


def test_the_mandelbrot_set() -> None:
    image = launch(mandelbrot, (2, 2), (8, 8), -2.0, 1.0, -1.0, 1.0, np.zeros((20, 30), np.uint8), 20)
    x, y = np.meshgrid(-2 + 0.1 * np.arange(30), -1 + 0.1 * np.arange(20))
    c, z, expected = x + 1j * y, np.zeros((20, 30), complex), np.zeros((20, 30), int)
    for _ in range(20):
        inside = z.real**2 + z.imag**2 < 4
        z[inside] = z[inside] ** 2 + c[inside]
        expected += inside
    assert (image == expected).mean() > 0.99  # a point on the rim may round to either side
