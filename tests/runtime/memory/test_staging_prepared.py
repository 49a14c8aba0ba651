"""What the first large copy needs is made in a thread while the loop goes on, and in place where that cannot be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import d2h, h2d, memcpy, pinned_empty, value, zeros
from oxide.driver.cpu import CpuDriver
from oxide.errors import OutOfMemoryError
from oxide.runtime.memory import moves, staging_ring
from oxide.runtime.memory.staging_ring import CHUNK_BYTES
from oxide.runtime.submission import staging
from oxide.testing import DelegatingDriver, use_driver
from tests.runtime.waiting import until

DATA = np.random.default_rng(0).integers(0, 255, 9 * CHUNK_BYTES + 3, np.uint8)


class Calls(DelegatingDriver):
    """Notes by which threads memory is page-locked and streams are made; fails the first page-locking if asked to."""

    def __init__(self) -> None:
        super().__init__(CpuDriver())
        self.on_loop: list[tuple[str, int]] = []
        self.beside: list[tuple[str, int]] = []
        self.refuse = False
        self.hold = threading.Event()
        self.hold.set()

    def invoke(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        if method in ("allocate_host", "create_stream"):
            at_loop = threading.current_thread() is threading.main_thread()
            (self.on_loop if at_loop else self.beside).append((method, arguments[0]))
            if not at_loop:
                self.hold.wait(30)
            if method == "allocate_host" and self.refuse:
                self.refuse = False
                raise OutOfMemoryError("no page-locked memory")
        return super().invoke(method, *arguments, **keywords)

    def locked_on_loop(self) -> int:
        return sum(size for method, size in self.on_loop if method == "allocate_host")


@pytest.fixture
def driver() -> Iterator[Calls]:
    with use_driver(Calls()) as driver:
        yield driver


def ring_is_prepared() -> bool:
    return oxide.devices()[0].staging.prepared


def test_the_first_upload_page_locks_nothing_on_the_loop_and_the_loop_goes_on(driver: Calls) -> None:
    async def main() -> None:
        await zeros(3)
        driver.on_loop.clear()
        driver.hold.clear()
        async with trio.open_nursery() as nursery:

            async def copy() -> None:
                box = await h2d(DATA)
                np.testing.assert_array_equal(box.host_view(), DATA)

            nursery.start_soon(copy)
            await until(lambda: driver.beside)
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            driver.hold.set()
        assert ring_is_prepared()
        assert driver.locked_on_loop() == 0

    trio.run(main)


@pytest.mark.parametrize("kind", ["h2d", "memcpy", "d2h"])
def test_each_kind_of_large_copy_is_prepared_for(driver: Calls, kind: str) -> None:
    box = zeros(len(DATA), "u1").sync()
    build: dict[str, Any] = {"h2d": lambda: h2d(DATA), "memcpy": lambda: memcpy(box, DATA), "d2h": lambda: d2h(box)}

    async def main() -> None:
        assert not ring_is_prepared()
        await build[kind]()
        assert ring_is_prepared()

    trio.run(main)


def test_small_and_page_locked_arrays_need_no_preparation(driver: Calls) -> None:
    pinned = pinned_empty(len(DATA), oxide.u8)
    pinned[:] = DATA

    async def main() -> None:
        await h2d(np.ones(10))
        np.testing.assert_array_equal((await h2d(pinned[1:])).host_view(), DATA[1:])
        assert not ring_is_prepared()

    trio.run(main)


def test_a_preparation_that_fails_is_made_up_for_in_place(driver: Calls) -> None:
    async def main() -> None:
        await zeros(3)
        driver.refuse = True
        np.testing.assert_array_equal(await h2d(DATA).to_host(), DATA)
        assert not driver.refuse

    trio.run(main)


def test_a_copy_that_a_function_builds_makes_a_small_ring_in_place(driver: Calls) -> None:
    async def main() -> None:
        np.testing.assert_array_equal(await value(DATA).and_then(h2d).and_then(d2h), DATA)

    trio.run(main)
    assert 0 < driver.locked_on_loop() <= (staging_ring._RING_SLOTS + 1) * CHUNK_BYTES


def test_a_ring_that_drain_gave_back_is_prepared_again(driver: Calls) -> None:
    async def main() -> None:
        for _ in range(2):
            await h2d(DATA)
            assert ring_is_prepared()
            await trio.to_thread.run_sync(oxide.reclaim.drain)
            assert not ring_is_prepared()

    trio.run(main)


@pytest.mark.slow
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("nbytes", [staging.SMALL_BYTES + 1, 5 * CHUNK_BYTES - 1, 40 * CHUNK_BYTES + 7])
def test_the_ring_carries_copies_of_any_size_both_ways(driver: Calls, prepared: bool, nbytes: int) -> None:
    oxide.runtime.devices.runtime.current_runtime().pinned.limit = 0
    if prepared:
        oxide.devices()[0].staging.prepare()
    data = np.random.default_rng(nbytes).integers(0, 255, nbytes, np.uint8)
    for array in (data, data[::3], data[::-1]):
        np.testing.assert_array_equal(h2d(array).to_host().sync(), array)


@pytest.mark.parametrize("nbytes", [1, CHUNK_BYTES, 100 * CHUNK_BYTES + 5])
@pytest.mark.parametrize("chunk", [CHUNK_BYTES // 2, CHUNK_BYTES, 8 * CHUNK_BYTES])
def test_chunks_cover_a_copy_once(nbytes: int, chunk: int) -> None:
    layout = staging._layout(nbytes, chunk)
    assert [offset for offset, _ in layout] == [sum(size for _, size in layout[:n]) for n in range(len(layout))]
    assert sum(size for _, size in layout) == nbytes
    assert max(size for _, size in layout) <= chunk


def test_large_copies_are_prepared_and_made_where_there_are_no_helpers(
    driver: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "start_helpers", None)
    monkeypatch.setattr(moves, "_pool", None)
    oxide.devices()[0].staging.prepare()
    assert ring_is_prepared()
    assert moves.copy_pool() is None
    assert np.array_equal(h2d(DATA).and_then(d2h).sync(), DATA)
