"""The error for operations that are nested too deeply.

An operation runs its parts inside its own ``execute``, so each level of nesting takes a few frames of Python's stack.
The structures that programs build without a bound are walked iteratively and may have any length: chains of
``and_then``, ``map`` and ``inspect``, and ``shared`` operations that follow one another.
"""

from __future__ import annotations

import ctypes
import re
import sys

_RUN_FILE = "runtime/operations/operation.py"  # the file of DeviceOperation.run: one frame for each level

_LEAST = 30
"""The fewest levels that explain a full stack: with fewer, a function of the program used it up."""


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
        depth += code.co_name == "run" and code.co_filename.endswith(_RUN_FILE)
        trace = trace.tb_next
    if depth >= _LEAST:
        raise RecursionError(
            f"{operation!r} has more than {depth} operations inside one another, which Python's stack of "
            f"{sys.getrecursionlimit()} frames does not hold. Chains of and_then, map and inspect may have any length, "
            f"and shared() may follow shared(); make nested zips flat, zip(a, b, c), give a launch the boxes of "
            f"earlier launches in an and_then, and write a function that returns its own and_then as a loop"
        ) from None
    if in_ctypes:
        found = RecursionError("maximum recursion depth exceeded in a call of a native function")
        for note in getattr(error, "__notes__", ()):
            found.add_note(note)
        raise found.with_traceback(error.__traceback__) from None
