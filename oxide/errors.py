"""All exceptions that oxide raises.

``OxideError`` is their base class. Each message says what was requested, what was found and how to correct it.
"""

from __future__ import annotations

import sys
from typing import Any, final


class OxideError(Exception):
    """The base of every oxide error."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Python's default passes only the message: another process would lose a fault's fields.
        return _same, (type(self), self.args, self.__dict__)


class CompileError(OxideError):
    """Raised if a kernel cannot be compiled. The message names the file, the line and, if there is one, the fix."""


class LaunchError(OxideError):
    """Raised if a launch is refused on the host, before anything was submitted."""


class ArgumentError(LaunchError, TypeError):
    """Raised for a wrong number or type of kernel argument. Both a ``LaunchError`` and a ``TypeError``."""


class NoEventLoopError(OxideError, RuntimeError):
    """Raised if an operation is awaited where neither trio nor asyncio runs."""


class OperationCancelledError(OxideError):
    """Raised in a task that awaits the handle of a spawned operation after the operation was cancelled with its
    nursery. Also raised in a task that awaits a ``Batcher``'s answer, if the ``Batcher``'s block ends by an exception
    or a cancellation."""


class Overloaded(OxideError):
    """Raised by a ``Batcher`` whose queue is full. Nothing was queued: a client may try again later."""


class BatcherClosedError(OxideError, RuntimeError):
    """Raised by a ``Batcher`` that is called before or after its ``async with`` block."""


class TraceError(OxideError):
    """Raised if a trace cannot be written, or a file is no trace and cannot be drawn."""


class CollectiveError(OxideError):
    """Raised on every rank of a group that can no longer complete its collectives. ``collective`` describes the
    collective that failed. ``rank`` is the rank that caused the failure: its process ended, it did not arrive in time,
    it left the group, or it called another collective. ``rank`` is None if no such rank is known."""

    def __init__(self, message: str, collective: str = "", rank: int | None = None) -> None:
        super().__init__(message)
        self.collective = collective
        self.rank = rank


class OrderingError(OxideError):
    """Raised if nothing orders two uses of one box: under strict ordering, if the runtime would have to insert a wait;
    in any mode, if work on another stream that ``ctx.reads`` or ``ctx.writes`` declared is still being submitted. Also
    raised if ``ctx.reads``, ``ctx.writes`` or a method of ``ctx`` for raw memory is called after the run of ``ctx`` was
    submitted; by ``async_on`` and ``graph.update`` for a function that would see a host array before a copy has
    filled it; and if an operation is run where the calling thread already holds a lock of oxide's, by a finaliser or a
    signal handler that has interrupted oxide's own code."""


class DeviceError(OxideError):
    """Raised if a device is missing, misused or failing."""


class DriverError(DeviceError):
    """Raised if a driver call failed. ``code`` and ``name`` are those of the driver's error; the message names the
    call."""

    def __init__(self, code: int, name: str, message: str = "") -> None:
        super().__init__(f"{name} ({code})" + (f": {message}" if message else ""))
        self.code = code
        self.name = name


class OutOfMemoryError(DeviceError):
    """Raised if the device, or the page-locked host memory, has no room for an allocation."""


class DeviceLostError(DeviceError):
    """Raised if the device's context is lost. Everything in flight on the device fails with this error. Its
    ``__cause__`` is the first failure."""


class ActorLostError(DeviceError):
    """Raised by a pool of Ray actors (``oxide.ray``) for a batch whose actors died too often, or for which no actor is
    left. Also raised if an actor cannot be started.

    ``batch`` is the number of the batch in its ``map_batches``, from 0; None if an actor did not start. ``actor``
    describes the last actor: its number, process and node. ``attempts`` counts the actors that died while they ran the
    batch.
    """

    def __init__(self, message: str, batch: int | None, actor: str, attempts: int) -> None:
        super().__init__(message)
        self.batch = batch
        self.actor = actor
        self.attempts = attempts


class GraphError(DeviceError):
    """Raised for work that a CUDA graph cannot hold, for a call that is not possible while a graph is captured, and for
    a wrong use of a graph, its inputs or its scope, such as a launch after the graph was closed."""


class KernelFault(DeviceError):
    """Raised if a kernel reported a fault. The device stays usable."""


@final
class BoundsError(KernelFault, IndexError):
    """Raised for an access outside a slice, found by the kernel itself; no memory outside the slice was touched.

    ``block`` and ``thread`` are (x, y, z). ``index`` is the index as the kernel computed it, signed. For an array of
    several axes ``axis`` is the first axis whose index is outside, and ``index`` and ``length`` are those of this axis.
    For an array of one axis ``axis`` is None. ``indices`` and ``shape`` are the index and the length of every axis.
    """

    def __init__(
        self,
        kernel: str,
        parameter: str,
        index: int,
        length: int,
        block: tuple[int, int, int],
        thread: tuple[int, int, int],
        file: str,
        line: int,
        axis: int | None = None,
        indices: tuple[int, ...] | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        unsized = length == 0 and parameter.startswith("DynamicSharedArray")
        advice = " (its bytes are LaunchConfig(shared_mem_bytes=…))" if unsized else ""
        found = f"{parameter}[{index}] is outside {parameter}, which has {length} elements{advice}"
        if axis is not None:
            found = f"index {index} of axis {axis} is outside {parameter}, whose axis {axis} has {length} elements"
        if indices is not None:
            found += f" ({list(indices)} of shape {shape})"
        super().__init__(f"kernel {kernel}: {found}; block {block}, thread {thread}, at {place_name(file, line)}")
        self.kernel = kernel
        self.parameter = parameter
        self.index = index
        self.length = length
        self.indices = (index,) if indices is None else indices
        self.shape = (length,) if shape is None else shape
        self.axis = axis
        self.block = block
        self.thread = thread
        self.file = file
        self.line = line


@final
class BarrierError(KernelFault):
    """Raised if threads of a block wait for one another and none can ever continue. Only the CPU device detects it, not
    a GPU.

    ``block`` is (x, y, z). ``places`` are the places in the source, as (file, line), at which threads wait: one if they
    wait at a ``tensor.Barrier``, else two.
    """

    def __init__(
        self, kernel: str, block: tuple[int, int, int], places: tuple[tuple[str, int], ...], problem: str
    ) -> None:
        super().__init__(f"kernel {kernel}, block {block}: {problem}")
        self.kernel = kernel
        self.block = block
        self.places = places


@final
class KernelAssertionError(KernelFault, AssertionError):
    """Raised if an ``assert`` inside a kernel failed. The thread left the kernel at the ``assert``.

    ``text`` is the assert's message or, if it has none, its source line. ``block`` and ``thread`` are (x, y, z).
    """

    def __init__(
        self,
        kernel: str,
        text: str,
        block: tuple[int, int, int],
        thread: tuple[int, int, int],
        file: str,
        line: int,
    ) -> None:
        super().__init__(f"kernel {kernel}: {text}; block {block}, thread {thread}, at {place_name(file, line)}")
        self.kernel = kernel
        self.text = text
        self.block = block
        self.thread = thread
        self.file = file
        self.line = line


Coordinates = tuple[int, int, int]
"""(x, y, z) of a block or of a thread."""


@final
class SanitizerError(KernelFault):
    """Raised for findings of the CPU device's sanitizer; ``OXIDE_SANITIZE`` and ``@kernel(sanitize=…)`` turn it on.

    ``kind`` is ``"out-of-bounds"``, ``"misaligned"``, ``"uninitialized"``, ``"race"``, ``"missing-lanes"``,
    ``"unfinished-store"`` or ``"unwritten"``. ``what`` is the parameter or the array. ``offset`` is the distance in
    bytes from the first byte of ``what`` to the access; None if no parameter is known. ``access`` is ``"read"``,
    ``"write"``, ``"atomic"``, ``"warp operation"``, ``"missing write"``, or an asynchronous ``"copy"``, ``"product"``
    or ``"store"``. A ``"store"`` is the read of a tile by ``tensor.store_tile``. For a race, ``other`` is the earlier
    access that is not ordered with this access. ``block`` and ``thread`` are None for a write that no thread made. The
    first finding of a launch is raised; the further ones are notes on it.
    """

    def __init__(
        self,
        kind: str,
        kernel: str,
        what: str,
        offset: int | None,
        problem: str,
        access: SanitizedAccess,
        other: SanitizedAccess | None = None,
    ) -> None:
        text = f"kernel {kernel}: {kind}: {access} {problem}"
        super().__init__(text + (f", and {other}" if other else ""))
        self.kind = kind
        self.kernel = kernel
        self.what = what
        self.offset = offset
        self.access = access.access
        self.block = access.block
        self.thread = access.thread
        self.file = access.file
        self.line = access.line
        self.other = other


@final
class SanitizedAccess:
    """An access in a sanitizer's report: its kind (``access``), its place in the source, and its thread."""

    def __init__(
        self, access: str, what: str, block: Coordinates | None, thread: Coordinates | None, file: str, line: int
    ) -> None:
        self.access = access
        self.what = what
        self.block = block
        self.thread = thread
        self.file = file
        self.line = line

    def __str__(self) -> str:
        done = {
            "read": "a read of ",
            "write": "a write to ",
            "copy": "an asynchronous copy to ",
            "store": "a tensor.store_tile of ",
            "product": "a tensor.wgmma of ",
            "atomic": "an atomic operation on ",
            "warp operation": "",
            "missing write": "the scatter to ",
        }[self.access]
        by = "" if self.block is None else f" by block {self.block}, thread {self.thread},"
        return f"{done}{self.what}{by} at {place_name(self.file, self.line)}"


def _same(kind: type[OxideError], args: tuple[Any, ...], fields: dict[str, Any]) -> OxideError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


def place_name(file: str, line: int) -> str:
    """Returns the name of a line for messages: ``file:line``, or ``In [3], line 2`` for a line of a notebook's cell."""
    cell = cell_of(file)
    return f"{file}:{line}" if cell is None else f"{cell}, line {line}"


def cell_of(file: str) -> str | None:
    """Returns the name of the notebook's or IPython's cell whose code has this file name, such as ``In [3]``; None for
    any other file."""
    shell = sys.modules.get("IPython.core.getipython")
    found = None if shell is None else shell.get_ipython()
    if found is None:
        return None
    name_of = getattr(found.compile, "format_code_name", None)  # from IPython 8 on
    name = None if name_of is None else name_of(file)
    return None if name is None else str(name[1]).replace("In[", "In [")
