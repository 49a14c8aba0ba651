"""The error for operations that are nested too deeply.

A walk keeps its place in a stack of its own (``walk.py``), so operations inside one another take none of Python's
stack. The walk's stack is as deep as Python's may be (``sys.getrecursionlimit()``): a function of ``and_then`` that
returns its own ``and_then`` without end would otherwise take all memory. Chains of ``and_then``, ``map`` and
``inspect``, and ``shared`` operations that follow one another, may have any length.
"""

from __future__ import annotations

import ctypes
import re
import sys

_WALK_FILE = "runtime/submission/walk.py"  # the file of Walk.go_on: one frame for each walk inside another

_LEAST = 30
"""The fewest walks inside one another that explain a full stack of Python's: with fewer, a function of the program used
it up."""


class TooDeep(RecursionError):
    """Raised by a walk whose stack is full."""

    def __init__(self) -> None:
        super().__init__("operations are nested too deep")


_IN_CTYPES = re.compile(r"argument \d+: RecursionError: ")
"""The beginning of the message that ctypes gives to an error which arose while it converted an argument."""


def raise_if_nested(error: BaseException, operation: object) -> None:
    """Raises a ``RecursionError`` with advice if ``error`` is one that nested operations caused. If the stack was full
    in a call of a native function, ``error`` is the ``ArgumentError`` that ctypes has made of the ``RecursionError``,
    and a ``RecursionError`` is raised for it too."""
    in_ctypes = isinstance(error, ctypes.ArgumentError) and _IN_CTYPES.match(str(error)) is not None
    if not in_ctypes and not isinstance(error, RecursionError):
        return
    trace, depth = error.__traceback__, 0
    while trace is not None:
        code = trace.tb_frame.f_code
        depth += code.co_name == "go_on" and code.co_filename.endswith(_WALK_FILE)
        trace = trace.tb_next
    if depth >= _LEAST or isinstance(error, TooDeep):
        raise RecursionError(
            f"{operation!r} has more operations inside one another than the {sys.getrecursionlimit()} that "
            f"sys.getrecursionlimit() allows. Chains of and_then, map and inspect may have any length, and shared() "
            f"may follow shared(); make nested zips flat, zip(a, b, c), give a launch the boxes of earlier launches in "
            f"an and_then, and write a function that returns its own and_then as a loop"
        ) from None
    if in_ctypes:
        found = RecursionError("maximum recursion depth exceeded in a call of a native function")
        for note in getattr(error, "__notes__", ()):
            found.add_note(note)
        raise found.with_traceback(error.__traceback__) from None
