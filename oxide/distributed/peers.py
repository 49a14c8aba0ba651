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
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import final

from oxide.errors import CollectiveError, DeviceError

_RETRY_SECONDS = 0.02  # between two attempts to connect to a rank that does not listen yet
_LONGEST = 1 << 16  # bytes of a message

ARRIVED, STEP, KNOWN, FAILED, LEFT = b"C", b"P", b"I", b"F", b"L"
ENDED = b""  # the kind of the message that a process which has ended did not send


@final
class Peers:
    """The connections of one rank. ``join`` makes them."""

    def __init__(self, rank: int, size: int, timeout: float, connections: dict[int, Connection[bytes, bytes]]) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.others = sorted(connections)
        self._connections = connections

    def send(self, ranks: Iterable[int], kind: bytes, text: bytes = b"") -> None:
        """Sends a message to each of ``ranks``. A rank that has ended gets none: what it sent last is still to be
        received, and tells more."""
        for rank in ranks:
            with suppress(OSError):
                self._connections[rank].send_bytes(kind + text)

    def receive(self, rank: int, what: str, deadline: float) -> tuple[bytes, bytes]:
        """Returns the next message of ``rank``: its kind and its text. Waits until ``deadline``, by ``time.monotonic``.

        Raises ``CollectiveError``, which names ``what``, if the rank has ended, has left or has given up, or if no
        message has come.
        """
        try:
            in_time = self._connections[rank].poll(max(0.0, deadline - time.monotonic()))
        except OSError:
            in_time = True  # it has ended
        if not in_time:
            raise self.error(what, rank, f"rank {rank} did not arrive within {self.timeout:g} s")
        kind, text = self.take(rank)
        self.require_going(rank, what, kind, text)
        return kind, text

    def take(self, rank: int) -> tuple[bytes, bytes]:
        """Returns the next message of ``rank``, which must be there: its kind and its text. The kind is ``ENDED`` if
        there are no more, as the process has ended."""
        try:
            message = self._connections[rank].recv_bytes(_LONGEST)
        except (EOFError, OSError):
            return ENDED, b""
        return message[:1], message[1:]

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
        try:
            return self._connections[rank].poll()
        except OSError:
            return True

    def exchange(self, ranks: Iterable[int], what: str, deadline: float) -> None:
        """Arrives at the collective ``what``, and waits until all of ``ranks`` have arrived there, too."""
        ranks = list(ranks)
        self.send(ranks, ARRIVED, what.encode())
        for rank in ranks:
            self.require_same(rank, what, *self.receive(rank, what, deadline))

    def require_same(self, rank: int, what: str, kind: bytes, text: bytes) -> None:
        """Raises ``CollectiveError`` unless the message says that ``rank`` has arrived at ``what``."""
        if kind != ARRIVED or text.decode() != what:
            theirs = text.decode() if kind == ARRIVED else "a step of an earlier collective"
            raise self.error(
                what, rank, f"rank {rank} asks for {theirs}; all ranks must ask for the same collectives in one order"
            )

    def step(self, ranks: Iterable[int], what: str, deadline: float) -> None:
        """Waits until all of ``ranks`` have done this step of ``what``, as this rank has."""
        ranks = list(ranks)
        self.send(ranks, STEP)
        for rank in ranks:
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
        for connection in self._connections.values():
            connection.close()


def join(name: str, rank: int, size: int, timeout: float) -> Peers:
    """Returns the connections of ``rank`` to all other ranks of the group ``name``. Waits for them.

    Raises ``CollectiveError`` that names the ranks that did not come within ``timeout`` seconds, and ``DeviceError`` if
    another process is that rank or means a group of another size.
    """
    deadline = time.monotonic() + timeout
    folder = _folder()
    found: dict[int, Connection[bytes, bytes]] = {}
    listener = _listen(folder, name, rank)
    path = listener.getsockname()
    try:
        listener.setblocking(False)
        while len(found) < size - 1:
            for lower in range(rank):
                if lower not in found:
                    connection = _connect(_socket_of(folder, name, lower))
                    if connection is not None:
                        _greet(connection, name, rank, size, deadline)
                        found[lower] = connection
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
        for connection in found.values():
            connection.close()
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
        raise DeviceError(f"{folder} must be a folder of this user's that nobody else can enter; remove it")
    return folder


def _socket_of(folder: Path, name: str, rank: int) -> str:
    return str(folder / f"{name}.{rank}")


def _listen(folder: Path, name: str, rank: int) -> socket.socket:
    path = _socket_of(folder, name, rank)
    if len(os.fsencode(path)) > 100:  # the limit of a socket's address is 107 bytes
        raise DeviceError(f"the group's name {name!r} is too long: its sockets would be {path}, over 100 bytes")
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


def _connect(path: str) -> Connection[bytes, bytes] | None:
    """Returns a connection to a socket, None if nobody listens there."""
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connecting.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connecting.close()
        return None
    except BaseException:
        connecting.close()
        raise
    return Connection(connecting.detach())


def _greet(connection: Connection[bytes, bytes], name: str, rank: int, size: int, deadline: float) -> None:
    """Says which rank this is. Raises ``DeviceError`` if the other rank refuses it."""
    connection.send_bytes(f"{rank} {size}".encode())
    answer = b""
    with suppress(EOFError, OSError):
        if connection.poll(max(0.0, deadline - time.monotonic())):
            answer = connection.recv_bytes(_LONGEST)
    if answer != b"welcome":
        connection.close()
        reason = answer.decode() or "a rank below ended, or did not answer"
        raise DeviceError(f"joining group {name!r} as rank {rank} of {size}: {reason}")


def _accept(
    listener: socket.socket,
    found: dict[int, Connection[bytes, bytes]],
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
        accepted.setblocking(True)
        connection = Connection(accepted.detach())
        text = b""
        with suppress(EOFError, OSError):
            if connection.poll(max(0.0, deadline - time.monotonic())):
                text = connection.recv_bytes(_LONGEST)
        if not text:  # it only looked whether this rank exists, or ended
            connection.close()
            return
        other, their_size = map(int, text.split())
        refusal = ""
        if their_size != size:
            refusal = f"rank {rank} of this group says that it has {size} ranks"
        elif other in found:
            refusal = f"rank {other} of this group is another process"
        with suppress(OSError):
            connection.send_bytes(refusal.encode() or b"welcome")
        if refusal:
            connection.close()
            if their_size != size:
                raise DeviceError(
                    f"joining group {name!r} as rank {rank} of {size}: rank {other} says that it has {their_size} ranks"
                )
            return
        found[other] = connection
