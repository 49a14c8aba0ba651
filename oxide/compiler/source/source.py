"""The source of kernels: the text of their files, their syntax trees, and errors and reports that point into both.

The text is kept as it was when the kernels and device functions in a file were decorated. A kernel is compiled at its
first launch. By then its file may have been edited, replaced or removed, and the lines on disk are no longer those that
Python compiled. So a decorator calls ``keep_text``, and everything that reads source asks this module.

Python keeps the text of a file on disk, of a notebook's cell, and of whatever a program enters into
``linecache.cache``. From 3.13 on it also keeps what was typed at the REPL, and the program of ``python -c``; earlier
versions have the latter in ``sys.orig_argv``. Python keeps no text of ``exec`` and of standard input.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import functools
import inspect
import linecache
import operator
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from tokenize import TokenError
from types import CellType, CodeType, FunctionType
from typing import Any, TypeAlias

from oxide.errors import CompileError, place_name
from oxide.host.weak_table import WeakTable

_kept: WeakTable[Callable[..., Any], list[str]] = WeakTable()
"""The lines of the files of decorated functions. The functions of one file share one list."""

_latest: dict[str, list[str]] = {}
"""The lines of each file that has decorated functions, as they were when the last of them was decorated."""

_compiling: ContextVar[Callable[..., Any] | None] = ContextVar("_compiling", default=None)
"""The kernel that is being compiled. Errors name a file, and a file that was imported twice has two texts."""

_FOR_MANY = ("<string>", "<stdin>")
"""The file names that Python gives to texts which have nothing to do with one another."""

FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
"""The flags of a code object that ``from __future__ import …`` sets."""


def keep_text(function: Callable[..., Any], of: Callable[..., Any] | None = None) -> None:
    """Keeps the text of the function's file as it is now, unless the function has one. ``of`` is the function that this
    function was made of: both have the same text."""
    if _kept.get(function) is not None:
        return
    if of is not None:
        lines = lines_of(of)
    else:
        file = function.__code__.co_filename
        before, lines = _latest.get(file, []), _read(function)
        if before != lines and _contains(before, function) and not _contains(lines, function):
            lines = before  # a function of the imported module makes a kernel, and its file has changed since
        if lines:
            _latest[file] = lines
    if lines:
        _kept.set(function, lines)


def lines_of(function: Callable[..., Any]) -> list[str]:
    """Returns the lines of the function's file, each with its line feed. Returns an empty list if there is no text."""
    file = function.__code__.co_filename
    return _kept.get(function) or (file not in _FOR_MANY and _latest.get(file)) or _read(function)


def lines_in(file: str) -> list[str]:
    """Returns the lines of a file: those of the kernel that is being compiled if it is its, else the latest known."""
    function = _compiling.get()
    if function is not None and function.__code__.co_filename == file:
        return lines_of(function)
    return _latest.get(file) or linecache.getlines(file)


def line_in(file: str, line: int) -> str:
    """Returns one line of a file, or "" if there is none."""
    lines = lines_in(file)
    return lines[line - 1].rstrip("\n") if 1 <= line <= len(lines) else ""


def text_of(function: Callable[..., Any]) -> str:
    """Returns the lines of a function, its decorators included; "" if there is no text."""
    lines = lines_of(function)[function.__code__.co_firstlineno - 1 :]
    try:
        return "".join(inspect.getblock(lines)) if lines else ""
    except (SyntaxError, TokenError):  # the text is not that of the function
        return "".join(lines)


@contextmanager
def compiling(function: Callable[..., Any]) -> Iterator[None]:
    """Makes ``lines_in`` return the kernel's own text of its file, within the ``with`` block."""
    token = _compiling.set(function)
    try:
        yield
    finally:
        _compiling.reset(token)


@functools.lru_cache(maxsize=8)
def _codes_in(source: str, file: str, flags: int = 0) -> tuple[CodeType, ...]:
    """Returns the code objects of all functions in a text. Returns an empty tuple if the text cannot be compiled.
    ``flags`` are those of ``FUTURE`` that are in force although the text does not have them."""
    try:
        module = compile(source, file, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return ()

    def within(code: CodeType) -> Iterator[CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield constant
                yield from within(constant)

    return tuple(within(module))


def _read(function: Callable[..., Any]) -> list[str]:
    """Returns the lines of the function's file as they are now."""
    code: CodeType = function.__code__
    file = code.co_filename
    linecache.checkcache(file)  # notebooks and doctest replace the functions of linecache
    lines = linecache.getlines(file, getattr(function, "__globals__", None))
    if not lines and hasattr(linecache, "_getlines_from_code"):  # the REPL, since Python 3.13
        lines = linecache._getlines_from_code(code)
    if file not in _FOR_MANY:
        return lines
    program = [[f"{line}\n" for line in text.split("\n")] for text in sys.orig_argv[1:]]  # one is that of -c
    return next((each for each in (lines, *program) if _contains(each, function)), [])


def _contains(lines: list[str], function: Callable[..., Any]) -> bool:
    """Returns whether the function was compiled from these lines."""
    code: CodeType = function.__code__
    return code in _codes_in("".join(lines), code.co_filename, code.co_flags & FUTURE)


def why_missing(function: Callable[..., Any]) -> str:
    """Returns the reason why a function has no text, and what helps."""
    file = function.__code__.co_filename
    if file in ("<stdin>", "<console>"):
        return (
            "Python keeps none of standard input, nor of a REPL before Python 3.13: write it to a file, or define it "
            "in IPython or a notebook's cell"
        )
    if file.startswith("<") and file.endswith(">"):
        return (
            "Python keeps none of exec and compile: write it to a file, or compile the text under a name of its own "
            "with which linecache finds it, as in exec(compile(text, name, 'exec')) after "
            "linecache.cache[name] = len(text), None, text.splitlines(True), name"
        )
    return f"there is no file {file}: keep the .py file where it was imported from"


# Syntax trees and places

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
    """Returns the function's syntax tree, with the file's line numbers, and the columns by which it was dedented."""
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


def outer_names(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns what the names from outside a function's body stand for: builtins, globals and closure variables. A
    closure variable that is not assigned yet is ``EMPTY``."""
    return {**vars(builtins), **getattr(function, "__globals__", {}), **dict(closure_values(function))}


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
    written = [each for each in _codes_in(source, code.co_filename) if (each.co_qualname, each.co_firstlineno) == place]
    if len(written) != 1 or sorted(written[0].co_freevars) != sorted(code.co_freevars):
        return function
    return with_code(function, written[0])


def with_ordinary_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function whose keyword-only parameters may also be given by position, for numba, which knows no others.
    It has no defaults: calls have been given them (``check/conveniences.py``). Returns a function without keyword-only
    parameters unchanged."""
    code = getattr(function, "__code__", None)
    if not isinstance(function, FunctionType) or not isinstance(code, CodeType) or not code.co_kwonlyargcount:
        return function
    count = code.co_argcount + code.co_kwonlyargcount
    made = with_code(function, code.replace(co_argcount=count, co_kwonlyargcount=0))
    made.__defaults__ = made.__kwdefaults__ = None
    known = trees.get(function)
    if known is not None:
        trees.set(made, known)
    return made


def with_code(function: FunctionType, code: CodeType, more: Mapping[str, CellType] | None = None) -> FunctionType:
    """Returns a function like the given one, with other code, whose closure variables are among the function's own and
    ``more``."""
    cells = {**dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)), **(more or {})}
    closure = tuple(cells[name] for name in code.co_freevars)
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    functools.update_wrapper(made, function)
    del made.__wrapped__  # type: ignore[attr-defined] # it would keep the function in memory
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
    text: ast.JoinedStr | None = None
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.JoinedStr) and any(isinstance(p, ast.expr) and _span(p) == span for p in node.values):
            text = node  # a part of an f-string may have the span of the whole f-string
        if isinstance(node, ast.expr | ast.stmt) and not isinstance(node, ast.Expr) and _span(node) == span:
            return text or node
    return None


def statement_at(file: str, line: int) -> ast.stmt | None:
    """Returns the innermost statement that covers a line, or None if there is none or the source cannot be read."""
    found: ast.stmt | None = None
    for node in ast.walk(tree_of(file)):  # outer statements come before inner ones
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            found = node
    return found


def tree_of(file: str) -> ast.Module:
    """Returns the syntax tree of a file, which no caller changes. It is empty if the source cannot be read."""
    return parsed("".join(lines_in(file)))


@functools.lru_cache(maxsize=32)
def parsed(source: str) -> ast.Module:
    """Returns the syntax tree of a text, which no caller changes. It is empty if the text is no Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def first_line(function: ast.FunctionDef | ast.Lambda) -> int:
    """Returns the first line of a function, its decorators included."""
    decorators = function.decorator_list if isinstance(function, ast.FunctionDef) else []
    return min([function.lineno, *(each.lineno for each in decorators)])


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


# Source with remarks, for notebooks

Remark = tuple[str, int, str, str]
"""A file, a line in it, a mark that ``pictures.drawing.listing`` knows, and the text."""


def listing(remarks: Iterable[Remark], heading: str) -> str:
    """Returns the source of the functions that the remarks refer to, with the remarks, or these alone."""
    from html import escape

    from oxide.pictures import drawing

    by_file: dict[str, dict[int, list[tuple[str, str]]]] = {}
    for file, line, mark, text in remarks:
        found = by_file.setdefault(file, {}).setdefault(line, [])
        if (mark, text) not in found:
            found.append((mark, text))
    parts = [f"<div><b>{escape(heading)}</b></div>"]
    for file, marks in by_file.items():
        lines = [line.rstrip("\n") for line in lines_in(file)]
        if not lines:
            parts.append(
                drawing.preformatted("\n".join(f"line {n}: {text}" for n, each in marks.items() for _, text in each))
            )
            continue
        for first, last in _functions(file, set(marks), len(lines)):
            parts.append(drawing.listing(lines[first - 1 : last], first, marks, place_name(file, first)))
    return "".join(parts)


def _functions(file: str, lines: set[int], count: int) -> list[tuple[int, int]]:
    """Returns the first and the last line, decorators included, of each outermost function that contains one of the
    lines. A line outside of all functions is a range of its own."""
    functions = (node for node in ast.walk(tree_of(file)) if isinstance(node, ast.FunctionDef))
    spans = [(first_line(node), node.end_lineno or node.lineno) for node in functions]
    found: dict[tuple[int, int], None] = {}
    for line in sorted(lines):
        around = [span for span in spans if span[0] <= line <= span[1]]
        if around or line <= count:
            found[min(around, default=(line, line))] = None
    return list(found)
