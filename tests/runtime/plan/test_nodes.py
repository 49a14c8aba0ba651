"""The order that data asks of recorded calls, and its division into parts."""

from __future__ import annotations

from functools import cache
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from oxide import devices
from oxide.runtime.memory.allocation import Allocation
from oxide.runtime.plan.nodes import Conditional, Node, dependencies, ends_of, parts
from oxide.testing import step_driver, use_driver


@cache
def boxes() -> list[Allocation]:
    """Memory without bytes: only its identity counts here."""
    with use_driver(step_driver()):
        timeline = devices()[0].new_stream()._timeline
        return [Allocation(timeline, 0) for _ in range(4)]


USES = st.tuples(st.lists(st.integers(0, 3), max_size=2), st.lists(st.integers(0, 3), max_size=2))


def node(reads: list[int], writes: list[int]) -> Node:
    return Node("launch", (), "f", [boxes()[at] for at in reads], [boxes()[at] for at in writes])


def reached(after: list[tuple[int, ...]]) -> list[set[int]]:
    """All nodes that each node runs after, directly or not."""
    found: list[set[int]] = []
    for earlier in after:
        found.append(set(earlier).union(*[found[number] for number in earlier]))
    return found


def conflict(one: tuple[list[int], list[int]], other: tuple[list[int], list[int]]) -> bool:
    reads, writes = map(set, one)
    later_reads, later_writes = map(set, other)
    if not (reads or writes) or not (later_reads or later_writes):
        return True
    return bool(writes & (later_reads | later_writes) or reads & later_writes)


@given(st.lists(USES, max_size=12))
def test_exactly_the_nodes_that_share_written_memory_are_ordered(uses: list[tuple[list[int], list[int]]]) -> None:
    after = dependencies([node(*use) for use in uses])
    order = reached(after)
    wanted: list[set[int]] = []
    for number, use in enumerate(uses):
        direct = {earlier for earlier in range(number) if conflict(uses[earlier], use)}
        wanted.append(direct.union(*[wanted[earlier] for earlier in direct]))
    assert order == wanted
    for earlier in after:  # none is implied by another
        assert not any(one in order[other] for one, other in product(earlier, earlier))


@given(st.lists(USES, max_size=12))
def test_parts_keep_the_order_and_are_as_long_as_they_can_be(uses: list[tuple[list[int], list[int]]]) -> None:
    after = dependencies([node(*use) for use in uses])
    pieces = parts(after)
    assert [number for part in pieces for number in part.nodes] == list(range(len(uses)))
    of = {number: at for at, part in enumerate(pieces) for number in part.nodes}
    order = reached([part.after for part in pieces])
    for number, earlier in enumerate(reached(after)):
        for other in earlier:
            assert of[other] == of[number] or of[other] in order[of[number]]
    for at, part in enumerate(pieces):  # no part runs after nodes that its own nodes need not run after
        for before in part.after:
            assert any(of[other] == before for number in part.nodes for other in after[number])
        assert all(after[number] == (number - 1,) for number in part.nodes[1:])
        assert at not in part.after
    followed = {before for part in pieces for before in part.after}
    assert set(ends_of(pieces)) == set(range(len(pieces))) - followed


def test_a_chain_is_one_part_and_a_fork_ends_it() -> None:
    chain = [node([0], [1]), node([1], [2]), node([2], [3])]
    assert [part.nodes for part in parts(dependencies(chain))] == [[0, 1, 2]]
    fork = [node([], [0]), node([0], [1]), node([0], [2]), node([1, 2], [3])]
    assert [(part.after, part.nodes) for part in parts(dependencies(fork))] == [
        ((), [0]), ((0,), [1]), ((0,), [2]), ((1, 2), [3]),
    ]  # fmt: skip


def test_a_conditional_is_ordered_by_its_flag_and_by_all_that_its_bodies_may_use() -> None:
    inner = Conditional("while", 8, boxes()[1], [[node([2], [3])]], [])
    outer = Conditional("if-else", 16, boxes()[0], [[node([], [2])], [inner]], [])
    assert set(outer.writes) == {boxes()[2], boxes()[3]}
    assert set(outer.reads) == set(boxes())  # what it may leave as it was counts as read
    flags = [node([], [0]), node([], [1])]
    assert dependencies([*flags, outer, node([3], []), node([0], [])])[2:] == [(0, 1), (2,), (0,)]
