"""A kernel with many checks has one exit for all of them, and its faults are those of a kernel with few."""

from __future__ import annotations

import functools
import itertools
import linecache
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import BoundsError, h2d, kernel, zeros
from oxide.compiler.bounds.exits import MANY_CHECKS, share_exits
from oxide.compiler.kernel.kernel import Kernel
from tests.compiler.native_runner import run_blocks

FEW, MANY = 20, MANY_CHECKS // 2 + 20
_serial = itertools.count()


def made(lines: list[str], table: str = "Slice2") -> Kernel:
    head = [
        f"def summed(x: Slice[f32], m: {table}[f32], where: Slice[i64], out: DisjointSlice[f32]):",
        "    index = thread.index_1d()",
        "    element = out.get_mut(index)",
        "    if element is not None:",
    ]
    source = "\n".join([*head, *(f"        {line}" for line in lines)]) + "\n"
    file = f"<many checks {next(_serial)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = vars(oxide) | {"__name__": "many"}
    exec(compile(source, file, "exec"), scope)
    found: Kernel = kernel(scope["summed"])
    return found


@functools.cache
def gathers(count: int) -> Kernel:
    """Two checked reads for each term, of which the second has an index from memory."""
    return made([f"element.value += x[where[{k}]]" for k in range(count)])


@functools.cache
def tables(count: int) -> Kernel:
    """Reads of one and of two axes."""
    return made([f"element.value += x[where[{k}]] + m[where[{k}], {k}]" for k in range(count)])


def launched(each: Kernel, x: Any, table: Any, where: Any) -> Any:
    """Runs three threads, each of which sums into an element of its own."""
    return each[1, 3](h2d(x), h2d(table), h2d(where), zeros(3)).last().to_host().sync()


TABLE = np.ones((49, MANY), np.float32)


def test_checks_that_pass_change_no_result() -> None:
    random = np.random.default_rng(3)
    x, where = random.random(50, np.float32), random.integers(0, 50, MANY)
    table = random.random((50, MANY), np.float32)
    out = launched(tables(MANY), x, table, where)
    expected = (x[where].astype(np.float64) + table[where, np.arange(MANY)]).sum()
    np.testing.assert_allclose(out, np.full(3, expected), rtol=1e-5)


@pytest.mark.parametrize("bad", [0, 7, MANY // 2, MANY - 1])
@pytest.mark.parametrize("index", [-1, 50, 2**62])
def test_a_fault_names_its_own_access(bad: int, index: int) -> None:
    where = np.arange(MANY) % 50
    where[bad] = index
    with pytest.raises(BoundsError) as raised:
        launched(gathers(MANY), np.ones(50, np.float32), TABLE, where)
    fault = raised.value
    assert (fault.parameter, fault.index, fault.length, fault.line) == ("x", index, 50, 5 + bad)


@pytest.mark.parametrize("bad", [0, MANY - 1])
def test_a_fault_of_two_axes_has_the_index_of_both(bad: int) -> None:
    where = np.arange(MANY) % 49
    where[bad] = 49
    with pytest.raises(BoundsError) as raised:
        launched(tables(MANY), np.ones(50, np.float32), TABLE, where)
    fault = raised.value
    assert (fault.parameter, fault.index, fault.length, fault.line) == ("m", 49, 49, 5 + bad)
    assert f"([49, {bad}] of shape (49, {MANY}))" in str(fault)


def test_a_thread_ends_at_its_fault() -> None:
    where, out = np.arange(MANY) % 50, np.zeros(3, np.float32)
    where[MANY - 1] = -1
    each = made([f"element.value += x[where[{k}]]" for k in range(MANY)], table="Slice")
    run_blocks(each, (1, 1, 1), (3, 1, 1), np.ones(50, np.float32), TABLE.ravel(), where, out)
    np.testing.assert_array_equal(out, MANY - 1)


def test_only_a_kernel_with_many_checks_shares_its_exit() -> None:
    few, many = (gathers(count).specialize().portable.module for count in (FEW, MANY))
    assert share_exits(few) is few
    shared = share_exits(many)
    assert sum(call.called == "oxide.in_bounds" for call in shared.calls) == 0
    assert sum(call.called == "oxide.out_of_bounds" for call in shared.calls) == 1
    assert sum(call.called == "oxide.in_bounds" for call in many.calls) == 2 * MANY


def test_ptx_fills_the_fault_record_at_one_place() -> None:
    assert gathers(FEW).ptx().count("atom.") == 2 * FEW
    assert gathers(MANY).ptx().count("atom.") == 1


def test_threads_that_go_on_after_a_fault_keep_the_checks() -> None:
    lines = [f"element.value += x[where[{k}]]" for k in range(MANY)]
    module = made([*lines, "thread.sync_threads()"]).specialize().portable.module
    assert share_exits(module) is module
