"""Warp operations on the CPU, as LLVM IR: a lane publishes its value, suspends, and reads the other lanes' values.

``{{name}}`` stands for a field of the block's state. ``coroutines.py`` lists the fields, and *renders* a text: it
replaces each such name by the field's address.
"""

from __future__ import annotations

from collections.abc import Collection

from oxide.compiler.ir import reduction_operators


def definitions(symbols: Collection[str]) -> list[str]:
    """Returns the definitions of the warp operations for a kernel that calls the functions ``symbols``, not yet
    rendered. Empty if the kernel needs none. The primitives of ``tensor_primitives.py`` call warp operations too."""
    if not any(symbol.startswith(("oxide.warp.", "oxide.tensor.")) for symbol in symbols):
        return []
    return [_WARP, *(_reduction(*found) for found in reduction_operators.used(symbols))]


_SHUFFLE = """
define {kind} @oxide.warp.shuffle.{how}.{kind}(ptr %context, i32 %mask, {kind} %value, i32 %by, i32 %site)
    alwaysinline {
  %wide = {widen} {kind} %value to i64
  call void @oxide.exchange(ptr %context, i32 %mask, i64 %wide, i1 false, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %distance = and i32 %by, 31
{source}
  %group = load i32, {{group[i32 %lane]}}
  %shifted = lshr i32 %group, %from
  %named = trunc i32 %shifted to i1
  %other = load i64, {{published[i32 %from]}}
  %narrow = {narrow} i64 %other to {kind}
  %moved = select i1 %named, {kind} %narrow, {kind} %value
  ret {kind} %moved
}
"""

_MISSING_SOURCE = """
; The lane that a shuffle takes its value from, as a bit, if it took no part: it does not exist, it has returned, or the
; mask does not name it.
define i32 @oxide.warp.missing_source.{how}(ptr %context, i32 %by) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %distance = and i32 %by, 31
{source}
  %group = load i32, {{group[i32 %lane]}}
  %bit = shl i32 1, %from
  %apart = xor i32 %group, -1
  %result = and i32 %bit, %apart
  ret i32 %result
}
"""

_SOURCES = {
    "idx": "  %from = add i32 %distance, 0",
    "up": """  %there = icmp uge i32 %lane, %distance
  %below = sub i32 %lane, %distance
  %from = select i1 %there, i32 %below, i32 %lane""",
    "down": """  %above = add i32 %lane, %distance
  %there = icmp ult i32 %above, 32
  %from = select i1 %there, i32 %above, i32 %lane""",
    "bfly": "  %from = xor i32 %lane, %distance",
}


def _shuffle(how: str, kind: str) -> str:
    text = _SHUFFLE.replace("{kind}", kind).replace("{how}", how).replace("{source}", _SOURCES[how])
    if kind == "i64":
        return text.replace("{widen} i64 %value to i64", "add i64 %value, 0").replace(
            "{narrow} i64 %other to i64", "add i64 %other, 0"
        )
    return text.replace("{widen}", "zext").replace("{narrow}", "trunc")


_MATCH = """
define i32 @oxide.warp.match.any.{kind}(ptr %context, i32 %mask, {kind} %value, i32 %site) alwaysinline {
  %wide = {widen}
  call void @oxide.exchange(ptr %context, i32 %mask, i64 %wide, i1 false, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %group = load i32, {{group[i32 %lane]}}
  %lanes = call i32 @oxide.matching(ptr %block, i32 %group, i64 %wide)
  ret i32 %lanes
}
define i32 @oxide.warp.match.all.{kind}(ptr %context, i32 %mask, {kind} %value, i32 %site) alwaysinline {
  %lanes = call i32 @oxide.warp.match.any.{kind}(ptr %context, i32 %mask, {kind} %value, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %group = load i32, {{group[i32 %lane]}}
  %same = icmp eq i32 %lanes, %group
  %result = select i1 %same, i32 %group, i32 0
  ret i32 %result
}
"""


def _match(kind: str) -> str:
    widen = "zext i32 %value to i64" if kind == "i32" else "add i64 %value, 0"
    return _MATCH.replace("{widen}", widen).replace("{kind}", kind)


_WARP = (
    """
define void @oxide.exchange(ptr %context, i32 %mask, i64 %value, i1 %condition, i32 %site) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %bit = shl i32 1, %lane
  store i64 %value, {{value[i32 %lane]}}
  store i32 %mask, {{mask[i32 %lane]}}
  store i32 %site, {{site[i32 %lane]}}
  %waiting = load i32, {{waiting}}
  %more = or i32 %waiting, %bit
  store i32 %more, {{waiting}}
  %bits = load i32, {{bits}}
  %not_bit = xor i32 %bit, -1
  %cleared = and i32 %bits, %not_bit
  %set = or i32 %bits, %bit
  %new = select i1 %condition, i32 %set, i32 %cleared
  store i32 %new, {{bits}}
  call void @oxide.suspend()
  ret void
}
define void @oxide.warp.sync(ptr %context, i32 %mask, i32 %site) alwaysinline {
  call void @oxide.exchange(ptr %context, i32 %mask, i64 0, i1 false, i32 %site)
  ret void
}
; The lanes of the mask that took no part in this lane's last operation: they had returned, or do not exist. The full
; mask stands for all lanes that exist.
define i32 @oxide.warp.missing(ptr %context, i32 %mask) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %group = load i32, {{group[i32 %lane]}}
  %nx = load i32, {{ntid[i32 0]}}
  %ny = load i32, {{ntid[i32 1]}}
  %nz = load i32, {{ntid[i32 2]}}
  %plane = mul i32 %nx, %ny
  %threads = mul i32 %plane, %nz
  %thread = call i32 @oxide.linear_thread(ptr %context)
  %first = and i32 %thread, -32
  %left = sub i32 %threads, %first
  %whole = icmp uge i32 %left, 32
  %part = and i32 %left, 31
  %beyond = shl i32 -1, %part
  %within = xor i32 %beyond, -1
  %there = select i1 %whole, i32 -1, i32 %within
  %full = icmp eq i32 %mask, -1
  %named = select i1 %full, i32 %there, i32 %mask
  %apart = xor i32 %group, -1
  %missing = and i32 %named, %apart
  ret i32 %missing
}
define i32 @oxide.warp.active_mask(ptr %context, i32 %site) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %bit = shl i32 1, %lane
  %converging = load i32, {{converging}}
  %more = or i32 %converging, %bit
  store i32 %more, {{converging}}
  call void @oxide.exchange(ptr %context, i32 0, i64 0, i1 false, i32 %site)
  %group = load i32, {{group[i32 %lane]}}
  ret i32 %group
}
define i32 @oxide.warp.ballot(ptr %context, i32 %mask, i1 %condition, i32 %site) alwaysinline {
  call void @oxide.exchange(ptr %context, i32 %mask, i64 0, i1 %condition, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %group = load i32, {{group[i32 %lane]}}
  %bits = load i32, {{published.bits}}
  %result = and i32 %bits, %group
  ret i32 %result
}
define i1 @oxide.warp.elect(ptr %context, i32 %mask, i32 %site) alwaysinline {
  %lanes = call i32 @oxide.warp.ballot(ptr %context, i32 %mask, i1 true, i32 %site)
  %first = call i32 @llvm.cttz.i32(i32 %lanes, i1 true)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %elected = icmp eq i32 %lane, %first
  ret i1 %elected
}
define i1 @oxide.warp.any(ptr %context, i32 %mask, i1 %condition, i32 %site) alwaysinline {
  %lanes = call i32 @oxide.warp.ballot(ptr %context, i32 %mask, i1 %condition, i32 %site)
  %result = icmp ne i32 %lanes, 0
  ret i1 %result
}
define i1 @oxide.warp.all(ptr %context, i32 %mask, i1 %condition, i32 %site) alwaysinline {
  %false = xor i1 %condition, true
  %lanes = call i32 @oxide.warp.ballot(ptr %context, i32 %mask, i1 %false, i32 %site)
  %result = icmp eq i32 %lanes, 0
  ret i1 %result
}
define internal i32 @oxide.matching(ptr %block, i32 %group, i64 %value) noinline {
entry:
  br label %next
next:
  %left = phi i32 [ %group, %entry ], [ %rest, %next ]
  %lanes = phi i32 [ 0, %entry ], [ %lanes.more, %next ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %bit = shl i32 1, %lane
  %other = load i64, {{published[i32 %lane]}}
  %same = icmp eq i64 %other, %value
  %added = select i1 %same, i32 %bit, i32 0
  %lanes.more = or i32 %lanes, %added
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %more = icmp ne i32 %rest, 0
  br i1 %more, label %next, label %done
done:
  ret i32 %lanes.more
}
"""
    + "".join(_shuffle(how, kind) for how in _SOURCES for kind in ("i32", "i64"))
    + "".join(_match(kind) for kind in ("i32", "i64"))
    + "".join(_MISSING_SOURCE.replace("{how}", how).replace("{source}", text) for how, text in _SOURCES.items())
)


def _reduction(symbol: str, operator: str, kind: str) -> str:
    """Defines a reduction that combines the lanes' values sequentially, in the same order for each lane."""
    name, bits = reduction_operators.llvm_type(kind), reduction_operators.bits_type(kind)

    def value_of(result: str, lane: str) -> str:
        narrow = f"trunc i64 {result}.wide to i32" if bits == "i32" else f"add i64 {result}.wide, 0"
        return (
            f"  {result}.wide = load i64, {{{{published[i32 {lane}]}}}}\n"
            f"  {result}.bits = {narrow}\n  {result} = bitcast {bits} {result}.bits to {name}"
        )

    return f"""
{reduction_operators.declaration(operator, kind)}
define {name} @{symbol}(ptr %context, i32 %mask, {name} %value, i32 %site) alwaysinline {{
  %bits = bitcast {name} %value to {bits}
  %wide = {"zext i32 %bits to i64" if bits == "i32" else "add i64 %bits, 0"}
  call void @oxide.exchange(ptr %context, i32 %mask, i64 %wide, i1 false, i32 %site)
  %block = call ptr @oxide.block(ptr %context)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %group = load i32, {{{{group[i32 %lane]}}}}
  %result = call {name} @oxide.combined.{operator}.{kind}(ptr %block, i32 %group)
  ret {name} %result
}}
define internal {name} @oxide.combined.{operator}.{kind}(ptr %block, i32 %group) noinline {{
entry:
  %first = call i32 @llvm.cttz.i32(i32 %group, i1 true)
{value_of("%start", "%first")}
  %start.less = sub i32 %group, 1
  %start.rest = and i32 %group, %start.less
  br label %next
next:
  %left = phi i32 [ %start.rest, %entry ], [ %rest, %more ]
  %sum = phi {name} [ %start, %entry ], [ %sum.more, %more ]
  %done = icmp eq i32 %left, 0
  br i1 %done, label %finish, label %more
more:
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
{value_of("%value", "%lane")}
{reduction_operators.combine(operator, kind, "%sum.more", "%sum", "%value")}
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  br label %next
finish:
  ret {name} %sum
}}
"""
