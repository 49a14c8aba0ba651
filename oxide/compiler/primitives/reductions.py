"""Reductions over the lanes of a warp: their operators as LLVM instructions, and their definitions on each device."""

from __future__ import annotations

from collections.abc import Iterable

from oxide.language.types import SCALARS

_PREFIX = "oxide.warp.reduce."


def used(symbols: Iterable[str]) -> list[tuple[str, str, str]]:
    """Returns (symbol, operator, type) of each reduction among symbols: ``("oxide.warp.…", "umin", "i32")``."""
    found = sorted(symbol for symbol in symbols if symbol.startswith(_PREFIX))
    return [(symbol, *symbol.removeprefix(_PREFIX).split(".")) for symbol in found]  # type: ignore[misc]


def llvm_type(kind: str) -> str:
    return SCALARS[kind].memory_type


def bits_type(kind: str) -> str:
    """Returns the integer type that carries a value of ``kind`` between lanes."""
    return f"i{kind[1:]}"


def combine(operator: str, kind: str, result: str, left: str, right: str) -> str:
    """Returns the line that computes ``result = operator(left, right)``."""
    name = llvm_type(kind)
    if kind[0] == "f":
        if operator == "add":
            return f"  {result} = fadd {name} {left}, {right}"
        return f"  {result} = call {name} @llvm.{operator}num.{kind}({name} {left}, {name} {right})"
    if operator in ("add", "and", "or", "xor"):
        return f"  {result} = {operator} {name} {left}, {right}"
    signed = operator if operator.startswith("u") else f"s{operator}"
    return f"  {result} = call {name} @llvm.{signed}.{kind}({name} {left}, {name} {right})"


def declaration(operator: str, kind: str) -> str:
    """Returns the declaration of the intrinsic that ``combine`` calls, or "" if it calls none."""
    name = llvm_type(kind)
    if operator.removeprefix("u") not in ("min", "max"):
        return ""
    if kind[0] == "f":
        return f"declare {name} @llvm.{operator}num.{kind}({name}, {name})"
    signed = operator if operator.startswith("u") else f"s{operator}"
    return f"declare {name} @llvm.{signed}.{kind}({name}, {name})"


def on_gpu(symbol: str, operator: str, kind: str, capability: int) -> str:
    """Defines a reduction. A reduction of 32-bit integers is one instruction from sm_80 on. Any other is a butterfly of
    shuffles if the mask has all lanes, and one shuffle for each lane in the mask if not."""
    name, bits = llvm_type(kind), bits_type(kind)
    head = (
        f"{declaration(operator, kind)}\n"
        f"define {name} @{symbol}(ptr %context, i32 %mask, {name} %value, i32 %site) alwaysinline convergent {{\n"
    )
    if kind == "i32" and capability >= 80:
        redux = f"@llvm.nvvm.redux.sync.{operator}"
        return (
            f"declare i32 {redux}(i32, i32) convergent\n{head}"
            f"  %result = call i32 {redux}(i32 %value, i32 %mask) convergent\n  ret i32 %result\n}}"
        )

    def moved(how: str, result: str, value: str, lane: str) -> list[str]:
        call = f"call {bits} @oxide.warp.shuffle.{how}.{bits}(ptr %context, i32 %live, {bits} {result}.bits, "
        return [
            f"  {result}.bits = bitcast {name} {value} to {bits}",
            f"  {result}.moved = {call}i32 {lane}, i32 %site) convergent",
            f"  {result} = bitcast {bits} {result}.moved to {name}",
        ]

    butterfly: list[str] = []
    value = "%value"
    for step in (16, 8, 4, 2, 1):
        butterfly += moved("bfly", f"%other.{step}", value, str(step))
        butterfly.append(combine(operator, kind, f"%sum.{step}", value, f"%other.{step}"))
        value = f"%sum.{step}"
    return "\n".join(
        [
            head.rstrip("\n"),
            "entry:",
            # The mask without the lanes that a short warp lacks, from which a butterfly would read undefined values.
            "  %live = call i32 @oxide.warp.ballot(ptr %context, i32 %mask, i1 true, i32 %site) convergent",
            "  %full = icmp eq i32 %live, -1",
            "  br i1 %full, label %butterfly, label %first",
            "butterfly:",
            *butterfly,
            f"  ret {name} {value}",
            "first:",
            "  %first.lane = call i32 @llvm.cttz.i32(i32 %live, i1 false)",
            *moved("idx", "%first.value", "%value", "%first.lane"),
            "  %first.less = sub i32 %live, 1",
            "  %first.rest = and i32 %live, %first.less",
            "  br label %next",
            "next:",
            "  %left = phi i32 [ %first.rest, %first ], [ %rest, %more ]",
            f"  %sum = phi {name} [ %first.value, %first ], [ %sum.more, %more ]",
            "  %done = icmp eq i32 %left, 0",
            "  br i1 %done, label %finish, label %more",
            "more:",
            "  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 false)",
            *moved("idx", "%next.value", "%value", "%lane"),
            combine(operator, kind, "%sum.more", "%sum", "%next.value"),
            "  %less = sub i32 %left, 1",
            "  %rest = and i32 %left, %less",
            "  br label %next",
            "finish:",
            f"  ret {name} %sum",
            "}",
        ]
    )


def on_cpu(symbol: str, operator: str, kind: str) -> str:
    """Defines a reduction that combines the lanes' values sequentially, in the same order for each lane."""
    name, bits = llvm_type(kind), bits_type(kind)

    def value_of(result: str, lane: str) -> str:
        narrow = f"trunc i64 {result}.wide to i32" if bits == "i32" else f"add i64 {result}.wide, 0"
        return (
            f"  {result}.wide = load i64, {{{{published[i32 {lane}]}}}}\n"
            f"  {result}.bits = {narrow}\n  {result} = bitcast {bits} {result}.bits to {name}"
        )

    return f"""
{declaration(operator, kind)}
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
{combine(operator, kind, "%sum.more", "%sum", "%value")}
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  br label %next
finish:
  ret {name} %sum
}}
"""
