"""The first element that a kernel with ``scatter`` leaves unwritten is a finding, unless the kernel is ``partial``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import (
    DisjointSlice,
    DisjointSlice2,
    Kernel,
    SanitizerError,
    Slice,
    d2h,
    device,
    empty,
    f32,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    zeros,
)
from tests.compiler.sanitizer.sanitized import BOTH, error_of, on_the_cpu_device
from tests.source_lines import line_of

pytestmark = on_the_cpu_device


def put(order: Slice[i64], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d().get()
    if i < len(order):
        y.scatter[order[i]] = f32(i)  # here


def put_in_a_matrix(rows: Slice[i64], columns: Slice[i64], y: DisjointSlice2[i32]) -> None:
    i = thread.index_1d().get()
    if i < len(rows):
        y.scatter[rows[i], columns[i]] = i32(i)  # here


def order(*left_out: int, n: int = 40) -> Any:
    found = np.random.default_rng(1).permutation(n)
    return h2d(found[~np.isin(found, left_out)])


def made(function: Any, **options: Any) -> Kernel:
    return kernel(block=64, **{"sanitize": BOTH, **options})(function)


@pytest.mark.parametrize("kinds", ["memory", BOTH])
@pytest.mark.parametrize("left_out", [(0,), (39,), (7, 9, 30)])
def test_the_first_element_that_was_not_written(left_out: tuple[int, ...], kinds: Any) -> None:
    scatters = made(put, sanitize=kinds)
    assert len(d2h(scatters(order(), zeros(40)).last()).sync()) == 40
    for box in (zeros(40), empty(40, f32)):  # also where it was written before the launch
        error = error_of(scatters(order(*left_out), box))
        assert (error.kind, error.what, error.access) == ("unwritten", "y", "missing write")
        assert (error.block, error.thread, error.line) == (None, None, line_of(scatters, "here"))
        assert error.offset == 4 * left_out[0]
        assert f"leaves out element {left_out[0]}: no thread writes {len(left_out)} of its 40 elements" in str(error)
    assert scatters(order(), zeros(40)).last().to_host().sync().sum() == 780


def test_in_a_matrix_it_is_a_row_and_a_column() -> None:
    scatters = made(put_in_a_matrix)
    rows, columns = np.divmod(np.arange(42), 7)
    scatters(h2d(rows), h2d(columns), zeros((6, 7), np.int32)).sync()
    error = error_of(scatters(h2d(np.delete(rows, 30)), h2d(np.delete(columns, 30)), zeros((6, 7), np.int32)))
    assert "leaves out element (4, 2): no thread writes 1 of its 42 elements" in str(error)


def test_what_is_meant_is_no_finding() -> None:
    for options in ({"partial": True}, {"sanitize": "race"}):
        result = made(put, **options)(order(3, 4), zeros(40)).last().to_host().sync()
        assert (result[[3, 4]] == 0).all()
    made(put)(order(n=0), zeros(0)).sync()
    with pytest.raises(SanitizerError, match="leaves out element 3"):
        made(put)(order(3, 4), zeros(40)).sync()


def test_an_output_that_is_not_scattered_and_one_that_another_function_scatters() -> None:
    @device
    def at(out: DisjointSlice[f32], i: i64) -> None:
        out.scatter[i] = f32(1)

    def two(y: DisjointSlice[f32], z: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        element = y.get_mut(index)
        if element is not None and index.get() % 2 == 0:
            element.value = f32(1)
        if index.get() < len(z) - 2:
            at(z, index.get() + 1)

    error = error_of(made(two)(zeros(40), zeros(40)))
    assert error.what == "z"
    assert "leaves out element 0: no thread writes 2 of its 40 elements" in str(error)


def test_launches_that_are_captured_and_pieces_of_a_box() -> None:
    scatters = made(put)
    whole = zeros(60).sync()
    graph = scatters(order(), whole[10:50]).graph()
    graph.launch().sync()
    with pytest.raises(SanitizerError, match="leaves out element 20: no thread writes 1 of its 40"):
        scatters(order(20), whole[20:60]).sync()
    assert not d2h(whole).sync()[:10].any()


def test_another_finding_comes_first() -> None:
    def twice(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        i = thread.index_1d().get()
        y.scatter[i // 2] = x.unchecked[i]

    error = error_of(made(twice)[1, 40](h2d(np.ones(40, np.float32)), zeros(40)))
    assert error.kind == "race"
    assert "leaves out" not in "".join(getattr(error, "__notes__", ()))
