"""Thread indices, ``index_1d``, ``index_2d`` and the hardware's coordinates; and barriers for a block and the grid.

All numbers are non-negative 64-bit integers, zero-extended from 32-bit hardware registers, so products such as
``row * width`` do not wrap. These are declarations: the compiler gives them their meaning inside a kernel.
"""

from __future__ import annotations

from typing import NoReturn, final


@final
class ThreadIndex:
    """A number that no other thread of the launch has: the only key to an element of a ``DisjointSlice``.

    Only ``index_1d()`` and ``index_2d(width)`` return one. It has no arithmetic: a number computed from it could be
    another thread's. ``get()`` returns the plain number, for reading a ``Slice``.
    """

    def __init__(self) -> None:
        raise TypeError("a ThreadIndex comes from thread.index_1d() or thread.index_2d(width), inside a @kernel")

    def get(self) -> int:
        """Returns the plain number, an ``i64``."""
        _only_in_a_kernel("ThreadIndex.get")


@final
class Coordinates:
    """Three hardware coordinates, ``x``, ``y`` and ``z``."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def x(self) -> int:
        _only_in_a_kernel(f"{self.name}.x")

    @property
    def y(self) -> int:
        _only_in_a_kernel(f"{self.name}.y")

    @property
    def z(self) -> int:
        _only_in_a_kernel(f"{self.name}.z")


thread_idx = Coordinates("thread_idx")
"""This thread's position in its block."""

block_idx = Coordinates("block_idx")
"""This block's position in the grid."""

block_dim = Coordinates("block_dim")
"""The shape of a block, in threads."""

grid_dim = Coordinates("grid_dim")
"""The shape of the grid, in blocks."""


def index_1d() -> ThreadIndex:
    """Returns this thread's position in a one-dimensional launch: ``block_idx.x * block_dim.x + thread_idx.x``.

    A launch whose grid or block has a y or z other than 1 is refused, as two threads would have the same index.
    """
    _only_in_a_kernel("thread.index_1d")


def index_2d(width: int) -> ThreadIndex | None:
    """Returns this thread's position in a row-major matrix: ``index_2d_row() * width + index_2d_col()``; None if the
    column is not less than ``width``.

    All threads must agree on the width: with widths 5 and 100 the threads (row 1, column 0) and (row 0, column 5)
    would both get index 5. So ``width`` must be a kernel parameter or a constant, and the same in every call that a
    kernel reaches; anything else is a ``CompileError``. Also returns None if ``width`` is 2**36 or more: below that,
    with at most 2**26 rows, the product cannot wrap round 64 bits.
    """
    _only_in_a_kernel("thread.index_2d")


def index_2d_row() -> int:
    """Returns ``block_idx.y * block_dim.y + thread_idx.y``."""
    _only_in_a_kernel("thread.index_2d_row")


def index_2d_col() -> int:
    """Returns ``block_idx.x * block_dim.x + thread_idx.x``."""
    _only_in_a_kernel("thread.index_2d_col")


def sync_threads() -> None:
    """Waits until every thread of the block that has not returned has reached this call. Their earlier writes are then
    visible to all of them.

    All of these threads must reach the same call. Threads that wait at different barriers are a
    ``BarrierError`` on the CPU device, and undefined on a GPU, as with CUDA's ``__syncthreads``. A barrier in a branch
    is no error if the other threads return before another barrier.
    """
    _only_in_a_kernel("thread.sync_threads")


def sync_threads_count(condition: bool) -> int:
    """Does ``sync_threads()`` and returns the number of threads, an ``i32``, whose ``condition`` is true."""
    _only_in_a_kernel("thread.sync_threads_count")


def sync_threads_and(condition: bool) -> bool:
    """Does ``sync_threads()`` and returns whether ``condition`` is true in every thread."""
    _only_in_a_kernel("thread.sync_threads_and")


def sync_threads_or(condition: bool) -> bool:
    """Does ``sync_threads()`` and returns whether ``condition`` is true in some thread."""
    _only_in_a_kernel("thread.sync_threads_or")


def sync_grid() -> None:
    """Waits until every thread of the grid has reached this call. Their earlier writes are then visible to all of them.

    A kernel that calls it is launched cooperatively: all its blocks are on the device at once. So the grid must fit, or
    the launch is a ``LaunchError`` that says how many blocks fit. Every thread of the grid must reach the same call,
    threads without work too: a thread that has returned is a mistake, a ``BarrierError`` on the CPU device and a hang
    on a GPU. Hence such a kernel may not contain an ``assert``, or a ``range`` with a step that is not constant. CUDA's
    name is ``cooperative_groups::this_grid().sync()``.
    """
    _only_in_a_kernel("thread.sync_grid")


def wait_dependencies() -> None:
    """Waits until all earlier kernels in the stream have ended and their writes are visible.

    A kernel that calls it may begin before the previous kernel has ended: it begins when all blocks of the previous
    kernel have called ``launch_dependents()`` or returned. So the code in front of the call, such as the creation of
    barriers and shared arrays, overlaps the previous kernel.

    Every thread must make the call before it accesses device memory and before it returns. Anything else is a
    ``CompileError``: the kernel could read memory that the previous kernel has not written yet. The call does nothing
    on the CPU device, on GPUs before compute capability 9.0, and if the previous work in the stream is no kernel.
    CUDA's name is ``cudaGridDependencySynchronize``.
    """
    _only_in_a_kernel("thread.wait_dependencies")


def launch_dependents() -> None:
    """Lets the next kernel in the stream begin, if it calls ``wait_dependencies()``, once every block has made this
    call or ended.

    It changes no result: the next kernel still waits for the end of this kernel. Call it when the block's last wave of
    work has begun. After an earlier call, waiting blocks of the next kernel may occupy multiprocessors that this
    kernel's blocks need. CUDA's name is ``cudaTriggerProgrammaticLaunchCompletion``.
    """
    _only_in_a_kernel("thread.launch_dependents")


def nanosleep(nanoseconds: int) -> None:
    """Sleeps for about this many nanoseconds, at most twice as many: for polling a value that another block will write.

    A GPU sleeps for a million at most, and before compute capability 7.0 not at all. The CPU device yields to other
    threads of the operating system, whatever the number: otherwise a waiting block takes the processor from the block
    that it waits for. Wait only for blocks that are sure to have begun, such as a block that has published its number;
    nothing else guarantees that they run at the same time. CUDA's name is ``__nanosleep``.
    """
    _only_in_a_kernel("thread.nanosleep")


def _only_in_a_kernel(name: str) -> NoReturn:
    raise TypeError(f"{name} has a meaning only inside a @kernel, where the compiler gives it one")
