"""Peers: the other processes of a group, each connected to this one by a socket.

Each process of a group is one rank. The ranks find one another by the group's name: rank r listens at a socket of that
name, and connects to every rank below it. From then on each pair has a connection of its own, which carries short
messages in order. Their first letter says what they are:

- ``C`` and a text: this rank has arrived at a collective, which the text describes. All ranks of the collective must
  send the same text.
- ``P``: this rank has done one step of the collective that it is in.
- ``I`` and bytes: what a rank needs to know once, when the group is made.
- ``F`` and a text: this rank has given up the group. The text is the number of the rank that is the reason, and a
  message.
- ``L``: this rank has left the group.

The kernel closes the connections of a process that ends, whatever ended it. So the end of a rank is seen at once.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from oxide.dropping import WeakTable
from oxide.errors import CollectiveError, DeviceError

_RETRY_SECONDS: Final = 0.02  # between two attempts to connect to a rank that does not listen yet
_CHUNK: Final = 1 << 16
_OLD_SECONDS: Final = 3600.0
_LENGTH: Final = struct.Struct("@I")

ARRIVED, STEP, KNOWN, FAILED, LEFT = b"C", b"P", b"I", b"F", b"L"
ENDED = b""  # the kind of the message that a process which has ended did not send


@final
class Channel:
    """A connection to another process, which carries messages of bytes in order. ``multiprocessing`` has one like it,
    whose question for a message takes 30 µs instead of 1: it would be most of a small collective's time."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(True)
        self._socket = connected
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._received = bytearray()
        self._ended = False
        _open.set(connected, None)

    def send(self, message: bytes) -> None:
        """Sends a message. Waits while the other process has too many to read. Raises ``OSError`` if it has ended."""
        self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def has_message(self, seconds: float = 0.0) -> bool:
        """Returns whether there is a message to take, or the end. Waits for it for at most ``seconds``."""
        deadline = time.monotonic() + seconds
        while not self._is_whole() and not self._ended:
            try:
                found = self._socket.recv(_CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._poll.poll(min(left, 3600.0) * 1000)
                continue
            except OSError:  # the other process ended with messages unread
                found = b""
            self._received += found
            self._ended = not found
        return True

    def take(self) -> bytes | None:
        """Returns the next message, which must be there; None if there are no more, as the other process has ended."""
        if not self._is_whole():
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        end = _LENGTH.size + length
        message = bytes(self._received[_LENGTH.size : end])
        del self._received[:end]
        return message

    def close(self) -> None:
        """Closes the connection. A thread that waits for a message sees its end."""
        with suppress(OSError):  # the other process has closed it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _is_whole(self) -> bool:
        received = self._received
        return len(received) >= _LENGTH.size and len(received) >= _LENGTH.size + _LENGTH.unpack_from(received)[0]


_open: WeakTable[socket.socket, None] = WeakTable()


def _close_in_child() -> None:
    """Closes the connections in a forked child, which would keep them open past the end of its parent."""
    for connected in _open.objects():
        connected.close()


os.register_at_fork(after_in_child=_close_in_child)


@final
class Peers:
    """The connections of one rank. ``join`` makes them."""

    def __init__(self, rank: int, size: int, timeout: float, channels: dict[int, Channel]) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.others = sorted(channels)
        self._channels = channels

    def send(self, ranks: Iterable[int], kind: bytes, text: bytes = b"") -> None:
        """Sends a message to each of ``ranks``. A rank that has ended gets none: what it sent last is still to be
        received, and tells more."""
        message = kind + text
        for rank in ranks:
            try:
                self._channels[rank].send(message)
            except OSError:
                continue

    def receive(self, rank: int, what: str, deadline: float) -> tuple[bytes, bytes]:
        """Returns the next message of ``rank``: its kind and its text. Waits until ``deadline``, by ``time.monotonic``.

        Raises ``CollectiveError``, which names ``what``, if the rank has ended, has left or has given up, or if no
        message has come.
        """
        if not self._channels[rank].has_message(deadline - time.monotonic()):
            raise self.error(what, rank, f"rank {rank} did not arrive within {self.timeout:g} s")
        kind, text = self.take(rank)
        self.require_going(rank, what, kind, text)
        return kind, text

    def take(self, rank: int) -> tuple[bytes, bytes]:
        """Returns the next message of ``rank``, which must be there: its kind and its text. The kind is ``ENDED`` if
        there are no more, as the process has ended."""
        message = self._channels[rank].take()
        return (ENDED, b"") if message is None else (message[:1], message[1:])

    def require_going(self, rank: int, what: str, kind: bytes, text: bytes) -> None:
        """Raises ``CollectiveError``, which names ``what``, if a message of ``rank`` says that it goes no further."""
        if kind == ENDED:
            raise self.error(what, rank, f"the process of rank {rank} has ended")
        if kind == FAILED:
            culprit, _, reason = text.decode().partition(" ")
            raise self.error(what, int(culprit), f"rank {rank} has given up: {reason}")
        if kind == LEFT:
            raise self.error(what, rank, f"rank {rank} has left the group")

    def has_message(self, rank: int) -> bool:
        """Returns whether a message of ``rank``, or its end, can be received without waiting."""
        return self._channels[rank].has_message()

    def exchange(self, what: str, deadline: float) -> None:
        """Arrives at the collective ``what``, and waits until all other ranks have arrived there, too."""
        self.send(self.others, ARRIVED, what.encode())
        for rank in self.others:
            self.require_same(rank, what, *self.receive(rank, what, deadline))

    def require_same(self, rank: int, what: str, kind: bytes, text: bytes) -> None:
        """Raises ``CollectiveError`` unless the message says that ``rank`` has arrived at ``what``."""
        if kind != ARRIVED or text.decode() != what:
            theirs = text.decode() if kind == ARRIVED else "a step of an earlier collective"
            raise self.error(
                what, rank, f"rank {rank} asks for {theirs}; all ranks must ask for the same collectives in one order"
            )

    def step(self, what: str, deadline: float) -> None:
        """Waits until all other ranks have done this step of ``what``, as this rank has."""
        self.send(self.others, STEP)
        for rank in self.others:
            self.receive(rank, what, deadline)

    def tell(self, what: str, text: bytes, deadline: float) -> dict[int, bytes]:
        """Tells every other rank something, and returns what each of them tells."""
        self.send(self.others, KNOWN, text)
        return {rank: self.receive(rank, what, deadline)[1] for rank in self.others}

    def error(self, what: str, rank: int, reason: str) -> CollectiveError:
        """Returns the error for a collective that cannot complete."""
        return CollectiveError(f"{what} on rank {self.rank} of {self.size}: {reason}", what, rank)

    def give_up(self, error: CollectiveError) -> None:
        """Tells the other ranks that this one has given up the group."""
        culprit = self.rank if error.rank is None else error.rank
        self.send(self.others, FAILED, f"{culprit} {error}".encode())

    def close(self) -> None:
        """Leaves the group."""
        self.send(self.others, LEFT)
        for channel in self._channels.values():
            channel.close()


def join(name: str, rank: int, size: int, timeout: float) -> Peers:
    """Returns the channels of ``rank`` to all other ranks of the group ``name``. Waits for them.

    Raises ``CollectiveError`` that names the ranks that did not come within ``timeout`` seconds, and ``DeviceError`` if
    another process is that rank or means a group of another size.
    """
    deadline = time.monotonic() + timeout
    folder = _folder()
    found: dict[int, Channel] = {}
    listener = _listen(folder, name, rank)
    path = listener.getsockname()
    try:
        listener.setblocking(False)
        while len(found) < size - 1:
            for lower in range(rank):
                if lower not in found:
                    channel = _connect(_socket_of(folder, name, lower))
                    if channel is not None:
                        _greet(channel, name, rank, size, deadline)
                        found[lower] = channel
            _accept(listener, found, name, rank, size, deadline)
            if len(found) < size - 1 and time.monotonic() > deadline:
                absent = [other for other in range(size) if other != rank and other not in found]
                numbers = ", ".join(map(str, absent))
                raise CollectiveError(
                    f"joining group {name!r} as rank {rank} of {size}: rank{'s' * (len(absent) > 1)} {numbers} did not "
                    f"come within {timeout:g} s",
                    "join",
                    absent[0],
                )
    except BaseException:
        for channel in found.values():
            channel.close()
        raise
    finally:
        listener.close()
        with suppress(FileNotFoundError):
            os.unlink(path)
    return Peers(rank, size, timeout, found)


def _folder() -> Path:
    """Returns the folder of this user's sockets. No other user can read or write it."""
    folder = Path(tempfile.gettempdir()) / f"oxide-groups-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise DeviceError(
            f"{folder} must be a folder that belongs to this user and that no other user can enter; remove it"
        )
    return folder


def _socket_of(folder: Path, name: str, rank: int) -> str:
    return str(folder / f"{name}.{rank}")


def _listen(folder: Path, name: str, rank: int) -> socket.socket:
    path = _socket_of(folder, name, rank)
    if len(os.fsencode(path)) > 100:  # the limit of a socket's address is 107 bytes
        raise DeviceError(
            f"group {name!r}: its sockets would be {path}, and over 100 bytes are too long for a socket; choose a "
            f"shorter name, or set TMPDIR to a shorter folder"
        )
    _sweep(folder)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            listener.bind(path)
        except OSError:
            other = _connect(path)
            if other is not None:
                other.close()
                raise DeviceError(f"rank {rank} of group {name!r} is another process, which is joining now") from None
            with suppress(FileNotFoundError):
                os.unlink(path)  # of a process that was killed
            listener.bind(path)
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener


def _sweep(folder: Path) -> None:
    """Removes the sockets of processes that were killed while they joined, long ago."""
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > _OLD_SECONDS and _connect(str(path)) is None:
                path.unlink()


def _connect(path: str) -> Channel | None:
    """Returns a channel to a socket, None if no process listens there."""
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connecting.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connecting.close()
        return None
    except BaseException:
        connecting.close()
        raise
    return Channel(connecting)


def _greet(channel: Channel, name: str, rank: int, size: int, deadline: float) -> None:
    """Says which rank this is. Raises ``DeviceError`` if the other rank refuses it."""
    with suppress(OSError):
        channel.send(f"{rank} {size}".encode())
    answer = (channel.take() if channel.has_message(deadline - time.monotonic()) else None) or b""
    if answer != b"welcome":
        channel.close()
        reason = answer.decode() or "a rank below ended, or did not answer"
        raise DeviceError(f"joining group {name!r} as rank {rank} of {size}: {reason}")


def _accept(
    listener: socket.socket,
    found: dict[int, Channel],
    name: str,
    rank: int,
    size: int,
    deadline: float,
) -> None:
    """Accepts the ranks that have connected. Waits briefly for one."""
    if not select.select([listener], [], [], _RETRY_SECONDS)[0]:
        return
    with suppress(BlockingIOError):
        accepted, _ = listener.accept()
        channel = Channel(accepted)
        text = channel.take() if channel.has_message(deadline - time.monotonic()) else None
        if not text:  # it only looked whether this rank exists, or ended
            channel.close()
            return
        other, their_size = map(int, text.split())
        refusal = ""
        if their_size != size:
            refusal = f"rank {rank} of this group says that it has {size} ranks"
        elif other in found:
            refusal = f"rank {other} of this group is another process"
        with suppress(OSError):
            channel.send(refusal.encode() or b"welcome")
        if refusal:
            channel.close()
            if their_size != size:
                raise DeviceError(
                    f"joining group {name!r} as rank {rank} of {size}: rank {other} says that it has {their_size} ranks"
                )
            return
        found[other] = channel
