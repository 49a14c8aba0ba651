"""A kernel's inputs and outputs: ``Slice``, ``DisjointSlice`` and ``Ref``.

A thread reaches an output element only by its ``ThreadIndex``, and no two threads have equal ``ThreadIndex`` values. So
no two threads write the same element. With plain indices they could. The rule comes from cuda-oxide::

    c[0] = row          # every thread writes c[0]: refused, a DisjointSlice has no [...]
    c_elem = c.get_mut(thread.index_1d())   # the element of this thread

These classes are declarations: the compiler gives them their meaning inside a kernel, and a type checker reads them.
On the host they have no instances.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final, overload

from . import primitives
from .thread import ThreadIndex
from .vectors import Alignment, UncheckedReads, UncheckedWrites, VectorReads

T = TypeVar("T")
Index = TypeVar("Index")

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from .tiles import C, MatrixTileRef, N, R, RowMajorTiles, TileRef, Tiles

    @final
    class Elements:
        """The default layout of a ``DisjointSlice``: each thread has one element."""

    Layout = TypeVarWithDefault("Layout", default=Elements)
else:
    Layout = TypeVar("Layout")


@primitives.passed_to_kernels
@final
class Slice(VectorReads[T, int], Alignment):
    """A read-only, bounds-checked run of elements in device memory.

    ``a[i]`` takes any integer. A negative index, or an index past the end, is a fault: the thread leaves the kernel,
    and the launch fails with a ``BoundsError``. If threads of the kernel may wait for one another, the thread instead
    reads zero and continues. ``len(a)`` is the number of elements, an ``i64``.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters: Any) -> GenericAlias:
            return GenericAlias(cls, parameters)  # Generic's own method refuses the number of axes in Slice[f32, 2]

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
class DisjointSlice(Alignment, Generic[T, Layout]):
    """A kernel's output: each thread reaches only the element of its own ``ThreadIndex``.

    ``len(c)`` is the number of elements, an ``i64``. There is no ``c[i]``. ``DisjointSlice[T, Tiles(n)]`` and
    ``DisjointSlice[T, RowMajorTiles(r, c)]`` give each thread a tile of several elements instead (``tiles.py``). Tiles
    are loaded and stored as vectors. So the address of a box for such an output must be a multiple of the greatest
    power of two, up to 16, that divides the bytes of a tile's row. Otherwise the launch is refused. Only a view of a
    box can have another address.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters: Any) -> GenericAlias:
            return GenericAlias(cls, parameters)

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
