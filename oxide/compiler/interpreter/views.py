"""Views of slices in an interpreted kernel: rows, columns and tiles, and ``zip_exact``.

Positions and sizes are signed 64-bit integers, as in compiled code. A ``u64`` of 2**63 or more becomes
negative, and so it is out of bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, final

from oxide.compiler.primitives.numbers import GREATEST, WRAP

from .threads import current, here

_GREATEST = GREATEST["i64"]
_signed = WRAP["i64"]


class Matrix(Protocol):
    """The properties of a slice that its views use."""

    @property
    def memory(self) -> Any: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def shown(self) -> str: ...


class _View:
    def __init__(self, matrix: Matrix, bad: tuple[Any, ...] | None) -> None:
        self._matrix, self._bad = matrix, bad

    @property
    def is_none(self) -> bool:
        return self._bad is not None

    def report(self) -> None:
        """Records a fault if the view is None."""
        if self._bad is not None:
            what, index, length, place, axis = self._bad
            current().outside(what, index, length, axis, place)


@final
class VectorView(_View):
    def __init__(self, matrix: Matrix, first: int, count: int, stride: int, bad: tuple[Any, ...] | None) -> None:
        super().__init__(matrix, bad)
        self._first, self._stride = first, stride
        self.count = 0 if bad else count

    def __len__(self) -> int:
        self.report()
        return self.count

    def at(self, index: int) -> Any:
        """Returns the element at an index, which must be in bounds."""
        return self._matrix.memory.get(self._first + index * self._stride)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.count:
            current().outside(f"a view of {self._matrix.shown}", index, self.count)
            return self._matrix.memory.zero
        return self.at(index)

    def __iter__(self) -> Iterator[Any]:
        self.report()
        return (self.at(index) for index in range(self.count))

    def __repr__(self) -> str:
        if self.is_none:
            return f"<a view of {self._matrix.shown}: None>"
        return f"<a view of {self._matrix.shown}: {[self.at(index) for index in range(self.count)]}>"


@final
class TileView(_View):
    def __init__(
        self, matrix: Matrix, first: int, shape: tuple[int, int], stride: int, bad: tuple[Any, ...] | None
    ) -> None:
        super().__init__(matrix, bad)
        self._first, self._stride = first, stride
        self._shape = (0, 0) if bad else shape

    @property
    def shape(self) -> tuple[int, int]:
        self.report()
        return self._shape

    def __len__(self) -> int:
        self.report()
        return self._shape[0]

    def __getitem__(self, index: tuple[int, int]) -> Any:
        inside = True
        for axis, (part, length) in enumerate(zip(index, self._shape, strict=True)):
            if not 0 <= part < length:
                other = 1 - axis
                others = ((index[other], self._shape[other]),)
                current().outside(f"a tile of {self._matrix.shown}", part, length, axis, others=others)
                inside = False
        if not inside:
            return self._matrix.memory.zero
        return self._matrix.memory.get(self._first + index[0] * self._stride + index[1])

    def __iter__(self) -> Iterator[VectorView]:
        self.report()
        rows, cols = self._shape
        return (VectorView(self._matrix, self._first + row * self._stride, cols, 1, self._bad) for row in range(rows))

    def __repr__(self) -> str:
        return f"<a tile of {self._matrix.shown}{': None' if self.is_none else f', {self._shape}'}>"


def line_of(matrix: Matrix, index: int, axis: int) -> VectorView:
    """Returns a row (``axis`` 0) or a column (``axis`` 1) of a slice of two axes."""
    rows, cols = matrix.shape
    length, count = (rows, cols) if axis == 0 else (cols, rows)
    bad = None if 0 <= index < length else (matrix.shown, index, length, here(), axis)
    return VectorView(matrix, index * (cols if axis == 0 else 1), count, 1 if axis == 0 else cols, bad)


def tile_of(matrix: Matrix, row: int, col: int, rows: int, cols: int) -> TileView:
    """Returns a tile of a slice of two axes."""
    height, width = matrix.shape
    row, col, rows, cols = map(_signed, (row, col, rows, cols))
    bad = None
    for axis, (first, count, length) in reversed([*enumerate(((row, rows, height), (col, cols, width)))]):
        if not (0 <= count <= length and 0 <= first <= length - count):
            least, last = (count if count < 0 else first), first + count - 1
            bad = matrix.shown, least if least < 0 else min(last, _GREATEST), length, here(), axis
    return TileView(matrix, row * width + col, (rows, cols), width, bad)


def zip_exact(*views: VectorView) -> Iterator[tuple[Any, ...]]:
    """Iterates over views in lockstep. Records a fault if their lengths differ."""
    for view in views:
        view.report()
    equal = len({view.count for view in views}) == 1
    if not equal and not any(view.is_none for view in views):
        # Unlike a failed assertion, this fault ends the thread only if no other thread may wait for this thread.
        current().mistake("", "zip_exact got views of different lengths")
    count = views[0].count if equal else 0
    return (tuple(view.at(index) for view in views) for index in range(count))
