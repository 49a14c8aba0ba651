"""Operations composed of operations: chains, tuples and shared results."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, final, overload

import numpy as np

from oxide.messages import written
from oxide.native import Given
from oxide.runtime.device.launch_places import add_note_once, described, origin, part_note
from oxide.runtime.device.timeline import Mark
from oxide.runtime.operations.operation import (
    Depiction,
    DeviceOperation,
    Spec,
    Value,
    async_function,
    is_async,
    no_function,
    refuse_coroutine,
    require_operation,
)
from oxide.runtime.submission.capture import NotRecordable
from oxide.runtime.submission.once import Once
from oxide.runtime.submission.submission import ExecutionContext

if TYPE_CHECKING:
    from types import TracebackType

    from oxide.runtime.device.fault_records import Report

_DEEP = 16  # longer chains of shared operations are run in a loop, without recursion

T = TypeVar("T")
U = TypeVar("U")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


class Stage(DeviceOperation[U]):
    """An operation that continues from the result of another. A chain of stages is run in a loop, without recursion,
    so Python's stack does not bound its length."""

    def __init__(self, source: DeviceOperation[Any], name: str, function: Callable[..., Any]) -> None:
        if not callable(function):
            source.consume()  # a failed use counts as a use: dropping the operation does not warn
            raise no_function(function, name)
        if is_async(function):
            source.consume()
            raise async_function(function, name)
        self.source = source
        self.stage: int = source.stage + 1 if isinstance(source, Stage) else 2
        self._name = name
        self._function = function
        source.consume()
        self._unused = True  # what DeviceOperation.__init__ does, for one part
        if source._placed:
            self.place_as(source)
        if source._built is not None:
            self._built = source._built  # a chain was built where it begins

    @abstractmethod
    def follow(self, context: ExecutionContext, result: Any) -> U:
        """Computes this stage's result from ``result``, the result of its source."""

    def execute(self, context: ExecutionContext) -> U:
        stages: list[Stage[Any]] = [self]
        source = self.source
        while isinstance(source, Stage):  # a chain is on one device, so its stages need no run() of their own
            stages.append(source)
            source = source.source
        result = source.run(context)
        stages.reverse()
        outer = context.place
        for stage in stages:
            context.place = (stage._name, origin(stage._function), stage.stage, outer)
            try:
                result = stage.follow(context, result)
            except Exception as error:
                add_note_once(error, part_note(stage._name, stage._function, stage.stage))
                raise
        context.place = outer
        last: U = result
        return last

    def whereabouts(self) -> None:
        return None

    def depict(self) -> Depiction:
        return "host", self._name, (described(self._function),), (("", self.source),)

    def traced_name(self) -> str:
        return f"chain of {self.stage}"


@final
class AndThen(Stage[U]):
    """A stage that calls a function with the result and runs the operation that the function returns, on the same
    stream."""

    def __init__(
        self, source: DeviceOperation[Any], function: Callable[..., Any], name: str, *, with_context: bool = False
    ) -> None:
        self._with_context = with_context
        super().__init__(source, name, function)

    def follow(self, context: ExecutionContext, result: Any) -> U:
        made = self._function(context, result) if self._with_context else self._function(result)
        # Checked here, because a call of ``require_operation`` would cost time. The annotation saves compiled code the
        # look-up of ``run``.
        following: DeviceOperation[U] = (
            made if isinstance(made, DeviceOperation) else require_operation(made, self._name)
        )
        return following.run(context)

    def depict(self) -> Depiction:
        from oxide.runtime.operations.transfers import d2h, depicted_download

        if self._function is d2h:  # the most frequent function: its node is known before the run
            return depicted_download(self.source)
        return "unknown", self._name, (described(self._function), "known when it runs"), (("", self.source),)


@final
class Map(Stage[U]):
    """A stage that applies a host function to the result and yields what the function returns."""

    def __init__(self, source: DeviceOperation[T], function: Callable[[T], U]) -> None:
        super().__init__(source, "map", function)

    def follow(self, context: ExecutionContext, result: Any) -> U:
        mapped: U = self._function(result)
        refuse_coroutine(mapped, self._function, "map")
        return mapped


@final
class Inspect(Stage[T]):
    """A stage that calls a host function with the result and yields the result unchanged."""

    def __init__(self, source: DeviceOperation[T], function: Callable[[T], object]) -> None:
        self._known = source.spec()
        super().__init__(source, "inspect", function)

    def follow(self, context: ExecutionContext, result: Any) -> T:
        refuse_coroutine(self._function(result), self._function, "inspect")
        shown: T = result
        return shown

    def spec(self) -> Spec:
        return self._known


@final
class Element(DeviceOperation[Any]):
    """An operation that yields one element of the tuple that another operation yields."""

    def __init__(self, source: DeviceOperation[Any], index: int) -> None:
        self._source = source
        self._index = index
        super().__init__(source)
        self.place_as(source)

    @property
    def source(self) -> DeviceOperation[Any]:
        """Returns the operation that yields the tuple."""
        return self._source

    def execute(self, context: ExecutionContext) -> Any:
        result = self._source.run(context)
        if not isinstance(result, tuple) or not -len(result) <= self._index < len(result):
            raise TypeError(
                f"element {self._index} is asked of {type(result).__name__} {result!r}; "
                f"first, last and unzip take an operation that yields a tuple long enough"
            )
        return result[self._index]

    def whereabouts(self) -> None:
        return None

    def spec(self) -> Spec:
        known = self._source.spec()
        if isinstance(known, tuple) and -len(known) <= self._index < len(known):
            element: Spec = known[self._index]
            return element
        return None

    def depict(self) -> Depiction:
        return "", "the last" if self._index == -1 else f"element {self._index}", (), (("", self._source),)


@final
class Zip(DeviceOperation[tuple[Any, ...]]):
    """An operation that runs several operations in order on one stream and yields the tuple of their results."""

    def __init__(self, parts: tuple[DeviceOperation[Any], ...]) -> None:
        self._parts = parts
        super().__init__(*parts)
        if parts and all(part._placed and part._placement == parts[0]._placement for part in parts):
            self.place_as(parts[0])

    def execute(self, context: ExecutionContext) -> tuple[Any, ...]:
        results = []
        outer, count = context.place, len(self._parts)
        for number, part in enumerate(self._parts, 1):
            context.place = ("zip", count, number, outer)
            try:
                results.append(part.run(context))
            except Exception as error:
                add_note_once(error, part_note("zip", count, number))
                raise
        context.place = outer
        return tuple(results)

    def whereabouts(self) -> None:
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
def zip(*operations: Given[DeviceOperation[Any]]) -> DeviceOperation[Any]:
    """Returns an operation that yields the tuple of the operations' results. They run on one stream, in order. Raises
    ``TypeError`` for an argument that is not an operation."""
    for operation in operations:
        if isinstance(operation, DeviceOperation):
            operation.consume()  # all of them, even if one argument is then refused
    for position, operation in enumerate(operations):
        if not isinstance(operation, DeviceOperation):
            raise TypeError(
                f"zip takes operations, but argument {position} is {type(operation).__name__}; value(x) makes one of it"
            )
    return Zip(operations)


def unzip(operation: Given[DeviceOperation[Any]], n: Given[int | None] = None) -> tuple[DeviceOperation[Any], ...]:
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
    for the end of the source's work.

    A consumer that comes while another thread is submitting the source waits for the end of that submission: a thread
    blocks; a task of an event loop sleeps and can be cancelled. The task's operation is then submitted again from the
    start, so functions in it that come before the shared operation are called again. Cancelling a consumer does not
    affect the others: this object keeps the result, and the first consumer's submission keeps what the source used.

    Even in a capture, the source runs at once, outside the graph. With ``captured``, the source becomes part of the
    graph instead, once in each graph, unless it has already run. If ``context.renewed`` is a dictionary, an operation
    with ``captured`` keeps its outcome there and not in itself, so that only the run that ``context`` belongs to uses
    the outcome.
    """

    def __init__(self, source: DeviceOperation[T], *, captured: bool = False) -> None:
        self._source: DeviceOperation[T] | None = source
        self._captured = captured
        self._once = Once()
        self._known = source.spec()
        self._result: T
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None  # of the first raise; each consumer's own frames are added to it
        self._mark: Mark | None = None
        self._faults: list[Report] = []
        super().__init__(source)
        self.place_as(source)

    def execute(self, context: ExecutionContext) -> T:
        if self._source is not None:
            recording = context.recording
            if recording is not None and recording.outer is not None and not self._captured:
                raise NotRecordable  # the source would run before the work that is recorded
            self._run_deep_sources(context)
            renewed = context.renewed if self._captured else None
            if renewed is not None and (self in renewed or context.recording is None):
                if self not in renewed:
                    renewed[self] = Shared(self._source)
                again: T = renewed[self].run(context)
                return again
            if self._captured and context.recording is not None:
                recorded: T = context.recording.once(self, functools.partial(self._source.run, context))
                return recorded
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
        return self._result

    def whereabouts(self) -> None:
        return None

    def _run_deep_sources(self, context: ExecutionContext) -> None:
        """If this operation depends on a long chain of shared operations, runs these from the first to the last. Each
        keeps its outcome for the next. Running them recursively would need a deep Python stack."""
        pending: list[Shared[Any]] = []
        source: DeviceOperation[Any] | None = self._source
        while source is not None:
            if isinstance(source, Shared):
                pending.append(source)
            elif not isinstance(source, (Stage, Element)):
                break
            source = source.source
        if len(pending) > _DEEP:
            pending.reverse()
            for shared_operation in pending:
                with suppress(Exception):  # the next operation raises the error again when it takes the result
                    shared_operation.run(context)

    @property
    def source(self) -> DeviceOperation[T] | None:
        """Returns the operation to run, or None after it has run."""
        return self._source

    def _run_source(self, source: DeviceOperation[T], context: ExecutionContext) -> None:
        inner = ExecutionContext(context.stream)
        inner.levels, inner.renewed = context.levels, context.renewed
        try:
            self._result = source.run(inner)
            inner.wait_for_joined()
            self._mark = context.timeline.mark()
        except Exception as error:
            self._error, self._trace = error, error.__traceback__
        finally:
            context.absorb(inner)
            self._faults = inner.faults

    def spec(self) -> Spec:
        return self._known

    def depict(self) -> Depiction:
        source = self._source
        if source is None:
            return "join", "shared", ("has run",), ()
        return "join", "unzip" if self._captured else "shared", ("runs once",), (("", source),)


def shared(x: DeviceOperation[T] | T) -> DeviceOperation[T]:
    """Returns ``x.shared()`` for an operation. For a plain value, returns an operation that always yields that
    object."""
    return x.shared() if isinstance(x, DeviceOperation) else Value(x)
