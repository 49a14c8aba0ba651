"""``SharedTiles``, ``load_tile`` and ``store_tile``: tiles in shared memory, moved by the copy engine (TMA).

``load_tile`` copies a tile of a slice to shared memory. One thread calls it. The copy runs asynchronously, and a
``Barrier`` counts its bytes when they arrive. Elements outside of the slice become zeros, so a tile may reach beyond
any edge. ``store_tile`` copies a tile to an output, and writes nothing outside of the output. The thread waits for the
copy by ``wait_stores``. The launch makes the tensor map that the engine needs from the argument.

``SharedTiles`` are stored as ``wgmma`` reads them: each row has eight parts of 16 bytes, and part p of row r is stored
as part p ^ (r % 8) (the 128-byte swizzle). The parts p of eight consecutive rows are then in different banks.
``tiles[number, row, col]`` undoes the swizzle. A ``SharedArray`` has no swizzle.

These are declarations: the compiler gives them their meaning inside a kernel.
"""

from __future__ import annotations

from typing import Any, Generic, NoReturn, TypeVar, final

from oxide.language.shared import SharedArray

from .barriers import Barrier

T = TypeVar("T")


@final
class SharedTiles(Generic[T]):
    """An array of ``count`` tiles of shape ``shape`` in shared memory: ``SharedTiles(4, (128, 64), bf16)``.

    ``count`` and ``shape`` are constants: a multiple of 8 rows, up to 256, of 128 bytes each, which are 128 elements of
    8 bits (i8, u8, f8e4m3, f8e5m2), 64 of f16 and bf16, or 32 of f32. The tiles' memory counts as that of a
    ``SharedArray``. ``tiles[number, row, col]`` reads an element and ``tiles[number, row, col] = x`` writes it; the
    indices are checked.
    """

    def __init__(self, count: int, shape: tuple[int, int], dtype: type[T]) -> None:
        _only_in_a_kernel("SharedTiles")

    def __getitem__(self, index: tuple[int, int, int]) -> T:
        _only_in_a_kernel("SharedTiles")

    def __setitem__(self, index: tuple[int, int, int], value: T) -> None:
        _only_in_a_kernel("SharedTiles")


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
    """Begins to copy the tile of ``source`` that begins at ``index`` to tile ``number`` of ``tiles``.

    ``source`` is a parameter of the kernel: a slice of one to five axes, whose type is the tiles' type. The launch
    raises ``ArgumentError`` unless each of its rows begins at a multiple of 16 bytes. The last number of ``index`` must
    be at a multiple of 16 bytes too; otherwise it is a fault. The numbers of ``index`` may be negative. One thread
    makes the call. ``barrier`` is a group of barriers, and the copy counts towards number ``at``: when it ends, the
    size of a whole tile in bytes is subtracted from the bytes that the present phase waits for. ``Barrier.expect`` must
    announce these bytes. The parts of the tile outside of an axis of ``source`` become zeros, even if memory at that
    address belongs to ``source``, such as the next matrix of a stack. With ``tf32``, a constant for tiles of f32, the
    copy rounds the elements to tf32, to nearest with ties to even (``tensor.tf32`` rounds ties away from zero). A GPU
    needs compute capability 9.0.

    A tile of ``SharedTiles`` spans the last two axes of ``source``. ``tiles`` may also be a ``SharedArray``: the tile
    is the whole array if ``number`` is None, else ``array[number]``. The tile's axes are then the last axes of
    ``source``. A tile's sides have at most 256 elements, and each of its rows is a multiple of 16 bytes long. The array
    must have an alignment of 128 bytes, as in ``SharedArray((2, 64, 32), f32, 128)``. If ``number`` selects a tile, the
    size of a tile must be a multiple of 128 bytes too.

    ``multicast`` is a mask with a bit for each block of the cluster. The copy then fills the corresponding tile of each
    of these blocks, and is counted by the corresponding barrier of each block, which must have announced the bytes. So
    a tile that several blocks need is read only once. A bit for a block outside the cluster is a fault, and nothing is
    copied. ``tensor.cluster.meet()`` or ``sync()`` must come between the creation of the barriers and the first such
    copy.
    """
    _only_in_a_kernel("load_tile")


def store_tile(
    target: Any, index: int | tuple[int, ...], tiles: SharedTiles[T] | SharedArray[T], number: int | None
) -> None:
    """Begins to copy tile ``number`` of ``tiles`` to the place in an output that begins at ``index``.

    ``target`` is the ``scatter`` of a ``DisjointSlice`` of one to five axes, or the ``unchecked_mut`` of a
    ``DisjointSlice`` of several axes. The output, the tile and the index follow the rules of ``load_tile``, but a
    negative number is a fault. The parts of the tile outside of the output are not written. One thread makes the call.
    Before it, the threads that wrote the tile call ``fence_stores()``, and then meet the calling thread at a barrier::

        tiles[0, row, col] = x
        tensor.fence_stores()
        thread.sync_threads()
        if thread.thread_idx.x == 0:
            tensor.store_tile(c.scatter, (first_row, first_col), tiles, 0)
            tensor.commit_stores()
            tensor.wait_stores()

    The tile may be written again, and the block may end, after ``wait_stores(read=True)`` by that thread. No other
    thread may write the same elements of the output. A GPU needs compute capability 9.0.
    """
    _only_in_a_kernel("store_tile")


def fence_stores() -> None:
    """Makes this thread's writes to shared memory visible to later copies by ``store_tile``. Each thread that wrote a
    part of a tile makes the call, before the barrier at which the storing thread meets it."""
    _only_in_a_kernel("fence_stores")


def commit_stores() -> None:
    """Closes a group of this thread's copies: all that ``store_tile`` has begun since the last ``commit_stores``."""
    _only_in_a_kernel("commit_stores")


def wait_stores(groups: int = 0, read: bool = False) -> None:
    """Waits for this thread's groups of copies by ``store_tile``, except for the last ``groups`` groups, which may
    still run. ``groups`` is a constant up to 7. With ``read``, a constant, waits only until the copies have read their
    tiles, which may then be written again."""
    _only_in_a_kernel("wait_stores")


def _only_in_a_kernel(name: str) -> NoReturn:
    raise TypeError(f"tensor.{name} has a meaning only inside a @kernel, where the compiler gives it one")
