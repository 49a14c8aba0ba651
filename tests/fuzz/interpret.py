"""The reference: what a launch of a program must come to, without oxide.

A program's tree is written out as Python over ``arithmetic``, one function for a thread; a thread that waits for others
is a generator, which gives what it brings to the meeting and is sent what it takes from it. The rules are those of the
book: integers wrap in their types, conversions saturate, nothing raises, and a fault ends its thread, or, where threads
may wait for one another, reads zero and goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from . import arithmetic
from .arithmetic import BITS, FLOATS, GREATEST, HALVES, INTEGERS, LEAST, ROUND, WIDE_FLOATS
from .tree import Array, Expr, Program, Stmt

Triple = tuple[int, int, int]


class Fault(NamedTuple):
    """A thread's first fault. ``text`` is an assert's message; else ``parameter``, ``index`` and ``length`` say it, and
    ``indices`` and ``shape`` have the index and the length of every axis."""

    parameter: str
    index: int
    length: int
    text: str | None
    block: Triple
    thread: Triple
    line: int
    indices: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()


@dataclass(slots=True)
class Launch:
    """A grid, a block and an argument for each parameter: a number, a tuple of them, or a list for a slice."""

    grid: Triple
    block: Triple
    arguments: dict[str, Any]


@dataclass(slots=True)
class Outcome:
    """What every output holds after a launch, by its parameter, and the first fault of each thread that had one."""

    outputs: dict[str, list[Any]]
    faults: list[Fault] = field(default_factory=list)
    steps: int = 0


class TooLong(Exception):
    """The launch takes more steps than a case should."""


class Undefined(Exception):
    """What the launch comes to is not said by the rules."""


class _Unwritten(Exception):
    """A thread reads what nothing has written."""


class _Leave(Exception):
    """The thread ends."""


class _Thread:
    """A thread while it runs: its place and its first fault."""

    __slots__ = ("bd", "bi", "fault", "gd", "goes_on", "gone", "left", "ti")

    def __init__(self, bi: Triple, ti: Triple, bd: Triple, gd: Triple, goes_on: bool, left: list[int]) -> None:
        self.bi, self.ti, self.bd, self.gd = bi, ti, bd, gd
        self.goes_on = goes_on
        self.fault: Fault | None = None
        self.gone = False  # before its end
        self.left = left

    def outside(
        self, what: str, indices: tuple[int, ...], shape: tuple[int, ...], line: int, axis: int | None = None
    ) -> None:
        """Records an access outside, at ``axis`` if there are several; the thread leaves, or goes on."""
        if self.fault is None:
            numbers = tuple(map(arithmetic.i64, indices))
            found = what if axis is None else f"axis {axis} of {what}"
            place = numbers[axis or 0], shape[axis or 0]
            self.fault = Fault(found, *place, None, self.bi, self.ti, line, numbers, shape)
        if not self.goes_on:
            raise _Leave

    def mistake(self, line: int) -> None:
        """Records a fault that has no index: a vector's address, or views of different lengths."""
        if self.fault is None:
            self.fault = Fault("", 0, 0, "", self.bi, self.ti, line)
        if not self.goes_on:
            raise _Leave

    def fail(self, text: str, line: int) -> None:
        if self.fault is None:
            self.fault = Fault("", 0, 0, text, self.bi, self.ti, line)
        raise _Leave

    def tick(self) -> None:
        self.left[0] -= 1
        if self.left[0] < 0:
            raise TooLong

    def read(self, elements: list[Any], what: str, index: int, line: int, zero: Any) -> Any:
        if 0 <= index < len(elements):
            return elements[index]
        self.outside(what, (index,), (len(elements),), line)
        return zero

    def write(self, elements: list[Any], what: str, index: int, line: int, value: Any) -> None:
        if 0 <= index < len(elements):
            elements[index] = value
        else:
            self.outside(what, (index,), (len(elements),), line)

    def place(self, shape: tuple[int, ...], what: str, indices: tuple[int, ...], line: int) -> int | None:
        """The place of an element in an array of one or two axes, each checked; None outside."""
        place, inside = 0, True
        for axis, (index, length) in enumerate(zip(indices, shape, strict=True)):
            if not 0 <= index < length:
                self.outside(what, indices, shape, line, axis if len(shape) > 1 else None)
                inside = False
            place = place * length + index
        return place if inside else None


class _View:
    """A row, a column or a tile of a slice of two axes: the lists of its elements, or what to report where it is
    None."""

    __slots__ = ("bad", "line", "rows", "what")

    def __init__(
        self, elements: list[Any], name: str, line: int, shape: tuple[int, int], part: str, given: tuple[int, ...]
    ) -> None:
        height, width = shape
        match part:
            case "row":
                row, col, rows, cols = given[0], 0, 1, width
            case "col":
                row, col, rows, cols = 0, given[0], height, 1
            case _:
                row, col, rows, cols = given
        self.what, self.line, self.bad = name, line, None
        for axis, (first, count, length) in enumerate(((row, rows, height), (col, cols, width))):
            if self.bad is None and not (0 <= count <= length and 0 <= first <= length - count):
                least = count if count < 0 else first
                last = min(first + count - 1, GREATEST["i64"])
                self.bad = (f"axis {axis} of {name}", least if least < 0 else last, length)
        first = row * width + col
        self.rows = [] if self.bad else [elements[first + i * width : first + i * width + cols] for i in range(rows)]
        if part == "col":
            self.rows = [[each for line in self.rows for each in line]]
        elif part == "row" and self.bad:
            self.rows = [[]]


class _Tile:
    """A thread's tile of an output: where it begins, its sides, the output's width, and whether it is None."""

    __slots__ = ("elements", "first", "limit", "line", "number", "sides", "site", "what", "width")

    def __init__(
        self,
        elements: list[Any],
        first: int,
        sides: tuple[int, ...],
        width: int,
        number: int,
        limit: int,
        names: tuple[str, str | None],
        line: int,
    ) -> None:
        self.elements, self.first, self.sides, self.width = elements, first, sides, width
        self.number, self.limit = number, limit
        self.what, self.site = names
        self.line = line

    @property
    def there(self) -> bool:
        return 0 <= self.number < self.limit

    def report(self, thread: _Thread) -> bool:
        """Whether the tile may be used; a use of one that is None is a fault."""
        if self.site is None or self.there:
            return True
        thread.outside(self.site, (self.number,), (self.limit,), self.line)
        return False

    def length(self, thread: _Thread) -> int:
        self.report(thread)
        return self.sides[0]

    def place(self, thread: _Thread, indices: tuple[int, ...], line: int) -> int | None:
        inside = self.report(thread)
        for axis, (index, side) in enumerate(zip(indices, self.sides, strict=True)):
            if not 0 <= index < side:
                thread.outside(self.what, indices, self.sides, line, axis if len(indices) > 1 else None)
                inside = False
        if not inside:
            return None
        return self.first + (indices[0] if len(indices) == 1 else indices[0] * self.width + indices[1])


def _whole_tile(name: str, elements: list[Any], tile: tuple[int, ...], index: Any, thread: _Thread, line: int) -> _Tile:
    if len(tile) == 1:
        names = (f"a tile of {name}", f"the tiles of {name}")
        return _Tile(elements, index * tile[0], tile, tile[0], index, len(elements) // tile[0], names, line)
    number, width = index
    row, col = (thread.bi[a] * thread.bd[a] + thread.ti[a] for a in (1, 0))
    row, col = row * tile[0], col * tile[1]
    good = number >= 0 and col + tile[1] <= width
    last = (row + tile[0]) * width - 1 if good else -1
    return _Tile(elements, row * width + col, tile, width, last, len(elements), (f"a tile of {name}", name), line)


def _rest_of_tile(
    name: str, elements: list[Any], tile: tuple[int, ...], index: Any, thread: _Thread, line: int
) -> _Tile:
    names = (f"a remainder of {name}", None)
    if len(tile) == 1:
        count = len(elements) % tile[0] if index == len(elements) // tile[0] else 0
        return _Tile(elements, len(elements) - count, (count,), tile[0], 0, int(count > 0), names, line)
    _, width = index
    row, col = (thread.bi[a] * thread.bd[a] + thread.ti[a] for a in (1, 0))
    row, col = row * tile[0], col * tile[1]
    height = min(len(elements) // max(width, 1) - row, tile[0])
    breadth = min(width - col, tile[1])
    there = height > 0 and breadth > 0 and (height < tile[0] or breadth < tile[1])
    sides = (height, breadth) if there else (0, 0)
    return _Tile(elements, row * width + col, sides, width, 0, int(there), names, line)


def _counted(*bounds: int) -> range:
    """A range; one whose step is 0 ends the thread."""
    if len(bounds) == 3 and bounds[2] == 0:
        raise _Leave
    return range(*bounds)


# The source of the reference

_OPERATIONS = {
    "+": "add",
    "-": "subtract",
    "*": "multiply_integers",
    "&": "both",
    "|": "either",
    "^": "exclusive",
    "//": "quotient",
    "%": "remainder",
}
_BY_THE_LEFT = {"<<": "shift_left", ">>": "shift_right", "**": "power"}
_ZERO = {**dict.fromkeys(INTEGERS, "0"), **dict.fromkeys(FLOATS, "0.0"), "bool": "False"}
_COORDINATES = {"thread_idx": "ti", "block_idx": "bi", "block_dim": "bd", "grid_dim": "gd"}


def _has_conditions(e: Expr) -> bool:
    return any(each.op in ("ternary", "and", "or", "chain") for each in e.walk())


def _rounded(kind: str, text: str) -> str:
    return text if kind == "f64" else f"A.{kind}({text})"


class _Translator:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.lines: list[str] = []
        self.depth = 0
        self.line = 0

    def put(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    # Expressions

    def converted(self, e: Expr, kind: str) -> str:
        text = self.expr(e)
        if kind == "place":
            kind = "i64"
        if e.type == kind or (e.type in HALVES and kind in WIDE_FLOATS) or (e.type == "f32" and kind == "f64"):
            return text
        if kind == "i64" and (e.type == "place" or e.type in INTEGERS) and e.type != "u64":
            return text
        return f"A.convert('{e.type}', '{kind}', {text})"

    def is_product(self, e: Expr, kind: str) -> bool:
        return self.program.fma and e.op == "binary" and e.value == "*" and e.type == kind and kind in WIDE_FLOATS

    def sum_of(self, kind: str, sign: str, left: Expr | str, right: Expr) -> str:
        """A sum or difference of floats. The product that is fused is the left one if both are products; a condition
        that is evaluated between a product and its sum keeps it from being fused."""
        if isinstance(left, Expr) and self.is_product(left, kind) and not _has_conditions(right):
            a, b = (self.converted(each, kind) for each in left.args)
            c = self.converted(right, kind)
            return f"A.fused('{kind}', {a}, {b}, {'-' if sign == '-' else ''}({c}))"
        first = left if isinstance(left, str) else self.converted(left, kind)
        if self.is_product(right, kind):
            a, b = (self.converted(each, kind) for each in right.args)
            # The order of evaluation is the source's: a fault on the left comes first.
            return f"_fused_right('{kind}', {first}, {'-' if sign == '-' else ''}({a}), {b})"
        return _rounded(kind, f"{first} {sign} {self.converted(right, kind)}")

    def binary(self, kind: str, operator: str, left: Expr | str, right: Expr, left_type: str = "") -> str:
        """An operator's result of a type; ``left`` may be the text of a variable that is of that type already."""

        def of(e: Expr | str) -> str:
            return f"A.convert('{left_type}', '{kind}', {e})" if isinstance(e, str) else self.converted(e, kind)

        if kind in FLOATS:
            if operator in "+-":
                return self.sum_of(kind, operator, of(left) if isinstance(left, str) else left, right)
            a, b = of(left), of(right)
            match operator:
                case "*":
                    return _rounded(kind, f"{a} * {b}")
                case "/":
                    return _rounded(kind, f"A.divide({a}, {b})")
                case "//":
                    return f"A.floor_divide('{kind}', {a}, {b})"
                case "%":
                    return f"A.modulo('{kind}', {a}, {b})"
            raise NotImplementedError(operator)
        kind = "i64" if kind == "place" else kind
        a = of(left)
        if operator in _BY_THE_LEFT:
            return f"A.{_BY_THE_LEFT[operator]}('{kind}', {a}, {self.expr(right)})"
        if kind == "bool":
            return f"({a} {operator} {of(right)})"
        if operator == "/":
            raise NotImplementedError(operator)
        return f"A.{_OPERATIONS[operator]}('{kind}', {a}, {of(right)})"

    def index(self, e: Expr) -> str:
        """An index, computed in 64 bits from where its chain begins. The generator converts variables in it, so that
        the chain begins there."""
        return f"A.i64({self.whole(e)})"

    def whole(self, e: Expr) -> str:
        match e.op:
            case "binary" if e.value in ("+", "-", "*"):
                a, b = map(self.whole, e.args)
                return f"({a} {e.value} {b})"
            case "binary" if e.value == "<<":
                return f"A.shift_left('i64', A.i64({self.whole(e.args[0])}), {self.expr(e.args[1])})"
            case "unary" if e.value in ("-", "+"):
                return f"({e.value}{self.whole(e.args[0])})"
            case "ternary":
                test, a, b = e.args
                return f"({self.whole(a)} if {self.expr(test)} else {self.whole(b)})"
            case "call" if e.value in ("min", "max"):
                narrow = ", ".join(self.converted(each, e.type) for each in e.args)
                return f"_chosen({e.value}, ({narrow},), ({', '.join(map(self.whole, e.args))},))"
            case "literal" | "bare":
                return f"({e.value!r})"
        return self.expr(e)

    def expr(self, e: Expr) -> str:
        match e.op:
            case "literal":
                return f"({e.value!r})"
            case "bare":
                return f"A.convert('{'i64' if isinstance(e.value, int) else 'f64'}', '{e.type}', {e.value!r})"
            case "special":
                return f"math.{e.value}"
            case "name":
                return str(e.value)
            case "slice":
                return f"{e.value}, '{e.value}'"
            case "field":
                return f"{e.value[1]}[{e.value[2]}]"
            case "convert":
                if e.args[0].type == e.type:
                    return self.expr(e.args[0])
                return f"A.convert('{e.args[0].type}', '{e.type}', {self.expr(e.args[0])})"
            case "binary":
                return f"({self.binary(e.type, e.value, e.args[0], e.args[1])})"
            case "compare":
                return f"({self.expr(e.args[0])} {e.value} {self.expr(e.args[1])})"
            case "chain":
                a, b, c = map(self.expr, e.args)
                return f"({a} {e.value[0]} {b} {e.value[1]} {c})"
            case "unary":
                a = self.expr(e.args[0])
                if e.value == "not":
                    return f"(not {a})"
                if e.type in FLOATS:
                    return f"({e.value}{a})"
                if e.type == "bool":  # ~
                    return f"(not {a})"
                kind = "i64" if e.type == "place" else e.type
                return f"A.negative('{kind}', {a})" if e.value == "-" else f"A.wrap('{kind}', {e.value}{a})"
            case "and" | "or":
                return f"({f' {e.op} '.join(map(self.expr, e.args))})"
            case "ternary":
                test, a, b = e.args
                return f"({self.converted(a, e.type)} if {self.expr(test)} else {self.converted(b, e.type)})"
            case "call":
                return CALLS[e.value](e.type, [each.type for each in e.args], [self.expr(each) for each in e.args])
            case "divmod":
                which = "quotient" if e.value == 0 else "remainder"
                a, b = (self.converted(each, e.type) for each in e.args)
                return f"A.{which}('{e.type}', {a}, {b})"
            case "function":
                function = next(each for each in self.program.functions if each.name == e.value)
                given = [
                    self.expr(each) if each.op == "slice" else self.converted(each, kind)
                    for each, (_, kind) in zip(e.args, function.parameters, strict=True)
                ]
                return f"{e.value}({', '.join(['T', *given])})"
            case "thread":
                return self.coordinate(e.value)
            case "len":
                return self.length(e.value)
            case "read" | "unchecked":
                index = self.index(e.args[0])
                called = f"{e.value}_name" if e.value in self.given else f"'{e.value}'"
                return f"T.read({e.value}, {called}, {index}, {self.line}, {_ZERO[e.type]})"
            case "element":
                array = self.program.array(e.value)
                indices = ", ".join(map(self.index, e.args))
                place = f"T.place({array.shape}, {shown(array)!r}, ({indices},), {self.line})"
                return f"_element({e.value}, {place}, {_ZERO[e.type]})"
            case "shaped":
                indices = ", ".join(map(self.index, e.args))
                place = f"T.place({self.shape_of(e.value)}, '{e.value}', ({indices},), {self.line})"
                return f"_element({e.value}, {place}, {_ZERO[e.type]})"
            case "extent":
                return f"{self.shape_of(e.value[0])}[{e.value[1]}]"
            case "tile":
                indices = ", ".join(map(self.index, e.args))
                return f"_element({e.value}.elements, {e.value}.place(T, ({indices},), {self.line}), {_ZERO[e.type]})"
            case "ref":
                name, (out, line) = e.value, self.refs[e.value]
                return f"T.read({out}, '{out}', {name}, {line}, {_ZERO[e.type]})"
            case "warp" | "vote":
                given = ", ".join(self.expr(each) for each in e.args)
                return f"(yield ('{e.value}', '{e.args[0].type}', {given}))"
            case "fetch":
                return self.atomic(e.value, [self.index(e.args[0]), *map(self.expr, e.args[1:])], e.type)
            case "view":  # view[i]
                index = self.index(e.args[0])
                return f"_of_view(T, {e.value}, {index}, {self.line}, {_ZERO[e.type]})"
        raise NotImplementedError(e.op)

    def shape_of(self, name: str) -> str:
        """A slice's axes: the elements are whole rows of the axes behind the first."""
        inner = self.program.parameter(name).inner
        return f"(len({name}) // {math.prod(inner)}, {', '.join(map(str, inner))},)"

    def coordinate(self, text: str) -> str:
        match text:
            case "thread.index_2d_row()":
                return "(T.bi[1] * T.bd[1] + T.ti[1])"
            case "thread.index_2d_col()":
                return "(T.bi[0] * T.bd[0] + T.ti[0])"
            case "warp.lane_id()":
                return "(_flat(T) % 32)"
            case "warp.warp_id()":
                return "(_flat(T) // 32)"
        _, which, axis = text.split(".")
        return f"T.{_COORDINATES[which]}[{'xyz'.index(axis)}]"

    def length(self, name: str) -> str:
        if name in self.tiles:
            return f"{name}.length(T)"
        if name in self.views:
            return f"_length_of_view(T, {name})"
        array = next((each for each in self.program.arrays if each.name == name), None)
        return str(array.shape[0]) if array is not None else f"len({name})"

    def atomic(self, value: tuple[str, ...], given: list[str], kind: str) -> str:
        name, method = value[0], value[1]
        array = next((each for each in self.program.arrays if each.name == name), None)
        what = shown(array) if array is not None else name
        return f"_atomic(T, {name}, {what!r}, '{method}', '{kind}', {self.line}, {', '.join(given)})"

    # Statements

    def block(self, body: list[Stmt]) -> None:
        self.depth += 1
        for each in body:
            self.line = each.line
            self.statement(each)
        if not body:
            self.put("pass")
        self.depth -= 1

    def statement(self, s: Stmt) -> None:
        v = s.value
        match s.op:
            case "assign":
                self.put(f"{v} = {self.expr(s.exprs[0])}")
            case "annotated":
                self.annotated[v[0]] = v[1]
                self.put(f"{v[0]} = {self.converted(s.exprs[0], v[1])}")
            case "augment":
                name, operator, kind = v
                if (known := self.annotated.get(name)) is not None:
                    text = self.binary(kind, operator, name, s.exprs[0], known)
                    self.put(f"{name} = A.convert('{kind}', '{known}', {text})")
                    return
                self.put(f"{name} = {self.binary(kind, operator, name, s.exprs[0], kind)}")
            case "unpack":
                self.put(f"{', '.join(v)} = {', '.join(map(self.expr, s.exprs))}")
            case "divmod":
                kind = v[2]
                a, b = (self.converted(each, kind) for each in s.exprs)
                self.put(f"_a, _b = {a}, {b}")
                self.put(f"{v[0]}, {v[1]} = A.quotient('{kind}', _a, _b), A.remainder('{kind}', _a, _b)")
            case "untuple":
                self.put(f"{', '.join(v[1])} = {v[0]}")
            case "load":
                name, targets, kind = v
                *before, last = map(self.index, s.exprs)
                given = f"{last}, {len(targets)}, '{kind}', {s.line}"
                function, shape = "_lanes", ""
                if before:
                    function, shape = "_lanes_of_row", f"{self.shape_of(name)}, ({', '.join(before)},), "
                self.put(f"{', '.join(targets)} = {function}(T, {name}, '{name}', {shape}{given})")
            case "vector" | "unchecked":
                values = ", ".join(self.converted(each, v[1]) for each in s.exprs[1:])
                self.put(f"_at = {self.index(s.exprs[0])}")
                self.put(f"{v[0]}[_at : _at + {len(s.exprs) - 1}] = [{values}]")
            case "join":
                self.put(f"{v[0]} = {self.converted(s.exprs[0], v[1])}")
            case "store":
                self.store(s)
            case "put":
                self.put_element(s)
            case "index":
                if not s.exprs:
                    self.put(f"{v} = T.bi[0] * T.bd[0] + T.ti[0]")
                else:
                    self.put(f"{v} = _index_2d(T, {self.expr(s.exprs[0])})")
            case "number":
                self.put(f"{v[0]} = {v[1]}" if self.program.shape != "2d" else f"{v[0]} = {v[1]}[0]")
            case "mut" | "rest":
                name, out, index = v
                parameter = self.program.parameter(out)
                if parameter.tile:
                    self.tiles.add(name)
                    maker = "_whole_tile" if s.op == "mut" else "_rest_of_tile"
                    self.put(f"{name} = {maker}('{out}', {out}, {parameter.tile}, {index}, T, {s.line})")
                else:
                    self.refs[name] = out, s.line
                    self.put(f"{name} = {index}" if self.program.shape != "2d" else f"{name} = {index}[0]")
            case "guard":
                self.put(f"if {' and '.join(map(self.is_there, v))}:")
                self.block(s.bodies[0])
            case "if":
                self.put(f"if {self.expr(s.exprs[0])}:")
                self.block(s.bodies[0])
                if s.bodies[1:] and s.bodies[1]:
                    self.put("else:")
                    self.block(s.bodies[1])
            case "range":
                wrapped = [
                    f"A.i64({self.expr(each)})" if v.get("type", "i64") == "i64" else self.expr(each)
                    for each in s.exprs
                ]
                self.put(f"for {v['name']} in _counted({', '.join(wrapped)}):")
                self.depth += 1
                self.put("T.tick()")
                self.put(f"{v['name']} = A.i64({v['name']})")
                self.depth -= 1
                self.block(s.bodies[0])
            case "while":
                test = f"{v[0]} < {v[1]}" + (f" and {self.expr(s.exprs[0])}" if s.exprs else "")
                self.put(f"while {test}:")
                self.depth += 1
                self.put(f"{v[0]} += 1")
                self.put("T.tick()")
                self.depth -= 1
                self.block(s.bodies[0])
            case "view":
                self.views.add(v["name"])
                given, name = list(map(self.index, s.exprs)), v["slice"]
                shape = self.shape_of(name)
                self.put(
                    f"{v['name']} = _View({name}, '{name}', {s.line}, {shape}, '{v['part']}', ({', '.join(given)},))"
                )
            case "each":
                names, views = v
                self.put(f"for {', '.join(names)} in _side_by_side(T, {s.line}, {', '.join(views)}):")
                self.depth += 1
                self.put("T.tick()")
                self.depth -= 1
                self.block(s.bodies[0])
            case "rows":
                row, x, view = v
                self.put(f"for {row} in _rows(T, {view}):")
                self.depth += 1
                self.put(f"for {x} in {row}:")
                self.depth += 1
                self.put("T.tick()")
                self.depth -= 1
                self.block(s.bodies[0])
                self.depth -= 1
            case "break" | "continue" | "pass":
                self.put(s.op)
            case "return":
                self.put("return" if not s.exprs else f"return {self.converted(s.exprs[0], v)}")
            case "assert":
                self.put(f"if not {self.expr(s.exprs[0])}:")
                self.put(f"    T.fail({v!r}, {s.line})")
            case "barrier":
                self.put("yield ('barrier', '', None)")
            case "atomic":
                self.put(self.atomic(v, [self.index(s.exprs[0]), *map(self.expr, s.exprs[1:])], v[2]))
            case _:
                raise NotImplementedError(s.op)

    def is_there(self, name: str) -> str:
        if name in self.tiles:
            return f"{name}.there"
        if name in self.views:
            return f"{name}.bad is None"
        if name in self.refs:
            return f"0 <= {name} < len({self.refs[name][0]})"
        return f"{name}[0] >= 0"  # an index of two dimensions

    def store(self, s: Stmt) -> None:
        name, operator, kind, result = s.value
        out, line = self.refs[name]  # the element's place is checked where it is used, and known where it was got
        if operator:
            # The element is read before the operand.
            self.put(f"_old = T.read({out}, '{out}', {name}, {line}, {_ZERO[kind]})")
            text = self.binary(result, operator, "_old", s.exprs[0], kind)
            text = f"A.convert('{result}', '{kind}', {text})" if result != kind else text
        else:
            text = self.converted(s.exprs[0], kind)
        self.put(f"T.write({out}, '{out}', {name}, {line}, {text})")

    def put_element(self, s: Stmt) -> None:
        """``a[i] = v`` and ``a[i] += v`` of a local or shared array or a tile. The value comes before the index, but
        of ``+=``, where the element is read first."""
        name, operator, kind, result = s.value
        indices = ", ".join(map(self.index, s.exprs[:-1]))
        if name in self.tiles:
            elements, place = f"{name}.elements", f"{name}.place(T, _at, {s.line})"
        else:
            array = self.program.array(name)
            elements, place = name, f"T.place({array.shape}, {shown(array)!r}, _at, {s.line})"
        if operator:
            self.put(f"_at = ({indices},)")
            self.put(f"_old = _element({elements}, {place}, {_ZERO[kind]})")
            text = self.binary(result, operator, "_old", s.exprs[-1], kind)
            self.put(f"_new = {f'A.convert({result!r}, {kind!r}, {text})' if result != kind else text}")
        else:
            self.put(f"_new = {self.converted(s.exprs[-1], kind)}")
            self.put(f"_at = ({indices},)")
        self.put(f"_place = {place}")
        self.put(f"if _place is not None: {elements}[_place] = _new")

    def run(self) -> str:
        program = self.program
        self.refs: dict[str, tuple[str, int]] = {}
        self.given: list[str] = []
        """The names of the slices that a function is given."""
        self.tiles: set[str] = set()
        self.views: set[str] = set()
        self.annotated: dict[str, str] = {}
        """The types of the variables that have an annotation."""
        for function in program.functions:
            self.given = [name for name, kind in function.parameters if kind.startswith("slice ")]
            names = [f"{name}, {name}_name" if name in self.given else name for name, _ in function.parameters]
            self.put(f"def {function.name}({', '.join(['T', *names])}):")
            self.block(function.body)
        self.given = []
        names = [parameter.name for parameter in program.parameters]
        constants = [array.name for array in program.arrays if array.kind == "constant"]
        shared = [array.name for array in program.arrays if array.kind == "shared"]
        self.put(f"def k({', '.join(['T', *names, *constants, *shared])}):")
        for array in program.arrays:
            if array.kind == "local":
                self.put(f"    {array.name} = [None] * {math.prod(array.shape)}")
        self.block(program.body)
        return "\n".join(self.lines)


def shown(array: Array) -> str:
    """What a fault calls an array."""
    if array.kind == "constant":
        return array.name
    name = "SharedArray" if array.kind == "shared" else "LocalArray"
    return f"{name}({array.shape[0] if len(array.shape) == 1 else array.shape}, {array.type})"


# Calls: each gives the reference's source for a result type, the arguments' types and their sources


def _to(kind: str, types: list[str], texts: list[str]) -> list[str]:
    return [
        text if given == kind else f"A.convert('{given}', '{kind}', {text})"
        for given, text in zip(types, texts, strict=True)
    ]


def _extreme(name: str) -> Callable[..., str]:
    def call(kind: str, types: list[str], texts: list[str]) -> str:
        first, *others = _to(kind, types, texts)
        for each in others:
            first = f"A.{name}({first}, {each})"
        return first

    return call


def _plain(template: str, *, rounded: bool = False) -> Callable[..., str]:
    def call(kind: str, types: list[str], texts: list[str]) -> str:
        text = template.format(*texts, kind=kind, given=types[0], bits=BITS.get(types[0], 0))
        return _rounded(kind, text) if rounded else text

    return call


def _of_floats(template: str, *, rounded: bool = False) -> Callable[..., str]:
    def call(kind: str, types: list[str], texts: list[str]) -> str:
        text = template.format(*_to(kind, types, texts), kind=kind)
        return _rounded(kind, text) if rounded else text

    return call


CALLS: dict[str, Callable[..., str]] = {
    "abs": lambda kind, types, texts: f"abs({texts[0]})" if kind in FLOATS else f"A.wrap('{kind}', abs({texts[0]}))",
    "min": _extreme("lesser"),
    "max": _extreme("greater"),
    "round": _plain("_round({0})"),
    "int": _plain("A.convert('{given}', '{kind}', {0})"),
    "float": _plain("A.convert('{given}', '{kind}', {0})"),
    "math.sqrt": _of_floats("A.square_root({0})", rounded=True),
    "math.fabs": _of_floats("abs({0})"),
    "math.floor": _of_floats("A.integral(math.floor, {0})"),
    "math.ceil": _of_floats("A.integral(math.ceil, {0})"),
    "math.trunc": _of_floats("A.integral(math.trunc, {0})"),
    "math.copysign": _of_floats("math.copysign({0}, {1})"),
    "math.fmod": _of_floats("A.fmod({0}, {1})"),
    "math.remainder": _of_floats("A.remainder_of_floats({0}, {1})"),
    "math.isnan": _plain("({0} != {0})") if False else _plain("math.isnan({0})"),
    "math.isinf": _plain("math.isinf({0})"),
    "math.isfinite": _plain("math.isfinite({0})"),
    "math.gcd": _plain("A.{kind}(math.gcd({0}, {1}))"),
    "math.isqrt": _plain("math.isqrt(max({0}, 0))"),
    "intrinsics.fma": _of_floats("A.fused('{kind}', {0}, {1}, {2})"),
    "intrinsics.fmax": _of_floats("_number_of(max, {0}, {1})"),
    "intrinsics.fmin": _of_floats("_number_of(min, {0}, {1})"),
    "intrinsics.saturate": _of_floats("_saturate({0})"),
    "intrinsics.to_bits": _plain("A.to_bits('{given}', {0})"),
    "intrinsics.from_bits": _plain("A.from_bits('{kind}', {0})"),
    "intrinsics.popc": _plain("A.wrap('u{bits}', {0}).bit_count()"),
    "intrinsics.clz": _plain("({bits} - A.wrap('u{bits}', {0}).bit_length())"),
    "intrinsics.ffs": _plain("_first_set(A.wrap('u{bits}', {0}))"),
    "intrinsics.brev": _plain("A.wrap('{kind}', int(format(A.wrap('u{bits}', {0}), '0{bits}b')[::-1], 2))"),
    "intrinsics.mulhi": _plain("(({0}) * ({1}) >> {bits})"),
    "intrinsics.saturating_add": _plain("_held('{kind}', {0} + {1})"),
    "intrinsics.saturating_sub": _plain("_held('{kind}', {0} - {1})"),
}


def _chosen(which: Any, numbers: tuple[int, ...], wholes: tuple[int, ...]) -> int:
    """The whole number of the least or greatest of some numbers: of the first, if several are equal."""
    return wholes[numbers.index(which(numbers))]


def _round(a: float) -> int:
    return arithmetic.to_integer("i64", float(round(a)) if math.isfinite(a) else a)


def _number_of(which: Any, a: float, b: float) -> float:
    if a != a or b != b:
        return b if a != a else a
    return which(a, b)  # type: ignore[no-any-return]


def _saturate(a: float) -> float:
    return 0.0 if a != a else min(max(a, 0.0), 1.0)


def _first_set(a: int) -> int:
    return (a & -a).bit_length()


def _held(kind: str, number: int) -> int:
    return min(max(number, LEAST[kind]), GREATEST[kind])


def _fused_right(kind: str, c: float, a: float, b: float) -> float:
    return arithmetic.fused(kind, a, b, c)


def _element(elements: list[Any], place: int | None, zero: Any) -> Any:
    if place is None:
        return zero
    value = elements[place]
    if value is None:
        raise _Unwritten
    return value


def _index_2d(thread: _Thread, width: int) -> tuple[int, int]:
    row, col = (thread.bi[a] * thread.bd[a] + thread.ti[a] for a in (1, 0))
    return (row * width + col if 0 <= col < width < 2**36 else -1), width


def _flat(thread: _Thread) -> int:
    (x, y, z), (a, b, _) = thread.ti, thread.bd
    return x + a * (y + b * z)


def _side_by_side(thread: _Thread, line: int, *views: _View) -> Any:
    for view in views:
        _report(thread, view)
    if len(views) == 1:
        return list(views[0].rows[0])
    if len({len(view.rows[0]) for view in views}) > 1:
        thread.mistake(line)
        return []
    return list(zip(*(view.rows[0] for view in views), strict=True))


def _rows(thread: _Thread, view: _View) -> Any:
    _report(thread, view)
    return view.rows


def _report(thread: _Thread, view: _View) -> None:
    if view.bad is not None:
        what, index, length = view.bad
        thread.outside(what, (index,), (length,), view.line)


def _length_of_view(thread: _Thread, view: _View) -> int:
    _report(thread, view)
    return len(view.rows[0])


def _of_view(thread: _Thread, view: _View, index: int, line: int, zero: Any) -> Any:
    _report(thread, view)
    return thread.read(view.rows[0], f"a view of {view.what}", index, line, zero)


def _lanes(thread: _Thread, elements: list[Any], what: str, first: int, count: int, kind: str, line: int) -> Any:
    """A vector: both its ends are checked, and its address, which is a multiple of its size or of 16 bytes."""
    zeros = (0.0 if kind in FLOATS else 0,) * count
    for index in (first, first + count - 1):
        if not 0 <= index < len(elements):
            thread.outside(what, (index,), (len(elements),), line)
            return zeros
    size = BITS[kind] // 8
    if first * size % min(count * size, 16):
        thread.mistake(line)
        return zeros
    return tuple(elements[first : first + count])


def _lanes_of_row(
    thread: _Thread,
    elements: list[Any],
    what: str,
    shape: tuple[int, ...],
    before: tuple[int, ...],
    first: int,
    count: int,
    kind: str,
    line: int,
) -> Any:
    """A vector of a slice of several axes: each index is checked against its axis, and the last at both ends."""
    place = thread.place(shape, what, (*before, first), line)
    if place is None or thread.place(shape, what, (*before, first + count - 1), line) is None:
        return (0.0 if kind in FLOATS else 0,) * count
    return _lanes(thread, elements, what, place, count, kind, line)


def _atomic(
    thread: _Thread, elements: list[Any], what: str, method: str, kind: str, line: int, index: int, *given: Any
) -> Any:
    index = arithmetic.i64(index)
    zero = 0 if kind in INTEGERS else 0.0
    if not 0 <= index < len(elements):
        thread.outside(what, (index,), (len(elements),), line)
        return zero
    old = elements[index]
    match method:
        case "fetch_add":
            new = old + given[0]
        case "fetch_sub":
            new = old - given[0]
        case "fetch_min":
            new = min(old, given[0])
        case "fetch_max":
            new = max(old, given[0])
        case "fetch_and":
            new = old & given[0]
        case "fetch_or":
            new = old | given[0]
        case "fetch_xor":
            new = old ^ given[0]
        case "exchange" | "store":
            new = given[0]
        case "compare_exchange":
            new = given[1] if old == given[0] else old
        case "load":
            return old
        case _:
            raise NotImplementedError(method)
    elements[index] = arithmetic.wrap(kind, new) if kind in INTEGERS else ROUND[kind](new)
    return old


_NAMES: dict[str, Any] = {
    name: value for name, value in globals().items() if name.startswith("_") and not name.startswith("__")
}


class Reference:
    """A program, ready to be run without oxide. Its source must have been written, as faults name its lines."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.text = _Translator(program).run()
        names = {**_NAMES, "A": arithmetic, "math": math}
        exec(compile(self.text, "<reference>", "exec"), names)
        self._kernel: Any = names["k"]
        self._constants = [
            arithmetic.of_array(array.type, array.numbers.reshape(-1))
            for array in program.arrays
            if array.kind == "constant"
        ]

    def run(self, launch: Launch, limit: int = 200_000) -> Outcome:
        """Runs a launch. Raises ``TooLong`` past so many iterations of loops, and ``Undefined`` where a thread reads
        what another one, that has a fault or left before its end, has not written, or may or may not end by a fault."""
        with np.errstate(all="ignore"):
            return self._run(launch, limit)

    def _run(self, launch: Launch, limit: int) -> Outcome:
        program = self.program
        arguments = {
            name: list(given) if isinstance(given, list) else given for name, given in launch.arguments.items()
        }
        outcome = Outcome({p.name: arguments[p.name] for p in program.parameters if p.kind in ("out", "atomic")})
        given = [arguments[parameter.name] for parameter in program.parameters] + self._constants
        left = [limit]
        goes_on = program.waits
        shared_arrays = [array for array in program.arrays if array.kind == "shared"]
        for bi in _places(launch.grid):
            shared = [[None] * math.prod(array.shape) for array in shared_arrays]
            threads = [_Thread(bi, ti, launch.block, launch.grid, goes_on, left) for ti in _places(launch.block)]
            try:
                _meet(
                    [(thread, generator) for thread in threads if (generator := self._begun(thread, *given, *shared))]
                )
            except _Unwritten:
                if not any(thread.fault or thread.gone for thread in threads):
                    raise AssertionError("the generated kernel reads what nothing has written") from None
                raise Undefined from None
            outcome.faults += [thread.fault for thread in threads if thread.fault is not None]
        if outcome.faults and program.may_wait:
            raise Undefined
        outcome.steps = limit - left[0]
        return outcome

    def _begun(self, thread: _Thread, *arguments: Any) -> Any:
        """Runs a thread, or begins one that waits for others."""
        try:
            return self._kernel(thread, *arguments)
        except _Leave:
            return None


def _places(shape: Triple) -> list[Triple]:
    x, y, z = shape
    return [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]


def _meet(running: list[Any]) -> None:
    """Runs the threads of a block from one meeting to the next, till all have ended."""
    answers: dict[Any, Any] = dict.fromkeys((thread for thread, _ in running), None)
    while running:
        brought, still = [], []
        for thread, generator in running:
            try:
                brought.append(generator.send(answers[thread]))
                still.append((thread, generator))
            except StopIteration:
                pass
            except _Leave:
                thread.gone = True
        running = still
        if not running:
            return
        kinds = {each[0] for each in brought}
        if len(kinds) > 1:
            raise AssertionError(f"the generated kernel's threads meet at different places: {kinds}")
        (kind,) = kinds
        threads = [thread for thread, _ in running]
        if kind.startswith("warp."):
            warps: dict[int, list[int]] = {}
            for place, thread in enumerate(threads):
                warps.setdefault(_flat(thread) // 32, []).append(place)
            for lanes in warps.values():
                numbers = [_flat(threads[place]) % 32 for place in lanes]
                try:
                    results = _exchange(kind, numbers, [brought[place] for place in lanes])
                except KeyError:  # a lane that does not exist, or has left
                    raise Undefined from None
                for place, result in zip(lanes, results, strict=True):
                    answers[threads[place]] = result
        else:
            values = [each[2] for each in brought]
            result: Any = None
            if kind.endswith("count"):
                result = sum(map(bool, values))
            elif kind.endswith("and"):
                result = all(values)
            elif kind.endswith("or"):
                result = any(values)
            answers = dict.fromkeys(threads, result)


def _exchange(kind: str, lanes: list[int], brought: list[Any]) -> list[Any]:
    """What each lane of a warp takes from an operation of all its lanes."""
    values = [each[2] for each in brought]
    by_lane = dict(zip(lanes, values, strict=True))
    here = list(zip(lanes, brought, strict=True))
    name = kind.removeprefix("warp.")
    match name:
        case "shuffle":
            return [by_lane[each[3] % 32] for each in brought]
        case "shuffle_up":
            return [by_lane[lane - each[3] if lane >= each[3] else lane] for lane, each in here]
        case "shuffle_down":
            return [by_lane[lane + each[3] if lane + each[3] < 32 else lane] for lane, each in here]
        case "shuffle_xor":
            return [by_lane[lane ^ each[3]] for lane, each in here]
        case "all":
            return [all(values)] * len(values)
        case "any":
            return [any(values)] * len(values)
        case "ballot":
            return [sum(1 << lane for lane, value in by_lane.items() if value)] * len(values)
        case "match_any":
            return [sum(1 << lane for lane, other in by_lane.items() if other == value) for value in values]
    kind_of = brought[0][1]
    match name:
        case "reduce_add":
            total: Any = sum(values)
            total = arithmetic.wrap(kind_of, total) if kind_of in INTEGERS else ROUND[kind_of](total)
        case "reduce_min":
            total = min(values)
        case "reduce_max":
            total = max(values)
        case "reduce_and" | "reduce_or" | "reduce_xor":
            total = values[0]
            for each in values[1:]:
                total = total & each if name.endswith("and") else total | each if name.endswith("_or") else total ^ each
        case _:
            raise NotImplementedError(kind)
    return [total] * len(values)
