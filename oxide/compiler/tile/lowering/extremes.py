"""Lowers ``argmax`` and ``argmin`` of tiles in registers. Each thread finds the first extreme of its own elements.
Threads compare their extremes by shuffles, and through shared memory if several warps share a row."""

from __future__ import annotations

from oxide.compiler.tile import arithmetic
from oxide.compiler.tile.ir import Node
from oxide.compiler.tile.layouts import Layout

from . import registers
from .registers import PartialResult
from .state import Index, Lowering


def arg(low: Lowering, node: Node, layout: Layout) -> None:
    """Finds, for each row, the index of the row's first extreme element, or of the row's first NaN if there is one."""
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
    rows = registers.combine(low, layout, (kind, "i32"), own, lambda one, two: _better(low, node, one, two))
    registers.keep_rows(low, node, layout, lambda i: code.new(f"sext i32 {rows[i][1]} to i64"))


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
