"""Lowers reductions, scans, and the concatenation of tiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from oxide.compiler.tile.ir import BOOL, F32, Node
from oxide.compiler.tile.layouts import LANES, Layout
from oxide.language.types import ScalarType

from . import arithmetic, registers
from .state import Index, Lowering, size_of

PartialResult = tuple[str, ...]
"""What a thread has found for a row: a total, or an element and its index."""
_CHAINS = 4
"""The number of partial totals that a thread keeps for a long row."""


def accumulated(scalar: ScalarType) -> ScalarType:
    """Returns the type that a sum is accumulated in."""
    return F32 if scalar.precision else scalar


def reduce(low: Lowering, node: Node) -> None:
    """Lowers ``sum``, ``max`` and ``min``."""
    _Reduction(low, node).emit()


class _Reduction:
    def __init__(self, low: Lowering, node: Node) -> None:
        self.low, self.node = low, node
        self.op = {"sum": "add", "max": "maximum", "min": "minimum"}[node.op]
        (self.source,) = node.inputs
        self.axes: tuple[int, ...] = node.detail
        self.wide = accumulated(node.dtype)
        least, greatest = {"f": (-math.inf, math.inf), "b": (False, True)}.get(node.dtype.kind) or node.dtype.limits
        identity: float = {"sum": 0, "max": least, "min": greatest}[node.op]
        self.first = arithmetic.constant(identity, self.wide)
        self.kind = self.wide.register_type
        self.taken = tuple(self.source.shape[axis] for axis in self.axes)

    def emit(self) -> None:
        low, node = self.low, self.node
        layout = low.plan.tile(self.source.shape)
        if layout is not None and self.axes == (len(self.source.shape) - 1,):
            self._in_registers(layout)
            return
        low.put_in_buffers([self.source])
        self.buffer = low.buffers[node] = low.buffer(node.dtype, node.shape)
        low.barrier()
        low.versions([self.source], self._reduced)
        low.barrier()
        if not node.shape:
            low.values[node] = low.load(self.buffer, ())

    def _source(self, index: Index) -> str:
        return arithmetic.cast(self.low.code, self.low.element(self.source, index), self.node.dtype, self.wide)

    def _element(self, outer: Index, inner: Index) -> str:
        kept, along = iter(outer), iter(inner)
        axes = range(len(self.source.shape))
        return self._source(tuple(next(along) if axis in self.axes else next(kept) for axis in axes))

    def _added(self, total: str, value: str) -> str:
        flags = "reassoc" if self.op == "add" and self.wide.kind == "f" else ""
        how = {"add": "or"}.get(self.op, self.op) if self.wide is BOOL else self.op
        return arithmetic.apply(self.low.code, how, self.wide, [total, value], flags)

    def _narrowed(self, total: str) -> str:
        return arithmetic.cast(self.low.code, total, self.wide, self.node.dtype)

    def _reduced(self) -> None:
        low, node, code = self.low, self.node, self.low.code
        total = code.variable(self.kind, "total")

        def accumulate(outer: Index, inner: Index) -> None:
            value = self._element(outer, inner)
            so_far = code.new(f"load {self.kind}, ptr {total}")
            code.emit(f"store {self.kind} {self._added(so_far, value)}, ptr {total}")

        def one(outer: Index) -> None:
            code.emit(f"store {self.kind} {self.first}, ptr {total}")
            low.serial(self.taken, lambda inner: accumulate(outer, inner))
            low.store(self.buffer, outer, self._narrowed(code.new(f"load {self.kind}, ptr {total}")))

        if low.threads == 1:
            if node.size > 1 and len(self.source.shape) - 1 not in self.axes:
                self._by_rows()
            else:
                low.serial(node.shape, one)
            return
        count = math.prod(self.taken)
        if count < LANES // 4 or self.kind not in ("float", "double", "i32", "i64"):
            low.nest(node.shape, one)
            return
        # Each element of the result is computed by one warp. Its lanes share the elements to reduce, and combine their
        # totals by shuffles.
        warp = code.new(f"lshr i64 {low.tid}, 5")
        lane = code.new(f"and i64 {low.tid}, {LANES - 1}")
        with code.counted(math.prod(node.shape), warp, low.threads // LANES) as linear, low.forgetting():
            outer = low.unflattened(linear, node.shape)
            code.emit(f"store {self.kind} {self.first}, ptr {total}")
            with code.counted(count, lane, LANES) as along, low.forgetting():
                accumulate(outer, low.unflattened(along, self.taken))
            found = code.new(f"load {self.kind}, ptr {total}")
            for distance in (16, 8, 4, 2, 1):
                found = self._added(found, _shuffled(low, found, self.kind, distance))
            with code.when(code.new(f"icmp eq i64 {lane}, 0")):
                low.store(self.buffer, outer, self._narrowed(found))

    def _in_registers(self, layout: Layout) -> None:
        """Reduces the last axis of a tile in registers: within each thread, then by shuffles, then through shared
        memory if several warps share a row. All threads of a row get the result. For a long row a thread keeps several
        partial totals, so that consecutive operations do not depend on each other."""
        low, code, kind = self.low, self.low.code, self.kind
        chains = _CHAINS if layout.column_slots >= 4 * _CHAINS else 1
        totals = code.variable(f"[{layout.row_slots * chains} x {kind}]", "totals")

        def at(i: int, j: int) -> str:
            return code.at(kind, totals, str(i * chains + j % chains))

        for number in range(layout.row_slots * chains):
            code.emit(f"store {kind} {self.first}, ptr {at(number // chains, number)}")

        def take(index: Index, i: int, j: int) -> None:
            place = at(i, j)
            so_far = code.new(f"load {kind}, ptr {place}")
            code.emit(f"store {kind} {self._added(so_far, self._source(index))}, ptr {place}")

        registers.sweep(low, layout, self.source.shape, [self.source], take)
        found = []
        for i in range(layout.row_slots):
            total, *more = [code.new(f"load {kind}, ptr {at(i, j)}") for j in range(chains)]
            for each in more:
                total = self._added(total, each)
            found.append((total,))
        combined = _combine(low, layout, (kind,), found, lambda one, two: (self._added(one[0], two[0]),))
        _keep_rows(low, self.node, layout, lambda i: self._narrowed(combined[i][0]))

    def _by_rows(self) -> None:
        """Reduces an axis other than the last on the CPU: adds row after row to a row of totals. LLVM vectorises this
        loop."""
        low, shape = self.low, self.node.shape
        totals = low.buffer(self.wide, shape)
        low.serial(shape, lambda outer: low.store(totals, outer, self.first))

        def row(inner: Index) -> None:
            def add(outer: Index) -> None:
                low.store(totals, outer, self._added(low.load(totals, outer), self._element(outer, inner)))

            low.serial(shape, add)

        low.serial(self.taken, row)
        low.serial(shape, lambda outer: low.store(self.buffer, outer, self._narrowed(low.load(totals, outer))))


def arg(low: Lowering, node: Node) -> None:
    """Lowers ``argmax`` and ``argmin``: finds the index of the first extreme element along an axis, or of the first NaN
    if there is one, as in NumPy."""
    test = "gt" if node.op == "argmax" else "lt"
    code, (source,) = low.code, node.inputs
    (axis,) = node.detail
    kind = source.dtype.register_type
    layout = low.plan.tile(source.shape)
    if layout is not None and axis == len(source.shape) - 1:
        _arg_in_registers(low, node, layout)
        return
    low.put_in_buffers([source])
    buffer = low.buffers[node] = low.buffer(node.dtype, node.shape)
    best, place = code.variable(kind, "best"), code.variable("i64", "place")

    def one(outer: Index) -> None:
        def at(i: str) -> str:
            return low.element(source, (*outer[:axis], i, *outer[axis:]))

        with low.forgetting():
            code.emit(f"store {kind} {at('0')}, ptr {best}")
        code.emit(f"store i64 0, ptr {place}")
        with code.counted(source.shape[axis]) as i, low.forgetting():
            value = at(i)
            so_far = code.new(f"load {kind}, ptr {best}")
            better = arithmetic.apply(code, test, source.dtype, [value, so_far])
            better, _ = arithmetic.with_nans(code, source.dtype, better, so_far, value)
            code.emit(f"store {kind} {code.new(f'select i1 {better}, {kind} {value}, {kind} {so_far}')}, ptr {best}")
            old = code.new(f"load i64, ptr {place}")
            code.emit(f"store i64 {code.new(f'select i1 {better}, i64 {i}, i64 {old}')}, ptr {place}")
        low.store(buffer, outer, code.new(f"load i64, ptr {place}"))

    low.barrier()
    low.over(node.shape, [source], one)
    low.barrier()
    if not node.shape:
        low.values[node] = low.load(buffer, ())


def cumsum(low: Lowering, node: Node) -> None:
    """Lowers ``cumsum``: one thread adds up each row."""
    code, (source,) = low.code, node.inputs
    axis: int = node.detail
    wide = accumulated(node.dtype)
    kind = wide.register_type
    low.put_in_buffers([source])
    buffer = low.buffers[node] = low.buffer(node.dtype, node.shape)
    total = code.variable(kind, "total")

    def one(outer: Index) -> None:
        code.emit(f"store {kind} {arithmetic.constant(0, wide)}, ptr {total}")
        with code.counted(source.shape[axis]) as i, low.forgetting():
            index = (*outer[:axis], i, *outer[axis:])
            value = arithmetic.cast(code, low.element(source, index), node.dtype, wide)
            result = arithmetic.apply(code, "add", wide, [code.new(f"load {kind}, ptr {total}"), value])
            code.emit(f"store {kind} {result}, ptr {total}")
            low.store(buffer, index, arithmetic.cast(code, result, wide, node.dtype))

    low.barrier()
    low.over(node.shape[:axis] + node.shape[axis + 1 :], [source], one)
    low.barrier()


def cat(low: Lowering, node: Node) -> None:
    """Lowers ``cat``: copies the tiles into one buffer."""
    axis: int = node.detail
    low.put_in_buffers(node.inputs)
    buffer = low.buffers[node] = low.buffer(node.dtype, node.shape)
    low.barrier()
    start = 0
    for each in node.inputs:

        def copy(index: Index, each: Node = each, start: int = start) -> None:
            value = low.element(each, index)
            along = low.code.add(index[axis], start)
            low.store(buffer, (*index[:axis], along, *index[axis + 1 :]), value)

        low.over(each.shape, [each], copy)
        start += each.shape[axis]
    low.barrier()


# Tiles in registers


def _arg_in_registers(low: Lowering, node: Node, layout: Layout) -> None:
    """Finds the index for each row of a tile in registers: each thread for its own elements, then by shuffles, and
    through shared memory if several warps share a row."""
    code, (source,) = low.code, node.inputs
    kind = source.dtype.register_type
    best = code.variable(f"[{layout.row_slots} x {kind}]", "best")
    place = code.variable(f"[{layout.row_slots} x i32]", "place")
    at_best = [code.at(kind, best, str(i)) for i in range(layout.row_slots)]
    at_place = [code.at("i32", place, str(i)) for i in range(layout.row_slots)]

    def take(index: Index, i: int, j: int) -> None:
        found: PartialResult = low.element(source, index), code.new(f"trunc i64 {index[-1]} to i32")
        if j:
            before = code.new(f"load {kind}, ptr {at_best[i]}"), code.new(f"load i32, ptr {at_place[i]}")
            found = _better(low, node, before, found)
        code.emit(f"store {kind} {found[0]}, ptr {at_best[i]}")
        code.emit(f"store i32 {found[1]}, ptr {at_place[i]}")

    registers.sweep(low, layout, source.shape, [source], take)
    own: list[PartialResult] = [
        (code.new(f"load {kind}, ptr {at_best[i]}"), code.new(f"load i32, ptr {at_place[i]}"))
        for i in range(layout.row_slots)
    ]
    rows = _combine(low, layout, (kind, "i32"), own, lambda one, two: _better(low, node, one, two))
    _keep_rows(low, node, layout, lambda i: code.new(f"sext i32 {rows[i][1]} to i64"))


def _better(low: Lowering, node: Node, one: PartialResult, two: PartialResult) -> PartialResult:
    """Returns the more extreme of two elements, each with its index, an i32. Of equal elements, returns the one with
    the smaller index. A NaN is more extreme than any number."""
    code, scalar = low.code, node.inputs[0].dtype
    kind = scalar.register_type
    test = "gt" if node.op == "argmax" else "lt"
    beyond = arithmetic.apply(code, test, scalar, [two[0], one[0]])
    beyond, equal = arithmetic.with_nans(code, scalar, beyond, one[0], two[0])
    earlier = code.new(f"and i1 {equal}, {code.new(f'icmp slt i32 {two[1]}, {one[1]}')}")
    taken = code.new(f"or i1 {beyond}, {earlier}")
    return (
        code.new(f"select i1 {taken}, {kind} {two[0]}, {kind} {one[0]}"),
        code.new(f"select i1 {taken}, i32 {two[1]}, i32 {one[1]}"),
    )


def _combine(
    low: Lowering,
    layout: Layout,
    kinds: Sequence[str],
    own: Sequence[PartialResult],
    combined: Callable[[PartialResult, PartialResult], PartialResult],
) -> list[PartialResult]:
    """Combines, for each of this thread's rows, what the threads that share the row have found: by shuffles, and
    through shared memory if several warps share a row. ``kinds`` has the type of each part of what is found."""
    code, across, found = low.code, layout.warps_across, list(own)
    distance = layout.lanes_across // 2
    while distance:
        found = [
            combined(each, tuple(_shuffled(low, part, kind, distance) for part, kind in zip(each, kinds, strict=True)))
            for each in found
        ]
        distance //= 2
    if across == 1:
        return found
    memory = ["i8" if kind == "i1" else kind for kind in kinds]
    rooms = [low.room(layout.rows * across * size_of(kind)) for kind in memory]
    rows, _ = low.grid(layout)
    warp = code.new(f"lshr i64 {low.tid}, 5")
    number = code.new(f"urem i64 {warp}, {across}")
    lane = code.new(f"urem i64 {low.tid}, {layout.lanes_across}")
    low.barrier()
    with code.when(code.new(f"icmp eq i64 {lane}, 0")):
        for row, each in zip(rows, found, strict=True):
            at = code.add(code.times(row, across), number)
            for part, kind, held, room in zip(each, kinds, memory, rooms, strict=True):
                bits = code.new(f"zext i1 {part} to i8") if kind == "i1" else part
                code.emit(f"store {held} {bits}, ptr {code.at(held, room, at)}")
    low.barrier()

    def of_warp(first: str, n: int) -> PartialResult:
        at = code.add(first, n)
        loaded = [
            code.new(f"load {held}, ptr {code.at(held, room, at)}") for held, room in zip(memory, rooms, strict=True)
        ]
        return tuple(
            code.new(f"icmp ne i8 {part}, 0") if kind == "i1" else part
            for part, kind in zip(loaded, kinds, strict=True)
        )

    firsts = [code.times(row, across) for row in rows]
    return [functools.reduce(combined, [of_warp(first, n) for n in range(across)]) for first in firsts]


def _keep_rows(low: Lowering, node: Node, layout: Layout, result: Callable[[int], str]) -> None:
    """Keeps the results of a reduction along rows: one for each of this thread's rows, in registers."""
    if not node.shape:
        low.values[node] = result(0)
        return
    held = low.registers[node] = low.held(node.dtype, layout, rows=True)
    for i in range(layout.row_slots):
        low.store_register(held, i, result(i))


def _shuffled(low: Lowering, value: str, kind: str, distance: int) -> str:
    """Returns the value of the lane whose number differs from this lane's only in the bit ``distance``, a power of
    two."""
    code = low.code
    plain = {"float": "i32", "double": "i64"}.get(kind, kind)
    bits = value if plain == kind else code.new(f"bitcast {kind} {value} to {plain}")
    wide = plain if plain in ("i32", "i64") else "i32"
    bits = bits if wide == plain else code.new(f"zext {plain} {bits} to {wide}")
    name = f"oxide.warp.shuffle.bfly.{wide}"
    moved = code.call(wide, name, ("i32", "-1"), (wide, bits), ("i32", str(distance)), low.barrier_site)
    moved = moved if wide == plain else code.new(f"trunc {wide} {moved} to {plain}")
    return moved if plain == kind else code.new(f"bitcast {plain} {moved} to {kind}")
