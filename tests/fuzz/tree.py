"""Kernels as trees, and their source.

The generator makes a ``Program``, ``source`` writes it as a Python module for oxide, ``interpret`` runs it without
oxide, and ``shrink`` takes parts of it away. Every expression knows its type, by the rules of ``docs/kernels.md``.
The type of a place, which is an ``i64`` to integers and a Python integer to floats, is ``place``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(slots=True)
class Expr:
    """An expression: an operation on others. ``value`` is its name, operator or number."""

    op: str
    type: str
    args: list[Expr] = field(default_factory=list)
    value: Any = None

    def walk(self) -> Iterator[Expr]:
        yield self
        for each in self.args:
            yield from each.walk()


@dataclass(slots=True)
class Stmt:
    """A statement with its expressions and the statements inside it. ``line`` is its line in the source."""

    op: str
    exprs: list[Expr] = field(default_factory=list)
    bodies: list[list[Stmt]] = field(default_factory=list)
    value: Any = None
    line: int = 0

    def walk(self) -> Iterator[Stmt]:
        yield self
        for body in self.bodies:
            for each in body:
                yield from each.walk()


@dataclass(slots=True)
class Parameter:
    """A kernel's parameter. ``kind`` is ``scalar``, ``slice``, ``shaped``, ``out``, ``atomic`` or ``tuple``; of a
    tuple ``fields`` are the names and types of its elements, of an output ``tile`` the shape of its tiles, of a slice
    of several axes ``inner`` the lengths of all axes but the first."""

    name: str
    kind: str
    type: str
    tile: tuple[int, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    generic: bool = False
    inner: tuple[int, ...] = ()


@dataclass(slots=True)
class Function:
    """A ``@device`` function: its parameters with their types, ``slice f32`` of a slice, and a body that returns."""

    name: str
    parameters: list[tuple[str, str]]
    returns: str
    body: list[Stmt]
    annotated: bool = True


@dataclass(slots=True, eq=False)
class Array:
    """An array in local or shared memory, or a constant array with its ``numbers``."""

    name: str
    kind: str
    type: str
    shape: tuple[int, ...]
    numbers: Any = None


@dataclass(slots=True)
class Program:
    """A kernel with all that its source names. ``shape`` is how its threads are numbered: ``1d`` or ``2d``."""

    parameters: list[Parameter]
    body: list[Stmt]
    functions: list[Function] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    shape: str = "1d"
    width: Any = None
    block: tuple[int, int, int] | None = None
    """The only shape of a block that the kernel is right for, if there is one."""
    fma: bool = True
    requires: tuple[str, ...] = ()

    def array(self, name: str) -> Array:
        return next(each for each in self.arrays if each.name == name)

    def parameter(self, name: str) -> Parameter:
        return next(each for each in self.parameters if each.name == name)

    @property
    def statements(self) -> Iterator[Stmt]:
        for body in (self.body, *(function.body for function in self.functions)):
            for each in body:
                yield from each.walk()

    @property
    def expressions(self) -> Iterator[Expr]:
        for statement in self.statements:
            for each in statement.exprs:
                yield from each.walk()

    @property
    def waits(self) -> bool:
        """Whether threads may wait for one another: a fault then reads zero, and its thread goes on."""
        return any(array.kind == "shared" for array in self.arrays) or any(map(_waits, self.statements))

    @property
    def may_wait(self) -> bool:
        """Whether threads wait by nothing but what a comparison of literals may leave out: numba drops a branch that
        is decided before the kernel is compiled."""
        return (
            self.waits
            and not any(array.kind == "shared" for array in self.arrays)
            and not any(map(_waits, _certain(self.body)))
        )


def _waits(statement: Stmt) -> bool:
    return statement.op in ("barrier", "atomic", "fence") or any(
        expression.op in ("warp", "vote", "fetch") for root in statement.exprs for expression in root.walk()
    )


def _certain(body: list[Stmt]) -> Iterator[Stmt]:
    """The statements that no comparison of literals decides about."""
    for statement in body:
        if not any(_is_decided(expression) for root in statement.exprs for expression in root.walk()):
            yield statement
            for inner in statement.bodies:
                yield from _certain(inner)


def _is_decided(expression: Expr) -> bool:
    leaves = (leaf for leaf in expression.walk() if not leaf.args)
    return expression.op == "compare" and all(leaf.op == "literal" for leaf in leaves)


# Source

_NAMES = {"bool": "bool_"}


def type_name(kind: str) -> str:
    return _NAMES.get(kind, kind)


def show(e: Expr) -> str:
    """Returns an expression's source."""
    a = [show(each) for each in e.args]
    match e.op:
        case "literal" | "bare":
            return f"({e.value!r})" if e.value < 0 or (e.value == 0 and str(e.value)[0] == "-") else repr(e.value)
        case "name" | "thread" | "slice":
            return str(e.value)
        case "field":
            return str(e.value[0])
        case "special":  # inf or nan
            return f"math.{e.value}"
        case "convert":
            return f"{'bool' if e.type == 'bool' else e.type}({a[0]})"
        case "binary" | "compare":
            return f"({a[0]} {e.value} {a[1]})"
        case "chain":
            first, second = e.value
            return f"({a[0]} {first} {a[1]} {second} {a[2]})"
        case "unary":
            return f"({e.value}{' ' if e.value == 'not' else ''}{a[0]})"
        case "and" | "or":
            return f"({f' {e.op} '.join(a)})"
        case "ternary":
            return f"({a[1]} if {a[0]} else {a[2]})"
        case "call" | "function" | "warp" | "vote":
            return f"{e.value}({', '.join(a)})"
        case "read" | "element" | "shaped" | "tile" | "view":
            return f"{e.value}[{', '.join(a)}]"
        case "unchecked":
            return f"{e.value}.unchecked[{a[0]}]"
        case "lane":  # of a vector that is loaded and taken apart at once
            name, width, lane = e.value
            return f"{name}.load{width}({a[0]})[{lane}]"
        case "len":
            return f"len({e.value})"
        case "extent":
            return f"{e.value[0]}.shape[{e.value[1]}]"
        case "ref":
            return f"{e.value}.value"
        case "fetch":
            return f"{e.value[0]}.{e.value[1]}({', '.join(a)})"
        case "divmod":
            return f"divmod({a[0]}, {a[1]})[{e.value}]"
    raise NotImplementedError(e.op)


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def put(self, text: str) -> int:
        self.lines.append("    " * self.depth + text)
        return len(self.lines)

    def block(self, body: list[Stmt]) -> None:
        self.depth += 1
        for statement in body:
            self.statement(statement)
        if not body:
            self.put("pass")
        self.depth -= 1

    def statement(self, s: Stmt) -> None:
        e = [show(each) for each in s.exprs]
        v = s.value
        match s.op:
            case "assign":
                s.line = self.put(f"{v} = {e[0]}")
            case "annotated":
                s.line = self.put(f"{v[0]}: {v[1]} = {e[0]}")
            case "augment":
                s.line = self.put(f"{v[0]} {v[1]}= {e[0]}")
            case "unpack":
                s.line = self.put(f"{', '.join(v)} = {', '.join(e)}")
            case "divmod":
                s.line = self.put(f"{v[0]}, {v[1]} = divmod({e[0]}, {e[1]})")
            case "untuple":
                s.line = self.put(f"{', '.join(v[1])} = {v[0]}")
            case "load":  # a vector
                index = e[0] if len(e) == 1 else f"({', '.join(e)})"
                s.line = self.put(f"{', '.join(v[1])} = {v[0]}.load{len(v[1])}({index})")
            case "vector":  # a store of one
                s.line = self.put(f"{v[0]}.unchecked_mut.store{len(e) - 1}({', '.join(e)})")
            case "unchecked":
                s.line = self.put(f"{v[0]}.unchecked_mut[{e[0]}] = {e[1]}")
            case "join":  # in each branch of an if: the name has the type of both
                s.line = self.put(f"{v[0]} = {e[0]}")
            case "store":
                s.line = self.put(f"{v[0]}.value {v[1]}= {e[0]}")
            case "put":
                s.line = self.put(f"{v[0]}[{', '.join(e[:-1])}] {v[1]}= {e[-1]}")
            case "index":
                s.line = self.put(f"{v} = thread.index_1d()" if not e else f"{v} = thread.index_2d({e[0]})")
            case "number":
                s.line = self.put(f"{v[0]} = {v[1]}.get()")
            case "mut" | "rest":
                method = "get_mut" if s.op == "mut" else "get_remainder"
                s.line = self.put(f"{v[0]} = {v[1]}.{method}({v[2]})")
            case "if":
                s.line = self.put(f"if {e[0]}:")
                self.block(s.bodies[0])
                if s.bodies[1:] and s.bodies[1]:
                    self.put("else:")
                    self.block(s.bodies[1])
            case "guard":
                s.line = self.put(f"if {' and '.join(f'{name} is not None' for name in v)}:")
                self.block(s.bodies[0])
            case "range":
                counts = f"range({', '.join(e)})"
                s.line = self.put(f"for {v['name']} in {f'unroll({counts})' if v.get('unroll') else counts}:")
                self.block(s.bodies[0])
            case "while":
                test = f"{v[0]} < {v[1]}" + (f" and {e[0]}" if e else "")
                s.line = self.put(f"while {test}:")
                self.depth += 1
                self.put(f"{v[0]} += 1")
                self.depth -= 1
                self.block(s.bodies[0])
            case "view":
                s.line = self.put(f"{v['name']} = {v['slice']}.{v['part']}({', '.join(e)})")
            case "each":
                names, views = v
                over = views[0] if len(views) == 1 else f"zip_exact({', '.join(views)})"
                s.line = self.put(f"for {', '.join(names)} in {over}:")
                self.block(s.bodies[0])
            case "rows":  # for row in tile: for x in row
                s.line = self.put(f"for {v[0]} in {v[2]}:")
                self.depth += 1
                self.put(f"for {v[1]} in {v[0]}:")
                self.block(s.bodies[0])
                self.depth -= 1
            case "break" | "continue" | "pass":
                s.line = self.put(s.op)
            case "assert":
                s.line = self.put(f"assert {e[0]}" + (f", {v!r}" if v else ""))
            case "return":
                s.line = self.put(f"return {e[0]}" if e else "return")
            case "barrier":
                s.line = self.put("thread.sync_threads()")
            case "atomic":
                s.line = self.put(f"{v[0]}.{v[1]}({', '.join(e)})")
            case _:
                raise NotImplementedError(s.op)


def annotation(parameter: Parameter) -> str:
    kind = "T" if parameter.generic else type_name(parameter.type)
    match parameter.kind:
        case "scalar":
            return kind
        case "slice":
            return f"Slice[{kind}]"
        case "shaped":
            return f"Slice{1 + len(parameter.inner)}[{kind}]"
        case "atomic":
            return f"AtomicSlice[{kind}]"
        case "tuple":
            if parameter.type == "named":
                return parameter.name.capitalize()
            return f"tuple[{', '.join(type_name(each) for _, each in parameter.fields)}]"
    tile = parameter.tile
    if not tile:
        return f"DisjointSlice[{kind}]"
    return f"DisjointSlice[{kind}, {'Tiles' if len(tile) == 1 else 'RowMajorTiles'}({', '.join(map(str, tile))})]"


def _given(kind: str) -> str:
    return f"Slice[{type_name(kind.removeprefix('slice '))}]" if kind.startswith("slice ") else type_name(kind)


_HEAD = """import math
from typing import NamedTuple, TypeVar

import numpy as np

from oxide import (
    AtomicSlice, DisjointSlice, LocalArray, RowMajorTiles, SharedArray, Slice, Slice2, Slice3, Tiles,
    atomic, bf16, bool_, device, f16, f32, f64, i8, i16, i32, i64, intrinsics, kernel, thread, u8, u16, u32, u64,
    unroll, warp, zip_exact,
)
"""


def source(program: Program) -> str:
    """Returns the module of a program: its constants, its functions, and the function ``k``, not yet a kernel."""
    writer = _Writer()
    for line in _HEAD.splitlines():
        writer.put(line)
    generic = sorted({parameter.type for parameter in program.parameters if parameter.generic})
    for kind in generic:
        others = [each for each in ("f32", "f64", "i32") if each != kind]
        writer.put(f"T = TypeVar('T', {type_name(kind)}, {', '.join(others)})")
    for array in program.arrays:
        if array.kind == "constant":
            numbers = np.asarray(array.numbers)
            text = (
                f"np.frombuffer(bytes.fromhex('{numbers.tobytes().hex()}'), np.{numbers.dtype}).reshape({array.shape})"
            )
            writer.put(f"{array.name} = {text}")
    for parameter in program.parameters:
        if parameter.kind == "tuple" and parameter.type == "named":
            writer.put("")
            writer.put(f"class {parameter.name.capitalize()}(NamedTuple):")
            for name, kind in parameter.fields:
                writer.put(f"    {name}: {type_name(kind)}")
    for function in program.functions:
        writer.put("")
        writer.put("@device")
        if function.annotated:
            given = ", ".join(f"{name}: {_given(kind)}" for name, kind in function.parameters)
            writer.put(f"def {function.name}({given}) -> {type_name(function.returns)}:")
        else:
            writer.put(f"def {function.name}({', '.join(name for name, _ in function.parameters)}):")
        writer.block(function.body)
    writer.put("")
    given = ", ".join(f"{parameter.name}: {annotation(parameter)}" for parameter in program.parameters)
    writer.put(f"def k({given}) -> None:")
    writer.depth += 1
    for array in program.arrays:
        if array.kind != "constant":
            shape = array.shape[0] if len(array.shape) == 1 else array.shape
            kind = "SharedArray" if array.kind == "shared" else "LocalArray"
            writer.put(f"{array.name} = {kind}({shape}, {type_name(array.type)})")
    writer.depth -= 1
    writer.block(program.body)
    return "\n".join(writer.lines) + "\n"
