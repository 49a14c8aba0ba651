"""Page-locking large memory is slow, so an event loop's thread has it done beside: copies are right meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import gather, h2d, pinned_empty
from oxide.driver.cpu import CpuDriver
from oxide.errors import OutOfMemoryError
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.memory import staging_ring
from oxide.runtime.memory.pinned import AT_ONCE_BYTES, PinnedPool, pinned_buffer_of
from oxide.runtime.submission import staging
from oxide.testing import DelegatingDriver, use_driver
from tests.runtime.waiting import until

MIB = 1 << 20
DATA = np.random.default_rng(0).integers(0, 255, 20 * MIB + 3, np.uint8)


class PageLocking(DelegatingDriver):
    """Notes which thread page-locks how much, and holds or fails what is made beside the loop."""

    def __init__(self) -> None:
        super().__init__(CpuDriver())
        self.locked: list[tuple[str, int]] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.error: BaseException | None = None

    def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        if method == "allocate_host":
            thread = threading.current_thread().name
            self.locked.append((thread, arguments[0]))
            if thread == "oxide page-locking":
                self.go_on.wait()
                if self.error is not None:
                    raise self.error
        return super().invoke(method, *arguments, **keywords)

    def by(self, thread: str) -> list[int]:
        return [nbytes for name, nbytes in self.locked if name == thread]


@contextmanager
def page_locking() -> Iterator[PageLocking]:
    with use_driver(PageLocking()) as driver:
        try:
            yield driver
        finally:
            driver.go_on.set()


def is_pinned(array: Any) -> bool:
    return pinned_buffer_of(array, current_runtime().pinned) is not None


def there_and_back() -> oxide.DeviceOperation[Any]:
    return h2d(DATA).to_host()


def test_large_copies_page_lock_little_on_the_loops_thread_and_find_more_the_next_time() -> None:
    async def main() -> None:
        pool = current_runtime().pinned
        first = await there_and_back()
        np.testing.assert_array_equal(first, DATA)
        assert not is_pinned(first)
        await until(lambda: pool._grower is None)
        second = await there_and_back()
        np.testing.assert_array_equal(second, DATA)
        assert is_pinned(second)
        on_loop = driver.by("MainThread")
        assert sum(on_loop) <= staging_ring._RING_SLOTS * staging_ring.CHUNK_BYTES + AT_ONCE_BYTES
        assert sum(driver.by("oxide page-locking")) >= DATA.nbytes

    with page_locking() as driver:
        trio.run(main)
        oxide.reclaim.drain()
        assert driver.inner.live_allocations.host_bytes == 0  # type: ignore[attr-defined]


def test_however_often_a_size_is_asked_for_meanwhile_one_is_made() -> None:
    async def main() -> None:
        driver.go_on.clear()
        for _ in range(5):
            for result in await gather(there_and_back(), there_and_back()):
                np.testing.assert_array_equal(result, DATA)
        wanted = list(current_runtime().pinned._wanted)
        assert max(wanted.count(size) for size in wanted) <= staging._SLOTS
        assert sum(size >= DATA.nbytes for size in wanted) == 1
        driver.go_on.set()

    with page_locking() as driver:
        trio.run(main)


def test_asyncio_is_a_loop_too_and_a_plain_thread_is_none() -> None:
    import asyncio

    async def main() -> bool:
        return is_pinned(await there_and_back())

    with page_locking():
        assert not asyncio.run(main())
    with page_locking() as driver:
        assert is_pinned(there_and_back().sync())
        assert not driver.by("oxide page-locking")


def test_what_is_on_its_way_counts_towards_the_limit() -> None:
    async def main() -> None:
        pool = current_runtime().pinned
        pool.limit = 50 * MIB
        driver.go_on.clear()
        await there_and_back()
        assert 40 * MIB < pool._held <= pool.limit
        with pytest.raises(OutOfMemoryError, match="limit 50 MiB"):
            pinned_empty(12 * MIB, oxide.u8)
        driver.go_on.set()
        await until(lambda: pool._grower is None)
        assert pool.free_bytes == pool._held

    with page_locking() as driver:
        trio.run(main)


@pytest.mark.slow
@pytest.mark.parametrize("error", [OutOfMemoryError("no more pages"), RuntimeError("something else")])
def test_memory_that_cannot_be_made_beside_is_not_counted_and_is_tried_again(error: Exception) -> None:
    async def main() -> None:
        pool = current_runtime().pinned
        driver.error = error
        np.testing.assert_array_equal(await there_and_back(), DATA)
        await until(lambda: pool._grower is None)
        assert pool._held == 0
        driver.error = None
        np.testing.assert_array_equal(await there_and_back(), DATA)
        await until(lambda: pool._grower is None)
        assert is_pinned(await there_and_back())

    with page_locking() as driver:
        trio.run(main)


def test_draining_waits_for_what_is_being_made_and_takes_back_what_is_not_begun() -> None:
    async def main() -> None:
        driver.go_on.clear()
        await there_and_back()
        await until(lambda: driver.by("oxide page-locking"))

    with page_locking() as driver:
        trio.run(main)
        begun = len(driver.by("oxide page-locking"))
        release = threading.Thread(target=driver.go_on.set)
        release.start()
        oxide.reclaim.drain()
        release.join()
        assert current_runtime().pinned._held == 0
        assert driver.inner.live_allocations.host_bytes == 0  # type: ignore[attr-defined]
        assert begun <= len(driver.by("oxide page-locking")) <= staging._SLOTS + 1


def test_pinned_empty_is_made_at_once_wherever_it_is_asked_for() -> None:
    async def main() -> None:
        array = pinned_empty(20 * MIB, oxide.u8)
        assert is_pinned(array)
        array[:] = 3
        assert (await h2d(array).to_host()).sum() == 60 * MIB

    with page_locking():
        trio.run(main)


def test_a_chunk_is_a_quarter_of_the_upload_within_bounds() -> None:
    sizes = {1: 4, 16: 4, 17: 8, 64: 8, 1024: 8, 2048: 16, 8192: 64}
    assert {mib: staging._chunk_bytes(mib * MIB) // MIB for mib in sizes} == sizes
    assert all(mib / chunk <= 128 for mib, chunk in sizes.items())


def test_a_graph_captured_on_a_loop_has_its_large_result_page_locked_at_once() -> None:
    async def main() -> None:
        graph = there_and_back().graph()
        await graph.launch()
        result = graph.take_output()
        assert is_pinned(result)
        np.testing.assert_array_equal(result, DATA)

    with page_locking() as driver:
        trio.run(main)
        assert not [nbytes for nbytes in driver.by("oxide page-locking") if nbytes >= DATA.nbytes]


def test_where_no_thread_can_be_started_copies_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        await h2d(DATA[:1000]).to_host()
        with monkeypatch.context() as refusing:
            refusing.setattr(threading.Thread, "start", refuse)
            pool = current_runtime().pinned
            held = pool._held
            pool._grow(20 * MIB, 2)
            assert pool._held == held
        np.testing.assert_array_equal(await there_and_back(), DATA)

    with page_locking():
        trio.run(main)


def test_page_locking_beside_begins_when_the_copy_that_does_without_has_been_submitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submitted: list[int] = []
    copies = 0

    class Counting(PageLocking):
        def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
            nonlocal copies
            copies += method == "copy_to_device"
            return super().invoke(method, *arguments, **keywords)

    grow = PinnedPool._grow

    def noting(pool: PinnedPool, capacity: int, wanted: int) -> None:
        submitted.append(copies)
        grow(pool, capacity, wanted)

    async def main() -> None:
        monkeypatch.setattr(PinnedPool, "_grow", noting)
        await h2d(DATA)

    with use_driver(Counting()):
        trio.run(main)
    chunk = min(staging._chunk_bytes(DATA.nbytes), staging_ring.PREPARED_CHUNK_BYTES)
    assert submitted == [len(staging._layout(DATA.nbytes, chunk))]
