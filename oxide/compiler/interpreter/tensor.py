"""Implements fragments and tensor operations for interpreted kernels.

A matrix product is computed once, when all lanes of the warp have passed their elements. Its order of operations and
its rounding are those of the CPU device.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, final

import numpy as np

from oxide.compiler.primitives.numbers import CONVERT, FLOATS, ROUND, fused, whole
from oxide.compiler.source.faults import FaultSite
from oxide.compiler.source.fragment_layouts import BITS, LANES, Layout
from oxide.compiler.source.typings import TypedCall
from oxide.language import tensor

from .arrays import Array, parts_of
from .threads import Meeting, current, here

_EVERY_LANE = 0xFFFFFFFF
_ROW_BYTES = 16


@final
class Fragment:
    """This lane's elements of a matrix."""

    def __init__(self, layout: Layout, shown: str) -> None:
        self.layout, self.shown = layout, shown
        self.values: list[Any] = [self.zero] * layout.length

    @property
    def zero(self) -> Any:
        return 0.0 if self.layout.dtype in FLOATS else 0

    def __len__(self) -> int:
        return self.layout.length

    def _is_inside(self, index: int) -> bool:
        index = whole(index)
        inside = 0 <= index < self.layout.length
        if not inside:
            current().outside(self.shown, index, self.layout.length)
        return inside

    def __getitem__(self, index: int) -> Any:
        return self.values[index] if self._is_inside(index) else self.zero

    def __setitem__(self, index: int, value: Any) -> None:
        value = CONVERT[self.layout.dtype](value)
        if self._is_inside(index):
            self.values[index] = value

    def fill(self, value: Any) -> None:
        self.values[:] = [CONVERT[self.layout.dtype](value)] * self.layout.length

    def row(self, index: int) -> int:
        return self.layout.place(_lane(), index)[0]

    def column(self, index: int) -> int:
        return self.layout.place(_lane(), index)[1]

    def __repr__(self) -> str:
        return f"<{self.shown}: this lane's {self.values}>"


def _convert(fragment: Fragment, accumulator: Fragment) -> None:
    fragment.values[:] = map(CONVERT[fragment.layout.dtype], accumulator.values)


def _lane() -> int:
    return current().number % LANES


def _declared(kind: str) -> Callable[[TypedCall, Any], Callable[..., Any] | None]:
    def maker(call: TypedCall, key: Any) -> Callable[..., Any] | None:
        made = call.made
        if made is None or made.shape is None:
            return None
        rows, columns = made.shape
        layout, shown = Layout(kind, rows, columns, made.dtype), made.shown
        return lambda *args, **named: Fragment(layout, shown)

    return maker


def _together(name: str, value: Any, combine: Callable[[dict[int, Any]], dict[int, Any]]) -> Any:
    """Returns this lane's result of ``combine``, which is called once, when all lanes of the warp have given their
    values. Records a fault and returns None if some lanes do not make this call."""

    def combined(brought: dict[int, Any]) -> dict[int, Any]:
        if len(brought) < LANES or len({place for place, _ in brought.values()}) > 1:
            return dict.fromkeys(brought)
        return combine({lane: given for lane, (_, given) in brought.items()})

    site = FaultSite(f"tensor.{name}()", *here())
    found = current().meet(Meeting("warp", site, (site, value), combined, _EVERY_LANE))
    if found is None:
        problem = (
            f"tensor.{name}(…) needs all 32 lanes of the warp at this call, and some have returned, do not exist, or "
            "make another call"
        )
        current().mistake(f"tensor.{name}()", problem)
    return found


# Products


@functools.cache
def _places(layout: Layout) -> tuple[Any, Any]:
    """Returns the rows and the columns of all lanes' elements."""
    places = np.array([[layout.place(lane, i) for i in range(layout.length)] for lane in range(LANES)])
    return places[..., 0], places[..., 1]


def _whole(layout: Layout, lanes: list[list[Any]], kind: Any) -> Any:
    """Returns the matrix whose elements the lanes hold."""
    whole = np.zeros((layout.rows, layout.columns), kind)
    whole[_places(layout)] = np.array(lanes, kind)
    return whole


def _mma(c: Fragment, a: Fragment, b: Fragment) -> None:
    def combine(brought: dict[int, Any]) -> dict[int, Any]:
        lanes = [brought[lane] for lane in range(LANES)]
        kind = {"f64": np.float64, "i32": np.int64}.get(c.layout.dtype, np.float32)
        total, left, right = (
            _whole(each.layout, [lane[place] for lane in lanes], kind) for place, each in enumerate((c, a, b))
        )
        result = _multiplied(total, left, right, a.layout, c.layout.dtype)[_places(c.layout)]
        return {lane: result[lane].tolist() for lane in brought}

    current().launch.spend(len(a) + len(b) + len(c))
    found = _together("mma", (list(c.values), list(a.values), list(b.values)), combine)
    if found is not None:
        c.values[:] = found


def _multiplied(total: Any, left: Any, right: Any, a: Layout, c_type: str) -> Any:
    if c_type == "i32":
        return (total + left @ right).astype(np.int32)
    if a.dtype == "f32":
        left, right = ((each.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for each in (left, right))
    with np.errstate(all="ignore"):
        for k in range(a.columns):
            if c_type == "f64":
                pairs = [[fused("f64", x, y, z) for y, z in zip(right[k], row, strict=True)]
                         for x, row in zip(left[:, k], total, strict=True)]  # fmt: skip
                total = np.array(pairs)
                continue
            total = total + left[:, k, None] * right[k]  # each product is exact
            if c_type == "f16" and (k + 1) % a.tile[1] == 0:
                total = total.astype(np.float16).astype(np.float32)
    return total


def _tf32(x: float) -> float:
    (bits,) = struct.unpack("<I", struct.pack("<f", ROUND["f32"](x)))
    size = bits & 0x7FFFFFFF
    if size > 0x7F800000:
        return float("nan")
    rounded = bits if size == 0x7F800000 else (bits + 0x1000) & 0xFFFFE000
    return float(struct.unpack("<f", struct.pack("<I", rounded))[0])


# Matrices in memory


def _start(array: Array, index: tuple[int, ...], layout: Layout, transposed: bool) -> int | None:
    """Returns the position of a matrix's first element in an array. If a part of the matrix is outside of the array,
    records a fault and returns None."""
    rows, columns = (layout.columns, layout.rows) if transposed else (layout.rows, layout.columns)
    index = parts_of(index)
    *_, row, column = index
    first = array.place(index)
    last = array.place((*index[:-2], row + rows - 1, column + columns - 1))
    return None if first is None or last is None else first


def _own_places(array: Array, start: int, layout: Layout, transposed: bool) -> list[int]:
    """Returns the positions of this lane's elements in an array."""
    step = -1 if transposed else 1
    places = (layout.place(_lane(), number)[::step] for number in range(layout.length))
    return [start + row * array.shape[-1] + column for row, column in places]


def _load(fragment: Fragment, array: Array, index: tuple[int, ...], transposed: bool = False) -> None:
    start = _start(array, index, fragment.layout, transposed)
    if start is None:
        fragment.fill(fragment.zero)
        return
    fragment.values[:] = map(array.memory.get, _own_places(array, start, fragment.layout, transposed))


def _store(array: Array, index: tuple[int, ...], fragment: Fragment) -> None:
    start = _start(array, index, fragment.layout, False)
    if start is not None:
        for place, value in zip(_own_places(array, start, fragment.layout, False), fragment.values, strict=True):
            array.memory.set(place, value)


def _block_start(name: str, fragment: Fragment, array: Array, index: tuple[int, ...], transposed: bool) -> int | None:
    start = _start(array, index, fragment.layout, transposed)
    per_row = _ROW_BYTES * 8 // BITS[fragment.layout.dtype]
    if whole(index[-1]) % per_row:
        current().mistake(
            f"tensor.{name}()",
            f"tensor.{name}(…) needs a column of {array.shown} that is a multiple of {per_row}, so that rows begin at "
            "multiples of 16 bytes",
        )
        return None
    return start


def _ldmatrix(fragment: Fragment, array: Array, index: tuple[int, ...], transposed: bool = False) -> None:
    start = _block_start("ldmatrix", fragment, array, index, transposed)
    places, memory = _own_places(array, start or 0, fragment.layout, transposed), array.memory

    def combine(brought: dict[int, Any]) -> dict[int, Any]:
        return {lane: list(map(memory.peek, places)) for lane, places in brought.items()}

    current().launch.spend(len(places))
    found = _together("ldmatrix", places, combine)
    if found is not None:
        fragment.values[:] = found


def _stmatrix(array: Array, index: tuple[int, ...], fragment: Fragment, transposed: bool = False) -> None:
    start = _block_start("stmatrix", fragment, array, index, transposed)
    if start is None:
        return
    memory = array.memory

    def combine(brought: dict[int, Any]) -> dict[int, Any]:
        for pairs in brought.values():
            for place, value in pairs:
                memory.poke(place, value)
        return dict.fromkeys(brought, True)

    places = _own_places(array, start, fragment.layout, transposed)
    current().launch.spend(len(places))
    _together("stmatrix", list(zip(places, fragment.values, strict=True)), combine)


def _copy_async(array: Array, index: Any, source: Array, source_index: Any, count: int) -> None:
    """Copies at once. This is valid because compiled threads, too, must wait for the copy before they read the
    elements."""
    *others, last = parts_of(index)
    target, end = array.place(index), array.place((*others, last + count - 1))
    if target is None or end is None:
        return
    if target % count:
        problem = f"tensor.copy_async(…) needs an index of {array.shown} that is a multiple of {count}"
        current().mistake("tensor.copy_async()", problem)
        return
    *rows, column = parts_of(source_index)
    within = all(0 <= part < length for part, length in zip(rows, source.shape, strict=False))
    place = 0
    for part, length in zip((*rows, column), source.shape, strict=True):
        place = place * length + part
    for step in range(count):
        there = within and 0 <= column + step < source.shape[-1]
        array.memory.set(target + step, source.memory.get(place + step) if there else source.memory.zero)


def simple(function: Callable[..., Any]) -> Callable[[TypedCall, Any], Callable[..., Any]]:
    return lambda call, key: function


def nothing(*args: Any, **named: Any) -> None:
    pass


MAKERS: dict[Any, Callable[[TypedCall, Any], Callable[..., Any] | None]] = {
    tensor.FragmentA: _declared("FragmentA"),
    tensor.FragmentB: _declared("FragmentB"),
    tensor.Accumulator: _declared("Accumulator"),
    tensor.convert: simple(_convert),
    tensor.mma: simple(_mma),
    tensor.tf32: simple(_tf32),
    tensor.load: simple(_load),
    tensor.store: simple(_store),
    tensor.ldmatrix: simple(_ldmatrix),
    tensor.stmatrix: simple(_stmatrix),
    tensor.copy_async: simple(_copy_async),
    tensor.commit: simple(nothing),
    tensor.wait: simple(nothing),
}
"""The makers of ``oxide.tensor``'s functions (see ``functions.py``)."""
