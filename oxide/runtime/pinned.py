"""Page-locked host memory: the pool that copies are staged through, and the slots that kernels report faults in.

A copy to or from ordinary memory blocks the thread that submits it (3.7 ms for 64 MiB on an H100; 2.4 µs from
page-locked memory), so every copy goes through a buffer of this pool. Buffers return when the last object on them
is dropped, which may be in a finaliser at any moment: returning is one append and takes no lock.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, final

import numpy as np

from oxide.compiler.faults import RECORD
from oxide.driver.base import Driver

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SMALLEST = 4096


@final
class PinnedBuffer:
    """``nbytes`` of page-locked memory, back in its pool when dropped. NumPy arrays over it keep it alive."""

    __slots__ = ("_capacity", "_pool", "address", "nbytes")

    def __init__(self, pool: PinnedPool, address: int, capacity: int, nbytes: int) -> None:
        self._pool = pool
        self._capacity = capacity
        self.address = address
        self.nbytes = nbytes

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False)}

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The memory as an array, C-contiguous."""
        return np.asarray(self).view(dtype).reshape(shape)

    def __del__(self) -> None:
        self._pool._returned.append((self._capacity, self.address))


@final
class PinnedPool:
    """Page-locked buffers by size class: powers of two from 4 KiB.

    It holds on to the most that was ever in use at once: giving page-locked memory back waits for the device on a
    GPU (300 ms beside a 300 ms kernel), so only ``reclaim.drain``, which blocks anyway, does it.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._returned: deque[tuple[int, int]] = deque()
        self._free: defaultdict[int, list[int]] = defaultdict(list)

    def acquire(self, nbytes: int) -> PinnedBuffer:
        """A buffer of at least ``nbytes`` (more than 0), contents undefined. Raises ``OutOfMemoryError``."""
        capacity = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        with self._lock:
            self._collect()
            if self._free[capacity]:
                return PinnedBuffer(self, self._free[capacity].pop(), capacity, nbytes)
        return PinnedBuffer(self, self._driver.allocate_host(capacity), capacity, nbytes)

    @property
    def free_bytes(self) -> int:
        """How much of it nothing uses."""
        with self._lock:
            self._collect()
            return sum(capacity * len(addresses) for capacity, addresses in self._free.items())

    def trim(self) -> None:
        """Gives the buffers that nothing uses back to the driver. Blocks until the device is idle."""
        with self._lock:
            self._collect()
            for addresses in self._free.values():
                while addresses:
                    self._driver.free_host(addresses[-1])
                    addresses.pop()

    def _collect(self) -> None:
        while self._returned:
            capacity, address = self._returned.popleft()
            self._free[capacity].append(address)


@final
class FaultSlot:
    """Where the kernels of one submission report a fault; free again when dropped."""

    __slots__ = ("_slots", "_words", "address", "record")

    def __init__(self, slots: FaultSlots, address: int, record: NDArray[Any], words: memoryview) -> None:
        self._slots = slots
        self._words = words
        self.address = address
        self.record = record

    def claimed(self) -> bool:
        """Whether a kernel reported a fault. Asked at every completion: a memoryview answers ten times faster than
        a field of a NumPy record."""
        return self._words[0] != 0

    def __del__(self) -> None:
        self._slots._returned.append((self.address, self.record, self._words))


@final
class FaultSlots:
    """Fault records in page-locked memory, a page of them at a time.

    A slot is taken for each submission that launches a kernel and held until the device is past the submission,
    so submissions in flight never see each other's faults.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._returned: deque[tuple[int, NDArray[Any], memoryview]] = deque()
        self._pages: list[int] = []

    def acquire(self) -> FaultSlot:
        """A slot whose record is all zero: no fault."""
        with self._lock:
            if not self._returned:
                page = self._driver.allocate_host(_SMALLEST)
                self._pages.append(page)
                memory = np.asarray(_Memory(page, _SMALLEST)).view(RECORD)
                memory.view(np.uint64)[:] = 0
                for index in range(len(memory)):
                    record = memory[index : index + 1]
                    words = record.view(np.uint32).data
                    self._returned.append((page + index * RECORD.itemsize, record, words))
            address, record, words = self._returned.popleft()
        if words[0]:  # what no kernel claimed, none has written
            record.view(np.uint64)[:] = 0
        return FaultSlot(self, address, record, words)

    def trim(self) -> None:
        """Gives the pages back if no slot is in use."""
        with self._lock:
            if len(self._returned) * RECORD.itemsize == len(self._pages) * _SMALLEST:
                self._returned.clear()
                while self._pages:
                    self._driver.free_host(self._pages.pop())


@final
class _Memory:
    """Memory at an address, as NumPy takes it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}
