"""Sizes of LLVM's types in memory."""

from __future__ import annotations

from oxide.compiler.ir.spelling import split_list

_SIZES = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}


def size_of(kind: str) -> int:
    """Returns the size in bytes of a type in memory. Structures have natural alignment."""
    if kind in _SIZES:
        return _SIZES[kind]
    if kind.startswith("i"):
        return -(-int(kind[1:]) // 8)
    if not _is_structure(kind):
        count, _, element = kind[1:-1].partition(" x ")
        return int(count) * size_of(element)
    packed = kind.startswith("<")
    end = 0
    for part in _members(kind):
        alignment = 1 if packed else _alignment(part)
        end = -(-end // alignment) * alignment + size_of(part)
    return end if packed else -(-end // _alignment(kind)) * _alignment(kind)


def _alignment(kind: str) -> int:
    if kind.startswith("["):
        return _alignment(kind[1:-1].partition(" x ")[2])
    if kind.startswith("{"):
        return max((_alignment(part) for part in _members(kind)), default=1)
    return 1 if kind.startswith("<{") else min(16 if kind.startswith("<") else 8, size_of(kind))


def _is_structure(kind: str) -> bool:
    return kind.startswith(("{", "<{"))


def _members(kind: str) -> list[str]:
    """Returns the types of a structure's members; none for ``{}``, which stands for a function."""
    assert _is_structure(kind), kind
    return split_list(kind.strip("<>").removeprefix("{").removesuffix("}"))
