"""Expands what LLVM's NVPTX back end lacks: exact remainders of floats, and vector accesses with a cache hint.

PTX has no remainder instruction. LLVM computes ``x - trunc(x / y) * y`` instead, which is wrong if the quotient has
more bits than a float's mantissa, and NaN if the quotient overflows. Here a remainder is as exact as ``fmod`` on a CPU.

LLVM ignores its own mark of streaming accesses, ``!nontemporal``, so the hint requires inline assembly. The pass comes
last, so that the bounds checks see ordinary loads and stores. On a CPU, streaming accesses stay ordinary loads and
stores.
"""

from __future__ import annotations

from collections.abc import Iterable

from oxide.compiler.ir.module import Module
from oxide.compiler.ir.values import Binary, Call, Instruction, Load, Store, Value


def is_expanded(instruction: Instruction) -> bool:
    """Returns whether an instruction may be expanded."""
    return instruction.opcode == "frem" or "!oxide.streaming" in instruction.metadata


def expand(module: Module) -> Iterable[str]:
    """Replaces remainders and streaming vector accesses by calls. Returns the definitions of the called functions.
    Vectors whose size is not a multiple of 32 bits are unchanged."""
    definitions: dict[str, str] = {}
    for function in module.defined:
        for each in filter(is_expanded, function.instructions):
            name = definition = ""
            match each:
                case Binary(opcode="frem", type="float" | "double" as kind):
                    name, definition = f"oxide.remainder.{kind}", _remainder(kind)
                case Load(type=vector) | Store(value=Value(type=vector)) if vector.startswith("<"):
                    count, _, element = vector.strip("<>").partition(" x ")
                    bits = int(count) * (_BITS.get(element) or int(element[1:]))
                    if bits % 32 == 0:
                        name = f"oxide.streaming.{each.opcode}.v{count}{element}"
                        definition = (_load if isinstance(each, Load) else _store)(name, vector, bits // 32)
            if name:
                definitions[name] = definition
                called = module.declare(each.type, name, [operand.type for operand in each.operands])
                function.substitute(each, Call(each.name, each.type, called, each.operands))
    return definitions.values()


# Remainders


def _remainder(kind: str) -> str:
    """Defines the remainder. It divides the mantissas as integers by long division, as musl's ``fmod`` does, and shifts
    by as many bits at a time as are free in a 64-bit integer. The bits of both numbers are widened to 64, so that one
    text serves both types."""
    bits, fraction = {"float": (32, 23), "double": (64, 52)}[kind]
    infinity = ((1 << (bits - 1 - fraction)) - 1) << fraction
    sign, implicit, at_once = 1 << (bits - 1), 1 << fraction, 63 - fraction
    nan = infinity | implicit >> 1

    def wide(name: str) -> str:
        if bits == 64:
            return f"  %{name}.bits = bitcast double %{name} to i64"
        return f"  %{name}.raw = bitcast float %{name} to i32\n  %{name}.bits = zext i32 %{name}.raw to i64"

    def number(result: str, value: str) -> str:
        if bits == 64:
            return f"  {result} = bitcast i64 {value} to double"
        return f"  {result}.raw = trunc i64 {value} to i32\n  {result} = bitcast i32 {result}.raw to float"

    def taken_apart(name: str) -> str:
        """Returns the IR that computes a number's mantissa, with its leading bit, and exponent. Subnormal numbers are
        normalised."""
        return f"""  %{name}.field = lshr i64 %{name}.size, {fraction}
  %{name}.fraction = and i64 %{name}.size, {implicit - 1}
  %{name}.normal = icmp ne i64 %{name}.field, 0
  %{name}.full = or i64 %{name}.fraction, {implicit}
  %{name}.zeros = call i64 @llvm.ctlz.i64(i64 %{name}.fraction, i1 false)
  %{name}.shift = sub i64 %{name}.zeros, {63 - fraction}
  %{name}.shift.safe = and i64 %{name}.shift, 63
  %{name}.raised = shl i64 %{name}.fraction, %{name}.shift.safe
  %{name}.below = sub i64 1, %{name}.shift
  %{name}.mantissa = select i1 %{name}.normal, i64 %{name}.full, i64 %{name}.raised
  %{name}.exponent = select i1 %{name}.normal, i64 %{name}.field, i64 %{name}.below"""

    return f"""
declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.umin.i64(i64, i64)
define {kind} @oxide.remainder.{kind}({kind} %x, {kind} %y) nounwind willreturn memory(none) {{
entry:
{wide("x")}
{wide("y")}
  %sign = and i64 %x.bits, {_signed(sign)}
  %x.size = and i64 %x.bits, {sign - 1}
  %y.size = and i64 %y.bits, {sign - 1}
  %x.bad = icmp uge i64 %x.size, {infinity}
  %y.nan = icmp ugt i64 %y.size, {infinity}
  %y.zero = icmp eq i64 %y.size, 0
  %bad.y = or i1 %y.nan, %y.zero
  %bad = or i1 %x.bad, %bad.y
  br i1 %bad, label %undefined, label %compare
undefined:
{number("%none", str(nan))}
  ret {kind} %none
compare:
  %smaller = icmp ult i64 %x.size, %y.size
  br i1 %smaller, label %whole, label %divide
whole:
  ret {kind} %x
divide:
{taken_apart("x")}
{taken_apart("y")}
  %apart = sub i64 %x.exponent, %y.exponent
  %first = urem i64 %x.mantissa, %y.mantissa
  br label %next
next:
  %left = phi i64 [ %apart, %divide ], [ %left.less, %more ]
  %rest = phi i64 [ %first, %divide ], [ %rest.next, %more ]
  %over = icmp eq i64 %left, 0
  br i1 %over, label %done, label %more
more:
  %step = call i64 @llvm.umin.i64(i64 %left, i64 {at_once})
  %moved = shl i64 %rest, %step
  %rest.next = urem i64 %moved, %y.mantissa
  %left.less = sub i64 %left, %step
  br label %next
done:
  %nothing = icmp eq i64 %rest, 0
  br i1 %nothing, label %zero, label %round
zero:
{number("%zero.signed", "%sign")}
  ret {kind} %zero.signed
round:
  %zeros = call i64 @llvm.ctlz.i64(i64 %rest, i1 false)
  %up = sub i64 %zeros, {63 - fraction}
  %exponent = sub i64 %y.exponent, %up
  %is.normal = icmp sgt i64 %exponent, 0
  br i1 %is.normal, label %normal, label %subnormal
normal:
  %mantissa = shl i64 %rest, %up
  %no.leading = sub i64 %mantissa, {implicit}
  %field = shl i64 %exponent, {fraction}
  %size = or i64 %no.leading, %field
  %signed = or i64 %size, %sign
{number("%result", "%signed")}
  ret {kind} %result
subnormal:
  %raise = sub i64 %y.exponent, 1
  %small.down = sub i64 0, %raise
  %small.down.safe = and i64 %small.down, 63
  %lowered = lshr i64 %rest, %small.down.safe
  %raises = icmp sge i64 %raise, 0
  %raise.safe = and i64 %raise, 63
  %raised = shl i64 %rest, %raise.safe
  %tiny = select i1 %raises, i64 %raised, i64 %lowered
  %tiny.signed = or i64 %tiny, %sign
{number("%tiny.result", "%tiny.signed")}
  ret {kind} %tiny.result
}}"""


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


# Streaming accesses

_BITS = {"float": 32, "double": 64}
_WIDEST = 4
"""The most 32-bit words that one instruction loads or stores."""


def _load(name: str, vector: str, words: int) -> str:
    lines = [f"define {vector} @{name}(ptr %pointer) alwaysinline {{", *_GLOBAL]
    parts, made = _parts(words), "poison"
    for place, count in parts:
        kind = "i32" if count == 1 else f"{{ {', '.join(['i32'] * count)} }}"
        lines.append(
            f"  %part.{place} = call {kind} asm sideeffect "
            f'"ld.global.cs{_suffix(count)} {_operands(0, count)}, [${count}{_offset(place)}];", '
            f'"{",".join(["=r"] * count)},l,~{{memory}}"(ptr addrspace(1) %global)'
        )
        for word in range(count):
            number = place + word
            if count > 1:
                lines.append(f"  %word.{number} = extractvalue {kind} %part.{place}, {word}")
            source = f"%word.{number}" if count > 1 else f"%part.{place}"
            lines.append(f"  %made.{number} = insertelement <{words} x i32> {made}, i32 {source}, i32 {number}")
            made = f"%made.{number}"
    return "\n".join(
        [*lines, f"  %vector = bitcast <{words} x i32> {made} to {vector}", f"  ret {vector} %vector", "}"]
    )


def _store(name: str, vector: str, words: int) -> str:
    lines = [f"define void @{name}({vector} %vector, ptr %pointer) alwaysinline {{", *_GLOBAL]
    lines.append(f"  %words = bitcast {vector} %vector to <{words} x i32>")
    lines += [f"  %word.{number} = extractelement <{words} x i32> %words, i32 {number}" for number in range(words)]
    for place, count in _parts(words):
        listed = ", ".join(f"i32 %word.{place + word}" for word in range(count))
        lines.append(
            f'  call void asm sideeffect "st.global.cs{_suffix(count)} [$0{_offset(place)}], {_operands(1, count)};", '
            f'"l,{",".join(["r"] * count)},~{{memory}}"(ptr addrspace(1) %global, {listed})'
        )
    return "\n".join([*lines, "  ret void", "}"])


_GLOBAL = ("  %global = addrspacecast ptr %pointer to ptr addrspace(1)",)


def _parts(words: int) -> list[tuple[int, int]]:
    """Splits a vector into parts for single loads or stores. Returns, for each part, the index of its first word and
    the number of its words."""
    return [(place, min(words, _WIDEST)) for place in range(0, words, _WIDEST)]


def _suffix(count: int) -> str:
    return ".b32" if count == 1 else f".v{count}.b32"


def _operands(first: int, count: int) -> str:
    listed = ", ".join(f"${first + number}" for number in range(count))
    return listed if count == 1 else f"{{{listed}}}"


def _offset(place: int) -> str:
    return f"+{4 * place}" if place else ""
