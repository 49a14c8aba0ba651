"""Strided copies between two boxes of a device, by a kernel on that device.

A driver's copy takes one pitch or two, so a transposition would need a copy for each row. A kernel takes any strides in
one launch. Neighbouring axes that one stride steps through in both boxes are merged first, and the bytes of an element
form an axis, too. So the kernel copies the longest words that divide both layouts, and a row of short elements is as
fast as a row of long ones. In nearly all programs at most four axes remain, which one launch copies. If more remain,
each combination of indices of the further axes takes a launch of its own.

The kernel is submitted here directly and not as a ``KernelLaunch``: launches are built on operations, and copies are
operations.

This module is imported at the first strided copy. The kernel is compiled then, once for each machine, like any kernel.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from oxide.compiler.kernel.kernel import Kernel
from oxide.language.slices import DisjointSlice, Slice
from oxide.language.thread import index_1d
from oxide.language.types import i64, u8, u16, u32, u64
from oxide.runtime.awaiting.loading import compiled_beside, note_compiled, note_compiling, ready_function
from oxide.runtime.memory.memory import DeviceBox, require_device

if TYPE_CHECKING:
    from oxide.runtime.submission.submission import ExecutionContext

T = TypeVar("T", u8, u16, u32, u64)

Axes = list[tuple[int, int, int]]
"""For each axis: its size, and the strides of the destination and of the source in bytes."""

_AXES = 4  # the number of axes of the kernel
_BLOCK = 256
_WORDS = {1: u8, 2: u16, 4: u32, 8: u64}
"""The types of the words that the kernel copies, by size in bytes."""


def copy_strided(
    out: DisjointSlice[T],
    source: Slice[T],
    count: i64,
    size_1: i64,
    size_2: i64,
    size_3: i64,
    out_start: i64,
    out_0: i64,
    out_1: i64,
    out_2: i64,
    out_3: i64,
    source_start: i64,
    source_0: i64,
    source_1: i64,
    source_2: i64,
    source_3: i64,
) -> None:
    """Copies ``count`` words, one in each thread. A thread's indices follow from its number, with the last axis
    fastest."""
    number = i64(index_1d().get())
    if number < count:
        third = number // size_3
        at_3 = number - third * size_3
        second = third // size_2
        at_2 = third - second * size_2
        at_0 = second // size_1
        at_1 = second - at_0 * size_1
        word = source.unchecked[source_start + at_0 * source_0 + at_1 * source_1 + at_2 * source_2 + at_3 * source_3]
        out.unchecked_mut[out_start + at_0 * out_0 + at_1 * out_1 + at_2 * out_2 + at_3 * out_3] = word


KERNEL = Kernel(copy_strided, compiling=note_compiling, compiled=note_compiled, unchecked=True, sanitizable=False)


def copy_with_strides(context: ExecutionContext, destination: DeviceBox, source: DeviceBox) -> None:
    """Copies a box into another of its shape and dtype on the same device. The two must not share memory."""
    require_device(destination, context.device, "a strided copy")
    require_device(source, context.device, "a strided copy")
    axes = _merged(destination, source)
    word = _word(axes, destination, source)
    *outer, (run, _, _) = axes
    axes = [*outer, (run // word, word, word)]
    beyond, axes = axes[:-_AXES], axes[-_AXES:]
    axes = [(1, 0, 0)] * (_AXES - len(axes)) + axes
    out, out_start = _words(destination, word)
    words, source_start = _words(source, word)
    sizes = [size for size, _, _ in axes]
    count = math.prod(sizes)
    out_steps, source_steps = ([step // word for step in steps] for steps in list(zip(*axes, strict=True))[1:])
    special = compiled_beside(lambda: KERNEL.specialize(T=_WORDS[word]))
    function = ready_function(special, context.device)
    grid, block = (-(-count // _BLOCK), 1, 1), (_BLOCK, 1, 1)
    for place in itertools.product(*(range(size) for size, _, _ in beyond)):
        moved = [sum(at * axis[side] for at, axis in zip(place, beyond, strict=True)) // word for side in (1, 2)]
        starts = (out_start + moved[0], *out_steps, source_start + moved[1], *source_steps)
        values = [(out.ptr, out.size), (words.ptr, words.size), count, *sizes[1:], *starts]
        params = special.pack(values, context.fault_address(special) if function.reports else 0)
        context.launch("copy_strided", function, grid, block, 0, params, [words._allocation], [out._allocation])


def _merged(destination: DeviceBox, source: DeviceBox) -> Axes:
    """Returns the axes of a copy, after merging neighbouring axes that one stride steps through in both boxes. The last
    axis is a run of bytes that is contiguous in both boxes."""
    merged: Axes = [(destination.dtype.itemsize, 1, 1)]
    axes: list[tuple[int, int, int]] = list(zip(destination.shape, destination.strides, source.strides, strict=True))
    for size, out, step in reversed(axes):
        inner, inner_out, inner_step = merged[0]
        if out == inner * inner_out and step == inner * inner_step:
            merged[0] = size * inner, inner_out, inner_step
        elif size > 1:
            merged.insert(0, (size, out, step))
    return merged


def _word(axes: Axes, destination: DeviceBox, source: DeviceBox) -> int:
    """Returns how many bytes the kernel copies at once: the longest word of which the length of the last axis, all
    strides and both addresses are multiples."""
    *outer, (run, _, _) = axes
    steps = [step for _, *both in outer for step in both]
    return math.gcd(max(_WORDS), run, destination.ptr, source.ptr, *steps)


def _words(box: DeviceBox, word: int) -> tuple[DeviceBox, int]:
    """Returns a box of words over the memory that a view spans, and the index in that box of the word where the view's
    first element begins."""
    whole = box._bytes()
    words = DeviceBox(whole._allocation, (whole.size // word,), np.dtype(f"u{word}"), whole._offset)
    words._known = box._known
    return words, (box.ptr - whole.ptr) // word
