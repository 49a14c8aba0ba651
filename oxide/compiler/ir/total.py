"""Definitions of total integer operations, which the front end's builder calls (``frontend/lowering/total.py``).

A shift by the width or more gives 0, or the sign, like repeated shifts by one bit. ``x // 0`` and ``x % 0`` are 0. The
least number divided by -1 wraps.
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
    least = -(2 ** (int(kind[1:]) - 1))
    signed = operation in ("sdiv", "srem")
    overflow = f"icmp eq {kind} %a, {least}" if signed else "icmp ne i1 false, false"
    wrapped = least if operation == "sdiv" else 0
    return f"""  %zero = icmp eq {kind} %b, 0
  %least = {overflow}
  %minus_one = icmp eq {kind} %b, -1
  %overflow = and i1 %least, %minus_one
  %special = or i1 %zero, %overflow
  %divisor = select i1 %special, {kind} 1, {kind} %b
  %divided = {operation} {kind} %a, %divisor
  %instead = select i1 %overflow, {kind} {wrapped}, {kind} 0
  %result = select i1 %special, {kind} %instead, {kind} %divided"""
