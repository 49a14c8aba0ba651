"""``assert`` in kernels is a fault with the author's words, and ``a.unchecked[i]`` is what it says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda, njit

from oxide import (
    CompileError,
    DisjointSlice,
    KernelAssertionError,
    LaunchConfig,
    Slice,
    d2h,
    device,
    f32,
    h2d,
    i64,
    kernel,
    thread,
    zeros,
)
from oxide.compiler.cache.fingerprint import fingerprint
from tests.compiler.native_runner import fault_of, run_blocks
from tests.language import asserting_kernels
from tests.language.asserting_kernels import calls, checked, computed, positive, square_roots, summed

LINE = inspect.getsourcelines(square_roots.function)[1] + 5


def test_a_failed_assert_raises_with_its_message_and_place() -> None:
    x = np.array([1, 2, -3, 4], np.float32)
    launch = square_roots[LaunchConfig(grid=2, block=2)]
    with pytest.raises(KernelAssertionError) as raised:
        launch(h2d(x), zeros(4)).sync()
    error = raised.value
    assert (error.kernel, error.text, error.block, error.thread) == (
        "square_roots", "x must not be negative", (1, 0, 0), (0, 0, 0),
    )  # fmt: skip
    assert (error.file, error.line) == (asserting_kernels.__file__, LINE)
    assert str(error).startswith("kernel square_roots: x must not be negative; block (1, 0, 0), thread (0, 0, 0), at ")
    np.testing.assert_array_equal(launch(h2d(abs(x)), zeros(4)).last().and_then(d2h).sync(), abs(x) * 2)


def test_the_thread_leaves_and_the_others_go_on() -> None:
    x, y = np.array([1, -2, 3], np.float32), np.zeros(3, np.float32)
    fault = fault_of(square_roots, run_blocks(square_roots, (1, 1, 1), (3, 1, 1), x, y))
    assert isinstance(fault, KernelAssertionError)
    np.testing.assert_array_equal(y, [2, 0, 6])


def test_an_assert_without_a_message_shows_its_line() -> None:
    fault = fault_of(positive, run_blocks(positive, (1, 1, 1), (1, 1, 1), -1, np.zeros(1, np.float32)))
    assert isinstance(fault, KernelAssertionError)
    assert fault.text == "assert n > 0"


def test_an_assert_in_a_device_function_ends_the_kernels_thread() -> None:
    y = np.zeros(1, np.int64)
    assert fault_of(calls, run_blocks(calls, (1, 1, 1), (1, 1, 1), 2, y)) is None
    assert y[0] == 3
    fault = fault_of(calls, run_blocks(calls, (1, 1, 1), (1, 1, 1), 7, y))
    assert isinstance(fault, KernelAssertionError)
    assert fault.line == inspect.getsourcelines(checked.function)[1] + 2
    assert y[0] == 3


def test_an_assert_in_a_loop_leaves_its_checks_hoisted() -> None:
    assert [check.place for check in summed.checks()] == ["proved", "hoisted"]
    x, y = np.full(20, 9, np.float32), np.zeros(1, np.float32)
    assert fault_of(summed, run_blocks(summed, (1, 1, 1), (1, 1, 1), 11, x, y)) is None
    assert isinstance(fault_of(summed, run_blocks(summed, (1, 1, 1), (1, 1, 1), 12, x, y)), KernelAssertionError)


def test_a_message_is_a_string() -> None:
    with pytest.raises(CompileError, match="the message of an assert in a kernel is a string or an f-string"):
        computed.specialize()


@pytest.mark.parametrize("interpreted", [False, True])
def test_an_f_string_shows_constants_and_the_text_of_what_a_thread_computes(interpreted: bool) -> None:
    limit = 2.5

    @kernel
    def limited(n: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            assert x[0] < limit, f"x[0] = {x[0]:.3f} of {n + 1!r} {{is}} above {limit:.3f}, {LINE:>4} and {3}"
            element.value = x[0]

    launch = limited[1, 1].interpret if interpreted else limited[1, 1]
    launch(1, h2d(np.zeros(1, np.float32)), zeros(1)).sync()
    with pytest.raises(KernelAssertionError) as raised:
        launch(1, h2d(np.ones(1, np.float32) * 3), zeros(1)).sync()
    assert raised.value.text == f"x[0] = {{x[0]}} of {{n + 1}} {{is}} above 2.500, {LINE:>4} and 3"


def test_an_unchecked_kernel_has_no_asserts() -> None:
    unchecked = kernel(unchecked=True)(square_roots.function)
    y = np.zeros(1, np.float32)
    assert fault_of(unchecked, run_blocks(unchecked, (1, 1, 1), (1, 1, 1), np.array([-1], np.float32), y)) is None
    assert y[0] != 0, "the failed assert ended the thread"


def test_an_unchecked_read_has_no_check(device: str) -> None:
    if device == "cuda":
        pytest.skip("it reads past the end of an array in host memory")

    @kernel
    def gather(where: Slice[i64], x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element.value = x.unchecked[where.unchecked[index.get()]]

    assert [check.parameter for check in gather.checks()] == ["y"]
    assert "atom." not in gather.ptx()
    memory = np.arange(8, dtype=np.float32)
    y = np.zeros(2, np.float32)
    assert fault_of(gather, run_blocks(gather, (1, 1, 1), (2, 1, 1), np.array([2, 5]), memory[:4], y)) is None
    np.testing.assert_array_equal(y, [2, 5])


def test_an_output_cannot_be_written_unchecked() -> None:
    @kernel
    def out_of_hand(y: DisjointSlice[f32]) -> None:
        y.unchecked[0] = f32(1.0)  # type: ignore[attr-defined]

    with pytest.raises(CompileError, match=r"which has no \.unchecked: write through y\.get_mut"):
        out_of_hand.specialize()


# In a test's own file, which pytest rewrites


@device
def below_limit(n: Any) -> Any:
    assert n < LIMIT, "too large"
    return n


LIMIT = 90


@kernel
def typed(x: Slice[i64], y: DisjointSlice[i64]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        assert x[index.get()] >= 0, "negative"
        element.value = below_limit(x[index.get()])


@njit
def not_fifty(n):
    assert n != 50
    return n * 2


@cuda.jit(device=True, inline="always")
def not_sixty(n):
    assert n != 60
    return n * 2


@cuda.jit(device=True)
def factorial(n):
    assert n < 20
    return n * factorial(n - 1) if n > 1 else 1


def within(limit: int) -> Any:
    def add(x):
        def inner(number):
            assert number < limit, "inner"
            return number

        i = cuda.grid(1)
        assert 0 <= x[i] != 3
        x[i] = not_fifty(inner(x[i])) + not_sixty(x[i]) + factorial(x[i] % 4)

    return add


@kernel
def mapped(f: Callable[[i64], i64], x: Slice[i64], y: DisjointSlice[i64]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = f(x[index.get()])


def rewritten(function: Any) -> bool:
    return any(name.startswith("@py") for name in function.__code__.co_varnames)


def outcome(launch: Any) -> Any:
    try:
        return int(launch.last().and_then(d2h).sync()[0])
    except KernelAssertionError as fault:
        error = fault
    text = Path(__file__).read_text().split("\n")[(error.line or 0) - 1]
    assert error.file == __file__
    assert text.strip().startswith("assert")
    return error.text


def h2d_one(number: int) -> Any:
    return h2d(np.array([number]))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "expected"), [(3, 3), (-1, "negative"), (90, "too large")])
def test_an_assert_in_a_kernel_of_a_test_is_compiled_as_it_is_written(number: int, expected: Any) -> None:
    assert rewritten(typed.function)
    assert rewritten(below_limit.function)
    assert outcome(typed[1, 1](h2d_one(number), zeros(1, i64))) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, 5),
        (-1, "assert 0 <= x[i] != 3"),
        (3, "assert 0 <= x[i] != 3"),
        (50, "assert n != 50"),
        (60, "assert n != 60"),
        (70, "inner"),
    ],
)
def test_so_are_numbas_functions_and_those_within_a_kernel(number: int, expected: Any) -> None:
    add = within(65)
    assert rewritten(add)
    assert rewritten(not_fifty.py_func)
    assert outcome(kernel(add)[1, 1](h2d_one(number))) == expected
    assert outcome(kernel(cuda.jit(add))[1, 1](h2d_one(number))) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("number", "expected"), [(3, 3), (50, "big")])
def test_so_is_a_function_that_a_kernel_is_given(number: int, expected: Any) -> None:
    def small(n: Any) -> Any:
        assert n < 10, "big"
        return n

    assert rewritten(small)
    assert outcome(mapped[1, 1](small, h2d_one(number), zeros(1, i64))) == expected


def test_the_rewriting_makes_no_other_kernel_for_the_cache() -> None:
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(Path(__file__).read_text(), __file__, "exec"), names)
    assert not rewritten(names["typed"].function)
    plain, found = kernel(names["typed"].function), kernel(typed.function)
    assert fingerprint(plain.description, plain.parameters) == fingerprint(found.description, found.parameters)


def test_on_the_host_a_device_function_asserts_as_pytest_wants_it() -> None:
    with pytest.raises(AssertionError, match=r"too large\nassert 200 < 90"):
        below_limit(200)
