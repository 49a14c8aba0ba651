"""Outputs of one launch that share memory.

A ``DisjointSlice`` gives each thread its own elements. This holds for one slice only: if two slices overlap, thread 0's
element of one may be thread 4's element of the other, and both threads write this element::

    a, b = whole.split(8)[0], whole.reshape(-1)
    kernel(a, b)     # allowed: both begin together and have the same layout, so a thread's elements are its own in both

So two outputs must not overlap, or they must begin at the same address with the same sizes of elements and tiles. If an
output has several axes, the rows of both outputs must have equal lengths too. Two ``AtomicSlice`` may overlap freely.
An input may share an output's memory: a thread that reads another thread's element may or may not see that thread's
write.

An input of a tile kernel may be the box of an output, as in ``scale(x.partition(shape), x)``. Each block then reads the
old elements of its own tile. An input must not overlap an output in any other way, because the compiler orders a
block's loads and stores by their tiles.
"""

from __future__ import annotations

from collections.abc import Sequence

from oxide.compiler.signature.signature import Parameter
from oxide.errors import ArgumentError
from oxide.runtime.device.memory import DeviceBox


def refuse_shared_outputs(kernel: str, outputs: Sequence[tuple[Parameter, DeviceBox]]) -> None:
    """Raises ``ArgumentError`` for two outputs of a launch through which two threads could write the same element.

    ``outputs`` are the parameters of kinds ``disjoint``, ``tiles`` and ``atomic``, each with its box.
    """
    for number, (second, box) in enumerate(outputs):
        for first, other in outputs[:number]:
            apart = other.ptr + other.nbytes <= box.ptr or box.ptr + box.nbytes <= other.ptr
            if not apart and _conflict(first, other, second, box):
                raise ArgumentError(
                    f"kernel {kernel}: the outputs {first.name} ({first.annotation}, bytes {other.ptr:#x} to "
                    f"{other.ptr + other.nbytes:#x}) and {second.name} ({second.annotation}, bytes {box.ptr:#x} to "
                    f"{box.ptr + box.nbytes:#x}) share memory, and two threads could write the same element; give each "
                    "output memory of its own"
                )


def refuse_shared_tensors(
    kernel: str, inputs: Sequence[tuple[Parameter, DeviceBox]], outputs: Sequence[tuple[Parameter, DeviceBox]]
) -> None:
    """Raises ``ArgumentError`` for an input of a tile kernel that overlaps an output and is not the same box."""
    for one, box in inputs:
        for output, other in outputs:
            apart = other.ptr + other.nbytes <= box.ptr or box.ptr + box.nbytes <= other.ptr
            same = other.ptr == box.ptr and other.shape == box.shape and other.dtype == box.dtype
            if not apart and not same:
                raise ArgumentError(
                    f"kernel {kernel}: the input {one.name} (shape {box.shape}) and the output {output.name} (shape "
                    f"{other.shape}) overlap in memory and are not one box; give the output memory of its own"
                )


def _conflict(first: Parameter, other: DeviceBox, second: Parameter, box: DeviceBox) -> bool:
    """Returns whether two overlapping outputs give the same element to two threads."""
    if first.kind == second.kind == "atomic":
        return False
    same = first.kind == second.kind and first.tile == second.tile and other.ptr == box.ptr
    if first.ndim > 1 or second.ndim > 1:
        same = same and first.ndim == second.ndim and other.shape[1:] == box.shape[1:]
    return not (same and first.dtype.itemsize == second.dtype.itemsize)
