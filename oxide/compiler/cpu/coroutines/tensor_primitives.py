"""The primitives of ``oxide.tensor`` on the CPU, as LLVM IR: barriers, copies of tiles, products of warpgroups, and
those of ``fragments.py``.

``{{name}}`` stands for a field of the block's state. ``coroutines.py`` lists the fields, and *renders* a text: it
replaces each such name by the field's address.

A copy of a tile is made at its call. A product is computed at the call too, so a wait waits only for other threads.
Each thread of a warpgroup adds the products to its own elements, in the order of k, and rounds each sum of floats to
f32. Then the thread waits for the other threads of the warpgroup: on a GPU they begin a product together, so code after
the call may rely on all of them having read the tiles. At a wait all threads of the warpgroup meet again, because on a
GPU a product ends for all of them together. The elements of a left operand in registers come from the lanes that hold
them, as for ``mma``.
"""

from __future__ import annotations

from collections.abc import Collection

from oxide.compiler.ir.llvm import ir_file
from oxide.compiler.ir.primitives import MOST_AXES, TILE_COPIES, TileCopy
from oxide.compiler.source.fragment_layouts import BITS, DEPTHS, PRODUCTS
from oxide.language.types import NARROW

from .fragments import COPY, LOW_BITS, SUMS, WHOLE_WARP, added, element, low_bits, moved_blocks, product

_PREFIX = "oxide.tensor."
_BARRIER = "oxide.tensor.barrier."
_WGMMA = "oxide.tensor.wgmma."
_WAIT = "oxide.tensor.wgmma_wait."

ROW_BYTES = 128


def polls(symbols: Collection[str]) -> bool:
    """Returns whether a kernel uses ``tensor.Barrier`` or ``tensor.wgmma``. A thread that waits at such a barrier, or
    for its warpgroup, polls: it suspends, and tests again when it is resumed."""
    return any(symbol.startswith((_BARRIER, _WGMMA, _WAIT)) for symbol in symbols)


def definitions(symbols: Collection[str]) -> list[str]:
    """Returns the definitions of the primitives among ``symbols`` and of their helper functions, not yet rendered.
    Empty if there are no such primitives."""
    found = sorted(symbol for symbol in symbols if symbol.startswith(_PREFIX))
    texts = [LOW_BITS, WHOLE_WARP] if found else []
    texts += [ir_file(__file__, "tensor_barriers.ll")] if polls(symbols) else []
    texts += [_REMOTE_ARRIVE] if "oxide.cluster.arrive" in symbols else []
    copies = {symbol: TileCopy.of(symbol) for symbol in found if symbol.startswith(TILE_COPIES)}
    texts += [ir_file(__file__, "tile_copies.ll")] if copies else []
    texts += [_ROUND] if any(copy.dtype == "tf32" for copy in copies.values()) else []
    for symbol in found:
        match symbol.removeprefix(_PREFIX).split("."):
            case "mma", *shape_and_types:
                texts.append(product(symbol, *shape_and_types))
            case "ldmatrix" | "stmatrix" as name, how, *transposed:
                texts.append(moved_blocks(symbol, name, int(how.removeprefix("x")), bool(transposed)))
            case "copy_async", size:
                texts.append(COPY.replace("<symbol>", symbol).replace("<size>", size))
            case "wgmma", *_:
                texts.append(_warpgroup_product(symbol))
            case "wgmma_wait", *_:
                texts.append(_MEET.replace("<symbol>", symbol))
            case "load_tile" | "store_tile", *_:
                texts.append(_tile_copy(symbol, copies[symbol]))
            case "barrier", *_:
                pass  # in ``tensor_barriers.ll``
            case _:  # a copy is done when its call returns, so other calls do nothing
                texts.append(f"define void @{symbol}(ptr %context, i32 %site) alwaysinline {{\n  ret void\n}}")
    return texts


def conversions(symbols: Collection[str]) -> set[str]:
    """Returns the conversions of numbers that the products among ``symbols`` call."""
    products = (f"{_PREFIX}mma.", _WGMMA)
    types = {part for symbol in symbols if symbol.startswith(products) for part in symbol.split(".")}
    return {f"oxide.{each}.{way}" for each in types & NARROW.keys() for way in ("widen", "narrow")}


# Barriers and products of warpgroups

_MEET = """
define void @<symbol>(ptr %context, ptr %c, i32 %site) alwaysinline {
  call void @oxide.tensor.warpgroup.meet(ptr %context, i32 %site)
  ret void
}
"""

_REMOTE_ARRIVE = """
define void @oxide.cluster.arrive(ptr %context, ptr %barrier, i32 %rank, i32 %site) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %there = call ptr @oxide.cluster.place(ptr %block, ptr %barrier, i32 %rank)
  call void @oxide.tensor.barrier.add(ptr %there, i32 -1, i32 0)
  ret void
}
"""


def _warpgroup_product(symbol: str) -> str:
    """Defines a product: a loop over the accumulator's tiles of 8 columns, and an inner loop along k."""
    n, a_type, b_type, a_order, b_order, steps, b_panel, how = symbol.removeprefix(_WGMMA).split(".")
    depth, total = DEPTHS[a_type] * int(steps), next(iter(PRODUCTS[a_type, b_type]))
    kind = SUMS[total]
    lines = [
        f"define internal void @{symbol}.thread(ptr %block, i32 %thread, ptr %c, ptr %a, ptr %b) noinline {{",
        "entry:",
        f"  %left = alloca [{2 * depth} x {kind}]",
        "  %warp = lshr i32 %thread, 5",
        "  %quarter = and i32 %warp, 3",
        "  %top = shl i32 %quarter, 4",
        "  %lane = and i32 %thread, 31",
        "  %group = lshr i32 %lane, 2",
        "  %first = shl i32 %group, 2",
        "  %row.0 = add i32 %top, %group",
        "  %row.1 = add i32 %row.0, 8",
        "  %in_group = and i32 %lane, 3",
        "  %twice = shl i32 %in_group, 1",
        "  br label %widen",
        "widen:",
        "  %w = phi i32 [ 0, %entry ], [ %w.next, %widen ]",
        *(_holder(a_type) if a_order == "r" else []),
    ]
    for i in range(2):
        if a_order == "r":
            lines += [
                f"  %a.{i}.number = add i32 %held, {32 // BITS[a_type] * i}",
                *element(a_type, f"%a.{i}", "%a.of", f"%a.{i}.number"),
            ]
        else:
            lines += _of_tile(a_type, a_order, f"%a.{i}", "%a", f"%row.{i}", "%w")
        lines += [
            f"  %left.number.{i} = add i32 %w, {i * depth}",
            f"  %left.to.{i} = getelementptr {kind}, ptr %left, i32 %left.number.{i}",
            f"  store {kind} %a.{i}, ptr %left.to.{i}",
        ]
    lines += [
        "  %w.next = add i32 %w, 1",
        f"  %w.more = icmp ult i32 %w.next, {depth}",
        "  br i1 %w.more, label %widen, label %columns",
        "columns:",
        "  %j = phi i32 [ 0, %widen ], [ %j.next, %columns_done ]",
        "  %j.first = shl i32 %j, 3",
        "  %column.0 = add i32 %j.first, %twice",
        "  %column.1 = add i32 %column.0, 1",
        "  %elements = shl i32 %j, 2",
    ]
    for i in range(4):
        lines += [
            f"  %c.number.{i} = add i32 %elements, {i}",
            f"  %c.at.{i} = getelementptr {kind}, ptr %c, i32 %c.number.{i}",
            f"  %c.{i} = load {kind}, ptr %c.at.{i}",
        ]
    if b_order == "mn":  # the panel of 64 columns that has these columns
        lines += [
            "  %panel = lshr i32 %j, 3",
            f"  %panel.offset = mul i32 %panel, {b_panel}",
            "  %b.panel = getelementptr i8, ptr %b, i32 %panel.offset",
            *(f"  %b.column.{i} = and i32 %column.{i}, 63" for i in range(2)),
        ]
    else:
        lines += ["  %b.panel = getelementptr i8, ptr %b, i32 0"]
        lines += [f"  %b.column.{i} = add i32 %column.{i}, 0" for i in range(2)]
    zero = "0" if kind == "i32" else "0.0"
    lines += [
        "  br label %next",
        "next:",
        "  %k = phi i32 [ 0, %columns ], [ %k.next, %next ]",
        *(
            f"  %sum.{i} = phi {kind} [ {f'%c.{i}' if how == 'add' else zero}, %columns ], [ %sum.{i}.next, %next ]"
            for i in range(4)
        ),
    ]
    for i in range(2):
        lines += [
            *_of_tile(b_type, b_order, f"%b.{i}", "%b.panel", f"%b.column.{i}", "%k"),
            f"  %x.number.{i} = add i32 %k, {i * depth}",
            f"  %x.at.{i} = getelementptr {kind}, ptr %left, i32 %x.number.{i}",
            f"  %x.{i} = load {kind}, ptr %x.at.{i}",
        ]
    for i in range(4):
        lines += added(kind, f"%sum.{i}.next", f"%sum.{i}", f"%x.{i // 2}", f"%b.{i % 2}")
    lines += [
        "  %k.next = add i32 %k, 1",
        f"  %k.more = icmp ult i32 %k.next, {depth}",
        "  br i1 %k.more, label %next, label %columns_done",
        "columns_done:",
        *(f"  store {kind} %sum.{i}.next, ptr %c.at.{i}" for i in range(4)),
        "  %j.next = add i32 %j, 1",
        f"  %j.more = icmp ult i32 %j.next, {int(n) // 8}",
        "  br i1 %j.more, label %columns, label %done",
        "done:",
        "  ret void",
        "}",
        (_OF_REGISTERS if a_order == "r" else _OF_TILES).replace("<symbol>", symbol),
    ]
    return "\n".join(lines)


_OF_TILES = """
define void @<symbol>(ptr %context, ptr %c, ptr %a, ptr %b, i32 %site) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %thread = call i32 @oxide.linear_thread(ptr %context)
  call void @<symbol>.thread(ptr %block, i32 %thread, ptr %c, ptr %a, ptr %b)
  call void @oxide.tensor.warpgroup.meet(ptr %context, i32 %site)
  ret void
}
"""

_OF_REGISTERS = """
define void @<symbol>(ptr %context, ptr %c, ptr %a, ptr %b, i32 %site) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %thread = call i32 @oxide.linear_thread(ptr %context)
  %address = ptrtoint ptr %a to i64
  call void @oxide.exchange(ptr %context, i32 -1, i64 %address, i1 false, i32 %site)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %together = call i1 @oxide.tensor.together(ptr %context, ptr %block, i32 %lane, i32 %site)
  br i1 %together, label %multiply, label %done
multiply:
  call void @<symbol>.thread(ptr %block, i32 %thread, ptr %c, ptr %a, ptr %b)
  br label %done
done:
  call void @oxide.warp.sync(ptr %context, i32 -1, i32 %site)
  call void @oxide.tensor.warpgroup.meet(ptr %context, i32 %site)
  ret void
}
"""


def _holder(dtype: str) -> list[str]:
    """Returns the IR that computes the lane that holds position ``%w`` along k of this thread's first row, and the
    number of the element in that lane. A word of the fragment holds as many elements as fit 32 bits, and a row of a
    tile has eight words."""
    word = 32 // BITS[dtype]
    return [
        f"  %w.tile = lshr i32 %w, {(8 * word).bit_length() - 1}",
        f"  %w.word = lshr i32 %w, {word.bit_length() - 1}",
        *low_bits("%w.thread", "%w.word", 3),
        "  %holder = add i32 %first, %w.thread",
        "  %a.of = call ptr @oxide.tensor.published(ptr %block, i32 %holder)",
        "  %w.fourth = lshr i32 %w.word, 2",
        *low_bits("%w.upper", "%w.fourth", 1),
        *low_bits("%w.within", "%w", word - 1),
        f"  %tile.first = mul i32 %w.tile, {4 * word}",
        f"  %upper.first = mul i32 %w.upper, {2 * word}",
        "  %in_tile = add i32 %tile.first, %upper.first",
        "  %held = add i32 %in_tile, %w.within",
    ]


def _of_tile(dtype: str, order: str, name: str, operand: str, across: str, product: str) -> list[str]:
    """Returns the IR that loads an element of an operand. ``across`` is its row or column in the result, and
    ``product`` its position along k."""
    row, column = (across, product) if order == "k" else (product, across)
    columns = ROW_BYTES * 8 // BITS[dtype]
    return [
        f"  {name}.row = mul i32 {row}, {columns}",
        f"  {name}.low = and i32 {row}, 7",
        f"  {name}.exchanged = mul i32 {name}.low, {columns // 8}",
        f"  {name}.place = xor i32 {column}, {name}.exchanged",
        f"  {name}.number = add i32 {name}.row, {name}.place",
        *element(dtype, name, operand, f"{name}.number"),
    ]


# Copies of tiles


def _tile_copy(symbol: str, copy: TileCopy) -> str:
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
