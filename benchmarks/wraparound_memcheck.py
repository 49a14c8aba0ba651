"""Runs every wrap-around case once on the device in force, for ``compute-sanitizer`` to watch.

    compute-sanitizer --tool memcheck --error-exitcode 9 python -m benchmarks.wraparound_memcheck

Each case's slice is an allocation of its own, so an access outside it is one that the checker can see. Exits with 1 if
a case comes out otherwise than the interpreter says.
"""

from __future__ import annotations

import sys

import numpy as np

from oxide import BoundsError, d2h, h2d, zeros
from tests.language.wraparound import Case, cases


def outcome(case: Case) -> tuple[int, tuple[int, int] | None]:
    """The element written, and the fault's index and length: what ``Case.expected(0)`` gives."""
    y = zeros(1, dtype=np.int64).sync()
    fault = None
    try:
        case.kernel[1, 1](*case.numbers, h2d(case.x()).sync(), y).sync()
    except BoundsError as error:
        fault = error.index, error.length
    return int(d2h(y).sync()[0]), fault


def main() -> int:
    wrong = count = 0
    for case in cases():
        count += 1
        found, expected = outcome(case), case.expected(0)
        if found != expected:
            wrong += 1
            print(f"{case}: found {found}, expected {expected}")
    print(f"{count} wrap-around cases, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
