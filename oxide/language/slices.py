"""A kernel's inputs and outputs: ``Slice``, ``DisjointSlice`` and ``Ref``, and slices of two to five axes.

A thread reaches an output element only by its ``ThreadIndex``, and no two threads have equal ``ThreadIndex`` values. So
no two threads write the same element. With plain indices they could. The rule comes from cuda-oxide::

    c[0] = row          # every thread writes c[0]: refused, a DisjointSlice has no [...]
    c_elem = c.get_mut(thread.index_1d())   # the element of this thread

Each index of a ``Slice2`` is checked against its own axis. If a column is past the width, ``a[row * width + col]`` in a
flat slice reads an element of another row, and no check finds the mistake. For such a column, ``a[row, col]`` is a
fault that names the axis. Slices of four and five axes cannot be indexed. They are for ``tensor.load_tile`` and
``tensor.store_tile``. ``Slice[T, 2]`` is ``Slice2[T]`` at run time; a type checker accepts only ``Slice2[T]``.

These classes are declarations: the compiler gives them their meaning inside a kernel, and a type checker reads them.
On the host they have no instances.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final, overload

from . import primitives
from .atomic import AtomicAccess
from .thread import ThreadIndex

T = TypeVar("T")
Index = TypeVar("Index")

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from .tiles import C, MatrixTileRef, N, R, RowMajorTiles, RowRef, Rows, TileRef, Tiles
    from .views import TileView, VectorView

    @final
    class Elements:
        """The default layout of a ``DisjointSlice``: each thread has one element."""

    Layout = TypeVarWithDefault("Layout", default=Elements)
else:
    Layout = TypeVar("Layout")


# Vectors: ``load2``, ``load4``, ``store2`` and ``store4`` load or store several neighbouring elements at once. On a
# GPU, one instruction loads or stores up to 16 bytes a thread, and a memory-bound kernel needs such instructions to
# reach the memory's bandwidth. The hardware requires an address that is a multiple of the vector's size, so the address
# is checked as well as the bounds. CUDA's ``float4`` has the same requirement, but there a violation is undefined
# behaviour:
#
#     x0, x1, x2, x3 = a.load4(4 * i)
#
# A vector is a tuple of elements. If its elements take more than 16 bytes, the address must be a multiple of 16.


@primitives.made_in_kernels
class VectorReads(Generic[T, Index]):
    """Reads of 2 or 4 neighbouring elements. A read outside the bounds is a fault: the launch fails with a
    ``BoundsError``. A read at an address that is not a multiple of the vector's size is a fault with a
    ``KernelAssertionError``. With several axes the index is a tuple, and the neighbours are along the last axis: a
    vector lies within one row."""

    def load2(self, index: Index) -> tuple[T, T]:
        """Reads the elements ``index`` and ``index + 1``."""

    def load4(self, index: Index) -> tuple[T, T, T, T]:
        """Reads the elements ``index`` to ``index + 3``."""


@primitives.made_in_kernels
class VectorWrites(Generic[T, Index]):
    """Writes of 2 or 4 neighbouring elements, checked as the reads are. A write that is a fault writes nothing."""

    def store2(self, index: Index, a: T, b: T) -> None:
        """Writes the elements ``index`` and ``index + 1``."""

    def store4(self, index: Index, a: T, b: T, c: T, d: T) -> None:
        """Writes the elements ``index`` to ``index + 3``."""


@primitives.made_in_kernels
class Alignment:
    """A query that a kernel makes before it uses vectors."""

    def is_aligned(self, count: int) -> bool:
        """Returns whether vectors of ``count`` elements, 2 or 4, may begin at every index that is a multiple of
        ``count``: the first element's address must be a multiple of the vector's size. This is true for every box,
        except for views that begin in the middle of a vector. With several axes, the index is that of the last axis,
        and every row must begin at a multiple of the vector's size: returns False unless the last axis's length is a
        multiple of ``count``."""


@final
class Streaming(VectorReads[T, Index], VectorWrites[T, Index]):
    """The type of ``a.unchecked.streaming`` and ``c.unchecked_mut.streaming``: reads and writes of vectors that are not
    needed again soon.

    On a GPU such vectors are the first to be evicted from the caches, as with CUDA's ``__ldcs`` and ``__stcs``. This
    leaves room for other data in the caches. Use ``streaming`` in a kernel that reads and writes each element only
    once, for both the reads and the writes: for only one of them it may be slower. On the CPU device these are ordinary
    reads and writes. A ``Slice`` has only the reads.
    """


@primitives.made_in_kernels
class UncheckedReads(VectorReads[T, Index]):
    """The type of ``a.unchecked``: a view that reads without bounds checks. An index outside the slice reads other
    memory, or destroys the whole device context. Only the alignment of vectors is checked."""

    def __getitem__(self, index: Index) -> T: ...

    @property
    def streaming(self) -> Streaming[T, Index]:
        """Returns a view whose vectors are for elements that are not needed again soon: see ``Streaming``."""


@primitives.made_in_kernels
@final
class UncheckedWrites(UncheckedReads[T, Index], VectorWrites[T, Index]):
    """The type of ``c.unchecked_mut``: a view of an output without any of the output's rules, with which any thread
    reads and writes any element.

    Nothing checks the bounds, or that no two threads write the same element: the kernel's author must prove both. Only
    a vector's address is checked, because a misaligned vector destroys the GPU's context. This is for access patterns
    that no ``ThreadIndex`` can express, such as the 64 elements of a thread in a tiled matrix product. It is
    cuda-oxide's ``get_unchecked_mut``.
    """

    def __setitem__(self, index: Index, value: T) -> None: ...


# Slices of one axis


class _Parameterized:
    """The base of slices that accept any type arguments at run time: a layout, or a number of axes. ``Generic`` would
    require a layout, and refuse the number of axes in ``Slice[f32, 2]``."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters: Any) -> GenericAlias:
            return GenericAlias(cls, parameters)


@primitives.passed_to_kernels
@final
class Slice(_Parameterized, VectorReads[T, int], Alignment):
    """A read-only, bounds-checked run of elements in device memory.

    ``a[i]`` takes any integer. A negative index, or an index past the end, is a fault: the thread leaves the kernel,
    and the launch fails with a ``BoundsError``. If threads of the kernel may wait for one another, the thread instead
    reads zero and continues. ``len(a)`` is the number of elements, an ``i64``.
    """

    def __getitem__(self, index: int) -> T: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[T]:
        """Yields the elements, for a loop over the slice, ``enumerate(x)`` or ``zip(x, y)``."""

    @property
    def dtype(self) -> type[T]:
        """Returns the elements' type, for generic kernels: ``a.dtype(0)``, ``SharedArray(32, a.dtype)``."""

    @property
    def unchecked(self) -> UncheckedReads[T, int]:
        """Returns the slice without bounds checks. ``a.unchecked[i]`` outside the slice reads other memory, or destroys
        the whole device context: nothing catches it. Use it for indices that you know to be inside although the
        compiler cannot prove it."""


@primitives.passed_to_kernels
@final
class DisjointSlice(_Parameterized, Alignment, Generic[T, Layout]):
    """A kernel's output: each thread reaches only the element of its own ``ThreadIndex``.

    ``len(c)`` is the number of elements, an ``i64``. There is no ``c[i]``. ``DisjointSlice[T, Tiles(n)]`` and
    ``DisjointSlice[T, RowMajorTiles(r, c)]`` give each thread a tile of several elements instead (``tiles.py``). Tiles
    are loaded and stored as vectors. So the address of a box for such an output must be a multiple of the greatest
    power of two, up to 16, that divides the bytes of a tile's row. Otherwise the launch is refused. Only a view of a
    box can have another address.
    """

    @overload
    def get_mut(self: DisjointSlice[T, Elements], index: ThreadIndex) -> Ref[T] | None: ...
    @overload
    def get_mut(self: DisjointSlice[T, Tiles[N]], index: ThreadIndex) -> TileRef[T] | None: ...
    @overload
    def get_mut(self: DisjointSlice[T, RowMajorTiles[R, C]], index: ThreadIndex) -> MatrixTileRef[T] | None: ...
    def get_mut(self, index: ThreadIndex) -> Any:
        """Returns this thread's element, or None if the index is outside the slice. With a tile layout, returns this
        thread's tile, or None if the tile is not entirely inside the slice."""

    @overload
    def get_remainder(self: DisjointSlice[T, Tiles[N]], index: ThreadIndex) -> TileRef[T] | None: ...
    @overload
    def get_remainder(self: DisjointSlice[T, RowMajorTiles[R, C]], index: ThreadIndex) -> MatrixTileRef[T] | None: ...
    def get_remainder(self, index: ThreadIndex) -> Any:
        """Returns the part of this thread's tile that is inside the slice, if only a part is inside. Returns None if
        all of the tile is inside, or none of it. Elements after the last whole row of a matrix belong to no tile."""

    @property
    def dtype(self) -> type[T]:
        """Returns the elements' type, as for a ``Slice``."""

    @property
    def scatter(self) -> Scatter[T, int]:
        """Returns a write-only view of the output that takes any computed index: ``c.scatter[i] = value``."""

    @property
    def unchecked_mut(self) -> UncheckedWrites[T, int]:
        """Returns a view of the output without its rules. ``c.unchecked_mut[i]`` takes any integer. Nothing checks that
        the index is inside, or that only one thread writes an element."""

    def __len__(self) -> int: ...


@primitives.passed_to_kernels
@final
class Scatter(Generic[T, Index]):
    """The type of ``c.scatter`` of an output. ``c.scatter[i] = value`` writes the element at any index ``i``. For a
    ``DisjointSlice2`` it is ``c.scatter[row, col] = value``.

    An index outside the slice is a fault, and nothing is written. The program must ensure that no two threads use the
    same index. The sanitizer reports two threads that write one element without an order between them (``kind``
    ``"race"``). ``scatter`` cannot read, because the element may be another thread's. If several threads add to one
    element, use an ``AtomicSlice``.
    """

    def __setitem__(self, index: Index, value: T) -> None: ...


@primitives.passed_to_kernels
@final
class Ref(Generic[T]):
    """One element of a ``DisjointSlice``, which is read and written through ``value``.

    A type checker refuses the use of ``value`` unless the program has checked that ``get_mut`` did not return None. If
    it did return None, using ``value`` is a fault: nothing is written, and the launch fails with a ``BoundsError``.
    """

    value: T


# Slices of two to five axes


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

    With the index ``thread.index_2d()``, ``get_mut`` returns the element at this thread's row and column, each checked
    against its own axis. With ``thread.index_1d()`` it returns the element at this position in row-major order. A
    layout may be given as the last argument: ``DisjointSlice2[f32, RowMajorTiles(2, 4)]``. Its tiles are rectangles of
    the slice's own rows and columns. With ``DisjointSlice2[f32, Rows]``, the thread with the index t of
    ``thread.index_1d()`` has row t.
    """

    @overload
    def get_mut(self: DisjointSlice2[T, Elements], index: ThreadIndex) -> Ref[T] | None: ...
    @overload
    def get_mut(self: DisjointSlice2[T, Tiles[N]], index: ThreadIndex) -> TileRef[T] | None: ...
    @overload
    def get_mut(self: DisjointSlice2[T, RowMajorTiles[R, C]], index: ThreadIndex) -> MatrixTileRef[T] | None: ...
    @overload
    def get_mut(self: DisjointSlice2[T, Rows], index: ThreadIndex) -> RowRef[T] | None: ...
    def get_mut(self, index: ThreadIndex) -> Any:
        """Returns this thread's element, or None if its row or its column is outside. With a tile layout, returns this
        thread's tile, or None if the tile is not entirely inside the slice; with ``Rows``, this thread's row."""

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
    """A kernel's output of three axes. ``get_mut(thread.index_3d())`` returns the element at this thread's plane, row
    and column, and ``get_mut(thread.index_1d())`` the element at this position in row-major order. With the layout
    ``Tiles(n)`` it returns a tile of ``n`` elements."""

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
