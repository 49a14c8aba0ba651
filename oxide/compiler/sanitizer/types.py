"""LLVM types in IR text: a pattern that matches one, and its size in memory."""

from __future__ import annotations

import re

from oxide.compiler.ir.brackets import split_list

_NESTED = r"[^\]\[{}<>]"
for _ in range(5):  # as deep as arrays of records of arrays go
    _NESTED = rf"(?:[^\]\[{{}}<>]|[\[{{<]{_NESTED}*[\]}}>])"
TYPE = rf"(?:[\[{{<]{_NESTED}*[\]}}>]|\w+)"
"""A pattern for one type, with others inside it."""

_SIZES = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}


def size_of(kind: str) -> int:
    """Returns the bytes of a type in memory; structures have natural alignment."""
    kind = kind.strip()
    if kind in _SIZES:
        return _SIZES[kind]
    if match := re.fullmatch(r"i(\d+)", kind):
        return -(-int(match[1]) // 8)
    if match := re.fullmatch(r"[<\[](\d+) x (.*)[>\]]", kind):
        return int(match[1]) * size_of(match[2])
    packed = kind.startswith("<{")
    end = 0
    for part in _members(kind):
        alignment = 1 if packed else _alignment(part)
        end = -(-end // alignment) * alignment + size_of(part)
    return end if packed else -(-end // _alignment(kind)) * _alignment(kind)


def _alignment(kind: str) -> int:
    if match := re.fullmatch(r"\[\d+ x (.*)\]", kind):
        return _alignment(match[1])
    if kind.startswith("{"):
        return max((_alignment(part) for part in _members(kind)), default=1)
    return 1 if kind.startswith("<{") else min(16 if kind.startswith("<") else 8, size_of(kind))


def _members(kind: str) -> list[str]:
    """Returns the types of a structure's members; none for ``{}``, which stands for a function."""
    assert kind.startswith(("{", "<{")), kind
    return split_list(kind.strip("<>").removeprefix("{").removesuffix("}"))
