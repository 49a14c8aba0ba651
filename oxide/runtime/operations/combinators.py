"""Operations composed of operations: chains, tuples, shared results, and operations placed on a device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, final, overload

import numpy as np

from oxide.host import core
from oxide.host.messages import written
from oxide.runtime.devices.fault_records import add_note_once, described, part_note
from oxide.runtime.devices.runtime import Device
from oxide.runtime.devices.scheduling import placed_number, require_placement
from oxide.runtime.memory.memory import Arc
from oxide.runtime.operations.operation import (
    Depiction,
    DeviceOperation,
    Spec,
    Value,
    consume,
    done,
    value,
)
from oxide.runtime.ordering.timeline import Mark
from oxide.runtime.submission.capture import NotRecordable
from oxide.runtime.submission.host_copies import HostCopies
from oxide.runtime.submission.staging import is_read_by_device
from oxide.runtime.submission.stops import Once, Stop, Unknown
from oxide.runtime.submission.submission import ExecutionContext, Held
from oxide.runtime.submission.walk import Frame, Submittable, TooDeep, Walk

if TYPE_CHECKING:
    from types import TracebackType

    from oxide.runtime.devices.fault_records import Report

_DEEP = 16  # longer chains of shared operations are run one after the other, and not inside one another

_BEGIN: Final = 0  # the states of a chain, which the core knows, too: its source has not begun. In state 1, the result
# given to the step is the next stage's. In state 2, it is the frame's, as the walk has stopped before the stage.

_DEEPER: Final = 1  # the states of a shared operation after the first: the operations that it depends on are run;
_WAITS: Final = 2  # the source has begun, in a walk of its own;
_PASSES: Final = 3  # another shared operation takes its place in this run;
_RECORDS: Final = 4  # the source is recorded
PROGRAM: Final = 0  # the roles of a stage's function: it may look at host arrays;
HANDLES: Final = 1  # it looks at no host array;
DOWNLOADS: Final = 2  # it looks at none, and the operation that it returns copies to the host;
UPLOADS: Final = 3  # the operation that it returns has an array read, by the device in stream order or by the host
ROLES: Final = {id(value): HANDLES, id(Arc): HANDLES}
"""The roles of the package's own functions, by ``id``."""

_NOTHING: Final = done(None)

T = TypeVar("T")
U = TypeVar("U")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class Stage(core.Stage, DeviceOperation[U]):
    """An operation that continues from the result of another. A chain of stages takes one frame of the walk, so it may
    have any length. ``frame.results`` are the stages that are left, the next one at the end, and ``frame.data`` is the
    stage whose function was called last."""

    __slots__ = ()

    _composed = _combines = True

    def fail(self, frame: Frame, error: BaseException) -> None:
        stage = frame.data if frame.at != _BEGIN else None
        if stage is not None and isinstance(error, Exception):
            add_note_once(error, part_note(stage._name, stage._function, stage.stage))

    def described(self) -> str:
        return part_note(self._name, self._function, self.stage).removeprefix("in ")

    def require_data(self, frame: Frame, copies: HostCopies, result: Any) -> None:
        """Waits for the copies to host memory since ``frame.copies`` if this stage's function may look at the elements
        of ``result``: see ``ExecutionContext.wait_for_data``. If the device itself will read them, orders its stream
        instead."""
        role, context = role_of(self._function), frame.context
        if role == UPLOADS and is_read_by_device(context, result):
            copies.order(context.timeline, frame.copies)
        elif role in (PROGRAM, UPLOADS):
            context.wait_for_data(frame, self.described())

    def depict(self) -> Depiction:
        return "host", self._name, (described(self._function),), (("", self.source),)

    def traced_name(self) -> str:
        return f"chain of {self.stage}"


def role_of(function: Any) -> int:
    """Returns the role of a stage's function, or of the function inside of ``functools.partial``."""
    while type(function) is functools.partial:
        function = function.func
    return ROLES.get(id(function), PROGRAM)


def host_data(operation: DeviceOperation[Any]) -> tuple[bool, str | None]:
    """Returns whether an operation is known to copy to the host, and the description of a function of the program that
    is known to come behind such a copy; None if none is known. What functions return is not known."""
    stages: list[Stage[Any]] = []
    while isinstance(operation, Stage):
        stages.append(operation)
        operation = operation.source
    copies = operation.copies_to_host()
    source = operation.source if isinstance(operation, Shared) else None
    for part in operation._parts if source is None else (source,):
        part_copies, waiting = host_data(part)
        if waiting is not None:
            return True, waiting
        copies = copies or part_copies
    for stage in reversed(stages):
        role = role_of(stage._function)
        if copies and role == PROGRAM:
            return True, stage.described()
        copies = copies or role == DOWNLOADS
    return copies, None


@final
class AndThen(Stage[U]):
    """A stage that calls a function with the result and runs the operation that the function returns, on the same
    stream."""

    __slots__ = ()

    def depict(self) -> Depiction:
        from oxide.runtime.operations.transfers import d2h, depicted_download

        if self._function is d2h:  # the most frequent function: its node is known before the run
            return depicted_download(self.source)
        return "unknown", self._name, (described(self._function), "known when it runs"), (("", self.source),)


@final
class Map(Stage[U]):
    """A stage that applies a host function to the result and yields what the function returns."""

    __slots__ = ()


@final
class Inspect(Stage[T]):
    """A stage that calls a host function with the result and yields the result unchanged."""

    __slots__ = ("_known",)

    def __init__(self, source: DeviceOperation[T], function: Callable[[T], object]) -> None:
        self._known = source.spec()
        super().__init__(source, function, "inspect", core.INSPECT)

    def spec(self) -> Spec:
        return self._known


@final
class Element(core.Element, DeviceOperation[Any]):
    """An operation that yields one element of the tuple that another operation yields."""

    __slots__ = ()

    _composed = _combines = True

    @property
    def source(self) -> DeviceOperation[Any]:
        source: DeviceOperation[Any] = self._parts[0]
        return source

    def spec(self) -> Spec:
        known = self.source.spec()
        if isinstance(known, tuple) and -len(known) <= self._index < len(known):
            element: Spec = known[self._index]
            return element
        return None

    def depict(self) -> Depiction:
        return "", "the last" if self._index == -1 else f"element {self._index}", (), (("", self.source),)


@final
class Zip(core.Zip, DeviceOperation[tuple[Any, ...]]):
    """An operation that runs several operations in order on one stream and yields the tuple of their results."""

    __slots__ = ()

    _called = "zip"
    _composed = _combines = True

    def fail(self, frame: Frame, error: BaseException) -> DeviceOperation[Any] | None:
        if isinstance(error, Exception):
            add_note_once(error, part_note("zip", len(self._parts), frame.at))
        elif isinstance(error, Unknown) and frame.at < len(self._parts):
            frame.data = error  # the other parts are rehearsed, too
            following: DeviceOperation[Any] | None = self.step(frame, None)
            return following
        return None

    def spec(self) -> Spec:
        return tuple([part.spec() for part in self._parts])

    def depict(self) -> Depiction:
        return "join", "zip", (), tuple([(str(number), part) for number, part in enumerate(self._parts)])


@overload
def zip(a: DeviceOperation[A], /) -> DeviceOperation[tuple[A]]: ...
@overload
def zip(a: DeviceOperation[A], b: DeviceOperation[B], /) -> DeviceOperation[tuple[A, B]]: ...
@overload
def zip(a: DeviceOperation[A], b: DeviceOperation[B], c: DeviceOperation[C], /) -> DeviceOperation[tuple[A, B, C]]: ...
@overload
def zip(
    a: DeviceOperation[A], b: DeviceOperation[B], c: DeviceOperation[C], d: DeviceOperation[D], /
) -> DeviceOperation[tuple[A, B, C, D]]: ...
@overload
def zip(*operations: DeviceOperation[Any]) -> DeviceOperation[tuple[Any, ...]]: ...
def zip(*operations: DeviceOperation[Any]) -> DeviceOperation[Any]:
    """Returns an operation that yields the tuple of the operations' results. They run on one stream, in order. Raises
    ``TypeError`` for an argument that is not an operation."""
    consume(operations)
    for position, operation in enumerate(operations):
        if not isinstance(operation, DeviceOperation):
            raise TypeError(
                f"zip takes operations, but argument {position} is {type(operation).__name__}; value(x) makes one of it"
            )
    return Zip(operations)


def unzip(operation: DeviceOperation[Any], n: int | None = None) -> tuple[DeviceOperation[Any], ...]:
    """Returns an operation for each element of the tuple that ``operation`` yields. ``operation`` runs once for all of
    them.

    ``n`` is the tuple's length. It is needed only if it cannot be known before the run (after ``and_then`` or ``map``).
    Raises ``TypeError`` if the length is neither known nor given, or if ``n`` is wrong.
    """
    if not isinstance(operation, DeviceOperation):
        raise TypeError(f"unzip takes an operation that yields a tuple, not {type(operation).__name__}")
    operation.consume()
    if n is not None and (isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0):
        raise TypeError(f"unzip(op, n={written(n)}): n, how many elements the tuple has, is an int of 0 or more")
    known = operation.spec()
    length = len(known) if isinstance(known, tuple) else None
    if n is None and length is None:
        raise TypeError(f"unzip cannot know how many elements {operation!r} will yield; say it: unzip(op, n=2)")
    if n is not None and length is not None and n != length:
        raise TypeError(f"unzip(op, n={written(n)}): {operation!r} yields {length} elements")
    source = Shared(operation, captured=True)
    count = n if n is not None else length
    assert count is not None
    elements = tuple(Element(source, index) for index in range(count))
    for element in elements:
        element.consume()  # many programs use only some of the elements: no warning for the others
    return elements


@final
class Shared(DeviceOperation[T]):
    """An operation that runs its source once, at the first run. Every consumer gets the same result, or the same error.

    The first consumer submits the source on its own stream. Later consumers take the outcome, and their streams wait
    for the end of the source's work. The source has a walk of its own, which this object keeps: if it stops, the
    consumers wait for the same reason, and the first that may go on continues it. The copies to host memory that the
    source has submitted, and that have not arrived, count as copies of each consumer.

    A consumer that comes while another thread is submitting the source waits for the end of that submission: a thread
    blocks; a task of an event loop sleeps and can be cancelled. Cancelling a consumer does not affect the others: this
    object keeps the result, and the first consumer's submission keeps what the source used.

    Even in a capture, the source runs at once, outside the graph. With ``captured``, the source becomes part of the
    graph instead, once in each graph, unless it has already run. If ``context.renewed`` is a dictionary, an operation
    with ``captured`` keeps its outcome there and not in itself, so that only the run that ``context`` belongs to uses
    the outcome.
    """

    _composed = _combines = True
    _called = "shared"

    def __init__(self, source: DeviceOperation[T], *, captured: bool = False) -> None:
        self._source: DeviceOperation[T] | None = source
        self._captured = captured
        self._once = Once()
        self._known = source.spec()
        self._walk: Walk[T] | None = None
        self._held: Held | None = None  # while the walk has stopped
        self._result: T
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None  # of the first raise; each consumer's own frames are added to it
        self._mark: Mark | None = None
        self._faults: list[Report] = []
        self._copies: HostCopies | None = None
        super().__init__(source)
        self.place_as(source)

    def step(self, frame: Frame, result: Any) -> Submittable[Any] | None:
        context = frame.context
        if frame.at == _PASSES:
            frame.result = result
            return None
        if frame.at == _RECORDS:
            recording = context.recording
            if recording is not None:
                recording.results[self] = result
            frame.result = result
            return None
        source = self._source
        if source is not None:
            recording = context.recording
            if frame.at == _BEGIN:
                if recording is not None and recording.outer is not None and not self._captured:
                    raise NotRecordable  # the source would run before the work that is recorded
                frame.at, frame.results = _DEEPER, self._deep_sources()
            if frame.results:
                deep: Shared[Any] = frame.results.pop()
                return deep
            frame.at = _WAITS
            if self._captured:
                renewed = context.renewed
                if renewed is not None and (self in renewed or recording is None):
                    if self not in renewed:
                        renewed[self] = Shared(source)
                    frame.at = _PASSES
                    again: Shared[Any] = renewed[self]
                    return again
                if recording is not None:
                    if self in recording.results:
                        frame.result = recording.results[self]
                        return None
                    frame.at = _RECORDS
                    return source
        if self._once.enter():
            done = False
            try:
                assert self._source is not None
                self._run_source(self._source, context)
                self._source = None
                done = True
            finally:
                self._once.leave(done=done)
        if self._error is not None:
            raise self._error.with_traceback(self._trace)
        if self._mark is not None:
            context.timeline.wait_for(self._mark.timeline, self._mark.position, "a shared operation")
        context.watch_faults(self._faults)
        if self._copies is not None:
            context.take_host_copies(self._copies)
        frame.result = self._result
        return None

    def fail(self, frame: Frame, error: BaseException) -> DeviceOperation[Any] | None:
        if frame.at == _DEEPER and isinstance(error, Exception):
            return _NOTHING  # the next operation raises the error again when it takes the result
        return None

    def _deep_sources(self) -> list[Shared[Any]]:
        """If this operation depends on a long chain of shared operations, returns these, the first one at the end of
        the list. They run before this one, and each keeps its outcome for the next: otherwise each would run inside the
        next one's step."""
        pending: list[Shared[Any]] = []
        source: DeviceOperation[Any] | None = self._source
        while source is not None:
            if isinstance(source, Shared):
                pending.append(source)
            elif not isinstance(source, (Stage, Element)):
                break
            source = source.source
        return pending if len(pending) > _DEEP else []

    @property
    def source(self) -> DeviceOperation[T] | None:
        """Returns the operation to run, or None after it has run."""
        return self._source

    def _run_source(self, source: DeviceOperation[T], context: ExecutionContext) -> None:
        """Begins or continues the walk of the source. Raises its stop."""
        walk, self._walk = self._walk, None
        if self._held is not None:
            self._held.release()
            self._held = None
        if walk is None:
            inner = ExecutionContext(context.stream)
            inner.levels, inner.renewed = context.levels - 1, context.renewed
            if inner.levels <= 0:
                raise TooDeep
            walk = Walk(source, inner)
        inner = walk.context
        stop: Stop | None = None
        try:
            stop = walk.go_on()
            if stop is None:
                self._result = walk.result
                inner.wait_for_joined()
                self._mark = inner.timeline.mark()
                self._copies = inner.copies
        except Exception as error:
            self._error, self._trace = error, error.__traceback__
        finally:
            if stop is None:
                self._faults = inner.faults
                (context.absorb if inner.timeline is context.timeline else context.join)(inner)
        if stop is not None:
            self._walk, self._held = walk, Held(walk)
            raise stop

    def spec(self) -> Spec:
        return self._known

    def depict(self) -> Depiction:
        source = self._source
        if source is None:
            return "join", "shared", ("has run",), ()
        return "join", "unzip" if self._captured else "shared", ("runs once",), (("", source),)


@final
class OnDevice(DeviceOperation[T]):
    """An operation that was placed on a device. As part of an operation on another device, it runs on a stream of its
    own device, which the policy picks. The two streams wait for each other only where they use the same buffers, and
    the enclosing run ends after the placed operation."""

    _composed = True
    _called = "on"

    def __init__(self, source: DeviceOperation[T], device: int | Device) -> None:
        source.consume()
        self._source = source
        self._parts = (source,)
        self._placement = require_placement(device, "on")
        super().__init__(source)
        self._placed = True

    def finish(self, context: ExecutionContext, results: list[Any]) -> T:
        result: T = results[0]
        return result

    def spec(self) -> Spec:
        return self._innermost()._source.spec()

    def depict(self) -> Depiction:
        return "", "", (), (("", self._source),)

    def _innermost(self) -> OnDevice[T]:
        """Returns the innermost of nested placements, which decides where the work runs. Works without recursion, so
        that any number of placements may be nested."""
        inner = self
        while isinstance(inner._source, OnDevice):
            inner = inner._source
        return inner

    def __repr__(self) -> str:
        inner = self._innermost()
        return f"<oxide operation on device {written(placed_number(inner._placement))}: {inner._source!r}>"


def _refuse_element(index: int, result: Any) -> NoReturn:
    raise TypeError(
        f"element {index} is asked of {type(result).__name__} {result!r}; "
        f"first, last and unzip take an operation that yields a tuple long enough"
    )


def shared(x: DeviceOperation[T] | T) -> DeviceOperation[T]:
    """Returns ``x.shared()`` for an operation. For a plain value, returns an operation that always yields that
    object."""
    return x.shared() if isinstance(x, DeviceOperation) else Value(x)


core.setup(AndThen=AndThen, Map=Map, refuse_element=_refuse_element, partial=functools.partial)
