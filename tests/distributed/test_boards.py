"""Boards: every note is taken once, in order and whole, and no note is overwritten before all have taken it."""

from __future__ import annotations

import mmap
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxide.distributed import boards
from oxide.distributed.boards import NOTE_BYTES, NOTES, TO_ALL, Boards, board_bytes, fitting

RANKS = 3
LONGEST = len(fitting("x" * 1000))


def group() -> tuple[list[Boards], list[mmap.mmap]]:
    segments = [mmap.mmap(-1, board_bytes(RANKS)) for _ in range(RANKS)]
    return [Boards(rank, segments) for rank in range(RANKS)], segments


# A step is one rank that writes many notes to one rank or all, or that takes what another has written.
ranks = st.integers(0, RANKS - 1)
writes = st.tuples(st.just("write"), ranks, st.one_of(st.just(TO_ALL), ranks), st.integers(1, NOTES))
takes = st.tuples(st.just("take"), ranks, ranks, st.just(0))


@settings(deadline=None)
@given(st.lists(st.one_of(writes, takes), max_size=30))
def test_each_note_is_taken_once_and_in_order(steps: list[tuple[str, int, int, int]]) -> None:
    made, _ = group()
    expected: dict[tuple[int, int], deque[str]] = {(w, r): deque() for w in range(RANKS) for r in range(RANKS)}
    written = [0] * RANKS
    least = [[0] * RANKS for _ in range(RANKS)]  # what each rank has taken of each
    for kind, rank, other, count in steps:
        if kind == "take" and rank != other:
            found = made[rank].take(other)
            assert found == list(expected[other, rank])
            expected[other, rank].clear()
            least[rank][other] = written[other]
        elif kind == "write":
            for _ in range(count):
                free = min(least[reader][rank] for reader in range(RANKS) if reader != rank) + NOTES
                assert made[rank].has_room() == (written[rank] < free)
                if not made[rank].has_room():
                    break
                text = f"note {written[rank]} of {rank}"
                made[rank].write(text, other)
                written[rank] += 1
                for reader in range(RANKS):
                    if reader != rank and other in (TO_ALL, reader):
                        expected[rank, reader].append(text)


@pytest.mark.parametrize("length", [0, 1, LONGEST - 1, LONGEST])
def test_texts_of_every_length_come_whole(length: int) -> None:
    (first, second, _), _ = group()
    for number in range(3):
        first.write(f"{number}" * length)
    assert second.take(0) == [f"{number}" * length for number in range(3)]


def test_a_long_text_fits_and_differs_from_another_with_the_same_beginning() -> None:
    one, other = "x" * 1000 + "1", "x" * 1000 + "2"
    assert fitting(one) != fitting(other)
    assert fitting(one) == fitting(one)
    assert fitting("x" * LONGEST) == "x" * LONGEST


@pytest.mark.parametrize("missing", range(boards._TEXT_AT + len("all_reduce")))
def test_half_a_note_is_not_taken(missing: int) -> None:
    """Each byte of a note may be the last that a reader sees."""
    (first, second, _), segments = group()
    for _ in range(NOTES):  # the place of the note holds an older one
        first.write("all_gather")
        second.take(0)
        made_room = segments[2]
        made_room[0:8] = first._written.to_bytes(8, "little")
    at = boards._notes_at(RANKS) + (first._written + 1) % NOTES * NOTE_BYTES
    before = segments[0][at + missing]
    assert first.has_room()
    first.write("all_reduce")
    after = segments[0][at + missing]
    segments[0][at + missing] = before
    if before != after:
        assert second.take(0) == []
        segments[0][at + missing] = after
    assert second.take(0) == ["all_reduce"]


def test_the_end_of_a_rank_is_marked_on_its_own_board() -> None:
    made, _ = group()
    made[1].end()
    assert [made[0].has_ended(rank) for rank in range(RANKS)] == [False, True, False]
