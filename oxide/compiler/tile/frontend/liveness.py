"""Liveness: whether a variable's value is still read."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

__all__ = ["is_read"]


def is_read(blocks: Iterable[Sequence[ast.stmt]], name: str) -> bool:
    """Returns whether a variable may be read before it is set again. ``blocks`` are the statements that follow, block
    by block; none of them jumps."""
    for block in blocks:
        found = _first_use(block, name)
        if found is not None:
            return found
    return False


def _first_use(statements: Sequence[ast.stmt], name: str) -> bool | None:
    """Returns True if statements may read a variable before they set it, False if they set it on every path before, and
    None if neither is so."""
    for statement in statements:
        match statement:
            case ast.If(test=test, body=body, orelse=orelse):
                uses = (_first_use(body, name), _first_use(orelse, name))
                if _names(test, name, ast.Load) or True in uses:
                    return True
                if uses == (False, False):
                    return False
            case ast.For(target=target, iter=iterated, body=body):
                if _names(iterated, name, ast.Load):
                    return True
                if not _names(target, name, ast.Store) and _first_use(body, name):
                    return True
            case ast.While(test=test, body=body):
                if _names(test, name, ast.Load) or _first_use(body, name):
                    return True
            case ast.AugAssign(target=ast.Name(id=target)) if target == name:
                return True
            case _:
                if _names(statement, name, ast.Load):
                    return True
                if _names(statement, name, ast.Store):
                    return False
    return None


def _names(node: ast.AST, name: str, context: type[ast.expr_context]) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, context)
               for each in ast.walk(node))  # fmt: skip
