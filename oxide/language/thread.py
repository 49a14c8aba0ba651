"""Thread indices (``index_1d``, ``index_2d``, ``index_3d``), the hardware's coordinates, barriers for a block and for
the grid, and waits for other kernels and blocks.

All numbers are non-negative 64-bit integers, zero-extended from 32-bit hardware registers, so products such as
``row * width`` do not wrap. These are declarations: the compiler gives them their meaning inside a kernel.
"""

from __future__ import annotations

from typing import final, overload

from . import primitives


@final
class ThreadIndex:
    """A number that no other thread of the launch has: the only key to an element of a ``DisjointSlice``.

    Only ``index_1d()``, ``index_2d()`` and ``index_3d()`` return a ``ThreadIndex``. It has no arithmetic: a number
    computed from it could be another thread's. ``get()`` returns the plain number, for reading a ``Slice``, and
    ``row``, ``column`` and ``plane`` the place along each axis, for reading a ``Slice2`` or a ``Slice3``.
    """

    def __init__(self) -> None:
        raise TypeError(
            "a ThreadIndex comes from thread.index_1d(), thread.index_2d() or thread.index_3d(), inside a @kernel"
        )

    def get(self) -> int:
        """Returns the plain number, an ``i64``. An index of ``index_2d()`` without a width, or of ``index_3d()``, has
        none."""
        primitives.only_in_a_kernel("ThreadIndex.get")

    @property
    def row(self) -> int:
        """Returns this thread's row, as ``index_2d_row()`` does. An index of ``index_1d`` has none."""
        primitives.only_in_a_kernel("ThreadIndex.row")

    @property
    def column(self) -> int:
        """Returns this thread's column, as ``index_2d_col()`` does. An index of ``index_1d`` has none."""
        primitives.only_in_a_kernel("ThreadIndex.column")

    @property
    def plane(self) -> int:
        """Returns ``block_idx.z * block_dim.z + thread_idx.z``. Only an index of ``index_3d`` has it."""
        primitives.only_in_a_kernel("ThreadIndex.plane")


@final
class Coordinates:
    """Three hardware coordinates, ``x``, ``y`` and ``z``."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def x(self) -> int:
        """Returns the first coordinate."""
        primitives.only_in_a_kernel(f"{self.name}.x")

    @property
    def y(self) -> int:
        """Returns the second coordinate."""
        primitives.only_in_a_kernel(f"{self.name}.y")

    @property
    def z(self) -> int:
        """Returns the third coordinate."""
        primitives.only_in_a_kernel(f"{self.name}.z")


thread_idx = Coordinates("thread_idx")
"""This thread's position in its block."""

block_idx = Coordinates("block_idx")
"""This block's position in the grid."""

block_dim = Coordinates("block_dim")
"""The shape of a block, in threads."""

grid_dim = Coordinates("grid_dim")
"""The shape of the grid, in blocks."""


@primitives.function
def index_1d() -> ThreadIndex:
    """Returns this thread's position in a one-dimensional launch: ``block_idx.x * block_dim.x + thread_idx.x``.

    A launch whose grid or block has a y or z other than 1 is refused, as two threads would have the same index.
    """


@overload
def index_2d() -> ThreadIndex: ...
@overload
def index_2d(width: int) -> ThreadIndex | None: ...
@primitives.function
def index_2d(width: int | None = None) -> ThreadIndex | None:
    """Returns this thread's row and column, for a ``DisjointSlice2``. The width is not needed: the slice has its own.

    For an output of one axis, which is taken as a row-major matrix, give its width. The result is then also the number
    ``index_2d_row() * width + index_2d_col()``; it is None if the column is not less than ``width``. All threads must
    use the same width. If thread (row 1, column 0) used width 5, and thread (row 0, column 5) used width 100, both
    would get index 5. So ``width`` must be a kernel parameter or a constant, and the same in all calls of a kernel;
    anything else is a ``CompileError``. On a ``DisjointSlice2``, unless the kernel is ``partial``, it must be the
    number of columns, ``c.shape[1]``. Also returns None if ``width`` is 2**36 or more. For smaller widths the product
    cannot exceed 64 bits, because there are at most 2**26 rows.
    """


@primitives.function
def index_3d() -> ThreadIndex:
    """Returns this thread's plane, row and column, for a ``DisjointSlice3``: z counts planes, the first axis, y counts
    rows, and x counts columns, the last axis."""


@primitives.function
def index_2d_row() -> int:
    """Returns ``block_idx.y * block_dim.y + thread_idx.y``."""


@primitives.function
def index_2d_col() -> int:
    """Returns ``block_idx.x * block_dim.x + thread_idx.x``."""


@primitives.function
def sync_threads() -> None:
    """Waits until every thread of the block that has not returned has reached this call. Their earlier writes are then
    visible to all of them.

    All of these threads must reach the same call. If threads wait at different barriers, the CPU device reports a
    ``BarrierError``. On a GPU the behaviour is undefined, as with CUDA's ``__syncthreads``. A barrier in a branch is no
    error if the threads that do not take the branch return before another barrier.
    """


@primitives.function
def sync_threads_count(condition: bool) -> int:
    """Waits as ``sync_threads()`` does. Returns the number of threads whose ``condition`` is true, an ``i32``."""


@primitives.function
def sync_threads_and(condition: bool) -> bool:
    """Waits as ``sync_threads()`` does. Returns whether ``condition`` is true in every thread."""


@primitives.function
def sync_threads_or(condition: bool) -> bool:
    """Waits as ``sync_threads()`` does. Returns whether ``condition`` is true in at least one thread."""


@primitives.function
def sync_grid() -> None:
    """Waits until every thread of the grid has reached this call. Their earlier writes are then visible to all of them.

    A kernel that calls it is launched cooperatively: all its blocks are on the device at once. If the grid does not
    fit, the launch raises a ``LaunchError`` that says how many blocks fit. Every thread of the grid must reach the same
    call, even threads without work. If a thread has returned, the CPU device reports a ``BarrierError``, and a GPU
    hangs. So such a kernel may not contain an ``assert``, or a ``range`` with a step that is not constant: their faults
    would end a thread. CUDA's name is ``cooperative_groups::this_grid().sync()``.
    """


@primitives.function
def wait_dependencies() -> None:
    """Waits until all earlier kernels in the stream have ended and their writes are visible.

    A kernel that calls it may begin before the previous kernel has ended, once all blocks of the previous kernel have
    called ``launch_dependents()`` or returned. So the code before the call, such as the creation of barriers and shared
    arrays, overlaps the previous kernel.

    Every thread must make the call before it accesses device memory and before it returns. Anything else is a
    ``CompileError``: the kernel could read memory that the previous kernel has not written yet. The call does nothing
    on the CPU device, on GPUs before compute capability 9.0, and if the previous work in the stream is not a kernel.
    CUDA's name is ``cudaGridDependencySynchronize``.
    """


@primitives.function
def launch_dependents() -> None:
    """Allows the next kernel in the stream to begin early. If the next kernel calls ``wait_dependencies()``, it begins
    once every block of this kernel has made the call or ended.

    The call changes no result, because ``wait_dependencies()`` still waits for the end of this kernel. Make the call
    when the block has begun the last part of its work. If it is made earlier, waiting blocks of the next kernel may
    occupy multiprocessors that blocks of this kernel need. CUDA's name is ``cudaTriggerProgrammaticLaunchCompletion``.
    """


@primitives.function
def nanosleep(nanoseconds: int) -> None:
    """Sleeps for about ``nanoseconds``, at most twice as long. Use it in a loop that polls a value that another block
    will write.

    A GPU sleeps for a million nanoseconds at most, and before compute capability 7.0 not at all. The CPU device instead
    yields to other threads of the operating system, whatever the number: otherwise a waiting block could keep the
    processor from the block for which it waits. Wait only for blocks that are known to have begun, such as a block that
    has published its number: there is no guarantee that other blocks run at the same time. CUDA's name is
    ``__nanosleep``.
    """
