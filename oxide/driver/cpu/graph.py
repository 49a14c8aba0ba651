"""Graphs of the CPU device: recorded lists of a stream's items, submitted again at each launch."""

from __future__ import annotations

import itertools
from typing import final

from oxide.driver.cpu.streams import BlockRange, Task

_numbers = itertools.count(1)


@final
class CpuGraph:
    """The items that a capture recorded on a stream of ``device``, in order."""

    __slots__ = ("destroyed", "device", "items", "number")

    def __init__(self, device: int, items: tuple[Task | BlockRange, ...]) -> None:
        self.device = device
        self.number = next(_numbers)
        self.items = items
        self.destroyed = False

    def __repr__(self) -> str:
        return f"<graph {self.number} of cpu:{self.device}>"


def recorded(item: Task | BlockRange) -> Task | BlockRange:
    """Returns the item to submit for one launch of a graph. A ``BlockRange`` counts the blocks handed out, so each
    launch gets a new one."""
    return item.renewed() if isinstance(item, BlockRange) else item
