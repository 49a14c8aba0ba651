"""Wrong kernels without annotations, as numba-cuda's users write them; ``wrong_kernels.txt`` holds what each is told.

A kernel is made and typed for arrays of ``f32``: only then is it refused."""

# ruff: noqa: F821 (the kernels here are wrong on purpose)
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, float32

from oxide import Array, f32, i64, kernel


class Shape:
    rows = 4


def helper(value):
    return value + 1


def wrong(**types: Any) -> Callable[[Callable[..., Any]], Callable[[], Any]]:
    """A kernel of the function, for these types of its arguments, by default one array with an axis."""

    def make(function: Callable[..., Any]) -> Callable[[], Any]:
        def mistake() -> Any:
            return kernel(function).specialize(**types or {"a": Array[f32, 1]})

        mistake.__name__ = function.__name__
        return mistake

    return make


@wrong(a=Array[f32, 2])
def leaves_an_axis_out(a):
    i = cuda.grid(1)
    a[i] += 1


@wrong()
def indexes_more_axes_than_there_are(a):
    a[0] = a[0, 1]


@wrong(a=Array[f32, 1], n=i64)
def shares_an_array_of_an_arguments_size(a, n):
    shared = cuda.shared.array(n, float32)
    a[0] = shared[0]


@wrong()
def copies_an_array(a):
    b = a.copy()
    a[0] = b[0]


@wrong()
def makes_an_array(a):
    b = np.zeros(4)
    a[0] = b[0]


@wrong(a=Array[f32, 2])
def copies_a_row(a):
    a[1, :] = a[0]


@wrong()
def takes_the_maximum_of_an_array(a):
    a[0] = a.max()


@wrong()
def makes_a_list(a):
    values = [1, 2, 3]
    a[0] = values[1]


@wrong()
def returns_an_element(a):
    return a[0]


@wrong()
def calls_an_undecorated_function(a):
    a[0] = helper(a[0])


@wrong()
def uses_an_undefined_name(a):
    a[0] = cuda.grid(1) + offset


@wrong()
def looks_into_a_class(a):
    a[0] = Shape.rows


@wrong()
def counts_down_with_reversed(a):
    for i in reversed(range(5)):
        a[i] = i


@wrong()
def has_a_name_of_two_kinds(a):
    if a[0] > 0:
        value = 1
    else:
        value = (1, 2)
    a[0] = value


@wrong()
def prints_a_formatted_string(a):
    print(f"thread {cuda.grid(1)}: {a[0]:.2f}")


@wrong()
def prints_with_a_separator(a):
    print("a", a[0], sep=": ")


@wrong()
def cleans_up_after_a_try(a):
    try:
        a[0] = 1
    finally:
        a[1] = 2


@wrong()
def takes_the_absolute_value_by_numpy(a):
    a[0] = np.abs(-4)


@wrong()
def stores_a_string(a):
    a[0] = "x"


WRONG_ARRAYS: list[Callable[[], Any]] = [
    leaves_an_axis_out,
    indexes_more_axes_than_there_are,
    shares_an_array_of_an_arguments_size,
    copies_an_array,
    makes_an_array,
    copies_a_row,
    takes_the_maximum_of_an_array,
    makes_a_list,
    returns_an_element,
    calls_an_undecorated_function,
    uses_an_undefined_name,
    looks_into_a_class,
    counts_down_with_reversed,
    has_a_name_of_two_kinds,
    prints_a_formatted_string,
    prints_with_a_separator,
    cleans_up_after_a_try,
    takes_the_absolute_value_by_numpy,
    stores_a_string,
]
