"""Spare blocks of a stream: nobody gets a block that another has, none is lost, and they are bounded."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from oxide.driver.cuda.memory_blocks import BLOCKS, LARGEST, SIZES, SpareBlocks


def test_a_block_is_handed_out_again_for_its_own_size_only_and_once() -> None:
    spare = SpareBlocks()
    assert spare.keep(0x1000, 256)
    assert spare.take(255) is None
    assert spare.take(512) is None
    assert spare.take(256) == 0x1000
    assert spare.take(256) is None


def test_what_is_kept_is_bounded() -> None:
    spare = SpareBlocks()
    assert not spare.keep(1, LARGEST + 1)
    kept = [spare.keep(size * 100 + number, size) for size in range(1, SIZES + 3) for number in range(BLOCKS + 2)]
    assert sum(kept) == SIZES * BLOCKS == len(spare.drain())


@given(st.lists(st.tuples(st.sampled_from(["take", "keep", "drain"]), st.integers(1, SIZES + 2)), max_size=200))
def test_every_block_has_one_owner(steps: list[tuple[str, int]]) -> None:
    spare, ours, fresh = SpareBlocks(), [(address, 1 + address % (SIZES + 2)) for address in range(1, 60)], 60
    inside: dict[int, int] = {}
    for action, nbytes in steps:
        if action == "take":
            address = spare.take(nbytes)
            if address is None:
                assert nbytes not in inside.values()
                ours.append((fresh, nbytes))
                fresh += 1
            else:
                assert inside.pop(address) == nbytes
                ours.append((address, nbytes))
        elif action == "keep" and ours:
            address, size = ours.pop(nbytes % len(ours))
            if spare.keep(address, size):
                inside[address] = size
        elif action == "drain":
            assert sorted(spare.drain()) == sorted(inside)
            inside.clear()


def test_threads_that_share_a_stream_never_get_the_same_block() -> None:
    spare = SpareBlocks()
    for address in range(BLOCKS):
        spare.keep(address, 64)
    held: set[int] = set()
    clashes: list[int] = []
    begin = threading.Barrier(4)

    def take_and_keep() -> None:
        begin.wait()
        for _ in range(2000):
            address = spare.take(64)
            if address is not None:
                if address in held:
                    clashes.append(address)
                held.add(address)
                held.discard(address)
                spare.keep(address, 64)

    threads = [threading.Thread(target=take_and_keep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not clashes
    assert sorted(spare.drain()) == list(range(BLOCKS))
