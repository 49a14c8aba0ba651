"""``tensor.Barrier`` and ``tensor.wgmma`` on the CPU, as LLVM IR; ``tile_copies.py`` has the copies of tiles.

A product is computed at the call, so a wait waits only for other threads. Each thread of a warpgroup adds the products
to its own elements, in the order of k, and rounds each sum of floats to f32. Then the thread waits for the other
threads of the warpgroup: on a GPU they begin a product together, so code after the call may rely on all of them having
read the tiles. At a wait all threads of the warpgroup meet again, because on a GPU a product ends for all of them
together. The elements of a left operand in registers come from the lanes that hold them, as for ``mma``.
"""

from __future__ import annotations

from collections.abc import Collection

from oxide.compiler.ir.llvm import ir_file
from oxide.compiler.ir.primitives import TILE_COPIES
from oxide.compiler.source.fragment_layouts import BITS, DEPTHS, PRODUCTS

from . import tile_copies
from .elements import SUMS, added, element, low_bits

_BARRIER = "oxide.tensor.barrier."
_WGMMA = "oxide.tensor.wgmma."
_WAIT = "oxide.tensor.wgmma_wait."
_ARRIVE = "oxide.cluster.arrive"
_PREFIXES = (_BARRIER, _WGMMA, _WAIT, *TILE_COPIES)

ROW_BYTES = 128


def polls(symbols: Collection[str]) -> bool:
    """Returns whether a kernel uses ``tensor.Barrier`` or ``tensor.wgmma``. A thread that waits at such a barrier, or
    for its warpgroup, polls: it suspends, and tests again when it is resumed."""
    return any(symbol.startswith((_BARRIER, _WGMMA, _WAIT)) for symbol in symbols)


def defines(symbol: str) -> bool:
    """Returns whether this module defines a primitive."""
    return symbol.startswith(_PREFIXES)


def definitions(symbols: Collection[str]) -> list[str]:
    """Returns the primitives among ``symbols``, not yet rendered."""
    texts = [ir_file(__file__, "tensor_barriers.ll")] if polls(symbols) else []
    products = [symbol for symbol in sorted(symbols) if symbol.startswith(_WGMMA)]
    texts += map(_product, products)
    texts += tile_copies.definitions(symbols)
    for symbol in sorted(symbols):
        if symbol == _ARRIVE:
            texts.append(_REMOTE_ARRIVE)
        elif symbol.startswith(_WAIT):
            texts.append(_MEET.replace("<symbol>", symbol))
    return texts


def operand_types(symbols: Collection[str]) -> set[str]:
    """Returns the types that products multiply."""
    products = (symbol.removeprefix(_WGMMA) for symbol in symbols if symbol.startswith(_WGMMA))
    return {kind for name in products for kind in name.split(".")[1:3]}


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


def _product(symbol: str) -> str:
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
