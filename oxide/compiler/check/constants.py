"""Rewrites what is known when a kernel is compiled as literals, before a kernel is checked and typed. So all of it
takes the type that it meets, as literals do.

- a member of an ``IntEnum``, and a number that a class has as an attribute, become the number;
- ``ord("a")`` becomes the number;
- a loop over a tuple of numbers becomes a copy of its body for each, in which the loop's variable is the literal;
- ``x in (1, 2, 3)`` becomes comparisons.

A tuple is written in the kernel, or has a name outside of it. Anything else stays unchanged.
"""

from __future__ import annotations

import ast
import copy
import enum
from types import ModuleType
from typing import Any, Final, final

from oxide.compiler.source.source import EMPTY

from .assignment import stored_names
from .conveniences import BlockTransformer, placed

_MOST_COPIES: Final = 64
_UNKNOWN: Final = object()


@final
class Constants(BlockTransformer):
    """Rewrites the body of one function."""

    def __init__(self, outer: dict[str, Any], definition: ast.FunctionDef) -> None:
        self.changed = False
        self._outer = outer
        arguments = definition.args
        parameters = {each.arg for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
        self._locals = parameters | stored_names([definition])
        self._names = 0

    # Names

    def _resolved(self, node: ast.AST) -> Any:
        """Returns the outside object that an expression names, through modules, classes and members of enumerations.
        Returns ``_UNKNOWN`` for any other expression."""
        match node:
            case ast.Name(id=name) if name not in self._locals:
                found = self._outer.get(name, _UNKNOWN)
                return _UNKNOWN if found is EMPTY else found
            case ast.Attribute(value=value, attr=attribute):
                holder = self._resolved(value)
                if isinstance(holder, ModuleType | type | enum.Enum):
                    return getattr(holder, attribute, _UNKNOWN)
        return _UNKNOWN

    def visit_Name(self, node: ast.Name) -> ast.AST:
        found = self._resolved(node) if isinstance(node.ctx, ast.Load) else None
        return self._number(found, node) if isinstance(found, enum.Enum) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        found = self._resolved(node) if isinstance(node.ctx, ast.Load) else _UNKNOWN
        is_modules = isinstance(self._resolved(node.value), ModuleType) and not isinstance(found, enum.Enum)
        return self.generic_visit(node) if found is _UNKNOWN or is_modules else self._number(found, node)

    def _number(self, value: Any, node: ast.expr) -> ast.expr:
        """Returns a Python number as a literal in place of a node. Returns the node for any other value."""
        made = _literal(value)
        if made is None or isinstance(value, tuple):
            return node
        self.changed = True
        return placed(made, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Name() as name, args=[ast.Constant(value=str(text))], keywords=[]) if len(text) == 1:
                if self._resolved(name) is ord:
                    self.changed = True
                    return placed(ast.Constant(ord(text)), node)
        return self.generic_visit(node)

    # Tuples

    def _elements(self, node: ast.expr) -> list[ast.expr] | None:
        """Returns the elements of a tuple or a list that is written in the kernel, or of a tuple outside of it."""
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return None if any(isinstance(each, ast.Starred) for each in node.elts) else node.elts
        made = _literal(self._resolved(node))
        return [placed(each, node) for each in made.elts] if isinstance(made, ast.Tuple) else None

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        match self.generic_visit(node):
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as operator], comparators=[other]):
                elements = self._elements(other)
            case _:
                return node
        if elements is None:
            return node
        self.changed = True
        is_in = isinstance(operator, ast.In)
        if not elements:
            return placed(ast.Constant(not is_in), node)
        first: ast.expr = left
        if not isinstance(left, ast.Name | ast.Constant):
            name = self._name()
            first, left = ast.NamedExpr(ast.Name(name, ast.Store()), left), ast.Name(name, ast.Load())
        tests: list[ast.expr] = [
            ast.Compare(copy.deepcopy(left) if number else first, [ast.Eq() if is_in else ast.NotEq()], [each])
            for number, each in enumerate(elements)
        ]
        return placed(ast.BoolOp(ast.Or() if is_in else ast.And(), tests) if len(tests) > 1 else tests[0], node)

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        loop = self.generic_visit(node)
        assert isinstance(loop, ast.For)
        elements = self._numbers(loop.iter)
        bound = [] if elements is None else [_bound(loop.target, each) for each in elements]
        if elements is None or len(elements) > _MOST_COPIES or None in bound:
            return loop
        copies = [
            [*(placed(ast.Assign([target], value), target) for target, value in pairs or ()), *copy.deepcopy(loop.body)]
            for pairs in bound
        ]
        jumps = _Jumps(loop.body).found
        if jumps and self._outer.get("range") is not range:
            return loop
        self.changed = True
        if not jumps:
            return [*(each for body in copies for each in body), *loop.orelse] or [placed(ast.Pass(), loop)]
        # Each copy is the body of a loop that runs once, and the next copy is the loop's ``else``. So a ``continue``
        # leads to the next copy, and a ``break`` to the end.
        following = loop.orelse
        for body in reversed(copies):
            once = ast.Call(ast.Name("range", ast.Load()), [ast.Constant(1)], [])
            following = [placed(ast.For(ast.Name(self._name(), ast.Store()), once, body, following), loop)]
        return following

    def _numbers(self, node: ast.expr) -> list[ast.expr] | None:
        """Returns the elements over which a loop goes if all are numbers, or tuples of numbers. Returns None for any
        other loop."""
        match node:
            case ast.Call(func=ast.Name() as name, args=[inner], keywords=[]) if self._resolved(name) is enumerate:
                elements = self._numbers(inner)
                if elements is None:
                    return None
                return [
                    placed(ast.Tuple([ast.Constant(number), each], ast.Load()), node)
                    for number, each in enumerate(elements)
                ]
        elements = self._elements(node)
        return elements if elements is not None and all(map(_is_literal, elements)) else None

    def _name(self) -> str:
        """Returns the name of a new local variable."""
        self._names += 1
        name = f"_known_{self._names}"
        while name in self._locals or name in self._outer:
            name += "_"
        self._locals.add(name)
        return name


@final
class _Jumps(ast.NodeVisitor):
    """Finds the ``break`` and ``continue`` statements that end a loop with this body, or one of its iterations."""

    def __init__(self, body: list[ast.stmt]) -> None:
        self.found = False
        for statement in body:
            self.visit(statement)

    def visit_Break(self, node: ast.Break | ast.Continue) -> None:
        self.found = True

    visit_Continue = visit_Break

    def visit_For(self, node: ast.For | ast.While) -> None:
        for statement in node.orelse:
            self.visit(statement)

    visit_While = visit_For


def _literal(value: Any) -> ast.expr | None:
    """Returns the expression for a number, a member of an ``IntEnum``, or a tuple of these. Returns None for any other
    object."""
    if type(value) is tuple:
        elements = [_literal(each) for each in value]
        return None if None in elements else ast.Tuple([each for each in elements if each], ast.Load())
    if isinstance(value, bool) or type(value) in (float, complex):
        return ast.Constant(value)
    return ast.Constant(int(value)) if type(value) is int or isinstance(value, enum.IntEnum | enum.IntFlag) else None


def _is_literal(node: ast.expr) -> bool:
    match node:
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _is_literal(operand)
        case ast.Tuple(elts=elements):
            return all(map(_is_literal, elements))
    return isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | complex)


def _bound(target: ast.expr, element: ast.expr) -> list[tuple[ast.expr, ast.expr]] | None:
    """Returns the names that a loop binds, each with its value. Returns None if the tuples do not match."""
    if isinstance(target, ast.Name):
        return None if isinstance(element, ast.Tuple) else [(copy.deepcopy(target), copy.deepcopy(element))]
    if not isinstance(target, ast.Tuple) or not isinstance(element, ast.Tuple):
        return None
    if len(target.elts) != len(element.elts):
        return None
    pairs = [_bound(*pair) for pair in zip(target.elts, element.elts, strict=True)]
    return None if None in pairs else [each for found in pairs for each in found or ()]
