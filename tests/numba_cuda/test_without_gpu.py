"""What programs of numba-cuda do on the host, where there may be no GPU: signatures, and states of random numbers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytest
from numba import cuda
from numba.cuda.dispatcher import CUDADispatcher
from numba.cuda.random import xoroshiro128p_dtype, xoroshiro128p_uniform_float64

from oxide import ArgumentError, LaunchError, d2h, h2d, kernel, numba_cuda, zeros
from tests.numba_cuda.launching import launch

WORD = 2**64 - 1

with numba_cuda.without_gpu():

    @cuda.jit("int32(int32)", device=True)
    def plus_one(number):
        return number + 1

    @cuda.jit("(float32,)", device=True)
    def half(number):
        return number * 0.5

    @cuda.jit("void(float32[:], int32)")
    def fill(x, number):
        x[cuda.grid(1)] = plus_one(number) + half(number)

    @cuda.jit([numba.void(numba.float64[:], numba.int8), numba.void(numba.float32[:], numba.int8)])
    def either(x, number):
        x[0] = number


def test_a_kernel_with_a_signature_is_decorated_without_a_gpu_and_adopted() -> None:
    assert [list(map(str, types)) for types in kernel(fill).signatures] == [["Array[float32, 1]", "int32"]]
    np.testing.assert_array_equal(launch(kernel(fill), 1, 2, np.zeros(2, np.float32), 3), [5.5, 5.5])
    for dtype in (np.float32, np.float64):
        np.testing.assert_array_equal(launch(kernel(either), 1, 1, np.zeros(1, dtype), 300), [44])
    with pytest.raises(ArgumentError, match="kernel either takes"):
        kernel(either)[1, 1](zeros(1, np.int32), 3)


def test_it_is_for_oxide_alone() -> None:
    uncompiled = next(iter(fill.overloads.values()))
    with pytest.raises(LaunchError, match=r"without_gpu\(\): make a kernel of it, oxide\.kernel\(f\)"):
        uncompiled.launch((), (1, 1, 1), (1, 1, 1), 0, 0)


def test_behind_the_context_numba_cuda_is_as_before() -> None:
    before = CUDADispatcher.compile, CUDADispatcher.compile_device
    with pytest.raises(ZeroDivisionError), numba_cuda.without_gpu():
        raise ZeroDivisionError
    assert (CUDADispatcher.compile, CUDADispatcher.compile_device) == before


def test_a_function_that_was_decorated_so_can_be_dropped() -> None:
    with numba_cuda.without_gpu():

        @cuda.jit("void(float32[:])")
        def dropped(x):
            x[0] = 1

    gone = weakref.ref(dropped)
    del dropped
    gc.collect()
    assert gone() is None


@kernel
def draw(states, out):
    i = cuda.grid(1)
    out[i] = xoroshiro128p_uniform_float64(states, i)


def expected_states(n: int, seed: int, start: int) -> Iterator[tuple[int, int]]:
    """The definition: splitmix64's first number, and xoroshiro128+'s jump of 2**64 numbers between two generators."""

    def step(s0: int, s1: int) -> tuple[int, int]:
        s1 ^= s0
        return rotated(s0, 55) ^ s1 ^ (s1 << 14 & WORD), rotated(s1, 36)

    def rotated(x: int, k: int) -> int:
        return (x << k | x >> (64 - k)) & WORD

    z = (seed + 0x9E3779B97F4A7C15) & WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
    state = (z ^ z >> 31,) * 2
    for number in range(start + n):
        if number >= start:
            yield state
        jumped = (0, 0)
        for word in (0xBEAC0467EBA5FACB, 0xD86B048B86AA9922):
            for bit in range(64):
                if word >> bit & 1:
                    jumped = jumped[0] ^ state[0], jumped[1] ^ state[1]
                state = step(*state)
        state = jumped


@pytest.mark.parametrize(("n", "seed", "start"), [(0, 1, 0), (1, 0, 0), (5, 2**64 - 1, 0), (4, 7, 3), (2, -1, 0)])
def test_the_states_of_random_number_generators_are_those_of_the_algorithm(n: int, seed: int, start: int) -> None:
    states = numba_cuda.create_xoroshiro128p_states(n, seed, subsequence_start=start).sync()
    assert (states.dtype, states.shape) == (xoroshiro128p_dtype, (n,))
    assert [tuple(map(int, state)) for state in d2h(states).sync()] == list(expected_states(n, seed & WORD, start))


def test_the_states_advance_with_each_launch_and_begin_anew_with_each_run() -> None:
    operation = numba_cuda.create_xoroshiro128p_states(4, seed=3)
    states = operation.sync()
    draws: list[Any] = [d2h(draw[1, 4](states, zeros(4, np.float64)).last()).sync() for _ in range(2)]
    first = np.array([((s0 + s1 & WORD) >> 11) / 2**53 for s0, s1 in expected_states(4, 3, 0)])
    np.testing.assert_array_equal(draws[0], first)
    assert not np.any(draws[1] == draws[0])
    np.testing.assert_array_equal(d2h(draw[1, 4](operation, zeros(4, np.float64)).last()).sync(), first)


@pytest.mark.parametrize(
    ("given", "named"), [((-1, 1), "n"), ((1.5, 1), "n"), ((1, 2**64), "seed"), ((1, 1, -1), "sub")]
)
def test_numbers_that_are_none_are_refused(given: Any, named: str) -> None:
    with pytest.raises(ArgumentError, match=f"create_xoroshiro128p_states: {named}.* is .*; give an integer from"):
        numba_cuda.create_xoroshiro128p_states(*given)
    assert d2h(h2d(np.zeros(1))).sync() == 0
