"""``SharedTiles``, ``load_tile`` and ``store_tile``: tiles in shared memory, moved by the copy engine (TMA).

``load_tile`` copies a tile of a slice to shared memory. One thread calls it. The copy runs asynchronously, and a
``Barrier`` counts its bytes when they arrive. Elements outside of the slice become zeros, so a tile may reach beyond
any edge. ``store_tile`` copies a tile to an output, and writes nothing outside of the output. The thread that calls it
waits for the copy by ``wait_stores``. The copy engine needs a tensor map of the slice, which the launch makes from its
argument.

``SharedTiles`` have the layout that ``wgmma`` reads: each row has eight parts of 16 bytes, and part p of row r is
stored as part p ^ (r % 8) (the 128-byte swizzle). Then the parts with equal p of eight consecutive rows are in
different banks. ``tiles[number, row, col]`` undoes the swizzle. A ``SharedArray`` has no swizzle.

These are declarations: the compiler gives them their meaning inside a kernel.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, final

from oxide.language import primitives
from oxide.language.shared import SharedArray

from .barriers import Barrier

T = TypeVar("T")


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
