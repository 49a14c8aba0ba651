"""Numbers every expression of a function, so that the expression's type can be looked up in the front end's results.

A rewritten function has many expressions with the same line and column, so a place does not tell them apart. For the
interpreter, a function is compiled from a tree whose line numbers are the numbers of its nodes. The front end keeps
line numbers, so each instruction has the number of the node that it comes from.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any, final

from oxide.compiler.source.source import as_written, located, trees

from .breakpoints import without_breakpoints
from .conveniences import compiled, plain_definition

_FIRST = 2  # line 1 is the decorator's


@final
@dataclass(frozen=True, slots=True, eq=False)
class Numbered:
    """A function with its conveniences rewritten and its nodes numbered. ``definition`` has the lines and columns of
    the file, and each expression and statement in it has its number as the attribute ``number``. ``made`` is the
    function compiled with these numbers as line numbers, and without calls of ``breakpoint``."""

    original: FunctionType
    definition: ast.FunctionDef
    made: FunctionType


def numbered(function: Callable[..., Any]) -> Numbered:
    """Numbers the expressions and statements of a function. Raises ``CompileError`` if its source cannot be read."""
    function = as_written(function)
    if not isinstance(function, FunctionType):
        raise located(function, f"{function.__name__} is not a Python function")
    definition = _Distinct().visit(plain_definition(function)[0])
    numbers = 0
    for number, node in enumerate(_in_order(definition), _FIRST):
        node.number = number  # type: ignore[attr-defined]
        numbers = number
    lines = copy.deepcopy(without_breakpoints(function, definition))
    for node in _in_order(lines):
        number = getattr(node, "number", None) or numbers
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node.func.number = number  # type: ignore[attr-defined] # Python gives a method's call the attribute's line
        node.lineno = node.end_lineno = number  # type: ignore[attr-defined]
        node.col_offset, node.end_col_offset = 0, 1  # type: ignore[attr-defined]
    made = compiled(function, lines)
    trees.set(made, lines)
    return Numbered(function, definition, made)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Yields all nodes with a place, in the order of the source."""
    if "lineno" in node._attributes:
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


@final
class _Distinct(ast.NodeTransformer):
    """Replaces a node that stands at several places of a tree by copies, so that each has its own number."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._kept: list[ast.AST] = []

    def visit(self, node: ast.AST) -> Any:
        if "lineno" in node._attributes and id(node) in self._seen:
            node = copy.deepcopy(node)
        self._seen.add(id(node))
        self._kept.append(node)  # keeps the node alive, so that no other node gets its id
        return self.generic_visit(node)
