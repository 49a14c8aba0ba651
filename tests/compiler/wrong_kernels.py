"""Twenty wrong kernels, each a mistake that people make; ``test_wrong_kernels.py`` holds what each is told."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from oxide import DisjointSlice, SharedArray, Slice, device, f32, h2d, i64, kernel, thread, u8, u32, zeros

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


def uses_a_width_that_varies() -> Any:
    @kernel
    def rows(y: DisjointSlice[f32]) -> None:
        index = thread.index_2d(thread.thread_idx.x + 5)
        if index is not None:
            element = y.get_mut(index)
            if element is not None:
                element.value = f32(1)

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


WRONG: list[Callable[[], Any]] = [
    writes_by_an_integer,
    writes_to_an_input,
    computes_with_a_thread_index,
    uses_a_width_that_varies,
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
]
