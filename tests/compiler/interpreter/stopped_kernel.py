"""A program whose kernel stops in the debugger, between two barriers and in a device function."""

from __future__ import annotations

import numpy as np

from oxide import DisjointSlice, SharedArray, Slice, d2h, device, f32, h2d, kernel, thread, zeros


@device
def doubled(value):
    twice = value + value
    thread.sync_threads()
    breakpoint()
    return twice


@kernel(block=4)
def stops(x: Slice[f32], y: DisjointSlice[f32]):
    index = thread.index_1d()
    here = thread.thread_idx.x
    tile = SharedArray(4, f32)
    tile[here] = x[index.get()]
    thread.sync_threads()
    if index.get() == 2:
        breakpoint()
    element = y.get_mut(index)
    total = tile[3 - here]
    if index.get() < 4:
        total = doubled(total)
    if element is not None:
        element.value = total


if __name__ == "__main__":
    x = np.arange(4, dtype=np.float32)
    print("result", stops.interpret(h2d(x), zeros(4)).last().and_then(d2h).sync().tolist())
