"""Graphs of the CPU device: the recorded list of a stream's items, submitted again at each launch."""

from __future__ import annotations

import itertools
from typing import final

from oxide.driver.cpu.streams import BlockRange, Task

_numbers = itertools.count(1)


@final
class CpuGraph:
    """What a capture recorded on a stream of ``device``, in order."""

    __slots__ = ("destroyed", "device", "items", "number")

    def __init__(self, device: int, items: tuple[Task | BlockRange, ...]) -> None:
        self.device = device
        self.number = next(_numbers)
        self.items = items
        self.destroyed = False

    def __repr__(self) -> str:
        return f"<graph {self.number} of cpu:{self.device}>"


def recorded(item: Task | BlockRange) -> Task | BlockRange:
    """The item as one launch runs it: a range of blocks counts those it has handed out, so each launch has its own."""
    return item.renewed() if isinstance(item, BlockRange) else item
