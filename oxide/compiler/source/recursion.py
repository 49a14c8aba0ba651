"""Raises Python's recursion limit while a kernel is compiled.

numba walks a function's blocks recursively, and oxide walks the expressions of the function's syntax tree recursively.
Python's limit of 1000 calls would allow only a few hundred branches or terms. A higher limit is safe: a call from one
Python function to another takes no space on the C stack, and Python's own compiler has already limited how deeply a
source file nests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from oxide.host.locks import new_lock, unheld

ROOM = 10_000
"""The recursion limit, in calls. It is enough for a kernel with some thousand branches."""

_lock = new_lock()
_inside = 0
_before = 0


@contextmanager
def room_for_recursion() -> Iterator[None]:
    """Raises Python's recursion limit within the ``with`` block. All threads share the limit, so the last thread to
    leave its block restores the limit."""
    global _inside, _before
    with unheld(_lock):
        if _inside == 0:
            _before = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_before, ROOM))
        _inside += 1
    try:
        yield
    finally:
        with unheld(_lock):
            _inside -= 1
            if _inside == 0:
                sys.setrecursionlimit(_before)
