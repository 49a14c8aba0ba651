"""DeviceOperation: a lazy description of device work.

The idea is cuda-async's ``DeviceOperation``. Building an operation does nothing. Running it (``await``, ``sync``, …)
executes it in an ``ExecutionContext``, whose stream a policy picked. A run submits its work to that stream, in order.
It yields handles to results that the device may still be computing. It waits in between only where a function of the
program is to see a host array: the array is filled first (``submission/walk.py``). An operation may be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from inspect import CO_COROUTINE
from types import CoroutineType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, final

import numpy as np

from oxide.host import core
from oxide.host.core import run_blocking, run_through, submit_at_once
from oxide.host.messages import warn_caller
from oxide.runtime.awaiting import unrun
from oxide.runtime.awaiting.future import DeviceFuture
from oxide.runtime.devices.fault_records import described, origin, part_note
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.devices.scheduling import find_device, picked_stream, require_stream
from oxide.runtime.loop.event_loops import blocked_loop_name, current_loop
from oxide.runtime.memory.memory import Arc, DeviceBox
from oxide.runtime.ordering.stream import Stream
from oxide.runtime.submission.submission import ExecutionContext, Submission, not_waiting
from oxide.runtime.submission.walk import Frame, Submittable, TooDeep

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxide.pictures import Picture
    from oxide.runtime.devices.runtime import Device, Runtime, SchedulingPolicy
    from oxide.runtime.memory.memory import Partition
    from oxide.runtime.operations.graph import CudaGraph

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")


@final
@dataclass(frozen=True, slots=True)
class BoxSpec:
    """The shape and dtype of a box, known before the operation that yields it has run."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


Spec = BoxSpec | tuple[Any, ...] | None
"""A description of a result before the run: a box's spec, a tuple of specs, or None if nothing is known."""

Depiction = tuple[str, str, tuple[str, ...], tuple[tuple[str, Any], ...]]
"""A picture's node for an operation: its kind (``pictures.NodeKind``), its title, further lines, and its inputs. An
input is a pair: a name or "", and an operation, a box or an array. If the kind is "", the operation has no node: it
only passes on its one input or a part of it, and the title says which part."""


class DeviceOperation(Submittable[T_co]):
    """A lazy operation that yields a ``T_co`` when run. To define your own, subclass it and define ``execute``.

    Like a coroutine, an operation warns if it is dropped without having been run or made part of another.
    """

    __slots__ = ()

    _called = ""
    """The name in traces and pictures, of the function that makes the operation; by default that of the class."""

    def __init_subclass__(cls) -> None:
        """Raises ``TypeError`` for a class without ``execute``, unless its operations are executed by steps. The
        alternative, ``ABC``, would raise the error when the first object is made. But ``isinstance`` takes 0.2 µs for
        an ``ABC`` instead of 0.03 µs, and each run calls it some twenty times."""
        super().__init_subclass__()
        if cls.execute is DeviceOperation.execute and cls.step is Submittable.step and cls.finish is Submittable.finish:
            raise TypeError(f"{cls.__name__} is an operation without execute(self, context): define it")

    def execute(self, context: ExecutionContext) -> T_co:
        """Submits the work to ``context.stream`` and returns its result, which may still be in flight."""
        return self.run(context)

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        """Raises ``TypeError``: an operation has no numbers before it has run."""
        raise TypeError(f"{self!r} has not run, so it is no array: await it or call sync() first")

    def __bool__(self) -> bool:
        """Raises ``TypeError``: an operation has no truth value before it has run."""
        raise TypeError(f"{self!r} has not run, so it is neither true nor false: await it or call sync() first")

    # Combining

    if TYPE_CHECKING:  # the methods of the core, with their types

        def __init__(self, *parts: DeviceOperation[Any]) -> None: ...

        def and_then(self, function: Callable[[T_co], DeviceOperation[U]]) -> DeviceOperation[U]: ...

        def and_then_with_context(
            self, function: Callable[[ExecutionContext, T_co], DeviceOperation[U]]
        ) -> DeviceOperation[U]: ...

        def map(self, function: Callable[[T_co], U]) -> DeviceOperation[U]: ...

    def then(self, function: Callable[[T_co], DeviceOperation[U]]) -> DeviceOperation[U]:
        """Does what ``and_then`` does; cuTile Rust's name for it."""
        return self.and_then(function)

    def apply(self, function: Callable[[T_co], DeviceOperation[U]]) -> DeviceOperation[U]:
        """Does what ``and_then`` does; cuda-async's older name for it."""
        return self.and_then(function)

    def inspect(self, function: Callable[[T_co], object]) -> DeviceOperation[T_co]:
        """Calls ``function(result)`` and yields the result unchanged. Boxes and arrays are as for ``map``."""
        return combinators.Inspect(self, function)

    def first(self) -> DeviceOperation[Any]:
        """Yields the first element of the tuple that this operation yields."""
        return combinators.Element(self, 0)

    def last(self) -> DeviceOperation[Any]:
        """Yields the last element of the tuple that this operation yields."""
        return combinators.Element(self, -1)

    def unzip(self, n: int | None = None) -> tuple[DeviceOperation[Any], ...]:
        """Returns an operation for each element of the tuple that this operation yields. This operation runs once for
        all of them.

        ``n`` is the tuple's length. It is needed only if it cannot be known before the run (after ``and_then`` or
        ``map``).
        """
        return combinators.unzip(self, n)

    def arc(self) -> DeviceOperation[Arc[T_co]]:
        """Yields the result in an ``Arc``, to be shared by clones."""
        return self.map(Arc)

    def shared(self) -> DeviceOperation[T_co]:
        """Returns an operation that may be run many times and does its work once. Each run yields the same object."""
        return combinators.Shared(self)

    def to_host(self) -> DeviceOperation[NDArray[Any]]:
        """Copies the result to the host, as ``d2h`` does."""
        return transfers.d2h(self)

    def reshape(self, *shape: int | tuple[int, ...]) -> DeviceOperation[DeviceBox]:
        """Yields the resulting box with another shape: see ``DeviceBox.reshape``."""
        return transfers.Reshaped(self, shape)

    def partition(self, tile_shape: int | tuple[int, ...]) -> DeviceOperation[Partition]:
        """Yields the resulting box as tiles of a shape, for a tile kernel: see ``DeviceBox.partition``."""
        return transfers.Partitioned(self, tile_shape)

    def unpartition(self) -> DeviceOperation[DeviceBox]:
        """Yields the box of the resulting ``Partition``."""
        return transfers.Unpartitioned(self)

    def to_device(self, device: int | Device) -> DeviceOperation[DeviceBox]:
        """Copies the resulting box to another device, as the function ``to_device`` does."""
        return transfers.to_device(self, device)

    def on(self, device: int | Device) -> DeviceOperation[T_co]:
        """Places this operation on a device: ``device`` is a number or one of ``devices()``.

        A placed operation may be part of an operation on another device. The enclosing operation then ends after the
        placed one. Several placed operations of one ``zip`` or ``gather`` run at the same time. The stages that
        ``and_then``, ``map`` and the like add to a placed operation run on its device, too. Raises ``TypeError`` if
        ``device`` is no device. Running raises ``DeviceError`` if the device is not set up.
        """
        return combinators.OnDevice(self, device)

    # Capturing

    def graph(self, *, fuse: bool = False) -> CudaGraph[T_co]:
        """Captures this operation into a ``CudaGraph`` with a new stream. See ``graph_on``."""
        self.consume()
        return self.graph_on(self._home(current_runtime()).new_stream(), fuse=fuse)

    def graph_on(self, stream: Stream, *, fuse: bool = False) -> CudaGraph[T_co]:
        """Captures this operation into a ``CudaGraph`` whose updates run on ``stream``. With ``fuse``, merges the
        launches of elementwise kernels, as ``fused`` does.

        Runs nothing but the sources of shared operations. Blocks the thread until the graph is made. Boxes that the
        operation makes are allocated now and belong to the graph. Raises ``GraphError`` for work that a graph cannot
        hold.
        """
        from oxide.runtime.operations.graph import capture

        self.consume()
        return capture(self, require_stream(stream), fuse=fuse)

    # Planning

    def fused(self) -> DeviceOperation[T_co]:
        """Returns this operation with its elementwise stages merged into as few launches as possible.

        A kernel is elementwise if each thread computes its own element of the outputs from its own element of the
        inputs. Results are equal bit for bit. Boxes between the merged stages are neither written nor read, unless the
        program still holds them. Each run records the operation first, so functions of ``and_then`` and ``map`` must
        not run operations themselves (``GraphError``), as in a capture. An operation with a ``cond`` or another part
        that prevents a plan (see ``planned``) runs without fusion.
        """
        from oxide.runtime.operations.planning import Planned

        return Planned(self, fuses=True, branches=False)

    def explain(self) -> str:
        """Returns a text on what planning and fusion would make of this operation: the numbers of launches before and
        after fusion, the memory traffic that it saves, the reasons why kernels are not fused, the memory that boxes
        share, and the nodes before and after. Records the operation as a capture does, and runs nothing but the sources
        of shared operations. Raises ``GraphError`` for an operation that a graph cannot hold."""
        from oxide.runtime.operations.planning import explanation

        self.consume()
        return explanation(self, self._home(current_runtime()).new_stream())

    # Running

    def sync(self) -> T_co:
        """Runs the operation on a stream that the policy picks, and blocks the thread until the result is ready.

        Warns inside a running event loop, because the call blocks the loop.
        """
        self._used = True
        runtime = current_runtime()
        device = self._home(runtime) if self._placed else runtime.default_device
        stream = picked_stream(runtime.policy, device)
        loop = blocked_loop_name()
        if loop is not None:
            _warn_blocking("sync()", loop)
        result: T_co = run_blocking(self, stream)
        return result

    # The same lines as in ``sync``: the call of a method for them takes a twentieth of a short run.
    def sync_on(self, stream: Stream) -> T_co:
        """Runs the operation on ``stream`` and blocks the thread until the result is ready. Warns as ``sync`` does.

        An operation that ``on`` placed on another device runs there, and later work on ``stream`` runs after it.
        """
        self.consume()
        require_stream(stream)
        loop = blocked_loop_name()
        if loop is not None:
            _warn_blocking("sync_on(stream)", loop)
        result: T_co = run_blocking(self, stream)
        return result

    def async_on(self, stream: Stream) -> T_co:
        """Submits the operation to ``stream`` and returns the result at once. The result is in flight until you
        synchronise the stream: read a host array after ``stream.synchronize()``.

        ``stream.synchronize()`` raises the faults of the kernels. An operation that ``on`` placed on another device
        runs there, and later work on ``stream`` runs after it. Raises ``OrderingError`` if a function of the operation
        would have to wait for host data. Nothing is submitted then, unless only another function reveals it.
        """
        self._used = True
        if not isinstance(stream, Stream):
            require_stream(stream)
        submission: Submission[T_co] = submit_at_once(self, stream, "async_on")
        stream._loose.adopt(submission)
        return submission.result_in_flight

    def into_future(self) -> DeviceFuture[T_co]:
        """Returns a future bound to a stream that the policy picks now. The first await submits the work."""
        try:
            runtime = current_runtime()
            return DeviceFuture(self, picked_stream(runtime.policy, self._home(runtime)))
        except Exception:
            self.consume()  # a failed use counts as a use: dropping the operation does not warn
            raise

    def schedule(self, policy: SchedulingPolicy) -> DeviceFuture[T_co]:
        """Returns a future bound to a stream that ``policy`` picks now. The first await submits the work."""
        try:
            if not hasattr(policy, "next_stream"):
                raise TypeError(
                    f"schedule takes a policy with a method next_stream(device), not {type(policy).__name__}"
                )
            # The stream may be on any device: this policy decides where the operation runs, as policy_of does.
            return DeviceFuture(self, require_stream(policy.next_stream(self._home(current_runtime()))))
        except Exception:
            self.consume()  # a failed use counts as a use: dropping the operation does not warn
            raise

    def __await__(self) -> Generator[Any, Any, T_co]:
        self._used = True
        loop = current_loop()  # first, so that it raises before a stream is picked
        runtime = current_runtime()
        device = self._home(runtime) if self._placed else runtime.default_device
        return DeviceFuture(self, picked_stream(runtime.policy, device)).wait(loop, alone=True).__await__()

    # Used by the runtime

    def run(self, context: ExecutionContext) -> T_co:
        """Executes the operation as a part of another operation's ``execute``. Blocks the thread if a function of the
        operation waits for host data: an ``execute`` cannot stop half-way. If an error arises, adds notes to it: they
        say where in the operation it arose, innermost first. Raises ``RecursionError`` if operations are nested too
        deep."""
        levels = context.levels
        if not levels:
            raise TooDeep
        context.levels = levels - 1
        try:
            return run_through(self, context)
        finally:
            context.levels = levels

    def traced_name(self) -> str:
        """Returns the operation's name in traces."""
        return self._called or type(self).__name__

    def copies_to_host(self) -> bool:
        """Returns whether the operation itself, without its parts, is known to copy to the host."""
        return False

    def title(self) -> object:
        """Returns an object that names the operation in messages that may come after the operation was dropped. This is
        the operation itself if its class defines a repr. Otherwise it is the class, which keeps no data alive."""
        return type(self) if type(self).__repr__ is DeviceOperation.__repr__ else self

    def spec(self) -> Spec:
        """Returns the spec of the result, as far as it is known before the run; None if it is unknown."""
        return None

    def depict(self) -> Depiction:
        """Returns the node that a picture shows for the operation. A subclass that does not define this method gets a
        node with the name of the class."""
        return "unknown", type(self).__name__, ("known when it runs",), ()

    def picture(self) -> Picture:
        """Returns the picture of the operation before it runs: ``oxide.pictures.svg(op)`` draws it.

        Runs nothing and calls no function: a stage that a function of ``and_then`` makes is shown as that function. An
        operation that was drawn does not warn that it was never run.
        """
        from oxide.runtime.operations.depicting import picture_of

        self.consume()
        return picture_of(self)

    def _repr_html_(self) -> str:
        """Returns the picture, which notebooks show."""
        from oxide.pictures.drawing import drawn

        return drawn(self)

    def _home(self, runtime: Runtime) -> Device:
        """Returns the device that the operation runs on if no stream is given."""
        if not self._placed:
            return runtime.default_device
        return find_device(runtime, self._placement)

    def _complaint(self) -> str | None:
        """Returns the warning for an operation that was dropped without a run; None if it was used."""
        if not self._unused or self._used:
            return None
        return f"{self!r} was never run: await it, call sync() or make it part of another operation"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled or copied: it may be run again, and shared() runs it once")

    def __repr__(self) -> str:
        return f"<oxide operation {type(self).__name__}>"


class OfArguments(DeviceOperation[T_co]):
    """An operation on arguments, among which may be operations: it takes their results. A subclass defines
    ``submit``."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments
        parts = tuple([each for each in arguments if isinstance(each, DeviceOperation)])
        if parts:
            self._composed, self._parts = True, parts
        super().__init__(*parts)

    def submit(self, context: ExecutionContext, *arguments: Any) -> T_co:
        """Submits the work and returns its result. ``arguments`` have results in place of operations."""
        raise NotImplementedError

    def execute(self, context: ExecutionContext) -> T_co:
        return self.submit(context, *self._arguments)

    def finish(self, context: ExecutionContext, results: list[Any]) -> T_co:
        return self.submit(context, *filled(self._arguments, results))


def spec_of(given: object) -> Spec:
    """Returns the spec of a box, of an ``Arc`` of a box, or of an operation's result; None if it is unknown."""
    if isinstance(given, DeviceOperation):
        return given.spec()
    plain = given.value if isinstance(given, Arc) else given
    return BoxSpec(plain.shape, plain.dtype) if isinstance(plain, DeviceBox) else None


def consume(given: Iterable[object]) -> list[DeviceOperation[Any]]:
    """Returns the operations among arguments, and marks them as used, so that none warns when it is dropped because
    another is refused."""
    found = [each for each in given if isinstance(each, DeviceOperation)]
    for each in found:
        each.consume()
    return found


def done(result: T) -> DeviceOperation[T]:
    """Returns an operation that yields a result which is there, and that need not be run."""
    operation = Value(result)
    operation.consume()
    return operation


def filled(arguments: Iterable[Any], results: Iterable[Any]) -> tuple[Any, ...]:
    """Returns arguments with ``results`` in place of the operations among them."""
    yielded = iter(results)
    return tuple([next(yielded) if isinstance(each, DeviceOperation) else each for each in arguments])


@final
class Value(core.Value, DeviceOperation[T]):
    __slots__ = ()

    _called = "value"

    if TYPE_CHECKING:

        def __init__(self, result: T) -> None: ...

    def spec(self) -> Spec:
        return None if isinstance(self._result, DeviceOperation) else spec_of(self._result)

    def depict(self) -> Depiction:
        if isinstance(self.spec(), BoxSpec):
            return "", "", (), (("", self._result),)
        return "host", "value", (type(self._result).__name__,), ()


def value(x: T) -> DeviceOperation[T]:
    """Returns an operation that yields the host value ``x``."""
    return Value(x)


@final
class WithContext(DeviceOperation[T]):
    _composed = True
    _called = "with_context"

    def __init__(self, function: Callable[[ExecutionContext], DeviceOperation[T]]) -> None:
        if not callable(function):
            raise no_function(function, "with_context")
        self._function: Callable[[ExecutionContext], DeviceOperation[T]] = function
        super().__init__()

    def step(self, frame: Frame, result: Any) -> DeviceOperation[Any] | None:
        context = frame.context
        if frame.at:
            context.place = frame.place
            frame.result = result
            return None
        made = require_operation(self._function(context), "with_context")
        frame.at, frame.place = 1, context.place
        context.place = ("with_context", origin(self._function), 1, frame.place)
        return made

    def whereabouts(self) -> str:
        return part_note("with_context", self._function, 1)

    def depict(self) -> Depiction:
        return "unknown", "with_context", (described(self._function), "known when it runs"), ()


def with_context(function: Callable[[ExecutionContext], DeviceOperation[T]]) -> DeviceOperation[T]:
    """Returns an operation that runs ``function(context)``. The function is called at execution, when the stream and
    the device are known."""
    return WithContext(function)


def _warn_blocking(called: str, loop: str) -> None:
    warn_caller(f"{called} blocks the {loop} event loop until the device is done; use await")


def _refuse_waiting(operation: DeviceOperation[Any], call: str) -> None:
    """Raises ``OrderingError`` if an operation is known to have a function that would wait for host data, which the
    public function ``call`` does not."""
    _, waiting = combinators.host_data(operation)
    if waiting is not None:
        raise not_waiting(call, waiting)


def refuse_stage(function: object, where: str) -> None:
    """Raises ``TypeError`` for a stage whose function cannot be called, or is async."""
    if not callable(function):
        raise no_function(function, where)
    if isinstance(function, FunctionType) and function.__code__.co_flags & CO_COROUTINE:
        raise async_function(function, where)


def no_function(found: object, where: str) -> TypeError:
    """Returns the error for an argument that is not callable."""
    hint = "; write a lambda that returns the operation" if isinstance(found, DeviceOperation) else ""
    return TypeError(f"{where} takes a function, not {type(found).__name__}{hint}")


def async_function(function: Callable[..., Any], where: str) -> TypeError:
    """Returns the error for an async function that was given where an ordinary function is needed."""
    name = getattr(function, "__name__", "the function")
    return TypeError(
        f"{where} takes an ordinary function, not the async {name}: nothing would await it. Await the operation, and "
        f"then {name} with its result"
    )


def refuse_coroutine(made: object, function: Callable[..., Any], where: str) -> None:
    """Raises ``TypeError`` for a coroutine that a user's function returned."""
    if isinstance(made, CoroutineType):
        made.close()
        raise async_function(function, where)


def require_operation(made: DeviceOperation[T], where: str) -> DeviceOperation[T]:
    """Returns ``made``. Raises ``TypeError`` if a user's function did not return an operation."""
    if not isinstance(made, DeviceOperation):
        raise TypeError(
            f"{where}'s function must return a DeviceOperation, but it returned {type(made).__name__}; "
            f"use map for a plain value, or value(x)"
        )
    return made


core.setup(
    **unrun.given,
    origin=origin,
    refuse_coroutine=refuse_coroutine,
    refuse_stage=refuse_stage,
    refuse_waiting=_refuse_waiting,
    require_operation=require_operation,
    FunctionType=FunctionType,
    CoroutineType=CoroutineType,
)

# At the end, because the modules import each other. Inside the methods, an import would take 1 µs at each call.
import oxide.runtime.operations.combinators as combinators  # noqa: E402
import oxide.runtime.operations.transfers as transfers  # noqa: E402
