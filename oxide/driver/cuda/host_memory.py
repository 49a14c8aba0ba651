"""Page-locked host memory in large pieces, made so that other threads' calls of the driver wait as little as may be.

``cuMemHostAlloc`` finds, zeroes and locks the pages in one call, 47 ms for 64 MiB on an H100, and what an event loop's
thread asks of the driver meanwhile may have to wait for a lock. Most of that is finding and zeroing, which needs no
driver. So here the pages are the process's own: mapped, as huge pages where the system gives them, and touched, all
without the GIL; the driver then only locks them (``cuMemHostRegister``). The idea is PyTorch's
``pinned_use_cuda_host_register``.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from typing import Any, final

from cuda.bindings import driver

from oxide.driver.cuda.errors import check

LARGE_BYTES = 2 << 20
"""From here on; smaller pieces are ``cuMemHostAlloc``'s, which kernels may write to on any system."""

_MAP_FAILED = (1 << 64) - 1


def _available() -> int:
    """Bytes of memory that the system can still give; 0 where it does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return 0


@final
class RegisteredMemory:
    """What was mapped and registered, by address. Methods want a context to be current."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {}
        libc = ctypes.CDLL(None)  # calls let go of the GIL
        self._map: Any = libc.mmap
        self._map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
        self._map.restype = ctypes.c_void_p
        self._unmap: Any = libc.munmap
        self._unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._advise: Any = libc.madvise
        self._advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def allocate(self, nbytes: int) -> int | None:
        """The address of page-locked memory, zeroed; None where the system or the driver does not give it this way."""
        if nbytes > _available() // 2:
            return None  # the system maps more than it has, and ends the process that touches it
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
        with self._lock:
            self._sizes[address] = nbytes
        return int(address)

    def free(self, address: int) -> bool:
        """Gives memory of ``allocate`` back; False if it is not of ``allocate``. Waits for what runs on the device."""
        with self._lock:
            nbytes = self._sizes.get(address)
        if nbytes is None:
            return False
        check(driver.cuMemHostUnregister(address)[0], "cuMemHostUnregister")
        with self._lock:
            del self._sizes[address]
        self._unmap(address, nbytes)
        return True
