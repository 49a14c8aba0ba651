"""Remainders of floats on a GPU, as exact as ``fmod`` on a CPU.

PTX has no remainder instruction. LLVM computes ``x - trunc(x / y) * y`` instead, which is wrong if the quotient has
more bits than a float's mantissa, and NaN if the quotient overflows. This code divides the mantissas as integers by
long division, as musl's ``fmod`` does, and shifts by as many bits at a time as are free in a 64-bit integer.
"""

from __future__ import annotations

from oxide.compiler.ir.module import Module
from oxide.compiler.ir.values import Binary, Call


def make_exact(module: Module) -> list[str]:
    """Replaces each remainder by a call. Returns the definitions of the called functions."""
    kinds: set[str] = set()
    for function in module.defined:
        for each in function.instructions:
            match each:
                case Binary(opcode="frem", type="float" | "double" as kind, operands=operands):
                    called = module.declare(kind, f"oxide.remainder.{kind}", (kind, kind))
                    function.substitute(each, Call(each.name, kind, called, operands))
                    kinds.add(kind)
    return [_DECLARATIONS, *map(_definition, sorted(kinds))] if kinds else []


_DECLARATIONS = "declare i64 @llvm.ctlz.i64(i64, i1)\ndeclare i64 @llvm.umin.i64(i64, i64)"


def _definition(kind: str) -> str:
    """Defines the remainder. The bits of both numbers are widened to 64, so that one text serves both types."""
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
