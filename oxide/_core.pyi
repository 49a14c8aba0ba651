"""What the extension has, for a type checker. The classes of the runtime that derive from these types say what
each is; ``_core_twin.py`` says it in Python."""

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Self, TypeVar

import numpy as np

import oxide.runtime.awaiting.future as futures
import oxide.runtime.devices.fault_records as fault_records
import oxide.runtime.launching.binding as binding
import oxide.runtime.launching.launch as launches
import oxide.runtime.launching.launch_config as configs
import oxide.runtime.memory.allocation as allocations
import oxide.runtime.memory.memory as memories
import oxide.runtime.memory.pinned as pinned
import oxide.runtime.ordering.timeline as timelines
import oxide.runtime.submission.host_copies as host_copies
import oxide.runtime.submission.submission as submissions
from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.kernel.specialization import Specialization
from oxide.driver.base import Driver, EventHandle, StreamHandle
from oxide.runtime.devices.runtime import Device, Runtime
from oxide.runtime.loop.pace import Turn as LoopTurn
from oxide.runtime.memory.allocation import Known
from oxide.runtime.memory.reclaim import Run, Visible
from oxide.runtime.operations.graph import CudaGraph
from oxide.runtime.operations.operation import Spec
from oxide.runtime.ordering.stream import Stream
from oxide.runtime.ordering.timeline import DeviceState
from oxide.runtime.submission.capture import Recording
from oxide.runtime.submission.lending import Lender
from oxide.runtime.submission.stops import Stop
from oxide.runtime.submission.walk import Submittable

T = TypeVar("T")

def setup(**things: Any) -> None: ...
def alarm(descriptor: int) -> int: ...

NOTIFY: Final[int]
"""The address of ``void notify(void *alarm)``, which makes the descriptor of an ``alarm`` readable. A stream calls
it."""

ROW_BYTES: Final[int]

def copy(row: int) -> None: ...

MOVE: Final[int]
"""The address of ``void move(void *row)``, which makes the copy of a row."""
SHARE_COPY: Final[int]
"""The address of ``void share_copy(void *row)``, which makes the copy of a row together with helpers."""
start_helpers: Final[Callable[[int, int, int], tuple[int, int]] | None]
"""None in the twin, and where the system has no futex."""

watch_kernel: Final[Callable[[int, int, bytes], None] | None]
"""None in the twin, and where no signal handler can tell a kernel."""

HEADER_BYTES: Final[int]

def released() -> int: ...

RELEASE: Final[int]
"""The address of the deleter of a tensor, which is behind a header. It adds the tensor to the list of ``released``."""
DROP_CAPSULE: Final[int]
"""The address of the destructor of a tensor's capsule."""

def launch(entry: int, function: int, grid: Any, block: Any, shared_bytes: int, params: bytes, stream: int) -> int: ...

class Handle:
    address: int

class Function:
    address: int
    parameter_bytes: int
    plain: bool
    reports: bool
    shared_limit: int

class Calls:
    _stream_query: int
    _event_query: int
    _event_record: int
    _event_synchronize: int
    def query_stream(self, stream: Handle) -> bool: ...
    def query_event(self, event: Handle) -> bool: ...
    def record_event(self, event: Handle, stream: Handle) -> None: ...
    def synchronize_event(self, event: Handle) -> None: ...
    def launch_graph(self, graph: Handle, stream: Handle) -> None: ...
    _launch_kernel: int
    _launch_graph: int

class Points:
    tracer: Any
    def __init__(self) -> None: ...

points: Final[Points]
RUNTIME_LOCK: Final[Any]

class Dropping:
    _drop: Any
    def __del__(self) -> None: ...

def call_soon(function: Callable[[Any], object], argument: Any) -> None: ...
def note_dropped(thing: Any) -> None: ...
def refuse_inside() -> None: ...

class Timeline:
    advance: Callable[[], int]
    @property
    def device(self) -> Device: ...
    @device.setter
    def device(self, device: DeviceState) -> None: ...
    driver: Driver
    end: timelines.Mark | None
    handle: StreamHandle
    seen: int
    _completed: Callable[[], int]
    _in_flight: dict[timelines.Mark, list[Any]]
    _loaded: Any
    _look_at: int
    _marks: list[timelines.Mark]
    _named: bool
    _queues: Any
    _runtime: Runtime
    def __new__(cls, *_: Any, **__: Any) -> Self: ...
    def mark(self) -> timelines.Mark: ...
    def close(self) -> None: ...
    def _record(self, mark: Any) -> None: ...
    def note_passed(self, position: int) -> None: ...
    def ask(self, mark: Any) -> bool: ...

class Mark:
    timeline: timelines.Timeline
    position: int
    event: EventHandle | None
    def __init__(self, timeline: timelines.Timeline, position: int) -> None: ...
    def passed(self) -> bool: ...
    def __del__(self) -> None: ...

class Allocation:
    address: int
    adopted: bool
    claims: tuple[tuple[timelines.Timeline, bool], ...]
    device: Device
    dtype: np.dtype[Any] | None
    exported: bool
    home: timelines.Timeline
    known: Callable[[], Known | None] | None
    nbytes: int
    owners: tuple[tuple[int, int, object], ...]
    reads: dict[timelines.Timeline, int]
    shape: tuple[int, ...]
    visible: Visible | None
    written_by: timelines.Timeline | None
    _written_at: int
    def __new__(cls, *_: Any, **__: Any) -> Self: ...
    def note_read(self, timeline: Any, position: int) -> None: ...
    def note_write(self, timeline: Any, position: int) -> None: ...
    def __del__(self) -> None: ...

class DeviceBox:
    _allocation: allocations.Allocation
    _offset: int
    _shape: tuple[int, ...]
    _strides: tuple[int, ...] | None
    _dtype: np.dtype[Any]
    _size: int
    _nbytes: int
    _ptr: int
    _argument: memories.BoxArgument | None
    _known: Known | None
    _words: tuple[bytes, bytes] | None
    _shaped_words: bytes | None
    def __init__(
        self,
        allocation: allocations.Allocation,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> None: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def ptr(self) -> int: ...
    @property
    def device(self) -> Device: ...

SLICE: Final[int]
DISJOINT: Final[int]
TILES: Final[int]
SCALAR: Final[int]
LIFTED: Final[int]
ARGUMENT: Final[int]
OTHER: Final[int]
SIGNED: Final[int]
UNSIGNED: Final[int]
FLOAT: Final[int]

class ParameterSlot:
    alignment: int
    before: int
    bits: Any
    components: int
    converted: Any
    dtype: Any
    fits: Any
    judged: list[str]
    kind: int
    last: Any
    last_piece: Any
    last_words: Any
    most: int
    ndim: int
    number: int
    parts: list[int]
    type: Any

class Plan:
    captured: tuple[Any, ...]
    end: bytes
    fitting: Any
    holds: Any
    inferred: Any
    inferred_shape: Any
    outputs: tuple[int, ...]
    reference: Any
    short: bool
    slots: tuple[Any, ...]
    special: Any
    def compile(
        self, slots: tuple[Any, ...], outputs: tuple[int, ...], captured: tuple[Any, ...], end: bytes, bound: bool
    ) -> None: ...

class LaunchConfig:
    _grid: tuple[int, int, int]
    _block: tuple[int, int, int]
    _shared_mem_bytes: int
    def _set(self, grid: tuple[int, int, int], block: tuple[int, int, int], shared_mem_bytes: int) -> None: ...
    def equals(self, other: LaunchConfig) -> bool: ...

class ConfiguredKernel:
    _kernel: Kernel
    _config: configs.LaunchConfig | None
    _plan: binding.Plan | None
    def __init__(self, kernel: Any, config: Any) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> launches.KernelLaunch | launches.DeferredLaunch: ...

class Operation:
    _unused: bool
    _used: bool
    _placed: bool
    _placement: Any
    _built: Any
    def __init__(self, *parts: Any) -> None: ...
    def consume(self) -> None: ...
    def place_as(self, other: Any) -> None: ...
    def and_then(self, function: Any) -> Any: ...
    def and_then_with_context(self, function: Any) -> Any: ...
    def map(self, function: Any) -> Any: ...
    def __del__(self) -> None: ...

MAP: Final[int]
INSPECT: Final[int]
AND_THEN: Final[int]
WITH_CONTEXT: Final[int]

class Stage(Operation):
    source: Any
    stage: int
    _name: Any
    _function: Any
    _origin: Any
    _kind: Any
    _unused: bool
    _built: Any
    def __init__(self, source: Any, function: Any, name: str, kind: int) -> None: ...
    def step(self, frame: Any, result: Any) -> Any: ...

class Zip(Operation):
    _parts: Any
    def __init__(self, parts: tuple[Any, ...]) -> None: ...
    def step(self, frame: Any, result: Any) -> Any: ...

class Element(Operation):
    _index: Any
    _parts: Any
    def __init__(self, source: Any, index: int) -> None: ...
    def step(self, frame: Any, result: Any) -> Any: ...

class Value(Operation):
    _result: Any
    def __init__(self, result: Any) -> None: ...
    def execute(self, context: Any) -> Any: ...

class Launch(Operation):
    _arguments: tuple[Any, ...]
    _bound: bool
    _bound_device: Device | None
    _composed: bool
    _config: configs.LaunchConfig | None
    _kernel: Kernel
    _known: tuple[Spec, ...] | None
    _held: Any
    _params: bytes
    _parts: tuple[Any, ...]
    _plan: binding.Plan
    _reads: list[Any]
    _specialization: Specialization
    _writes: list[Any]
    def bind(self, plan: Any, arguments: tuple[Any, ...]) -> bool: ...
    def execute(self, context: Any) -> Any: ...

class Frame:
    result: Any
    results: Any
    place: Any
    data: Any
    operation: Any
    context: Any
    inner: Any
    at: int
    copies: int
    def __init__(self, operation: Any, context: Any) -> None: ...

class Walk:
    result: Any
    operation: Any
    context: Any
    _frames: list[Frame]
    _part: Submittable[Any] | None
    _given: Any
    _stop: Any
    _ending: Any
    def __init__(self, operation: Any, context: Any) -> None: ...
    def advance(self, traced: bool) -> None: ...

def run_through(operation: Submittable[T], context: submissions.ExecutionContext) -> T: ...

class ExecutionContext:
    stream: Stream
    visible: Visible | None
    device: Device
    recording: Recording | None
    place: Any
    traced: Any
    levels: int
    copies: host_copies.HostCopies | None
    waitless: str
    renewed: dict[Any, Any] | None
    lender: Lender | None
    runtime: Runtime
    driver: Any
    timeline: timelines.Timeline
    _joined: tuple[timelines.Mark, ...]
    _kept: list[Any]
    _faults: list[Any]
    _if_given_up: tuple[Any, ...]
    _report: fault_records.FaultReport | None
    _using: Any
    _declared: tuple[Any, ...] | None
    def __init__(self, stream: Any, recording: Any = None, visible: Any = None) -> None: ...
    def note_host_copy(self, array: Any = None, /) -> None: ...
    def begin(self, reads: list[Any], writes: list[Any]) -> None: ...
    def end(self, reads: list[Any], writes: list[Any], *, submitted: bool) -> None: ...

REPORT_RECORDS: Final[int]

class GraphFaultReport:
    _page: Any
    _kernels: Any
    _graph_place: Any
    _address: int
    def __init__(self, page: Any, number: int, kernels: Any, graph_place: Any) -> None: ...
    def claimed(self) -> bool: ...

PAGE_RECORDS: Final[int]

class Captured(Dropping):
    _lock: Any
    _reads: list[Any]
    _writes: list[Any]
    _at_launch: Any
    _handle: Any
    _kernels: Any
    _last: tuple[timelines.Timeline, int] | None
    _page: Any
    _record: int
    _used: int
    fills_host: bool
    first: tuple[timelines.Timeline, int] | None
    inputs: tuple[Any, ...]
    def _set_uses(self, reads: list[Any], writes: list[Any], plain: bool) -> None: ...
    def launch(self, context: Any, sources: Any) -> None: ...

class GraphLaunch(Operation):
    _graph: CudaGraph[Any]
    _sources: tuple[Any, ...]
    def __init__(self, graph: CudaGraph[Any], device: Device, sources: tuple[Any, ...]) -> None: ...
    def execute(self, context: Any) -> None: ...

def new_box(
    context: submissions.ExecutionContext, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> memories.DeviceBox: ...
def copy_host(context: Any, box: memories.DeviceBox, host: int, up: bool) -> None: ...
def download_pinned(context: Any, box: memories.DeviceBox) -> Any: ...
def upload_small(context: Any, box: Any, array: Any) -> bool: ...

class PinnedBlock:
    address: int
    exported: Any
    memory: Any
    nbytes: int
    page: int
    user: int
    def __new__(cls, *_: Any, **__: Any) -> Self: ...

class PinnedPool:
    _free: dict[int, list[pinned.PinnedBlock]]
    _lock: Any
    _numbers: count[int]
    _returned: deque[tuple[pinned.PinnedBlock, int]]
    def __new__(cls, *_: Any, **__: Any) -> Self: ...
    def take(self, nbytes: int) -> pinned.PinnedBuffer | None: ...

class PinnedBuffer:
    _pool: Any
    _block: Any
    address: int
    nbytes: Any
    _number: Any
    def __init__(self, pool: PinnedPool, block: pinned.PinnedBlock, nbytes: int) -> None: ...
    def fill(self, array: Any) -> None: ...
    def __del__(self) -> None: ...

class HostCopies:
    count: int
    recorded: int
    _last: dict[timelines.Timeline, tuple[int, int]]
    arrays: list[Any]
    def __init__(self) -> None: ...
    def add(self, timeline: Any, position: int) -> None: ...

class FaultReport:
    _records: fault_records.Records
    _launches: list[Any]
    _give_back: Any
    @property
    def is_full(self) -> bool: ...
    def next_word(self, special: Specialization, place: Any) -> bytes: ...
    def claimed(self) -> bool: ...
    def __del__(self) -> None: ...

def new_report(pool: Any) -> Any: ...

class LooseResults(Dropping):
    _submissions: deque[Any]
    _ask_at: int
    def adopt(self, submission: Any) -> None: ...

class Submission:
    def finished_well(self) -> bool: ...
    _open: bool
    result_in_flight: Any
    _title: Any
    faults: list[Any]
    _reclaimer: Any
    mark: Any
    _visible: Any
    def __init__(self, context: Any, result: Any, title: object) -> None: ...
    def finish(self) -> Any: ...
    def abandon(self) -> None: ...
    def __del__(self) -> None: ...

def context_for(operation: Any, stream: Any, visible: Any = None, *, sweeps: bool = True) -> Any: ...
def submit(
    operation: Submittable[T], stream: Stream, run: Run | None = None
) -> submissions.Submission[T] | submissions.Paused[T]: ...
def submit_at_once(operation: Submittable[T], stream: Stream, call: str) -> submissions.Submission[T]: ...
def run_blocking(operation: Submittable[T], stream: Stream, lender: Any = None) -> T: ...

class Turn:
    number: int
    gives_up: bool
    defers: bool
    compiles_now: bool
    works_for_run: bool
    spent: float
    _usual: float
    def __init__(self) -> None: ...
    def over(self, number: int) -> None: ...
    def next(self) -> None: ...

def current_turn() -> LoopTurn: ...

class DeviceFuture:
    _result: Any
    _state: futures.FutureState
    _trace: Any
    _operation: Any
    _stream: Stream
    _submission: Any
    _paused: Any
    _lock: Any
    _waiting: int
    _error: BaseException | None
    def __init__(self, operation: Any, stream: Any) -> None: ...
    def start(self, turn: LoopTurn | None = None, /) -> Stop | None: ...
    def outcome(self) -> Any: ...
    def consume(self) -> None: ...
