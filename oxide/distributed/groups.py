"""Collectives: operations of several devices together, as in MPI and NCCL.

A ``Group`` is a number of *ranks*, each with a device. There are two forms. In one, a process drives all ranks:
``local_group(devices())``. In the other, each process is one rank: ``join_group(rank, size)``. The same methods make
the operations. They take a box for each rank of the process: ``group.all_reduce(x)``, or ``group.all_reduce(x0, x1)``
in a process of two ranks.

A collective is ordered as every operation is, by the boxes that it reads and writes. It runs on a stream that belongs
to the group. So work that does not use these boxes can run at the same time, even work of the same run. Collectives of
one group run in the order in which they were submitted, which must be the same on all ranks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np

from oxide.distributed.calls import FORMS, REDUCTIONS, Call, Kind, Plane, Reduction, unfit
from oxide.errors import ArgumentError, CollectiveError, DeviceError, GraphError
from oxide.host.core import new_box
from oxide.host.environment import whole_number
from oxide.host.locks import is_interrupt, new_lock, unheld
from oxide.host.messages import written
from oxide.runtime.devices.fault_records import HostReport
from oxide.runtime.devices.runtime import Device, current_runtime
from oxide.runtime.devices.scheduling import find_device
from oxide.runtime.memory.allocation import Allocation
from oxide.runtime.memory.memory import Arc, DeviceBox
from oxide.runtime.operations.new_boxes import describe
from oxide.runtime.operations.operation import Depiction, DeviceOperation, OfArguments, Spec, consume, spec_of
from oxide.runtime.submission.capture import NotRecordable
from oxide.runtime.submission.submission import ExecutionContext

if TYPE_CHECKING:
    from oxide.runtime.devices.runtime import Runtime

    Box = DeviceBox | Arc[DeviceBox] | DeviceOperation[Any]

DEFAULT_TIMEOUT = 60.0


def local_group(devices: Sequence[int | Device] | None = None) -> Group:
    """Returns a group whose ranks are devices of this process: ``devices``, a list of numbers or ``Device``s, by
    default all devices that are set up. The first is rank 0.

    Raises ``DeviceError`` for an empty list, for a device that is not set up or is given twice, and for GPUs if NCCL is
    not installed. Raises ``TypeError`` if ``devices`` is no list.
    """
    runtime = current_runtime()
    if devices is not None and (isinstance(devices, str) or not isinstance(devices, Sequence)):
        raise TypeError(f"local_group takes a list of devices, by number or object, not {written(devices)}")
    given = list(runtime.devices) if devices is None else [find_device(runtime, each) for each in devices]
    if not given:
        raise DeviceError("local_group: no devices were given; give numbers, or devices()")
    if len(set(given)) != len(given):
        raise DeviceError(f"local_group: {written(devices)} has a device twice; each rank is a device of its own")
    plane: Plane
    if given[0].kind == "cpu":
        from oxide.distributed.shared_memory import OneProcess

        plane = OneProcess()
    else:
        from oxide.distributed.nccl import one_process

        plane = one_process(tuple(given))
    return Group(plane, tuple(given), tuple(range(len(given))), len(given))


def join_group(
    rank: int | None = None,
    size: int | None = None,
    *,
    name: str | None = None,
    device: int | Device | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Group:
    """Returns a group of ``size`` processes on this machine, in which this process is rank ``rank``. Blocks until all
    ranks have joined.

    ``rank``, ``size`` and ``name`` default to the environment variables that ``python -m oxide launch`` and torchrun
    set: ``RANK``, ``WORLD_SIZE``, and ``OXIDE_GROUP`` or ``MASTER_PORT``. Processes that give different names join
    different groups. ``device`` is the rank's device, by default the runtime's default device. If the default device is
    the first of several, as under torchrun, the device whose number is ``LOCAL_RANK`` becomes the default device of the
    process. ``timeout`` is the time in seconds that this rank waits for the others: here, and in each collective.

    Raises ``CollectiveError`` if a rank does not join in time. Raises ``DeviceError`` for wrong arguments, for a rank
    that another process has, and for a GPU if NCCL is not installed.
    """
    from oxide.distributed import peers as connections

    rank = _number(rank, "rank", "RANK", 0)
    size = _number(size, "size", "WORLD_SIZE", 1)
    if rank >= size:
        raise DeviceError(f"join_group: rank {rank} of {size}; ranks are numbered from 0 to {size - 1}")
    if name is None:
        name = os.environ.get("OXIDE_GROUP") or os.environ.get("MASTER_PORT")
        if not name:
            raise DeviceError("join_group: give the group's name, one for each run of the program: name='training-7'")
    if not isinstance(name, str) or not name or "/" in name or "\0" in name:
        raise DeviceError(f"join_group: the group's name is {written(name)}; it must be a word without a slash")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < 1e9:
        raise DeviceError(f"join_group: timeout is {written(timeout)}; it must be a positive number of seconds")
    runtime = current_runtime()
    own = _own_device(runtime) if device is None else find_device(runtime, device)
    if own.kind == "cuda":
        from oxide.distributed.nccl import bindings

        bindings()  # before this process waits for the others
    found = connections.join(name, rank, size, timeout)
    plane: Plane
    try:
        if own.kind == "cpu":
            from oxide.distributed.shared_memory import ManyProcesses

            plane = ManyProcesses(found)
        else:
            from oxide.distributed.nccl import many_processes

            plane = many_processes(found, own)
    except CollectiveError as error:
        found.give_up(error)
        found.close()
        raise
    except BaseException:
        found.close()
        raise
    return Group(plane, (own,), (rank,), size)


def _own_device(runtime: Runtime) -> Device:
    """Returns the default device of this process. If the default is the first of several devices, and the launcher has
    set ``LOCAL_RANK`` to the number of a device, makes this device the default."""
    local = whole_number("LOCAL_RANK", least=0)
    if local is not None and runtime.default_device.id == 0 and local < len(runtime.devices):
        runtime.default_device = runtime.devices[local]
    return runtime.default_device


def _number(given: int | None, what: str, variable: str, least: int) -> int:
    number = whole_number(variable, least=least) if given is None else given
    if number is None:
        raise DeviceError(f"join_group: give the {what}, or set {variable}; python -m oxide launch does")
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < least:
        raise DeviceError(f"join_group: the {what} is {written(number)}; it must be an int of {least} or more")
    return int(number)


@final
class Group:
    """Ranks that run collectives together. ``local_group`` and ``join_group`` make one; close it after use, or use it
    in a ``with``.

    Once a collective has failed, the group is broken: the collective and every later one raise ``CollectiveError``.
    """

    def __init__(self, plane: Plane, devices: tuple[Device, ...], ranks: tuple[int, ...], size: int) -> None:
        self._plane = plane
        self._devices = devices
        self._ranks = ranks
        self._size = size
        self._closed = False
        self._lock = new_lock()
        self._streams = [device.new_stream(priority="high") for device in devices]
        # Every collective writes its rank's turn, so collectives of one group never run at the same time, whatever
        # streams they are on: a graph's launches run on other streams.
        self._turns = [Allocation(stream._timeline, 4, (1,), np.dtype(np.int32)) for stream in self._streams]
        for turn in self._turns:
            turn.obtain()
        for stream in self._streams[1:]:
            self._streams[0].join(stream)  # which does the work of all ranks on CPU devices

    @property
    def size(self) -> int:
        """Returns the number of ranks."""
        return self._size

    @property
    def ranks(self) -> tuple[int, ...]:
        """Returns the ranks of this process."""
        return self._ranks

    @property
    def rank(self) -> int:
        """Returns the rank of this process. Raises ``DeviceError`` if it has several."""
        if len(self._ranks) > 1:
            raise DeviceError(f"this process has ranks {self._ranks[0]} to {self._ranks[-1]} of the group; see ranks")
        return self._ranks[0]

    @property
    def devices(self) -> tuple[Device, ...]:
        """Returns the devices of this process's ranks."""
        return self._devices

    @property
    def closed(self) -> bool:
        """Returns whether the group was closed."""
        return self._closed

    def all_reduce(self, *boxes: Box, op: Reduction = "sum") -> DeviceOperation[Any]:
        """Writes into each rank's box the reduction of all ranks' boxes, element by element.

        ``op`` is ``"sum"``, ``"prod"``, ``"min"``, ``"max"`` or ``"avg"``. Boxes have one shape and dtype on all ranks.
        The dtype is int8, uint8, int32, uint32, int64, uint64, float16, bfloat16, float8_e4m3fn, float8_e5m2, float32,
        float64, complex64 or complex128. Yields the box; with several ranks in this process, the tuple of their boxes.

        All methods that make a collective raise ``TypeError`` for arguments that are no boxes, and ``DeviceError`` for
        a closed group. Running the collective raises ``ArgumentError`` for boxes that do not fit, and
        ``CollectiveError`` if the ranks do not complete it together.
        """
        return Collective(self, "all_reduce", boxes, reduction=op)

    def all_gather(self, *boxes: Box) -> DeviceOperation[Any]:
        """Yields, on each rank, a new box with the elements of all ranks' boxes, one box after another: n boxes of
        shape ``(m, …)`` become one box of shape ``(n * m, …)``. Boxes have one shape and dtype on all ranks; a scalar
        counts as a box of shape ``(1,)``."""
        return Collective(self, "all_gather", boxes)

    def reduce_scatter(self, *boxes: Box, op: Reduction = "sum") -> DeviceOperation[Any]:
        """Reduces all ranks' boxes, and divides the result into as many equal parts as there are ranks, along the first
        axis. Yields, on each rank r, a new box with part r: on n ranks, boxes of shape ``(n * m, …)`` give boxes of
        shape ``(m, …)``. ``op`` and dtypes are as for ``all_reduce``."""
        return Collective(self, "reduce_scatter", boxes, reduction=op)

    def broadcast(self, *boxes: Box, root: int = 0) -> DeviceOperation[Any]:
        """Copies the elements of the box of rank ``root`` into the boxes of all other ranks. Yields the box."""
        return Collective(self, "broadcast", boxes, root=self._other(root, "broadcast", "root", own=True))

    def send(self, box: Box, to: int) -> DeviceOperation[DeviceBox]:
        """Sends a box to rank ``to``, which receives it with ``recv``. Yields the box.

        ``send`` and ``recv`` are for groups of several processes; within one process, ``to_device`` copies a box to
        another device. A send may wait for its ``recv``, so two ranks must not both send to each other first: use
        ``send_recv`` for such an exchange.
        """
        self._require_processes("send")
        return Collective(self, "send", (box,), to=self._other(to, "send", "to"))

    def recv(self, box: Box, source: int) -> DeviceOperation[DeviceBox]:
        """Receives into ``box`` the elements that rank ``source`` sends, from a box of the same number of elements and
        dtype. Yields ``box``."""
        self._require_processes("recv")
        return Collective(self, "recv", (box,), source=self._other(source, "recv", "source"))

    def send_recv(self, box: Box, to: int, into: Box, source: int) -> DeviceOperation[DeviceBox]:
        """Sends the elements of ``box`` to rank ``to``. At the same time receives into ``into`` the elements that rank
        ``source`` sends, as in a ring. The two boxes have the same number of elements and dtype, and share no memory.
        Yields ``into``."""
        self._require_processes("send_recv")
        to, source = self._other(to, "send_recv", "to"), self._other(source, "send_recv", "source")
        return Collective(self, "send_recv", (box, into), to=to, source=source)

    def close(self) -> None:
        """Waits for this process's collectives, and leaves the group. May be called again.

        Other ranks that still wait for this rank get a ``CollectiveError``. If a ``with`` block of the group is left by
        an exception, this process waits for nothing, and the group is broken for all ranks.
        """
        self._leave(None)

    def _leave(self, error: BaseException | None) -> None:
        with unheld(self._lock):
            if self._closed:
                return
            self._closed = True
        turns, self._turns = self._turns, []
        try:
            if error is not None:
                self._plane.give_up(CollectiveError(f"rank {self._ranks[0]} left its block by {type(error).__name__}"))
                return
            for stream in self._streams:
                stream.synchronize()
            for turn in turns:
                for timeline, position in turn.uses():
                    if not timeline.passed(position):
                        timeline.synchronize()
        finally:
            self._plane.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(error)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Group cannot be pickled or copied: each process joins it with join_group()")

    def __repr__(self) -> str:
        which = f"rank {self._ranks[0]}" if len(self._ranks) == 1 else f"ranks {self._ranks[0]} to {self._ranks[-1]}"
        return f"<oxide.collectives.Group of {self._size}, {which} on {', '.join([d.label for d in self._devices])}>"

    # Used by the operations

    def require_open(self, call: str) -> None:
        """Raises ``DeviceError`` if the group was closed, and ``CollectiveError`` if it is broken. The messages name
        ``call``."""
        if self._closed:
            raise DeviceError(f"{call}: the group was closed")
        failure = self._plane.failure
        if failure is not None:
            raise CollectiveError(f"{call}: the group is broken: {failure}", failure.collective, failure.rank)

    def submit(self, context: ExecutionContext, contexts: tuple[ExecutionContext, ...], call: Call) -> None:
        """Submits a collective to the streams of ``contexts``, the group's streams. If ``context`` is of a capture,
        records the collective in it instead."""
        if context.recording is not None:
            reads, writes = _uses(call, call.inputs, call.outputs, self._turns)
            with context.submission_lock, context.ordered(reads, writes):
                self._plane.record(context, call)
            return
        report = HostReport()
        context.watch_faults([report])
        if context.visible is not None:
            context.visible.run.used_by_others = True  # other ranks wait for it, so it is never dropped
        uses = call.uses
        if uses is None:
            uses = call.uses = self._uses(call)
        with context.submission_lock:
            submitted = False
            for each, (reads, writes) in zip(contexts, uses, strict=False):  # the lead's alone on CPU devices
                each.begin(reads, writes)
            try:
                self._plane.submit(contexts, call, report)
                submitted = True
            finally:
                for each, (reads, writes) in zip(contexts, uses, strict=False):
                    each.end(reads, writes, submitted=submitted)

    def _uses(self, call: Call) -> list[tuple[list[Allocation], list[Allocation]]]:
        """Returns the memory that a call reads and writes, for each stream that does its work. On CPU devices the
        stream of the first rank does the work of all ranks."""
        if self._devices[0].kind == "cpu":
            return [_uses(call, call.inputs, call.outputs, self._turns)]
        parts = zip(call.inputs, call.outputs, self._turns, strict=True)
        return [_uses(call, (given,), (output,), (turn,)) for given, output, turn in parts]

    def _require_processes(self, call: str) -> None:
        if len(self._ranks) > 1:
            raise DeviceError(
                f"{call}: this process has all ranks of the group; oxide.to_device(box, device) copies a box to "
                f"another device"
            )

    def _other(self, rank: int, call: str, what: str, *, own: bool = False) -> int:
        if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or not 0 <= rank < self._size:
            raise ArgumentError(f"{call}, {what}: {written(rank)} is no rank; ranks are 0 to {self._size - 1}")
        if not own and rank == self._ranks[0]:
            raise ArgumentError(f"{call}, {what}: rank {rank} is this process itself")
        return int(rank)


@final
class Collective(OfArguments[Any]):
    """The operation that the methods of ``Group`` return."""

    def __init__(self, group: Group, kind: Kind, boxes: tuple[Any, ...], **how: Any) -> None:
        """``how`` has further fields of the ``Call``."""
        consume(boxes)
        self._group = group
        self._kind: Kind = kind
        self._called = kind
        self._form = FORMS[kind]
        self._how = how
        self._call_of_boxes: Call | None = None  # made once, where neither boxes nor results are those of a run
        group.require_open(kind)
        reduction = how.get("reduction", "sum")
        if not isinstance(reduction, str) or reduction not in REDUCTIONS:
            raise ArgumentError(f"{kind}, op: {written(reduction)}; it must be one of {', '.join(REDUCTIONS)}")
        for box in boxes:
            if not isinstance(box, (DeviceBox, Arc, DeviceOperation)):
                hint = "; h2d(array) copies it to the device" if isinstance(box, np.ndarray) else ""
                hint = "; pass one box for each rank: all_reduce(*boxes)" if isinstance(box, (tuple, list)) else hint
                raise TypeError(f"{kind} takes DeviceBoxes and operations that yield them, not {written(box)}{hint}")
        needed = len(self._form.boxes) or len(group.ranks)
        if len(boxes) != needed:
            raise ArgumentError(
                f"{kind} takes {needed} box{'es' * (needed > 1)}, one for each rank of this process; got {len(boxes)}"
            )
        super().__init__(*boxes)

    def submit(self, context: ExecutionContext, *arguments: Any) -> Any:
        group, kind, call = self._group, self._kind, self._call_of_boxes
        if call is None:
            boxes = [self._box(box, number) for number, box in enumerate(arguments)]
        group.require_open(kind)
        if context.recording is not None:
            if context.recording.outer is not None:  # the recording is of a run
                raise NotRecordable
            if len(group.devices) > 1:
                raise GraphError(
                    f"{kind} of several devices cannot be captured: a graph runs on one device. Start a process for "
                    f"each rank (join_group), and capture a graph in each"
                )
            if context.recording.bodies:
                raise GraphError(f"{kind} cannot be part of {context.recording.bodies[-1]}: ranks may disagree on it")
            if context.device is not group.devices[0]:
                raise GraphError(f"{kind} runs on {group.devices[0].label}, and the graph is of {context.device.label}")
            if call is None:
                call = self._call((context,), boxes)
            group.submit(context, (context,), call)
            return self._result(call)
        contexts = tuple([context.part(None, stream, context.visible) for stream in group._streams])
        try:
            if call is None:
                call = self._call(contexts, boxes)
            group.submit(context, contexts, call)
        except BaseException as error:
            if is_interrupt(error):
                for each in contexts:
                    each.interrupted()
            raise
        finally:
            for each in contexts:
                context.join(each)
        return self._result(call)

    def spec(self) -> Spec:
        if self._form.result is not None:
            return None
        specs = [spec_of(box) for box in self._arguments]
        return specs[-1] if len(self._group.ranks) == 1 else tuple(specs)

    def depict(self) -> Depiction:
        lines = (f"{self._group.size} ranks",)
        return "copy", self._kind, lines, tuple([("", box) for box in self._arguments])

    def _box(self, given: object, number: int) -> DeviceBox:
        """Returns a box that fits its rank."""
        box = given.value if isinstance(given, Arc) else given
        device = self._group.devices[0 if self._form.boxes else number]
        if not isinstance(box, DeviceBox) or box.device is not device or not box.is_contiguous:
            raise self._misfit(box, number, device)
        return box

    def _misfit(self, box: object, number: int, device: Device) -> ArgumentError:
        """Returns the error for a value that is no box, or for a box that is not on its rank's device or not
        contiguous."""
        what = f"{self._kind}, {self._name(number)}"
        if not isinstance(box, DeviceBox):
            return ArgumentError(f"{what}: expected a DeviceBox, got {type(box).__name__}")
        if box.device is not device:
            return ArgumentError(f"{what}: the rank's device is {device.label}, and the box is on {box.device.label}")
        return ArgumentError(f"{what}: a strided view of shape {box.shape}; dup(view) makes a contiguous copy")

    def _name(self, number: int) -> str:
        if len(self._form.boxes) > 1:
            return self._form.boxes[number]
        return f"box of rank {self._group.ranks[number]}"

    def _call(self, contexts: tuple[ExecutionContext, ...], boxes: list[DeviceBox]) -> Call:
        """Checks the boxes, makes new boxes for the result if it needs them, and returns the call. Raises
        ``ArgumentError`` for boxes that do not fit."""
        group, kind, form, first = self._group, self._kind, self._form, boxes[0]
        for number, box in enumerate(boxes[1:], 1):
            alike = box.size == first.size if form.boxes else box.shape == first.shape
            if not alike or box.dtype != first.dtype:
                raise ArgumentError(
                    f"{kind}, {self._name(number)}: {describe(box.shape, box.dtype)}, where {self._name(0)} is "
                    f"{describe(first.shape, first.dtype)}; they must be alike"
                )
        reason = unfit(first.dtype, self._how["reduction"]) if form.reduces else ""
        if reason:
            raise ArgumentError(f"{kind}, {reason}")
        inputs = outputs = tuple(boxes)
        count = first.size
        if kind == "reduce_scatter":
            if not first.shape or first.shape[0] % group.size:
                raise ArgumentError(
                    f"{kind}, {self._name(0)}: its shape {first.shape} cannot be divided into {group.size} equal parts "
                    f"along the first axis"
                )
            count = first.size // group.size
        elif kind == "send_recv":
            if first.ptr < boxes[1].ptr + boxes[1].nbytes and boxes[1].ptr < first.ptr + first.nbytes:
                raise ArgumentError("send_recv, into: it shares memory with box")
            inputs, outputs = (first,), (boxes[1],)
        if form.result is not None:
            shape = form.result(first.shape, group.size)
            outputs = tuple([new_box(context, shape, first.dtype) for context in contexts])
        call = Call(kind, inputs, outputs, count, **self._how)
        if inputs is outputs and all(isinstance(box, DeviceBox) for box in self._arguments):
            self._call_of_boxes = call
        return call

    @staticmethod
    def _result(call: Call) -> Any:
        return call.outputs[0] if len(call.outputs) == 1 else call.outputs

    def __repr__(self) -> str:
        return f"<oxide operation {self._kind} of {self._group!r}>"


def _uses(
    call: Call, inputs: tuple[DeviceBox, ...], outputs: tuple[DeviceBox, ...], turns: Sequence[Allocation]
) -> tuple[list[Allocation], list[Allocation]]:
    """Returns the memory that a collective only reads, and the memory that it writes. With the boxes and the turn of
    one rank, returns the memory of this rank's part."""
    reads = [] if call.kind == "recv" else [box._allocation for box in inputs]
    # The turns first: where two edges of a picture are one, it shows the last.
    writes = [*turns] if call.kind == "send" else [*turns, *[box._allocation for box in outputs]]
    return [each for each in reads if each not in writes], writes
