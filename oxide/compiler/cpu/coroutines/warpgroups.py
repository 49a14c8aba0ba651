"""``tensor.Barrier``, ``tensor.load_tile`` and ``tensor.wgmma`` on the CPU, as LLVM IR.

A copy is made and a product computed at the call, so that nothing is left to wait for but other threads. Each thread of
a warpgroup adds to its own elements, in the order of k, each sum rounded to f32. Then it waits for the others: on a GPU
the threads begin a product together, so a thread after it may rely on the others' reads of the tiles. The elements of a
left operand in registers come from the lanes that hold them, as for ``mma``.
"""

from __future__ import annotations

from collections.abc import Collection

from oxide.compiler.ir.files import ir_file

_BARRIER = "oxide.tensor.barrier."
_COPY = "oxide.tensor.load_tile."
_WGMMA = "oxide.tensor.wgmma."
_WAIT = "oxide.tensor.wgmma_wait."
_PREFIXES = (_BARRIER, _COPY, _WGMMA, _WAIT)

ROW_BYTES = 128


def polls(symbols: Collection[str]) -> bool:
    """Returns whether threads of a kernel wait at Barriers, or as a warpgroup."""
    return any(symbol.startswith((_BARRIER, _WGMMA)) for symbol in symbols)


def defines(symbol: str) -> bool:
    """Returns whether this module defines a primitive."""
    return symbol.startswith(_PREFIXES)


def definitions(symbols: Collection[str]) -> list[str]:
    """Returns the primitives among ``symbols``, not yet rendered."""
    texts = [ir_file(__file__, "barriers.ll")] if polls(symbols) else []
    products = [symbol for symbol in sorted(symbols) if symbol.startswith(_WGMMA)]
    texts += [_SWIZZLED] if products else []
    texts += map(_product, products)
    for symbol in sorted(symbols):
        if symbol.startswith(_COPY):
            texts.append(_copy(symbol))
        elif symbol.startswith(_WAIT):
            texts.append(f"define void @{symbol}(ptr %context, ptr %c, i32 %site) alwaysinline {{\n  ret void\n}}")
    return texts


def operand_type(symbol: str) -> str | None:
    """Returns the type that a product multiplies, or None if the primitive is no product."""
    return symbol.removeprefix(_WGMMA).split(".")[1] if symbol.startswith(_WGMMA) else None


def _copy(symbol: str) -> str:
    _, rows, _ = symbol.removeprefix(_COPY).split(".")
    return f"""
define void @{symbol}(ptr %context, ptr %tile, ptr %data, i64 %rows, i64 %columns, i64 %row, i64 %column, ptr %barrier,
    i32 %site) alwaysinline {{
  call void @oxide.tensor.copy_tile(ptr %tile, ptr %data, i64 %rows, i64 %columns, i64 %row, i64 %column, i64 {rows})
  call void @oxide.tensor.barrier.add(ptr %barrier, i32 0, i32 -{int(rows) * ROW_BYTES})
  ret void
}}
"""


_SWIZZLED = """
; Returns the number of an element among the 16-bit elements of a tile.
define internal i32 @oxide.tensor.swizzled(i32 %row, i32 %column) alwaysinline {
  %first = shl i32 %row, 6
  %low = and i32 %row, 7
  %exchanged = shl i32 %low, 3
  %place = xor i32 %column, %exchanged
  %number = or i32 %first, %place
  ret i32 %number
}
"""


def _product(symbol: str) -> str:
    """Defines a product: a loop over the accumulator's tiles of 8 columns, and in it one over the products to add."""
    n, dtype, a_order, b_order, steps, b_panel, how = symbol.removeprefix(_WGMMA).split(".")
    depth = 16 * int(steps)
    lines = [
        f"define internal void @{symbol}.thread(ptr %block, i32 %thread, ptr %c, ptr %a, ptr %b) noinline {{",
        "entry:",
        f"  %left = alloca [{2 * depth} x float]",
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
        *(_HOLDER if a_order == "r" else []),
    ]
    for i in range(2):
        if a_order == "r":
            lines += [
                f"  %a.{i}.number = add i32 %held, {2 * i}",
                f"  %a.{i}.at = getelementptr i16, ptr %a.of, i32 %a.{i}.number",
                *_widened(dtype, f"%a.{i}"),
            ]
        else:
            lines += _element(dtype, a_order, f"%a.{i}", "%a", f"%row.{i}", "%w")
        lines += [
            f"  %left.number.{i} = add i32 %w, {i * depth}",
            f"  %left.to.{i} = getelementptr float, ptr %left, i32 %left.number.{i}",
            f"  store float %a.{i}, ptr %left.to.{i}",
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
            f"  %c.at.{i} = getelementptr float, ptr %c, i32 %c.number.{i}",
            f"  %c.{i} = load float, ptr %c.at.{i}",
        ]
    if b_order == "mn":  # the panel of 64 columns that these are in
        lines += [
            "  %panel = lshr i32 %j, 3",
            f"  %panel.offset = mul i32 %panel, {b_panel}",
            "  %b.panel = getelementptr i8, ptr %b, i32 %panel.offset",
            *(f"  %b.column.{i} = and i32 %column.{i}, 63" for i in range(2)),
        ]
    else:
        lines += ["  %b.panel = getelementptr i8, ptr %b, i32 0"]
        lines += [f"  %b.column.{i} = add i32 %column.{i}, 0" for i in range(2)]
    lines += [
        "  br label %next",
        "next:",
        "  %k = phi i32 [ 0, %columns ], [ %k.next, %next ]",
        *(
            f"  %sum.{i} = phi float [ {f'%c.{i}' if how == 'add' else '0.0'}, %columns ], [ %sum.{i}.next, %next ]"
            for i in range(4)
        ),
    ]
    for i in range(2):
        lines += [
            *_element(dtype, b_order, f"%b.{i}", "%b.panel", f"%b.column.{i}", "%k"),
            f"  %x.number.{i} = add i32 %k, {i * depth}",
            f"  %x.at.{i} = getelementptr float, ptr %left, i32 %x.number.{i}",
            f"  %x.{i} = load float, ptr %x.at.{i}",
        ]
    for i in range(4):  # the product is exact
        lines += [
            f"  %by.{i} = fmul float %x.{i // 2}, %b.{i % 2}",
            f"  %sum.{i}.next = fadd float %sum.{i}, %by.{i}",
        ]
    lines += [
        "  %k.next = add i32 %k, 1",
        f"  %k.more = icmp ult i32 %k.next, {depth}",
        "  br i1 %k.more, label %next, label %columns_done",
        "columns_done:",
        *(f"  store float %sum.{i}.next, ptr %c.at.{i}" for i in range(4)),
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

_HOLDER = """
  %w.tile = lshr i32 %w, 4
  %w.pair = lshr i32 %w, 1
  %w.thread = and i32 %w.pair, 3
  %holder = add i32 %first, %w.thread
  %a.of = call ptr @oxide.tensor.published(ptr %block, i32 %holder)
  %w.eighth = lshr i32 %w, 3
  %w.upper = and i32 %w.eighth, 1
  %w.within = and i32 %w, 1
  %tile.first = shl i32 %w.tile, 3
  %upper.first = shl i32 %w.upper, 2
  %in_tile = add i32 %tile.first, %upper.first
  %held = add i32 %in_tile, %w.within
""".strip("\n").split("\n")
"""Finds the lane that holds product ``%w`` of this thread's rows, and the number of its element: the first row's."""


def _element(dtype: str, order: str, name: str, operand: str, across: str, product: str) -> list[str]:
    """Loads an element of an operand: row or column ``across`` of the result, and one of the products to add."""
    row, column = (across, product) if order == "k" else (product, across)
    return [
        f"  {name}.number = call i32 @oxide.tensor.swizzled(i32 {row}, i32 {column})",
        f"  {name}.at = getelementptr i16, ptr {operand}, i32 {name}.number",
        *_widened(dtype, name),
    ]


def _widened(dtype: str, name: str) -> list[str]:
    """Loads an element from ``<name>.at`` and widens it."""
    load = f"  {name}.raw = load i16, ptr {name}.at"
    if dtype == "f16":
        return [load, f"  {name} = call float @oxide.f16.widen(i16 {name}.raw)"]
    return [
        load,
        f"  {name}.wide = zext i16 {name}.raw to i32",
        f"  {name}.high = shl i32 {name}.wide, 16",
        f"  {name} = bitcast i32 {name}.high to float",
    ]
