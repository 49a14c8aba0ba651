"""Which kernels the CPU device runs on the thread that waits: those that Ctrl-C need not end."""

from __future__ import annotations

import math
from typing import Any

import pytest
from numba import cuda

from oxide import Array, DisjointSlice, SharedArray, Slice, device, f32, i32, kernel, thread, warp
from oxide.compiler.cpu.object_code import is_loop_free
from oxide.compiler.ir.parser import parse
from oxide.driver.cpu.code import host_target


@kernel
def scaled(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = math.exp(x[thread.index_1d().get()]) if x[0] > f32(0) else f32(2)


@kernel
def guarded(x: Array[f32, 2]) -> None:
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        x[i, j] += 1


@kernel
def neighbours(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    values = SharedArray(32, f32)
    t = thread.thread_idx.x
    values[t] = x[t]
    thread.sync_threads()
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = warp.shuffle_xor(values[31 - t], 1)


@device
def twice(x: f32) -> f32:
    return x * f32(2)


@kernel
def calling(y: Array[f32]) -> None:
    i = cuda.grid(1)
    if i < y.size:
        y[i] = twice(y[i])


@kernel
def counted(n: i32, y: Array[f32]) -> None:
    for i in range(n):
        y[0] += i


@kernel
def waiting(y: Array[i32]) -> None:
    while cuda.atomic.add(y, 0, 0) == 0:
        pass


@device
def summed(y: Any) -> f32:
    total = f32(0)
    for i in range(y.size):
        total += y[i]
    return total


@kernel
def calls_a_loop(y: Array[f32]) -> None:
    y[0] = summed(y)


@kernel
def printing(y: Array[f32]) -> None:
    print(y[0])


@pytest.mark.slow
@pytest.mark.parametrize("run", [scaled, guarded, neighbours, calling], ids=lambda run: run.name)
def test_code_without_loops_says_so(run: Any) -> None:
    assert run.specialize().code(host_target()).loop_free


@pytest.mark.parametrize("run", [counted, waiting, calls_a_loop, printing], ids=lambda run: run.name)
def test_code_that_loops_or_may_block_does_not(run: Any) -> None:
    assert not run.specialize().code(host_target()).loop_free


DIAMOND = """
define void @kernel(i1 %c) {
  br i1 %c, label %1, label %2
1:
  br label %3
2:
  br label %3
3:
  ret void
}
"""


CALLS = DIAMOND.replace("2:\n", '2:\n  call void @"an other"(i1 %c)\n')
OTHER = 'define void @"an other"(i1 %c) {\n  ret void\n}\n'
SWITCH = """
define void @kernel(i32 %n) {
entry:
  switch i32 %n, label %out [
    i32 0, label %entry
  ]
out:
  ret void
}
"""


@pytest.mark.parametrize(
    ("text", "loop_free"),
    [
        (DIAMOND, True),
        (DIAMOND.replace("  ret void", "  br label %1"), False),
        (DIAMOND.replace("2:\n  br label %3", "2:\n  br label %2"), False),
        (CALLS + OTHER, True),
        (CALLS.replace('@"an other"', "@kernel"), False),
        (CALLS + OTHER.replace("ret", "call void @kernel(i1 %c)\n  ret"), False),
        (SWITCH, False),
    ],
    ids=["branches", "back", "to itself", "call", "recursion", "recursion by another", "switch"],
)
def test_loops_are_found_in_the_text(text: str, loop_free: bool) -> None:
    assert is_loop_free(parse(text)) == loop_free
