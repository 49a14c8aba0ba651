"""The Python constructs that no kernel supports, and what to write instead."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from oxide.compiler.source.source import Span, parse_definition
from oxide.errors import CompileError

from . import advice

UNSUPPORTED: dict[type[ast.AST], str] = {
    ast.Try: "try is not supported in kernels: nothing raises there; test for the case instead",
    ast.TryStar: "try is not supported in kernels: nothing raises there; test for the case instead",
    ast.Raise: "raise is not supported in kernels: return early instead",
    ast.With: "with is not supported in kernels",
    ast.AsyncWith: "async code is not supported in kernels",
    ast.AsyncFor: "async code is not supported in kernels",
    ast.AsyncFunctionDef: "async code is not supported in kernels",
    ast.Await: "async code is not supported in kernels",
    ast.Yield: "yield is not supported in kernels: write results through a DisjointSlice",
    ast.YieldFrom: "yield is not supported in kernels: write results through a DisjointSlice",
    ast.Lambda: "a lambda in a kernel is called, named by an assignment or passed to a function; write a def",
    ast.FunctionDef: "a function is defined in a kernel where its calls follow in the same block",
    ast.ClassDef: "a class is not supported in kernels",
    ast.ListComp: "a comprehension is not supported in kernels: write a for loop over range(...)",
    ast.SetComp: "a comprehension is not supported in kernels: write a for loop over range(...)",
    ast.DictComp: "a comprehension is not supported in kernels: write a for loop over range(...)",
    ast.GeneratorExp: "a generator is not supported in kernels: write a for loop over range(...)",
    ast.List: "a list is not supported in kernels: nothing is allocated there; use a Slice, or scalars",
    ast.Dict: "a dict is not supported in kernels: nothing is allocated there; use a Slice, or scalars",
    ast.Set: "a set is not supported in kernels: nothing is allocated there; use a Slice, or scalars",
    ast.Import: "import is not supported in kernels: import at module level",
    ast.ImportFrom: "import is not supported in kernels: import at module level",
    ast.Global: "global is not supported in kernels: write results through a DisjointSlice",
    ast.Nonlocal: "nonlocal is not supported in kernels: write results through a DisjointSlice",
    ast.NamedExpr: ":= is supported where it is sure to be evaluated: assign on a line of its own, before",
    ast.Delete: "del is not supported in kernels",
    ast.Starred: "* arguments are not supported in kernels: write each argument",
    ast.Match: "match in a kernel compares with constants, as in case 1 | 2, case name and case _: write if and elif",
    ast.Slice: "a[i:j] is not supported in kernels: loop over the indices",
    ast.MatMult: "@ is not supported in kernels: write the loops",
    ast.In: "in takes a tuple in kernels, as in n in (1, 2): write a loop that compares",
    ast.NotIn: "not in takes a tuple in kernels, as in n not in (1, 2): write a loop that compares",
}


def refused(node: ast.AST) -> str | None:
    """Returns an error that says more than ``UNSUPPORTED`` for some uses of a construct; None for any other node."""
    problem: str = getattr(node, "problem", "")
    if problem:  # from ``nested.py``
        return problem
    match node:
        case ast.Match(cases=cases) if any(
            case.guard is not None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is not None
            for case in cases
        ):
            return "a guard after a case with as is not supported in kernels: write if and elif"
        case ast.Subscript(value=array, slice=ast.Tuple(elts=[row, column])):
            shown, instead = ast.unparse(array), ""
            if isinstance(row, ast.Slice) and isinstance(column, ast.Slice):
                instead = f"{shown}.tile(row, col, rows, cols) is a view of a part"
            elif isinstance(column, ast.Slice):
                instead = f"{shown}.row({ast.unparse(row)}) is a view of the row"
            elif isinstance(row, ast.Slice):
                instead = f"{shown}.col({ast.unparse(column)}) is a view of the column"
            return f"{ast.unparse(node)} is not supported in kernels: {instead}" if instead else None
    return None


PRINT_KEYWORDS = "print in a kernel takes no sep, end or file: a call is one line"


def unsupported(function: Callable[..., Any]) -> tuple[Span, str] | None:
    """Returns the place of the first unsupported construct in a function with numba-cuda's semantics, and the error for
    it. None if there is no such construct.

    Called after numba has refused the function with a message of its own.
    """
    try:
        tree, indent = parse_definition(function)
    except CompileError:
        return None
    found: list[Any] = [node for node in ast.walk(tree) if node is not tree and _refused(node) is not None]
    if not found:
        return None
    node = min(found, key=lambda each: (each.lineno, each.col_offset))
    span = node.lineno, node.col_offset + indent, node.end_lineno, node.end_col_offset + indent
    return span, str(_refused(node)).replace("a DisjointSlice", "an array that is a parameter")


def _refused(node: Any) -> str | None:
    match node:
        case ast.JoinedStr():
            return advice.of_text(node)
        case ast.Call(func=ast.Name(id="print"), keywords=[_, *_]):
            return PRINT_KEYWORDS
    return UNSUPPORTED.get(type(node)) if isinstance(node, _NOT_NUMBAS) else None


_NOT_NUMBAS = (
    ast.Try,
    ast.TryStar,
    ast.With,
    ast.AsyncWith,
    ast.AsyncFor,
    ast.AsyncFunctionDef,
    ast.Await,
    ast.Yield,
    ast.YieldFrom,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Global,
    ast.Nonlocal,
    ast.Delete,
    ast.Match,
)
