"""Products and moves of fragments on the CPU, as LLVM IR: lanes publish addresses and read each other's elements.

A lane publishes the address of its operands or of its row, suspends, and computes its own elements from the data that
all lanes have published. It then waits a second time: no lane may change a fragment or a row before all have read it.
"""

from __future__ import annotations

from oxide.compiler.source.fragment_layouts import Layout
from oxide.language.types import NARROW, SCALARS

IR_TYPES = {name: scalar.memory_type for name, scalar in SCALARS.items()}
SUMS = {name: scalar.register_type for name, scalar in SCALARS.items()}


LOW_BITS = "\n".join(f"@oxide.tensor.low_bits.{n} = internal externally_initialized global i32 {n}" for n in (0, 1, 3))
"""The masks of ``low_bits``, for a kernel with ``oxide.tensor``'s primitives."""


def low_bits(name: str, value: str, mask: int) -> list[str]:
    """Returns the IR that computes ``value & mask`` for a loop's index ``value``, with a mask whose value LLVM does not
    know (``cpu/masks.py``)."""
    return [
        f"  {name}.mask = load i32, ptr @oxide.tensor.low_bits.{mask}, !invariant.load !{{}}",
        f"  {name} = and i32 {value}, {name}.mask",
    ]


def element(dtype: str, name: str, array: str, index: str) -> list[str]:
    """Returns the IR that loads an element of an operand and converts it to the type in which it is multiplied."""
    kind = IR_TYPES[dtype]
    load = [f"  {name}.at = getelementptr {kind}, ptr {array}, i32 {index}"]
    if dtype == "f32":  # the hardware reads the upper 19 bits
        return [
            *load,
            f"  {name}.bits = load i32, ptr {name}.at",
            f"  {name}.upper = and i32 {name}.bits, -8192",
            f"  {name} = bitcast i32 {name}.upper to float",
        ]
    return [*load, f"  {name}.raw = load {kind}, ptr {name}.at", *widened(dtype, name, f"{name}.raw")]


def widened(dtype: str, name: str, raw: str) -> list[str]:
    if dtype in ("i8", "u8"):
        return [f"  {name} = {'sext' if dtype == 'i8' else 'zext'} i8 {raw} to i32"]
    if dtype in NARROW:
        return [f"  {name} = call float @oxide.{dtype}.widen({IR_TYPES[dtype]} {raw})"]
    return [f"  {name} = bitcast {IR_TYPES[dtype]} {raw} to {IR_TYPES[dtype]}"]


def narrowed(dtype: str, name: str, value: str) -> list[str]:
    if dtype in NARROW:
        return [f"  {name} = call {IR_TYPES[dtype]} @oxide.{dtype}.narrow(float {value})"]
    return [f"  {name} = bitcast {IR_TYPES[dtype]} {value} to {IR_TYPES[dtype]}"]


def added(kind: str, name: str, total: str, a: str, b: str) -> list[str]:
    match kind:
        case "double":
            return [f"  {name} = call double @llvm.fma.f64(double {a}, double {b}, double {total})"]
        case "float":  # the product is exact
            return [f"  {name}.by = fmul float {a}, {b}", f"  {name} = fadd float {total}, {name}.by"]
    return [f"  {name}.by = mul i32 {a}, {b}", f"  {name} = add i32 {total}, {name}.by"]


WHOLE_WARP = """
declare void @oxide.assertion_failed(ptr, i32)
declare double @llvm.fma.f64(double, double, double)
; Returns whether all lanes of the warp are at one call. If not, it is a fault: what they published is not of one kind.
; No lane changes its place before all have looked, as each waits there a second time.
define internal i1 @oxide.tensor.together(ptr %context, ptr %block, i32 %lane, i32 %site) alwaysinline {
  %group = load i32, {{group[i32 %lane]}}
  %all = icmp eq i32 %group, -1
  %apart = call i32 @oxide.tensor.apart(ptr %block, i32 %site)
  %one = icmp eq i32 %apart, 0
  %together = and i1 %all, %one
  br i1 %together, label %good, label %bad
bad:
  call void @oxide.assertion_failed(ptr %context, i32 %site)
  ret i1 false
good:
  ret i1 true
}
; Returns 0 if all lanes are at one place in the source.
define internal i32 @oxide.tensor.apart(ptr %block, i32 %site) noinline {
entry:
  br label %next
next:
  %lane = phi i32 [ 0, %entry ], [ %lane.next, %next ]
  %apart = phi i32 [ 0, %entry ], [ %apart.next, %next ]
  %place = load i32, {{site[i32 %lane]}}
  %differs = xor i32 %place, %site
  %apart.next = or i32 %apart, %differs
  %lane.next = add i32 %lane, 1
  %more = icmp ult i32 %lane.next, 32
  br i1 %more, label %next, label %done
done:
  ret i32 %apart.next
}
; Returns what a lane has published, as an address.
define internal ptr @oxide.tensor.published(ptr %block, i32 %lane) alwaysinline {
  %number = load i64, {{published[i32 %lane]}}
  %address = inttoptr i64 %number to ptr
  ret ptr %address
}
"""


# Products


def product(symbol: str, shape: str, c_type: str, a_type: str, b_type: str, *_: str) -> str:
    """Defines the matrix product of one tile. The terms of an element are added in the order of k, and each sum is
    rounded."""
    height, width, depth = (int(part) for part in shape.removeprefix("m").replace("n", "k").split("k"))
    a = Layout("FragmentA", height, depth, a_type)
    c = Layout("Accumulator", height, width, c_type)
    kind, sum_kind = IR_TYPES[c_type], SUMS[c_type]
    word = a.word
    numbers = range(c.length)
    lines = [
        f"define internal void @{symbol}.lane(ptr %block, i32 %lane, ptr %c) noinline {{",
        "entry:",
        "  %group = lshr i32 %lane, 2",
        "  %thread = and i32 %lane, 3",
        "  %first = shl i32 %group, 2",
        "  %twice = shl i32 %thread, 1",
    ]
    for i in numbers:
        lines += [
            f"  %c.{i}.at = getelementptr {kind}, ptr %c, i64 {i}",
            f"  %c.{i}.raw = load {kind}, ptr %c.{i}.at",
            *widened(c_type, f"%c.{i}", f"%c.{i}.raw"),
        ]
    lines += [
        "  br label %next",
        "next:",
        "  %k = phi i32 [ 0, %entry ], [ %k.next, %next ]",
        *(f"  %sum.{i} = phi {sum_kind} [ %c.{i}, %entry ], [ %sum.{i}.next, %next ]" for i in numbers),
        f"  %word = udiv i32 %k, {word}",
        *low_bits("%within", "%k", word - 1),
        *low_bits("%place", "%word", 3),
        "  %half = lshr i32 %word, 2",
        "  %a.lane = add i32 %first, %place",
        "  %a.pair = call ptr @oxide.tensor.published(ptr %block, i32 %a.lane)",
        "  %a = load ptr, ptr %a.pair",
        f"  %b.half = mul i32 %half, {word}",
        "  %b.index = add i32 %b.half, %within",
    ]
    for upper in range(height // 8):  # the element of the row in each half of the tile
        lines += [
            f"  %a.half.{upper} = mul i32 %half, {2 * word}",
            f"  %a.base.{upper} = add i32 %a.half.{upper}, {upper * word}",
            f"  %a.index.{upper} = add i32 %a.base.{upper}, %within",
            *element(a_type, f"%a.{upper}", "%a", f"%a.index.{upper}"),
        ]
    for column in range(2):
        lines += [
            f"  %b.column.{column} = add i32 %twice, {column}",
            f"  %b.first.{column} = shl i32 %b.column.{column}, 2",
            f"  %b.lane.{column} = add i32 %b.first.{column}, %place",
            f"  %b.pair.{column} = call ptr @oxide.tensor.published(ptr %block, i32 %b.lane.{column})",
            f"  %b.at.{column} = getelementptr ptr, ptr %b.pair.{column}, i64 1",
            f"  %b.of.{column} = load ptr, ptr %b.at.{column}",
            *element(b_type, f"%b.{column}", f"%b.of.{column}", "%b.index"),
        ]
    for i in numbers:
        lines += added(sum_kind, f"%sum.{i}.next", f"%sum.{i}", f"%a.{i // 2}", f"%b.{i % 2}")
    lines += [
        "  %k.next = add i32 %k, 1",
        f"  %more = icmp ult i32 %k.next, {depth}",
        "  br i1 %more, label %next, label %done",
        "done:",
    ]
    for i in numbers:
        lines += [*narrowed(c_type, f"%d.{i}", f"%sum.{i}.next"), f"  store {kind} %d.{i}, ptr %c.{i}.at"]
    publish = """  %pair = alloca [2 x ptr]
  store ptr %a, ptr %pair
  %second = getelementptr ptr, ptr %pair, i64 1
  store ptr %b, ptr %second
  %address = ptrtoint ptr %pair to i64"""
    return "\n".join([*lines, "  ret void", "}", _together(symbol, ("%c", "%a", "%b"), publish, "%c")])


def _together(symbol: str, pointers: tuple[str, ...], publish: str, own: str) -> str:
    """Defines a primitive that all lanes of a warp call together. ``publish`` is the IR that computes the ``%address``
    that a lane publishes. Then each lane calls ``symbol.lane`` with the pointer ``own``."""
    listed = ", ".join(f"ptr {each}" for each in pointers)
    return f"""
define void @{symbol}(ptr %context, {listed}, i32 %site) alwaysinline {{
{publish}
  call void @oxide.exchange(ptr %context, i32 -1, i64 %address, i1 false, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %together = call i1 @oxide.tensor.together(ptr %context, ptr %block, i32 %lane, i32 %site)
  br i1 %together, label %compute, label %done
compute:
  call void @{symbol}.lane(ptr %block, i32 %lane, ptr {own})
  br label %done
done:
  call void @oxide.warp.sync(ptr %context, i32 -1, i32 %site)
  ret void
}}
"""


# Moves of blocks, and copies


def moved_blocks(symbol: str, name: str, count: int, transposed: bool) -> str:
    """Defines a move of blocks of 8 rows of 16 bytes. Row r of block b is at the address that lane ``8 * b + r`` has
    published. Each lane holds word ``lane % 4`` of row ``lane // 4``. With ``transposed`` it holds instead element
    ``lane // 4`` of row ``2 * (lane % 4)`` and of the next row."""
    lines = [
        f"define internal void @{symbol}.lane(ptr %block, i32 %lane, ptr %words) noinline {{",
        "  %group = lshr i32 %lane, 2",
        "  %thread = and i32 %lane, 3",
        "  %twice = shl i32 %thread, 1",
    ]
    for block in range(count):
        for half in range(2):
            it = f"{block}.{half}"
            row, place = f"add i32 %group, {8 * block}", f"add i32 %twice, {half}"
            if transposed:
                row, place = f"add i32 %twice, {8 * block + half}", "add i32 %group, 0"
            own, other = f"%own.{it}", f"%element.{it}"
            load, store = (other, own) if name == "ldmatrix" else (own, other)
            lines += [
                f"  %row.{it} = {row}",
                f"  %place.{it} = {place}",
                f"  %start.{it} = call ptr @oxide.tensor.published(ptr %block, i32 %row.{it})",
                f"  {other} = getelementptr i16, ptr %start.{it}, i32 %place.{it}",
                f"  {own} = getelementptr i16, ptr %words, i64 {2 * block + half}",
                f"  %moved.{it} = load i16, ptr {load}",
                f"  store i16 %moved.{it}, ptr {store}",
            ]
    publish = "  %address = ptrtoint ptr %row to i64"
    return "\n".join([*lines, "  ret void", "}", _together(symbol, ("%row", "%words"), publish, "%words")])


COPY = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define void @<symbol>(ptr %context, ptr %target, ptr %source, i32 %taken, i32 %site) alwaysinline {
  %bytes = zext i32 %taken to i64
  call void @llvm.memset.p0.i64(ptr %target, i8 0, i64 <size>, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %bytes, i1 false)
  ret void
}
"""
