"""Kernel faults as data: the place in the source that a check belongs to, and the host's reader of the record that a
failed check fills.

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
from typing import Any

import numpy as np

from oxide.driver.records import FAULT
from oxide.driver.sanitizing import SANITIZED, published
from oxide.errors import BoundsError, KernelAssertionError, KernelFault, place_name

from .divergence import DIVERGENT, divergence
from .text import line_in

RECORD: np.dtype[Any] = FAULT.dtype


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


def read_fault(record: np.ndarray[Any, Any], kernel_name: str, sites: Sequence[FaultSite]) -> KernelFault | None:
    """Returns the fault in a launch's record, or None if there is none. ``record`` is one ``RECORD``, or an array that
    holds one.

    Call it only after the launch has ended: until then the record's contents are undefined.
    """
    entry = record.reshape(-1)[0] if record.ndim else record[()]
    if not entry["claimed"]:
        return None
    if entry["claimed"] == DIVERGENT:
        return divergence(entry, kernel_name, sites)
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
