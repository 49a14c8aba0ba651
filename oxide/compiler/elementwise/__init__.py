"""Elementwise kernels: each thread computes its own element of the outputs from its own element of the inputs.

``proof.py`` proves that a kernel is elementwise. ``compiler/fusion`` writes the IR of kernels that compute several
elementwise kernels. Here is how such a kernel accesses its slices, as plain data that the cache keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

ITEMS: Final = 4
"""The number of elements that a thread of a fused kernel computes."""


@final
@dataclass(frozen=True, slots=True)
class OwnAccess:
    """The accesses to one slice. Each thread accesses only the slice's element at the thread's own position."""

    name: str
    """The parameter's name."""
    reads: bool
    writes: bool
    always: bool
    """True if each thread that has an element writes it, unless a check or an ``assert`` fails."""


@final
@dataclass(frozen=True, slots=True)
class Elementwise:
    """The accesses of an elementwise kernel. Each thread computes one element, at the same position in all slices in
    ``own``. A thread past the end of these slices does nothing. The slices in ``tables`` are only read, at any
    index."""

    axes: int
    """1 for a kernel that uses ``thread.index_1d()``, 2 for a kernel that uses ``thread.index_2d(width)``. The slices
    in ``own`` have this number of axes."""
    own: tuple[OwnAccess, ...]
    tables: tuple[str, ...]
