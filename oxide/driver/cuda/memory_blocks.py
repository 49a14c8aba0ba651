"""Memory that the CUDA driver manages itself: spare blocks of device memory, and large page-locked host memory."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, Final, final

from cuda.bindings import driver

from oxide.driver.cuda.errors import check
from oxide.host.locks import new_lock, unheld

LARGEST: Final = 1 << 20
"""The largest size of a kept block, in bytes. Work on larger blocks takes longer than the driver's calls."""

SIZES: Final = 8
BLOCKS: Final = 8


@final
class SpareBlocks:
    """Small blocks of device memory that one stream freed and will soon need again.

    A pipeline frees and allocates its temporaries again and again, in few sizes, on few streams. Each call of
    ``cuMemAllocAsync`` or ``cuMemFreeAsync`` costs the host 3 to 6 µs. Both are ordered by their stream. So the next
    allocation of the same size *on the same stream* may get a freed block without a call: the block's earlier uses run
    first. The driver's own pool does the same, at the cost of a call.

    Up to ``BLOCKS`` blocks of each of up to ``SIZES`` sizes are kept. A block has at most ``LARGEST`` bytes, so a
    stream keeps at most 64 MiB. The blocks are freed when memory is short, and when the stream is synchronised or
    destroyed (``drain``).

    There is no lock: a submission may interrupt another one on the same thread, from a signal handler or a finaliser.
    Every step is one operation of a list or a dictionary. A size's list is never removed, so no block is added to a
    lost list.
    """

    __slots__ = ("_by_size",)

    def __init__(self) -> None:
        self._by_size: dict[int, list[int]] = {}

    def take(self, nbytes: int) -> int | None:
        """Takes a block of exactly ``nbytes`` and returns its address; None if there is none."""
        addresses = self._by_size.get(nbytes)
        if addresses:
            try:
                return addresses.pop()
            except IndexError:  # another thread took it
                pass
        return None

    def keep(self, address: int, nbytes: int) -> bool:
        """Keeps a freed block. Returns False if the block is too large, or if enough blocks of its size, or enough
        other sizes, are kept: the caller must then free the block."""
        addresses = self._by_size.get(nbytes)
        if addresses is None:
            if nbytes > LARGEST or len(self._by_size) >= SIZES:
                return False
            addresses = self._by_size.setdefault(nbytes, [])
        if len(addresses) >= BLOCKS:
            return False
        addresses.append(address)
        return True

    def drain(self) -> list[int]:
        """Takes all blocks and returns their addresses."""
        drained = []
        for addresses in list(self._by_size.values()):
            while True:
                try:
                    drained.append(addresses.pop())
                except IndexError:
                    break
        return drained


LARGE_BYTES = 2 << 20
"""The least size in bytes of registered memory. Smaller memory comes from ``cuMemHostAlloc``: kernels may write to such
memory, at the same address, on any system."""

_MAP_FAILED = (1 << 64) - 1


def _available() -> int:
    """Returns the bytes of memory that the system can still provide; 0 if that is unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 0


@final
class RegisteredMemory:
    """Large page-locked host memory, made so that other threads' driver calls wait as little as possible. The methods
    need a current context.

    ``cuMemHostAlloc`` finds, zeroes and locks the pages in one call, 47 ms for 64 MiB on an H100. Meanwhile driver
    calls of an event loop's thread may have to wait for a lock. Most of the time goes into finding and zeroing pages,
    which does not need the driver. So here the process itself maps the pages, as huge pages if the system provides
    them, and touches them, all without the GIL. The driver then only locks them (``cuMemHostRegister``). The idea is
    PyTorch's ``pinned_use_cuda_host_register``.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._sizes: dict[int, int] = {}
        libc = ctypes.CDLL(None)  # calls release the GIL
        self._map: Any = libc.mmap
        self._map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
        self._map.restype = ctypes.c_void_p
        self._unmap: Any = libc.munmap
        self._unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._advise: Any = libc.madvise
        self._advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def allocate(self, nbytes: int) -> int | None:
        """Returns the address of zeroed page-locked memory; None if the system or the driver does not grant it."""
        if nbytes > _available() // 2:
            return None  # the system maps more memory than it has, and kills the process that touches it
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = self._map(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if address is None or address == _MAP_FAILED:
            return None
        self._advise(address, nbytes, getattr(mmap, "MADV_HUGEPAGE", 14))
        ctypes.memset(address, 0, nbytes)
        options = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP
        (error,) = driver.cuMemHostRegister(address, nbytes, options)
        if error:
            self._unmap(address, nbytes)
            return None
        with unheld(self._lock):
            self._sizes[address] = nbytes
        return int(address)

    def free(self, address: int) -> bool:
        """Frees memory that ``allocate`` returned. Returns False for other memory. Waits for all work on the device."""
        with unheld(self._lock):
            nbytes = self._sizes.get(address)
        if nbytes is None:
            return False
        check(driver.cuMemHostUnregister(address)[0], "cuMemHostUnregister")
        with unheld(self._lock):
            del self._sizes[address]
        self._unmap(address, nbytes)
        return True
