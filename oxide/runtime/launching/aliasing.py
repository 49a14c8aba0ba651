"""Outputs of one launch that share memory.

A ``DisjointSlice`` gives each thread elements of its own, which holds for one slice. Over two that overlap, thread 0's
element of the one may be thread 4's of the other, and both write it::

    a, b = whole.partition(8)[0], whole.reshape(-1)
    kernel(a, b)     # fine while the two begin together and have the same layout: then each thread has its own in both

So outputs are apart, or begin at the same address with elements and tiles of one size, and with the same rows if one
has several axes. Two ``AtomicSlice`` may overlap
as they like. An input may be an output's memory: a thread that reads other elements of it than its own reads what
another thread may or may not have written.
"""

from __future__ import annotations

from collections.abc import Sequence

from oxide.compiler.signature.signature import Parameter
from oxide.errors import ArgumentError
from oxide.runtime.device.memory import DeviceBox


def refuse_shared_outputs(kernel: str, outputs: Sequence[tuple[Parameter, DeviceBox]]) -> None:
    """Raises ``ArgumentError`` for two outputs of a launch by which two threads could reach the same element.

    ``outputs`` are the parameters of kinds ``disjoint``, ``tiles`` and ``atomic`` with their boxes."""
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


def _conflict(first: Parameter, other: DeviceBox, second: Parameter, box: DeviceBox) -> bool:
    """Whether two outputs that overlap give an element to two threads."""
    if first.kind == second.kind == "atomic":
        return False
    same = first.kind == second.kind and first.tile == second.tile and other.ptr == box.ptr
    if first.ndim > 1 or second.ndim > 1:
        same = same and first.ndim == second.ndim and other.shape[1:] == box.shape[1:]
    return not (same and first.dtype.itemsize == second.dtype.itemsize)
