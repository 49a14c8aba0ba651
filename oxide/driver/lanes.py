"""Lanes: how the parts of a graph (``Driver.capture_after``) are spread over streams.

A lane is a sequence of parts for one stream. A part joins the lane of a part that it runs after, if that part is still
the last of its lane. Otherwise the part begins a new lane. So each lane runs its parts in order, and waits for another
lane only where one of its parts runs after a part of the other lane.
"""

from __future__ import annotations

from collections.abc import Sequence


def lanes_of(after: Sequence[Sequence[int]]) -> list[int]:
    """Returns the lane of each part. ``after`` has, for each part, the numbers of the earlier parts that it runs after.
    Lanes are numbered in the order in which they begin."""
    found: list[int] = []
    continued: set[int] = set()
    count = 0
    for earlier in after:
        before = next((number for number in earlier if number not in continued), None)
        if before is None:
            found.append(count)
            count += 1
        else:
            continued.add(before)
            found.append(found[before])
    return found
