"""Every exception oxide raises.

``OxideError`` catches them all. Each message says what was asked, what was found and what to do.
"""

from __future__ import annotations

from typing import final


class OxideError(Exception):
    """The base of every oxide error."""


class CompileError(OxideError):
    """A kernel that cannot be compiled. The message names the file, the line and the fix where there is one."""


class LaunchError(OxideError):
    """A launch refused on the host, before anything was submitted."""


class ArgumentError(LaunchError, TypeError):
    """A wrong number or type of kernel argument. Both a ``LaunchError`` and a ``TypeError``: catch either."""


class NoEventLoopError(OxideError, RuntimeError):
    """An operation was awaited where neither trio nor asyncio runs."""


class OperationCancelledError(OxideError):
    """A spawned operation was cancelled with its nursery, and somebody outside awaits its handle."""


class OrderingError(OxideError):
    """Two uses of one box that nothing orders: under strict ordering, where a wait would have been inserted; and
    always, where a use that another thread declared is still being submitted."""


class DeviceError(OxideError):
    """A device that is missing, misused or failing."""


class DriverError(DeviceError):
    """A driver call that failed: its ``code``, its ``name`` and the call."""

    def __init__(self, code: int, name: str, message: str = "") -> None:
        super().__init__(f"{name} ({code})" + (f": {message}" if message else ""))
        self.code = code
        self.name = name


class OutOfMemoryError(DeviceError):
    """The device, or the pinned host memory, has no room for an allocation."""


class DeviceLostError(DeviceError):
    """The device's context is gone; everything in flight on it fails with this error, its first cause attached."""


class GraphError(DeviceError):
    """A CUDA graph: something that cannot be captured, or a graph that was closed."""


class KernelFault(DeviceError):
    """A kernel reported a fault; the device stays usable."""


@final
class BoundsError(KernelFault, IndexError):
    """An access outside a slice, found by the kernel itself; no memory outside the slice was touched.

    ``block`` and ``thread`` are (x, y, z). ``index`` is the index as the kernel computed it, signed.
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
    ) -> None:
        super().__init__(
            f"kernel {kernel}: {parameter}[{index}] is outside {parameter}, which has {length} elements; "
            f"block {block}, thread {thread}, at {file}:{line}"
        )
        self.kernel = kernel
        self.parameter = parameter
        self.index = index
        self.length = length
        self.block = block
        self.thread = thread
        self.file = file
        self.line = line


@final
class BarrierError(KernelFault):
    """Threads of one block wait for one another and none can ever go on; found by the CPU device, and not on a GPU.

    ``block`` is (x, y, z). ``places`` are two places in the source, as (file, line), at which threads wait.
    """

    def __init__(
        self, kernel: str, block: tuple[int, int, int], places: tuple[tuple[str, int], tuple[str, int]], problem: str
    ) -> None:
        super().__init__(f"kernel {kernel}, block {block}: {problem}")
        self.kernel = kernel
        self.block = block
        self.places = places


@final
class KernelAssertionError(KernelFault, AssertionError):
    """An ``assert`` inside a kernel failed; the thread left the kernel there.

    ``text`` is the assert's message, or its line where it has none. ``block`` and ``thread`` are (x, y, z).
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
        super().__init__(f"kernel {kernel}: {text}; block {block}, thread {thread}, at {file}:{line}")
        self.kernel = kernel
        self.text = text
        self.block = block
        self.thread = thread
        self.file = file
        self.line = line
