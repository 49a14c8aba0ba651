"""A kernel that takes as long as it is asked to: what happens meanwhile is what tests on a GPU are about."""

from __future__ import annotations

from oxide import DisjointSlice, Slice, f32, i64, kernel, thread


@kernel(block=256)
def slow_add(turns: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """Adds x, within 1 %, to y; on an H100, 400 million turns take about a second."""
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        wait = f32(1.005)  # a number that the recurrence maps to itself would need no loop, as LLVM finds
        for _ in range(turns):
            wait = wait * f32(0.99) + f32(0.01)
        element.value += x[index.get()] * wait
