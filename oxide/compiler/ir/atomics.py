"""Atomic operations as LLVM IR, shared by both back ends.

The front end calls ``oxide.atomic.<operation>.<type>.<scope>.<ordering>``, because llvmlite's builder cannot express
scopes. This module defines a short function for each such name. The operation itself is relaxed, and fences around it
give the ordering, as the mappings of C++ atomics to PTX and to x86 do.
"""

from __future__ import annotations

from oxide.compiler.primitives import reductions
from oxide.language.types import NARROW, SCALARS

_SCOPES = {"block": 'syncscope("block") ', "device": 'syncscope("device") ', "system": ""}
_ORDERINGS = {1: "acquire", 2: "release", 3: "acq_rel", 4: "seq_cst"}


def definition(symbol: str) -> str | None:
    """Returns the IR that defines an atomic operation or a fence, or None for any other function."""
    match symbol.split("."):
        case "oxide", "atomic", *parts:
            return _operation(symbol, *parts)
        case "oxide", "fence", scope, ordering:
            return _fence(symbol, scope, ordering)
    return None


def _types(kind: str) -> tuple[str, str, int]:
    """Returns the LLVM type of a number, the type of its bits, and its size in bytes."""
    scalar = SCALARS[kind]
    return scalar.memory_type, f"i{scalar.bits}", scalar.bits // 8


def _fence(symbol: str, scope: str, ordering: str) -> str:
    line = f"  fence {_SCOPES[scope]}{_ORDERINGS[int(ordering)]}\n" if int(ordering) else ""
    return f"define void @{symbol}() alwaysinline {{\n{line}  ret void\n}}"


def _operation(symbol: str, operation: str, kind: str, scope: str, ordering: str) -> str:
    name, bits, size = _types(kind)
    where = _SCOPES[scope]
    number = int(ordering)
    # A release fence orders earlier accesses before the operation. A sequentially consistent operation has the strong
    # fence instead.
    before = f"  fence {where}seq_cst\n" if number == 4 else f"  fence {where}release\n" if number in (2, 3) else ""
    after = f"  fence {where}acquire\n" if number in (1, 3, 4) else ""
    if operation == "load":
        body = f"  %bits = load atomic {bits}, ptr %at {where}monotonic, align {size}\n{after}"
        return (
            f"define {name} @{symbol}(ptr %at) alwaysinline {{\n{before if number == 4 else ''}{body}"
            f"  %old = bitcast {bits} %bits to {name}\n  ret {name} %old\n}}"
        )
    head = f"(ptr %at, {name} %value) alwaysinline {{\n{before}"
    given = f"  %bits = bitcast {name} %value to {bits}\n"
    if operation == "store":
        last = f"  fence {where}seq_cst\n" if number == 4 else ""
        return (
            f"define void @{symbol}{head}{given}"
            f"  store atomic {bits} %bits, ptr %at {where}monotonic, align {size}\n{last}  ret void\n}}"
        )
    end = f"{after}  %old = bitcast {bits} %old.bits to {name}\n  ret {name} %old\n}}"
    if kind == "f16" and operation == "fadd" and scope != "system":
        return (
            f"define i16 @{symbol}{head}  %number = bitcast i16 %value to half\n"
            f"  %before = atomicrmw fadd ptr %at, half %number {where}monotonic, align 2\n"
            f"{after}  %old = bitcast half %before to i16\n  ret i16 %old\n}}"
        )
    if (kind in NARROW and operation == "fadd") or (scope == "system" and operation != "compare_exchange"):
        # Few processors can add bf16 atomically. In PTX, LLVM gives every read-modify-write device scope, but a
        # compare-exchange keeps its scope.
        declared, computed = _computed(operation, kind)
        return f"{declared}\ndefine {name} @{symbol}{head}{_loop(computed, kind, where, after)}"
    if operation == "exchange":
        return (
            f"define {name} @{symbol}{head}{given}"
            f"  %old.bits = atomicrmw xchg ptr %at, {bits} %bits {where}monotonic, align {size}\n{end}"
        )
    if operation == "compare_exchange":
        return (
            f"define {name} @{symbol}(ptr %at, {name} %expected, {name} %value) alwaysinline {{\n{before}{given}"
            f"  %wanted = bitcast {name} %expected to {bits}\n"
            f"  %both = cmpxchg ptr %at, {bits} %wanted, {bits} %bits {where}monotonic monotonic, align {size}\n"
            f"  %old.bits = extractvalue {{ {bits}, i1 }} %both, 0\n{end}"
        )
    return (
        f"define {name} @{symbol}{head}"
        f"  %old = atomicrmw {operation} ptr %at, {name} %value {where}monotonic, align {size}\n"
        f"{after}  ret {name} %old\n}}"
    )


def _computed(operation: str, kind: str) -> tuple[str, str]:
    """Returns the declarations and the lines that compute ``%new.bits`` from the numbers ``%old`` and ``%value``."""
    name, bits, _ = _types(kind)
    operator = operation.removeprefix("f") if kind[0] == "f" else operation
    if kind in NARROW and operation == "fadd":
        return (
            f"declare float @oxide.{kind}.widen(i16)\ndeclare i16 @oxide.{kind}.narrow(float)",
            f"""  %more = call float @oxide.{kind}.widen(i16 %value)
  %wide = call float @oxide.{kind}.widen(i16 %old)
  %sum = fadd float %wide, %more
  %new.bits = call i16 @oxide.{kind}.narrow(float %sum)""",
        )
    if operation == "exchange":
        return "", f"  %new.bits = bitcast {name} %value to {bits}"
    if operator == "sub":
        line = f"  %new = {'fsub' if kind[0] == 'f' else 'sub'} {name} %old, %value"
    else:
        line = reductions.combine(operator, kind, "%new", "%old", "%value")
    return reductions.declaration(operator, kind), f"{line}\n  %new.bits = bitcast {name} %new to {bits}"


def _loop(computed: str, kind: str, where: str, after: str) -> str:
    """Returns the body of a read-modify-write as a loop around a compare-exchange."""
    name, bits, size = _types(kind)
    return f"""  %first = load atomic {bits}, ptr %at monotonic, align {size}
  br label %try
try:
  %seen = phi {bits} [ %first, %0 ], [ %found, %try ]
  %old = bitcast {bits} %seen to {name}
{computed}
  %both = cmpxchg ptr %at, {bits} %seen, {bits} %new.bits {where}monotonic monotonic, align {size}
  %found = extractvalue {{ {bits}, i1 }} %both, 0
  %swapped = extractvalue {{ {bits}, i1 }} %both, 1
  br i1 %swapped, label %done, label %try
done:
{after}  ret {name} %old
}}"""
