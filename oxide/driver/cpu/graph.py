"""Graphs of the CPU device: recorded items of a stream, submitted again at each launch.

The parts of a graph with branches are spread over *lanes*. A lane is a stream of its own for the time of one launch;
the first is the stream that the graph is launched on. A part continues the lane of a part that it runs after, if no
other part has done so, and otherwise begins a lane. So each lane runs its parts in order, and waits for other lanes
where the graph asks for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import final

from oxide.driver.cpu.streams import BlockRange, CapturedPart, CpuStream, Item, Point, Record, Task, Wait

_numbers = itertools.count(1)


@final
class _Placed:
    """A part in its lane. ``waits`` are the parts of other lanes that it runs after. ``awaited`` is True if a part of
    another lane waits for it."""

    __slots__ = ("awaited", "items", "lane", "waits")

    def __init__(self, lane: int, items: tuple[Task | BlockRange, ...], waits: tuple[int, ...]) -> None:
        self.lane = lane
        self.items = items
        self.waits = waits
        self.awaited = False


@final
class CpuGraph:
    """The parts that a capture recorded on a stream of ``device``, in the order in which they were begun."""

    __slots__ = ("_lanes", "_parts", "destroyed", "device", "number")

    def __init__(self, device: int, parts: list[CapturedPart]) -> None:
        self.device = device
        self.number = next(_numbers)
        self.destroyed = False
        self._parts: list[_Placed] = []
        self._lanes = 0
        continued: set[int] = set()
        for part in parts:
            before = next((number for number in part.after if number not in continued), None)
            if before is not None:
                continued.add(before)
                lane = self._parts[before].lane
            else:
                lane = self._lanes
                self._lanes += 1
            waits = tuple([number for number in part.after if self._parts[number].lane != lane])
            for number in waits:
                self._parts[number].awaited = True
            self._parts.append(_Placed(lane, tuple(part.items), waits))

    def launch(
        self,
        stream: CpuStream,
        submit: Callable[[CpuStream, Item], None],
        renewed: Callable[[Task | BlockRange], Task | BlockRange],
    ) -> None:
        """Submits one launch. ``renewed`` returns the item to submit for a recorded one.

        A point is recorded before any stream waits for it, and the launching stream waits for all lanes even if an
        interrupt ends the submission. So no stream waits for ever, and the launch is over when that stream is past it.
        """
        if self._lanes <= 1:
            for part in self._parts:
                for item in part.items:
                    submit(stream, renewed(item))
            return
        lanes = [stream]
        points: dict[int, Point] = {}
        begin = Point(stream)
        submit(stream, Record(begin))
        try:
            for number, part in enumerate(self._parts):
                if part.lane == len(lanes):
                    lane = CpuStream(self.device, high=stream.high)
                    lanes.append(lane)
                    if not part.waits:
                        submit(lane, Wait(begin))
                lane = lanes[part.lane]
                for awaited in part.waits:
                    submit(lane, Wait(points[awaited]))
                for item in part.items:
                    submit(lane, renewed(item))
                if part.awaited:
                    points[number] = Point(lane)
                    submit(lane, Record(points[number]))
        finally:
            for lane in lanes[1:]:
                end = Point(lane)
                submit(lane, Record(end))
                submit(stream, Wait(end))

    def __repr__(self) -> str:
        return f"<graph {self.number} of cpu:{self.device}>"


def recorded(item: Task | BlockRange) -> Task | BlockRange:
    """Returns the item to submit for one launch of a graph. A ``BlockRange`` counts the blocks handed out, so each
    launch gets a new one."""
    return item.renewed() if isinstance(item, BlockRange) else item
