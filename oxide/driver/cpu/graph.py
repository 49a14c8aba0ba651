"""Graphs of the CPU device: recorded items of a stream, submitted again at each launch.

The parts of a graph with branches are spread over lanes (``lanes_of``). The first lane is the stream that the graph is
launched on. Each other lane is a stream that exists for one launch.

The bodies of a conditional are graphs of their own. When a conditional comes to the head of its stream, it puts the
items of the chosen body in front of itself (``Unfolding``). So every iteration of a loop passes through the scheduler,
as the work of any stream does.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import final

from oxide.driver.base import lanes_of
from oxide.driver.cpu.streams import (
    CapturedPart,
    CpuStream,
    Fork,
    Item,
    OpenConditional,
    Point,
    Record,
    Recordable,
    Task,
    Unfolding,
    Wait,
)

_numbers = itertools.count(1)


@final
class _Placed:
    """A part in its lane. ``waits`` are the numbers of the parts of other lanes that it runs after. ``awaited`` is True
    if a part of another lane runs after it."""

    __slots__ = ("awaited", "items", "lane", "waits")

    def __init__(self, lane: int, items: tuple[Recordable, ...], waits: tuple[int, ...]) -> None:
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
        lanes = lanes_of([part.after for part in parts])
        self._lanes = len(set(lanes))
        for part, lane in zip(parts, lanes, strict=True):
            waits = tuple([number for number in part.after if lanes[number] != lane])
            for number in waits:
                self._parts[number].awaited = True
            self._parts.append(_Placed(lane, tuple(part.items), waits))

    def launch(
        self,
        stream: CpuStream,
        submit: Callable[[CpuStream, Item], None],
        renewed: Callable[[Recordable], Recordable],
    ) -> None:
        """Submits one launch. ``renewed`` returns the item to submit for a recorded item.

        A graph with several lanes is submitted as one item. So an interrupt cannot prevent the submission of a lane for
        which another lane waits.
        """
        items = self.items(stream, renewed)
        if self._lanes > 1:
            submit(stream, Unfolding(repr(self), lambda _: items))
            return
        for item in items:
            submit(stream, item)

    def items(self, stream: CpuStream, renewed: Callable[[Recordable], Recordable]) -> list[Item]:
        """Returns items for ``stream`` that do the graph's work once. ``renewed`` means the same as in ``launch``."""
        if self._lanes <= 1:
            return [renewed(item) for part in self._parts for item in part.items]
        lanes = [stream] + [CpuStream(self.device, high=stream.high) for _ in range(1, self._lanes)]
        queues: list[list[Item]] = [[] for _ in lanes]
        points: dict[int, Point] = {}
        for number, part in enumerate(self._parts):
            queue = queues[part.lane]
            queue += [Wait(points[awaited]) for awaited in part.waits]
            queue += [renewed(item) for item in part.items]
            if part.awaited:
                points[number] = Point(lanes[part.lane])
                queue.append(Record(points[number]))
        items: list[Item] = [Fork(lane) for lane in lanes[1:]]
        items += queues[0]
        for lane, queue in zip(lanes[1:], queues[1:], strict=True):
            end = Point(lane)
            lane.items.extend([*queue, Record(end)])
            items.append(Wait(end))
        return items

    @property
    def is_empty(self) -> bool:
        """Returns whether the graph has no work."""
        return not any(part.items for part in self._parts)

    def __repr__(self) -> str:
        return f"<graph {self.number} of cpu:{self.device}>"


def recorded(item: Recordable) -> Recordable:
    """Returns the item to submit for one launch of a graph. A ``BlockRange`` counts the blocks handed out, and an
    ``Unfolding`` notes its progress, so each launch gets new ones."""
    return item if isinstance(item, Task) else item.renewed()


def conditional(opened: OpenConditional, bodies: list[CpuGraph]) -> Unfolding:
    """Returns the item of a conditional. The item reads the flag when it comes to the head of its stream."""
    flag = ctypes.c_int32.from_address(opened.flag)
    claimed = ctypes.c_uint32.from_address(opened.stop) if opened.stop else None

    def unfold(stream: CpuStream) -> list[Item]:
        if flag.value and not (claimed is not None and claimed.value):
            return bodies[0].items(stream, recorded)
        return bodies[1].items(stream, recorded) if len(bodies) > 1 else []

    return Unfolding(opened.kind, unfold, repeats=opened.kind == "while")
