"""``SharedTiles`` and ``load_tile``: tiles of matrices in shared memory, filled by the copy engine (TMA).

``load_tile`` copies a tile of a ``Slice2`` or ``Slice3`` to shared memory. One thread calls it, the copy runs on its
own, and its end is counted in bytes by a ``Barrier``. Elements outside of the matrix become zeros, so a tile may reach
beyond any edge. The launch makes the tensor map that the engine needs from the argument.

The tiles are stored as ``wgmma`` reads them: the rows have 128 bytes, and the eight 16-byte parts of row r are
exchanged by an exclusive or of their numbers with r % 8 (the 128-byte swizzle), so that eight rows of a column of parts
are in different banks. ``tiles[number, row, col]`` undoes this.

These are declarations: the compiler gives them their meaning inside a kernel.
"""

from __future__ import annotations

from typing import Any, Generic, NoReturn, TypeVar, final

from .barriers import Barrier

T = TypeVar("T")


@final
class SharedTiles(Generic[T]):
    """An array of ``count`` tiles of shape ``shape`` in shared memory: ``SharedTiles(4, (128, 64), bf16)``.

    ``count`` and ``shape`` are constants: a multiple of 8 rows, up to 256, of 128 bytes each, which are 128 elements of
    8 bits (i8, u8, f8e4m3, f8e5m2), 64 of f16 and bf16, or 32 of f32. The tiles count as a ``SharedArray``'s memory
    does. ``tiles[number, row, col]`` reads an element, and its indices are checked.
    """

    def __init__(self, count: int, shape: tuple[int, int], dtype: type[T]) -> None:
        _only_in_a_kernel("SharedTiles")

    def __getitem__(self, index: tuple[int, int, int]) -> T:
        _only_in_a_kernel("SharedTiles")


def load_tile(
    tiles: SharedTiles[T],
    number: int,
    source: Any,
    index: tuple[int, int] | tuple[int, int, int],
    barrier: Barrier,
    at: int,
    tf32: bool = False,
) -> None:
    """Begins to copy the tile of ``source`` that begins at row and column ``index`` to tile ``number`` of ``tiles``.

    ``source`` is a ``Slice2`` of the same type, a parameter of the kernel, whose rows begin at multiples of 16 bytes:
    another argument is an ``ArgumentError`` at the launch. The column of ``index`` is at a multiple of 16 bytes too, or
    it is a fault. Both numbers may be negative. One thread makes the call. The end of the copy takes a tile's whole
    bytes from the phase of ``barrier`` number ``at``, which ``Barrier.expect`` has announced. The parts of the tile
    outside of ``source`` become zeros. With ``tf32``, a constant for tiles of f32, the copy rounds the elements to
    tf32, to nearest with ties to even (``tensor.tf32`` rounds ties away from zero). A GPU needs compute capability 9.0.

    ``source`` may be a ``Slice3``, a stack of matrices: ``index`` then begins with the matrix's number, and what is
    outside of that matrix is zeros, also where the stack goes on.
    """
    _only_in_a_kernel("load_tile")


def _only_in_a_kernel(name: str) -> NoReturn:
    raise TypeError(f"tensor.{name} has a meaning only inside a @kernel, where the compiler gives it one")
