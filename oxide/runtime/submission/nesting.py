"""The error for operations that are nested too deeply.

An operation runs its parts inside its own ``execute``, so each level of nesting takes a few frames of Python's stack.
The structures that programs build without a bound are walked iteratively and may have any length: chains of
``and_then``, ``map`` and ``inspect``, and ``shared`` operations that follow one another.
"""

from __future__ import annotations

import sys

_RUN_FILE = "runtime/operations/operation.py"  # the file of DeviceOperation.run: one frame for each level

_LEAST = 30
"""The fewest levels that explain a full stack: with fewer, a function of the program used it up."""


def raise_if_nested(error: BaseException, operation: object) -> None:
    """Raises a ``RecursionError`` with advice if ``error`` is one that nested operations caused."""
    if not isinstance(error, RecursionError):
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
