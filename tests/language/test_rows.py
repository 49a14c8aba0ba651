"""``DisjointSlice2[T, Rows]``: an output of two axes in which each row belongs to one thread."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

from oxide import (
    ArgumentError,
    CompileError,
    DisjointSlice,
    DisjointSlice2,
    DisjointSlice3,
    Rows,
    Slice2,
    Tiles,
    d2h,
    device,
    f32,
    f64,
    h2d,
    i32,
    kernel,
    thread,
    zeros,
)
from oxide.errors import BoundsError
from tests.compiler.sanitizer.sanitized import BOTH, on_the_cpu_device

T = TypeVar("T", f32, f64)
SHAPES = [(0, 0), (0, 5), (5, 0), (1, 1), (31, 33), (257, 3)]


@kernel(block=64)
def softmax(x: Slice2[T], y: DisjointSlice2[T, Rows]) -> None:
    index = thread.index_1d()
    row = y.get_mut(index)
    if row is not None:
        greatest, total = x.dtype(-math.inf), x.dtype(0)
        for j in range(len(row)):
            greatest = max(greatest, x[index.get(), j])
        for j in range(len(row)):
            row[j] = math.exp(x[index.get(), j] - greatest)
            total += row[j]
        for j in range(len(row)):
            row[j] /= total


def expected(x: Any) -> Any:
    if not x.size:
        return x
    raised = np.exp(x - x.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_thread_reads_and_writes_its_row(shape: tuple[int, int], dtype: Any) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    found = softmax(h2d(x), zeros(shape, dtype)).last().and_then(d2h).sync()
    np.testing.assert_allclose(found, expected(x), rtol=2e-5)
    if math.prod(shape) < 2000:
        interpreted = softmax.interpret(h2d(x), zeros(shape, dtype)).last().and_then(d2h).sync()
        np.testing.assert_array_equal(interpreted, found)


def test_a_range_over_the_row_needs_no_check() -> None:
    @kernel
    def counted(y: DisjointSlice2[i32, Rows]) -> None:
        row = y.get_mut(thread.index_1d())
        if row is not None:
            for j in range(len(row)):
                row[j] = i32(j)

    assert {check.place for check in counted.checks() if hasattr(check, "place")} <= {"proved"}
    found = counted[1, 32](zeros((3, 5), i32)).last().and_then(d2h).sync()
    np.testing.assert_array_equal(found, np.tile(np.arange(5), (3, 1)))


def test_a_device_function_takes_a_row() -> None:
    @device
    def fill(row: Any, value: f32) -> None:
        for j in range(len(row)):
            row[j] = value + f32(j)

    @kernel(block=32)
    def filled(y: DisjointSlice2[f32, Rows]) -> None:
        row = y.get_mut(thread.index_1d())
        if row is not None:
            fill(row, 1.0)

    found = filled(zeros((4, 3))).last().and_then(d2h).sync()
    np.testing.assert_array_equal(found, np.tile([1, 2, 3], (4, 1)))


@kernel
def careless(y: DisjointSlice2[f32, Rows], j: i32) -> None:
    row = y.get_mut(thread.index_1d())
    row[j] = 1.0  # type: ignore[index]


@kernel
def measured(y: DisjointSlice2[f32, Rows]) -> None:
    row = y.get_mut(thread.index_1d())
    for j in range(len(row)):  # type: ignore[arg-type]
        row[j] = 1.0  # type: ignore[index]


@pytest.mark.parametrize("interpreted", [False, True])
def test_a_position_outside_and_a_row_that_is_not_there_are_faults(interpreted: bool) -> None:
    def launch(made: Any, threads: int, *more: Any) -> Any:
        launcher = made[1, threads]
        return (launcher.interpret if interpreted else launcher)(zeros((2, 3)), *more).sync()[0]

    np.testing.assert_array_equal(d2h(launch(careless, 2, 1)).sync(), [[0, 1, 0]] * 2)
    for j in (3, -1):
        with pytest.raises(
            BoundsError, match=f"index {j} of axis 1 is outside y, whose axis 1 has 3 elements"
        ) as fault:
            launch(careless, 2, j)
        assert (fault.value.axis, fault.value.indices[1], fault.value.shape) == (1, j, (2, 3))
    for made, more in ((careless, (1,)), (measured, ())):
        with pytest.raises(BoundsError, match="index 2 of axis 0 is outside y, whose axis 0 has 2 elements"):
            launch(made, 3, *more)


def test_the_launch_has_a_thread_for_each_row() -> None:
    fresh = kernel(block=4)(careless.function)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(d2h(fresh(zeros((8, 3)), 1).sync()[0]).sync(), [[0, 1, 0]] * 8)
    said = r"reach 9 of the 15 elements of parameter y, of shape \(5, 3\).*LaunchConfig.for_num_elems\(5, 3\)"
    with pytest.warns(RuntimeWarning, match=said):
        fresh[1, 3](zeros((5, 3)), 1).sync()


def test_two_outputs_of_one_memory_have_the_same_rows() -> None:
    @kernel
    def both(y: DisjointSlice2[f32, Rows], z: DisjointSlice2[f32, Rows]) -> None:
        index = thread.index_1d()
        first, second = y.get_mut(index), z.get_mut(index)
        if first is not None and second is not None:
            first[0] = second[1] + 1

    box = zeros((4, 3)).sync()
    both[1, 4](box, box).sync()
    np.testing.assert_array_equal(d2h(box).sync()[:, 0], np.ones(4))
    with pytest.raises(ArgumentError, match="share memory"):
        both[1, 4](box, box.reshape((3, 4)))


@on_the_cpu_device
def test_the_sanitizer_knows_rows() -> None:
    made = kernel(block=4, sanitize=BOTH)(softmax.function)
    x = np.ones((4, 3), np.float32)
    found = made(h2d(x), zeros((4, 3))).last().and_then(d2h).sync()
    np.testing.assert_allclose(found, np.full((4, 3), 1 / 3), rtol=1e-6)


def by_row_and_column(y: DisjointSlice2[f32, Rows]) -> None:
    row = y.get_mut(thread.index_2d())
    if row is not None:
        row[0] = 1.0


def a_remainder(y: DisjointSlice2[f32, Rows]) -> None:
    row = y.get_remainder(thread.index_1d())  # type: ignore[misc]
    if row is not None:
        row[0] = 1.0


def from_the_end(y: DisjointSlice2[f32, Rows]) -> None:
    row = y.get_mut(thread.index_1d())
    if row is not None:
        row[-1] = 1.0


def of_two_indices(y: DisjointSlice2[f32, Rows]) -> None:
    row = y.get_mut(thread.index_1d())
    if row is not None:
        row[0, 1] = 1.0  # type: ignore[index]


def a_float(y: DisjointSlice2[i32, Rows]) -> None:
    row = y.get_mut(thread.index_1d())
    if row is not None:
        row[0] = 1.5  # type: ignore[assignment]


def rebound(y: DisjointSlice2[f32, Rows]) -> None:
    row = y.get_mut(thread.index_1d())
    row = 1.0  # type: ignore[assignment]  # noqa: F841


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            by_row_and_column,
            r"y is a DisjointSlice2\[f32, Rows\], whose rows each belong to one thread: take its Threa",
        ),
        (a_remainder, r"y is a DisjointSlice2\[f32, Rows\], whose rows are whole and have no remainder"),
        (from_the_end, r"the index -1 of a row of y does not count from the end in a kernel: write len\(…\) - 1"),
        (of_two_indices, "a row of y has 1 axis, and the index 2"),
        (a_float, "the element is i32 and the value is f64"),
        (rebound, "row is a reference to an element"),
    ],
)
def test_wrong_uses_are_refused_in_words(wrong: Callable[..., Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        kernel(wrong).llvm_ir()


def test_other_slices_have_no_rows() -> None:
    for annotation in (DisjointSlice[f32, Rows], DisjointSlice3[f32, Rows], DisjointSlice2[f32, Rows, Tiles(4)]):  # type: ignore[misc]

        def wrong(y: annotation) -> None:  # type: ignore[valid-type]
            pass

        wrong.__annotations__["y"] = annotation
        with pytest.raises(CompileError, match="a DisjointSlice2 also Rows"):
            kernel(wrong)
