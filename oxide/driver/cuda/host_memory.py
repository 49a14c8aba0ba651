"""Allocates large page-locked host memory so that other threads' driver calls wait as little as possible.

``cuMemHostAlloc`` finds, zeroes and locks the pages in one call, 47 ms for 64 MiB on an H100. Meanwhile driver calls of
an event loop's thread may have to wait for a lock. Most of the time goes into finding and zeroing pages, which does not
need the driver. So here the process itself maps the pages, as huge pages if the system provides them, and touches them,
all without the GIL. The driver then only locks them (``cuMemHostRegister``). The idea is PyTorch's
``pinned_use_cuda_host_register``.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, final

from cuda.bindings import driver

from oxide.driver.cuda.errors import check
from oxide.host.locks import new_lock, unheld

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
    """Mapped and registered memory, by address. The methods need a current context."""

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
