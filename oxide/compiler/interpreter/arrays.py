"""The arrays of an interpreted kernel: slices of all kinds, and shared, local and constant arrays.

Each class has the methods and attributes that kernels use, and checks an access as compiled code does. Accesses that
compiled code leaves unchecked are checked here too, so that a kernel in a debugger cannot access other memory.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeAlias, final

import numpy as np

from oxide.compiler.primitives.numbers import CONVERT, bits_of, greatest, least
from oxide.compiler.source.typings import ArrayElements
from oxide.language import narrow
from oxide.language.types import NARROW, SCALARS, ScalarType

from .threads import Thread, current, here
from .views import TileView, VectorView, line_of, tile_of

Index: TypeAlias = int | tuple[int, ...]

_DTYPES = {name: scalar.bits_dtype if scalar.precision else scalar.dtype for name, scalar in SCALARS.items()}
"""The NumPy dtype that holds the elements of each type. A narrow float is held as an unsigned integer with its bits, so
that this table does not need ``ml_dtypes``."""


@final
class Memory:
    """Elements of one type in row-major order. ``array`` holds them in the device's representation."""

    __slots__ = ("address", "array", "convert", "dtype", "is_narrow")

    def __init__(self, dtype: str, array: np.ndarray[Any, Any]) -> None:
        self.dtype = dtype
        self.array = array
        self.address: int = array.ctypes.data
        self.is_narrow = dtype in NARROW
        self.convert = CONVERT[dtype]

    @classmethod
    def at(cls, dtype: str, address: int, count: int) -> Memory:
        """Returns the elements at an address in host memory."""
        kind = _DTYPES[dtype]
        if count == 0:
            return cls(dtype, np.empty(0, kind))
        return cls(
            dtype, np.frombuffer(memoryview((ctypes.c_char * (count * kind.itemsize)).from_address(address)), kind)
        )

    @classmethod
    def new(cls, dtype: str, count: int) -> Memory:
        """Returns new elements, all 0."""
        return cls(dtype, np.zeros(count, _DTYPES[dtype]))

    @property
    def shown(self) -> np.ndarray[Any, Any]:
        """Returns the elements as an array of the dtype that a debugger shows, in which narrow floats are numbers and
        not bits."""
        return self.array.view(SCALARS[self.dtype].dtype)

    @property
    def zero(self) -> Any:
        return self.convert(0)

    def get(self, place: int) -> Any:
        current().launch.spend()
        return self.peek(place)

    def peek(self, place: int) -> Any:
        """Returns an element without counting the access."""
        value = self.array.item(place)
        return narrow.number_of(self.dtype, value) if self.is_narrow else value

    def set(self, place: int, value: Any) -> None:
        current().launch.spend()
        self.poke(place, self.convert(value))

    def poke(self, place: int, value: Any) -> None:
        """Sets an element without counting the access. ``value`` must already be a number of the element's type."""
        self.array[place] = narrow.bits_of(self.dtype, value) if self.is_narrow else value


def _changing(new: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Returns the atomic method that replaces an element ``old`` by ``new(old, value)`` and returns ``old``."""

    def method(self: _Atomics, index: Index, value: Any, ordering: Any = None, scope: Any = None) -> Any:
        return self._change(index, new, value)

    return method


class _Atomics:
    """The atomic methods of slices and shared arrays. Only one thread runs at a time, so each method is an ordinary
    read followed by an ordinary write."""

    memory: Memory

    def _place(self, index: Index) -> int | None:
        raise NotImplementedError

    def _change(self, index: Index, new: Any, value: Any) -> Any:
        place, memory = self._place(index), self.memory
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
        place = self._place(index)
        return self.memory.zero if place is None else self.memory.get(place)

    def compare_exchange(self, index: Index, expected: Any, value: Any, ordering: Any = None, scope: Any = None) -> Any:
        memory = self.memory
        expected = memory.convert(expected)

        def new(old: Any, by: Any) -> Any:
            return by if bits_of(memory.dtype, old) == bits_of(memory.dtype, expected) else old

        return self._change(index, new, value)


def others_of(index: Sequence[int], shape: Sequence[int], axis: int) -> tuple[tuple[int, int], ...]:
    """Returns the index and the length of each axis other than ``axis``."""
    return tuple(pair for other, pair in enumerate(zip(index, shape, strict=True)) if other != axis)


class BaseArray:
    """The base class of all arrays. Checks accesses axis by axis."""

    memory: Memory
    shape: tuple[int, ...]
    shown: str
    """The name of the array in faults."""
    checked: ClassVar[bool] = True

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> ScalarType:
        return SCALARS[self.memory.dtype]

    def __repr__(self) -> str:
        return f"<{self.shown}: {self.memory.shown.reshape(self.shape)}>"

    def _place(self, index: Index) -> int | None:
        """Returns the position of an element in row-major order. If the index is out of bounds, records a fault and
        returns None."""
        parts = index if isinstance(index, tuple) else (index,)
        if len(self.shape) != len(parts):  # one axis: an integer, or a tuple of one integer
            raise TypeError(f"{self.shown} has {len(self.shape)} axes, and the index {len(parts)}")
        place, inside = 0, True
        for axis, (part, length) in enumerate(zip(parts, self.shape, strict=True)):
            if not 0 <= part < length:
                named = axis if len(parts) > 1 or self._has_axes else None
                current().outside(self.shown, part, length, named, others=others_of(parts, self.shape, axis))
                inside = False
            place = place * length + part
        return place if inside else None

    _has_axes = False

    # Vectors

    def _vector(self, index: Index, count: int, name: str) -> int | None:
        """Returns the position of a vector's first element. If the vector is out of bounds or not aligned, records a
        fault and returns None."""
        first = self._place(index)
        *others, last = index if isinstance(index, tuple) else (index,)
        end = last + count - 1
        if self._has_axes:
            inside = 0 <= end < self.shape[-1]
            if not inside:
                axis = len(self.shape) - 1
                pairs = others_of((*others, end), self.shape, axis)
                current().outside(self.shown, end, self.shape[-1], axis, others=pairs)
        else:
            inside = self._place((*others, end) if others else end) is not None
        if first is None or not inside:
            return None
        size = self.memory.array.itemsize
        alignment = min(count * size, 16)
        # In compiled code, the arrays of a block begin at multiples of 16 bytes.
        address = first * size + (0 if isinstance(self, BlockArray) else self.memory.address)
        if address % alignment:
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


class _Reads(BaseArray):
    def __getitem__(self, index: Index) -> Any:
        place = self._place(index)
        return self.memory.zero if place is None else self.memory.get(place)

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))


class _Writes(BaseArray):
    def __setitem__(self, index: Index, value: Any) -> None:
        place = self._place(index)
        if place is not None:
            self.memory.set(place, value)


class _VectorReads(_Reads):
    def load2(self, index: Index) -> tuple[Any, ...]:
        return self._load(index, 2)

    def load4(self, index: Index) -> tuple[Any, ...]:
        return self._load(index, 4)


class _VectorWrites(_VectorReads, _Writes):
    def store2(self, index: Index, a: Any, b: Any) -> None:
        self._store(index, a, b)

    def store4(self, index: Index, a: Any, b: Any, c: Any, d: Any) -> None:
        self._store(index, a, b, c, d)


class _Parameter(BaseArray):
    """A slice that is a kernel's parameter."""

    def __init__(self, memory: Memory, shape: tuple[int, ...], shown: str) -> None:
        self.memory, self.shape, self.shown = memory, shape, shown
        self._has_axes = len(shape) > 1

    def is_aligned(self, count: int) -> bool:
        alignment = min(count * self.memory.array.itemsize, 16)
        whole = not self._has_axes or self.shape[-1] % count == 0
        return self.memory.address % alignment == 0 and whole


@final
class Slice(_Parameter, _VectorReads):
    def row(self, i: int) -> VectorView:
        return line_of(self, i, 0)

    def col(self, j: int) -> VectorView:
        return line_of(self, j, 1)

    def tile(self, row: int, col: int, rows: int, cols: int) -> TileView:
        return tile_of(self, row, col, rows, cols)

    @property
    def flat(self) -> Slice:
        return Slice(self.memory, (math.prod(self.shape),), self.shown)

    @property
    def unchecked(self) -> Raw:
        return Raw(self.memory, self.shape, self.shown)


@final
class Raw(_Parameter, _VectorWrites):
    """The ``unchecked``, ``unchecked_mut`` and ``streaming`` forms of a slice. A thread may read and write any element
    through them."""

    @property
    def streaming(self) -> Raw:
        return self


@final
class Scatter(_Parameter, _Writes):
    pass


@final
class AtomicSlice(_Parameter, _Atomics):
    pass


@final
class DisjointSlice(_Parameter):
    def __init__(self, memory: Memory, shape: tuple[int, ...], shown: str, tile: tuple[int, ...]) -> None:
        super().__init__(memory, shape, shown)
        self.tile = tile

    @property
    def scatter(self) -> Scatter:
        return Scatter(self.memory, self.shape, self.shown)

    @property
    def unchecked_mut(self) -> Raw:
        return Raw(self.memory, self.shape, self.shown)

    def get_mut(self, index: ThreadIndex) -> Any:
        if self.tile:
            return self._whole_tile(index)
        if len(self.shape) == 2 and index.width is not None:
            thread = current()
            return PlaceRef(self, thread.place(1), thread.place(0), here())
        return Ref(self, index.number, here())

    def _grid(self, index: ThreadIndex) -> tuple[int, int, int]:
        """Returns the first row of this thread's tile, its first column, and the output's width."""
        thread = current()
        assert index.width is not None
        width = self.shape[1] if len(self.shape) == 2 else index.width
        return thread.place(1) * self.tile[0], thread.place(0) * self.tile[1], width

    def _whole_tile(self, index: ThreadIndex) -> TileRef:
        what, length = f"a tile of {self.shown}", math.prod(self.shape)
        if len(self.tile) == 1:
            (size,) = self.tile
            site = f"the tiles of {self.shown}"
            return TileRef(self, what, index.number * size, self.tile, size, (index.number, length // size, site))
        row, col, width = self._grid(index)
        good = index.number >= 0 and col + self.tile[1] <= width
        last = (row + self.tile[0]) * width - 1 if good else -1
        return TileRef(self, what, row * width + col, self.tile, width, (last, length, self.shown))

    def get_remainder(self, index: ThreadIndex) -> TileRef:
        what, length = f"a remainder of {self.shown}", math.prod(self.shape)
        if len(self.tile) == 1:
            (size,) = self.tile
            count = length % size if index.number == length // size else 0
            return TileRef(self, what, length - length % size, (count,), size, None)
        row, col, width = self._grid(index)
        height = min(length // (width or 1) - row, self.tile[0])
        breadth = min(width - col, self.tile[1])
        there = height > 0 and breadth > 0 and (height < self.tile[0] or breadth < self.tile[1])
        return TileRef(self, what, row * width + col, (height, breadth) if there else (0, 0), width, None)


@final
class ThreadIndex:
    """The kernel language's ``ThreadIndex``. It is None in the kernel if ``number`` is negative. ``width`` is the
    argument of ``index_2d``; it is None for an index of ``index_1d``."""

    __slots__ = ("number", "width")

    def __init__(self, number: int, width: int | None = None) -> None:
        self.number, self.width = number, width

    def get(self) -> int:
        return self.number

    @property
    def is_none(self) -> bool:
        return self.number < 0

    def __repr__(self) -> str:
        return "<ThreadIndex: None>" if self.is_none else f"<ThreadIndex {self.number}>"


class Ref:
    """A reference to an element of an output. It is None in the kernel if its index is out of bounds. A fault names the
    file and the line of the ``get_mut`` call."""

    __slots__ = ("_index", "_output", "_place")

    def __init__(self, output: DisjointSlice, index: int, place: tuple[str, int]) -> None:
        self._output, self._index, self._place = output, index, place

    @property
    def is_none(self) -> bool:
        return not 0 <= self._index < math.prod(self._output.shape)

    def _inside(self) -> int | None:
        if self.is_none:
            current().outside(self._output.shown, self._index, math.prod(self._output.shape), place=self._place)
            return None
        return self._index

    @property
    def value(self) -> Any:
        place = self._inside()
        return self._output.memory.zero if place is None else self._output.memory.get(place)

    @value.setter
    def value(self, value: Any) -> None:
        place = self._inside()
        if place is not None:
            self._output.memory.set(place, value)

    def __repr__(self) -> str:
        if self.is_none:
            return f"<Ref of {self._output.shown}: None>"
        return f"<Ref of {self._output.shown}[{self._index}]: {self._output.memory.shown[self._index]}>"


@final
class PlaceRef(Ref):
    """A reference to an element of an output of two axes, given by row and column."""

    __slots__ = ("_at",)

    def __init__(self, output: DisjointSlice, row: int, col: int, place: tuple[str, int]) -> None:
        super().__init__(output, row * output.shape[1] + col, place)
        self._at = row, col

    @property
    def is_none(self) -> bool:
        return not all(part < length for part, length in zip(self._at, self._output.shape, strict=True))

    def _inside(self) -> int | None:
        for axis, (part, length) in enumerate(zip(self._at, self._output.shape, strict=True)):
            if part >= length:
                others = others_of(self._at, self._output.shape, axis)
                current().outside(self._output.shown, part, length, axis, self._place, others)
        return None if self.is_none else self._index


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
        parts = index if isinstance(index, tuple) else (index,)
        inside = self._report()
        for axis, (part, side) in enumerate(zip(parts, self._sides, strict=True)):
            if not 0 <= part < side:
                others = others_of(parts, self._sides, axis)
                current().outside(self._what, part, side, axis if len(parts) > 1 else None, others=others)
                inside = False
        if not inside:
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
class BlockArray(_VectorWrites, _Atomics):
    """A shared or a local array."""

    def __init__(self, elements: ArrayElements, shape: tuple[int, ...], memory: Memory) -> None:
        self.memory, self.shape, self.shown = memory, shape, elements.shown


def declared_array(arrays: dict[Any, Any], key: Any, elements: ArrayElements) -> BlockArray:
    """Returns the array with this key among a block's shared arrays or a thread's local arrays. The first call with a
    key creates the array."""
    found: BlockArray | None = arrays.get(key)
    if found is None:
        assert elements.shape is not None
        memory = Memory.new(elements.dtype, math.prod(elements.shape))
        found = arrays[key] = BlockArray(elements, elements.shape, memory)
    return found


def dynamic_array(thread: Thread, elements: ArrayElements) -> BlockArray:
    """Returns the block's dynamic shared memory as an array of elements of the given type."""
    size = thread.launch.shared_bytes
    whole = thread.shared.get("dynamic")
    if whole is None:
        whole = thread.shared["dynamic"] = np.zeros(-(-size // 16) * 16, np.uint8)
    kind = _DTYPES[elements.dtype]
    count = size // kind.itemsize
    return BlockArray(elements, (count,), Memory(elements.dtype, whole[: count * kind.itemsize].view(kind)))


@final
class ConstantArray(_Reads):
    """A constant array: a NumPy array from outside the kernel."""

    def __init__(self, array: np.ndarray[Any, Any], elements: ArrayElements) -> None:
        plain = np.ascontiguousarray(array)
        self.memory = Memory(elements.dtype, plain.reshape(-1).view(_DTYPES[elements.dtype]))
        self.shape, self.shown = array.shape, elements.shown
