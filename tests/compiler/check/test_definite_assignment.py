"""A local is read only where every path has assigned it; ordinary code is left alone."""

# ruff: noqa: B007, F821, F841 (the kernels here are wrong on purpose)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oxide import DisjointSlice, Slice, device, f32, i32, kernel, thread, unroll
from tests.compiler.check.test_compile_errors import refuse
from tests.compiler.native_runner import run

COUNT = 4


def test_a_local_that_a_path_leaves_unassigned_is_refused() -> None:
    def in_a_branch(n: i32, c: DisjointSlice[f32]) -> None:
        if n > 3:
            q = 5.0
        element = c.get_mut(thread.index_1d())
        if element is not None:
            element.value = q  # here

    def in_a_loop(n: i32, x: Slice[f32], c: DisjointSlice[f32]) -> None:
        element = c.get_mut(thread.index_1d())
        for i in range(n):
            last = x[i]
        if element is not None:
            element.value = last  # here

    def the_loop_variable(n: i32, c: DisjointSlice[i32]) -> None:
        for i in range(n):
            pass
        n = i  # here

    def after_a_break(n: i32) -> None:
        while True:
            if n > 3:
                break
            q = 1
            n += 1
        n = q  # here

    def after_continue(n: i32) -> None:
        for i in range(COUNT):
            if i == n:
                continue
            q = 1
        n = q  # here

    def by_an_operator(n: i32) -> None:
        if n > 2:
            total = 1
        total += n  # here

    for body in (in_a_branch, in_a_loop, the_loop_variable, after_a_break, after_continue, by_an_operator):
        refuse(body, r"(q|last|i|total) may be unassigned here: give it a value on every path")


def test_a_local_that_is_read_before_it_is_assigned_is_refused() -> None:
    def early(n: i32) -> None:
        n = q  # here
        q = 3

    refuse(early, "q is read here before it is assigned")


def assigned_in_both_branches(n):  # type: ignore[no-untyped-def]
    if n > 3:
        q = 1
    elif n > 2:
        q = 2
    else:
        q = 3
    return q


def the_other_branch_returns(n):  # type: ignore[no-untyped-def]
    if n > 3:
        q = 1
    else:
        return 0
    return q


def assigned_before_each_break(n):  # type: ignore[no-untyped-def]
    while True:
        if n > 3:
            q = n
            break
        n += 1
    return q


def assigned_in_a_loops_else(n):  # type: ignore[no-untyped-def]
    for i in range(n):
        if i == 3:
            q = i
            break
    else:
        q = -1
    return q


def after_a_loop_that_runs(n):  # type: ignore[no-untyped-def]
    for i in range(COUNT):
        q = i * n
    return q + i


def after_an_unrolled_loop_that_runs(n):  # type: ignore[no-untyped-def]
    for i in unroll(range(COUNT)):
        if i == n:
            break
    return i


def carried_around_a_loop(n):  # type: ignore[no-untyped-def]
    total, previous = 0, 0
    for i in range(n):
        if i % 2 == 1:
            continue
        total += previous
        previous = i
    return total


def used_where_it_is_assigned(n):  # type: ignore[no-untyped-def]
    total = 0
    for i in range(n):
        if i > 2:
            a, b = i, i + 1
            total += a * b
    return total


ORDINARY = (
    assigned_in_both_branches,
    the_other_branch_returns,
    assigned_before_each_break,
    assigned_in_a_loops_else,
    after_a_loop_that_runs,
    after_an_unrolled_loop_that_runs,
    carried_around_a_loop,
    used_where_it_is_assigned,
)


@pytest.mark.slow
@pytest.mark.parametrize("function", ORDINARY, ids=lambda function: function.__name__)
def test_code_that_assigns_on_every_path_computes_what_python_does(function: Callable[..., Any]) -> None:
    called = device(function)

    @kernel
    def apply(n: i32, c: DisjointSlice[i32]) -> None:
        element = c.get_mut(thread.index_1d())
        if element is not None:
            element.value = called(n)

    for n in (1, 3, 7):
        c = np.zeros(1, np.int32)
        run(apply, 1, n, c)
        assert c[0] == function(n)
