"""Collectives of GPUs: NCCL does the work, reached through nccl4py (``pip install 'oxide-gpu[nccl]'``).

NCCL cannot tell that a rank is missing, has ended or asks for something else: its kernels then wait forever. So each
process tells the others which collectives it submits, and a thread compares (``_Watch``). It looks ten times a second;
a submission does not wait for it. If ranks disagree or one is missing, it aborts NCCL's communicator. The kernels that
wait then end, and the runs that they belong to raise the error.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, final

from oxide.distributed.calls import name_of
from oxide.errors import CollectiveError, DeviceError
from oxide.runtime.device.fault_records import HostReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from oxide.distributed.calls import Call
    from oxide.distributed.peers import Peers
    from oxide.runtime.device.runtime import Device
    from oxide.runtime.submission.submission import ExecutionContext

# ncclDataType_t and ncclRedOp_t, which never change.
_TYPES: Final = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7, "float64": 8,
    "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11,
}  # fmt: skip
_REDUCTIONS: Final = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_BYTES: Final = _TYPES["uint8"]
_FLOATS_OF_COMPLEX: Final = {"complex64": "float32", "complex128": "float64"}
_LOOK_SECONDS: Final = 0.1


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


class NcclPlane:
    """The base of the two planes: one communicator for each rank of this process."""

    def __init__(self, communicators: list[Any]) -> None:
        self.failure: CollectiveError | None = None
        self._nccl = bindings()
        self._communicators = communicators

    def submit(self, contexts: tuple[ExecutionContext, ...], call: Call, report: HostReport) -> None:
        if len(contexts) > 1:
            self._nccl.group_start()
        try:
            for number, context in enumerate(contexts):
                driver = context.runtime.driver  # not the context's, as the other ranks wait for this work
                driver.call(call.text, self._submission(call, number), context.timeline.handle)
        except self._nccl.NCCLError as error:
            raise DeviceError(f"{call.text}: {error}") from None
        finally:
            if len(contexts) > 1:
                self._nccl.group_end()

    def record(self, context: ExecutionContext, call: Call) -> None:
        assert context.recording is not None
        context.recording.call(call.text, self._submission(call, 0), context.timeline.handle)

    def close(self) -> None:
        communicators, self._communicators = self._communicators, []
        for communicator in communicators:
            self._nccl.comm_destroy(communicator)

    def _submission(self, call: Call, number: int) -> Callable[[int], None]:
        """Returns the function that submits one rank's part of a call to a stream."""
        nccl, communicator = self._nccl, self._communicators[number]
        given, output = call.inputs[number].ptr, call.outputs[number].ptr
        reduction, count = _REDUCTIONS[call.reduction], call.count
        name = name_of(call.dtype)
        if name in _FLOATS_OF_COMPLEX:
            name, count = _FLOATS_OF_COMPLEX[name], 2 * count
        kind = _TYPES.get(name)
        if kind is None or not call.kind.endswith(("reduce", "scatter")):  # data that only moves is bytes
            kind, count = _BYTES, call.count * call.dtype.itemsize

        def submit(stream: int) -> None:
            if not count:
                return
            if call.kind == "all_reduce":
                nccl.all_reduce(given, output, count, kind, reduction, communicator, stream)
            elif call.kind == "reduce_scatter":
                nccl.reduce_scatter(given, output, count, kind, reduction, communicator, stream)
            elif call.kind == "all_gather":
                nccl.all_gather(given, output, count, kind, communicator, stream)
            elif call.kind == "broadcast":
                nccl.broadcast(given, output, count, kind, call.root, communicator, stream)
            else:
                nccl.group_start()
                try:
                    if call.to >= 0:
                        nccl.send(given, count, kind, call.to, communicator, stream)
                    if call.source >= 0:
                        nccl.recv(output, count, kind, call.source, communicator, stream)
                finally:
                    nccl.group_end()

        return submit


@final
class OneProcess(NcclPlane):
    """The plane of ranks that are all devices of this process."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        super().__init__(list(bindings().comm_init_all(len(devices), [device.id for device in devices])))


@final
class ManyProcesses(NcclPlane):
    """The plane of a process that is one rank of several."""

    def __init__(self, peers: Peers, device: Device) -> None:
        """Makes the communicator. Raises ``CollectiveError`` if another rank ends meanwhile."""
        nccl = bindings()
        deadline = time.monotonic() + peers.timeout
        identity = bytes(nccl.get_unique_id()) if peers.rank == 0 else b""
        told = peers.tell("join", identity, deadline)
        communicator = _initialised(nccl, peers, device, told.get(0, identity), deadline)
        super().__init__([communicator])
        self._watch = _Watch(self, peers)

    def submit(self, contexts: tuple[ExecutionContext, ...], call: Call, report: HostReport) -> None:
        self._watch.arrive(call, report)
        super().submit(contexts, call, report)
        self._watch.submitted(report, contexts[0])

    def record(self, context: ExecutionContext, call: Call) -> None:
        super().record(context, call)
        assert context.recording is not None

        def at_launch(now: ExecutionContext) -> None:
            if self.failure is not None:
                raise self.failure
            report = HostReport()
            now.watch_faults([report])
            self._watch.arrive(call, report)
            self._watch.submitted(report, now)

        context.recording.at_launch.append(at_launch)
        context.recording.uploads.append(None)

    def abort(self) -> None:
        """Ends the kernels that wait for other ranks."""
        communicators, self._communicators = self._communicators, []
        for communicator in communicators:
            self._nccl.comm_abort(communicator)

    def close(self) -> None:
        self._watch.end()
        self.abort()  # ``comm_destroy`` would wait until the other ranks destroy theirs


@final
class _Watch:
    """A thread that finds out that ranks disagree, or that one is missing."""

    def __init__(self, plane: ManyProcesses, peers: Peers) -> None:
        self._plane = plane
        self._peers = peers
        self._lock = threading.Lock()
        self._mine: dict[int, deque[tuple[str, float]]] = {rank: deque() for rank in peers.others}
        self._theirs: dict[int, deque[bytes]] = {rank: deque() for rank in peers.others}
        self._in_flight: deque[tuple[HostReport, ExecutionContext | None, int]] = deque()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oxide-collectives", daemon=True)
        self._thread.start()

    def arrive(self, call: Call, report: HostReport) -> None:
        """Tells the other ranks of a collective what is about to be submitted."""
        deadline = time.monotonic() + self._peers.timeout
        rank = self._peers.rank
        if call.kind in ("send", "recv", "send_recv"):
            texts = {call.to: [call.transfer_text(rank, call.to)]} if call.to >= 0 else {}
            if call.source >= 0:
                texts.setdefault(call.source, []).append(call.transfer_text(call.source, rank))
            texts = {other: sorted(found) for other, found in texts.items()}
        else:
            texts = {other: [call.text] for other in self._peers.others}
        with self._lock:
            self._in_flight.append((report, None, 0))
            for other, found in texts.items():
                for text in found:
                    self._mine[other].append((text, deadline))
        for other, found in texts.items():
            for text in found:
                self._peers.send([other], b"C", text.encode())

    def submitted(self, report: HostReport, context: ExecutionContext) -> None:
        """Notes where the collective is in its stream."""
        position = context.timeline.advance()
        with self._lock:
            while self._in_flight and self._is_over(*self._in_flight[0]):
                self._in_flight.popleft()
            for number, (each, _, _) in enumerate(self._in_flight):
                if each is report:
                    self._in_flight[number] = (report, context, position)

    @staticmethod
    def _is_over(report: HostReport, context: ExecutionContext | None, position: int) -> bool:
        return context is not None and position <= context.timeline.seen

    def end(self) -> None:
        """Ends the thread and leaves the group."""
        self._over.set()
        self._thread.join()
        self._peers.close()

    def _run(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            try:
                self._look()
            except CollectiveError as error:
                self._fail(error)
                return

    def _look(self) -> None:
        """Takes in what the others say, and compares. Raises ``CollectiveError`` if the group is broken."""
        peers = self._peers
        for rank in peers.others:
            with self._lock:
                waiting = bool(self._mine[rank])
                what = self._mine[rank][0][0] if waiting else "a collective"
            while peers.has_message(rank):
                if not waiting:  # whatever is wrong with the rank matters once this one waits for it
                    break
                _, text = peers.receive(rank, what, time.monotonic())
                self._theirs[rank].append(text)
            with self._lock:
                mine, theirs = self._mine[rank], self._theirs[rank]
                while mine and theirs:
                    peers.require_same(rank, mine.popleft()[0], b"C", theirs.popleft())
                late = bool(mine) and mine[0][1] < time.monotonic()
                what = mine[0][0] if mine else ""
            if late:
                raise peers.error(what, rank, f"rank {rank} did not arrive within {peers.timeout:g} s")

    def _fail(self, error: CollectiveError) -> None:
        with self._lock:
            self._plane.failure = error
            for report, context, position in self._in_flight:
                if not self._is_over(report, context, position):
                    report.error = error
        self._peers.give_up(error)
        self._plane.abort()


def _initialised(nccl: Any, peers: Peers, device: Device, identity: bytes, deadline: float) -> Any:
    """Returns NCCL's communicator. NCCL waits for the other ranks in a thread, which is left behind if one of them
    ends."""
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
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        for rank in peers.others:
            if peers.has_message(rank):
                peers.receive(rank, "join", deadline)
        if time.monotonic() > deadline:
            raise CollectiveError(f"joining as rank {peers.rank} of {peers.size}: NCCL did not connect in time", "join")
    if failed:
        raise DeviceError(f"NCCL could not connect rank {peers.rank} of {peers.size}: {failed[0]}") from failed[0]
    return made[0]
