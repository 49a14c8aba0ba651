"""A kernel's loops as Python runs them: the reference that hoisted bounds checks are compared with.

It walks the kernel's syntax tree one access at a time, with integers of 64 bits that wrap, and knows nothing of
hoisting. An access outside its slice reads 0 and goes on; the first is remembered. Views are lists of elements,
made over whole numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class View:
    """What a row or column is: a name for faults, and the elements."""

    slice: str
    elements: list[int]


@dataclass
class Interpreter:
    """One thread. ``variables`` are its parameters; slices are lists of ints, matrices NumPy's arrays."""

    variables: dict[str, Any]
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
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
                self.variables[name] = wrap(self.variables[name] + self._value(value))
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
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.variables[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return wrap(-self._value(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return wrap(_OPERATIONS[type(op)](self._value(left), self._value(right)))
            case ast.BoolOp(op=ast.And(), values=values):
                return all(self._value(value) for value in values)
            case ast.Compare(left=left, ops=[ast.IsNot()]):
                return self._value(left) is not None
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return _COMPARISONS[type(op)](self._value(left), self._value(right))
            case ast.Call(func=ast.Name(id="i32"), args=[value]):
                return wrap(self._value(value), 32)
            case ast.Call(func=ast.Name(id="u32"), args=[value]):
                return self._value(value) % 2**32
            case ast.Call(func=ast.Name(id="i64"), args=[value]):
                return wrap(self._value(value))
            case ast.Call(func=ast.Name(id="min"), args=[left, right]):
                return min(self._value(left), self._value(right))
            case ast.Call(func=ast.Name(id="len"), args=[view]):
                return len(self._value(view).elements)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=part), args=args):
                return self._view(name, part, *(self._value(arg) for arg in args))
            case ast.Subscript(value=ast.Name(id=name), slice=index):
                return self._read(name, self._value(index), node.lineno)
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
