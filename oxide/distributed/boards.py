"""Boards: what each rank has told the others, in memory that all ranks of a group have mapped.

A rank writes to its own board, and the others read it. So telling them something takes about a microsecond and no
system call; a message through a socket takes ten times as long. Writing wakes no reader: each rank reads the others'
boards when it needs to.

A board is a ring of *notes*. A note has a checksum, and a number that is one more than that of the note before. A
reader takes a note once its checksum is right. So it never takes half a note, whatever the order in which it sees the
writer's bytes. Readers publish on their own boards how many notes they have taken, and the writer waits before it
overwrites a note that a reader has not taken.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, final
from zlib import crc32

from oxide.distributed.peers import sweep
from oxide.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Container

    from oxide.distributed.peers import Peers

TO_ALL: Final = -1
NOTES: Final = 2048
NOTE_BYTES: Final = 256
_CHECKSUM: Final = struct.Struct("@I")
_HEAD: Final = struct.Struct("@qii")  # number, addressee, bytes of the text
_HEAD_BYTES: Final = _HEAD.size
_TEXT_BYTES: Final = NOTE_BYTES - _CHECKSUM.size - _HEAD_BYTES
_TEXT_AT: Final = _CHECKSUM.size + _HEAD_BYTES
_WORD: Final = 8
_PREFIX: Final = "oxide-rank-"


def board_bytes(ranks: int) -> int:
    """Returns the bytes of a board: the counts of notes taken from each rank, one word that says whether the rank has
    ended, and the notes."""
    return _notes_at(ranks) + NOTES * NOTE_BYTES


def _notes_at(ranks: int) -> int:
    return (ranks + 1) * _WORD


def fitting(text: str) -> str:
    """Returns an ASCII text as a note can hold it: a text that is too long is cut, and its digest is added."""
    if len(text) <= _TEXT_BYTES:
        return text
    return f"{text[: _TEXT_BYTES - 20]}... ({sha256(text.encode()).hexdigest()[:14]})"


@final
class Boards:
    """The boards of a group, as rank ``rank`` uses them. ``segments`` has the memory of each rank's board."""

    def __init__(self, rank: int, segments: list[mmap.mmap]) -> None:
        self._rank = rank
        self._size = len(segments)
        self._own = segments[rank]
        self._segments = segments
        self._words = [memoryview(segment).cast("q") for segment in segments]
        self._start = _notes_at(self._size)
        self._written = 0
        self._free_until = NOTES  # the number of the last note that overwrites nothing
        self._taken = [0] * self._size

    def has_room(self, gone: Container[int] = ()) -> bool:
        """Returns whether a note can be written: every other rank has taken the note that the new one would overwrite.
        Ranks that are ``gone``, or have ended, take no more notes and do not count."""
        if self._written >= self._free_until:
            taken = [self._words[rank][self._rank] for rank in self._readers(gone)]
            self._free_until = min(taken, default=self._written) + NOTES
        return self._written < self._free_until

    def latest(self, gone: Container[int] = ()) -> int:
        """Returns the rank that has taken the fewest of this rank's notes. Ranks that are ``gone`` do not count."""
        return min(self._readers(gone), key=lambda rank: self._words[rank][self._rank], default=self._rank)

    def _readers(self, gone: Container[int]) -> list[int]:
        others = [rank for rank in range(self._size) if rank != self._rank]
        return [rank for rank in others if rank not in gone and not self.has_ended(rank)]

    def write(self, text: str, to: int = TO_ALL) -> None:
        """Writes a note for all other ranks, or for rank ``to``. Call it only if ``has_room()`` is True, with a text
        that ``fitting`` returned."""
        number = self._written = self._written + 1
        note = _HEAD.pack(number, to, len(text)) + text.encode()
        note = _CHECKSUM.pack(crc32(note)) + note
        at = self._start + number % NOTES * NOTE_BYTES
        self._own[at : at + len(note)] = note

    def take(self, rank: int) -> list[str]:
        """Takes the new notes of another rank. Returns the texts of the notes that are for this rank or for all."""
        segment, taken, found = self._segments[rank], self._taken[rank], []
        while True:
            at = self._start + (taken + 1) % NOTES * NOTE_BYTES
            head = segment[at + _CHECKSUM.size : at + _TEXT_AT]
            number, to, length = _HEAD.unpack(head)
            if number != taken + 1 or not 0 <= length <= _TEXT_BYTES:
                break
            text = segment[at + _TEXT_AT : at + _TEXT_AT + length]
            (checksum,) = _CHECKSUM.unpack_from(segment, at)
            if checksum != crc32(text, crc32(head)):
                break
            taken += 1
            if to in (TO_ALL, self._rank):
                found.append(text.decode())
        self._taken[rank] = taken  # published each time: an interrupt may have come between these two before
        self._words[self._rank][rank] = taken
        return found

    def end(self) -> None:
        """Marks this rank's board. Call it once the rank has left the group or given it up, and has said so by a
        message."""
        self._words[self._rank][self._size] = 1

    def has_ended(self, rank: int) -> bool:
        """Returns whether another rank has marked its board with ``end``."""
        return self._words[rank][self._size] != 0


def shared_segments(peers: Peers, nbytes: int, deadline: float) -> list[mmap.mmap]:
    """Returns new zeroed memory of ``nbytes`` bytes for each rank, in the order of the ranks. Every rank of the group
    has mapped the memory of all ranks, and the files of this memory are removed. Every rank must call this at the same
    time.

    Raises ``CollectiveError`` if another rank ends meanwhile, or has not called this by ``deadline``, a time of
    ``time.monotonic``. Raises ``DeviceError`` if the memory of another rank cannot be opened.
    """
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    sweep(folder.glob(f"{_PREFIX}*"))
    file, path = tempfile.mkstemp(prefix=_PREFIX, dir=folder)
    try:
        try:
            os.posix_fallocate(file, 0, nbytes)  # a file with holes would end the process where memory is short
            own = mmap.mmap(file, nbytes)
        except OSError as error:
            raise DeviceError(f"joining the group: no shared memory of {nbytes} bytes in {folder}: {error}") from None
        finally:
            os.close(file)
        names = peers.tell("join", os.fsencode(path), deadline)
        segments = {rank: _opened(os.fsdecode(name), nbytes) for rank, name in names.items()}
        peers.step("join", deadline)
    finally:
        os.unlink(path)
    segments[peers.rank] = own
    return [segments[rank] for rank in range(peers.size)]


def _opened(path: str, nbytes: int) -> mmap.mmap:
    try:
        file = os.open(path, os.O_RDWR)
    except OSError as error:
        raise DeviceError(f"joining the group: the shared memory of another rank cannot be opened: {error}") from None
    try:
        return mmap.mmap(file, nbytes)
    finally:
        os.close(file)
