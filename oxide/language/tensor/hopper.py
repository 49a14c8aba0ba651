"""What GPUs have from Hopper on: barriers, copies of whole tiles, and products of warpgroups.

**Barriers.** At a ``Barrier`` in shared memory, threads wait for other threads and for copies (PTX's ``mbarrier``).

A barrier goes through phases. It counts the arrivals of threads and the bytes of copies for which the present phase
still waits. When both counts are 0, the phase ends, and the next phase begins with the same number of arrivals. A
thread waits for the end of a phase, not for all other threads, so the warps of a block can do different work::

    full = tensor.Barrier(4, 1)      # four barriers; one arrival ends a phase
    ...
    full.expect(stage, 49152)        # one thread: arrives, and announces the bytes of the copies that follow
    ...
    full.wait(stage, round)          # the others: wait for the end of phase ``round``

**Tiles.** ``SharedTiles`` are tiles in shared memory, which ``load_tile`` and ``store_tile`` move by the copy engine
(TMA).

``load_tile`` copies a tile of a slice to shared memory. One thread calls it. The copy runs asynchronously, and a
``Barrier`` counts its bytes when they arrive. Elements outside of the slice become zeros, so a tile may reach beyond
any edge. ``store_tile`` copies a tile to an output, and writes nothing outside of the output. The thread that calls it
waits for the copy by ``wait_stores``. The copy engine needs a tensor map of the slice, which the launch makes from its
argument.

``SharedTiles`` have the layout that ``wgmma`` reads: each row has eight parts of 16 bytes, and part p of row r is
stored as part p ^ (r % 8) (the 128-byte swizzle). Then the parts with equal p of eight consecutive rows are in
different banks. ``tiles[number, row, col]`` undoes the swizzle. A ``SharedArray`` has no swizzle.

**Products.** ``wgmma`` multiplies tiles in shared memory, and the four warps of a warpgroup hold the result in
registers.

A warpgroup is four consecutive warps. The number of its first warp in the block is a multiple of 4. Together the warps
hold 64 rows of the product. Each warp holds 16 rows, in an ``Accumulator((16, n), f32)`` or an accumulator of i32. The
products run asynchronously: the threads continue immediately, and ``wait_wgmma`` waits for the products. A GPU needs
exactly compute capability 9.0: only Hopper has the instructions.

These are declarations: the compiler gives them their meaning inside a kernel. The terms are those of the PTX ISA.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, final

from oxide.language import primitives
from oxide.language.shared import SharedArray

from .fragments import Accumulator, FragmentA

T = TypeVar("T")


@primitives.made_in_kernels
@final
class Barrier:
    """An array of ``count`` barriers in shared memory. A phase of each barrier ends after ``arrivals`` arrivals.

    Both numbers are constants. All threads of the block make the call together: they wait for one another in it, as at
    ``thread.sync_threads()``. Make the barriers once, at the kernel's beginning. All calls at one place in the source
    make the same barriers. An ``index`` outside the array is a fault, and the call then does nothing. A GPU needs
    compute capability 9.0.
    """

    def __init__(self, count: int, arrivals: int) -> None: ...

    def arrive(self, index: int, rank: int | None = None) -> None:
        """Arrives at barrier ``index``, without waiting. Threads that wait for the end of the phase then see this
        thread's earlier writes.

        With ``rank``, arrives at the corresponding barrier of block ``rank`` of the cluster. A rank outside the cluster
        is a fault, and the call then does nothing. ``tensor.cluster.meet()`` or ``sync()`` must come between the
        creation of the barriers and the first such call. The other block sees this thread's earlier writes only if the
        kernel uses ``tensor.cluster.remote``. Without ``remote``, threads do not access other blocks' memory, so
        arrivals need not make writes visible and are faster.
        """

    def expect(self, index: int, nbytes: int) -> None:
        """Arrives at barrier ``index``, and makes the present phase also wait for ``nbytes`` bytes of copies, at most
        2**20 - 1."""

    def wait(self, index: int, phase: int) -> None:
        """Waits until phase number ``phase`` of barrier ``index`` has ended. The phases are numbered from 0. Phase -1
        counts as ended, so a wait for it returns at once.

        Only the lowest bit of the number is used, so a thread may be at most one phase behind the barrier: the thread
        must have waited for a phase before the next phase can end.
        """


@primitives.made_in_kernels
@final
class SharedTiles(Generic[T]):
    """An array of ``count`` tiles of shape ``shape`` in shared memory: ``SharedTiles(4, (128, 64), bf16)``.

    ``count`` and ``shape`` are constants. The number of rows of a tile is a multiple of 8, up to 256. A row has 128
    bytes: 128 elements of 8 bits (i8, u8, f8e4m3, f8e5m2), 64 of f16 or bf16, or 32 of f32. For the limits of shared
    memory, the tiles count as a ``SharedArray``. ``tiles[number, row, col]`` reads an element and ``tiles[number, row,
    col] = x`` writes it; the indices are checked.
    """

    def __init__(self, count: int, shape: tuple[int, int], dtype: type[T]) -> None: ...

    def __getitem__(self, index: tuple[int, int, int]) -> T: ...

    def __setitem__(self, index: tuple[int, int, int], value: T) -> None: ...


@primitives.function
def load_tile(
    tiles: SharedTiles[T] | SharedArray[T],
    number: int | None,
    source: Any,
    index: int | tuple[int, ...],
    barrier: Barrier,
    at: int,
    tf32: bool = False,
    multicast: int | None = None,
) -> None:
    """Begins to copy the tile of ``source`` whose first element is at ``index`` to tile ``number`` of ``tiles``.

    ``source`` is a parameter of the kernel: a slice of one to five axes, with the tiles' element type. The launch
    raises ``ArgumentError`` unless the address of each row of ``source`` is a multiple of 16 bytes. The distance of
    ``index`` from the beginning of its row must be a multiple of 16 bytes too; otherwise the call is a fault. The
    numbers of ``index`` may be negative. One thread makes the call. The parts of the tile outside of an axis of
    ``source`` become zeros, even where other elements of ``source``, such as the next matrix of a stack, lie there in
    memory.

    The copy is counted by barrier ``at`` of the array ``barrier``: when the copy ends, the size of a whole tile in
    bytes is subtracted from the bytes for which the present phase waits. ``Barrier.expect`` must announce these bytes.
    With ``tf32``, a constant for tiles of f32, the copy rounds the elements to tf32, to nearest with ties to even
    (``tensor.tf32`` rounds ties away from zero). A GPU needs compute capability 9.0.

    A tile of ``SharedTiles`` spans the last two axes of ``source``. ``tiles`` may also be a ``SharedArray``. The tile
    is then the whole array if ``number`` is None, else ``tiles[number]``, and its axes are the last axes of ``source``.
    The sides of such a tile have at most 256 elements, and the length of its rows is a multiple of 16 bytes. The array
    must have an alignment of 128 bytes, as in ``SharedArray((2, 64, 32), f32, 128)``. If ``number`` selects a tile, the
    size of a tile must be a multiple of 128 bytes too.

    ``multicast`` is a mask with a bit for each block of the cluster. The copy then fills the corresponding tile of each
    block whose bit is set, and is counted by the corresponding barrier of each of these blocks. Each block must
    announce the bytes at its own barrier. So a tile that several blocks need is read only once. A bit for a block
    outside the cluster is a fault, and nothing is copied. ``tensor.cluster.meet()`` or ``sync()`` must come between the
    creation of the barriers and the first such copy.
    """


@primitives.function
def store_tile(
    target: Any, index: int | tuple[int, ...], tiles: SharedTiles[T] | SharedArray[T], number: int | None
) -> None:
    """Begins to copy tile ``number`` of ``tiles`` to the part of an output whose first element is at ``index``.

    ``target`` is the ``scatter`` of a ``DisjointSlice`` of one to five axes, or the ``unchecked_mut`` of a
    ``DisjointSlice`` of several axes. The output, the tile and the index follow the rules of ``load_tile``, except that
    a negative number in the index is a fault. The parts of the tile outside of the output are not written. One thread
    makes the call. Before the call, the threads that wrote the tile call ``fence_stores()``, and then wait at a barrier
    together with the calling thread::

        tiles[0, row, col] = x
        tensor.fence_stores()
        thread.sync_threads()
        if thread.thread_idx.x == 0:
            tensor.store_tile(c.scatter, (first_row, first_col), tiles, 0)
            tensor.commit_stores()
            tensor.wait_stores()

    The tile may be written again, and the block may end, after the calling thread has made the call
    ``wait_stores(read=True)``. No other thread may write the same elements of the output. A GPU needs compute
    capability 9.0.
    """


@primitives.function
def fence_stores() -> None:
    """Makes this thread's writes to shared memory visible to later copies by ``store_tile``. Each thread that wrote a
    part of a tile makes the call, and then waits at a barrier together with the thread that calls ``store_tile``."""


@primitives.function
def commit_stores() -> None:
    """Closes a group of this thread's copies: all copies that ``store_tile`` has begun since the last
    ``commit_stores``."""


@primitives.function
def wait_stores(groups: int = 0, read: bool = False) -> None:
    """Waits for this thread's groups of copies by ``store_tile``, except for the last ``groups`` groups, which may
    still run. ``groups`` is a constant up to 7. With ``read``, a constant, waits only until the copies have read their
    tiles, which may then be written again."""


@primitives.function
def wgmma(
    accumulator: Accumulator[Any],
    a: SharedTiles[Any] | FragmentA[Any],
    a_index: tuple[int, int] | None,
    b: SharedTiles[Any],
    b_number: int,
    a_transposed: bool = False,
    b_transposed: bool = False,
    add: bool = True,
) -> None:
    """Begins to add the product of 64 rows of a tile of ``a`` and a tile of ``b`` to the warpgroup's accumulators.

    ``a_index`` has the number of a tile of ``a`` and the number of the first of the 64 rows in it, a multiple of 8. The
    tile of ``b`` holds the transpose of the right operand B: its n rows are B's columns. n is the number of the
    accumulator's columns, a multiple of 8 up to 256. If the tiles of ``b`` have fewer than n rows, n / rows consecutive
    tiles from ``b_number`` on are used, for example tiles that the blocks of a cluster have copied. The types are those
    of ``mma``: f16, bf16, f32 or 8-bit floats with an accumulator of f32, or i8 and u8 with an accumulator of i32,
    whose n is 8, 24 or a multiple of 16. f32 is taken as tf32: the low 13 bits are ignored. ``load_tile(…, tf32=True)``
    rounds to tf32 instead. The rounding errors are those of ``mma``.

    With ``a_transposed`` a tile of ``a`` holds the transpose of the left operand: it has a row for each of 64 positions
    along k, and the second number of ``a_index`` must be 0. With ``b_transposed`` the tiles of ``b`` hold B itself: n /
    64 tiles from ``b_number`` on, each with 64 of B's columns and a row for each of 64 positions along k. Both options
    are for elements of 16 bits.

    The left operand may be in registers instead: each warp passes a ``FragmentA`` of its 16 rows as ``a``, with as many
    columns as a tile of ``b`` has positions along k. ``a_index`` is then None. So the result of one product can be the
    left operand of the next, such as the weights in attention.

    With ``add=False`` the product replaces the accumulators' earlier values.

    All threads of the warpgroup make the call together. Until ``wait_wgmma`` no thread may read or write the
    accumulators, or write the tiles or the fragment. The CPU device's sanitizer reports a thread that breaks this rule
    (``sanitize="race"``).
    """


@primitives.function
def wait_wgmma(accumulator: Accumulator[Any], pending: int = 0) -> None:
    """Waits for the warpgroup's calls of ``wgmma``, except for the last ``pending`` calls, which may still run.
    ``pending`` is a constant.

    After a wait with ``pending=0``, the given accumulator may be read. Any other accumulator needs a wait of its own.
    All threads of the warpgroup make the call together.
    """


@primitives.function
def increase_registers(count: int) -> None:
    """Takes registers from the block's pool until each thread of the warp has ``count``, a multiple of 8 from 24 to
    256.

    All warps of a warpgroup make the call. They wait until other warps have given up enough registers. The kernel must
    declare its ``block``: each thread begins with the registers that it can have in a block of this size, and a launch
    may not have more threads. Does nothing on the CPU device.
    """


@primitives.function
def decrease_registers(count: int) -> None:
    """Gives up registers to the block's pool, so that each thread of the warp keeps ``count``, a multiple of 8 from 24
    to 256. All warps of a warpgroup make the call. Does nothing on the CPU device."""
