"""``round(x, n)``: x rounded to n decimals as in Python, as LLVM IR.

Python rounds the float's exact value to n decimals, ties to even, and converts these to the nearest float. The float
0.15 is less than 0.15, so ``round(0.15, 1)`` is 0.1. Python converts to text and back; this function uses exact
arithmetic. Up to n = 22, 10**n is exactly a float (beyond, the result's last bit may differ from Python's). The
rounding error of the product 10**n * x is exactly a float too. A fused multiply-add computes this error, and with the
error the product is rounded correctly to a whole number. The division of the whole number by 10**n then rounds once. If
the product is 2**53 or more, it has no fraction, and the result is x. For a negative n, the division comes first and
the product last.

The function is IR, not Python, since its operations must not be fused with others or reordered under fastmath.
"""

from __future__ import annotations

from collections.abc import Collection

NAME = "oxide.round_decimals"

_POWERS = ("10.0", "100.0", "1.0e4", "1.0e8", "1.0e16", "1.0e32", "1.0e64", "1.0e128", "1.0e256")
"""10 to the powers 1, 2, 4, 8 and so on. Their products are exact up to 1e22 and infinite past 1e308."""


def portable_definitions(symbols: Collection[str]) -> str:
    """Returns the function's definition if it is among a kernel's symbols, else ""."""
    return _definition() if NAME in symbols else ""


def _definition() -> str:
    steps, power = [], "1.0"
    for number, factor in enumerate(_POWERS):
        steps += [
            f"  %bit.{number} = and i64 %k, {1 << number}",
            f"  %has.{number} = icmp ne i64 %bit.{number}, 0",
            f"  %factor.{number} = select i1 %has.{number}, double {factor}, double 1.0",
            f"  %power.{number} = fmul double {power}, %factor.{number}",
        ]
        power = f"%power.{number}"
    listed = "\n".join(steps)
    return f"""
declare double @llvm.roundeven.f64(double)
declare double @llvm.fma.f64(double, double, double)
declare double @llvm.fabs.f64(double)
declare double @llvm.copysign.f64(double, double)
declare i64 @llvm.umin.i64(i64, i64)
define linkonce_odr double @{NAME}(double %x, i64 %n) alwaysinline {{
entry:
  %negative = icmp slt i64 %n, 0
  %minus = sub i64 0, %n
  %size = select i1 %negative, i64 %minus, i64 %n
  %k = call i64 @llvm.umin.i64(i64 %size, i64 {2 ** len(_POWERS) - 1})
{listed}
  br i1 %negative, label %tens, label %decimals
decimals:
  %scaled = fmul double %x, {power}
  %scaled.minus = fneg double %scaled
  %error = call double @llvm.fma.f64(double %x, double {power}, double %scaled.minus)
  %near = call double @llvm.roundeven.f64(double %scaled)
  %rest = fsub double %scaled, %near
  %is.half = fcmp oeq double %rest, 0.5
  %above = fcmp ogt double %error, 0.0
  %up = and i1 %is.half, %above
  %is.minus.half = fcmp oeq double %rest, -0.5
  %below = fcmp olt double %error, 0.0
  %down = and i1 %is.minus.half, %below
  %step.up = select i1 %up, double 1.0, double 0.0
  %step = select i1 %down, double -1.0, double %step.up
  %whole = fadd double %near, %step
  %of.decimals = fdiv double %whole, {power}
  br label %end
tens:
  %quotient = fdiv double %x, {power}
  %near.ten = call double @llvm.roundeven.f64(double %quotient)
  %near.minus = fneg double %near.ten
  %left = call double @llvm.fma.f64(double %near.minus, double {power}, double %x)
  %half = fmul double {power}, 0.5
  %half.minus = fneg double %half
  %more = fcmp ogt double %left, %half
  %less = fcmp olt double %left, %half.minus
  %ten.up = select i1 %more, double 1.0, double 0.0
  %ten.step = select i1 %less, double -1.0, double %ten.up
  %whole.tens = fadd double %near.ten, %ten.step
  %finite = fcmp olt double {power}, 0x7FF0000000000000
  %size.of.ten = select i1 %finite, double {power}, double 0.0
  %of.tens = fmul double %whole.tens, %size.of.ten
  br label %end
end:
  %moved = phi double [ %scaled, %decimals ], [ %quotient, %tens ]
  %number = phi double [ %of.decimals, %decimals ], [ %of.tens, %tens ]
  %signed = call double @llvm.copysign.f64(double %number, double %x)
  %magnitude = call double @llvm.fabs.f64(double %moved)
  %has.fraction = fcmp olt double %magnitude, 9007199254740992.0
  %result = select i1 %has.fraction, double %signed, double %x
  ret double %result
}}"""
