"""A wrapper that replaces the runtime's driver while a trace runs. It notes every submission and has it measured.

Everything that the runtime submits passes through the ``Driver`` protocol. So the wrapper knows nothing of operations,
and a program without a trace has no wrapper. Methods that submit nothing go to the wrapped driver as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Protocol, final

from oxide.driver.base import (
    Clock,
    ConditionalKind,
    Dim3,
    Driver,
    Droppable,
    EventHandle,
    FunctionHandle,
    GraphHandle,
    StreamHandle,
    StreamPriority,
    Wrapper,
)
from oxide.errors import OxideError
from oxide.runtime.devices.runtime import Device
from oxide.tracing.events import Note


class Notes(Protocol):
    """What takes the notes of a driver: ``Recorder``."""

    notes: list[Note]
    runs: dict[Any, Any]

    def blocked(self, begun: int, stream: Any, /) -> object: ...


@final
class _Known:
    """The state that the tracing drivers of one runtime share: streams, kernel names, graphs, and the stream of each
    event."""

    def __init__(self) -> None:
        self.streams: dict[StreamHandle, int] = {}  # the devices of the runtime's streams
        self.foreign: dict[int, StreamHandle] = {}  # other libraries' streams: the first handle of each, by address
        self.named: dict[int, int] = {}  # by device: how many of its streams were named
        self.kernels: dict[FunctionHandle, str] = {}
        self.devices: list[Device] = []  # the runtime's: a kernel's name is looked up among those that they have loaded
        self.graphs: dict[int, tuple[GraphHandle, list[str]]] = {}  # by identity
        self.capturing: dict[StreamHandle, list[str]] = {}
        self.bodies: dict[StreamHandle, tuple[StreamHandle, ...]] = {}  # by stream: of its open conditional
        self.events: dict[EventHandle, StreamHandle] = {}
        self.ended = False

    def name_of(self, function: FunctionHandle) -> str:
        for device in self.devices:
            for reference, loaded in list(device.loaded.items()):
                if loaded is function and (specialization := reference()) is not None:
                    return str(specialization.description.name)
        return str(getattr(function, "entry", "a kernel"))


@final
class TracingDriver(Wrapper):
    """A driver around ``inner``. ``know_stream`` and ``know_kernels`` register what was made before the trace."""

    def __init__(self, inner: Driver, clock: Clock, recorder: Notes, known: _Known | None = None) -> None:
        super().__init__(inner)
        self._clock = clock
        self._recorder = recorder
        self._known = _Known() if known is None else known

    def for_run(self, run: Droppable) -> TracingDriver:
        """Returns a driver that notes the submissions of one run."""
        return TracingDriver(self.inner.for_run(run), self._clock, self._recorder, self._known)

    # Used by the recorder

    def know_stream(self, stream: StreamHandle, device: int) -> None:
        """Notes a stream and its name, unless the stream is known."""
        known = self._known
        if stream not in known.streams:
            known.streams[stream] = device
            self._name_stream(stream, device, "stream")

    def _name_stream(self, stream: StreamHandle, device: int, kind: str) -> None:
        known = self._known
        number = known.named[device] = known.named.get(device, 0) + 1
        arguments = {"handle": f"{self.inner.stream_address(stream):#x}"}
        self._recorder.notes.append(("stream", stream, f"{self.name}:{device}", f"{kind} {number}", arguments))

    def know_kernels(self, devices: Iterable[Device]) -> None:
        """Takes the runtime's devices, whose kernels were loaded before the trace or will be."""
        self._known.devices = list(devices)

    def settle(self) -> None:
        """Waits for all submitted work. Ignores errors of the work, which are raised where the program waits for it."""
        for stream in list(self._known.streams):
            with suppress(OxideError):
                self.inner.synchronize_stream(stream)

    def end(self) -> None:
        """Ends the recording: later submissions go to ``inner`` without a note."""
        self._known.ended = True

    # The driver's methods: each calls that of the wrapped driver, notes the call, and has work measured. The queries
    # only call: by ``__getattr__`` they would be slower.

    def query_stream(self, stream: StreamHandle) -> bool:
        return self.inner.query_stream(stream)

    def query_event(self, event: EventHandle) -> bool:
        return self.inner.query_event(event)

    def create_stream(self, device: int, priority: StreamPriority = "normal") -> StreamHandle:
        stream = self.inner.create_stream(device, priority)
        if not self._known.ended:
            self.know_stream(stream, device)
        return stream

    def destroy_stream(self, stream: StreamHandle) -> None:
        self._known.streams.pop(stream, None)
        self.inner.destroy_stream(stream)

    def foreign_stream(self, device: int, address: int) -> StreamHandle:
        """Returns a handle for another library's stream, and notes the stream at the first call for its address."""
        stream = self.inner.foreign_stream(device, address)
        foreign = self._known.foreign
        if address not in foreign and not self._known.ended:
            foreign[address] = stream
            self._name_stream(stream, device, "another library's stream")
        return stream

    def _noted(self, stream: StreamHandle) -> StreamHandle:
        """Returns the handle that stands for a stream in notes. For another library's stream, this is the first handle
        that was made for it: each call of ``foreign_stream`` may return a new one."""
        known = self._known
        if stream in known.streams or not known.foreign:
            return stream
        return known.foreign.get(self.inner.stream_address(stream), stream)

    def record_event(self, event: EventHandle, stream: StreamHandle) -> None:
        self.inner.record_event(event, stream)
        self._known.events[event] = self._noted(stream)

    def destroy_event(self, event: EventHandle) -> None:
        self._known.events.pop(event, None)
        self.inner.destroy_event(event)

    def wait_event(self, stream: StreamHandle, event: EventHandle) -> None:
        begun = perf_counter_ns()
        self.inner.wait_event(stream, event)
        known = self._known
        if not known.ended:
            other = known.events.get(event)
            self._recorder.notes.append(("wait", begun, self._noted(stream), other, *self._part()))

    def synchronize_stream(self, stream: StreamHandle) -> None:
        self._block(self.inner.synchronize_stream, stream, stream)

    def synchronize_event(self, event: EventHandle) -> None:
        self._block(self.inner.synchronize_event, event, self._known.events.get(event))

    def _block(self, wait: Callable[[Any], None], thing: Any, stream: StreamHandle | None) -> None:
        begun = perf_counter_ns()
        try:
            wait(thing)
        finally:
            if not self._known.ended:
                self._recorder.blocked(begun, stream)

    def allocate(self, nbytes: int, stream: StreamHandle) -> int:
        address = self.inner.allocate(nbytes, stream)
        if not self._known.ended:
            self._recorder.notes.append(("memory", perf_counter_ns(), stream, address, nbytes))
        return address

    def free(self, address: int, stream: StreamHandle) -> None:
        self.inner.free(address, stream)
        if not self._known.ended:
            self._recorder.notes.append(("memory", perf_counter_ns(), stream, address, 0))

    def launch(
        self, function: FunctionHandle, grid: Dim3, block: Dim3, shared_bytes: int, params: bytes, stream: StreamHandle
    ) -> None:
        known = self._known
        what = known.kernels.get(function)
        if what is None:
            what = known.kernels[function] = known.name_of(function)
        if known.ended or (known.capturing and stream in known.capturing):
            self.inner.launch(function, grid, block, shared_bytes, params, stream)
            if stream in known.capturing:
                known.capturing[stream].append(what)
            return
        clock, recorder = self._clock, self._recorder
        begun = perf_counter_ns()
        token = clock.begin(stream)
        try:
            self.inner.launch(function, grid, block, shared_bytes, params, stream)
        except BaseException:
            clock.end(token, stream)
            clock.forget(token)
            raise
        clock.end(token, stream)
        run = recorder.runs.get(get_ident())
        note: Note
        if run is None:
            note = ("work", begun, stream, clock, token, None, "", None, "kernel", what, -1, grid, block, shared_bytes)
        else:
            note = (
                "work", begun, stream, clock, token, run, run.name, run.built, "kernel", what, run.nbytes, grid, block,
                shared_bytes,
            )  # fmt: skip
        recorder.notes.append(note)

    def copy_to_device(self, *arguments: Any) -> None:
        self._submit("copy to device", arguments[2], self.inner.copy_to_device, arguments)

    def copy_to_host(self, *arguments: Any) -> None:
        self._submit("copy to host", arguments[2], self.inner.copy_to_host, arguments)

    def copy_on_device(self, *arguments: Any) -> None:
        self._submit("copy on device", arguments[2], self.inner.copy_on_device, arguments)

    def copy_peer(self, *arguments: Any) -> None:
        self._submit("copy between devices", arguments[4], self.inner.copy_peer, arguments)

    def fill(self, *arguments: Any) -> None:
        _, pattern, count, _ = arguments
        self._submit("fill", len(pattern) * count, self.inner.fill, arguments)

    def report(self, *arguments: Any) -> None:
        self._submit("report", -1, self.inner.report, arguments)

    def launch_host_function(self, *arguments: Any) -> None:
        """Submits a host function and notes it. CUPTI does not measure its time."""
        self._submit("host function", -1, self.inner.launch_host_function, arguments)

    def call(self, *arguments: Any) -> None:
        self._submit("collective", -1, self.inner.call, arguments, arguments[0])

    def launch_native_host_function(self, *arguments: Any) -> None:
        """Submits a C function of the runtime, a copy of host memory or a wake-up, and notes it."""
        self._submit("host copy or wake-up", -1, self.inner.launch_native_host_function, arguments)

    def _submit(
        self, kind: str, nbytes: int, call: Callable[..., None], arguments: tuple[Any, ...], what: str | None = None
    ) -> None:
        """Submits work to the stream that is the last argument. ``what`` names the work, by default as ``kind``."""
        known, stream, what = self._known, arguments[-1], what or kind
        if known.ended or (known.capturing and stream in known.capturing):
            call(*arguments)
            if stream in known.capturing:
                known.capturing[stream].append(what)
            return
        self._measure(kind, what, nbytes, (), stream, call, arguments)

    def _measure(
        self,
        kind: str,
        what: str,
        nbytes: int,
        details: tuple[Any, ...],
        stream: StreamHandle,
        call: Callable[..., None],
        arguments: tuple[Any, ...],
    ) -> None:
        """Submits work, has it measured and notes it. ``launch`` does the same inline, to save the calls."""
        begun, clock, recorder = perf_counter_ns(), self._clock, self._recorder
        token = clock.begin(stream)
        try:
            call(*arguments)
        except BaseException:
            clock.end(token, stream)
            clock.forget(token)
            raise
        clock.end(token, stream)
        run, name, built, _ = self._part()
        recorder.notes.append(("work", begun, stream, clock, token, run, name, built, kind, what, nbytes, *details))

    def _part(self) -> tuple[Any, str, Any, int]:
        """Returns the run that the calling thread is submitting, the name and origin of the part that it is submitting,
        and the thread's number. Without a run, the first three are None, "" and None."""
        ident = get_ident()
        run = self._recorder.runs.get(ident)
        return (None, "", None, ident) if run is None else (run, run.name, run.built, ident)

    # Graphs

    def begin_capture(self, stream: StreamHandle) -> None:
        """Begins a capture, and begins to collect the names of the graph's nodes."""
        self.inner.begin_capture(stream)
        if not self._known.ended:
            self._known.capturing[stream] = []

    def begin_conditional(
        self, stream: StreamHandle, kind: ConditionalKind, flag: int, stop: int
    ) -> tuple[StreamHandle, ...]:
        """Begins a conditional, which counts as one node: the number of runs of its bodies is unknown."""
        bodies = self.inner.begin_conditional(stream, kind, flag, stop)
        if stream in self._known.capturing:
            self._known.capturing[stream].append(kind)
            self._known.capturing.update({body: [] for body in bodies})
            self._known.bodies[stream] = bodies
        return bodies

    def end_conditional(self, stream: StreamHandle) -> None:
        self._forget_bodies(stream)
        self.inner.end_conditional(stream)

    def _forget_bodies(self, stream: StreamHandle) -> None:
        for body in self._known.bodies.pop(stream, ()):
            self._forget_bodies(body)
            self._known.capturing.pop(body, None)

    def end_capture(self, stream: StreamHandle) -> GraphHandle:
        """Ends the capture, and keeps the names of the graph's nodes."""
        self._forget_bodies(stream)
        names = self._known.capturing.pop(stream, None)
        graph = self.inner.end_capture(stream)
        if names is not None:
            self._known.graphs[id(graph)] = graph, names
        return graph

    def launch_graph(self, graph: GraphHandle, stream: StreamHandle) -> None:
        known = self._known
        if known.ended:
            self.inner.launch_graph(graph, stream)
            return
        entry = known.graphs.get(id(graph))
        names = None if entry is None or entry[0] is not graph else entry[1]
        self._measure("graph", "graph", -1, (names,), stream, self.inner.launch_graph, (graph, stream))

    def destroy_graph(self, graph: GraphHandle) -> None:
        self._known.graphs.pop(id(graph), None)
        self.inner.destroy_graph(graph)
