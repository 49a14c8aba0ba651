"""The sanitizer of the CPU device, where nothing else checks an index: raw arrays, records and numba-cuda's atomics."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, int32
from numba.np.numpy_support import from_dtype

from oxide import Array, d2h, f32, h2d, kernel, zeros
from tests.compiler.sanitizer.sanitized import BOTH, error_of, on_the_cpu_device
from tests.source_lines import line_of

pytestmark = on_the_cpu_device


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(5).random(shape).astype(np.float32)


@kernel(sanitize=BOTH)
def next_one(x, out):
    i = cuda.grid(1)
    out[i] = x[i + 1]  # read


def test_an_index_past_the_end_of_a_raw_array_is_found() -> None:
    error = error_of(next_one[1, 64](h2d(numbers(64)), zeros(64)))
    assert (error.kind, error.what, error.offset) == ("out-of-bounds", "x", 256)
    assert (error.thread, error.line) == ((63, 0, 0), line_of(next_one, "read"))


def test_indices_inside_a_raw_array_are_clean() -> None:
    x = numbers(64)
    _, out = next_one[1, 63](h2d(x), zeros(63)).sync()
    np.testing.assert_array_equal(d2h(out).sync(), x[1:])


@kernel(sanitize=BOTH)
def into_the_next_row(x: Array[f32, 2], rows: Array[f32, 1]) -> None:
    i = cuda.grid(1)
    rows[i] = x[i, 4]  # read


def test_the_whole_array_is_what_an_index_must_be_inside() -> None:
    """A column too far is another row's element, but in the last row."""
    error = error_of(into_the_next_row[1, 16](h2d(numbers(16, 4)), zeros(16)))
    assert (error.kind, error.what, error.thread) == ("out-of-bounds", "x", (15, 0, 0))


@kernel(sanitize=BOTH)
def through_a_view(x, out):
    i = cuda.grid(1)
    view = x[2:10:2]
    out[i] = view[i]  # read


def test_an_index_past_the_end_is_found_through_a_view() -> None:
    through_a_view[1, 4](h2d(numbers(10)), zeros(64)).sync()
    error = error_of(through_a_view[1, 5](h2d(numbers(10)), zeros(64)))
    assert (error.kind, error.what, error.offset) == ("out-of-bounds", "x", 40)


@kernel(sanitize=BOTH)
def of_a_tuple(arrays):
    i = cuda.grid(1)
    arrays[1][i] = arrays[0][i]  # write


def test_the_arrays_of_a_tuple_are_told_apart() -> None:
    error = error_of(of_a_tuple[1, 8]((h2d(numbers(8)).sync(), zeros(7).sync())))
    assert (error.kind, error.what, error.access) == ("out-of-bounds", "arrays", "write")
    of_a_tuple[1, 7]((h2d(numbers(8)).sync(), zeros(7).sync())).sync()


@kernel(sanitize=BOTH)
def counted(x):
    cuda.atomic.add(x, cuda.grid(1), 1)  # add


def test_an_atomic_past_the_end_is_found_and_not_made() -> None:
    box = zeros(63).sync()
    error = error_of(counted[1, 64](box))
    assert (error.kind, error.access, error.line) == ("out-of-bounds", "atomic", line_of(counted, "add"))
    assert d2h(box).sync().sum() == 63


@kernel(sanitize=BOTH)
def counted_in_one(x):
    cuda.atomic.add(x, 0, 1)


def test_atomics_on_a_raw_array_do_not_race() -> None:
    assert d2h(counted_in_one[4, 64](zeros(1)).last()).sync()[0] == 256


@kernel(sanitize=BOTH)
def all_write_one(out):
    out[0] = cuda.grid(1)  # write


def test_two_threads_that_write_one_element_of_a_raw_array_race() -> None:
    error = error_of(all_write_one[1, 4](zeros(4)))
    assert (error.kind, error.what, error.line) == ("race", "out", line_of(all_write_one, "write"))
    all_write_one[1, 1](zeros(4)).sync()


RECORD = np.dtype([("count", np.int32), ("values", np.float32, (4,))])


@kernel(sanitize=BOTH)
def into_a_record(record, k):
    record.count = 1
    record.values[k] = 2.0  # write


def test_an_index_past_the_end_of_a_record_is_found() -> None:
    into_a_record[1, 1](h2d(np.zeros((), RECORD)), 3).sync()
    error = error_of(into_a_record[1, 1](h2d(np.zeros((), RECORD)), 4))
    assert (error.kind, error.what, error.offset) == ("out-of-bounds", "record", 20)


ODD = np.dtype([("x", np.float32), ("y", np.float32), ("z", np.float32)])  # of 12 bytes, no multiple of 8
odd = from_dtype(ODD)
PAIR = np.dtype([("a", np.float32), ("b", np.float32)])


@kernel(sanitize=BOTH)
def records_in_a_tile(x, y):
    tile = cuda.shared.array(16, dtype=odd)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    cuda.syncthreads()
    y[i] = tile[15 - i]


@kernel(sanitize=BOTH)
def a_field_for_each_thread(x, values):
    i = cuda.grid(1)
    if i % 2 == 0:
        x[i // 2].a = values[i]
    else:
        x[i // 2].b = values[i]


@kernel(sanitize=BOTH)
def one_field_for_two_threads(x, values):
    i = cuda.grid(1)
    x[i // 2].a = values[i]  # write


def test_neighbouring_records_and_fields_do_not_race() -> None:
    records = np.random.default_rng(2).random((16, 3)).astype(np.float32).view(ODD).reshape(16)
    *_, y = records_in_a_tile[1, 16](h2d(records), h2d(np.zeros(16, ODD))).sync()
    np.testing.assert_array_equal(d2h(y).sync(), records[::-1])
    pairs, values = h2d(np.zeros(8, PAIR)).sync(), numbers(16)
    a_field_for_each_thread[1, 16](pairs, h2d(values)).sync()
    np.testing.assert_array_equal(d2h(pairs).sync().view(np.float32), values)


def test_two_threads_that_write_one_field_race() -> None:
    error = error_of(one_field_for_two_threads[1, 16](h2d(np.zeros(8, PAIR)), h2d(numbers(16))))
    assert (error.kind, error.what, error.line) == ("race", "x", line_of(one_field_for_two_threads, "write"))


NESTED = np.dtype([("weights", np.float32, (3,)), ("at", PAIR, (2,))], align=True)
nested = from_dtype(NESTED)


@kernel(sanitize=BOTH)
def in_records_of_its_own(out, n):
    own = cuda.local.array(4, nested)
    i = cuda.grid(1)
    for k in range(n):
        own[k].weights[2] = k  # write
        own[k].at[1].b = i
    out[i] = own[n - 1].weights[2] + own[0].at[1].b


def test_local_arrays_of_records_are_checked() -> None:
    out, _ = in_records_of_its_own[1, 3](zeros(3), 4).sync()
    np.testing.assert_array_equal(d2h(out).sync(), [3, 4, 5])
    error = error_of(in_records_of_its_own[1, 3](zeros(3), 5))
    assert (error.kind, error.what) == ("out-of-bounds", "a LocalArray")
    assert error.line == line_of(in_records_of_its_own, "write")


@cuda.jit(device=True)
def sum_to(n):
    own = cuda.local.array(4, int32)
    own[n % 4] = n
    if n <= 1:
        return own[n % 4]
    return sum_to(n - 1) + own[n % 4]


@kernel(sanitize=BOTH)
def summed_by_recursion(out, n):
    out[0] = sum_to(n)


def test_each_call_of_a_recursive_function_has_its_own_local_array() -> None:
    out, _ = summed_by_recursion[1, 1](zeros(1, np.int64), 9).sync()
    assert d2h(out).sync()[0] == 45


@kernel(sanitize=BOTH)
def summed_by_the_last_block(x, parts, count, out, fenced_by_each):
    last = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    parts[cuda.grid(1)] = x[cuda.grid(1)]
    if fenced_by_each:
        cuda.threadfence()
    cuda.syncthreads()
    if t == 0:
        if not fenced_by_each:
            cuda.threadfence()
        last[0] = cuda.atomic.add(count, 0, 1)
        cuda.threadfence()
    cuda.syncthreads()
    if last[0] == cuda.gridDim.x - 1:
        total = 0.0
        for block in range(cuda.gridDim.x):
            total += parts[block * cuda.blockDim.x + t]  # read
        out[t] = total


def test_what_a_block_wrote_is_released_by_the_thread_that_fences_behind_the_barrier() -> None:
    def launch(fenced_by_each: int) -> Any:
        boxes = h2d(numbers(48)), zeros(48), zeros(1, np.int32), zeros(16)
        return summed_by_the_last_block[3, 16](*boxes, fenced_by_each)

    *_, out, _ = launch(0).sync()
    np.testing.assert_allclose(d2h(out).sync(), numbers(48).reshape(3, 16).sum(0), rtol=1e-6)
    error = error_of(launch(1))
    assert (error.kind, error.what, error.line) == ("race", "parts", line_of(summed_by_the_last_block, "read"))
