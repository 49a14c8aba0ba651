"""Memory reuse: temporaries of a plan whose lives do not overlap share memory.

A temporary is memory that a recording allocated and that only the recording's nodes still use: the program holds no box
of it. It lives from the first node that uses it to the last. A loop or a choice counts as one node, which uses all
memory that its bodies use. Two temporaries may share memory if all nodes of one run before all nodes of the other. So
sharing adds no edge to the plan: nodes that could run at the same time still can.

The addresses of temporaries are among the arguments of the nodes. Sharing replaces these addresses. ``_ADDRESSES``
gives their places in a call's arguments, ``Specialization.pointers`` those in a kernel's parameters.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from oxide.host.messages import byte_count
from oxide.runtime.memory.allocation import Allocation
from oxide.runtime.ordering.timeline import Timeline
from oxide.runtime.plan.nodes import Conditional, Node, PlanNode, predecessors

_WORD = struct.Struct("@Q")

_ADDRESSES = {"fill": (0,), "copy_to_host": (1,), "copy_on_device": (0, 1)}
"""The places of device addresses among the arguments of a call, by the call's method."""

_PARAMS = 4  # the place of the parameter bytes among the arguments of a launch


@final
@dataclass(frozen=True, slots=True)
class GraphMemory:
    """The device memory of a graph's own boxes, in bytes: ``before`` if each box had memory of its own, ``after`` with
    the sharing."""

    before: int
    after: int

    def __str__(self) -> str:
        return f"{byte_count(self.after)} instead of {byte_count(self.before)}"


@final
@dataclass(slots=True)
class _Slot:
    """Memory that temporaries share. ``users`` has the numbers of the temporaries, in the order of their lives, and
    ``begins`` the first node of each. ``nbytes`` is the size of the largest temporary."""

    nbytes: int = 0
    users: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)


def share_memory(nodes: Sequence[PlanNode], made: list[Allocation], timeline: Timeline) -> GraphMemory:
    """Lets the temporaries among ``made``, the allocations of a recording, share memory, and empties ``made``. Returns
    the sizes before and after. If it raises ``OutOfMemoryError``, the nodes are unchanged."""
    total = sum([allocation.nbytes for allocation in made])
    seen = observed(nodes, made)
    numbers = {allocation: number for number, allocation in enumerate(made)}
    lives: list[list[int]] = [[] for _ in made]
    for place, node in enumerate(nodes):
        for allocation in {*node.reads, *node.writes}:
            number = numbers.get(allocation)
            if number is not None:
                lives[number].append(place)
    used = [number for number in range(len(made)) if not seen[number] and lives[number]]
    moved: dict[Allocation, Allocation] = {}
    after = sum([allocation.nbytes for allocation, kept in zip(made, seen, strict=True) if kept])
    for slot in _assigned(used, lives, made, predecessors(nodes)):
        after += slot.nbytes
        if len(slot.users) > 1:
            shared = Allocation(timeline, slot.nbytes)
            shared.obtain()
            for number in slot.users:
                moved[made[number]] = shared
    for node in nodes:
        _move(node, moved)
    made.clear()
    return GraphMemory(total, after)


def observed(nodes: Sequence[PlanNode], made: list[Allocation]) -> list[bool]:
    """Returns for each allocation of ``made`` whether it must stay as it is: True if the program can reach it, for
    example through a box, or if it is used by a node whose addresses cannot be replaced.

    Counts the references to each allocation, and compares with a new allocation that nothing else refers to. So of the
    runtime, only ``nodes`` and ``made`` may refer to these allocations: any further reference counts as the program's.
    """
    if not made:
        return []
    all_made = [*made, Allocation(made[0].home, 0)]  # no variable refers to the last
    held = {id(allocation): 0 for allocation in all_made}
    fixed = _count_references(nodes, held)
    spare = [sys.getrefcount(all_made[number]) - held[id(all_made[number])] for number in range(len(all_made))]
    # An allocation of ``made`` has one reference more than the last of ``all_made``: the reference from ``made``.
    return [
        count > spare[-1] + 1 or id(each) in fixed or each.exported or each.adopted or each.known is not None
        for each, count in zip(made, spare, strict=False)
    ]


def _count_references(nodes: Sequence[PlanNode], held: dict[int, int]) -> set[int]:
    """Adds the nodes' references to allocations to the counts in ``held``, whose keys are ids of allocations. Returns
    the ids of the allocations that are used by a node whose addresses cannot be replaced. The counts of these
    allocations may be too low, which does no harm."""
    fixed: set[int] = set()
    for node in nodes:
        if isinstance(node, Conditional):
            fixed.add(id(node.memory))
            for allocation in (node.memory, *node.own, *node.reads, *node.writes):
                if id(allocation) in held:
                    held[id(allocation)] += 1
            for body in node.bodies:
                fixed |= _count_references(body, held)
            continue
        movable = node.method in _ADDRESSES if node.launched is None else node.launched.special.pointers is not None
        for allocation in (*node.reads, *node.writes, *_arguments(node)):
            if id(allocation) in held:
                held[id(allocation)] += 1
                if not movable:
                    fixed.add(id(allocation))
    return fixed


def _arguments(node: Node) -> list[Allocation]:
    """Returns the allocations of a launch's boxes; an empty list for other nodes."""
    return [] if node.launched is None else [each for each in node.launched.allocations if each is not None]


def _assigned(
    used: list[int], lives: Sequence[Sequence[int]], made: Sequence[Allocation], before: Sequence[int]
) -> list[_Slot]:
    """Returns slots for the temporaries ``used``. Assigns the largest temporary first: each takes the newest slot that
    is free during its life, else a new slot. The users of a slot live one after the other, so it suffices to compare a
    temporary with its two neighbours."""
    slots: list[_Slot] = []
    for number in sorted(used, key=lambda each: (-made[each].nbytes, lives[each][0])):
        life = lives[number]
        found: _Slot | None = None
        place = 0
        for slot in reversed(slots):  # the newest slots are often of the same branch
            place = bisect(slot.begins, life[0])
            if (place == 0 or _ends_before(lives[slot.users[place - 1]], life, before)) and (
                place == len(slot.users) or _ends_before(life, lives[slot.users[place]], before)
            ):
                found = slot
                break
        if found is None:
            found, place = _Slot(), 0
            slots.append(found)
        found.users.insert(place, number)
        found.begins.insert(place, life[0])
        found.nbytes = max(found.nbytes, made[number].nbytes)
    return slots


def _ends_before(one: Sequence[int], other: Sequence[int], before: Sequence[int]) -> bool:
    """Returns whether all nodes of the temporary ``one`` run before all nodes of ``other``."""
    first = 0
    for number in one:
        first |= 1 << number
    return all(before[number] & first == first for number in other)


def _move(node: PlanNode, moved: dict[Allocation, Allocation]) -> None:
    """Replaces the allocations of a node that are keys of ``moved`` by the new ones, and their addresses in the
    arguments."""
    if isinstance(node, Conditional):
        for body in node.bodies:
            for inner in body:
                _move(inner, moved)
        node.own = tuple([moved.get(allocation, allocation) for allocation in node.own])
        node.find_uses()
        return
    mine = [allocation for allocation in {*node.reads, *node.writes} if allocation in moved]
    if not mine:
        return
    if node.launched is not None:
        params = bytearray(node.arguments[_PARAMS])
        for offset in node.launched.special.pointers or ():
            (address,) = _WORD.unpack_from(params, offset)
            _WORD.pack_into(params, offset, _new_address(address, mine, moved))
        node.arguments = (*node.arguments[:_PARAMS], bytes(params))
        given = node.launched.allocations
        node.launched.allocations = tuple([None if each is None else moved.get(each, each) for each in given])
    else:
        arguments = list(node.arguments)
        for number in _ADDRESSES[node.method]:
            arguments[number] = _new_address(arguments[number], mine, moved)
        node.arguments = tuple(arguments)
    node.reads = tuple([moved.get(allocation, allocation) for allocation in node.reads])
    node.writes = tuple([moved.get(allocation, allocation) for allocation in node.writes])


def _new_address(address: int, mine: Sequence[Allocation], moved: dict[Allocation, Allocation]) -> int:
    for allocation in mine:
        if allocation.address <= address < allocation.address + allocation.nbytes:
            return moved[allocation].address + address - allocation.address
    return address
