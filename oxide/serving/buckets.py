"""Shape buckets: a graph for each shape of a batch, captured at the first use of the shape.

A batch is padded to its bucket's shape by the program, so few graphs serve all batches. A capture takes milliseconds,
or seconds if kernels are compiled, so it runs in a thread while the event loop keeps running.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, final

from oxide.errors import ArgumentError
from oxide.host.locks import new_lock, unheld
from oxide.host.messages import written
from oxide.runtime.devices.fault_records import add_note_once
from oxide.runtime.operations.operation import DeviceOperation, value
from oxide.serving.request_queue import Results

if TYPE_CHECKING:
    from oxide.runtime.operations.graph import CudaGraph

Request = TypeVar("Request")
Result = TypeVar("Result")


@final
@dataclass(slots=True, eq=False)
class Bucket(Generic[Request, Result]):
    """The work of all batches of one shape.

    ``operation`` is captured once. Its uploads (``h2d(array)``) read their arrays again for each batch, after
    ``fill(requests)`` has written the requests into these arrays. ``finish(output, requests)`` gets what the captured
    operation yields, and returns an operation that yields a result for each request: usually a ``d2h``, as the next
    batch overwrites the output. The operation itself copies nothing to the host. Fewer requests than the shape has room
    for are normal: ``fill`` must leave no values of an earlier batch where they would matter.
    """

    operation: DeviceOperation[Any]
    fill: Callable[[list[Request]], object]
    finish: Callable[[Any, list[Request]], DeviceOperation[Results[Result]]]

    def __post_init__(self) -> None:
        if not isinstance(self.operation, DeviceOperation):
            raise TypeError(f"a Bucket takes an operation to capture, not {type(self.operation).__name__}")
        self.operation.consume()
        for name, function in (("fill", self.fill), ("finish", self.finish)):
            if not callable(function):
                raise TypeError(f"Bucket({name}=…) takes a function, not {type(function).__name__}")


@final
class Buckets(Generic[Request, Result]):
    """Runs each batch with the graph of its shape: ``Batcher(Buckets(key, make))``.

    ``key(requests)`` returns the shape of a batch, any hashable value. ``make(key)`` returns the ``Bucket`` of a shape.
    ``make`` is called in a thread, when a batch first has this shape. At most ``limit`` graphs are kept; the graph that
    has been unused for longest is released first. ``keys`` are the shapes that ``await oxide.prepare(batcher)``
    captures ahead of time.

    Raises ``ValueError`` for a limit below 1 or below the number of ``keys``. An error of ``key``, ``make`` or the
    capture is raised to every caller of the batch, and the next batch of the shape tries again.
    """

    def __init__(
        self,
        key: Callable[[list[Request]], Hashable],
        make: Callable[[Any], Bucket[Request, Result]],
        *,
        limit: int = 16,
        keys: Iterable[Hashable] = (),
    ) -> None:
        for name, function in (("key", key), ("make", make)):
            if not callable(function):
                raise TypeError(f"Buckets({name}=…) takes a function, not {type(function).__name__}")
        self._keys = tuple(dict.fromkeys(keys))
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < max(1, len(self._keys)):
            least = f"{len(self._keys)}, the number of keys," if len(self._keys) > 1 else "1"
            raise ValueError(f"Buckets(limit={written(limit)}): the limit must be an integer of {least} or more")
        self._key = key
        self._make = make
        self._limit = limit
        self._capturing = new_lock()  # one capture at a time: a second batch of the shape waits for the first
        self._changing = new_lock()  # guards ``_captured``; held only briefly, as the event loop takes it too
        self._captured: OrderedDict[Hashable, _Captured[Request, Result]] = OrderedDict()

    @property
    def captured(self) -> tuple[Hashable, ...]:
        """Returns the shapes whose graphs are kept, the shape that has been unused for longest first."""
        with unheld(self._changing):
            return tuple(self._captured)

    def prepare_in_thread(self) -> None:
        """Captures the graphs of ``keys``, for ``oxide.prepare``. Raises ``ArgumentError`` if ``keys`` is empty."""
        if not self._keys:
            raise ArgumentError(
                "oxide.prepare cannot know the shapes of the batches: list them, Buckets(key, make, keys=[…])"
            )
        for key in self._keys:
            self.capture(key)

    def __reduce__(self) -> NoReturn:
        raise TypeError("Buckets cannot be pickled or copied; make others with the same functions")

    def key_of(self, requests: list[Request]) -> Hashable:
        """Returns the shape of a batch."""
        key = self._key(requests)
        hash(key)
        return key

    def find(self, key: Hashable) -> Callable[[list[Request]], DeviceOperation[Results[Result]]] | None:
        """Returns the function that runs batches of a shape, None if its graph is not captured."""
        with unheld(self._changing):
            found = self._captured.get(key)
            if found is None:
                return None
            self._captured.move_to_end(key)
            return found.run

    def capture(self, key: Hashable) -> Callable[[list[Request]], DeviceOperation[Results[Result]]]:
        """Captures the graph of a shape unless it has been captured. Returns the function that runs batches of the
        shape. Blocks the thread."""
        with unheld(self._capturing):
            found = self.find(key)
            if found is not None:
                return found
            try:
                bucket = self._make(key)
                if not isinstance(bucket, Bucket):
                    raise TypeError(f"make must return a Bucket, not {type(bucket).__name__}")
                captured = _Captured(bucket)
            except Exception as error:
                add_note_once(error, f"when the bucket {key!r} was captured")
                raise
            with unheld(self._changing):
                self._captured[key] = captured
                if len(self._captured) > self._limit:
                    # Dropped, not closed: a batch in flight may be about to launch it.
                    self._captured.popitem(last=False)
            return captured.run


@final
class _Captured(Generic[Request, Result]):
    """A bucket's graph and its output."""

    def __init__(self, bucket: Bucket[Request, Result]) -> None:
        self._bucket = bucket
        self._graph: CudaGraph[Any] = bucket.operation.graph()
        if self._graph._fills_host:
            raise ArgumentError(
                "a Bucket's operation copies to the host, into an array that the next batch fills again, perhaps "
                "before finish has seen it: end the operation with its boxes, and copy them in finish, as in "
                "finish=lambda y, requests: d2h(y[: len(requests)])"
            )
        self._output = self._graph.take_output()

    def run(self, requests: list[Request]) -> DeviceOperation[Results[Result]]:
        """Returns the operation that runs the requests. Filling, launching and finishing are one submission, so no
        other batch changes the arrays in between."""
        bucket, output = self._bucket, self._output
        return (
            value(requests)
            .inspect(bucket.fill)
            .and_then(lambda _: self._graph.launch())
            .and_then(lambda _: bucket.finish(output, requests))
        )
