"""DeviceOperation: a lazy recipe of device work.

The idea is cuda-async's ``DeviceOperation``. Building one does nothing; running it (``await``, ``sync``, …) executes
it in an ``ExecutionContext``, whose stream a policy picked, and may be done again. Everything an operation submits
goes to that stream in order, and nothing waits in between: what an operation yields are handles to results that
the device may still be producing.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

import numpy as np

from oxide.dropping import calls_drop, finalise_subclass, nothing
from oxide.errors import DeviceError
from oxide.native import Given, is_compiled, mypyc_attr, warn_caller
from oxide.runtime.awaiting.future import DeviceFuture
from oxide.runtime.awaiting.unrun import complain, warns_when_called
from oxide.runtime.device.places import add_note_once, origin, part_note
from oxide.runtime.device.runtime import current_runtime, not_in_force
from oxide.runtime.loop.event_loops import current_loop, running_loop_name
from oxide.runtime.submission.stream import Stream
from oxide.runtime.submission.submission import ExecutionContext, run_blocking, submit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxide.runtime.device.memory import DeviceBox
    from oxide.runtime.device.policy import SchedulingPolicy
    from oxide.runtime.device.runtime import Device, Runtime
    from oxide.runtime.operations.arc import Arc
    from oxide.runtime.operations.graph import CudaGraph

T = TypeVar("T")
U = TypeVar("U")


@final
@dataclass(frozen=True, slots=True)
class BoxSpec:
    """What is known of a box before the operation that yields it has run."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


Spec = BoxSpec | tuple[Any, ...] | None
"""What is known of a result beforehand: a box, a tuple of these, or nothing."""


@mypyc_attr(allow_interpreted_subclasses=True)
class DeviceOperation(Generic[T]):
    """A recipe that yields a ``T`` when run. Subclass it and define ``execute`` for an operation of your own.

    An operation that is dropped without ever having been run or made part of another warns, as a coroutine does.
    """

    def __init_subclass__(cls) -> None:
        """Raises ``TypeError`` for a class without ``execute``. ``ABC`` would say so at the first object, but its
        ``isinstance`` takes 0.2 µs and not 0.03, and each run asks some twenty times."""
        super().__init_subclass__()
        if cls.execute is DeviceOperation.execute:
            raise TypeError(f"{cls.__name__} is an operation without execute(self, context): define it")
        finalise_subclass(cls, drop_operation)

    _placed = False  # else it runs where the whole runs
    _placement: int | Device  # the device it was placed on

    _unused = False  # until the end of __init__, so that one whose arguments were refused does not warn
    _drop: Any = None  # ``nothing`` once it was used: dropping it is no mistake

    def __init__(self, *parts: DeviceOperation[Any]) -> None:
        for part in parts:
            part.consume()
        self._unused = True

    @abstractmethod
    def execute(self, context: ExecutionContext) -> T:
        """Submits the work to ``context.stream`` and returns its result, which may still be in flight."""

    # Combining

    def and_then(self, function: Callable[[T], DeviceOperation[U]]) -> DeviceOperation[U]:
        """Runs this, then the operation ``function(result)``, on the same stream.

        ``function`` is called when this has been submitted: the result is a handle, its data may be in flight.
        Running it raises ``TypeError`` if the function returns something that is no operation.
        """
        return combinators.AndThen(self, function, "and_then")

    def then(self, function: Callable[[T], DeviceOperation[U]]) -> DeviceOperation[U]:
        """``and_then``, by cuTile Rust's name."""
        return self.and_then(function)

    def apply(self, function: Callable[[T], DeviceOperation[U]]) -> DeviceOperation[U]:
        """``and_then``, by cuda-async's older name."""
        return self.and_then(function)

    def and_then_with_context(
        self, function: Callable[[ExecutionContext, T], DeviceOperation[U]]
    ) -> DeviceOperation[U]:
        """``and_then`` with the execution context: the operation ``function(context, result)``."""
        return combinators.AndThen(self, function, "and_then_with_context", with_context=True)

    def map(self, function: Callable[[T], U]) -> DeviceOperation[U]:
        """Changes the result on the host, with no device work. It may be in flight: ``function`` sees handles."""
        return combinators.Map(self, function)

    def inspect(self, function: Callable[[T], object]) -> DeviceOperation[T]:
        """Calls ``function(result)`` and yields the result unchanged. It may be in flight, as for ``map``."""
        return combinators.Inspect(self, function)

    def first(self) -> DeviceOperation[Any]:
        """The first of a tuple."""
        return combinators.Element(self, 0)

    def last(self) -> DeviceOperation[Any]:
        """The last of a tuple."""
        return combinators.Element(self, -1)

    def unzip(self, n: Given[int | None] = None) -> tuple[DeviceOperation[Any], ...]:
        """An operation for each element of a tuple; this one runs once for all of them.

        ``n`` is the tuple's length, needed only where it cannot be known beforehand (after ``and_then`` or ``map``).
        """
        from oxide.runtime.operations.combinators import unzip

        return unzip(self, n)

    def arc(self) -> DeviceOperation[Arc[T]]:
        """The result in an ``Arc``, to be shared by clones."""
        from oxide.runtime.operations.arc import Arc

        return self.map(Arc)

    def shared(self) -> DeviceOperation[T]:
        """An operation that many may run and that does its work once; each gets the same result object."""
        return combinators.Shared(self)

    def to_host(self) -> DeviceOperation[NDArray[Any]]:
        """``d2h`` of the result."""
        from oxide.runtime.operations.transfers import d2h

        return d2h(self)

    def to_device(self, device: Given[int | Device]) -> DeviceOperation[DeviceBox]:
        """``to_device`` of the result: the box, copied to another device."""
        from oxide.runtime.operations.peer import to_device

        return to_device(self, device)

    def on(self, device: Given[int | Device]) -> DeviceOperation[T]:
        """This operation on another device: ``device`` is a number or one of ``devices()``.

        It may be part of an operation on another device, which then ends after it; several placed operations of one
        ``zip`` or ``gather`` run at the same time. ``and_then``, ``map`` and the like go on on the same device.
        Raises ``TypeError`` for what is no device; running it raises ``DeviceError`` for one that is not set up.
        """
        from oxide.runtime.operations.placement import OnDevice

        return OnDevice(self, device)

    # Capturing

    def graph(self) -> CudaGraph[T]:
        """Captures this into a ``CudaGraph``, on a stream of its own. Runs nothing; blocks once."""
        self.consume()
        return self.graph_on(self._home(current_runtime()).new_stream())

    def graph_on(self, stream: Given[Stream]) -> CudaGraph[T]:
        """Captures this into a ``CudaGraph`` whose updates run on ``stream``. Runs nothing; blocks once.

        Boxes that it makes are allocated now and belong to the graph. Raises ``GraphError`` for what a graph cannot
        hold.
        """
        from oxide.runtime.operations.graph import capture

        self.consume()
        return capture(self, require_stream(stream))

    # Running

    def sync(self) -> T:
        """Runs on a stream of the policy's and blocks the thread until the result is there.

        Warns inside a running event loop, which it blocks.
        """
        self.consume()
        runtime = current_runtime()
        return self._run_blocking(picked_stream(runtime.policy, self._home(runtime)), "sync()")

    def sync_on(self, stream: Given[Stream]) -> T:
        """Runs on ``stream`` and blocks the thread until the result is there. Warns as ``sync`` does.

        An operation that ``on`` placed on another device runs there, and ``stream`` goes on after it.
        """
        self.consume()
        return self._run_blocking(require_stream(stream), "sync_on(stream)")

    def _run_blocking(self, stream: Stream, called: str) -> T:
        loop = running_loop_name()
        if loop is not None:
            warn_caller(f"{called} blocks the {loop} event loop until the device is done; use await")
        return run_blocking(self, stream)

    def async_on(self, stream: Given[Stream]) -> T:
        """Submits to ``stream`` and returns the result at once, in flight until you synchronise the stream.

        A fault of its kernels is raised by ``stream.synchronize()``. An operation that ``on`` placed on another device
        runs there, and ``stream`` goes on after it.
        """
        self.consume()
        stream = require_stream(stream)
        submission = submit(self, stream)
        stream._adopt(submission)
        return submission.result_in_flight

    def into_future(self) -> DeviceFuture[T]:
        """A future bound to a stream of the policy's; its work is submitted at the first await and not before."""
        try:
            runtime = current_runtime()
            return DeviceFuture(self, picked_stream(runtime.policy, self._home(runtime)))
        except Exception:
            self.consume()  # it was used, if wrongly
            raise

    def schedule(self, policy: Given[SchedulingPolicy]) -> DeviceFuture[T]:
        """A future bound to a stream that ``policy`` picks now; submitted at the first await and not before."""
        try:
            if not hasattr(policy, "next_stream"):
                raise TypeError(
                    f"schedule takes a policy with a method next_stream(device), not {type(policy).__name__}"
                )
            # On whichever device that is: such a policy says where the operation runs, as policy_of does.
            return DeviceFuture(self, require_stream(policy.next_stream(self._home(current_runtime()))))
        except Exception:
            self.consume()  # it was used, if wrongly
            raise

    def __await__(self) -> Generator[Any, Any, T]:
        self.consume()
        loop = current_loop()  # refuses before a stream is picked
        runtime = current_runtime()
        stream = picked_stream(runtime.policy, self._home(runtime))
        return DeviceFuture(self, stream).wait(loop, alone=True).__await__()

    # What the runtime uses

    def run(self, context: ExecutionContext) -> T:
        """Executes as part of a run, on the device it was placed on. An error's notes say where in the operation it
        arose, innermost first."""
        self._drop = nothing
        levels = context.levels
        if not levels:  # the compiled form takes none of Python's stack, and the machine's has no such check
            raise RecursionError("operations are nested too deep")
        context.levels = levels - 1
        try:
            if self._placed and self._placement is not context.device:
                from oxide.runtime.operations.placement import find_device, run_placed

                device = find_device(context.runtime, self._placement)
                if device is not context.device:
                    result = run_placed(context, device, self)
                    context.levels = levels
                    return result
            result = self.execute(context)
            context.levels = levels
            return result
        except Exception as error:
            context.levels = levels
            where = self.whereabouts()
            if where is not None:
                add_note_once(error, where)
            raise

    def whereabouts(self) -> str | None:
        """What an error's notes call this; None for what only passes on what others do."""
        return f"in {self!r}"

    def consume(self) -> None:
        """It is part of something now: dropping it is no mistake."""
        self._drop = nothing

    def place_as(self, other: DeviceOperation[Any]) -> None:
        """It runs where ``other`` runs."""
        if other._placed:
            self._placed = True
            self._placement = other._placement

    def title(self) -> object:
        """What messages can name it by when it has been dropped, holding as little as they need."""
        return type(self) if type(self).__repr__ is DeviceOperation.__repr__ else self

    def spec(self) -> Spec:
        """What is known of the result beforehand."""
        return None

    def _home(self, runtime: Runtime) -> Device:
        """The device it runs on if nobody picks a stream."""
        if not self._placed:
            return runtime.default_device
        from oxide.runtime.operations.placement import find_device

        return find_device(runtime, self._placement)

    def _complaint(self) -> str | None:
        """The warning that it was dropped and never run, if it was."""
        if not self._unused or self._drop is nothing:
            return None
        try:
            name = repr(self)
        except Exception:
            if sys.is_finalizing():  # modules are gone that it takes, NumPy's for a dtype, and how that fails is theirs
                return None
            raise
        return f"{name} was never run: await it, call sync() or make it part of another operation"

    def __del__(self) -> None:
        drop_operation(self)

    def __repr__(self) -> str:
        return f"<oxide operation {type(self).__name__}>"


def drop_operation(operation: DeviceOperation[Any]) -> None:
    """The finaliser of the compiled form."""
    if operation._unused and operation._drop is None:
        complain(operation)


# In the interpreted form an operation that was not used has no ``_drop`` of its own, and its class's is this method.
if not is_compiled():
    calls_drop(DeviceOperation)
    warns_when_called(DeviceOperation, "_drop")


def named(title: object) -> str:
    """An operation as messages name it, by its ``title``."""
    return f"<oxide operation {title.__name__}>" if isinstance(title, type) else repr(title)


def picked_stream(policy: Any, device: Device) -> Stream:
    """The stream of ``device`` that the runtime's policy picks, which may be of the user's making. Raises ``TypeError``
    where that picks none, ``DeviceError`` where it picks one of another device."""
    stream = require_stream(policy.next_stream(device))
    if stream.device is not device:
        raise _wrong_device(type(policy).__name__, stream.device, device)
    return stream


def _wrong_device(policy: str, found: Device, device: Device) -> DeviceError:
    if found.runtime is not device.runtime:
        return not_in_force(f"the stream that the policy {policy} returned", "make it with device.new_stream()")
    return DeviceError(
        f"the policy {policy} returned a stream of {found.label}, where a stream of {device.label} was asked for; "
        f"next_stream(device) must return one that device.new_stream() made"
    )


def require_stream(stream: Given[Stream]) -> Stream:
    if not isinstance(stream, Stream):
        raise TypeError(f"a Stream is needed, got {type(stream).__name__}; devices()[0].new_stream() makes one")
    return stream


@final
class Value(DeviceOperation[T]):
    """See ``value``."""

    def __init__(self, result: T) -> None:
        self._result = result
        super().__init__()

    def execute(self, context: ExecutionContext) -> T:
        return self._result

    def spec(self) -> Spec:
        from oxide.runtime.device.memory import DeviceBox
        from oxide.runtime.operations.arc import Arc

        result = self._result.value if isinstance(self._result, Arc) else self._result
        return BoxSpec(result.shape, result.dtype) if isinstance(result, DeviceBox) else None


def value(x: T) -> DeviceOperation[T]:
    """A host value as an operation that yields it."""
    return Value(x)


@final
class WithContext(DeviceOperation[T]):
    """See ``with_context``."""

    def __init__(self, function: Callable[[ExecutionContext], DeviceOperation[T]]) -> None:
        if not callable(function):
            raise no_function(function, "with_context")
        self._function: Callable[[ExecutionContext], Given[DeviceOperation[T]]] = function
        super().__init__()

    def execute(self, context: ExecutionContext) -> T:
        outer = context.place
        context.place = ("with_context", origin(self._function), 1, outer)
        result = require_operation(self._function(context), "with_context").run(context)
        context.place = outer
        return result

    def whereabouts(self) -> str:
        return part_note("with_context", self._function, 1)


def with_context(function: Callable[[ExecutionContext], DeviceOperation[T]]) -> DeviceOperation[T]:
    """An operation made at execution: ``function(context)`` returns it, knowing the stream and the device."""
    return WithContext(function)


def no_function(found: object, where: str) -> TypeError:
    """The error for what cannot be called."""
    hint = "; write a lambda that returns the operation" if isinstance(found, DeviceOperation) else ""
    return TypeError(f"{where} takes a function, not {type(found).__name__}{hint}")


def require_operation(made: Given[DeviceOperation[T]], where: str) -> DeviceOperation[T]:
    """Raises ``TypeError`` if a user's function returned something that is no operation."""
    if not isinstance(made, DeviceOperation):
        raise TypeError(
            f"{where}'s function must return a DeviceOperation, but it returned {type(made).__name__}; "
            f"use map for a plain value, or value(x)"
        )
    return made


# At the end, as the two files need each other; and not inside the methods, where an import takes 1 µs at each call.
import oxide.runtime.operations.combinators as combinators  # noqa: E402
