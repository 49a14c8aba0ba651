"""Reuses small blocks of device memory that a stream freed and will soon need again.

A pipeline frees and allocates its temporaries again and again, in few sizes, on few streams. Each call of
``cuMemAllocAsync`` or ``cuMemFreeAsync`` costs the host 3 to 6 µs. Both are ordered by their stream. So the next
allocation of the same size *on the same stream* may get a freed block without a call: the block's earlier uses run
first. The driver's own pool does the same, at the cost of a call.

Up to ``BLOCKS`` blocks of each of up to ``SIZES`` sizes are kept. A block has at most ``LARGEST`` bytes, so a stream
keeps at most 64 MiB. The blocks are freed when memory is short, and when the stream is synchronised or destroyed
(``drain``).

There is no lock: a submission may interrupt another one on the same thread, from a signal handler or a finaliser. Every
step is one operation of a list or a dictionary. A size's list is never removed, so no block is added to a lost list.
"""

from __future__ import annotations

from typing import Final, final

LARGEST: Final = 1 << 20
"""The largest size of a kept block, in bytes. Work on larger blocks takes longer than the driver's calls."""

SIZES: Final = 8
BLOCKS: Final = 8


@final
class SpareBlocks:
    """The spare blocks of one stream."""

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
