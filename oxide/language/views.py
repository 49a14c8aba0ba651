"""Views that are checked once: the rows, columns and tiles of a ``Slice2``, and ``zip_exact``.

In a loop that the compiler cannot analyse, the check of each index costs more than the read. A view is checked as a
whole when it is made, and its reads then need no check::

    row, column = a.row(i), b.col(j)          # VectorView[f32] | None: None if there is no such row or column
    if row is not None and column is not None:
        for x, y in zip_exact(row, column):   # no check here, whatever i, j and the shapes are
            acc += x * y

Rust's slices and ``chunks_exact`` are the model. The use of a view that is None is a fault: the launch fails with a
``BoundsError``. A type checker refuses such a use. These are declarations: the compiler gives them their meaning inside
a kernel, and a type checker reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar, final, overload

from . import primitives

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
W = TypeVar("W")


@primitives.made_in_kernels
@final
class VectorView(Generic[T]):
    """Elements at equal distances, all inside their slice: a row or a column of a matrix.

    ``for x in view`` reads without checks, and so does ``view[i]`` in a loop ``for i in range(len(view))``. Any other
    index is checked against ``len(view)``, which is an ``i64``.
    """

    def __iter__(self) -> Iterator[T]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> T: ...


@primitives.made_in_kernels
@final
class TileView(Generic[T]):
    """A rectangle of a matrix, all of it inside the slice.

    ``for row in tile: for x in row`` reads without checks, and so does ``tile[i, j]`` with ``i`` and ``j`` from ranges
    over ``tile.shape``. Any other index is checked, separately for each axis. ``len(tile)`` is the number of rows.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Returns the numbers of rows and of columns, each an ``i64``."""

    def __iter__(self) -> Iterator[VectorView[T]]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: tuple[int, int]) -> T: ...


@overload
def zip_exact(first: VectorView[T], second: VectorView[U], /) -> Iterator[tuple[T, U]]: ...
@overload
def zip_exact(first: VectorView[T], second: VectorView[U], third: VectorView[V], /) -> Iterator[tuple[T, U, V]]: ...
@overload
def zip_exact(
    first: VectorView[T], second: VectorView[U], third: VectorView[V], fourth: VectorView[W], /
) -> Iterator[tuple[T, U, V, W]]: ...
@primitives.function
def zip_exact(*views: VectorView[Any]) -> Iterator[tuple[Any, ...]]:
    """Iterates over two to four views in step, in a ``for`` loop: ``for x, y in zip_exact(row, column)``.

    If the views have different lengths, the loop does not run, and the launch fails with a ``KernelAssertionError``.
    Python's ``zip(strict=True)`` and ``zip_eq`` of Rust's itertools have the same rule. The lengths are compared once,
    before the loop. Views that were made with the same length need no comparison.
    """
