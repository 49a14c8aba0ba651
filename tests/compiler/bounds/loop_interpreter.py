"""A kernel's loops as Python runs them: the reference that hoisted bounds checks are compared with.

It walks the kernel's syntax tree one access at a time, with integers that wrap in their types, and knows nothing of
hoisting. An access outside its slice reads 0 and goes on; the first is remembered. Views are lists of elements,
made over whole numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


class Number(int):
    """An integer of a type: "i64", "i32", "u32", or "literal". ``whole`` is the number that it would be in 64 bits."""

    kind: str
    whole: int


def number(kind: str, value: int, whole: int | None = None) -> Number:
    """An integer that wraps in its type. The chain of an index begins anew without ``whole``."""
    made = Number(value % 2**32 if kind == "u32" else wrap(value, 32 if kind == "i32" else 64))
    made.kind, made.whole = kind, int(made) if whole is None else wrap(whole)
    return made


def common(first: str, second: str) -> str:
    """The type of two integers together."""
    typed = {first, second} - {"literal"}
    return (typed.pop() if len(typed) == 1 else "i64") if typed else "literal"


@dataclass
class View:
    """What a row or column is: a name for faults, and the elements."""

    slice: str
    elements: list[int]


@dataclass
class Interpreter:
    """One thread. ``variables`` are its parameters; slices are lists of ints, matrices NumPy's arrays. A parameter is
    an i64 if ``kinds`` has no other type for it."""

    variables: dict[str, Any]
    kinds: dict[str, str] = field(default_factory=dict)
    first_fault: tuple[str, int, int, int] | None = None
    result: int | None = None
    steps: int = 0

    def run(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        self.steps += 1
        if self.steps > 2_000:
            raise TooLong
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.variables[name] = self._value(value)
            case ast.Assign(targets=[ast.Attribute(attr="value")], value=value):
                self.result = self._value(value)
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                self.variables[name] = self._value(ast.BinOp(ast.Name(target.id), op, value))
            case ast.If(test=test, body=body, orelse=orelse):
                self.run(body if self._value(test) else orelse)
            case ast.For(target=target, iter=iterated, body=body) if not _is_range(iterated):
                try:
                    for element in self._iterated(iterated):
                        names = target.elts if isinstance(target, ast.Tuple) else [target]
                        values = element if isinstance(target, ast.Tuple) else [element]
                        for name, value in zip(names, values, strict=True):
                            assert isinstance(name, ast.Name)
                            self.variables[name.id] = value
                        self.run(body)
                except _Break:
                    pass
            case ast.For(target=ast.Name(id=name), iter=ast.Call(args=bounds), body=body):
                try:
                    for number in range(*(self._value(bound) for bound in bounds)):
                        self.variables[name] = number
                        self.run(body)
                except _Break:
                    pass
            case ast.While(test=test, body=body):
                try:
                    while self._value(test):
                        self.run(body)
                except _Break:
                    pass
            case ast.Break():
                raise _Break
            case _:
                raise NotImplementedError(ast.unparse(node))

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int(value)):
                return number("literal", value)
            case ast.Name(id=name):
                found = self.variables[name]
                return number(self.kinds.get(name, "i64"), found) if type(found) is int else found
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self._value(operand)
                return number(value.kind, -value, -value.whole)
            case ast.BinOp(left=left, op=op, right=right):
                return _computed(type(op), self._value(left), self._value(right))
            case ast.BoolOp(op=ast.And(), values=values):
                return all(self._value(value) for value in values)
            case ast.Compare(left=left, ops=[ast.IsNot()]):
                return self._value(left) is not None
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return _COMPARISONS[type(op)](self._value(left), self._value(right))
            case ast.Call(func=ast.Name(id="i32" | "u32" | "i64" as kind), args=[value]):
                return number(kind, self._value(value))
            case ast.Call(func=ast.Name(id="min"), args=[left, right]):
                first, second = self._value(left), self._value(right)
                least = min(first, second)
                return number(common(first.kind, second.kind), least, least.whole)
            case ast.Call(func=ast.Name(id="len"), args=[view]):
                return number("i64", len(self._value(view).elements))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=part), args=args):
                return self._view(name, part, *(self._value(arg).whole for arg in args))
            case ast.Subscript(value=ast.Name(id=name), slice=index):
                return number("i64", self._read(name, self._value(index).whole, node.lineno))
            case _:
                raise NotImplementedError(ast.unparse(node))

    def _iterated(self, node: ast.expr) -> Iterator[Any]:
        if isinstance(node, ast.Call):
            views = [self._value(argument) for argument in node.args]
            if len({len(view.elements) for view in views}) > 1:
                if self.first_fault is None:
                    self.first_fault = ("zip_exact", 0, 0, node.lineno)
                return iter(())
            return zip(*(view.elements for view in views), strict=True)
        view = self._value(node)
        return iter(view.elements if isinstance(view, View) else view)

    def _view(self, name: str, part: str, *args: int) -> Any:
        """A view, a list of views for a tile, or None."""
        matrix = self.variables[name]
        height, width = matrix.shape
        row, col, rows, cols = {"row": lambda i: (i, 0, 1, width), "col": lambda j: (0, j, height, 1)}.get(
            part, lambda *all_four: all_four
        )(*args)
        if min(row, col, rows, cols) < 0 or row + rows > height or col + cols > width:
            return None
        inside = matrix[row : row + rows, col : col + cols]
        if part == "tile":
            return [View(name, line.tolist()) for line in inside]
        return View(name, inside.ravel().tolist())

    def _read(self, name: str, index: int, line: int) -> int:
        elements = self.variables[name]
        if isinstance(elements, View):
            name, elements = f"a view of {elements.slice}", elements.elements
        if 0 <= index < len(elements):
            return int(elements[index])
        if self.first_fault is None:
            self.first_fault = (name, index, len(elements), line)
        return 0


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"


class TooLong(Exception):
    """The loops ran for more steps than a test should take."""


class _Break(Exception):
    pass


def _computed(operator: type[ast.operator], left: Number, right: Number) -> Number:
    """The result of an operator, in the type of both operands, or of the left one for a shift."""
    kind = left.kind if operator is ast.LShift else common(left.kind, right.kind)
    function = _OPERATIONS[operator]
    chained = operator not in (ast.FloorDiv, ast.Mod)
    return number(kind, function(int(left), int(right)), function(left.whole, right.whole) if chained else None)


def wrap(number: int, bits: int = 64) -> int:
    """A whole number as the signed number of so many bits that is congruent to it."""
    return (number + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


_OPERATIONS: dict[type[ast.operator], Any] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
    ast.LShift: lambda left, right: left << right,
}
_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Lt: lambda left, right: left < right,
    ast.LtE: lambda left, right: left <= right,
    ast.Gt: lambda left, right: left > right,
    ast.NotEq: lambda left, right: left != right,
}
