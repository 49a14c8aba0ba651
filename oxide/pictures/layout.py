"""Layered layout: each node is below all nodes that have an edge to it.

The method is Sugiyama's. Nodes get ranks by the longest path. An edge that spans several ranks passes through a point
in each of them, so that it has room; a label is such a point with a size. In sweeps, the points and nodes of a rank are
ordered by the mean position of their neighbours, and the order with the fewest crossings is kept. Then each place moves
as near to the mean of its neighbours as the order and the gaps of its rank allow. This is an isotonic regression.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import final

_GAP = 18.0  # between neighbours of a rank, in pixels
_BETWEEN_RANKS = 16.0
_SWEEPS = 12


@final
@dataclass(slots=True)
class Place:
    """A node, a label or a point of an edge, with its size and, after ``arrange``, its centre."""

    width: float
    height: float
    rank: int = 0
    x: float = 0.0
    y: float = 0.0
    above: list[Place] = field(default_factory=list)
    below: list[Place] = field(default_factory=list)
    order: int = 0


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The result of ``arrange``. ``nodes`` has the place of each node. ``routes`` has, for each edge, the places on its
    way, from its source to its target. ``labels`` has, for each edge, the place of its label, None without a label."""

    nodes: tuple[Place, ...]
    routes: tuple[tuple[Place, ...], ...]
    labels: tuple[Place | None, ...]
    width: float
    height: float


def arrange(
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[tuple[int, int]],
    labels: Sequence[tuple[float, float] | None],
) -> Layout:
    """Places nodes of the given sizes. ``edges`` are pairs of indices of nodes: the source and the target. ``labels``
    has the size of each edge's label, None without a label. Raises ``ValueError`` if the edges form a cycle."""
    nodes = tuple(Place(width, height) for width, height in sizes)
    for place, rank in zip(nodes, _ranks(len(nodes), edges), strict=True):
        place.rank = 2 * rank  # the odd ranks are for labels
    places = list(nodes)
    routes: list[tuple[Place, ...]] = []
    labelled: list[Place | None] = []
    for (source, target), size in zip(edges, labels, strict=True):
        route = [nodes[source]]
        for rank in range(nodes[source].rank + 1, nodes[target].rank):
            point = Place(0.0, 0.0, rank)
            if size is not None and rank == nodes[source].rank + 1:
                point.width, point.height = size
            places.append(point)
            route.append(point)
        route.append(nodes[target])
        for upper, lower in pairwise(route):
            upper.below.append(lower)
            lower.above.append(upper)
        routes.append(tuple(route))
        labelled.append(None if size is None else route[1])
    ranks: list[list[Place]] = [[] for _ in range(max((place.rank for place in places), default=-1) + 1)]
    for place in places:
        ranks[place.rank].append(place)
    _order(ranks)
    width = _columns(ranks)
    return Layout(nodes, tuple(routes), tuple(labelled), width, _rows(ranks))


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Returns the rank of each node: the length of the longest path to it. A node without inputs is moved down to the
    rank just above the highest node that it leads to."""
    following: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for source, target in edges:
        following[source].append(target)
        waiting[target] += 1
    ranks = [0] * count
    ready = [node for node in range(count) if not waiting[node]]
    first = set(ready)
    done = 0
    while ready:
        node = ready.pop()
        done += 1
        for target in following[node]:
            ranks[target] = max(ranks[target], ranks[node] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    if done < count:
        raise ValueError("the edges of a picture form a cycle")
    for node in first:
        if following[node]:
            ranks[node] = min(ranks[target] for target in following[node]) - 1
    return ranks


def _order(ranks: list[list[Place]]) -> None:
    """Orders each rank so that few edges cross."""
    _number(ranks)
    best, kept = _crossings(ranks), [list(rank) for rank in ranks]
    for sweep in range(_SWEEPS):
        if not best:
            break
        downwards = sweep % 2 == 0
        for rank in ranks if downwards else reversed(ranks):
            rank.sort(key=lambda place: _mean_order(place, place.above if downwards else place.below))
            for order, place in enumerate(rank):
                place.order = order
        found = _crossings(ranks)
        if found < best:
            best, kept = found, [list(rank) for rank in ranks]
    ranks[:] = kept
    _number(ranks)


def _number(ranks: list[list[Place]]) -> None:
    for rank in ranks:
        for order, place in enumerate(rank):
            place.order = order


def _mean_order(place: Place, neighbours: list[Place]) -> float:
    if not neighbours:
        return place.order
    return sum(neighbour.order for neighbour in neighbours) / len(neighbours)


def _crossings(ranks: list[list[Place]]) -> int:
    """Returns the number of pairs of edges that cross."""
    total = 0
    for rank in ranks:
        passed: list[int] = []
        for place in rank:
            ends = sorted(below.order for below in place.below)
            total += sum(len(passed) - bisect_right(passed, end) for end in ends)
            for end in ends:
                insort(passed, end)
    return total


def _columns(ranks: list[list[Place]]) -> float:
    """Sets the x of all centres, and returns the width of the layout."""
    for rank in ranks:
        _set_row(rank, [0.0] * len(rank))
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        for rank in ranks if downwards else reversed(ranks):
            wanted = []
            for place in rank:
                neighbours = place.above if downwards else place.below
                found = [neighbour.x for neighbour in neighbours]
                wanted.append(sum(found) / len(found) if found else place.x)
            _set_row(rank, wanted)
    places = [place for rank in ranks for place in rank]
    left = min((place.x - place.width / 2 for place in places), default=0.0)
    for place in places:
        place.x -= left
    return max((place.x + place.width / 2 for place in places), default=0.0)


def _set_row(row: list[Place], wanted: Sequence[float]) -> None:
    """Sets the x of each place in a rank. Keeps the order and the gaps, and minimises the sum of the squared distances
    from the wanted positions.

    Adjacent places whose wanted positions come too close are merged into a block, which is put at their mean.
    """
    offsets = []
    offset = 0.0
    for number, place in enumerate(row):
        if number:
            offset += (row[number - 1].width + place.width) / 2 + _GAP
        offsets.append(offset)
    blocks: list[tuple[float, int]] = []  # the mean of (wanted position - offset), and the number of places
    for want, offset in zip(wanted, offsets, strict=True):
        mean, count = want - offset, 1
        while blocks and blocks[-1][0] > mean:
            earlier, length = blocks.pop()
            mean, count = (earlier * length + mean * count) / (length + count), length + count
        blocks.append((mean, count))
    positions = [mean for mean, count in blocks for _ in range(count)]
    for place, position, offset in zip(row, positions, offsets, strict=True):
        place.x = position + offset


def _rows(ranks: list[list[Place]]) -> float:
    """Sets the y of all centres, and returns the height of the layout."""
    y = 0.0
    for rank in ranks:
        height = max((place.height for place in rank), default=0.0)
        for place in rank:
            place.y = y + height / 2
        y += height + _BETWEEN_RANKS
    return max(y - _BETWEEN_RANKS, 0.0)
