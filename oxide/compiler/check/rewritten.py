"""Functions as the front end reads them: with their conveniences rewritten and with ordinary parameters, and for the
interpreter without calls of ``breakpoint()`` and with every expression numbered.

A rewritten function has many expressions with the same line and column, so a place does not tell them apart. For the
interpreter, a function is compiled from a tree whose line numbers are the numbers of its nodes. The front end keeps
line numbers, so each instruction has the number of the node that it comes from, and the expression's type can be looked
up in the front end's results.
"""

from __future__ import annotations

import ast
import contextlib
import contextvars
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any, TypeAlias, final

from oxide.compiler.source.source import (
    as_written,
    located,
    outer_names,
    parse_definition,
    trees,
    with_code,
    with_ordinary_parameters,
)
from oxide.errors import CompileError
from oxide.host.weak_table import WeakTable

from .constants import Constants
from .conveniences import Conveniences
from .nested import has_functions, lift

_Rewritten: TypeAlias = WeakTable[Callable[..., Any], tuple[Callable[..., Any] | None]]
"""Rewritten functions, by their originals. None stands for an original that uses no conveniences, because the original
as a value would keep its own key alive."""

_plain, _without_breakpoints = _Rewritten(), _Rewritten()


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with its conveniences rewritten, or as written if it has none or no source."""
    known = _without_breakpoints if _debugged.get() else _plain
    found = known.get(function)
    if found is None:
        found = known.set(function, (_rewritten(as_written(function)),))
    return found[0] or as_written(function)


def _rewritten(written: Callable[..., Any]) -> Callable[..., Any] | None:
    """Returns the function with its conveniences rewritten. None if it has none, or no source."""
    function = with_ordinary_parameters(written)
    if not isinstance(function, FunctionType):
        return None
    try:
        definition, function, changed = _plain_definition(function)
    except CompileError:
        return None  # the later check reports the missing source
    if _debugged.get():
        definition, changed = _without_breakpoint_calls(function, definition), True
    if not changed and function is written:
        return None
    made = compiled(function, definition)
    trees.set(made, definition)
    return made


def _plain_definition(function: FunctionType) -> tuple[ast.FunctionDef, FunctionType, bool]:
    """Returns a new syntax tree of the function with its conveniences rewritten, a function whose outside names are the
    tree's, and whether the tree differs from the source. The lines and columns are those of the file. Raises
    ``CompileError`` if the source cannot be read."""
    definition, indent = parse_definition(function)
    if definition is trees.get(function):
        definition = copy.deepcopy(definition)
    definition.args.args, definition.args.kwonlyargs = [*definition.args.args, *definition.args.kwonlyargs], []
    for node in ast.walk(definition):
        if isinstance(node, ast.stmt | ast.expr | ast.arg | ast.keyword | ast.pattern):
            node.col_offset += indent
            node.end_col_offset = (node.end_col_offset or 0) + indent

    def make(nested: ast.FunctionDef, cells: dict[str, CellType]) -> FunctionType:
        made = compiled(function, nested, cells)
        made.__name__, made.__qualname__ = nested.name, f"{function.__qualname__}.<locals>.{nested.name}"
        trees.set(made, nested)
        return made

    with_functions = has_functions(definition)
    nested = lift(function, definition, make) if with_functions else {}
    outer = outer_names(function) | {name: cell.cell_contents for name, cell in nested.items()}
    constants = Constants(outer, definition)
    definition.body = constants.block(definition.body)
    rewriter = Conveniences(outer, definition)
    definition.body = rewriter.block(definition.body)
    if nested:
        return definition, compiled(function, definition, nested), True
    return definition, function, constants.changed or rewriter.changed or with_functions


def compiled(
    function: FunctionType, definition: ast.FunctionDef, more: dict[str, CellType] | None = None
) -> FunctionType:
    """Compiles a definition. Returns a function with the original's globals, name, defaults and closure. ``more`` has
    the cells of further closure variables."""
    code, more = function.__code__, more or {}
    outside = (*code.co_freevars, *more)
    inner = copy.copy(definition)
    # A decorator makes the code begin at the same line. It never runs: only the code object is taken.
    first = ast.Name("decorator", ast.Load(), lineno=code.co_firstlineno, col_offset=0)
    first.end_lineno, first.end_col_offset = code.co_firstlineno, 0
    inner.decorator_list, inner.returns = [first], None
    inner.args = copy.deepcopy(definition.args)
    inner.args.defaults, inner.args.kw_defaults = [], [None] * len(inner.args.kwonlyargs)
    for argument in ast.walk(inner.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    none = ast.arguments([], [], None, [], [], None, [])
    closure = ast.Assign([ast.Name(name, ast.Store()) for name in outside], ast.Constant(None))
    names: list[ast.stmt] = [closure] if outside else []
    if inner.name not in outside:
        names.append(ast.Global([inner.name]))  # else a function that names itself would capture itself
    outer = ast.FunctionDef("outer", none, [*names, inner], [], None, None)
    if "type_params" in outer._fields:
        setattr(outer, "type_params", [])  # noqa: B010 - since Python 3.12
    ast.copy_location(outer, inner)
    module = compile(ast.fix_missing_locations(ast.Module([outer], [])), code.co_filename, "exec", dont_inherit=True)
    (around,) = (constant for constant in module.co_consts if isinstance(constant, CodeType))
    (found,) = (constant for constant in around.co_consts if isinstance(constant, CodeType))
    return with_code(function, found.replace(co_qualname=code.co_qualname), more)


# Breakpoints

_debugged: contextvars.ContextVar[bool] = contextvars.ContextVar("debugged", default=False)
"""True while functions are read for the interpreter, which supports ``breakpoint()``."""


def _without_breakpoint_calls(function: FunctionType, definition: ast.FunctionDef) -> ast.FunctionDef:
    """Returns a copy of a definition with ``pass`` in place of calls of the builtin ``breakpoint``."""
    return _Breakpoints(outer_names(function)).visit(copy.deepcopy(definition))  # type: ignore[no-any-return]


@contextlib.contextmanager
def debugged() -> Iterator[None]:
    """Makes the front end ignore ``breakpoint()`` within the block, in which a kernel is typed for the interpreter."""
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


# Numbered expressions

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
    function = with_ordinary_parameters(as_written(function))
    if not isinstance(function, FunctionType):
        raise located(function, f"{function.__name__} is not a Python function")
    definition, function, _ = _plain_definition(function)
    definition = _Distinct().visit(definition)
    numbers = 0
    for number, node in enumerate(_in_order(definition), _FIRST):
        node.number = number  # type: ignore[attr-defined]
        numbers = number
    lines = _without_breakpoint_calls(function, definition)
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
