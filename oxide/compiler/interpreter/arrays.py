"""The arrays of an interpreted kernel: slices of all kinds, shared, local and constant arrays, and what gives access to
their parts: references, tiles and views.

The classes have the methods and attributes that kernels use, and check an access as compiled code does. Accesses that
compiled code leaves unchecked are checked here too, so that a kernel in a debugger cannot access other memory. A class
has more methods than the front end lets a kernel call.

In views, positions and sizes are signed 64-bit integers, as in compiled code. A ``u64`` of 2**63 or more
becomes negative, and so it is out of bounds.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from oxide.compiler.primitives.numbers import (
    COMPONENTS,
    CONVERT,
    GREATEST,
    WRAP,
    bits_of,
    converter_of,
    greatest,
    least,
    part_of,
    whole,
)
from oxide.compiler.signature.signature import ROWS
from oxide.compiler.source.typings import ArrayElements
from oxide.language import narrow
from oxide.language.structures import StructureType
from oxide.language.types import NARROW, SCALARS, ScalarType
from oxide.language.vectors import VectorType

from .threads import Thread, current, here

Index: TypeAlias = int | tuple[int, ...]
Kind: TypeAlias = str | StructureType

_DTYPES = {name: scalar.bits_dtype if scalar.precision else scalar.dtype for name, scalar in SCALARS.items()}
"""The NumPy dtype that holds the elements of each type. A narrow float is held as an unsigned integer with its bits, so
that this table does not need ``ml_dtypes``."""

_GREATEST = GREATEST["i64"]
_signed = WRAP["i64"]


@final
class Memory:
    """Elements of one type in row-major order: of numbers or vectors, for which ``kind`` is the type's name, or of
    structures, for which it is their ``StructureType``. ``array`` holds them in the device's representation, and the
    components of vectors one by one. ``address`` is that of the elements for compiled code; 0 stands for that of an
    array of a block, which begins at a multiple of 16."""

    __slots__ = ("address", "array", "components", "convert", "dtype", "is_narrow", "scalar", "structure")

    def __init__(self, kind: Kind, array: np.ndarray[Any, Any], address: int = 0) -> None:
        self.structure = kind if isinstance(kind, StructureType) else None
        self.dtype = dtype = kind.name if isinstance(kind, StructureType) else kind
        self.array = array
        self.address = address
        self.components = COMPONENTS.get(dtype)
        self.scalar = part_of(dtype)
        self.is_narrow = self.scalar in NARROW
        self.convert = CONVERT[dtype] if self.structure is None else converter_of(kind)

    @classmethod
    def at(cls, kind: Kind, address: int, count: int) -> Memory:
        """Returns the elements at an address in host memory."""
        dtype, count = _dtype(kind), count * _count(kind)
        if count == 0:
            return cls(kind, np.empty(0, dtype), address)
        content = memoryview((ctypes.c_char * (count * dtype.itemsize)).from_address(address))
        return cls(kind, np.frombuffer(content, dtype), address)

    @classmethod
    def new(cls, kind: Kind, count: int) -> Memory:
        """Returns new elements, all 0."""
        return cls(kind, np.zeros(count * _count(kind), _dtype(kind)))

    @property
    def shown(self) -> np.ndarray[Any, Any]:
        """Returns the elements as an array of the dtype that a debugger shows, in which narrow floats are numbers and
        not bits."""
        if self.structure is not None:
            return self.array.view(self.structure.dtype)
        numbers = self.array.view(SCALARS[self.scalar].dtype)
        return numbers if self.components is None else numbers.reshape(-1, self.components.count)

    @property
    def zero(self) -> Any:
        return self.convert(0)

    def get(self, place: int) -> Any:
        current().launch.spend()
        return self.peek(place)

    def peek(self, place: int) -> Any:
        """Returns an element without counting the access."""
        if self.structure is not None:
            return _value(self.structure, self.array[place])
        if self.components is None:
            return self._number(place)
        count = self.components.count
        return self.components.made_of(*[self._number(place * count + part) for part in range(count)])

    def _number(self, place: int) -> Any:
        value = self.array.item(place)
        return narrow.number_of(self.scalar, value) if self.is_narrow else value

    def set(self, place: int, value: Any) -> None:
        current().launch.spend()
        self.poke(place, self.convert(value))

    def poke(self, place: int, value: Any) -> None:
        """Sets an element without counting the access. ``value`` must already be a number of the element's type."""
        if self.structure is not None:
            self.array[place] = _held(self.structure, value)
            return
        if self.components is None:
            self.array[place] = narrow.bits_of(self.scalar, value) if self.is_narrow else value
            return
        for part, each in enumerate(value, place * self.components.count):
            self.array[part] = narrow.bits_of(self.scalar, each) if self.is_narrow else each


def _count(kind: Kind) -> int:
    return COMPONENTS[kind].count if isinstance(kind, str) and kind in COMPONENTS else 1


def _dtype(kind: Kind) -> np.dtype[Any]:
    """Returns the NumPy dtype that holds elements, or the components of vectors."""
    if not isinstance(kind, StructureType):
        return _DTYPES[part_of(kind)]
    fields = []
    for field, each in zip(kind.fields, kind.kinds, strict=True):
        inner = _dtype(each if isinstance(each, StructureType) else each.name)
        fields.append((field, np.dtype((inner, (each.count,))) if isinstance(each, VectorType) else inner))
    return np.dtype(fields, align=True)


def _value(kind: Any, held: Any) -> Any:
    """Returns a number, a vector or a structure from the form in which an array holds it."""
    if isinstance(kind, StructureType):
        parts = zip(kind.kinds, kind.fields, strict=True)
        return kind.made_of(*[_value(each, held[field]) for each, field in parts])
    if isinstance(kind, VectorType):
        return kind.made_of(*[_value(kind.scalar, part) for part in held])
    return narrow.number_of(kind.name, held.item()) if kind.precision else held.item()


def _held(kind: Any, value: Any) -> Any:
    """Returns the form in which an array holds a number, a vector or a structure."""
    if isinstance(kind, StructureType):
        return tuple(_held(each, part) for each, part in zip(kind.kinds, value, strict=True))
    if isinstance(kind, VectorType):
        return tuple(_held(kind.scalar, part) for part in value)
    return narrow.bits_of(kind.name, value) if kind.precision else value


def constructed(kind: StructureType) -> Callable[..., Any]:
    """Returns the function that makes a structure."""
    convert = converter_of(kind)
    return lambda *fields, **named: convert(kind.made_of(*fields, **named))


def replaced(kind: StructureType) -> Callable[..., Any]:
    """Returns the method ``_replace`` of a structure."""
    convert = converter_of(kind)
    return lambda value, **named: convert(value._replace(**named))


def _position(
    parts: Sequence[int], shape: Sequence[int], shown: str, place: tuple[str, int] | None = None
) -> int | None:
    """Returns the position of an element in row-major order. If the index is out of bounds, records a fault, at
    ``place`` if it is given, and returns None."""
    position, inside = 0, True
    for axis, (part, length) in enumerate(zip(parts, shape, strict=True)):
        if not 0 <= part < length:
            pairs = enumerate(zip(parts, shape, strict=True))
            others = tuple(pair for other, pair in pairs if other != axis)
            current().outside(shown, part, length, axis if len(parts) > 1 else None, place, others)
            inside = False
        position = position * length + part
    return position if inside else None


def parts_of(index: Index) -> tuple[int, ...]:
    """Returns the numbers of an index, one for each axis. An index that wrapped is outside, as in compiled code."""
    return tuple(map(whole, index if isinstance(index, tuple) else (index,)))


def _changing(new: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Returns the atomic method that replaces an element ``old`` by ``new(old, value)`` and returns ``old``."""

    def method(self: Array, index: Index, value: Any, ordering: Any = None, scope: Any = None) -> Any:
        return self._change(index, new, value)

    return method


class Array:
    """A slice, a shared, a local or a constant array. ``shown`` is the name of the array in faults."""

    def __init__(self, memory: Memory, shape: tuple[int, ...], shown: str) -> None:
        self.memory, self.shape, self.shown = memory, shape, shown

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> ScalarType:
        return SCALARS[self.memory.scalar]

    def __repr__(self) -> str:
        shown = self.memory.shown
        return f"<{self.shown}: {shown.reshape(self.shape + shown.shape[1:])}>"

    def place(self, index: Index) -> int | None:
        """Returns the position of an element in row-major order. If the index is out of bounds, records a fault and
        returns None."""
        parts = parts_of(index)
        if len(self.shape) != len(parts):  # one axis: an integer, or a tuple of one integer
            raise TypeError(f"{self.shown} has {len(self.shape)} axes, and the index {len(parts)}")
        return _position(parts, self.shape, self.shown)

    def __getitem__(self, index: Index) -> Any:
        place = self.place(index)
        return self.memory.zero if place is None else self.memory.get(place)

    def __setitem__(self, index: Index, value: Any) -> None:
        place = self.place(index)
        if place is not None:
            self.memory.set(place, value)

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))

    # The forms of a slice differ in what compiled code checks

    @property
    def unchecked(self) -> Array:
        return self

    unchecked_mut = streaming = scatter = unchecked

    @property
    def flat(self) -> Array:
        return Array(self.memory, (math.prod(self.shape),), self.shown)

    # Vectors

    def is_aligned(self, count: int) -> bool:
        whole = len(self.shape) == 1 or self.shape[-1] % count == 0
        return self.memory.address % self._alignment(count) == 0 and whole

    def _alignment(self, count: int) -> int:
        return min(count * self.memory.array.itemsize, 16)

    def _vector(self, index: Index, count: int, name: str) -> int | None:
        """Returns the position of a vector's first element. If the vector is out of bounds or not aligned, records a
        fault and returns None."""
        first = self.place(index)
        *others, last = parts_of(index)
        end = self.place((*others, last + count - 1))
        if first is None or end is None:
            return None
        alignment = self._alignment(count)
        if (first * self.memory.array.itemsize + self.memory.address) % alignment:
            current().mistake(
                self.shown,
                f"{self.shown}.{name}(…) needs an address that is a multiple of {alignment} bytes; test "
                f"is_aligned(…) first, and give it an index that is a multiple of {count}",
            )
            return None
        return first

    def _load(self, index: Index, count: int) -> tuple[Any, ...]:
        first = self._vector(index, count, f"load{count}")
        if first is None:
            return (self.memory.zero,) * count
        return tuple(self.memory.get(first + place) for place in range(count))

    def _store(self, index: Index, *values: Any) -> None:
        first = self._vector(index, len(values), f"store{len(values)}")
        if first is not None:
            for place, value in enumerate(values):
                self.memory.set(first + place, value)

    def load2(self, index: Index) -> tuple[Any, ...]:
        return self._load(index, 2)

    def load4(self, index: Index) -> tuple[Any, ...]:
        return self._load(index, 4)

    def store2(self, index: Index, a: Any, b: Any) -> None:
        self._store(index, a, b)

    def store4(self, index: Index, a: Any, b: Any, c: Any, d: Any) -> None:
        self._store(index, a, b, c, d)

    # Views of a slice of two axes

    def row(self, i: int) -> VectorView:
        return self._line(i, 0)

    def col(self, j: int) -> VectorView:
        return self._line(j, 1)

    def _line(self, index: int, axis: int) -> VectorView:
        rows, cols = self.shape
        (index,) = parts_of(index)
        length, count = (rows, cols) if axis == 0 else (cols, rows)
        bad = None if 0 <= index < length else (self.shown, index, length, here(), axis)
        return VectorView(self, index * (cols if axis == 0 else 1), count, 1 if axis == 0 else cols, bad)

    def tile(self, row: int, col: int, rows: int, cols: int) -> TileView:
        height, width = self.shape
        row, col, rows, cols = map(_signed, parts_of((row, col, rows, cols)))
        bad = None
        for axis, (first, count, length) in reversed([*enumerate(((row, rows, height), (col, cols, width)))]):
            if not (0 <= count <= length and 0 <= first <= length - count):
                lowest, last = (count if count < 0 else first), first + count - 1
                bad = self.shown, lowest if lowest < 0 else min(last, _GREATEST), length, here(), axis
        return TileView(self, row * width + col, (rows, cols), width, bad)

    # Atomic operations. Only one thread runs at a time, so each is an ordinary read followed by an ordinary write.

    def _change(self, index: Index, new: Any, value: Any) -> Any:
        place, memory = self.place(index), self.memory
        value = memory.convert(value)
        if place is None:
            return memory.zero
        old = memory.get(place)
        memory.set(place, new(old, value))
        return old

    fetch_add = _changing(operator.add)
    fetch_sub = _changing(operator.sub)
    fetch_min = _changing(least)
    fetch_max = _changing(greatest)
    fetch_and = _changing(operator.and_)
    fetch_or = _changing(operator.or_)
    fetch_xor = _changing(operator.xor)
    exchange = _changing(lambda old, by: by)

    def store(self, index: Index, value: Any, ordering: Any = None, scope: Any = None) -> None:
        self.exchange(index, value)

    def load(self, index: Index, ordering: Any = None, scope: Any = None) -> Any:
        place = self.place(index)
        return self.memory.zero if place is None else self.memory.get(place)

    def compare_exchange(self, index: Index, expected: Any, value: Any, ordering: Any = None, scope: Any = None) -> Any:
        memory = self.memory
        expected = memory.convert(expected)

        def new(old: Any, by: Any) -> Any:
            return by if bits_of(memory.dtype, old) == bits_of(memory.dtype, expected) else old

        return self._change(index, new, value)


@final
class DisjointSlice(Array):
    def __init__(self, memory: Memory, shape: tuple[int, ...], shown: str, tile: tuple[int, ...]) -> None:
        super().__init__(memory, shape, shown)
        self._sides = tile

    def get_mut(self, index: ThreadIndex) -> Any:
        if self._sides:
            return self._whole_tile(index)
        if len(self.shape) == index.axes > 1:
            return Ref(self, tuple(current().place(axis) for axis in reversed(range(index.axes))), self.shape)
        return Ref(self, (index.number,), (math.prod(self.shape),))

    def _grid(self, index: ThreadIndex) -> tuple[int, int, int]:
        """Returns the first row of this thread's tile, its first column, and the output's width."""
        thread = current()
        width = self.shape[1] if len(self.shape) == 2 else index.width
        assert width is not None
        return thread.place(1) * self._sides[0], thread.place(0) * self._sides[1], width

    def _whole_tile(self, index: ThreadIndex) -> TileRef | RowRef:
        if self._sides == ROWS:
            return RowRef(self, index.number)
        what, length = f"a tile of {self.shown}", math.prod(self.shape)
        if len(self._sides) == 1:
            (size,) = self._sides
            site = f"the tiles of {self.shown}"
            return TileRef(self, what, index.number * size, self._sides, size, (index.number, length // size, site))
        row, col, width = self._grid(index)
        good = index.number >= 0 and col + self._sides[1] <= width
        last = (row + self._sides[0]) * width - 1 if good else -1
        return TileRef(self, what, row * width + col, self._sides, width, (last, length, self.shown))

    def get_remainder(self, index: ThreadIndex) -> TileRef:
        what, length = f"a remainder of {self.shown}", math.prod(self.shape)
        if len(self._sides) == 1:
            (size,) = self._sides
            count = length % size if index.number == length // size else 0
            return TileRef(self, what, length - length % size, (count,), size, None)
        row, col, width = self._grid(index)
        height = min(length // (width or 1) - row, self._sides[0])
        breadth = min(width - col, self._sides[1])
        there = height > 0 and breadth > 0 and (height < self._sides[0] or breadth < self._sides[1])
        return TileRef(self, what, row * width + col, (height, breadth) if there else (0, 0), width, None)


@final
class ThreadIndex:
    """The kernel language's ``ThreadIndex``. It is None in the kernel if ``number`` is negative. ``width`` is the
    argument of ``index_2d``, or None. ``axes`` is the number of axes along which the index has a place."""

    __slots__ = ("axes", "number", "width")

    def __init__(self, number: int, width: int | None = None, *, axes: int = 1) -> None:
        self.number, self.width, self.axes = number, width, axes

    def get(self) -> int:
        return self.number

    column = property(lambda self: current().place(0))
    row = property(lambda self: current().place(1))
    plane = property(lambda self: current().place(2))

    @property
    def is_none(self) -> bool:
        return self.number < 0

    def __repr__(self) -> str:
        if self.is_none or self.axes == 1:
            return "<ThreadIndex: None>" if self.is_none else f"<ThreadIndex {self.number}>"
        return f"<ThreadIndex {tuple(current().place(axis) for axis in reversed(range(self.axes)))}>"


@final
class Ref:
    """A reference to an element of an output, given by its index along each axis, or by its position in the whole
    output. It is None in the kernel if it is out of bounds. A fault names the file and the line of the ``get_mut``
    call."""

    __slots__ = ("_at", "_output", "_place_got", "_shape")

    def __init__(self, output: DisjointSlice, at: tuple[int, ...], shape: tuple[int, ...]) -> None:
        self._output, self._at, self._shape = output, at, shape
        self._place_got = here()

    @property
    def is_none(self) -> bool:
        return not all(0 <= part < length for part, length in zip(self._at, self._shape, strict=True))

    def _place(self) -> int | None:
        return _position(self._at, self._shape, self._output.shown, self._place_got)

    @property
    def value(self) -> Any:
        place = self._place()
        return self._output.memory.zero if place is None else self._output.memory.get(place)

    @value.setter
    def value(self, value: Any) -> None:
        place = self._place()
        if place is not None:
            self._output.memory.set(place, value)

    def __repr__(self) -> str:
        if self.is_none:
            return f"<Ref of {self._output.shown}: None>"
        place = self._place()
        return f"<Ref of {self._output.shown}[{place}]: {self._output.memory.shown[place]}>"


@final
class TileRef:
    """A thread's whole tile of an output, or its remainder: the part inside the output of a tile that is only partly
    inside. Both may be None in the kernel.

    ``limit`` is None for a remainder. For a whole tile, it is a tuple of an index, the length that this index must be
    below, and the name that a fault reports.
    """

    def __init__(
        self,
        output: DisjointSlice,
        what: str,
        first: int,
        sides: tuple[int, ...],
        width: int,
        limit: tuple[int, int, str] | None,
    ) -> None:
        self._memory, self._what, self._first = output.memory, what, first
        self._sides, self._width, self._limit = sides, width, limit
        self._place_got = here()

    @property
    def is_none(self) -> bool:
        if self._limit is None:
            return self._sides[-1] == 0
        return not 0 <= self._limit[0] < self._limit[1]

    def _report(self) -> bool:
        """Returns False and records a fault for a whole tile that is None. Returns True for any other tile, and for
        every remainder."""
        if self._limit is not None and self.is_none:
            current().outside(self._limit[2], self._limit[0], self._limit[1], place=self._place_got)
            return False
        return True

    def _report_size(self) -> None:
        if self._limit is None and self.is_none:
            current().outside(self._what, 0, 0, place=self._place_got)
        self._report()

    def __len__(self) -> int:
        self._report_size()
        return self._sides[0]

    @property
    def shape(self) -> tuple[int, ...]:
        self._report_size()
        return self._sides

    def _place(self, index: Index) -> int | None:
        parts = parts_of(index)
        there = self._report()
        if _position(parts, self._sides, self._what) is None or not there:
            return None
        return self._first + (parts[0] if len(parts) == 1 else parts[0] * self._width + parts[1])

    def __getitem__(self, index: Index) -> Any:
        place = self._place(index)
        return self._memory.zero if place is None else self._memory.get(place)

    def __setitem__(self, index: Index, value: Any) -> None:
        place = self._place(index)
        if place is not None:
            self._memory.set(place, value)

    def __repr__(self) -> str:
        return f"<{self._what}{': None' if self.is_none else ''}>"


@final
class RowRef:
    """A thread's row of an output. It is None in the kernel if it is out of bounds."""

    def __init__(self, output: DisjointSlice, number: int) -> None:
        self._output, self._number = output, number

    @property
    def is_none(self) -> bool:
        return not 0 <= self._number < self._output.shape[0]

    def __len__(self) -> int:
        columns = self._output.shape[1]
        if self.is_none:
            current().outside(self._output.shown, self._number, self._output.shape[0], 0, None, ((0, columns),))
        return columns

    def __getitem__(self, position: int) -> Any:
        return self._output[self._number, position]

    def __setitem__(self, position: int, value: Any) -> None:
        self._output[self._number, position] = value

    def __repr__(self) -> str:
        return f"<row {self._number} of {self._output.shown}{': None' if self.is_none else ''}>"


class _View:
    def __init__(self, matrix: Array, bad: tuple[Any, ...] | None) -> None:
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
    def __init__(self, matrix: Array, first: int, count: int, stride: int, bad: tuple[Any, ...] | None) -> None:
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
        (index,) = parts_of(index)
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
        self, matrix: Array, first: int, shape: tuple[int, int], stride: int, bad: tuple[Any, ...] | None
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
        row, col = parts_of(index)
        if _position((row, col), self._shape, f"a tile of {self._matrix.shown}") is None:
            return self._matrix.memory.zero
        return self._matrix.memory.get(self._first + row * self._stride + col)

    def __iter__(self) -> Iterator[VectorView]:
        self.report()
        rows, cols = self._shape
        return (VectorView(self._matrix, self._first + row * self._stride, cols, 1, self._bad) for row in range(rows))

    def __repr__(self) -> str:
        return f"<a tile of {self._matrix.shown}{': None' if self.is_none else f', {self._shape}'}>"


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


def declared_array(arrays: dict[Any, Any], key: Any, elements: ArrayElements) -> Array:
    """Returns the array with this key among a block's shared arrays or a thread's local arrays. The first call with a
    key creates the array."""
    found: Array | None = arrays.get(key)
    if found is None:
        assert elements.shape is not None
        memory = Memory.new(elements.dtype, math.prod(elements.shape))
        found = arrays[key] = Array(memory, elements.shape, elements.shown)
    return found


def dynamic_array(thread: Thread, elements: ArrayElements) -> Array:
    """Returns the block's dynamic shared memory as an array of elements of the given type."""
    size = thread.launch.shared_bytes
    whole = thread.shared.get("dynamic")
    if whole is None:
        whole = thread.shared["dynamic"] = np.zeros(-(-size // 16) * 16, np.uint8)
    kind = _dtype(elements.dtype)
    itemsize = kind.itemsize * _count(elements.dtype)
    count = size // itemsize
    return Array(Memory(elements.dtype, whole[: count * itemsize].view(kind)), (count,), elements.shown)


def constant_array(array: np.ndarray[Any, Any], elements: ArrayElements) -> Array:
    """Returns a NumPy array from outside the kernel as a constant array."""
    plain = np.ascontiguousarray(array)
    memory = Memory(elements.dtype, plain.reshape(-1).view(_DTYPES[elements.dtype]))
    return Array(memory, array.shape, elements.shown)
