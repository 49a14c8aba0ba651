"""A loop over a ``range`` runs as often as Python's, at the edges of all integers and in steps of either sign."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oxide import DisjointSlice, i8, i32, i64, kernel, thread, u8, u32, u64
from oxide.compiler.kernel.kernel import Kernel
from tests.compiler.native_runner import run_blocks

MOST = 4


def counting(loop: Callable[..., Any], types: tuple[Any, ...]) -> Kernel:
    """The kernel for the types of its ``start``, ``stop`` and ``step``."""
    names = ("start", "stop", "step")[: len(types)]
    loop.__annotations__ |= dict(zip(names, types, strict=True))
    return kernel(loop)


def one_way(types: tuple[Any, ...]) -> Kernel:
    def loop(start, stop, out: DisjointSlice[i64]):  # type: ignore[no-untyped-def]
        element = out.get_mut(thread.index_1d())
        if element is not None:
            count = i64(0)
            total = i64(0)
            for number in range(start, stop):
                total = total * 3 + i64(number)
                count += 1
                if count == 4:
                    break
            element.value = total * 8 + count

    return counting(loop, types)


def with_a_step(types: tuple[Any, ...]) -> Kernel:
    def loop(start, stop, step, out: DisjointSlice[i64]):  # type: ignore[no-untyped-def]
        element = out.get_mut(thread.index_1d())
        if element is not None:
            count = i64(0)
            total = i64(0)
            for number in range(start, stop, step):
                total = total * 3 + i64(number)
                count += 1
                if count == 4:
                    break
            element.value = total * 8 + count

    return counting(loop, types)


def in_steps_of(step: int, types: tuple[Any, ...]) -> Kernel:
    """The step is a constant of the kernel."""

    def loop(start, stop, out: DisjointSlice[i64]):  # type: ignore[no-untyped-def]
        element = out.get_mut(thread.index_1d())
        if element is not None:
            count = i64(0)
            total = i64(0)
            for number in range(start, stop, step):
                total = total * 3 + i64(number)
                count += 1
                if count == 4:
                    break
            element.value = total * 8 + count

    return counting(loop, types)


def expected(numbers: range) -> int:
    """What the kernels give for a range."""
    total = 0
    taken = list(itertools.islice(numbers, MOST))
    for number in taken:
        total = total * 3 + number
    return (total * 8 + len(taken) + 2**63) % 2**64 - 2**63


def given(each: Kernel, *numbers: int) -> int:
    out = np.zeros(1, np.int64)
    run_blocks(each, (1, 1, 1), (1, 1, 1), *numbers, out)
    return int(out[0])


def edges(scalar: Any) -> list[int]:
    least, greatest = int(np.iinfo(scalar.dtype).min), int(np.iinfo(scalar.dtype).max)
    middle = (least + greatest + 1) // 2
    around = [least, middle, greatest]
    return sorted({n + d for n in around for d in range(-5, 6) if least <= n + d <= greatest and d not in (-3, 4)})


PAIRS = [(i32, i32), (i32, i8), (i64, i64), (u32, u32), (u64, u64), (i8, i8), (u32, u64), (i32, i64)]


@pytest.mark.slow
@pytest.mark.parametrize("types", PAIRS, ids=lambda types: "-".join(kind.name for kind in types))
@pytest.mark.parametrize("step", [1, 3])
def test_a_range_upwards_is_that_of_python(step: int, types: tuple[Any, Any]) -> None:
    each = one_way(types) if step == 1 else in_steps_of(step, types)
    for start, stop in itertools.product(*map(edges, types)):
        assert given(each, start, stop) == expected(range(start, stop, step)), (start, stop)


@pytest.mark.slow
@pytest.mark.parametrize("types", [(i32, i32), (i32, i8), (i64, i64), (u32, u32), (i64, i32)], ids=str)
def test_a_range_downwards_is_that_of_python(types: tuple[Any, Any]) -> None:
    each = in_steps_of(-1, types)
    for start, stop in itertools.product(*map(edges, types)):
        assert given(each, start, stop) == expected(range(start, stop, -1)), (start, stop)


@pytest.mark.slow
@pytest.mark.parametrize("types", [(i32, i32, i32), (i64, i64, i64), (u64, u64, u64), (i32, i32, i8)], ids=str)
def test_a_range_with_a_step_known_at_run_time_is_that_of_python(types: tuple[Any, Any, Any]) -> None:
    each = with_a_step(types)
    chosen = [edges(kind)[::3] for kind in types]
    for start, stop, step in itertools.product(chosen[0], chosen[1], [*edges(types[2]), 2, 3]):
        if step:
            assert given(each, start, stop, step) == expected(range(start, stop, step)), (start, stop, step)


@kernel
def from_zero(stop: u64, out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        count = i64(0)
        for _ in range(0, stop):  # noqa: PIE808 - the constant is what is tested
            count += 1
            if count == 4:
                break
        element.value = count + 10 * i64(len(range(7, 1, -2)))


def test_a_constant_beside_a_u64_is_one_too() -> None:
    assert given(from_zero, 2**64 - 1) == 34
    assert given(from_zero, 2**63) == 34
    assert given(from_zero, 1) == 31
    assert given(from_zero, 0) == 30


@kernel
def of_a_name_of_two_types(number: i64, out: DisjointSlice[i64]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        total = u8(0)
        total += number  # an i64 from here on
        count = i64(0)
        for each in range(math.isqrt(total) % 7):
            count += each
        element.value = count


def test_a_range_of_a_name_that_has_two_types_is_of_the_type_that_holds_both() -> None:
    for number in (0, 35, 255, 2**40):
        assert given(of_a_name_of_two_types, number) == sum(range(math.isqrt(number) % 7))


def test_a_loop_compiles_where_warnings_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_CACHE", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "oxide" in one_way((i32, i32)).llvm_ir()
