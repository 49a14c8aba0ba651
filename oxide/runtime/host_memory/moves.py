"""Copies within host memory, done by the device's host-function thread in stream order.

An upload's data must be copied from ordinary into page-locked memory before the device can read it. A copy of 64 MiB
takes 6 ms, too long for an event loop's thread. So a native host function makes the copy. It reads addresses and length
from a table, allocates nothing and never asks for the GIL. If there are cores to spare, several threads share a large
copy (``copy_pool``). Otherwise the function only calls the C library's ``memcpy``.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, final

import numpy as np

from oxide.compiler.cpu.native_functions import host_function
from oxide.compiler.ir.files import ir_file
from oxide.driver.records import COPY_ROW
from oxide.native import keep_alive
from oxide.runtime.host_memory.copy_pool import PIECE_BYTES, copy_function, copy_pool

if TYPE_CHECKING:
    from oxide.driver.base import Driver, StreamHandle


@final
class Moves:
    """A table of ``count`` copies to submit. Keep it alive until the last copy has run."""

    __slots__ = ("_address", "_next", "_table")

    def __init__(self, count: int) -> None:
        self._table = np.empty(count, COPY_ROW.dtype)
        self._address = int(self._table.ctypes.data)
        self._next = 0

    def submit(self, driver: Driver, destination: int, source: int, nbytes: int, stream: StreamHandle) -> None:
        """Submits the next copy, in stream order. Both ranges must stay valid until the copy has run."""
        row, self._next = self._next, self._next + 1
        pool = copy_pool() if nbytes > 2 * PIECE_BYTES else None
        self._table[row] = (destination, source, nbytes, _memcpy_address() if pool is None else pool.address)
        function = move_function() if pool is None else copy_function()
        driver.launch_native_host_function(function, self._address + row * COPY_ROW.size, stream)


def copy_now(destination: int, source: int, nbytes: int) -> None:
    """Copies on the calling thread, and returns when the copy is done. The helpers of ``copy_pool``, if there are any,
    share a copy of more than two pieces. The GIL is released meanwhile."""
    global _copy
    pool = copy_pool() if nbytes > 2 * PIECE_BYTES else None
    if pool is None:
        ctypes.memmove(destination, source, nbytes)
        return
    if _copy is None:
        _copy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(copy_function())
    row = np.array([(destination, source, nbytes, pool.address)], COPY_ROW.dtype)
    _copy(row.ctypes.data)
    keep_alive(row)


def move_function() -> int:
    """Returns the address of the native ``void move(void *row)``, which makes the copy that a row of the table
    describes."""
    global _move
    if _move is None:
        _move = host_function(ir_file(__file__, "moves.ll"), "oxide_move")
    return _move[0]


_move: tuple[int, Any] | None = None
_copy: Any = None
_memcpy: int | None = None


def _memcpy_address() -> int:
    global _memcpy
    if _memcpy is None:
        _memcpy = ctypes.cast(ctypes.CDLL(None).memcpy, ctypes.c_void_p).value
        assert _memcpy is not None
    return _memcpy
