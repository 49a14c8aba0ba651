"""Page-locked host memory: the pool of staging buffers for copies.

A copy to or from ordinary memory blocks the thread that submits it (for 64 MiB on an H100 3.7 ms, and 2.4 µs if the
memory is page-locked). So every copy goes through a buffer of this pool. A buffer returns to the pool when the last
object that uses it is dropped. This may happen in a finaliser at any moment, so returning a buffer is one append and
takes no lock. The pool is bounded. Copies that find no buffer in it go through the device's staging ring
(``memory/staging_ring.py``).

Page-locking is slow, 0.7 ms for a MiB. On a thread that runs an event loop the pool therefore page-locks only small
buffers. If a larger buffer is requested there, a background thread makes it for a later request.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from oxide.driver.base import Driver
from oxide.errors import DeviceError, OutOfMemoryError
from oxide.host import core
from oxide.host.environment import whole_number
from oxide.host.locks import unheld
from oxide.host.messages import byte_count
from oxide.runtime.loop.event_loops import running_loop_name

if TYPE_CHECKING:
    from numpy.typing import NDArray


_PAGE = 4096
"""The smallest allocation by the driver, which locks whole pages. Smaller buffers share a page: with a page for each, a
hundred thousand small results in use would take 400 MB."""

_SMALLEST = 256

AT_ONCE_BYTES = 1 << 20
"""The size in bytes of the largest buffer that is page-locked on an event loop's thread."""

_DEFAULT_LIMIT = 8 << 30  # or a quarter of the machine's memory if that is less


@final
class PinnedBuffer(core.PinnedBuffer):
    """``nbytes`` of page-locked memory, returned to the pool when the buffer is dropped. NumPy arrays over the memory
    keep the buffer alive."""

    __slots__ = ()

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], visible: object | None = None) -> NDArray[Any]:
        """Returns the memory as a C-contiguous array. The array keeps ``visible`` alive, the token of the run that
        fills the array (``memory/reclaim.py``)."""
        held = _new_array(_Held, self._block.nbytes, _BYTES, self._block.exported)
        held.buffer = self
        if visible is not None:
            held.visible = visible
        return np.ndarray(shape, dtype, held)

    def _fill_slowly(self, array: NDArray[Any]) -> None:
        np.ndarray(array.shape, array.dtype, self._block.memory)[...] = array


_GONE: Final = -1


@final
class _Held(np.ndarray[Any, Any]):
    """A buffer's bytes: the base of every array over the buffer. It keeps the buffer alive.

    The alternative, an object with ``__array_interface__``, would keep the buffer alive too, but making an array from
    it takes twice as long (1.2 µs).
    """

    __slots__ = ("buffer", "visible")

    buffer: PinnedBuffer
    visible: Any


_BYTES: Final = np.dtype(np.uint8)
_new_array: Final[Any] = np.ndarray.__new__


@final
class PinnedBlock(core.PinnedBlock):
    """Page-locked memory: a whole allocation of the driver's, or a part of a shared ``page``. ``user`` is the number of
    the buffer that owns it; 0: free; _GONE: returned to the driver.

    It holds a ready-made array, because NumPy takes a microsecond to make an array from an address.
    """

    __slots__ = ()

    def __init__(self, address: int, nbytes: int, page: int = 0) -> None:
        self.address = address
        self.nbytes = nbytes
        self.page = page  # the page's address; 0 for a block that is a whole allocation
        # A ctypes array: if an array's base were a NumPy array, NumPy would replace it by the base of that array.
        self.exported = (ctypes.c_ubyte * nbytes).from_address(address)
        self.memory = _new_array(np.ndarray, nbytes, _BYTES, self.exported)


@final
class PinnedPool(core.PinnedPool):
    """Page-locked buffers by size class: powers of two from 256 bytes to a page, then whole pages, and above 64 KiB
    eight classes for each power of two. All buffers together take ``OXIDE_PINNED_LIMIT`` bytes at most.

    The pool never returns memory to the driver while work may be in flight: on a GPU the driver's call waits for the
    device (300 ms next to a 300 ms kernel). Only ``reclaim.drain`` returns memory, because it blocks anyway. So at the
    limit a request takes a free buffer, a larger one if necessary. If no buffer is free, copies go through the device's
    staging ring.

    ``_returned`` are the blocks that finalisers have given back, each with the number of the buffer that owned it.
    ``_free`` are the free blocks by size. ``take`` takes from both, in C.

    An interrupt may come between any two steps. So ``PinnedBlock.user`` alone tells which buffer owns a block. The free
    lists only suggest candidates: a block that is in use or listed twice is skipped.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._held = 0
        self._wanted: deque[int] = deque()  # sizes of buffers that the background thread makes, in this order
        self._grower: threading.Thread | None = None
        self.limit = _limit()

    def try_acquire(self, nbytes: int) -> PinnedBuffer | None:
        """Returns a buffer of at least ``nbytes`` (more than 0), with undefined contents. Returns None if the limit or
        the system leaves no room. On an event loop's thread, also returns None if a large buffer would have to be made:
        see ``want``."""
        found: PinnedBuffer | None = self.take(nbytes)
        if found is not None:
            return found
        capacity = _capacity(nbytes)
        with unheld(self._lock):
            self._collect()
            found = self._take(capacity, nbytes)
            if found is not None:
                return found
            if capacity > AT_ONCE_BYTES and running_loop_name() is not None:
                return None
        return self._make(capacity, nbytes)

    def reuse(self, nbytes: int) -> PinnedBuffer | None:
        """Returns a free buffer of at least ``nbytes`` (more than 0), or None if ``_take`` finds none. Never page-locks
        memory."""
        capacity = _capacity(nbytes)
        with unheld(self._lock):
            self._collect()
            return self._take(capacity, nbytes)

    def want(self, nbytes: int, count: int) -> None:
        """Has a background thread make buffers of at least ``nbytes``. At most ``count`` buffers of a size are queued
        at a time. Does nothing outside of event loops and for small buffers, which ``try_acquire`` makes itself.

        Call it after submitting the copy that got no buffer: while the driver locks pages, driver calls of other
        threads wait, 2 ms each on an H100.
        """
        capacity = _capacity(nbytes)
        if capacity > AT_ONCE_BYTES and running_loop_name() is not None:
            with unheld(self._lock):
                self._grow(capacity, count)

    def acquire(self, nbytes: int) -> PinnedBuffer:
        """Returns a buffer of at least ``nbytes``, and page-locks it now if none is free. Raises ``OutOfMemoryError``
        if there is no room."""
        buffer = self.reuse(nbytes) or self._make(_capacity(nbytes), nbytes)
        if buffer is None:
            raise OutOfMemoryError(
                f"{nbytes} bytes of page-locked memory were asked for, and there is no room: {self.describe()}. Drop "
                f"results and pinned arrays that are no longer needed, or copy them (array.copy()); or raise "
                f"OXIDE_PINNED_LIMIT"
            )
        return buffer

    def describe(self) -> str:
        """Returns a description of the pool's use, for messages."""
        with unheld(self._lock):
            self._collect()
            pooled = self._pooled() + sum(self._wanted)
            return (
                f"page-locked memory: {byte_count(self._held - pooled)} in use by arrays and copies, "
                f"{byte_count(pooled)} pooled, limit {byte_count(self.limit)}"
            )

    @property
    def free_bytes(self) -> int:
        with unheld(self._lock):
            self._collect()
            return self._pooled()

    def trim(self) -> None:
        """Returns unused buffers to the driver. Blocks until the device is idle."""
        with unheld(self._lock):
            grower = self._grower
            while len(self._wanted) > 1:  # the thread is making the first
                self._held -= self._wanted.pop()
        if grower is not None:
            grower.join()
        with unheld(self._lock):
            self._collect()
            for capacity, blocks in self._free.items():
                if capacity < _PAGE:
                    self._trim_pages(capacity, blocks)
                    continue
                while _has_unused(blocks):
                    block = blocks[-1]
                    block.user = _GONE  # before the call: an interrupt after it would leave a freed block listed
                    self._held -= capacity
                    try:
                        self._driver.free_host(block.address)
                    except DeviceError:
                        block.user = 0
                        self._held += capacity
                        raise

    def _trim_pages(self, capacity: int, blocks: list[PinnedBlock]) -> None:
        """Frees the pages of which no block is in use, for ``trim``. Call it with the lock held."""
        by_page: dict[int, dict[int, PinnedBlock]] = {}  # keyed by address too, as a block may be listed twice
        for block in blocks:
            if not block.user:
                by_page.setdefault(block.page, {})[block.address] = block
        for page, parts in by_page.items():
            if len(parts) < _PAGE // capacity:
                continue
            others, these = [block for block in blocks if block.page != page], list(parts.values())
            blocks[:] = others  # before the call: an interrupt after it would leave freed blocks listed
            self._held -= _PAGE
            try:
                self._driver.free_host(page)
            except DeviceError:
                blocks += these
                self._held += _PAGE
                raise

    def _make(self, capacity: int, nbytes: int) -> PinnedBuffer | None:
        """Makes a new buffer; returns None if there is no room."""
        given = _given(capacity)
        address, counted, pooled = 0, False, False
        try:
            with unheld(self._lock):
                if self._held + given > self.limit:
                    return None
                self._held += given  # under the same lock, so that two threads cannot exceed the limit together
                counted = True
            address = self._driver.allocate_host(given)
            page = 0 if given == capacity else address
            parts = [PinnedBlock(address + offset, capacity, page) for offset in range(0, given, capacity)]
            with unheld(self._lock):
                free = self._free.setdefault(capacity, [])
                free += parts  # not a call, so no interrupt can come between this line and the next
                pooled = True
                return self._take(capacity, nbytes)
        except BaseException as error:
            if counted and not pooled:
                with unheld(self._lock):
                    self._held -= given
                if address:
                    self._driver.free_host(address)
            if isinstance(error, OutOfMemoryError):
                return None
            raise

    def _grow(self, capacity: int, wanted: int) -> None:
        """Queues a size for the background thread, until the size is queued ``wanted`` times or the limit is reached.
        Starts the thread if necessary. Call it with the lock held."""
        while self._wanted.count(capacity) < wanted and self._held + capacity <= self.limit:
            self._held += capacity
            self._wanted.append(capacity)
        if self._grower is None and self._wanted:
            self._grower = threading.Thread(target=self._make_wanted, name="oxide page-locking", daemon=True)
            try:
                self._grower.start()
            except BaseException as error:
                if not self._grower.is_alive():
                    self._grower = None
                    self._held -= sum(self._wanted)
                    self._wanted.clear()
                if not isinstance(error, RuntimeError):
                    raise  # RuntimeError: no more threads, or the interpreter is ending; no buffers are made then

    def _make_wanted(self) -> None:
        while True:
            with unheld(self._lock):
                if not self._wanted:
                    self._grower = None
                    return
                capacity = self._wanted[0]
            try:
                address = self._driver.allocate_host(capacity)
            except Exception:  # a later request that page-locks on its own thread gets the error
                address = 0
            with unheld(self._lock):
                self._wanted.popleft()
                if address:
                    self._free.setdefault(capacity, []).append(PinnedBlock(address, capacity))
                else:
                    self._held -= capacity

    def _take(self, capacity: int, nbytes: int) -> PinnedBuffer | None:
        """Takes a free block of the size class ``capacity``, and returns it as a buffer of ``nbytes``. If no block of
        the class is free, returns None if the limit allows a new block. If the limit does not, takes the smallest
        larger free block, or returns None if there is none. Call it with the lock held."""
        blocks = self._free.get(capacity)
        if (blocks is None or not _has_unused(blocks)) and self._held + _given(capacity) > self.limit:
            larger = [other for other, free in self._free.items() if other > capacity and _has_unused(free)]
            blocks = self._free[min(larger)] if larger else None
        if not blocks:
            return None
        buffer = PinnedBuffer(self, blocks[-1], nbytes)
        blocks.pop()
        return buffer

    def _collect(self) -> None:
        while self._returned:
            block, number = self._returned[0]
            if block.user == number:  # otherwise already collected, by a call that was interrupted
                self._free.setdefault(block.nbytes, []).append(block)
                block.user = 0
            self._returned.popleft()

    def _pooled(self) -> int:
        """Returns the number of bytes in free buffers. Call it with the lock held."""
        return sum(
            {block.address: block.nbytes for free in self._free.values() for block in free if not block.user}.values()
        )


def _has_unused(blocks: list[PinnedBlock]) -> bool:
    """Removes blocks in use from the end of a list. Returns whether a block is left. If so, the last block of the list
    is unused."""
    while blocks and blocks[-1].user:
        blocks.pop()
    return bool(blocks)


def is_pinned(array: NDArray[Any]) -> bool:
    return _buffer_of(array) is not None


def pinned_buffer_of(array: NDArray[Any], pool: PinnedPool) -> PinnedBuffer | None:
    """Returns the buffer of ``pool`` that an array lies in, or None."""
    buffer = _buffer_of(array)
    return buffer if buffer is not None and buffer._pool is pool else None


def _buffer_of(array: NDArray[Any]) -> PinnedBuffer | None:
    base: object = array
    while isinstance(base, np.ndarray):
        if type(base) is _Held:
            buffer: PinnedBuffer | None = getattr(base, "buffer", None)  # a view of a _Held has none
            if buffer is not None:
                return buffer
        base = base.base
    return None


def _capacity(nbytes: int) -> int:
    """Returns the size in bytes of the smallest class that holds ``nbytes``. Up to a page it is a power of two. Above a
    page it exceeds ``nbytes`` by less than a page or less than an eighth, whichever is more."""
    if nbytes <= _PAGE:
        return max(_SMALLEST, 1 << (nbytes - 1).bit_length())
    step = max(_PAGE, 1 << ((nbytes - 1).bit_length() - 4))
    return -(-nbytes // step) * step


def _given(capacity: int) -> int:
    """Returns the number of bytes to request from the driver: a page, which small buffers share, or the whole
    capacity."""
    return max(_PAGE, capacity)


def _limit() -> int:
    limit = whole_number("OXIDE_PINNED_LIMIT", least=0)
    if limit is None:
        return min(_DEFAULT_LIMIT, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
    return limit


core.setup(PinnedBuffer=PinnedBuffer, Held=_Held, deque=deque, ndarray=np.ndarray)
