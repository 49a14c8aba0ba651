"""Small blocks of device memory that a stream freed and will soon ask for again.

A pipeline's temporaries are freed and allocated over and over, of few sizes, on few streams, and each call of
``cuMemAllocAsync`` or ``cuMemFreeAsync`` costs the host 3 to 6 µs. Both are ordered by the stream they are called on.
So a block freed on a stream may be handed to the next that allocates its size *on the same stream* with no call at
all: what used it before runs before. The driver's own pool does the same, behind a call.

Blocks are kept up to ``LARGEST`` bytes, ``BLOCKS`` of each of ``SIZES`` sizes: 64 MiB a stream at most. Where memory is
short, and when a stream is waited for or destroyed, they are given back to the driver (``drain``).

No lock: a submission may interrupt another one on the same thread, from a signal handler or a finaliser. Every step is
one operation of a list or a dictionary, and a size's list, once there, stays, so no block is put where nobody looks.
"""

from __future__ import annotations

from typing import Final, final

LARGEST: Final = 1 << 20
"""The largest block, in bytes. What works on larger ones lasts longer than the calls."""

SIZES: Final = 8
BLOCKS: Final = 8


@final
class SpareBlocks:
    """The blocks of one stream."""

    __slots__ = ("_by_size",)

    def __init__(self) -> None:
        self._by_size: dict[int, list[int]] = {}

    def take(self, nbytes: int) -> int | None:
        """The address of a block of exactly ``nbytes``, which is the caller's now; None if there is none."""
        addresses = self._by_size.get(nbytes)
        if addresses:
            try:
                return addresses.pop()
            except IndexError:  # another thread was quicker
                pass
        return None

    def keep(self, address: int, nbytes: int) -> bool:
        """Keeps a block that was freed; False where it is too large or one too many, and stays the caller's."""
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
        """The addresses of all blocks, which are the caller's now."""
        drained = []
        for addresses in list(self._by_size.values()):
            while True:
                try:
                    drained.append(addresses.pop())
                except IndexError:
                    break
        return drained
