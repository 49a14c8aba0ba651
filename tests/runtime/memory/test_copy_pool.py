"""The threads that share out large copies: every byte arrives, from several owners at once."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from typing import Any

import numpy as np
import pytest

from oxide import h2d
from oxide.driver.cpu import CpuDriver
from oxide.host.core import SHARE_COPY, copy, start_helpers
from oxide.runtime.memory import moves as pools
from oxide.runtime.memory.moves import ROW, Moves
from oxide.testing import use_driver

pytestmark = pytest.mark.skipif(
    start_helpers is None, reason="no helpers: another kind of machine, or the core's twin in Python"
)


@pytest.fixture(scope="module")
def pool() -> pools.CopyPool:
    """Three helpers, however many cores there are."""
    return pools.CopyPool(3)


def copy_with(pool: pools.CopyPool, destination: Any, source: Any, *, by_address: bool = False) -> None:
    row = np.frombuffer(ROW.pack(destination.ctypes.data, source.ctypes.data, source.nbytes, pool.address), np.uint8)
    (ctypes.CFUNCTYPE(None, ctypes.c_void_p)(SHARE_COPY) if by_address else copy)(row.ctypes.data)


@pytest.mark.parametrize("by_address", [False, True])
def test_every_byte_is_copied_and_none_beside_it_wherever_they_lie(pool: pools.CopyPool, by_address: bool) -> None:
    rng = np.random.default_rng(0)
    piece = pools.PIECE_BYTES
    few = [0, 1, 15, 63, 64, 65, 127, 128, 129, *rng.integers(1, 10_000, 200)]
    for size in [*few, piece - 1, piece, piece + 1, 5 * piece + 7, *rng.integers(1, 40 * piece, 40)]:
        to, origin = (int(offset) for offset in rng.integers(0, 130, 2))
        source = rng.integers(0, 256, int(size) + origin, np.uint8)
        destination = np.full(int(size) + to + 130, 7, np.uint8)
        copy_with(pool, destination[to:], source[origin:], by_address=by_address)
        assert np.array_equal(destination[to : to + size], source[origin:])
        assert (destination[:to] == 7).all()
        assert (destination[to + size :] == 7).all()


def test_owners_on_several_threads_never_mix_their_copies(pool: pools.CopyPool) -> None:
    wrong: list[int] = []

    def own(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            source = rng.integers(0, 256, int(rng.integers(1, 8 * pools.PIECE_BYTES)), np.uint8)
            destination = np.zeros_like(source)
            copy_with(pool, destination, source)
            if not np.array_equal(source, destination):
                wrong.append(seed)

    threads = [threading.Thread(target=own, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_helpers_take_part_in_a_large_copy(pool: pools.CopyPool) -> None:
    source = np.ones(64 << 20, np.uint8)
    destination = np.empty_like(source)
    before = thread_times()
    busy: list[str] = []
    for _ in range(100):  # more than a few only where other programs keep the cores
        copy_with(pool, destination, source)
        busy = [thread for thread, ticks in thread_times().items() if ticks > before.get(thread, 0)]
        if len(busy) >= 2:
            break
    assert len(busy) >= 2


def thread_times() -> dict[str, int]:
    """The processor time of each of the process's threads, in clock ticks."""
    times = {}
    for thread in os.listdir("/proc/self/task"):
        # a thread of an earlier test may end meanwhile
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/self/task/{thread}/stat", encoding="ascii", errors="replace") as stat,
        ):
            fields = stat.read().rpartition(")")[2].split()
            times[thread] = int(fields[11]) + int(fields[12])
    return times


def test_helpers_sleep_once_no_copy_comes(pool: pools.CopyPool) -> None:
    """After a copy a helper looks for the next a bounded number of times; then the kernel says that it sleeps."""
    source = np.ones(8 * pools.PIECE_BYTES, np.uint8)
    copy_with(pool, np.empty_like(source), source)
    before = thread_times()
    python = {str(thread.native_id) for thread in threading.enumerate()}
    total = 0
    for _ in range(20):
        total += sum(range(100_000))  # a few hundred milliseconds of this thread's time
    after = thread_times()
    assert total
    assert all(after[thread] - before.get(thread, 0) <= 2 for thread in after if thread not in python)


def test_a_large_upload_and_a_table_of_copies_go_through_the_helpers(
    pool: pools.CopyPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_pool", (pool,))
    array = np.random.default_rng(1).integers(0, 256, (9 << 20) + 5, np.uint8)
    with use_driver(CpuDriver()) as driver:
        assert np.array_equal(h2d(array).to_host().sync(), array)
        moves, target = Moves(1), np.empty_like(array)
        stream = driver.create_stream(0)
        moves.submit(driver, target.ctypes.data, array.ctypes.data, array.nbytes, stream)
        assert ROW.unpack_from(moves._table)[3] == pool.address
        driver.synchronize_stream(stream)
        driver.destroy_stream(stream)
        assert np.array_equal(target, array)


def test_a_machine_of_one_core_copies_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert pools._make() is None


def test_wrong_arguments_are_refused() -> None:
    assert start_helpers is not None
    with pytest.raises(ValueError, match="takes 1 helper or more"):
        start_helpers(0, pools.PIECE_BYTES, 0)
    with pytest.raises(ValueError, match="takes 1 helper or more, pieces of 1 byte or more"):
        start_helpers(1, 0, 0)
    with pytest.raises(ValueError, match="the address of a row"):
        copy(0)
    with pytest.raises(TypeError):
        copy("row")  # type: ignore[arg-type]
