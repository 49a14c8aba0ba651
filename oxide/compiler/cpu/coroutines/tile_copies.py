"""``tensor.load_tile`` and ``store_tile`` on the CPU, as LLVM IR. A copy is made at its call."""

from __future__ import annotations

from collections.abc import Collection

from oxide.compiler.ir.llvm import ir_file
from oxide.compiler.ir.primitives import MOST_AXES, TILE_COPIES, TileCopy


def definitions(symbols: Collection[str]) -> list[str]:
    """Returns the definitions of the copies among ``symbols`` and of their callees, not yet rendered."""
    found = [symbol for symbol in sorted(symbols) if symbol.startswith(TILE_COPIES)]
    if not found:
        return []
    copies = [TileCopy.of(symbol) for symbol in found]
    texts = [ir_file(__file__, "tile_copies.ll")]
    texts += [_ROUND] if any(copy.dtype == "tf32" for copy in copies) else []
    return [*texts, *map(_copy, found, copies)]


def _copy(symbol: str, copy: TileCopy) -> str:
    axes = range(copy.axes)
    lengths, places = [f"i64 %length.{axis}" for axis in axes], [f"i64 %place.{axis}" for axis in axes]
    numbers = ", ".join([*lengths, *places])
    lines = _rows(copy) if copy.swizzled and not copy.stores else _box(copy)
    if copy.stores:
        return _definition(symbol, numbers, "i32 %site", lines)
    if copy.dtype == "tf32":
        lines.append(f"  call void @oxide.tensor.round(ptr %tile, i64 {copy.bytes // 4})")
    lines.append(f"  call void @oxide.tensor.barrier.add(ptr %barrier, i32 0, i32 -{copy.bytes})")
    if not copy.many:
        return _definition(symbol, numbers, "ptr %barrier, i32 %site", lines)
    one = _definition(f"{symbol}.one", numbers, "ptr %barrier, i32 %site", lines)
    return one + _TO_MANY.replace("<symbol>", symbol).replace("<numbers>", numbers)


def _definition(symbol: str, numbers: str, rest: str, lines: list[str]) -> str:
    head = f"define void @{symbol}(ptr %context, ptr %tile, ptr %data, {numbers}, {rest}) alwaysinline {{"
    return "\n".join([head, *lines, "  ret void", "}", ""])


def _rows(copy: TileCopy) -> list[str]:
    """Returns the IR that copies rows of one matrix in a stack of matrices to a swizzled tile. If the matrix's number
    is outside the stack, the matrix counts as one without rows."""
    height, width = copy.axes - 2, copy.axes - 1
    lines = ["  %number.0 = add i64 0, 0", "  %there.0 = icmp eq i64 0, 0"]
    for axis in range(height):
        lines += [
            f"  %inside.{axis} = icmp ult i64 %place.{axis}, %length.{axis}",
            f"  %there.{axis + 1} = and i1 %there.{axis}, %inside.{axis}",
            f"  %before.{axis} = mul i64 %number.{axis}, %length.{axis}",
            f"  %number.{axis + 1} = add i64 %before.{axis}, %place.{axis}",
        ]
    lines += [
        f"  %known = select i1 %there.{height}, i64 %number.{height}, i64 0",
        f"  %height = select i1 %there.{height}, i64 %length.{height}, i64 0",
        f"  %rows.before = mul i64 %known, %length.{height}",
        f"  %elements = mul i64 %rows.before, %length.{width}",
        f"  %bytes = mul i64 %elements, {copy.itemsize}",
        "  %matrix = getelementptr i8, ptr %data, i64 %bytes",
        f"  call void @oxide.tensor.copy_tile(ptr %tile, ptr %matrix, i64 %height, i64 %length.{width},",
        f"    i64 %place.{height}, i64 %place.{width}, i64 {copy.sides[height]}, i64 {copy.itemsize})",
    ]
    return lines


def _box(copy: TileCopy) -> list[str]:
    """Returns the IR that copies a tile with a side for each of five axes. If the array has fewer axes, the first axes
    have length 1."""
    more = MOST_AXES - copy.axes
    lengths = ["i64 1"] * more + [f"i64 %length.{axis}" for axis in range(copy.axes)]
    places = ["i64 0"] * more + [f"i64 %place.{axis}" for axis in range(copy.axes)]
    sides = [f"i64 {side}" for side in (1,) * more + copy.sides]
    flags = [f"i1 {str(flag).lower()}" for flag in (copy.swizzled, copy.stores)]
    given = ", ".join([f"i64 {copy.itemsize}", *flags, *lengths, *places, *sides])
    return [f"  call void @oxide.tensor.copy_box(ptr %tile, ptr %data, {given})"]


_TO_MANY = """
define void @<symbol>(ptr %context, ptr %tile, ptr %data, <numbers>, i32 %mask, ptr %barrier, i32 %site) noinline {
entry:
  %block = call ptr @oxide.block(ptr %context)
  br label %look
look:
  %left = phi i32 [ %mask, %entry ], [ %left.next, %next ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %next
next:
  %rank = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %there = call ptr @oxide.cluster.place(ptr %block, ptr %tile, i32 %rank)
  %counted = call ptr @oxide.cluster.place(ptr %block, ptr %barrier, i32 %rank)
  call void @<symbol>.one(ptr %context, ptr %there, ptr %data, <numbers>, ptr %counted, i32 %site)
  %less = sub i32 %left, 1
  %left.next = and i32 %left, %less
  br label %look
done:
  ret void
}
"""

_ROUND = """
; Rounds floats to tf32, to nearest with ties to even, as the copy engine does. Infinities and NaNs stay.
define internal void @oxide.tensor.round(ptr %elements, i64 %count) noinline {
entry:
  br label %next
next:
  %number = phi i64 [ 0, %entry ], [ %number.next, %next ]
  %at = getelementptr i32, ptr %elements, i64 %number
  %bits = load i32, ptr %at
  %last = lshr i32 %bits, 13
  %odd = and i32 %last, 1
  %half = add i32 %odd, 4095
  %more = add i32 %bits, %half
  %near = and i32 %more, -8192
  %size = and i32 %bits, 2147483647
  %finite = icmp ult i32 %size, 2139095040
  %rounded = select i1 %finite, i32 %near, i32 %bits
  store i32 %rounded, ptr %at
  %number.next = add i64 %number, 1
  %again = icmp ult i64 %number.next, %count
  br i1 %again, label %next, label %done
done:
  ret void
}
"""
