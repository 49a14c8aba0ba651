"""Collectives of CPU devices: each process does its part of the work, in stream order, on the CPU device's threads.

If all ranks are devices of one process, it reads and writes their boxes directly. Otherwise each process is one rank
and has a *segment*, a file in shared memory that the other ranks have mapped. The data of a collective passes through
the segments in pieces. Each piece takes two steps, and every rank tells the others when it has done a step:

1. The rank has copied its part of the piece into its segment. The others may now read the segment.
2. The rank has read what it needs from the others' segments, and has put its share of the result into its own. The
   others may now read this share, and may overwrite the parts that they copied into their own segments in step 1.

The first message of a collective describes the collective, so ranks notice if they call different collectives.

Reductions add in the order of the ranks, so every rank computes the same bits. Floats of 8 and 16 bits are added in
float32 and rounded once.
"""

from __future__ import annotations

import ctypes
import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, final

import numpy as np

from oxide.distributed.boards import shared_segments
from oxide.distributed.calls import CLOSED, Plane
from oxide.errors import CollectiveError, DeviceError
from oxide.runtime.devices.fault_records import HostReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from mmap import mmap

    from numpy.typing import NDArray

    from oxide.distributed.calls import Call, Reduction
    from oxide.distributed.peers import Peers
    from oxide.driver.base import Ranges
    from oxide.runtime.memory.memory import DeviceBox
    from oxide.runtime.submission.submission import ExecutionContext

    Array = NDArray[Any]

PIECE_BYTES = 1 << 20
"""The bytes of a piece. Chosen by measuring ``all_reduce`` of 64 MiB by two processes on two cores: see
``benchmarks/collectives.py``."""


class CpuPlane(Plane):
    """The base of the two planes: submits a collective as one task of the first rank's stream."""

    def submit(self, contexts: tuple[ExecutionContext, ...], call: Call, report: HostReport) -> None:
        first = contexts[0]
        # Not the context's driver: the other ranks wait for this work, so it runs even if its result is not awaited.
        first.runtime.driver.call(call.text, self._task(call, report), first.timeline.handle)

    def record(self, context: ExecutionContext, call: Call) -> None:
        assert context.recording is not None
        report = HostReport()
        context.recording.call(call.text, self._task(call, report), context.timeline.handle)
        context.recording.at_launch[lambda now: now.watch_faults([report])] = None

    def _task(self, call: Call, report: HostReport) -> Callable[[int], Ranges]:
        def run(_stream: int) -> Ranges:
            if self.closed or self.failure is not None:
                report.error = self.failure or DeviceError(CLOSED)
                return ()
            try:
                self.run(call)
                return [(box.ptr, box.nbytes) for box in call.outputs]
            except CollectiveError as error:
                report.error = self.failure = error
                self.give_up(error)
            except BaseException as error:
                failure = CollectiveError(f"{call.text}: {type(error).__name__}: {error}", call.text)
                report.error = self.failure = failure
                self.give_up(failure)
            return ()

        return run

    @abstractmethod
    def run(self, call: Call) -> None:
        """Does the work of a collective."""


@final
class OneProcess(CpuPlane):
    """The plane of a group whose every rank is a device of this process."""

    def run(self, call: Call) -> None:
        inputs = [memory(box) for box in call.inputs]
        outputs = [memory(box) for box in call.outputs]
        if call.kind == "all_reduce":
            step = max(1, PIECE_BYTES // call.dtype.itemsize)
            for start in range(0, call.count, step):
                piece = slice(start, start + step)
                result = combined(call.reduction, [each[piece] for each in inputs])
                for output in outputs:
                    output[piece] = result
        elif call.kind == "reduce_scatter":
            for rank, output in enumerate(outputs):
                mine = slice(rank * call.count, (rank + 1) * call.count)
                output[:] = combined(call.reduction, [each[mine] for each in inputs])
        elif call.kind == "all_gather":
            for output in outputs:
                for rank, each in enumerate(inputs):
                    output[rank * call.count : (rank + 1) * call.count] = each
        else:
            for rank, output in enumerate(outputs):
                if rank != call.root:
                    output[:] = inputs[call.root]


@final
class ManyProcesses(CpuPlane):
    """The plane of a process that is one rank of several."""

    def __init__(self, peers: Peers) -> None:
        """Makes this rank's segment, and maps those of the other ranks. Raises ``CollectiveError`` if another rank ends
        meanwhile."""
        super().__init__()
        self._peers = peers
        self._segments = shared_segments(peers, 2 * PIECE_BYTES, time.monotonic() + peers.timeout)

    def give_up(self, error: CollectiveError) -> None:
        self.failure = error
        self._peers.give_up(error)

    def close(self) -> None:
        super().close()
        self._peers.close()

    def run(self, call: Call) -> None:
        if call.form.boxes:
            self._transfer(call)
            return
        peers, dtype = self._peers, call.dtype
        staged = [_part(segment, 0, dtype) for segment in self._segments]
        results = [_part(segment, 1, dtype) for segment in self._segments]
        own, given, output = staged[peers.rank], memory(call.inputs[0]), memory(call.outputs[0])
        ways = peers.size if call.kind == "reduce_scatter" else 1  # a piece has elements of so many parts of the input
        step = max(1, PIECE_BYTES // dtype.itemsize // ways)
        deadline = time.monotonic() + peers.timeout
        for start in range(0, max(call.count, 1), step):
            length = min(step, call.count - start)
            if call.kind != "broadcast" or peers.rank == call.root:
                for way in range(ways):
                    begin = way * call.count + start
                    own[way * length : (way + 1) * length] = given[begin : begin + length]
            if start == 0:
                peers.exchange(call.text, deadline)
            else:
                peers.step(call.text, deadline)
            if call.kind == "all_reduce":
                bounds = [rank * length // peers.size for rank in range(peers.size + 1)]
                begin, end = bounds[peers.rank : peers.rank + 2]
                results[peers.rank][begin:end] = combined(call.reduction, [each[begin:end] for each in staged])
            elif call.kind == "reduce_scatter":
                mine = slice(peers.rank * length, (peers.rank + 1) * length)
                output[start : start + length] = combined(call.reduction, [each[mine] for each in staged])
            elif call.kind == "all_gather":
                for rank, each in enumerate(staged):
                    begin = rank * call.count + start
                    output[begin : begin + length] = each[:length]
            elif peers.rank != call.root:
                output[start : start + length] = staged[call.root][:length]
            deadline = time.monotonic() + peers.timeout
            peers.step(call.text, deadline)
            if call.kind == "all_reduce":
                for begin, end, each in zip(bounds, bounds[1:], results, strict=False):
                    output[start + begin : start + end] = each[begin:end]

    def _transfer(self, call: Call) -> None:
        """Sends a box to one rank, receives one from another, or does both at once."""
        peers, dtype = self._peers, call.dtype
        own = _part(self._segments[peers.rank], 0, dtype)
        step = max(1, PIECE_BYTES // dtype.itemsize)
        deadline = time.monotonic() + peers.timeout
        outgoing = call.transfer_text(peers.rank, call.to).encode()
        incoming = call.transfer_text(call.source, peers.rank)
        for start in range(0, max(call.count, 1), step):
            piece = slice(start, min(start + step, call.count))
            length = piece.stop - piece.start
            if call.to >= 0:
                own[:length] = memory(call.inputs[0])[piece]
                peers.send([call.to], b"C" if start == 0 else b"P", outgoing if start == 0 else b"")
            if call.source >= 0:
                kind, text = peers.receive(call.source, incoming, deadline)
                if start == 0:
                    peers.require_same(call.source, incoming, kind, text)
                memory(call.outputs[0])[piece] = _part(self._segments[call.source], 0, dtype)[:length]
                peers.send([call.source], b"P")
            if call.to >= 0:
                kind, text = peers.receive(call.to, outgoing.decode(), deadline)
                if kind != b"P":
                    peers.require_same(call.to, outgoing.decode(), kind, text)
            deadline = time.monotonic() + peers.timeout


def memory(box: DeviceBox) -> Array:
    """Returns an array on the memory of a contiguous box of a CPU device. The box must live as long as the array is
    used."""
    if not box.nbytes:
        return np.empty(0, box.dtype)
    elements: Array = np.frombuffer(memoryview((ctypes.c_char * box.nbytes).from_address(box.ptr)), box.dtype)
    return elements


def combined(reduction: Reduction, parts: Sequence[Array]) -> Array:
    """Returns the reduction of arrays of one length and dtype, in the order of the arrays."""
    dtype = parts[0].dtype
    small = dtype.kind not in "iuc" and dtype.itemsize <= 2
    result = parts[0].astype(np.float32 if small else dtype)
    function: Any = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(reduction, np.add)
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            function(result, part.astype(np.float32) if small else part, out=result)
        if reduction == "avg":
            result /= len(parts)
        return result.astype(dtype, copy=False)


def _part(segment: mmap, number: int, dtype: np.dtype[Any]) -> Array:
    """Returns one half of a rank's segment as an array: half 0 has the rank's part of the input, half 1 its share of
    the result."""
    return np.frombuffer(segment, dtype, PIECE_BYTES // dtype.itemsize, number * PIECE_BYTES)
