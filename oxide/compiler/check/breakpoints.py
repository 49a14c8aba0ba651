"""Removes ``breakpoint()`` calls from interpreted kernels before the front end reads them."""

from __future__ import annotations

import ast
import builtins
import contextlib
import contextvars
import copy
from collections.abc import Iterator
from types import FunctionType
from typing import Any, final

from oxide.compiler.source.source import closure_values

_debugged: contextvars.ContextVar[bool] = contextvars.ContextVar("debugged", default=False)


def without_breakpoints(function: FunctionType, definition: ast.FunctionDef) -> ast.FunctionDef:
    """Returns a copy of a definition in which ``pass`` replaces each statement that calls the builtin
    ``breakpoint``."""
    outer = {**vars(builtins), **function.__globals__, **dict(closure_values(function))}
    return _Breakpoints(outer).visit(copy.deepcopy(definition))  # type: ignore[no-any-return]


def is_debugged() -> bool:
    """Returns whether this thread is reading functions for the interpreter, which supports ``breakpoint()``."""
    return _debugged.get()


@contextlib.contextmanager
def debugged() -> Iterator[None]:
    """Makes the front end ignore ``breakpoint()`` calls within the ``with`` block, in which a kernel is typed for the
    interpreter."""
    token = _debugged.set(True)
    try:
        yield
    finally:
        _debugged.reset(token)


@final
class _Breakpoints(ast.NodeTransformer):
    def __init__(self, outer: dict[str, Any]) -> None:
        self._outer = outer

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        match node.value:
            case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) if self._outer.get(name) is breakpoint:
                made = ast.copy_location(ast.Pass(), node)
                if hasattr(node, "number"):
                    made.number = node.number  # type: ignore[attr-defined]
                return made
        return node
