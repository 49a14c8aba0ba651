"""Output tiles: the layouts ``Tiles``, ``RowMajorTiles`` and ``Rows``, with which a ``DisjointSlice`` gives each thread
several elements.

No two threads share an element: each thread has a ``ThreadIndex`` that no other thread has. The layout is part of the
parameter's type, so it is the same in every thread, and it maps different indices to different elements:

- With ``Tiles(n)`` the thread with index t has the elements from t*n to t*n + n - 1. These intervals begin n apart and
  are n long, so they do not overlap.
- With ``RowMajorTiles(r, c)`` the index comes from ``thread.index_2d(width)``. The slice is taken as a matrix with rows
  of ``width`` elements. The thread in row i and column j of the launch has r rows from row i*r on and c columns from
  column j*c on. A tile must end within the width. So two tiles that differ in i have no row in common, and two that
  differ in j have no column in common. ``index_2d`` ensures that all threads use the same width. If one thread used 5
  and another 100, element 5 would be in row 1 and column 0 for the first thread, and in row 0 and column 5 for the
  second.
- With ``Rows`` the thread with index t has row t of a ``DisjointSlice2``.

At the end of the slice, ``get_mut`` returns None if the tile is not entirely inside, and ``get_remainder`` then returns
the part of it that is inside. So a loop over whole tiles needs no check, and a loop over a remainder has its own
bounds. The model is ``chunks_exact_mut`` and its remainder in Rust::

    tile = y.get_mut(index)
    if tile is not None:
        for j in range(4):
            tile[j] = f32(0.0)
    rest = y.get_remainder(index)
    if rest is not None:
        for j in range(len(rest)):
            rest[j] = f32(0.0)

These are declarations: the compiler gives them their meaning inside a kernel, and a type checker reads them. A type
checker does not accept a call as an annotation. For a type checker, write ``Tiles[Literal[4]]``, which means
``Tiles(4)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, final, get_args, get_origin

from . import primitives

T = TypeVar("T")
N = TypeVar("N")
R = TypeVar("R")
C = TypeVar("C")

_LARGEST = 2**16


class _Layout:
    """The base of the layouts: a constant shape."""

    __slots__ = ("shape",)

    def __init__(self, *shape: int) -> None:
        for size in shape:
            if type(size) is not int or not 1 <= size <= _LARGEST:
                raise TypeError(
                    f"{type(self).__name__}: a tile's side is a whole number from 1 to {_LARGEST}, not {size!r}"
                )
        self.shape = shape

    if not TYPE_CHECKING:

        def __class_getitem__(cls, sizes: Any) -> Any:
            """Makes ``Tiles[Literal[4]]`` mean ``Tiles(4)``, in a form that a type checker accepts."""
            sizes = sizes if isinstance(sizes, tuple) else (sizes,)
            return cls(*(get_args(size)[0] if get_origin(size) is Literal else size for size in sizes))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, _Layout) and other.shape == self.shape

    def __hash__(self) -> int:
        return hash((type(self), self.shape))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self.shape))})"


if TYPE_CHECKING:

    @final
    class Tiles(Generic[N]):
        """Tiles of ``n`` neighbouring elements: ``DisjointSlice[f32, Tiles(4)]``."""

        shape: tuple[int, ...]

        def __init__(self, n: int) -> None: ...

    @final
    class RowMajorTiles(Generic[R, C]):
        """Tiles of ``r`` rows and ``c`` columns of a row-major matrix: ``DisjointSlice[f32, RowMajorTiles(2, 4)]``."""

        shape: tuple[int, ...]

        def __init__(self, r: int, c: int) -> None: ...

else:

    @final
    class Tiles(_Layout):
        """Tiles of ``n`` neighbouring elements: ``DisjointSlice[f32, Tiles(4)]``.

        Raises ``TypeError`` unless ``n`` is a whole number from 1 to 65536.
        """

        __slots__ = ()

        def __init__(self, n: int) -> None:
            super().__init__(n)

    @final
    class RowMajorTiles(_Layout):
        """Tiles of ``r`` rows and ``c`` columns of a row-major matrix: ``DisjointSlice[f32, RowMajorTiles(2, 4)]``.

        Raises ``TypeError`` unless both are whole numbers from 1 to 65536.
        """

        __slots__ = ()

        def __init__(self, r: int, c: int) -> None:
            super().__init__(r, c)


@final
class Rows:
    """The layout of a matrix whose rows each belong to one thread: ``DisjointSlice2[f32, Rows]``."""

    __slots__ = ()
    shape = (0,)
    """Stands for a tile of all columns, whose number is not known before the launch."""


@primitives.made_in_kernels
@final
class RowRef(Generic[T]):
    """This thread's row of a ``DisjointSlice2[T, Rows]``, which the thread may read and write: ``row[j] = x``.

    A position outside the row is a fault: the launch fails with a ``BoundsError``. ``len(row)`` is the number of
    columns, and a position from ``range(len(row))`` needs no check. If ``get_mut`` returned None, any use of the row is
    a fault, which a type checker refuses.
    """

    def __getitem__(self, position: int) -> T: ...

    def __setitem__(self, position: int, value: T) -> None: ...

    def __len__(self) -> int: ...


@primitives.made_in_kernels
@final
class TileRef(Generic[T]):
    """This thread's tile of a ``DisjointSlice[T, Tiles(n)]``, which the thread may read and write: ``tile[0] = x``.

    A constant position outside the tile is a ``CompileError``. A position from ``range(n)`` or ``range(len(tile))``
    needs no check. Any other position is checked against the tile's size. ``len(tile)`` is n, or in a remainder the
    number of elements in it. If ``get_mut`` returned None, the use of an element or of the length is a fault: the
    launch fails with a ``BoundsError``. A type checker refuses such a use.
    """

    def __getitem__(self, position: int) -> T: ...

    def __setitem__(self, position: int, value: T) -> None: ...

    def __len__(self) -> int: ...


@primitives.made_in_kernels
@final
class MatrixTileRef(Generic[T]):
    """This thread's tile of a ``DisjointSlice[T, RowMajorTiles(r, c)]``: ``tile[0, 1] = x``. Positions are checked as
    in a ``TileRef``, separately for each axis. ``len(tile)`` is the number of rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """Returns the numbers of rows and of columns, each an ``i64``."""

    def __getitem__(self, position: tuple[int, int]) -> T: ...

    def __setitem__(self, position: tuple[int, int], value: T) -> None: ...

    def __len__(self) -> int: ...
