"""What a graph has captured, the inputs that each launch fills, and the recordings that graphs are made of."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, final

import numpy as np

from oxide.driver.base import GraphHandle, provided
from oxide.errors import DeviceError, GraphError
from oxide.host import core
from oxide.host.core import PAGE_RECORDS, new_box
from oxide.host.host_arrays import host_array
from oxide.host.locks import unheld
from oxide.host.messages import dtype_name, written
from oxide.language.types import f32
from oxide.runtime.devices.fault_records import CURSOR_BYTES, RECORD_BYTES, FaultPage, GraphFaultReport
from oxide.runtime.devices.runtime import Device
from oxide.runtime.memory.memory import Arc, DeviceBox, parse_shape, require_runtime
from oxide.runtime.operations.depicting import RecordedWork
from oxide.runtime.operations.new_boxes import NewBox, data_dtype, describe
from oxide.runtime.operations.operation import BoxSpec, Depiction, DeviceOperation, consume
from oxide.runtime.operations.transfers import contiguous, copy_box
from oxide.runtime.plan.reuse import GraphMemory, share_memory
from oxide.runtime.submission.capture import LaunchHook, Recording
from oxide.runtime.submission.staging import ReadingAtSubmission, upload
from oxide.runtime.submission.stops import Dropped
from oxide.runtime.submission.submission import ExecutionContext
from oxide.runtime.submission.walk import Frame, raise_if_nested

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxide.runtime.operations.new_boxes import DType, Shape

T = TypeVar("T")

Source: TypeAlias = "DeviceBox | NDArray[Any] | DeviceOperation[Any]"
"""The source that a launch fills an input from. If it is an operation, this yields a box or an ``Arc`` of a box."""

_numbers: Final = count(1)


@final
class Input(NewBox):
    """The operation that ``input`` returns. ``number`` tells the order of declaration."""

    _called = "input"

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.number = next(_numbers)
        super().__init__(shape, dtype)

    def execute(self, context: ExecutionContext) -> DeviceBox:
        recording = context.recording
        if recording is None or recording.of_run or recording.outer is not None:
            raise GraphError(
                f"{self!r} has no value outside a graph: capture the operation with op.graph(), and give the graph's "
                f"launch(…) an array or a box for it; h2d(array) is an operation that runs by itself"
            )
        box: DeviceBox | None = recording.inputs.get(self.number)
        if box is None:
            box = recording.inputs[self.number] = new_box(context, self._shape, self._dtype)
        return box

    def depict(self) -> Depiction:
        kind, title, lines, inputs = super().depict()
        return kind, title, (describe(self._shape, self._dtype), *lines), inputs

    def __repr__(self) -> str:
        return f"<oxide input {describe(self._shape, self._dtype)}>"


def input(shape: Shape, dtype: DType = f32) -> DeviceOperation[DeviceBox]:
    """Declares an input of a graph: an operation that yields a box of this shape and dtype, which each launch of the
    graph fills.

    ``graph.launch(x, y)`` takes an array or a box for each input that the captured operation uses, in the order in
    which the inputs were declared. Running the operation outside a graph raises ``GraphError``. Raises ``TypeError`` or
    ``ValueError`` for a shape or dtype that a box cannot have.
    """
    return Input(parse_shape(shape, "input"), data_dtype(dtype, "input"))


def accepted(inputs: Sequence[DeviceBox], arguments: tuple[object, ...], device: Device) -> tuple[Source, ...]:
    """Checks the arguments of a launch, and returns the box, array or operation that fills each input. Raises
    ``TypeError`` for a wrong number of arguments and for an argument of a wrong type or dtype, ``ValueError`` for a
    wrong shape, and ``DeviceError`` for a box of another device."""
    consume(arguments)
    if len(arguments) != len(inputs):
        declared = ", ".join([describe(box.shape, box.dtype) for box in inputs])
        raise TypeError(
            f"graph.launch takes {len(inputs)} argument{'s' * (len(inputs) != 1)}, one for each of its inputs"
            f"{f' ({declared})' if inputs else ''}, got {len(arguments)}"
        )
    return tuple([_source(number, box, arguments[number], device) for number, box in enumerate(inputs)])


def fill_inputs(context: ExecutionContext, inputs: Sequence[DeviceBox], sources: Sequence[Source]) -> None:
    """Submits the copies that fill the inputs from arrays and boxes. Arrays are read until the run has completed, as
    ``h2d`` reads them. A box that lies in an input that is filled before it is copied first."""
    sources = list(sources)
    for number, source in enumerate(sources):
        if isinstance(source, DeviceBox) and any(source._allocation is each._allocation for each in inputs[:number]):
            sources[number] = contiguous(context, source, copied=True)
    for box, source in zip(inputs, sources, strict=True):
        if isinstance(source, DeviceBox):
            copy_box(context, box, source)
        elif box.nbytes:
            assert isinstance(source, np.ndarray)
            upload(context, box, source)


def arrived(number: int, box: DeviceBox, given: object, device: Device) -> DeviceBox:
    """Checks ``given``, which an operation yielded for the input ``box``, and returns it as a box. Raises the errors
    that ``accepted`` raises for a wrong argument."""
    found = _source(number, box, given, device)
    if isinstance(found, DeviceBox):
        return found
    raise TypeError(f"{_named(number, box)}, takes an operation that yields a box, not {type(given).__name__}")


def _source(number: int, box: DeviceBox, given: object, device: Device) -> Source:
    if isinstance(given, DeviceOperation):
        spec = given.spec()
        if isinstance(spec, BoxSpec):
            _check(number, box, spec.shape, spec.dtype)
        return given
    plain = given.value if isinstance(given, Arc) else given
    if isinstance(plain, DeviceBox):
        name = _named(number, box)
        if plain.device is not device:
            require_runtime(plain, device, name)
            raise DeviceError(
                f"{name}: the box is on {plain.device.label}, and the graph runs on "
                f"{device.label}: give a box of that device, or an array"
            )
        _check(number, box, plain.shape, plain.dtype)
        return plain
    if not isinstance(plain, np.ndarray):
        raise TypeError(f"{_named(number, box)}, takes an array or a box, not {type(given).__name__} {written(given)}")
    array: NDArray[Any] = plain if type(plain) is np.ndarray else host_array(plain, "graph.launch")
    _check(number, box, array.shape, array.dtype)
    return array


def _check(number: int, box: DeviceBox, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if dtype != box.dtype:
        raise TypeError(
            f"{_named(number, box)}, takes {dtype_name(box.dtype)}, not {dtype_name(dtype)}: convert the data before, "
            f"with array.astype(…)"
        )
    if shape != box.shape:
        raise ValueError(f"{_named(number, box)}, has shape {box.shape}, and was given one of {shape}")


def _named(number: int, box: DeviceBox) -> str:
    return f"graph.launch: input {number}, {describe(box.shape, box.dtype)}"


# Launches


@final
class Captured(core.Captured):
    """A graph's handle, and everything that the device needs while the graph runs. ``_last`` is the previous launch,
    only under strict ordering. ``first`` is the first launch, if launches fill host arrays. ``_used`` is the number of
    records of ``_page`` in use. The ``CudaGraph`` and every launch in flight hold this object. When the last of these
    drops it, first the handle is released and then the buffers."""

    def __init__(
        self, device: Device, handle: GraphHandle, recording: Recording, kept: list[Any], memory: GraphMemory
    ) -> None:
        self._drop = partial(device.runtime.reclaimer.retire_graph, handle)
        self._handle = handle
        self._kept = kept
        writes = {allocation: None for node in recording.nodes for allocation in node.writes}
        if recording.fault_record is not None:
            writes[recording.fault_record] = None
        reads = {allocation: None for node in recording.nodes for allocation in node.reads if allocation not in writes}
        self._known = recording.known  # kept alive
        self.inputs = tuple([recording.inputs[number] for number in sorted(recording.inputs)])
        self.memory = memory
        self.work = RecordedWork(recording)
        self._at_launch = list(recording.at_launch)
        self._hooks = [function for function in recording.at_launch if isinstance(function, LaunchHook)]
        for hook in self._hooks:
            hook.captured(handle, provided(device.driver.graphs, "graphs"))
        self._kernels = {
            number: (special, tuple(places.values())) for number, (special, places) in recording.kernels.items()
        }
        self._record = 0 if recording.fault_record is None else recording.fault_record.address  # 0: no kernels
        self._strict = device.runtime.ordering == "strict"
        self.fills_host = bool(recording.downloads)
        self._set_uses(list(reads), list(writes), not self._at_launch and not self._strict)

    def _launch_slowly(self, context: ExecutionContext, sources: Sequence[Source]) -> None:
        """Does what ``launch`` does, for every graph.

        A fault in a launch is copied from the graph's fault record to a record of ``_page`` that belongs to this launch
        (``fault_records.py``). Invariant, under the lock: while ``_page`` is set, once the device is past all submitted
        work, the graph's fault record is zero and its cursor points to the page's record number ``_used``. ``_page`` is
        None before the first launch, after a launch whose submission failed, and if the page has no record left. In
        these cases the launch begins a new page: it sets the fault record and the cursor, in stream order before the
        graph.
        """
        with unheld(self._lock):  # no launch by another thread may come between the uploads and the graph
            try:
                self._launch(context, sources)
            except BaseException as error:
                for hook in self._hooks:
                    hook.launched(error)
                raise
            for hook in self._hooks:
                hook.launched(None)

    def _launch(self, context: ExecutionContext, sources: Sequence[Source]) -> None:
        driver, timeline = context.driver, context.timeline
        if self._last is not None:
            timeline.wait_for(*self._last, "the previous launch of the graph")
        if sources:
            fill_inputs(context, self.inputs, sources)
        if self._at_launch:
            with ReadingAtSubmission():
                for submit_upload in self._at_launch:
                    submit_upload(context)
        page, number = self._page, self._used
        new: FaultPage | None = None
        if self._record:
            if page is None:
                new = page = context.runtime.fault_pages.acquire()
                number = 0
            context.watch_faults([GraphFaultReport(page, number, self._kernels, context.place)])
            self._page = None  # until the submission has succeeded
        with context.submission_lock:
            context.begin(self._reads, self._writes)  # the writes include the record
            try:
                if new is not None:
                    driver.fill(self._record, b"\0", RECORD_BYTES, timeline.handle)
                    cursor = new.address.to_bytes(CURSOR_BYTES, sys.byteorder)
                    driver.fill(self._record + RECORD_BYTES, cursor, 1, timeline.handle)
                provided(driver.graphs, "graphs").launch_graph(self._handle, timeline.handle)
            finally:
                # Even after a failure: a submitted fill must run before the next launch's fills, on any stream.
                context.end(self._reads, self._writes, submitted=True)
        if self.fills_host:
            context.note_host_copy()
            if self.first is None:
                self.first = timeline, timeline.advance()
        if self._strict:  # the order of launches is promised, so relying on it is not an ordering error
            self._last = timeline, timeline.advance()
        number += 1
        if number < PAGE_RECORDS:  # a full page is dropped here; it can be reused once its launches are over
            self._used = number
            self._page = page


def instantiate(context: ExecutionContext, recording: Recording, kept: list[Any]) -> Captured:
    """Lets the temporaries of a recording share memory, and makes the recording's graph."""
    memory = share_memory(recording.nodes, recording.made, context.timeline)
    device = context.device
    driver = device.driver
    graphs = provided(driver.graphs, "graphs")
    stream = driver.create_stream(device.id)
    try:
        graphs.begin_capture(stream)
        try:
            recording.replay_into(graphs, stream)
        except BaseException:
            with suppress(DeviceError):
                graphs.destroy_graph(graphs.end_capture(stream))
            raise
        return Captured(device, graphs.end_capture(stream), recording, kept, memory)
    finally:
        driver.destroy_stream(stream)


# Recordings


def record(context: ExecutionContext, operation: DeviceOperation[Any], work: Callable[[], T]) -> T:
    """Returns ``work()``, which runs ``operation`` in a context that records it. After an error, discards what is
    recorded."""
    recording = context.recording
    assert recording is not None
    try:
        with recording:
            return work()
    except BaseException as error:
        discard(context)
        raise_if_nested(error, operation)
        raise
    finally:
        recording.is_open = False


def discard(context: ExecutionContext) -> None:
    """Discards a capture. Work that ran outside the graph keeps its memory until the device is past it."""
    with suppress(DeviceError):
        context.wait_for_joined()
    context.runtime.reclaimer.strand(context.timeline, [*context.kept, *context.faults])


class Recorded(DeviceOperation[T]):
    """An operation whose part is recorded before it is submitted: to the recording ``frame.data``, in the states
    ``_recording`` of the frame. ``_recorded`` is the state after them."""

    _composed = _combines = True
    _recording: tuple[int, ...]
    _recorded: int

    @abstractmethod
    def step(self, frame: Frame, result: Any) -> DeviceOperation[Any] | None: ...

    def fail(self, frame: Frame, error: BaseException) -> DeviceOperation[Any] | None:
        if frame.at in self._recording and isinstance(error, Dropped):
            frame.data.is_open = False
        elif frame.at in self._recording:
            self._leave_recording(frame)
        return None

    def pause(self, frame: Frame) -> None:
        if frame.at in self._recording:
            frame.data.suspend()

    def resume(self, frame: Frame) -> None:
        if frame.at in self._recording:
            frame.data.__enter__()

    def _leave_recording(self, frame: Frame) -> None:
        frame.at = self._recorded
        frame.data.__exit__(None, None, None)
        frame.context.absorb(frame.inner)


@final
class AsGraph(Recorded[T]):
    """Runs an operation, as a part of a run, that only a graph can execute: captures it into a graph, and launches the
    graph once. The graph lives until the device is past the run."""

    _recording, _recorded = (1,), 2

    def __init__(self, operation: DeviceOperation[T]) -> None:
        self._parts = (operation,)
        self._called = operation.traced_name()
        super().__init__(operation)
        self.consume()

    def step(self, frame: Frame, result: Any) -> DeviceOperation[Any] | None:
        context = frame.context
        if not frame.at:
            frame.data = recording = Recording(context.stream, of_run=True)
            frame.inner = context.part(recording)
            frame.at = 1
            recording.__enter__()
            part: DeviceOperation[Any] = self._parts[0]
            return part
        recording = frame.data
        recording.results.clear()
        self._leave_recording(frame)
        instantiate(context, recording, []).launch(context, ())
        frame.result = result
        return None
