"""Finds a function's source, and makes errors that point into it."""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, TypeAlias

from oxide.errors import CompileError, place_name
from oxide.host.weak_table import WeakTable

from .text import codes_in, compiling, keep_text, line_in, lines_in, lines_of, text_of, why_missing

Span: TypeAlias = tuple[int, int, int, int]
"""The start and end of an expression: line, column, line, column. As in Python, lines count from 1 and columns are
bytes from 0."""

SourcePlace: TypeAlias = tuple[str, int, Span | None]
"""A file, a line in it, and the exact span if it is known."""

trees: WeakTable[Callable[..., Any], ast.FunctionDef] = WeakTable()
"""The syntax trees of rewritten functions. The nodes of a tree have the lines and columns of the original file. In a
tree for the interpreter, the lines are the numbers of the nodes instead."""


def located(
    function: Callable[..., Any], problem: str, line: int | None = None, column: int | None = None
) -> CompileError:
    """Returns a ``CompileError`` at a line of the function's file, by default the function's first line. The error
    shows the line, with a caret under the column if ``column`` is given."""
    code = function.__code__
    with compiling(function):
        return located_in(code.co_filename, line if line is not None else code.co_firstlineno, problem, column)


def located_in(file: str, line: int, problem: str, column: int | None = None) -> CompileError:
    """Returns a ``CompileError`` at a line of a file. ``column`` counts characters from 0."""
    message = f"{place_name(file, line)}: {problem}"
    text = line_in(file, line)
    if text.strip():
        indent = len(text) - len(text.lstrip())
        message += f"\n    {text.strip()}"
        if column is not None and column >= indent:
            message += f"\n    {' ' * (column - indent)}^"
    return CompileError(message)


def parse_definition(function: Callable[..., Any]) -> tuple[ast.FunctionDef, int]:
    """Returns the function's syntax tree and the number of columns by which its lines were dedented. The tree has the
    line numbers of the file."""
    known = trees.get(function)
    if known is not None:
        return known, 0
    code, name = function.__code__, function.__name__
    source = text_of(function)
    if not source:
        raise located(function, f"the source of {name} cannot be read: {why_missing(function)}")
    flat = textwrap.dedent(source)
    above = "\n" * (code.co_firstlineno - 1)
    try:
        (definition,) = ast.parse(above + flat, code.co_filename).body
    except (SyntaxError, ValueError):
        definition = ast.Pass()
    if code.co_name == "<lambda>" or isinstance(definition, ast.AsyncFunctionDef):
        raise located(function, f"{name} must be written with def, on lines of its own")
    if not isinstance(definition, ast.FunctionDef) or definition.name != code.co_name:
        raise CompileError(
            f"{place_name(code.co_filename, code.co_firstlineno)}: {name} is not at this line any more: the file has "
            "changed since it was imported; import it again, as with importlib.reload, or start the program again"
        )
    first = source.split("\n", 1)[0]
    return definition, len(first) - len(flat.split("\n", 1)[0])


EMPTY = object()
"""Stands for the value of a variable that is not assigned yet."""


def closure_values(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yields a function's closure variables and their values: ``EMPTY`` for a variable that is not assigned yet."""
    for name, cell in zip(function.__code__.co_freevars, getattr(function, "__closure__", None) or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            yield name, EMPTY


def as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the original form of a function whose ``assert`` statements pytest has rewritten. The rewritten
    statements call pytest's functions, which a kernel cannot call.

    Returns any other function unchanged, and also a function whose file has changed since the function was imported.
    """
    code = getattr(function, "__code__", None)
    if not isinstance(function, FunctionType) or not isinstance(code, CodeType) or not _is_rewritten(code):
        return function
    source = "".join(lines_of(function))
    place = (code.co_qualname, code.co_firstlineno)
    written = [each for each in codes_in(source, code.co_filename) if (each.co_qualname, each.co_firstlineno) == place]
    if len(written) != 1 or sorted(written[0].co_freevars) != sorted(code.co_freevars):
        return function
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in written[0].co_freevars)
    made = FunctionType(written[0], function.__globals__, function.__name__, function.__defaults__, closure)
    functools.update_wrapper(made, function)
    made.__kwdefaults__ = function.__kwdefaults__
    keep_text(made, function)
    return made


def _is_rewritten(code: CodeType) -> bool:
    # The names that pytest inserts are not Python identifiers: "@py_assert1", "@pytest_ar".
    if any(name.startswith("@py") for names in (code.co_names, code.co_varnames, code.co_cellvars) for name in names):
        return True
    return any(isinstance(constant, CodeType) and _is_rewritten(constant) for constant in code.co_consts)


def node_at(file: str, span: Span | None) -> ast.expr | ast.stmt | None:
    """Returns the expression or statement with this span, or None if there is none or the source cannot be read."""
    tree = None if span is None else tree_of(file)
    if tree is None:
        return None
    text: ast.JoinedStr | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and any(isinstance(p, ast.expr) and _span(p) == span for p in node.values):
            text = node  # a part of an f-string may have the span of the whole f-string
        if isinstance(node, ast.expr | ast.stmt) and not isinstance(node, ast.Expr) and _span(node) == span:
            return text or node
    return None


def statement_at(file: str, line: int) -> ast.stmt | None:
    """Returns the innermost statement that covers a line, or None if there is none or the source cannot be read."""
    found: ast.stmt | None = None
    for node in ast.walk(tree_of(file) or ast.Module([], [])):  # outer statements come before inner ones
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            found = node
    return found


def tree_of(file: str) -> ast.Module | None:
    """Returns the syntax tree of a file, or None if its source cannot be read."""
    try:
        return ast.parse("".join(lines_in(file)), file)
    except (SyntaxError, ValueError):
        return None


def _span(node: ast.expr | ast.stmt) -> tuple[int, int, int | None, int | None]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def column_of(file: str, span: Span | None) -> int | None:
    """Returns the column at which an expression begins, in characters. Returns None if the span is not known."""
    if span is None:
        return None
    return len(line_in(file, span[0]).encode()[: span[1]].decode(errors="ignore"))


def at_parameter(function: Callable[..., Any], name: str, problem: str) -> CompileError:
    """Returns a ``CompileError`` at a parameter of a function, or at the annotation of its result (``return``)."""
    return located(function, problem, *parameter_line(function, name))


def parameter_line(function: Callable[..., Any], name: str) -> tuple[int | None, int | None]:
    """Returns the line and column of a parameter in the function's file, or (None, None) if the source cannot be read.

    The name ``return`` stands for the annotation of the result.
    """
    try:
        definition, indent = parse_definition(function)
    except CompileError:
        return None, None
    arguments = definition.args
    ordinary = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    nodes: list[ast.arg | ast.expr] = [
        argument for argument in (*ordinary, arguments.vararg, arguments.kwarg) if argument and argument.arg == name
    ]
    if name == "return" and definition.returns is not None:
        nodes.append(definition.returns)
    return next(((node.lineno, node.col_offset + indent) for node in nodes), (None, None))
