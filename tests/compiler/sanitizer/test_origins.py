"""The sanitizer knows the array that an access should be in where it is chosen at run time, constant, or seen anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda.misc.special import literal_unroll

from oxide import LaunchConfig, d2h, h2d, kernel, zeros
from oxide.compiler.ir.parser import parse_function
from oxide.compiler.sanitizer.regions import Origins
from tests.compiler.sanitizer.sanitized import BOTH, error_of, on_the_cpu_device
from tests.source_lines import line_of

TABLE = np.arange(5, dtype=np.float64)
OTHER_TABLE = np.arange(7, dtype=np.float64)


pytestmark = on_the_cpu_device


def numbers(count: int, dtype: Any = np.float64) -> np.ndarray[Any, Any]:
    return np.random.default_rng(count).integers(1, 100, count).astype(dtype)


# Constants


@kernel(sanitize=BOTH)
def looked_up(out, n):
    table = cuda.const.array_like(TABLE)
    out[0] = table[n]  # read


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 6, 50, -6, -30])
def test_an_index_outside_a_constant_array_is_found(n: int) -> None:
    error = error_of(looked_up[1, 1](zeros(1, np.float64), n))
    assert (error.kind, error.what, error.access) == ("out-of-bounds", "a constant array", "read")
    assert error.line == line_of(looked_up, "read")
    assert f"byte {8 * (n if n >= 0 else n + 5)}" in str(error)


@pytest.mark.parametrize("n", [0, 4, -5])
def test_an_index_inside_a_constant_array_is_clean(n: int) -> None:
    out, _ = looked_up[1, 1](zeros(1, np.float64), n).sync()
    assert d2h(out).sync()[0] == TABLE[n]


@kernel(sanitize=BOTH)
def looked_up_in_one_of_two(out, which, n):
    one = cuda.const.array_like(TABLE)
    other = cuda.const.array_like(OTHER_TABLE)
    table = one if which == 0 else other
    out[0] = table[n] + OTHER_TABLE[1]


def test_a_constant_array_chosen_at_run_time_has_its_own_length() -> None:
    out, *_ = looked_up_in_one_of_two[1, 1](zeros(1, np.float64), 1, 6).sync()
    assert d2h(out).sync()[0] == 7
    for which, n in ((0, 5), (0, 6), (1, 7)):
        error = error_of(looked_up_in_one_of_two[1, 1](zeros(1, np.float64), which, n))
        assert (error.kind, error.what) == ("out-of-bounds", "a constant array")


# Choices among parameters


@kernel(sanitize=BOTH)
def one_or_the_other(a, b, out, which, n):
    chosen = a if which == 0 else b
    out[0] = chosen[n]  # read


def test_an_array_chosen_at_run_time_is_checked_as_itself() -> None:
    for which, n in ((0, 3), (1, 6), (1, 0)):
        a, b = numbers(4), numbers(7)
        _, _, out, *_ = one_or_the_other[1, 1](h2d(a), h2d(b), zeros(1, np.float64), which, n).sync()
        assert d2h(out).sync()[0] == (a, b)[which][n]
    for which, n, name in ((0, 4, "a"), (0, 6, "a"), (1, 7, "b"), (1, 1000, "b")):
        error = error_of(one_or_the_other[1, 1](h2d(numbers(4)), h2d(numbers(7)), zeros(1, np.float64), which, n))
        assert (error.kind, error.what, error.offset) == ("out-of-bounds", name, 8 * n)
        assert error.line == line_of(one_or_the_other, "read")


def test_from_an_array_chosen_at_run_time_no_access_goes_to_the_next_parameter() -> None:
    first, second = h2d(numbers(8)).sync().split(4)
    error = error_of(one_or_the_other[1, 1](first, second, zeros(1, np.float64), 0, 4))
    assert (error.kind, error.what, error.offset) == ("out-of-bounds", "a", 32)


@kernel(sanitize=BOTH)
def summed_over_a_tuple(arrays, out, count):
    total = 0.0
    for k in range(2):
        for n in range(count):
            total += arrays[k][n]
    out[0] = total


def test_an_array_of_a_tuple_that_a_loop_counts_through_is_checked_as_itself() -> None:
    arrays = numbers(9), numbers(8)

    def launch(count: int) -> Any:
        boxes = tuple(h2d(array).sync() for array in arrays)
        return summed_over_a_tuple[1, 1](boxes, zeros(1, np.float64), count)

    assert d2h(launch(8).sync()[1]).sync()[0] == arrays[0][:8].sum() + arrays[1].sum()
    error = error_of(launch(9))
    assert (error.kind, error.what, error.offset) == ("out-of-bounds", "arrays", 64)
    assert "8 elements" in str(error)


@kernel(sanitize=BOTH)
def back_and_forth(a, b, steps, reach):
    i = cuda.grid(1)
    source, target = a, b
    for _ in range(steps):
        target[i] = source[(i + reach) % 32]  # access
        cuda.syncthreads()
        source, target = target, source


def test_two_buffers_in_turns_are_told_apart() -> None:
    a = numbers(32)
    first, second, *_ = back_and_forth[1, 32](h2d(a), zeros(32, np.float64), 2, 1).sync()
    np.testing.assert_array_equal(d2h(second).sync(), np.roll(a, -1))
    np.testing.assert_array_equal(d2h(first).sync(), np.roll(a, -2))
    error = error_of(back_and_forth[1, 32](h2d(a), zeros(31, np.float64), 2, 1))
    assert (error.kind, error.what, error.access, error.thread) == ("out-of-bounds", "b", "write", (31, 0, 0))
    error = error_of(back_and_forth[1, 32](h2d(a[:31]), zeros(32, np.float64), 2, 0))
    assert (error.kind, error.what, error.access, error.thread) == ("out-of-bounds", "a", "read", (31, 0, 0))


# What cannot be followed

TABLES = (np.arange(2.0), np.arange(1.0, 5.0).reshape(2, 2))


@kernel(sanitize=BOTH)
def views_in_a_loop(arrays, out, n):
    own = cuda.local.array(2, float32)
    total = 0
    for k in range(2):
        own[k] = k
        total += arrays[k].view(np.int32)[n]  # read
    out[0] = total + own[1]


def test_an_address_in_no_memory_that_the_kernel_knows_is_found() -> None:
    arrays = numbers(4, np.int64), numbers(6, np.int64)

    def launch(n: int) -> Any:
        return views_in_a_loop[1, 1](tuple(h2d(array).sync() for array in arrays), zeros(1, np.int64), n)

    assert d2h(launch(6).sync()[1]).sync()[0] == arrays[0][3] + arrays[1][3] + 1
    error = error_of(launch(1 << 20))
    assert (error.kind, error.line) == ("out-of-bounds", line_of(views_in_a_loop, "read"))


@kernel(sanitize=BOTH)
def all_of_several_types(out):
    for table in literal_unroll(TABLES):
        out[table.ndim] = np.all(table)


def test_arrays_in_memory_that_are_no_parameters_are_clean() -> None:
    np.testing.assert_array_equal(d2h(all_of_several_types[1, 1](zeros(3)).last()).sync(), [0, 0, 1])


# Choices among sorts of memory


@kernel(sanitize=BOTH)
def from_anywhere(x, out, which, n):
    tile = cuda.shared.array(6, float32)
    more = cuda.shared.array(0, float32)
    own = cuda.local.array(3, float32)
    t = cuda.threadIdx.x
    if t == 0:
        for k in range(5):
            tile[k] = 10 + k
        for k in range(more.size):
            more[k] = 20 + k
    for k in range(3):
        own[k] = 30 + k
    cuda.syncthreads()
    source = x
    if which == 1:
        source = tile
    elif which == 2:
        source = more
    elif which == 3:
        source = own
    out[t] = source[n]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "name", "length", "value"),
    [(0, "x", 4, 3), (1, "a SharedArray", 6, 14), (2, "a DynamicSharedArray", 2, 21), (3, "a LocalArray", 3, 32)],
)
def test_a_choice_among_all_sorts_of_memory_is_checked_as_what_it_is(
    which: int, name: str, length: int, value: float
) -> None:
    def launch(n: int) -> Any:
        config = LaunchConfig(1, 2, shared_mem_bytes=8)
        return from_anywhere[config](h2d(np.arange(4, dtype=np.float32)), zeros(2), which, n)

    last = length - 1 - (which == 1)
    np.testing.assert_array_equal(d2h(launch(last).sync()[1]).sync(), [value, value])
    for n in (length, length + 2, 1000):
        error = error_of(launch(n))
        assert (error.kind, error.what) == ("out-of-bounds", name)
    if which == 1:
        error = error_of(launch(5))
        assert (error.kind, error.what) == ("uninitialized", name)


@kernel(sanitize=BOTH)
def all_to_one_of_two(tiled, out):
    tile = cuda.shared.array(4, float32)
    target = tile if tiled else out
    target[cuda.threadIdx.x // 2] = cuda.threadIdx.x  # write


def test_a_race_is_found_in_an_array_chosen_at_run_time() -> None:
    for tiled, name in ((1, "a SharedArray"), (0, "out")):
        error = error_of(all_to_one_of_two[1, 8](tiled, zeros(4)))
        assert (error.kind, error.what) == ("race", name)
        assert error.line == line_of(all_to_one_of_two, "write")


# Arrays as others


@kernel(sanitize=BOTH)
def halves(x, step):
    i = cuda.grid(1)
    x.view(np.int16)[i // step] = i  # write


def test_the_parts_of_an_element_do_not_race_and_the_same_part_does() -> None:
    out, _ = halves[1, 8](zeros(4, np.int32), 1).sync()
    np.testing.assert_array_equal(d2h(out).sync().view(np.int16), np.arange(8))
    error = error_of(halves[1, 8](zeros(4, np.int32), 2))
    assert (error.kind, error.what, error.line) == ("race", "x", line_of(halves, "write"))
    error = error_of(halves[1, 9](zeros(4, np.int32), 1))
    assert (error.kind, error.what, error.offset) == ("out-of-bounds", "x", 16)


@kernel(sanitize=BOTH)
def real_and_imaginary(x):
    i = cuda.grid(1)
    x.view(np.float32)[i] = i


def test_the_parts_of_a_complex_number_do_not_race() -> None:
    out = real_and_imaginary[1, 8](h2d(np.zeros(4, np.complex64))).last().sync()
    np.testing.assert_array_equal(d2h(out).sync().view(np.float32), np.arange(8))


# What is asked for


def nothing(x):
    x[0] = 0


@pytest.mark.parametrize("asked", [True, 3, (1,), ("memory", None)])
def test_what_is_to_be_looked_for_is_named(asked: Any) -> None:
    with pytest.raises(TypeError, match=r"kernel nothing, sanitize=.*'memory'"):
        kernel(sanitize=asked)(nothing)


def test_what_the_sanitizer_does_not_look_for_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kernel nothing, sanitize='leaks': .* memory and race"):
        kernel(sanitize="leaks")(nothing)


CHOICE = """define void @f(ptr %x.0, i1 %c) {
entry:
  %v = select i1 %c, ptr getelementptr inbounds (i8, ptr @table, i64 4), ptr %x.0, !oxide.place !3
  ret void
}"""


def test_an_address_computed_from_a_constant_array_is_one_operand_of_a_choice() -> None:
    function = parse_function(CHOICE)
    choice, _ = function.instructions
    x = function.arguments[0]
    roots = Origins(function, {x: 0}).roots(choice)
    assert len(roots) == 2
    assert x in roots
