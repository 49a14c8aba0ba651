"""Control flow on the device: ``cond`` and ``while_loop``, whose flag is read on the device.

Only a graph can choose on the device what runs next. So both record a conditional into the graph that is being
captured. Outside a capture, they capture themselves into a graph of their own, and launch it once.

The bodies are recorded once, whatever the flag says. So each iteration of a loop uses the same memory, and the boxes
that a body makes are the same ones each time.

Where the driver has no conditional nodes, and for interpreted kernels, a run of the operation reads the flag back and
decides on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import numpy as np

from oxide.errors import ArgumentError, GraphError
from oxide.host.core import new_box
from oxide.host.messages import warn_caller, written
from oxide.runtime.devices.fault_records import add_note_once, part_note
from oxide.runtime.memory.memory import Arc, DeviceBox, Partition, number_of_elements, require_device
from oxide.runtime.operations.captured_graph import AsGraph
from oxide.runtime.operations.new_boxes import describe
from oxide.runtime.operations.operation import BoxSpec, Depiction, DeviceOperation, Spec, consume, done
from oxide.runtime.operations.transfers import copy_box
from oxide.runtime.submission.capture import InterpretedInGraphError, Recording
from oxide.runtime.submission.staging import download
from oxide.runtime.submission.submission import ExecutionContext
from oxide.runtime.submission.walk import Frame

if TYPE_CHECKING:
    from oxide.driver.base import ConditionalKind
    from oxide.runtime.memory.allocation import Allocation
    from oxide.runtime.plan.nodes import PlanNode

    Flag = DeviceBox | Arc[DeviceBox] | DeviceOperation[Any]

T = TypeVar("T")

_I32: Final[np.dtype[Any]] = np.dtype(np.int32)
_PLAIN: Final = (int, float, complex, str, np.generic, type(None))

_BEGIN: Final = 0  # the states of a conditional: the operation that yields its flag has not begun;
_FLAG: Final = 1  # the flag is given to the step;
_BODIES: Final = 2  # bodies are recorded;
_GRAPH: Final = 3  # the conditional runs in a graph of its own;
_HOST: Final = 4  # the host decides;
_END: Final = 5  # a body is recorded

_warned: set[str] = set()  # the reasons for which a warning was given


class _Conditional(DeviceOperation[T]):
    """The base of ``while_loop`` and ``cond``. The flag decides on ``_bodies``, which have ``_labels`` in pictures and
    ``_details`` in notes."""

    _composed = _combines = True
    _labels: tuple[str, ...]
    _details: tuple[str, ...]
    _line: str

    def __init__(self, flag: Flag, *bodies: DeviceOperation[Any]) -> None:
        self._flag = flag
        self._bodies = bodies
        self._parts = (flag,) if isinstance(flag, DeviceOperation) else ()
        super().__init__(*self._parts, *bodies)

    def step(self, frame: Frame, result: Any) -> DeviceOperation[Any] | None:
        context = frame.context
        if frame.at == _BEGIN:
            frame.at = _FLAG
            if self._parts:
                part: DeviceOperation[Any] = self._parts[0]
                return part
            result = self._flag
        if frame.at == _FLAG:
            flag = frame.data = _flag_of(result, context, self._called)
            if not _is_supported(context, self._called):
                frame.at = _HOST
            elif context.recording is None:
                frame.at = _GRAPH
                return AsGraph(type(self)(flag, *self._bodies))
            else:
                frame.at, frame.copies, frame.results = _BODIES, len(context.recording.made), []
                return self._body(0)
        if frame.at == _BODIES:
            frame.results.append(result)
            number = len(frame.results)
            if number < len(self._bodies):
                return self._body(number)
            result = self._close(context, frame.data, frame.results, frame.copies)
        elif frame.at == _HOST:
            result = self._run_on_host(context, frame.data)
        frame.result = result
        return None

    def fail(self, frame: Frame, error: BaseException) -> DeviceOperation[Any] | None:
        """Lets the host decide if the graph of the operation's own cannot be made because a launch is interpreted."""
        if frame.at != _GRAPH or not isinstance(error, InterpretedInGraphError):
            return None
        frame.at = _HOST
        return done(None)

    def _named(self, number: int) -> str:
        """Returns the name of a body for the errors of its recording."""
        return f"{self._details[number] or 'the body'} of a {self._called}"

    def _body(self, number: int) -> Body:
        return Body(self._bodies[number], self._named(number), self._called, self._details[number])

    def _close(self, context: ExecutionContext, flag: DeviceBox, recorded: list[Any], before: int) -> Any:
        """Records the conditional, and returns its result. ``recorded`` has the nodes and the result of each body,
        ``before`` is the number of allocations before the bodies."""
        raise NotImplementedError

    def _run_on_host(self, context: ExecutionContext, flag: DeviceBox) -> Any:
        """Reads the flag back and decides on the host."""
        raise NotImplementedError

    def depict(self) -> Depiction:
        return (
            "graph",
            self._called,
            (self._line,),
            (("flag", self._flag), *zip(self._labels, self._bodies, strict=False)),
        )


@final
class WhileLoop(_Conditional[T]):
    _called, _labels, _details, _line = "while_loop", ("body",), ("",), "until the flag is 0"

    def __init__(self, flag: Flag, body: DeviceOperation[T]) -> None:
        super().__init__(flag, body)
        self.place_as(body)

    def _close(self, context: ExecutionContext, flag: DeviceBox, recorded: list[Any], before: int) -> Any:
        recording = context.recording
        assert recording is not None
        ((nodes, result),) = recorded
        if not any(flag._allocation in node.writes for node in nodes):
            raise ValueError(
                f"while_loop: {self._bodies[0]!r} does not write the flag, {flag!r}, so that the loop would never end; "
                f"a kernel of the body sets the flag to 0 when it is done"
            )
        own = recording.made[before:]
        _fill_with_zeros(context, own)
        recording.conditional("while", flag, [nodes], own)
        return result

    def _run_on_host(self, context: ExecutionContext, flag: DeviceBox) -> Any:
        # Recorded for the errors, and for the result if the body never runs.
        result, rehearsed = _rehearsed(context, WhileLoop(flag, self._bodies[0]).run)
        made: list[Allocation] | None = rehearsed
        while _read(context, flag):
            made = None
            result = _run_and_wait(context, self._body(0).run)[1]
        if made is not None:
            _fill_with_zeros(context, made)
        return result

    def spec(self) -> Spec:
        return self._bodies[0].spec()


@final
class Cond(_Conditional[Any]):
    _called, _labels, _line = "cond", ("then", "otherwise"), "as the flag says"
    _details = ("branch then", "branch otherwise")

    def __init__(self, flag: Flag, *branches: DeviceOperation[Any]) -> None:
        super().__init__(flag, *branches)
        then, otherwise = branches[0], branches[-1]
        if then._placed and otherwise._placed and otherwise._placement == then._placement:
            self.place_as(then)

    def _close(self, context: ExecutionContext, flag: DeviceBox, recorded: list[Any], before: int) -> Any:
        recording = context.recording
        assert recording is not None
        bodies: list[list[PlanNode]] = [nodes for nodes, _ in recorded]
        result = None
        if len(bodies) > 1:
            merge = _Merge(context, *self._bodies)
            result = merge.merged(recorded[0][1], recorded[1][1], "")
            for number, nodes in enumerate(bodies):
                outer = recording.begin_body(self._named(number), nodes)
                try:
                    merge.copy(number)
                finally:
                    recording.end_body(outer)
        if any(bodies):
            kind: ConditionalKind = "if" if len(bodies) == 1 else "if-else"
            recording.conditional(kind, flag, bodies, recording.made[before:])
        return result

    def _run_on_host(self, context: ExecutionContext, flag: DeviceBox) -> Any:
        def record(inner: ExecutionContext) -> list[Any]:
            results = [self._body(number).run(inner)[1] for number in range(len(self._bodies))]
            if len(results) > 1:
                _Merge(inner, *self._bodies).merged(results[0], results[1], "")
            return results

        results, _ = _rehearsed(context, record)  # for the errors, and the other branch's result
        number = 0 if _read(context, flag) else 1
        if number < len(results):
            results[number] = self._body(number).run(context)[1]
        if len(results) == 1:
            return None
        merge = _Merge(context, *self._bodies)
        result = merge.merged(results[0], results[1], "")
        merge.copy(number)
        return result

    def spec(self) -> Spec:
        known = self._bodies[0].spec()
        return known if len(self._bodies) > 1 and known == self._bodies[1].spec() else None


@final
class Body(DeviceOperation[tuple[list[Any], Any]]):
    """An operation that is recorded as a body of a conditional, or run as one if nothing is recorded. Yields the nodes
    of the body, and the operation's result. ``body`` names the body in the errors of its recording; ``what`` and
    ``detail`` are those of its place."""

    _composed = _combines = True

    def __init__(self, operation: DeviceOperation[Any], body: str, what: str, detail: str) -> None:
        self._parts = (operation,)
        self._called = operation.traced_name()
        self._body = body
        self._what = what
        self._detail = detail
        super().__init__(operation)
        self.consume()

    def step(self, frame: Frame, result: Any) -> DeviceOperation[Any] | None:
        context = frame.context
        if frame.at == _BEGIN:
            frame.results, frame.place = [], context.place
            if context.recording is not None:
                frame.data = context.recording.begin_body(self._body, frame.results)
            frame.at = _BODIES
            context.place = (self._what, self._detail, 1, frame.place)
            part: DeviceOperation[Any] = self._parts[0]
            return part
        self._end(frame)
        context.place = frame.place
        frame.result = frame.results, result
        return None

    def fail(self, frame: Frame, error: BaseException) -> None:
        if frame.at == _BODIES:
            self._end(frame)
            if isinstance(error, Exception):
                add_note_once(error, part_note(self._what, self._detail, 1))

    def _end(self, frame: Frame) -> None:
        frame.at = _END
        recording = frame.context.recording
        if recording is not None:
            recording.end_body(frame.data)


@final
class _Merge:
    """Merges the results of a ``cond``'s two branches into one result. Where the branches yield different boxes, the
    merged result has a new box, to which each branch copies its own box."""

    def __init__(self, context: ExecutionContext, then: DeviceOperation[Any], otherwise: DeviceOperation[Any]) -> None:
        self._context = context
        self._then = then
        self._otherwise = otherwise
        self._copies: list[tuple[DeviceBox, tuple[DeviceBox, DeviceBox]]] = []

    def merged(self, then: Any, otherwise: Any, where: str) -> Any:
        """Returns the merged result for ``then`` and ``otherwise``: the branches' results, or elements of these. In the
        second case ``where`` is the index of the element as text, such as ``[0]``. Raises ``TypeError`` or
        ``ValueError`` if the two differ in kind, dtype, shape or length."""
        if then is otherwise:
            return then
        if isinstance(then, DeviceBox) and isinstance(otherwise, DeviceBox):
            return self._merged_boxes(then, otherwise, where)
        if isinstance(then, Arc) and isinstance(otherwise, Arc):
            value = self.merged(then.value, otherwise.value, where)
            return then if value is then.value else Arc(value)
        if isinstance(then, Partition) and isinstance(otherwise, Partition):
            if then.tile_shape != otherwise.tile_shape:
                raise self._differ(ValueError, then, otherwise, where)
            box = self.merged(then.box, otherwise.box, where)
            return then if box is then.box else Partition(box, then.tile_shape)
        if isinstance(then, tuple) and isinstance(otherwise, tuple):
            if len(then) != len(otherwise):
                raise self._differ(ValueError, then, otherwise, where)
            pairs = enumerate(zip(then, otherwise, strict=True))
            return tuple([self.merged(one, other, f"{where}[{number}]") for number, (one, other) in pairs])
        if type(then) is type(otherwise) and isinstance(then, _PLAIN):
            if then == otherwise:
                return then
            raise self._differ(ValueError, then, otherwise, where)
        raise self._differ(TypeError, then, otherwise, where)

    def _merged_boxes(self, then: DeviceBox, otherwise: DeviceBox, where: str) -> DeviceBox:
        if then.dtype != otherwise.dtype:
            raise self._differ(TypeError, then, otherwise, where)
        if then.shape != otherwise.shape:
            raise self._differ(ValueError, then, otherwise, where)
        same = then._allocation is otherwise._allocation and then.ptr == otherwise.ptr
        if same and then.strides == otherwise.strides:
            return then
        target = new_box(self._context, then.shape, then.dtype)
        self._copies.append((target, (then, otherwise)))
        return target

    def copy(self, number: int) -> None:
        """Submits the copies at the end of branch ``number``, from its boxes to the merged boxes."""
        for target, sources in self._copies:
            copy_box(self._context, target, sources[number])

    def _differ(self, kind: type[Exception], then: object, otherwise: object, where: str) -> Exception:
        return kind(
            f"cond: the result{where} of {self._then!r} is {_text(then)}, and that of {self._otherwise!r} is "
            f"{_text(otherwise)}; both branches yield boxes of one shape and dtype, or tuples of such. One followed by "
            f"map(lambda _: None) yields nothing"
        )


def while_loop(flag: Flag, body: DeviceOperation[T]) -> DeviceOperation[T]:
    """Runs the operation ``body`` again and again while ``flag`` is not 0. The flag is read on the device before each
    iteration, so the body may not run at all. The body's kernels write the flag.

    ``flag`` is a box of one i32, an ``Arc`` of such a box, or an operation that yields either; the operation runs once.
    Yields the result of ``body``, whose boxes hold the values of the last iteration. If the body never ran, the boxes
    that it makes hold zeros. The body is recorded once: its functions are called once, and an ``h2d`` in it reads its
    array once for all iterations. A fault of a kernel ends the loop.

    Each run captures the loop into a CUDA graph and launches the graph. So a loop that runs often is better captured
    once, by the program: ``while_loop(flag, body).graph()``. On a GPU, such a graph needs a driver of CUDA 12.4 or
    later. With an older driver, a run reads the flag back before each iteration, and a capture raises ``GraphError``.

    Raises ``ArgumentError`` for any other flag, ``TypeError`` for a body that is not an operation. Running raises
    ``ValueError`` if the body does not write the flag, and ``GraphError`` for work that a body cannot hold: ``d2h``,
    ``memcpy`` from a host array, another graph's launch.
    """
    _check_parts(flag, "while_loop", body)
    return WhileLoop(flag, body)


def cond(flag: Flag, then: DeviceOperation[Any], otherwise: DeviceOperation[Any] | None = None) -> DeviceOperation[Any]:
    """Runs the operation ``then`` if ``flag`` is not 0, else the operation ``otherwise``, if there is one. The flag is
    read on the device. It has the forms that ``while_loop`` takes. As for ``while_loop``, a run captures a graph, or
    reads the flag back if the driver is too old.

    If both branches yield boxes of the same shape and dtype, or tuples of such boxes, the ``cond`` yields new boxes, or
    a tuple of new boxes, that hold the result of the branch that ran. A box that both branches yield is yielded itself,
    without a copy. Without ``otherwise``, yields None.

    Raises ``ArgumentError`` for any other flag, ``TypeError`` for a branch that is not an operation. Running raises
    ``TypeError`` or ``ValueError`` if the results of the branches differ in form, and ``GraphError`` as ``while_loop``
    does.
    """
    branches = (then,) if otherwise is None else (then, otherwise)
    _check_parts(flag, "cond", *branches)
    return Cond(flag, *branches)


def _check_parts(flag: Any, what: str, *operations: Any) -> None:
    """Checks the arguments of ``while_loop`` or ``cond``. First marks all operations as used, so that a refused
    operation does not warn when it is dropped."""
    consume((flag, *operations))
    for each in operations:
        if not isinstance(each, DeviceOperation):
            hint = "; call it, or wrap it: with_context(lambda context: …)" if callable(each) else ""
            raise TypeError(f"{what} runs operations, not {type(each).__name__}{hint}")
    known = flag.spec() if isinstance(flag, DeviceOperation) else flag
    if known is not None:
        _check_flag(known, what)


def _check_flag(flag: Any, what: str) -> None:
    """Raises ``ArgumentError`` unless ``flag`` is a box of one i32, an ``Arc`` of such a box, or the spec of such a
    box."""
    found = flag.value if isinstance(flag, Arc) else flag
    if not isinstance(found, (DeviceBox, BoxSpec)):
        hint = "; first(), last() or unzip() pick one of a tuple" if isinstance(found, tuple) else ""
        hint = hint or "; h2d(np.array([1], np.int32)) makes one"
        raise ArgumentError(f"{what}: the flag is a box of one i32, not {type(found).__name__}{hint}")
    if found.dtype != _I32 or number_of_elements(found.shape) != 1:
        raise ArgumentError(f"{what}: the flag is a box of one i32, not of {describe(found.shape, found.dtype)}")


def _flag_of(flag: Any, context: ExecutionContext, what: str) -> DeviceBox:
    """Returns the box of ``flag``. Raises ``ArgumentError`` if it is no flag, and ``DeviceError`` if the box is on
    another device than the context's."""
    _check_flag(flag, what)
    box: DeviceBox = flag.value if isinstance(flag, Arc) else flag
    require_device(box, context.device, what)
    return box


def _is_supported(context: ExecutionContext, what: str) -> bool:
    """Returns whether the device's graphs can hold conditionals. If they cannot, raises ``GraphError`` in a capture,
    and warns once elsewhere."""
    recording = context.recording
    if recording is not None and recording.rehearses:
        return True
    device = context.device
    graphs = device.driver.graphs
    reason = "its driver has no graphs" if graphs is None else graphs.conditionals(device.id)
    if reason is None:
        return True
    if recording is not None:
        raise GraphError(
            f"{what} cannot be captured on {device.label}: {reason}. Update the driver, or run the operation outside a "
            f"graph, where the host reads the flag"
        )
    if reason not in _warned:
        _warned.add(reason)
        warn_caller(f"{what} reads its flag back to the host on {device.label}: {reason}")
    return False


def _rehearsed(context: ExecutionContext, record: Callable[[ExecutionContext], T]) -> tuple[T, list[Allocation]]:
    """Calls ``record`` with a context whose work is recorded and never runs. Returns the result, and the memory that
    was allocated."""
    recording = Recording(context.stream, of_run=True, rehearses=True)
    inner = context.part(recording)
    try:
        with recording:
            return record(inner), recording.made
    finally:
        recording.is_open = False
        context.absorb(inner)


def _fill_with_zeros(context: ExecutionContext, made: list[Allocation]) -> None:
    for allocation in made:
        if allocation.nbytes:
            with context.submission_lock, context.ordered([], [allocation]):
                context.driver.fill(allocation.address, b"\0", allocation.nbytes, context.timeline.handle)


def _read(context: ExecutionContext, flag: DeviceBox) -> bool:
    return bool(_run_and_wait(context, lambda inner: download(inner, flag)).any())


def _run_and_wait(context: ExecutionContext, part: Callable[[ExecutionContext], T]) -> T:
    """Calls ``part`` with a context for a part of the run, waits until the device has done the work that ``part``
    submitted, and returns the result of ``part``. Raises the faults of that work's kernels."""
    inner = context.part()
    try:
        result = part(inner)
        inner.wait_for_joined()
        inner.timeline.mark().synchronize()
    except BaseException:
        context.absorb(inner)
        raise
    for report in inner.faults:
        report.raise_fault()
    return result


def _text(result: object) -> str:
    """Returns the form of a branch's result for messages."""
    if isinstance(result, DeviceBox):
        return f"a box of {describe(result.shape, result.dtype)}"
    if isinstance(result, tuple):
        return f"a tuple of {len(result)}"
    if isinstance(result, Partition):
        return f"a Partition in tiles of {result.tile_shape}"
    return written(result) if isinstance(result, _PLAIN) else f"of type {type(result).__name__}"
