"""What the front end reports of places in the source: where a thread may fail, where arithmetic widens, and where
integers narrow. Also the host's reader of the record that a failed check fills.

A record, the ``FAULT`` of ``driver/records.py``, is memory that the host and the device both see. Each launch in flight
has a record, zeroed before the launch. The first check or ``assert`` that fails claims the record by a compare-exchange
and fills it in; later checks find the record claimed and leave it unchanged. The thread whose check has failed then
leaves the kernel, because a loop that runs past the end of its slice might never end. If threads can wait for one
another (by a barrier, a warp operation or an atomic), a failed access instead reads zero or writes nothing, and the
thread goes on. So no memory outside the slice is touched, and the device stays usable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np

from oxide.driver.records import FAULT
from oxide.driver.sanitizing import SANITIZED, published
from oxide.errors import BarrierError, BoundsError, KernelAssertionError, KernelFault, place_name

from .source import line_in

RECORD: np.dtype[Any] = FAULT.dtype
DIVERGENT = 2
"""The value of ``claimed`` in the fault record of a deadlock. ``length`` says how the threads wait.

- 0: some threads wait at the barrier ``site`` and others at the barrier ``index``.
- 1: a warp operation at ``site`` waits for lanes that do not reach it. ``index`` is a place where other lanes wait.
- 2: threads of the grid have returned while others wait for them at ``site``.
- 3 in the lowest byte: a thread waits at a ``tensor.Barrier``, and no other thread can continue. The next 28 bits of
  ``length`` are the number of the Barrier's phase. The upper 28 bits are the number of the phase that the thread waits
  for. The lower half of ``index`` counts the arrivals that the Barrier's phase still waits for, and the upper half
  counts the bytes of copies.
"""
_POLLING = 3


@dataclass(frozen=True, slots=True)
class FaultSite:
    """A place in the source where a thread may fail: an access to the array ``parameter``, a call of the function
    ``parameter``, or an ``assert``.

    ``assertion`` is the message of an ``assert``, or of another check that is not of an index. It is "" for an
    ``assert`` without a message, and None for any other site. For an access with several ``axes``, ``axis`` is the axis
    that is checked. ``kernel`` is the name of the site's kernel if this kernel is a stage of a fused kernel, else "".
    """

    parameter: str
    file: str
    line: int
    assertion: str | None = None
    axis: int | None = None
    axes: int = 1
    kernel: str = ""

    @property
    def place(self) -> str:
        """Returns the file and line, or a notebook's cell and line, for messages."""
        return place_name(self.file, self.line)


@final
@dataclass(frozen=True, slots=True, order=True)
class Widening:
    """A float operation whose result is a float wider than an operand.

    ``operation`` is the operation written with the types of its operands, such as ``f32 * i64``. ``result`` is the type
    of its result, and ``narrow`` is the type of the narrower operand.
    """

    file: str
    line: int
    operation: str
    result: str
    narrow: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.operation} is computed in {self.result}; convert to stay in {self.narrow}"


@final
@dataclass(frozen=True, slots=True, order=True)
class Narrowing:
    """An integer that becomes one of a type that does not hold all its values, although no conversion is written.

    ``value`` and ``result`` are the types before and after. ``target`` names what takes the integer: an element, an
    annotated variable, a parameter or a result of a device function.
    """

    file: str
    line: int
    target: str
    value: str
    result: str

    def __str__(self) -> str:
        return (
            f"line {self.line}: {self.target} takes {self.value} as {self.result}, which may wrap; "
            f"write {self.result}(…) where that is meant"
        )


@final
@dataclass(frozen=True, slots=True, order=True)
class NarrowIndex:
    """An index of the array ``parameter`` that is computed in ``narrow``, a type of 8 to 32 bits. Its check is made on
    the number that it would be without wrapping."""

    file: str
    line: int
    parameter: str
    narrow: str


Conversion: TypeAlias = Widening | Narrowing | NarrowIndex
"""A report of the type of an operation or of a value."""


def read_fault(record: np.ndarray[Any, Any], kernel_name: str, sites: Sequence[FaultSite]) -> KernelFault | None:
    """Returns the fault in a launch's record, or None if there is none. ``record`` is one ``RECORD``, or an array that
    holds one.

    Call it only after the launch has ended: until then the record's contents are undefined.
    """
    entry = record.reshape(-1)[0] if record.ndim else record[()]
    if not entry["claimed"]:
        return None
    if entry["claimed"] == DIVERGENT:
        return _divergence(entry, kernel_name, sites)
    if entry["claimed"] == SANITIZED:
        return published(int(entry["index"]))
    site = sites[int(entry["site"])]
    kernel_name = site.kernel or kernel_name
    block = entry["block"]
    thread = entry["thread"]
    where = (
        (int(block[0]), int(block[1]), int(block[2])),
        (int(thread[0]), int(thread[1]), int(thread[2])),
        site.file,
        site.line,
    )
    if site.assertion is not None:
        message = site.assertion or line_in(site.file, site.line).strip() or "an assertion failed"
        return KernelAssertionError(kernel_name, message, *where)
    index, length = int(entry["index"]), int(entry["length"])
    if site.axis is None:
        return BoundsError(kernel_name, site.parameter, index, length, *where)
    indices: list[int] = entry["other_indices"].tolist()[: site.axes - 1]
    shape: list[int] = entry["other_lengths"].tolist()[: site.axes - 1]
    indices.insert(site.axis, index)
    shape.insert(site.axis, length)
    return BoundsError(kernel_name, site.parameter, index, length, *where, site.axis, tuple(indices), tuple(shape))


def _divergence(entry: Any, kernel: str, sites: Sequence[FaultSite]) -> BarrierError:
    """Returns the error for a record with ``claimed == DIVERGENT``."""
    first = sites[int(entry["site"])]
    x, y, z = (int(number) for number in entry["block"])
    if int(entry["length"]) & 255 == _POLLING:
        return BarrierError(kernel, (x, y, z), ((first.file, first.line),), _polling(entry, first))
    second = sites[int(entry["index"])]
    if entry["length"] == 0:
        problem = (
            f"some threads wait in {first.parameter} at {first.place} and others in {second.parameter} at "
            f"{second.place}; all threads that have not returned must come to the same barrier: move it "
            "out of the branch"
        )
    elif entry["length"] == 2:
        problem = (
            f"its threads wait in {first.parameter} at {first.place}, and others of the grid have "
            "returned; every thread of the grid must come to it: let those that have nothing to do go round the work, "
            "not return"
        )
    else:
        problem = (
            f"a thread waits in {first.parameter} at {first.place} for lanes of its warp that do not come: "
            f"others wait in {second.parameter} at {second.place}; every lane that the mask names must "
            "make the same call with the same mask"
        )
    return BarrierError(kernel, (x, y, z), ((first.file, first.line), (second.file, second.line)), problem)


def _polling(entry: Any, place: FaultSite) -> str:
    """Returns the description of a wait at a ``tensor.Barrier`` that cannot end."""
    numbers, left = int(entry["length"]), int(entry["index"])
    phase, wanted = numbers >> 8 & (1 << 28) - 1, numbers >> 36
    wanted -= (wanted & 1 << 27) << 1
    arrivals, nbytes = (signed - ((signed & 1 << 31) << 1) for signed in (left & 0xFFFFFFFF, left >> 32 & 0xFFFFFFFF))
    x, y, z = (int(number) for number in entry["thread"])
    if place.parameter == "tensor.wgmma()":
        return (
            f"thread ({x}, {y}, {z}) waits in tensor.wgmma() at {place.place} for {arrivals} threads of "
            "its warpgroup that do not come; all 128 threads of a warpgroup must make the call together"
        )
    copies = f"and {nbytes} bytes of copies"
    if nbytes < 0:
        copies = f"and {-nbytes} bytes more have been copied than Barrier.expect has announced"
    passed = ""
    if phase > wanted + 1:
        passed = (
            "; a wait tells a phase only from the next: more threads have arrived, or called expect, than the "
            "number of arrivals that Barrier(count, arrivals) was made with"
        )
    return (
        f"thread ({x}, {y}, {z}) waits in {place.parameter} at {place.place} for phase {wanted} of a "
        f"Barrier, which cannot end: the Barrier is in phase {phase}, which still waits for {arrivals} arrivals "
        f"{copies}, and no thread of the block can go on{passed}"
    )
