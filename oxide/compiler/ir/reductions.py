"""The operators of warp reductions as LLVM instructions, from which both back ends build their reductions."""

from __future__ import annotations

import re

_REDUCTION = re.compile(r"@(oxide\.warp\.reduce\.(u?(?:add|min|max|and|or|xor))\.([if])(32|64))\b")

_TYPES = {"i32": "i32", "i64": "i64", "f32": "float", "f64": "double"}


def used(text: str) -> list[tuple[str, str, str]]:
    """Returns (symbol, operator, type) of each reduction that the IR calls: ``("oxide.warp.…", "umin", "i32")``."""
    return sorted({(match[1], match[2], match[3] + match[4]) for match in _REDUCTION.finditer(text)})


def llvm_type(kind: str) -> str:
    return _TYPES[kind]


def bits_type(kind: str) -> str:
    """Returns the integer type that carries a value of ``kind`` between lanes."""
    return f"i{kind[1:]}"


def combine(operator: str, kind: str, result: str, left: str, right: str) -> str:
    """Returns the line that computes ``result = operator(left, right)``."""
    name = _TYPES[kind]
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
    name = _TYPES[kind]
    if operator.removeprefix("u") not in ("min", "max"):
        return ""
    if kind[0] == "f":
        return f"declare {name} @llvm.{operator}num.{kind}({name}, {name})"
    signed = operator if operator.startswith("u") else f"s{operator}"
    return f"declare {name} @llvm.{signed}.{kind}({name}, {name})"
