"""Definitions of total integer operations, whose results are defined for all operands.
``frontend/lowering/total_builder.py`` and ``tile/arithmetic.py`` call them.

A shift by the width or more gives the result of repeated shifts by one bit: 0, or -1 for an arithmetic shift of a
negative number. ``x // 0`` and ``x % 0`` are 0. The quotient of the least number and -1 wraps.
"""

from __future__ import annotations

from collections.abc import Iterable

_SHIFTS = ("shl", "lshr", "ashr")
_DIVISIONS = ("sdiv", "udiv", "srem", "urem")


def function_name(operation: str, kind: str) -> str:
    """Returns the name of a total operation on a type, such as ``oxide.sdiv.i64``."""
    return f"oxide.{operation}.{kind}"


def operation_of(symbol: str) -> tuple[str, str] | None:
    """Returns the operation and the type of a function by its name, or None for any other function."""
    parts = symbol.split(".")
    if len(parts) == 3 and parts[0] == "oxide" and parts[1] in (*_SHIFTS, *_DIVISIONS):
        return parts[1], parts[2]
    return None


def definitions(symbols: Iterable[str]) -> str:
    """Returns definitions of the total operations among some symbols."""
    return "\n".join(_definition(symbol, *found) for symbol in symbols if (found := operation_of(symbol)))


def _definition(symbol: str, operation: str, kind: str) -> str:
    body = _shift(operation, kind) if operation in _SHIFTS else _division(operation, kind)
    return (
        f"define linkonce_odr {kind} @{symbol}({kind} %a, {kind} %b) alwaysinline {{\n{body}\n  ret {kind} %result\n}}"
    )


def _shift(operation: str, kind: str) -> str:
    bits = int(kind[1:])
    fits = f"  %fits = icmp ult {kind} %b, {bits}\n"
    if operation == "ashr":
        # A signed number shifted by all bits but one is 0 or -1, and further shifts do not change it.
        return f"""{fits}  %amount = select i1 %fits, {kind} %b, {kind} {bits - 1}
  %result = ashr {kind} %a, %amount"""
    return f"""{fits}  %shifted = {operation} {kind} %a, %b
  %result = select i1 %fits, {kind} %shifted, {kind} 0"""


def _division(operation: str, kind: str) -> str:
    """Defines a quotient or a remainder. The definition replaces the divisor 0 by 1, and in a signed operation also the
    divisor -1. This choice does not depend on the dividend. So a loop with a constant divisor makes the choice once,
    and a GPU computes the divisor's reciprocal before the dividend is known."""
    if operation in ("udiv", "urem"):
        special = f"  %special = icmp eq {kind} %b, 0"
    else:
        special = f"  %above = add {kind} %b, 1\n  %special = icmp ult {kind} %above, 2"
    divided = f"""{special}
  %divisor = select i1 %special, {kind} 1, {kind} %b"""
    if operation in ("srem", "urem"):  # the remainder by 1 is 0, as it is by 0 and -1
        return f"{divided}\n  %result = {operation} {kind} %a, %divisor"
    if operation == "udiv":
        return f"""{divided}
  %quotient = udiv {kind} %a, %divisor
  %result = select i1 %special, {kind} 0, {kind} %quotient"""
    return f"""{divided}
  %quotient = sdiv {kind} %a, %divisor
  %negative = sub {kind} 0, %a
  %instead = and {kind} %negative, %b
  %result = select i1 %special, {kind} %instead, {kind} %quotient"""
