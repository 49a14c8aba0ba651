"""Lowers reductions, scans, and the concatenation of tiles."""

from __future__ import annotations

import math
from typing import Any

from oxide.compiler.tile import arithmetic
from oxide.compiler.tile.ir import Node
from oxide.compiler.tile.number_types import BOOL, F32
from oxide.language.types import ScalarType

from . import extremes, registers
from .state import Index, Lowering

_WARP = 32


def accumulated(scalar: ScalarType) -> ScalarType:
    """Returns the type that a sum is accumulated in."""
    return F32 if scalar.precision else scalar


def least(scalar: ScalarType) -> Any:
    """Returns the least number of a type."""
    if scalar.kind == "f":
        return -math.inf
    return False if scalar.kind == "b" else scalar.limits[0]


def greatest(scalar: ScalarType) -> Any:
    """Returns the greatest number of a type."""
    if scalar.kind == "f":
        return math.inf
    return True if scalar.kind == "b" else scalar.limits[1]


def reduce(low: Lowering, node: Node) -> None:
    """Lowers ``sum``, ``max`` and ``min``."""
    op = {"sum": "add", "max": "maximum", "min": "minimum"}[node.op]
    identity = 0 if op == "add" else least(node.dtype) if op == "maximum" else greatest(node.dtype)
    _Reduction(low, node, op, identity).emit()


class _Reduction:
    def __init__(self, low: Lowering, node: Node, op: str, identity: Any) -> None:
        self.low, self.node, self.op = low, node, op
        (self.source,) = node.inputs
        self.axes: tuple[int, ...] = node.detail
        self.wide = accumulated(node.dtype)
        self.first = arithmetic.constant(identity, self.wide)
        self.kind = self.wide.register_type
        self.taken = tuple(self.source.shape[axis] for axis in self.axes)

    def emit(self) -> None:
        low, node = self.low, self.node
        layout = low.plan.tile(self.source.shape)
        if low.threads > 1 and layout is not None and self.axes == (len(self.source.shape) - 1,):
            registers.reduce(low, node, layout, self.kind, self.first, self._source, self._added, self._narrowed)
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
        if count < _WARP // 4 or self.kind not in ("float", "double", "i32", "i64"):
            low.nest(node.shape, one)
            return
        # Each element of the result is computed by one warp. Its lanes share the elements to reduce, and combine their
        # totals by shuffles.
        warp = code.new(f"lshr i64 {low.tid}, 5")
        lane = code.new(f"and i64 {low.tid}, {_WARP - 1}")
        with code.counted(math.prod(node.shape), warp, low.threads // _WARP) as linear, low.forgetting():
            outer = low.unflattened(linear, node.shape)
            code.emit(f"store {self.kind} {self.first}, ptr {total}")
            with code.counted(count, lane, _WARP) as along, low.forgetting():
                accumulate(outer, low.unflattened(along, self.taken))
            found = code.new(f"load {self.kind}, ptr {total}")
            for distance in (16, 8, 4, 2, 1):
                found = self._added(found, registers.shuffled(low, found, self.kind, distance))
            with code.when(code.new(f"icmp eq i64 {lane}, 0")):
                low.store(self.buffer, outer, self._narrowed(found))

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
    axis: int = node.detail
    kind = source.dtype.register_type
    layout = low.plan.tile(source.shape)
    if low.threads > 1 and layout is not None and axis == len(source.shape) - 1:
        extremes.arg(low, node, layout)
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
            if source.dtype.kind == "f":
                number = code.new(f"fcmp ord {kind} {so_far}, {so_far}")
                missing = code.new(f"fcmp uno {kind} {value}, {value}")
                better = code.new(f"or i1 {better}, {missing}")
                better = code.new(f"and i1 {better}, {number}")
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
