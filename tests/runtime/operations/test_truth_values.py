"""Operations and boxes have no truth value, and a mistaken argument is told what to write."""

from __future__ import annotations

from typing import Any

import pytest

from oxide import DisjointSlice, d2h, i32, kernel, memcpy, ones, thread, zeros


def test_an_operation_has_no_truth_value() -> None:
    operation = ones(3)
    with pytest.raises(TypeError, match=r"has not run, so it is neither true nor false: await it or call sync\(\)"):
        bool(operation)
    operation.sync()


def test_a_box_has_no_truth_value_and_is_not_searched() -> None:
    box: Any = ones(3).sync()
    with pytest.raises(TypeError, match=r"neither true nor false: copy it with d2h\(box\)\.sync\(\)"):
        bool(box)
    with pytest.raises(TypeError, match=r"is not searched for an item: copy it with d2h\(box\)\.sync\(\)"):
        3 in box  # noqa: B015


def test_a_box_is_compared_and_hashed_by_identity() -> None:
    box, other = ones(3).sync(), ones(3).sync()
    assert box in [other, box]
    assert box not in [other]
    assert {box: 1, other: 2}[box] == 1


@kernel(block=32)
def fill(y: DisjointSlice[i32], n: i32) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = n


def test_the_last_argument_that_is_a_number_names_first_and_unzip() -> None:
    with pytest.raises(TypeError, match=r"d2h takes a DeviceBox, not int; .* with first\(\) or unzip\(\)"):
        d2h(fill(zeros(3, i32), 3).last()).sync()


def test_memcpy_says_what_it_copies_from() -> None:
    wrong: Any = [1, 2, 3]
    with pytest.raises(TypeError, match="memcpy copies from a DeviceBox or a NumPy array, not from list"):
        memcpy(ones(3).sync(), wrong)
