"""Peers: the other processes of a group, each connected to this one by a socket.

Each process of a group is one rank. The ranks find one another by the group's name: rank r listens on a Unix socket
named after the group and r, and connects to the sockets of all lower ranks. From then on each pair of ranks has a
connection of its own, which carries short messages in order. The first letter of a message is its kind:

- ``C`` and a text: this rank has arrived at a collective, which the text describes. All ranks of the collective must
  send the same text.
- ``P``: this rank has done one step of the collective that it is in.
- ``I`` and bytes: data that the other ranks need when the group is made.
- ``F`` and a text: this rank has given up the group. The text is the number of the rank that caused this, and a
  message.
- ``L``: this rank has left the group.

The operating system closes the connections of a process that ends, for whatever reason. So the other ranks see the end
at once.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from oxide.errors import CollectiveError, DeviceError
from oxide.host.weak_table import WeakTable

_RETRY_SECONDS: Final = 0.02  # between two attempts to connect to a rank that does not listen yet
_CHUNK: Final = 1 << 16
_OLD_SECONDS: Final = 3600.0
_LENGTH: Final = struct.Struct("@I")

ARRIVED, STEP, KNOWN, FAILED, LEFT = b"C", b"P", b"I", b"F", b"L"
ENDED = b""  # stands for the kind of the next message if the process has ended and there is none


@final
class Channel:
    """A connection to another process, which carries messages of bytes in order. The connections of ``multiprocessing``
    need 30 µs instead of 1 µs to look for a message, which would be most of the time of a small collective."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(True)
        self._socket = connected
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._received = bytearray()
        self._ended = False
        _open.set(connected, None)

    def send(self, message: bytes) -> None:
        """Sends a message. Waits while the socket is full because the other process has not read its messages. Raises
        ``OSError`` if the other process has ended."""
        self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def has_message(self, seconds: float = 0.0) -> bool:
        """Returns whether ``take()`` has a result: a whole message, or the end of the connection. Waits at most
        ``seconds`` for a result."""
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
        """Returns the next message. Returns None if the connection has ended and all its messages were taken. May only
        be called when ``has_message()`` is True."""
        message = self.next()
        if message is not None:
            del self._received[: _LENGTH.size + len(message)]
        return message

    def next(self) -> bytes | None:
        """Returns what ``take()`` would return, and leaves it."""
        if not self._is_whole():
            return None
        (length,) = _LENGTH.unpack_from(self._received)
        return bytes(self._received[_LENGTH.size : _LENGTH.size + length])

    def close(self) -> None:
        """Closes the connection. A thread that waits in ``has_message`` sees the end of the connection."""
        with suppress(OSError):  # the other process has closed it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _is_whole(self) -> bool:
        received = self._received
        return len(received) >= _LENGTH.size and len(received) >= _LENGTH.size + _LENGTH.unpack_from(received)[0]


_open: WeakTable[socket.socket, None] = WeakTable()


def _close_in_child() -> None:
    """Closes the connections in a forked child: the child would keep them open after its parent has ended."""
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
        """Sends a message to each of ``ranks``. Ignores a rank that has ended: its last messages, which ``receive``
        still returns, tell more than an error here."""
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
        """Returns the next message of ``rank``: its kind and its text. The kind is ``ENDED`` if the process has ended
        and all its messages were taken. May only be called when ``has_message(rank)`` is True."""
        message = self._channels[rank].take()
        return (ENDED, b"") if message is None else (message[:1], message[1:])

    def require_going(self, rank: int, what: str, kind: bytes, text: bytes) -> None:
        """Raises ``CollectiveError``, which names ``what``, if the message says that ``rank`` has ended, has given up
        the group or has left it."""
        reason = _reason(rank, kind, text)
        if reason is not None:
            raise self.error(what, *reason)

    def has_message(self, rank: int) -> bool:
        """Returns whether a message of ``rank``, or the end of its process, can be received without waiting."""
        return self._channels[rank].has_message()

    def exchange(self, what: str, deadline: float) -> None:
        """Tells all other ranks that this rank has arrived at the collective ``what``, and waits until they all have
        arrived at it."""
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
        """Tells all other ranks that this rank has done a step of ``what``, and waits until they all have done it."""
        self.send(self.others, STEP)
        for rank in self.others:
            self.receive(rank, what, deadline)

    def tell(self, what: str, text: bytes, deadline: float) -> dict[int, bytes]:
        """Sends ``text`` to all other ranks. Waits for the texts that they send, and returns these by rank."""
        self.send(self.others, KNOWN, text)
        return {rank: self.receive(rank, what, deadline)[1] for rank in self.others}

    def error(self, what: str, rank: int, reason: str) -> CollectiveError:
        return CollectiveError(f"{what} on rank {self.rank} of {self.size}: {reason}", what, rank)

    def give_up(self, error: CollectiveError) -> None:
        self.send(self.others, _failure(error, self.rank))

    def close(self) -> None:
        self.send(self.others, LEFT)
        for channel in self._channels.values():
            channel.close()


def join(name: str, rank: int, size: int, timeout: float) -> Peers:
    """Connects ``rank`` to all other ranks of the group ``name``, and returns the connections. Waits for the other
    ranks.

    Raises ``CollectiveError`` that names the ranks that did not come within ``timeout`` seconds. Raises ``DeviceError``
    if another process joins as ``rank``, or joins a group of this name with another size.
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
            _require_alive(found, name, rank, size)
            if len(found) < size - 1 and time.monotonic() > deadline:
                absent = [other for other in range(size) if other != rank and other not in found]
                numbers = ", ".join(map(str, absent))
                raise CollectiveError(
                    f"joining group {name!r} as rank {rank} of {size}: rank{'s' * (len(absent) > 1)} {numbers} did not "
                    f"come within {timeout:g} s",
                    "join",
                    absent[0],
                )
    except BaseException as error:
        for channel in found.values():
            if isinstance(error, Exception):
                with suppress(OSError):
                    channel.send(_failure(error, rank))
            channel.close()
        raise
    finally:
        listener.close()
        with suppress(FileNotFoundError):
            os.unlink(path)
    return Peers(rank, size, timeout, found)


def _failure(error: Exception, rank: int) -> bytes:
    """Returns the message by which ``rank`` tells the others of an error."""
    culprit = error.rank if isinstance(error, CollectiveError) and error.rank is not None else rank
    return FAILED + f"{culprit} {error}".encode()


def _reason(rank: int, kind: bytes, text: bytes) -> tuple[int, str] | None:
    """Returns why the group cannot go on after a message of ``rank``: the rank that is the cause, and a text. Returns
    None if the message is no reason."""
    if kind == ENDED:
        return rank, f"the process of rank {rank} has ended"
    if kind == FAILED:
        culprit, _, why = text.decode().partition(" ")
        return int(culprit), f"rank {rank} has given up: {why}"
    return (rank, f"rank {rank} has left the group") if kind == LEFT else None


def _require_alive(found: dict[int, Channel], name: str, rank: int, size: int) -> None:
    """Raises ``CollectiveError`` if a rank that has connected has ended, or has given up, before all have come."""
    what = f"joining group {name!r} as rank {rank} of {size}"
    for other, channel in found.items():
        if channel.has_message():
            message = channel.next() or ENDED
            reason = _reason(other, message[:1], message[1:])
            if reason is not None:
                raise CollectiveError(f"{what}: {reason[1]}", "join", reason[0])


def _folder() -> Path:
    """Returns the folder of this user's sockets, and makes it if it is missing. Raises ``DeviceError`` if another user
    owns it or may enter it."""
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
    sweep(folder.iterdir(), is_used=lambda path: _connect(str(path)) is not None)
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


def sweep(paths: Iterable[Path], is_used: Callable[[Path], bool] = lambda _: False) -> None:
    """Removes the files of this user that are more than an hour old and not used. Processes that were killed while they
    joined a group have left them."""
    for path in paths:
        with suppress(OSError):  # another process may remove them, too
            found = path.lstat()
            is_old = found.st_uid == os.getuid() and time.time() - found.st_mtime > _OLD_SECONDS
            if is_old and not is_used(path):
                path.unlink()


def _connect(path: str) -> Channel | None:
    """Returns a channel to the socket ``path``, None if no process listens on it."""
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
    """Tells the process at the other end this rank and the group's size. Raises ``DeviceError`` if it refuses, ends, or
    does not answer."""
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
    """Accepts one rank that connects, and adds its channel to ``found``. Returns if none connects within
    ``_RETRY_SECONDS``. Raises ``DeviceError`` if its group has another size."""
    if not select.select([listener], [], [], _RETRY_SECONDS)[0]:
        return
    with suppress(BlockingIOError):
        accepted, _ = listener.accept()
        channel = Channel(accepted)
        text = channel.take() if channel.has_message(deadline - time.monotonic()) else None
        if not text:  # the process only tested whether this rank listens, or it has ended
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
