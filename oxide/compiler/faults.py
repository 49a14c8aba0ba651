"""Kernel faults as data: the record that a failing check fills, and how the host reads it.

A record is 64 bytes that the host and the device both see, one for each launch in flight, zeroed before the launch.
The first check that fails claims it by a compare-exchange and fills it in; later ones find it claimed and leave it.
The access itself reads zero or writes nothing and its thread goes on, so no memory outside the slice is touched and the
device stays usable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BoundsError, KernelFault
from .divergence import DIVERGENT, divergence

RECORD: np.dtype[Any] = np.dtype(
    [
        ("claimed", np.uint32),
        ("site", np.uint32),
        ("kernel_id", np.uint64),
        ("index", np.int64),
        ("length", np.uint64),
        ("block", np.uint32, (3,)),
        ("thread", np.uint32, (3,)),
        ("reserved", np.uint64),
    ]
)
"""The fault record's layout: 64 bytes, aligned to 8."""


@dataclass(frozen=True, slots=True)
class FaultSite:
    """An access that is checked: the slice's kernel parameter, and where in the source the access is."""

    parameter: str
    file: str
    line: int


def read_fault(record: np.ndarray[Any, Any], kernel_name: str, sites: Sequence[FaultSite]) -> KernelFault | None:
    """The fault that a launch left in its record (one ``RECORD``, or an array of one), or None if it left none.

    To be called once the launch has run: the device fills the record without any promise before that.
    """
    entry = record.reshape(-1)[0] if record.ndim else record[()]
    if not entry["claimed"]:
        return None
    if entry["claimed"] == DIVERGENT:
        return divergence(entry, kernel_name, sites)
    site = sites[int(entry["site"])]
    block = entry["block"]
    thread = entry["thread"]
    return BoundsError(
        kernel_name,
        site.parameter,
        int(entry["index"]),
        int(entry["length"]),
        (int(block[0]), int(block[1]), int(block[2])),
        (int(thread[0]), int(thread[1]), int(thread[2])),
        site.file,
        site.line,
    )
