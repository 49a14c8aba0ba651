"""Lowers ``argmax`` and ``argmin`` of tiles in registers. Each thread finds the first extreme of its own elements.
Threads compare their extremes by shuffles, and through shared memory if several warps share a row."""

from __future__ import annotations

from oxide.compiler.tile import arithmetic
from oxide.compiler.tile.ir import Node
from oxide.compiler.tile.layouts import Layout

from . import registers
from .core import Index, Lowering, size_of

Place = tuple[str, str]
"""An element and its index, an i32."""


def arg(low: Lowering, node: Node, layout: Layout) -> None:
    """Finds, for each row, the index of the row's first extreme element, or of the row's first NaN if there is one."""
    code, (source,) = low.code, node.inputs
    kind = source.dtype.register_type
    best = code.variable(f"[{layout.row_slots} x {kind}]", "best")
    place = code.variable(f"[{layout.row_slots} x i32]", "place")
    at_best = [code.at(kind, best, str(i)) for i in range(layout.row_slots)]
    at_place = [code.at("i32", place, str(i)) for i in range(layout.row_slots)]

    def take(index: Index, i: int, j: int) -> None:
        found = low.element(source, index), code.new(f"trunc i64 {index[-1]} to i32")
        if j:
            before = code.new(f"load {kind}, ptr {at_best[i]}"), code.new(f"load i32, ptr {at_place[i]}")
            found = _better(low, node, before, found)
        code.emit(f"store {kind} {found[0]}, ptr {at_best[i]}")
        code.emit(f"store i32 {found[1]}, ptr {at_place[i]}")

    registers.sweep(low, layout, source.shape, [source], take)
    rows: list[Place] = []
    for i in range(layout.row_slots):
        found = code.new(f"load {kind}, ptr {at_best[i]}"), code.new(f"load i32, ptr {at_place[i]}")
        distance = layout.lanes_across // 2
        while distance:
            other = (
                registers.shuffled(low, found[0], kind, distance),
                registers.shuffled(low, found[1], "i32", distance),
            )
            found = _better(low, node, found, other)
            distance //= 2
        rows.append(found)
    if layout.warps_across > 1:
        rows = _over_warps(low, node, layout, kind, rows)
    results = [code.new(f"sext i32 {index} to i64") for _, index in rows]
    if node.shape:
        held = low.registers[node] = low.held(node.dtype, layout, rows=True)
        for i, result in enumerate(results):
            low.store_register(held, i, result)
    else:
        low.values[node] = results[0]


def _better(low: Lowering, node: Node, one: Place, two: Place) -> Place:
    """Returns the more extreme of two elements. Of equal elements, returns the one with the smaller index. A NaN is
    more extreme than any number."""
    code, scalar = low.code, node.inputs[0].dtype
    kind = scalar.register_type
    test = "gt" if node.op == "argmax" else "lt"
    beyond = arithmetic.apply(code, test, scalar, [two[0], one[0]])
    equal = arithmetic.apply(code, "eq", scalar, [one[0], two[0]])
    if scalar.kind == "f":
        one_nan, two_nan = (code.new(f"fcmp uno {kind} {each}, {each}") for each in (one[0], two[0]))
        only = code.new(f"xor i1 {one_nan}, true")
        beyond = code.new(f"or i1 {beyond}, {code.new(f'and i1 {only}, {two_nan}')}")
        equal = code.new(f"or i1 {equal}, {code.new(f'and i1 {one_nan}, {two_nan}')}")
    earlier = code.new(f"and i1 {equal}, {code.new(f'icmp slt i32 {two[1]}, {one[1]}')}")
    taken = code.new(f"or i1 {beyond}, {earlier}")
    return (
        code.new(f"select i1 {taken}, {kind} {two[0]}, {kind} {one[0]}"),
        code.new(f"select i1 {taken}, i32 {two[1]}, i32 {one[1]}"),
    )


def _over_warps(low: Lowering, node: Node, layout: Layout, kind: str, found: list[Place]) -> list[Place]:
    """Combines the results of the warps that share rows."""
    code, across = low.code, layout.warps_across
    held = "i8" if kind == "i1" else kind
    values, places = low.room(layout.rows * across * size_of(held)), low.room(layout.rows * across * 4)
    rows, _ = low.grid(layout)
    warp = code.new(f"lshr i64 {low.tid}, 5")
    number = code.new(f"urem i64 {warp}, {across}")
    lane = code.new(f"urem i64 {low.tid}, {layout.lanes_across}")
    low.barrier()
    with code.when(code.new(f"icmp eq i64 {lane}, 0")):
        for row, (value, index) in zip(rows, found, strict=True):
            at = code.add(code.times(row, across), number)
            bits = code.new(f"zext i1 {value} to i8") if kind == "i1" else value
            code.emit(f"store {held} {bits}, ptr {code.at(held, values, at)}")
            code.emit(f"store i32 {index}, ptr {code.at('i32', places, at)}")
    low.barrier()
    results = []
    for row in rows:
        parts: list[Place] = []
        for n in range(across):
            at = code.add(code.times(row, across), n)
            value = code.new(f"load {held}, ptr {code.at(held, values, at)}")
            value = code.new(f"icmp ne i8 {value}, 0") if kind == "i1" else value
            parts.append((value, code.new(f"load i32, ptr {code.at('i32', places, at)}")))
        best = parts[0]
        for part in parts[1:]:
            best = _better(low, node, best, part)
        results.append(best)
    return results
