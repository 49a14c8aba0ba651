"""Collectives of GPUs: NCCL does the work, reached through nccl4py (``pip install 'oxide-gpu[nccl]'``).

NCCL does not notice that a rank is missing, has ended or runs another collective: its kernels then wait forever. So
each process writes on its board (``boards``) which collectives it submits, and compares them with what the others have
written (``_Watch``). A submission does not wait for the comparison. If ranks disagree or one is missing, the process
aborts NCCL's communicator. The kernels that wait then end, and the runs that they belong to raise the error.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, cast, final

from oxide.distributed.boards import TO_ALL, Boards, board_bytes, fitting, shared_segments
from oxide.distributed.calls import CLOSED, Plane, name_of
from oxide.distributed.peers import ARRIVED, ENDED, FAILED, LEFT
from oxide.errors import CollectiveError, DeviceError
from oxide.host.locks import new_lock, unheld
from oxide.language.types import SCALARS
from oxide.runtime.devices.fault_records import HostReport
from oxide.runtime.submission.capture import LaunchHook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from oxide.distributed.calls import Call
    from oxide.distributed.peers import Peers
    from oxide.driver.base import GraphHandle, Graphs, Ranges
    from oxide.driver.cuda.graph import CudaGraphExec
    from oxide.runtime.devices.runtime import Device
    from oxide.runtime.submission.submission import ExecutionContext

# ncclDataType_t and ncclRedOp_t, which never change.
_TYPES: Final = {scalar.dtype_name: scalar.nccl for scalar in SCALARS.values() if scalar.nccl is not None}
_REDUCTIONS: Final = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_BYTES: Final = _TYPES["uint8"]
_FLOATS_OF_COMPLEX: Final = {
    scalar.dtype_name: SCALARS[scalar.part].dtype_name for scalar in SCALARS.values() if scalar.part
}
_LOOK_SECONDS: Final = 0.1
_CALL_SECONDS: Final = 1.0  # how long an abort waits for a call of NCCL's
_POLL_SECONDS: Final = 0.001  # between two looks at a full board, or at work that must end first
_END_SECONDS: Final = 10.0  # how long the end of a group waits for what it has begun


def bindings() -> Any:
    """Returns NCCL's functions. Raises ``DeviceError`` without nccl4py or the library."""
    try:
        from nccl.bindings import nccl

        nccl.get_version()  # loads the library
    except (ImportError, RuntimeError) as error:
        raise DeviceError(
            f"collectives of GPUs need NCCL: pip install 'oxide-gpu[nccl]' ({error}). On CPU devices they need nothing"
        ) from None
    return nccl


class NcclPlane(Plane):
    """The plane of a process that has one communicator or several, each for one of its ranks. ``library`` is NCCL."""

    def __init__(self, library: Any, communicators: list[Any]) -> None:
        super().__init__()
        self._nccl = library
        self._communicators = communicators
        self._process = _process
        self._graphs: dict[CudaGraphExec, Graphs] = {}  # those with collectives, which hold a communicator
        self.launching: set[_CapturedCall] = set()  # those whose graph is being launched

    def submit(self, contexts: tuple[ExecutionContext, ...], call: Call, report: HostReport) -> None:
        submissions = call.submissions
        if submissions is None:
            submissions = call.submissions = [self._submission(call, number) for number in range(len(contexts))]
        together = len(contexts) > 1
        try:
            if together:
                self._nccl.group_start()
            try:
                for submission, context in zip(submissions, contexts, strict=True):
                    # Not the context's driver: the other ranks wait for this work, so nothing may drop it.
                    context.runtime.driver.call(call.text, submission, context.timeline.handle)
            finally:
                if together:
                    self._nccl.group_end()
        except self._nccl.NCCLError as error:
            raise DeviceError(f"{call.text}: NCCL: {error}") from None

    def record(self, context: ExecutionContext, call: Call) -> None:
        assert context.recording is not None
        captured = partial(self._capture, self._submission(call, 0))
        context.recording.call(call.text, captured, context.timeline.handle)
        context.recording.at_launch[_CapturedCall(self, call)] = None

    def _capture(self, submission: Callable[[int], Ranges], stream: int) -> Ranges:
        """Submits a collective to a stream that is captured."""
        self.require_going()
        return submission(stream)

    def arrive(self, call: Call, context: ExecutionContext) -> None:
        """Tells the other processes, if any, of a captured collective whose graph is about to be launched."""

    def not_submitted(self, call: Call, error: BaseException) -> None:
        """Called if what this rank has told the other processes of was not submitted."""

    def require_going(self) -> None:
        """Raises the error of a group that is broken or closed."""
        if self.failure is not None:
            raise copy(self.failure)
        if self.closed:
            raise DeviceError(CLOSED)

    def add_graph(self, given: GraphHandle, graphs: Graphs) -> None:
        """Notes a graph with collectives. NCCL frees a communicator only when all such graphs are destroyed."""
        graph = cast("CudaGraphExec", given)
        if graph not in self._graphs:
            for other in [each for each in self._graphs if each.handle is None]:
                del self._graphs[other]
            self._graphs[graph] = graphs

    def close(self) -> None:
        """Leaves the group. In a forked child, does nothing: the group is its parent's."""
        if self.is_of_parent():
            return
        self.closed = True
        self._destroy_graphs()
        communicators, self._communicators = self._communicators, []
        for communicator in communicators:
            self._nccl.comm_destroy(communicator)

    def _destroy_graphs(self) -> None:
        """Destroys the graphs with collectives of a closed group, which cannot be launched any more, whether or not the
        program still has them. Waits for the launches that passed ``require_going`` before."""
        until = time.monotonic() + _CALL_SECONDS
        while self.launching and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        while self._graphs:
            graph, graphs = self._graphs.popitem()
            with suppress(DeviceError):  # a device that is lost has no graphs
                graphs.destroy_graph(graph)

    def is_of_parent(self) -> bool:
        """Returns whether this process is a child that was forked after the group was made."""
        return self._process != _process

    def _submission(self, call: Call, number: int) -> Callable[[int], Ranges]:
        """Returns the function that submits one rank's part of a call to a stream."""
        nccl, communicator, form = self._nccl, self._communicators[number], call.form
        given, output = call.inputs[number].ptr, call.outputs[number].ptr
        kind, numbers = _elements(call.dtype, form.reduces)
        count = numbers * call.count
        if not count:
            return lambda stream: ()
        if not form.boxes:
            further = [_REDUCTIONS[call.reduction]] if form.reduces else [call.root] if form.rooted else []
            return partial(getattr(nccl, call.kind), given, output, count, kind, *further, communicator)

        def transfer(stream: int) -> Ranges:
            nccl.group_start()
            try:
                if call.to >= 0:
                    nccl.send(given, count, kind, call.to, communicator, stream)
                if call.source >= 0:
                    nccl.recv(output, count, kind, call.source, communicator, stream)
            finally:
                nccl.group_end()
            return ()

        return transfer


@cache
def _elements(dtype: np.dtype[Any], reduces: bool) -> tuple[int, int]:
    """Returns NCCL's type for boxes of a dtype, and how many numbers of it an element is. Data that only moves is
    bytes."""
    name, numbers = name_of(dtype), 1
    if name in _FLOATS_OF_COMPLEX:
        name, numbers = _FLOATS_OF_COMPLEX[name], 2
    kind = _TYPES.get(name)
    return (_BYTES, dtype.itemsize) if kind is None or not reduces else (kind, numbers)


def one_process(devices: tuple[Device, ...]) -> NcclPlane:
    """Returns the plane of ranks that are all devices of this process. Raises ``DeviceError`` if NCCL refuses them."""
    nccl = bindings()
    try:
        communicators = list(nccl.comm_init_all(len(devices), [device.id for device in devices]))
    except nccl.NCCLError as error:
        raise DeviceError(f"local_group of {len(devices)} devices: NCCL: {error}") from None
    return NcclPlane(nccl, communicators)


def many_processes(peers: Peers, device: Device) -> ManyProcesses:
    """Returns the plane of a process that is one rank of several, once all ranks are connected. Raises
    ``CollectiveError`` if another rank ends meanwhile or is late, and ``DeviceError`` if NCCL is missing or cannot
    connect."""
    nccl = bindings()
    deadline = time.monotonic() + peers.timeout
    identity = bytes(nccl.get_unique_id()) if peers.rank == 0 else b""
    told = peers.tell("join", identity, deadline)
    segments = shared_segments(peers, board_bytes(peers.size), deadline)
    communicator, left = _initialised(nccl, peers, device, told.get(0, identity), deadline)
    return ManyProcesses(nccl, communicator, peers, Boards(peers.rank, segments), left=left)


@final
class ManyProcesses(NcclPlane):
    """The plane of a process that is one rank of several. Every ``look_seconds``, its thread reads what the other ranks
    have written."""

    def __init__(
        self,
        library: Any,
        communicator: Any,
        peers: Peers,
        boards: Boards,
        *,
        look_seconds: float = _LOOK_SECONDS,
        left: Sequence[int] = (),
    ) -> None:
        """``left`` are the ranks that have joined and left already."""
        super().__init__(library, [communicator])
        self._calling = threading.Lock()
        self._in_graphs = False
        self._aborting: list[threading.Thread] = []
        self._watch = _Watch(self, peers, boards, look_seconds, left)
        # A thread that aborts, and NCCL's own, would crash the process if they used CUDA after it has been unloaded.
        atexit.register(self._finish)

    def submit(self, contexts: tuple[ExecutionContext, ...], call: Call, report: HostReport) -> None:
        self._watch.arrive(call, report, contexts[0].runtime.driver, contexts[0].timeline.handle)
        try:
            with self._calling:
                self.require_going()
                super().submit(contexts, call, report)
        except CollectiveError:
            raise
        except DeviceError as error:
            raise self._watch.failed(call, error) from None
        except BaseException as error:  # the others wait for what this rank has told them
            self.not_submitted(call, error)
            raise

    def record(self, context: ExecutionContext, call: Call) -> None:
        self._in_graphs = True
        super().record(context, call)

    def _capture(self, submission: Callable[[int], Ranges], stream: int) -> Ranges:
        with self._calling:
            return super()._capture(submission, stream)

    def arrive(self, call: Call, context: ExecutionContext) -> None:
        report = HostReport()
        context.watch_faults([report])
        self._watch.arrive(call, report, context.runtime.driver, context.timeline.handle)

    def not_submitted(self, call: Call, error: BaseException) -> None:
        rank = self._watch.rank
        reason = f"{call.text}: rank {rank} has not submitted it: {type(error).__name__}"
        self._watch.give_up(CollectiveError(reason, call.text, rank))

    def abort(self) -> None:
        """Ends the kernels that wait for other ranks, and frees the communicator. Waits for this, unless collectives
        were captured: NCCL then waits until their graphs are destroyed."""
        while self._communicators:
            thread = threading.Thread(target=self._abort, args=(self._communicators.pop(),), daemon=True)
            self._aborting.append(thread)
            thread.start()
            if not self._in_graphs:
                thread.join()

    def _abort(self, communicator: Any) -> None:
        """Aborts a communicator, but not in the middle of a call of NCCL's. A call that takes long waits for another
        rank itself: aborting ends it."""
        alone = self._calling.acquire(timeout=_CALL_SECONDS)
        try:
            self._nccl.comm_abort(communicator)
        finally:
            if alone:
                self._calling.release()

    def give_up(self, error: CollectiveError) -> None:
        self._watch.give_up(error)

    def close(self) -> None:
        if self.is_of_parent():
            return
        self._watch.end()
        self.abort()  # ``comm_destroy`` would wait until the other ranks destroy theirs
        self._finish()

    def _finish(self) -> None:
        """Ends this rank's threads, and waits for them. In a forked child, does nothing. Before, waits for collectives
        that the program did not wait for: without the threads, nothing would end those that no other rank joins."""
        if self.is_of_parent():
            return
        while not self.closed and self.failure is None and self._watch.is_busy():
            time.sleep(_POLL_SECONDS)
        self.closed = True
        self._watch.stop()
        self._destroy_graphs()
        for thread in self._aborting:
            thread.join(_END_SECONDS)
        atexit.unregister(self._finish)


@final
class _CapturedCall(LaunchHook):
    """Tells the other ranks of a captured collective at each launch of its graph."""

    def __init__(self, plane: NcclPlane, call: Call) -> None:
        self._plane = plane
        self._call = call
        self._told = False

    def captured(self, graph: GraphHandle, graphs: Graphs) -> None:
        self._plane.add_graph(graph, graphs)

    def __call__(self, context: ExecutionContext) -> None:
        self._plane.launching.add(self)  # before the look at ``closed``: see ``_destroy_graphs``
        self._plane.require_going()
        self._plane.arrive(self._call, context)
        self._told = True

    def launched(self, error: BaseException | None) -> None:
        self._plane.launching.discard(self)
        told, self._told = self._told, False
        if told and error is not None:
            self._plane.not_submitted(self._call, error)


@final
@dataclass(slots=True, eq=False)
class _Arrival:
    """A submission that this rank has told other ranks of. By ``deadline`` they must have told the same; ``missing`` is
    the number of notes of theirs that have not come yet. ``report`` gets the error if the group breaks before."""

    watch: _Watch
    report: HostReport
    deadline: float
    missing: int = 0

    def check(self) -> CollectiveError | None:
        """Returns the failure of the group, None if there is none, once the device is past the submission."""
        if self.missing or self.watch.may_have_failed():
            return self.watch.look()
        return None


@final
class _Watch:
    """Compares what the ranks have submitted: every ``look_seconds`` in a thread, and when a submission has ended.

    A rank writes a note about a collective before it submits the collective. So once the device is past a collective,
    the notes of all its ranks have come, and comparing them shows whether the ranks ran the same one.

    All state is changed under the lock. A failure that is found is the group's from that moment on: no later comparison
    passes. It is told to the other ranks, and NCCL is aborted, after the lock is released.
    """

    def __init__(
        self, plane: ManyProcesses, peers: Peers, boards: Boards, look_seconds: float, left: Sequence[int]
    ) -> None:
        self.rank = peers.rank
        self._plane = plane
        self._peers = peers
        self._boards = boards
        self._look_seconds = look_seconds
        self._lock = new_lock()
        self._mine: dict[int, deque[tuple[str, _Arrival]]] = {rank: deque() for rank in peers.others}
        self._theirs: dict[int, deque[str]] = {rank: deque() for rank in peers.others}
        self._ends: dict[int, bytes] = dict.fromkeys(left, LEFT)  # the last messages of ranks that ended or left
        self._last = "the collectives"  # the text of the last note
        self._suspects = False  # whether the last ``look_around`` found a dead rank and work that is not over
        self._streams: dict[int, tuple[Any, Any]] = {}  # those with collectives, and their driver
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._run, name="oxide-collectives", daemon=True)
        self._watcher.start()

    def arrive(self, call: Call, report: HostReport, driver: Any, stream: Any) -> None:
        """Tells the other ranks of a collective that is about to be submitted to a driver's stream. Waits while this
        rank's board is full. Raises ``CollectiveError`` if the group is broken or breaks meanwhile."""
        arrival = _Arrival(self, report, time.monotonic() + self._peers.timeout)
        report.check = arrival.check
        for rank, text in self._texts(call):
            while not self._noted(rank, text, arrival):
                self._wait_for_room(text, arrival)
        self._streams[id(stream)] = driver, stream

    def may_have_failed(self) -> bool:
        """Returns whether the group is broken, or another rank has left it or has given it up."""
        return self._plane.failure is not None or any(map(self._boards.has_ended, self._mine))

    def _noted(self, to: int, text: str, arrival: _Arrival) -> bool:
        """Writes the arrival on this rank's board for rank ``to``, or for all others, and expects the same text from
        them. Returns False if the board is full because a rank is late in reading it."""
        try:
            with unheld(self._lock):
                self._plane.require_going()
                if not self._boards.has_room(self._ends):
                    return False
                for waiting in self._mine.values() if to == TO_ALL else (self._mine[to],):
                    waiting.append((text, arrival))
                    arrival.missing += 1
                self._boards.write(text, to)
                self._last = text
                return True
        except DeviceError:
            raise
        except BaseException as error:
            self._interrupted(error)
            raise

    def _wait_for_room(self, text: str, arrival: _Arrival) -> None:
        """Waits briefly for ranks that are late in reading. Raises ``CollectiveError`` if the group breaks, or once the
        arrival's deadline has passed."""
        failure = self.look(ends=True)
        if failure is None and arrival.deadline < time.monotonic():
            late = self._boards.latest(self._ends)
            reason = f"rank {late} has not read for {self._peers.timeout:g} s what this rank has told it"
            self.give_up(self._peers.error(text, late, reason))
            failure = self._plane.failure
        if failure is not None:
            raise copy(failure)
        time.sleep(_POLL_SECONDS)

    def _texts(self, call: Call) -> list[tuple[int, str]]:
        """Returns the text to tell all other ranks, or those that take part in a transfer, each with the rank."""
        if not call.form.boxes:
            return [(TO_ALL, fitting(call.text))]
        rank = self.rank
        moved = [(rank, call.to, call.to)] if call.to >= 0 else []
        moved += [(call.source, rank, call.source)] if call.source >= 0 else []
        # Between two ranks, both tell of the transfer from the lower rank first.
        return [(other, fitting(call.transfer_text(source, to))) for source, to, other in sorted(moved)]

    def failed(self, call: Call, error: DeviceError) -> CollectiveError:
        """Returns the error for a collective that NCCL refused. For up to a second looks for the rank that caused it,
        because NCCL may notice the end of a rank first."""
        until = time.monotonic() + 10 * _LOOK_SECONDS
        while self.look() is None and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS / 10)
        if self._plane.failure is None:
            self.give_up(CollectiveError(str(error), call.text))
        assert self._plane.failure is not None
        return copy(self._plane.failure)

    def end(self) -> None:
        """Ends the thread, looks for the last time, and leaves the group. Call it once all collectives have ended."""
        self.stop()
        self.look()
        with unheld(self._lock):
            self._plane.closed = True
        failure = self._plane.failure
        self._boards.end()
        if failure is not None:
            self._peers.give_up(failure)  # again: the first time may have been interrupted
        self._peers.close()

    def stop(self) -> None:
        """Ends the thread, and waits for its end: briefly, as it may be aborting, which may wait for the device."""
        self._over.set()
        self._watcher.join(_END_SECONDS)

    def _run(self) -> None:
        while not self._over.wait(self._look_seconds) and self.look_around() is None:
            pass

    def look_around(self) -> CollectiveError | None:
        """Looks, and finds a rank whose process has ended after it told of a collective: kernels may wait for that rank
        for ever. Gives up if work is not over at two of these looks in turn. Returns the failure of the group."""
        self.look(ends=True)
        dead = next((rank for rank, kind in self._ends.items() if kind == ENDED), -1)
        waits = dead >= 0 and self.is_busy()
        if waits and self._suspects:
            self.give_up(self._peers.error(self._last, dead, f"the process of rank {dead} has ended"))
        self._suspects = waits
        return self._plane.failure

    def is_busy(self) -> bool:
        """Returns whether a stream that has had collectives has not run all of its work."""
        try:
            return not all(driver.query_stream(stream) for driver, stream in list(self._streams.values()))
        except DeviceError:
            return False  # the run itself gets the error

    def look(self, *, ends: bool = False) -> CollectiveError | None:
        """Reads what the other ranks have written, and compares it with what this rank has told them. With ``ends``,
        also reads which ranks have ended, which takes a system call for each. Aborts if the ranks cannot go on
        together. Returns the failure of the group, None if there is none."""
        if self._plane.is_of_parent():
            return None
        found: CollectiveError | None = None
        try:
            with unheld(self._lock):
                if self._plane.failure is None and not self._plane.closed:
                    try:
                        for rank in self._peers.others:
                            self._compare(rank, self._mine[rank], self._theirs[rank], ends)
                    except CollectiveError as error:
                        found = error
                        self._break(error)
        except BaseException as error:
            self._interrupted(error)
            raise
        if found is not None:
            self._announce(found)
        return self._plane.failure

    def _compare(self, rank: int, mine: deque[tuple[str, _Arrival]], theirs: deque[str], ends: bool) -> None:
        """Compares with one rank. Raises ``CollectiveError`` if the ranks disagree, or if ``rank`` is late. If ``rank``
        has ended or left, raises it only if this rank waits for ``rank``. If ``rank`` has given up the group, raises it
        at once, because ``rank`` may have given up in the middle of a collective at which it had arrived."""
        self._match(rank, mine, theirs)
        if not mine and not ends and not self._boards.has_ended(rank):
            return
        peers, what, reason = self._peers, mine[0][0] if mine else "the collectives", None
        while rank not in self._ends and peers.has_message(rank):
            kind, text = peers.take(rank)
            self._ends[rank] = kind
            if kind == FAILED:
                reason = text
        self._match(rank, mine, theirs)  # what the rank wrote before it ended
        if reason is not None:
            peers.require_going(rank, what, FAILED, reason)
        if mine and rank in self._ends:
            peers.require_going(rank, mine[0][0], self._ends[rank], b"")
        if mine and mine[0][1].deadline < time.monotonic():
            raise peers.error(mine[0][0], rank, f"rank {rank} did not arrive within {peers.timeout:g} s")

    def _match(self, rank: int, mine: deque[tuple[str, _Arrival]], theirs: deque[str]) -> None:
        """Reads what another rank has written, and compares it with what this rank has told it. Raises
        ``CollectiveError`` if the two differ."""
        theirs.extend(self._boards.take(rank))
        while mine and theirs:
            (text, arrival), other = mine[0], theirs.popleft()
            if other != text:
                self._peers.require_same(rank, text, ARRIVED, other.encode())
            mine.popleft()
            arrival.missing -= 1

    def give_up(self, error: CollectiveError) -> None:
        """Breaks the group for the reason ``error``: here, and on the other ranks."""
        with unheld(self._lock):
            if self._plane.failure is not None or self._plane.closed:
                return
            self._break(error)
        self._announce(error)

    def _break(self, error: CollectiveError) -> None:
        """Makes ``error`` the failure of the group. Called with the lock held."""
        self._plane.failure = error
        for mine in self._mine.values():
            for _, arrival in mine:
                arrival.report.error = error

    def _announce(self, error: CollectiveError) -> None:
        """Tells the other ranks of the failure, and aborts NCCL."""
        try:
            self._boards.end()  # first: the others then read the message as soon as it comes
            self._peers.give_up(error)
        finally:
            self._plane.abort()

    def _interrupted(self, error: BaseException) -> None:
        """Breaks the group after an interrupt in the middle of telling or comparing, which may have lost a note."""
        reason = f"rank {self.rank} was interrupted: {type(error).__name__}"
        self.give_up(CollectiveError(reason, self._last, self.rank))


_process = 0
"""Changes in a forked child, whose groups are its parent's."""


def _count_process() -> None:
    global _process
    _process += 1


os.register_at_fork(after_in_child=_count_process)


def _initialised(nccl: Any, peers: Peers, device: Device, identity: bytes, deadline: float) -> tuple[Any, list[int]]:
    """Returns NCCL's communicator, and the ranks that have left the group meanwhile. NCCL waits for the other ranks in
    a thread. If a rank ends, or NCCL has not connected by ``deadline``, leaves the thread behind and raises
    ``CollectiveError``. Raises ``DeviceError`` if NCCL fails."""
    made: list[Any] = []
    failed: list[BaseException] = []

    def initialise() -> None:
        from cuda.core import Device as CudaDevice

        try:
            CudaDevice(device.id).set_current()
            made.append(nccl.comm_init_rank_scalable(peers.size, peers.rank, 1, bytearray(identity), 0))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=initialise, name="oxide-nccl-init", daemon=True)
    thread.start()
    left: list[int] = []
    while True:
        thread.join(_LOOK_SECONDS)
        if not thread.is_alive():
            break
        for rank in peers.others:
            if rank not in left and peers.has_message(rank):
                kind, text = peers.take(rank)
                if kind == LEFT:  # it has connected
                    left.append(rank)
                else:
                    peers.require_going(rank, "join", kind, text)
        if time.monotonic() > deadline:
            raise CollectiveError(f"joining as rank {peers.rank} of {peers.size}: NCCL did not connect in time", "join")
    if failed:
        raise DeviceError(f"NCCL could not connect rank {peers.rank} of {peers.size}: {failed[0]}") from failed[0]
    return made[0], left
