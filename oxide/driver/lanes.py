"""Lanes: how the parts of a graph are spread over streams.

A part continues the lane of a part that it runs after, if no other part has done so, and otherwise begins a lane. So
each lane runs its parts in order, and waits for other lanes where the graph asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence


def lanes_of(after: Sequence[Sequence[int]]) -> list[int]:
    """Returns the lane of each part, given the earlier parts that it runs after. Lanes are numbered in the order in
    which they begin."""
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
