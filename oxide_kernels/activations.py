"""Activation functions, element by element."""

from __future__ import annotations

from oxide import DisjointSlice, Slice, f32, kernel, thread


@kernel(block=256)
def relu(input: Slice[f32], output: DisjointSlice[f32]) -> None:
    """``output = max(0, input)``, float32; NaN stays NaN. Both may be the same buffer. One thread an element."""
    idx = thread.index_1d()
    out_elem = output.get_mut(idx)
    if out_elem is not None:
        x = input[idx.get()]
        out_elem.value = f32(0.0) if x < f32(0.0) else x
