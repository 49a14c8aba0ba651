"""Where a function's source is, and errors that point into it."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Callable
from typing import Any, TypeAlias

from ..dropping import WeakTable
from ..errors import CompileError

Span: TypeAlias = tuple[int, int, int, int]
"""Where an expression begins and ends: line, column, line, column, as Python has it: lines from 1, bytes from 0."""

SourcePlace: TypeAlias = tuple[str, int, Span | None]
"""A file, a line of it, and what there exactly, if that is known."""

trees: WeakTable[Callable[..., Any], ast.FunctionDef] = WeakTable()
"""The trees of functions that were not compiled from their file as it is, with the lines and columns of the file."""


def located(
    function: Callable[..., Any], problem: str, line: int | None = None, column: int | None = None
) -> CompileError:
    """A ``CompileError`` at a line of the function's file, by default its first, with the line and a caret under it."""
    code = function.__code__
    return located_in(code.co_filename, line if line is not None else code.co_firstlineno, problem, column)


def located_in(file: str, line: int, problem: str, column: int | None = None) -> CompileError:
    """A ``CompileError`` at a line of a file. ``column`` counts characters from 0."""
    message = f"{file}:{line}: {problem}"
    text = linecache.getline(file, line).rstrip("\n")
    if text.strip():
        indent = len(text) - len(text.lstrip())
        message += f"\n    {text.strip()}"
        if column is not None and column >= indent:
            message += f"\n    {' ' * (column - indent)}^"
    return CompileError(message)


def parse_definition(function: Callable[..., Any]) -> tuple[ast.FunctionDef, int]:
    """The function's tree, its line numbers those of its file, and the columns that were cut off its lines."""
    known = trees.get(function)
    if known is not None:
        return known, 0
    try:
        source = inspect.getsource(function)
    except OSError:
        raise located(function, f"the source of {function.__name__} cannot be read; define it in a file") from None
    flat = textwrap.dedent(source)
    try:
        (definition,) = ast.parse(flat).body
    except (SyntaxError, ValueError):
        definition = ast.Pass()
    if not isinstance(definition, ast.FunctionDef):
        raise located(function, f"{function.__name__} must be written with def, on lines of its own")
    ast.increment_lineno(definition, function.__code__.co_firstlineno - 1)
    first = source.split("\n", 1)[0]
    return definition, len(first) - len(flat.split("\n", 1)[0])


def node_at(file: str, span: Span | None) -> ast.expr | ast.stmt | None:
    """The expression, or the statement, that begins and ends there, or None where the source cannot be read."""
    tree = None if span is None else _tree_of(file)
    if tree is None:
        return None
    text: ast.JoinedStr | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and any(isinstance(p, ast.expr) and _span(p) == span for p in node.values):
            text = node  # a part of it stands for the whole
        if isinstance(node, ast.expr | ast.stmt) and not isinstance(node, ast.Expr) and _span(node) == span:
            return text or node
    return None


def statement_at(file: str, line: int) -> ast.stmt | None:
    """The innermost statement of which a line is a part, or None where the source cannot be read."""
    found: ast.stmt | None = None
    for node in ast.walk(_tree_of(file) or ast.Module([], [])):  # outer ones come before those in them
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            found = node
    return found


def _tree_of(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def _span(node: ast.expr | ast.stmt) -> tuple[int, int, int | None, int | None]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def column_of(file: str, span: Span | None) -> int | None:
    """The column at which an expression begins, in characters."""
    if span is None:
        return None
    return len(linecache.getline(file, span[0]).encode()[: span[1]].decode(errors="ignore"))


def parameter_line(function: Callable[..., Any], name: str) -> tuple[int | None, int | None]:
    """The line and column of a parameter in the function's file, or (None, None) where the source cannot be read.

    ``return`` is the annotation of the result.
    """
    try:
        source = inspect.getsource(function)
        flat = textwrap.dedent(source)
        (definition,) = ast.parse(flat).body
    except (OSError, SyntaxError, ValueError):
        return None, None
    if isinstance(definition, ast.FunctionDef):
        arguments = definition.args
        ordinary = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        nodes: list[ast.AST | None] = [
            argument for argument in (*ordinary, arguments.vararg, arguments.kwarg) if argument and argument.arg == name
        ]
        nodes += [definition.returns] if name == "return" else []
        for node in nodes:
            if isinstance(node, ast.arg | ast.expr):
                indent = len(source.split("\n", 1)[0]) - len(flat.split("\n", 1)[0])
                return function.__code__.co_firstlineno + node.lineno - 1, node.col_offset + indent
    return None, None
