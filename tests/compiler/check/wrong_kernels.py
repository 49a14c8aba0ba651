"""Wrong kernels with annotations, each a mistake that people make; ``test_wrong_kernels.py`` holds what each is told.

Those without annotations are in ``wrong_array_kernels.py``."""

# ruff: noqa: B007, F841, UP031 (the kernels here are wrong on purpose)

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from oxide import (
    DisjointSlice,
    DynamicSharedArray,
    SharedArray,
    Slice,
    device,
    f32,
    h2d,
    i8,
    i64,
    intrinsics,
    kernel,
    thread,
    u8,
    u32,
    zeros,
)

FACTORS: list[float] = [1.0, 2.0]


def writes_by_an_integer() -> Any:
    @kernel
    def scale(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        i = thread.thread_idx.x
        y[i] = x[i] * 2  # type: ignore[index]

    return scale


def writes_to_an_input() -> Any:
    @kernel
    def clear(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        x[0] = 0.0  # type: ignore[index]

    return clear


def computes_with_a_thread_index() -> Any:
    @kernel
    def shift(y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d() + 1)  # type: ignore[operator]
        if element is not None:
            element.value = f32(1)

    return shift


def counts_from_the_end() -> Any:
    @kernel
    def last(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = x[-1]

    return last


def counts_from_the_end_of_a_shared_array() -> Any:
    @kernel
    def last(x: Slice[f32]) -> None:
        tile = SharedArray((8, 4), f32)
        tile[0, -2] = x[0]

    return last


def uses_a_width_that_varies() -> Any:
    @kernel
    def rows(y: DisjointSlice[f32]) -> None:
        index = thread.index_2d(thread.thread_idx.x + 5)
        if index is not None:
            element = y.get_mut(index)
            if element is not None:
                element.value = f32(1)

    return rows


def takes_the_width_from_a_flat_slice() -> Any:
    @kernel
    def rows(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_2d(x.shape[1])  # type: ignore[attr-defined]

    return rows


def makes_a_list() -> Any:
    @kernel
    def collect(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        values = [x[0], x[1]]
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = values[0]

    return collect


def catches_an_exception() -> Any:
    @kernel
    def careful(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            try:
                element.value = x[0]
            except IndexError:
                element.value = f32(0)

    return careful


def formats_a_string() -> Any:
    @kernel
    def name(y: DisjointSlice[f32]) -> None:
        text = f"{len(y)}"
        print(text)

    return name


def reads_a_global_list() -> Any:
    @kernel
    def weigh(y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = f32(FACTORS[0])

    return weigh


def returns_a_value() -> Any:
    @kernel
    def first(x: Slice[f32]) -> f32:
        return x[0]  # type: ignore[return-value]

    return first


def reads_what_a_path_leaves_unassigned() -> Any:
    @kernel
    def choose(n: u32, y: DisjointSlice[f32]) -> None:
        if n > 3:
            value = f32(1)
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = value

    return choose


def stores_a_float_in_an_integer() -> Any:
    @kernel
    def count(x: Slice[f32], y: DisjointSlice[i64]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = x[0] * 2  # type: ignore[assignment]

    return count


def stores_a_constant_that_does_not_fit() -> Any:
    @kernel
    def fill(y: DisjointSlice[u8]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = 300  # type: ignore[assignment]

    return fill


def calls_a_plain_function() -> Any:
    class Helper:
        def __call__(self, x: Any) -> Any:
            return x

    helper = Helper()

    @kernel
    def apply(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = helper(x[0])

    return apply


def gives_a_device_function_too_few_arguments() -> Any:
    @device
    def add(a: f32, b: f32) -> f32:
        return a + b

    @kernel
    def sums(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = add(x[0])  # type: ignore[call-arg]

    return sums


def sums_in_full_precision() -> Any:
    @kernel
    def total(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = math.fsum(x)

    return total


def shares_memory_of_a_size_known_too_late() -> Any:
    @kernel
    def tile(n: u32, y: DisjointSlice[f32]) -> None:
        values = SharedArray(n, f32)  # type: ignore[arg-type]
        values[0] = f32(1)

    return tile


def misspells_a_contract() -> Any:
    @kernel(requires=("len(a) >= rows",))
    def copy(a: Slice[f32], row: u32, y: DisjointSlice[f32]) -> None:
        pass

    return copy


def launches_with_a_host_array() -> Any:
    @kernel(block=32)
    def copy(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = x[0]

    return copy(np.zeros(4, np.float32), zeros(4))


def launches_with_another_dtype() -> Any:
    @kernel(block=32)
    def copy(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = x[0]

    return copy(h2d(np.zeros(4)), zeros(4))


def launches_without_a_grid() -> Any:
    @kernel
    def copy(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = x[0]

    return copy(zeros(4), zeros(4))


def binds_an_elements_name_to_a_number() -> Any:
    @kernel
    def copy(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None:
            element = x[index.get()]  # type: ignore[assignment]

    return copy


def makes_two_mistakes() -> Any:
    @kernel
    def count(x: Slice[i8], y: DisjointSlice[i64]) -> None:
        first = intrinsics.popc(x[0])  # type: ignore[type-var]
        second = intrinsics.brev(x[0])  # type: ignore[type-var]

    return count


def misspells_a_function() -> Any:
    @kernel
    def fill(y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_ld())  # type: ignore[attr-defined]

    return fill


def calls_numpy() -> Any:
    @kernel
    def apply(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = np.convolve(x[0], x[1])

    return apply


def sums_a_slice() -> Any:
    @kernel
    def total(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        element = y.get_mut(thread.index_1d())
        if element is not None:
            element.value = sum(x)  # type: ignore[arg-type]

    return total


def loops_over_a_strict_zip() -> Any:
    @kernel
    def weigh(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        for first, second in zip(x, y, strict=True):  # type: ignore[call-overload]
            pass

    return weigh


def asks_for_the_shape_of_a_slice() -> Any:
    @kernel
    def copy(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        if thread.thread_idx.x < x.shape[0]:  # type: ignore[attr-defined]
            pass

    return copy


def indexes_a_slice_with_two_numbers() -> Any:
    @kernel
    def pick(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        corner = x[0, 1]  # type: ignore[index]

    return pick


def names_a_dtype_as_numpy_does() -> Any:
    @kernel
    def tile(y: DisjointSlice[f32]) -> None:
        values = SharedArray(64, np.float32)  # type: ignore[arg-type]

    return tile


def takes_more_shared_memory_than_there_is() -> Any:
    @kernel
    def tile(y: DisjointSlice[f32]) -> None:
        small = SharedArray(64, f32)
        large = SharedArray(60_000, f32)
        small[0] = f32(1)
        large[0] = f32(1)

    return tile


def adds_atomically_to_an_output() -> Any:
    @kernel
    def count(y: DisjointSlice[f32]) -> None:
        y.fetch_add(0, 1.0)  # type: ignore[attr-defined]

    return count


def adds_by_cuda_atomic_to_an_output() -> Any:
    @kernel
    def count(y: DisjointSlice[f32]) -> None:
        cuda.atomic.add(y, 0, 1.0)

    return count


def looks_into_a_class() -> Any:
    class Shape:
        rows = np.int32(4)

    @kernel
    def fill(y: DisjointSlice[f32]) -> None:
        rows = Shape.rows

    return fill


def calls_another_kernel() -> Any:
    @kernel
    def clear(y: DisjointSlice[f32]) -> None:
        pass

    @kernel
    def outer(y: DisjointSlice[f32]) -> None:
        clear(y)

    return outer


def prints_a_slice() -> Any:
    @kernel
    def show(x: Slice[f32]) -> None:
        print(x)

    return show


def keeps_a_formatted_string() -> Any:
    @kernel
    def show(x: Slice[f32]) -> None:
        text = "x is %f" % x[0]

    return show


def annotates_with_pythons_float() -> Any:
    @kernel
    def scale(factor: float, y: DisjointSlice[f32]) -> None:
        pass

    return scale


def annotates_a_slice_of_numpys_type() -> Any:
    @kernel
    def scale(x: Slice[np.float32], y: DisjointSlice[f32]) -> None:
        pass

    return scale


def gives_a_signature() -> Any:
    return kernel("void(float32[:])")  # type: ignore[call-overload]


def asks_the_sanitizer_for_everything() -> Any:
    @kernel(sanitize=True)  # type: ignore[arg-type]
    def fill(y: DisjointSlice[f32]) -> None:
        pass

    return fill


def asks_as_numba_cuda_does() -> Any:
    @kernel
    def fill(y: DisjointSlice[f32]) -> None:
        pass

    return fill.forall(100)  # type: ignore[attr-defined]


def forgets_the_bytes_of_dynamic_shared_memory() -> Any:
    @kernel(block=1)
    def tile(y: DisjointSlice[f32]) -> None:
        values = DynamicSharedArray(f32)
        values[0] = f32(1)

    return tile(zeros(1)).sync()


WRONG: list[Callable[[], Any]] = [
    writes_by_an_integer,
    writes_to_an_input,
    computes_with_a_thread_index,
    counts_from_the_end,
    counts_from_the_end_of_a_shared_array,
    uses_a_width_that_varies,
    takes_the_width_from_a_flat_slice,
    makes_a_list,
    catches_an_exception,
    formats_a_string,
    reads_a_global_list,
    returns_a_value,
    reads_what_a_path_leaves_unassigned,
    stores_a_float_in_an_integer,
    stores_a_constant_that_does_not_fit,
    calls_a_plain_function,
    gives_a_device_function_too_few_arguments,
    sums_in_full_precision,
    shares_memory_of_a_size_known_too_late,
    misspells_a_contract,
    launches_with_a_host_array,
    launches_with_another_dtype,
    launches_without_a_grid,
    binds_an_elements_name_to_a_number,
    makes_two_mistakes,
    misspells_a_function,
    calls_numpy,
    sums_a_slice,
    loops_over_a_strict_zip,
    asks_for_the_shape_of_a_slice,
    indexes_a_slice_with_two_numbers,
    names_a_dtype_as_numpy_does,
    takes_more_shared_memory_than_there_is,
    adds_atomically_to_an_output,
    adds_by_cuda_atomic_to_an_output,
    looks_into_a_class,
    calls_another_kernel,
    prints_a_slice,
    keeps_a_formatted_string,
    annotates_with_pythons_float,
    annotates_a_slice_of_numpys_type,
    gives_a_signature,
    asks_the_sanitizer_for_everything,
    asks_as_numba_cuda_does,
    forgets_the_bytes_of_dynamic_shared_memory,
]
