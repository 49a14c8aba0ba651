"""Activation functions, element by element, four elements a thread: that reaches the memory's bandwidth."""

from __future__ import annotations

from oxide import DisjointSlice, Slice, device, f32, kernel, thread


@kernel(block=256, items_per_thread=4)
def relu(input: Slice[f32], output: DisjointSlice[f32]) -> None:
    """``output = max(0, input)``, float32; NaN stays NaN. Both may be the same buffer."""
    first, length, out = 4 * thread.index_1d().get(), len(output), output.unchecked_mut
    if first + 4 <= length and input.is_aligned(4) and output.is_aligned(4):
        a, b, c, d = input.load4(first)
        out.store4(first, relu_of(a), relu_of(b), relu_of(c), relu_of(d))
    else:
        for i in range(first, min(first + 4, length)):
            out[i] = relu_of(input[i])


@device
def relu_of(x: f32) -> f32:
    """0 for a negative number, else the number."""
    return f32(0.0) if x < f32(0.0) else x
