"""Slices of two to five axes: ``Slice2`` to ``Slice5``, ``DisjointSlice2`` to ``DisjointSlice5``, ``AtomicSlice2`` and
``AtomicSlice3``.

Each index is checked against its own axis. If a column is past the width, ``a[row * width + col]`` in a flat slice
reads an element of another row, and no check finds the mistake. For such a column, ``a[row, col]`` is a fault that
names the axis.

Slices of four and five axes cannot be indexed. They are for ``tensor.load_tile`` and ``tensor.store_tile``.

``Slice[T, 2]`` is ``Slice2[T]`` at run time; a type checker accepts only ``Slice2[T]``. These are declarations: the
compiler gives them their meaning inside a kernel, and a type checker reads them.
"""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final, overload

from . import primitives
from .atomic import AtomicAccess
from .slices import Layout, Ref, Scatter, Slice
from .thread import ThreadIndex
from .vectors import Alignment, UncheckedReads, UncheckedWrites, VectorReads

T = TypeVar("T")
Index = TypeVar("Index")

if TYPE_CHECKING:
    from .slices import Elements
    from .tiles import C, MatrixTileRef, N, R, RowMajorTiles, TileRef, Tiles
    from .views import TileView, VectorView


class _Parameterized:
    """The base of slices with a layout. At run time it accepts any type arguments, while ``Generic`` would require both
    the elements' type and a layout."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters: Any) -> GenericAlias:
            return GenericAlias(cls, parameters)


class _OneType:
    """The base of slices without a layout. At run time it refuses type arguments other than the elements' type."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters: Any) -> GenericAlias:
            if isinstance(parameters, tuple):
                elements = getattr(parameters[0], "__name__", "f32") if parameters else "f32"
                raise TypeError(f"{cls.__name__} takes the elements' type alone: write {cls.__name__}[{elements}]")
            return GenericAlias(cls, parameters)


@primitives.passed_to_kernels
class _Shaped(Generic[T, Index]):
    """The common base of slices of any kind. ``Index`` is a tuple with an ``int`` for each axis."""

    def __len__(self) -> int:
        """Returns the length of the first axis, an ``i64``."""

    @property
    def shape(self) -> Index:
        """Returns the length of each axis, an ``i64``."""

    @property
    def dtype(self) -> type[T]:
        """Returns the elements' type, as for a ``Slice``."""


@primitives.passed_to_kernels
class _Flat(_Shaped[T, Index], Alignment):
    """The common base of read-only slices, for any number of axes."""

    @property
    def flat(self) -> Slice[T]:
        """Returns all elements in row-major order, as a ``Slice``."""


@primitives.passed_to_kernels
class _Reads(_Flat[T, Index], VectorReads[T, Index]):
    """The common base of read-only slices with an index."""

    def __getitem__(self, index: Index) -> T: ...

    @property
    def unchecked(self) -> UncheckedReads[T, Index]:
        """Returns the slice without bounds checks, for indices that you know to be inside although the compiler cannot
        prove it."""


@primitives.passed_to_kernels
class _Writes(_Shaped[T, Index], Alignment):
    """The common base of outputs with an index."""

    @property
    def scatter(self) -> Scatter[T, Index]:
        """Returns a write-only view of the output that takes any computed indices: ``c.scatter[row, col] = value``."""

    @property
    def unchecked_mut(self) -> UncheckedWrites[T, Index]:
        """Returns a view of the output without its rules: see ``DisjointSlice.unchecked_mut``."""


@primitives.passed_to_kernels
class _TiledWrites(_Shaped[T, Index], Alignment):
    """The common base of outputs of four and five axes, which cannot be indexed."""

    def get_mut(self, index: ThreadIndex) -> Ref[T] | None:
        """Returns this thread's element, or None if the index is outside."""

    @property
    def scatter(self) -> Any:
        """Returns a view of the output, to be passed to ``tensor.store_tile``."""


@primitives.passed_to_kernels
@final
class Slice2(_OneType, _Reads[T, tuple[int, int]]):
    """A read-only matrix in device memory, row-major: ``a[row, col]``.

    A launch takes a contiguous box of two axes for it. An index that is negative or past the end of its axis is a
    fault: the thread leaves the kernel, and the launch fails with a ``BoundsError`` that names the ``axis``. If threads
    of the kernel may wait for one another, the thread instead reads zero and continues.
    """

    def row(self, i: int) -> VectorView[T] | None:
        """Returns row ``i``, of ``shape[1]`` elements. Returns None if there is no such row."""

    def col(self, j: int) -> VectorView[T] | None:
        """Returns column ``j``, of ``shape[0]`` elements. Returns None if there is no such column."""

    def tile(self, row: int, col: int, rows: int, cols: int) -> TileView[T] | None:
        """Returns the rectangle of ``rows`` times ``cols`` elements whose first element is ``[row, col]``. Returns None
        if it is not entirely inside the slice, or if a size is negative."""


@final
class Slice3(_OneType, _Reads[T, tuple[int, int, int]]):
    """A read-only array of three axes: ``a[i, j, k]``, checked as a ``Slice2`` is."""


@final
class Slice4(_OneType, _Flat[T, tuple[int, int, int, int]]):
    """A read-only array of four axes, from which ``tensor.load_tile`` copies tiles. To read single elements, index
    ``flat``."""


@final
class Slice5(_OneType, _Flat[T, tuple[int, int, int, int, int]]):
    """A read-only array of five axes, from which ``tensor.load_tile`` copies tiles. To read single elements, index
    ``flat``."""


@primitives.passed_to_kernels
@final
class DisjointSlice2(_Parameterized, _Writes[T, tuple[int, int]], Generic[T, Layout]):
    """A kernel's output of two axes: each thread reaches only its own element.

    With the index ``thread.index_2d(c.shape[1])``, ``get_mut`` returns the element at this thread's row and column,
    each checked against its own axis. With ``thread.index_1d()`` it returns the element at this position in row-major
    order. A layout may be given as the last argument: ``DisjointSlice2[f32, RowMajorTiles(2, 4)]``. Its tiles are
    rectangles of the slice's own rows and columns.
    """

    @overload
    def get_mut(self: DisjointSlice2[T, Elements], index: ThreadIndex) -> Ref[T] | None: ...
    @overload
    def get_mut(self: DisjointSlice2[T, Tiles[N]], index: ThreadIndex) -> TileRef[T] | None: ...
    @overload
    def get_mut(self: DisjointSlice2[T, RowMajorTiles[R, C]], index: ThreadIndex) -> MatrixTileRef[T] | None: ...
    def get_mut(self, index: ThreadIndex) -> Any:
        """Returns this thread's element, or None if its row or its column is outside. With a tile layout, returns this
        thread's tile, or None if the tile is not entirely inside the slice."""

    @overload
    def get_remainder(self: DisjointSlice2[T, Tiles[N]], index: ThreadIndex) -> TileRef[T] | None: ...
    @overload
    def get_remainder(self: DisjointSlice2[T, RowMajorTiles[R, C]], index: ThreadIndex) -> MatrixTileRef[T] | None: ...
    def get_remainder(self, index: ThreadIndex) -> Any:
        """Returns the part of this thread's tile that is inside the slice, if only a part is inside. Returns None if
        all of the tile is inside, or none of it."""


@primitives.passed_to_kernels
@final
class DisjointSlice3(_Parameterized, _Writes[T, tuple[int, int, int]], Generic[T, Layout]):
    """A kernel's output of three axes. ``get_mut(thread.index_1d())`` returns the element at this position in row-major
    order. With the layout ``Tiles(n)`` it returns a tile of ``n`` elements."""

    @overload
    def get_mut(self: DisjointSlice3[T, Elements], index: ThreadIndex) -> Ref[T] | None: ...
    @overload
    def get_mut(self: DisjointSlice3[T, Tiles[N]], index: ThreadIndex) -> TileRef[T] | None: ...
    def get_mut(self, index: ThreadIndex) -> Any:
        """Returns this thread's element, or None if the index is outside. With a tile layout, returns this thread's
        tile, or None if the tile is not entirely inside the slice."""

    def get_remainder(self: DisjointSlice3[T, Tiles[N]], index: ThreadIndex) -> TileRef[T] | None:
        """Returns the part of this thread's tile that is inside the slice, if only a part is inside. Returns None if
        all of the tile is inside, or none of it."""


@final
class DisjointSlice4(_OneType, _TiledWrites[T, tuple[int, int, int, int]]):
    """A kernel's output of four axes. ``tensor.store_tile`` writes tiles of it, and ``get_mut(thread.index_1d())``
    returns the element at this position in row-major order."""


@final
class DisjointSlice5(_OneType, _TiledWrites[T, tuple[int, int, int, int, int]]):
    """A kernel's output of five axes. ``tensor.store_tile`` writes tiles of it, and ``get_mut(thread.index_1d())``
    returns the element at this position in row-major order."""


@final
class AtomicSlice2(_OneType, _Shaped[T, tuple[int, int]], AtomicAccess[T]):
    """An array of two axes whose elements all threads may change, but only through atomic methods. The index is a
    tuple: ``counts.fetch_add((row, col), 1)``. Each of its numbers is checked against its own axis."""


@final
class AtomicSlice3(_OneType, _Shaped[T, tuple[int, int, int]], AtomicAccess[T]):
    """An array of three axes whose elements all threads may change: ``counts.fetch_add((i, j, k), 1)``. See
    ``AtomicSlice2``."""
