"""The operators of warp reductions as LLVM instructions, from which both back ends build their reductions."""

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
