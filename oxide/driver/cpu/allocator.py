"""The CPU device's memory: allocates blocks from the C library up to a limit, and checks that ranges lie inside a
block.

With ``poison``, memory is filled with 0xFF when it is allocated and again before it is freed. A float of these bytes is
a NaN. An integer of these bytes, -1 or the largest unsigned number, is out of bounds as an index.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import final

from oxide.driver.cpu.errors import driver_error
from oxide.driver.sanitizing import Tracking
from oxide.errors import OutOfMemoryError
from oxide.host.core import Dropping
from oxide.host.locks import DRIVER_LOCK

ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class LiveAllocations:
    """Counts the bytes and blocks that are allocated and not freed yet. All devices are counted together, and
    page-locked memory is counted separately."""

    device_bytes: int
    device_count: int
    host_bytes: int
    host_count: int


@final
class Heap(Dropping):
    """The allocations of one device, or of page-locked host memory. ``limit`` is in bytes, and ``None`` means the
    system's limit.

    Allocations that remain are freed when the heap is dropped, if ``end`` was called before. An array on the heap's
    memory may outlive the driver's ``close``: every object with an address of the heap also references the heap,
    through the driver.
    """

    def __init__(self, name: str, limit: int | None, *, poison: bool) -> None:
        self.name = name
        self._give_back: Callable[[int], object] = _free
        self.in_use_for_ever = False
        self._limit = limit
        self._poison = poison
        self._live: dict[int, int] = {}
        self._leaving: dict[int, tuple[int, int]] = {}  # address and bytes, by retirement number
        self._retirements = itertools.count(1)
        self._held = 0
        # The live addresses in order, to look up addresses inside a block. None after a change. ``_changes`` tells a
        # reader that was interrupted while sorting that its result is out of date.
        self._ordered: list[int] | None = None
        self._changes = 0
        self._adopted = Counter[tuple[int, int]]()
        # For the sanitizer: the flags of each block until it is released, one for each byte of the block, 1 once the
        # byte was written.
        self._values: dict[int, bytearray] = {}

    @property
    def held(self) -> tuple[int, int]:
        """Returns the number of bytes and the number of blocks that are not yet returned to the system."""
        with DRIVER_LOCK:
            return self._held, len(self._live) + len(self._leaving)

    def allocate(self, nbytes: int) -> int:
        """Allocates a 256-byte aligned block. Raises ``OutOfMemoryError`` beyond the heap's limit or the system's.

        The block is padded to a multiple of 256 bytes, as on a GPU. A kernel of raw arrays that writes a little beyond
        the end damages only the padding, not the C library's own records.
        """
        if nbytes <= 0:
            raise driver_error(
                "CUDA_ERROR_INVALID_VALUE", f"an allocation of {nbytes} bytes on {self.name}; ask for 1 or more"
            )
        address = ctypes.c_void_p()
        counted = False
        try:
            with DRIVER_LOCK:
                if self._limit is not None and self._held + nbytes > self._limit:
                    raise OutOfMemoryError(
                        f"{self.name} has no room for {nbytes} bytes: {self._held} of its {self._limit} bytes are "
                        "held; free some, or raise OXIDE_CPU_MEMORY"
                    )
                self._held += nbytes
                counted = True
            whole = -(-nbytes // ALIGNMENT) * ALIGNMENT
            failed = nbytes > _MAX_SIZE or _posix_memalign(ctypes.byref(address), ALIGNMENT, whole)
            if failed or not address.value:
                raise OutOfMemoryError(
                    f"the system gave no memory for {nbytes} bytes on {self.name}, which holds {self._held - nbytes} "
                    "bytes; free some, or use smaller pieces"
                )
            with DRIVER_LOCK:
                if nbytes >= _LARGE and _madvise is not None:
                    # Best effort: the call may fail.
                    start = -(-address.value // _PAGE) * _PAGE
                    _madvise(start, (address.value + nbytes - start) // _PAGE * _PAGE, _MADV_HUGEPAGE)
                if self._poison:
                    memset(address.value, 0xFF, nbytes)
                self._live[address.value] = nbytes
                self._changed()
                if Tracking.wanted:
                    self._values[address.value] = bytearray(nbytes)
        except BaseException:  # an interrupt too: the caller never gets the address
            with DRIVER_LOCK:
                if counted:
                    self._held -= nbytes
                if address.value:
                    self._values.pop(address.value, None)
                    if self._live.pop(address.value, None) is not None:
                        self._changed()
                    self._give_back(address.value)
            raise
        return address.value

    def retire(self, address: int) -> int:
        """Takes a live allocation out of use and returns its retirement number. ``release`` of that number frees the
        memory.

        Raises ``DriverError`` if the address is not a live allocation of this heap.
        """
        with DRIVER_LOCK:
            nbytes = self._live.pop(address, None)
            if nbytes is None:
                raise driver_error(
                    "CUDA_ERROR_INVALID_VALUE",
                    f"a free of {address:#x}, which is not a live allocation of {self.name}: it was freed before, "
                    "belongs to another device, or points inside an allocation; free what allocate gave, once",
                )
            retirement = next(self._retirements)
            self._leaving[retirement] = address, nbytes
            self._changed()
            return retirement

    def release(self, retirement: int) -> None:
        """Returns retired memory to the system. A second call does nothing: a free that was interrupted runs again."""
        with DRIVER_LOCK:
            leaving = self._leaving.get(retirement)
            if leaving is None:
                return
            address, nbytes = leaving
            self._values.pop(address, None)
            if self._poison and not self.in_use_for_ever:
                memset(address, 0xFF, nbytes)
            # From here on, this is one atomic step: signals are checked only after the last call.
            self._held -= nbytes
            del self._leaving[retirement]
            if not self.in_use_for_ever:
                self._give_back(address)

    def end(self) -> None:
        """Marks the end of all work on the memory. Remaining allocations are freed when the heap is dropped."""
        leaving = map(itemgetter(0), chain.from_iterable(map(dict.values, (self._leaving,))))
        left = map(
            self._give_back, chain(chain.from_iterable((self._live,)), leaving)
        )  # lazy: reads the tables only when consumed
        if not self.in_use_for_ever:
            self._drop = partial(deque[object], left, 0)

    def keep_for_ever(self) -> None:
        """Keeps the memory for ever: abandoned work may still use it."""
        self.in_use_for_ever = True
        self._drop = None

    def contains(self, address: int, nbytes: int) -> bool:
        """Returns whether a range lies inside one live allocation."""
        size = self._live.get(address)
        if size is not None:
            return 0 < nbytes <= size
        _, size, end = self._block_around(address, nbytes)
        return 0 < end <= size or (bool(self._adopted) and self._in_adopted(address, nbytes))

    def check(self, what: str, address: int, nbytes: int) -> None:
        """Raises ``DriverError`` unless the range lies inside one live allocation."""
        if not self.contains(address, nbytes):
            raise out_of_range(what, address, nbytes, self.name)

    def tracked(self, address: int, nbytes: int) -> tuple[int, bytearray] | None:
        """Returns the start and the flags of the block around a range, one flag for each byte of the block, 1 if the
        byte was ever written. Returns None if no tracked block contains the range."""
        with DRIVER_LOCK:
            exact = self._values.get(address)
            if exact is not None:
                return (address, exact) if nbytes <= len(exact) else None
            for start, values in self._values.items():
                if start <= address and address + nbytes <= start + len(values):
                    return start, values
        return None

    def wrote(self, address: int, nbytes: int, values: bytes | None) -> None:
        """Sets the flags of a range, if it is tracked: to ``values``, or all to 1 if ``values`` is None."""
        found = self.tracked(address, nbytes)
        if found is not None:
            start, flags = found
            flags[address - start : address - start + nbytes] = b"\1" * nbytes if values is None else values

    def adopt(self, address: int, nbytes: int) -> None:
        """Treats a range of another library's memory as live, until ``disown`` has undone each ``adopt`` of the
        range."""
        key = address, nbytes
        with DRIVER_LOCK:
            self._adopted[key] = self._adopted.get(key, 0) + 1  # "+=" would call Python code for a new key

    def disown(self, address: int, nbytes: int) -> bool:
        """Undoes one call of ``adopt`` for the range. Returns False if there was none."""
        with DRIVER_LOCK:
            count = self._adopted[address, nbytes]
            if count > 1:
                self._adopted[address, nbytes] = count - 1
            else:
                del self._adopted[address, nbytes]
            return count > 0

    def _in_adopted(self, address: int, nbytes: int) -> bool:
        with DRIVER_LOCK:
            if (address, nbytes) in self._adopted:
                return True
            ranges = list(self._adopted)
        return nbytes > 0 and any(start <= address and address + nbytes <= start + size for start, size in ranges)

    def _block_around(self, address: int, nbytes: int) -> tuple[int, int, int]:
        """Returns the address and the size of the last live block that begins at or before ``address``, both 0 if there
        is no such block. The third number is the number of bytes from the block's start to the range's end, 0 for an
        empty range."""
        with DRIVER_LOCK:
            ordered = self._ordered
            if ordered is None:
                changes = self._changes
                ordered = sorted(self._live)
                if changes == self._changes:
                    self._ordered = ordered
            index = bisect_right(ordered, address)
            base = ordered[index - 1] if index else 0
            return base, self._live.get(base, 0), nbytes + address - base if nbytes > 0 else 0

    def _changed(self) -> None:
        self._changes += 1
        self._ordered = None


def out_of_range(what: str, address: int, nbytes: int, where: str) -> Exception:
    """Returns the error for a range that is not in one live allocation."""
    return driver_error(
        "CUDA_ERROR_INVALID_VALUE",
        f"{what} [{address:#x}, {address + nbytes:#x}), {nbytes} bytes, does not lie in one live allocation of "
        f"{where}; check the address and the size, and that the memory was not freed before",
    )


def note_launch(heaps: list[Heap], params: bytes) -> None:
    """Marks as written, for the sanitizer, each block that a parameter of an unsanitized kernel points into."""
    for at in range(0, len(params) - 7, 8):
        for heap in heaps:
            found = heap.tracked(int.from_bytes(params[at : at + 8], "little"), 1)
            if found is not None:
                heap.wrote(found[0], len(found[1]), None)


def keep_for_ever(heaps: Iterable[Heap]) -> None:
    """Keeps the heaps' memory for ever: an abandoned kernel may use any of it."""
    for heap in heaps:
        heap.keep_for_ever()


def physical_memory() -> int:
    """Returns the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_MAX_SIZE = 2**63 - 1

# Blocks of this size or more ask for huge pages, as NumPy's arrays do: kernels that read 16 MB arrays once take a
# quarter less time.
_LARGE = 4 * 1024 * 1024
_PAGE = 4096
_MADV_HUGEPAGE = 14  # Linux's number

_libc = ctypes.CDLL(None)
# Each function releases the GIL.
_posix_memalign = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)(
    ("posix_memalign", _libc)
)
_madvise = (
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(("madvise", _libc))
    if sys.platform == "linux"
    else None
)
_free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("free", _libc))
memset = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)(("memset", _libc))
