"""A kernel's loops as Python runs them: the reference that hoisted bounds checks are compared with.

It walks the kernel's syntax tree one access at a time, with integers of 64 bits that wrap, and knows nothing of
hoisting. An access outside its slice reads 0 and goes on; the first is remembered.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Interpreter:
    """One thread. ``variables`` are its parameters; slices are lists of ints."""

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
            case ast.If(test=test, body=body):
                if self._value(test):
                    self.run(body)
            case ast.For(target=ast.Name(id=name), iter=ast.Call(args=bounds), body=body):
                try:
                    for number in _range(*(self._value(bound) for bound in bounds)):
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
            case ast.Subscript(value=ast.Name(id=name), slice=index):
                return self._read(name, self._value(index), node.lineno)
            case _:
                raise NotImplementedError(ast.unparse(node))

    def _read(self, name: str, index: int, line: int) -> int:
        elements = self.variables[name]
        if 0 <= index < len(elements):
            return int(elements[index])
        if self.first_fault is None:
            self.first_fault = (name, index, len(elements), line)
        return 0


def _range(first: int, end: int | None = None, step: int = 1) -> Iterator[int]:
    """``range`` with 64-bit numbers: the way from the start to the end is a wrapping difference, too."""
    start, stop = (0, first) if end is None else (first, end)
    way = wrap(stop - start)
    number = start
    for _ in range(max(0, -(-way // step))):
        yield wrap(number)
        number += step


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
