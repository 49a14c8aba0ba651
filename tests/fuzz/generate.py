"""Random kernels: a program for each seed, and launches of it.

A program is well-typed by construction, reads a local only where it has a value, and gives the same result in whatever
order its threads run: threads share elements only through operations that commute, and meet only where all of them
come. Most indices are inside and some are not, so that about every third launch has threads that fault.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from . import arithmetic
from .arithmetic import BITS, FLOATS, GREATEST, HALVES, INTEGERS, LEAST, SIGNED, UNSIGNED, WIDE_FLOATS, common
from .interpret import Launch
from .tree import Array, Expr, Function, Parameter, Program, Stmt

Place = tuple[str, Any]

_SIZES = (0, 1, 2, 5, 31, 32, 33, 64, 100, 461, 1000)
_WEIGHTS = (2, 2, 2, 4, 5, 4, 6, 4, 4, 2, 1)


# Expressions in short


def literal(number: Any) -> Expr:
    kind = "f64" if isinstance(number, float) else "i64" if number < 2**63 else "u64"
    return Expr("literal", kind, [], number)


def convert(e: Expr, kind: str) -> Expr:
    return e if e.type == kind and e.op != "literal" else Expr("convert", kind, [e])


def constant(kind: str, number: Any) -> Expr:
    return Expr("convert", kind, [literal(number)])


def is_known(e: Expr) -> bool:
    """Whether an expression is made of constants alone."""
    return all(map(is_known, e.args)) if e.args else e.op in ("literal", "bare", "special")


def bare(kind: str, number: Any) -> Expr:
    """A literal that meets a float of a type, and takes it."""
    return Expr("bare", kind, [], number)


def name(text: str, kind: str) -> Expr:
    return Expr("name", kind, [], text)


def length(text: str) -> Expr:
    return Expr("len", "place", [], text)


def binary(kind: str, operator: str, a: Expr, b: Expr) -> Expr:
    return Expr("binary", kind, [a, b], operator)


def call(kind: str, function: str, *args: Expr) -> Expr:
    return Expr("call", kind, list(args), function)


def fits(number: int, kind: str) -> bool:
    return LEAST[kind] <= number <= GREATEST[kind]


def is_storable(kind: str, target: str) -> bool:
    """Whether an integer of a type is converted to another without a word, as NumPy's ``same_kind`` allows."""
    return not (kind in SIGNED and target in UNSIGNED)


def total(operator: str, a: Expr, b: Expr) -> Expr:
    """A sum, difference or product of typed integers, places and literals, for an index."""
    if a.op == b.op == "literal":
        return literal({"+": a.value + b.value, "-": a.value - b.value, "*": a.value * b.value}[operator])
    for one, other in ((a, b), (b, a)):
        if one.op == "literal":
            kind = other.type
            if kind != "place" and not fits(one.value, kind):
                a, b = (e if e is one else convert(e, "i64") for e in (a, b))
                kind = "i64"
            return binary(kind, operator, a, b)
    if a.type == b.type == "place":
        return binary("place", operator, a, b)
    kind = common(*("i64" if each.type == "place" else each.type for each in (a, b)))
    if kind is None:
        a, b, kind = convert(a, "i64"), convert(b, "i64"), "i64"
    return binary(kind, operator, a, b)


def chain_begins(e: Expr) -> Expr:
    """An index in which a written conversion ends the chain of each variable, so that the reference need not know what
    was assigned to it."""
    goes_on = (
        (e.op == "binary" and e.value in ("+", "-", "*"))
        or (e.op == "unary" and e.value in ("-", "+"))
        or (e.op == "call" and e.value in ("min", "max"))
    )
    if goes_on:
        return Expr(e.op, e.type, [chain_begins(each) for each in e.args], e.value)
    if e.op == "binary" and e.value == "<<":
        return Expr(e.op, e.type, [chain_begins(e.args[0]), e.args[1]], e.value)
    if e.op == "ternary":
        return Expr(e.op, e.type, [e.args[0], *map(chain_begins, e.args[1:])])
    if e.op == "name" and e.type in INTEGERS and str(e.value)[0] not in "np":
        return Expr("convert", e.type, [e])
    return e


_OPERANDS = {
    kind: [(a, b) for a in INTEGERS for b in INTEGERS if common(a, b) == kind] + [(kind, "literal"), (kind, "bool")]
    for kind in INTEGERS
}
"""The pairs of operands whose common type is each integer type."""
_OPERANDS["i64"] += [("place", kind) for kind in (*SIGNED, "u8", "u16", "u32", "i64", "i64")]


def range_type(bounds: list[Expr]) -> str:
    """The type in which a loop counts."""
    kinds = {each.type for each in bounds if each.op != "literal"}
    constants = [each.value for each in bounds if each.op == "literal"]
    return "u64" if "u64" in kinds and kinds <= {*UNSIGNED} and min(constants, default=0) >= 0 else "i64"


class Generator:
    """Makes one program. ``rng`` decides everything."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.program = Program([], [])
        self.variables: dict[str, str] = {}
        self.frozen: set[str] = set()
        self.counter = 0
        self.loops: list[str] = []
        self.in_loop = False
        self.in_function = False
        self.refs: dict[str, str] = {}
        self.tiles: dict[str, Array] = {}
        self.elements: list[Array] = []
        self.views: dict[str, str] = {}
        self.given: list[Parameter] = []
        """The slices that the function is given that is being made."""
        self.pure = False
        """Whether what is generated must be the same in all threads and fault in none."""
        self.allow_leave = True
        self.budget = rng.choice((8, 16, 30, 60))

    # Choices

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def pick(self, options: Any) -> Any:
        return self.rng.choice(list(options))

    def weighted(self, *options: tuple[float, Any]) -> Any:
        return self.rng.choices([each for _, each in options], [weight for weight, _ in options])[0]

    def fresh(self, stem: str = "v") -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    # Numbers

    def number(self, kind: str) -> Any:
        rng = self.rng
        if kind == "bool":
            return rng.random() < 0.5
        if kind in INTEGERS:
            low, high = LEAST[kind], GREATEST[kind]
            return self.weighted(
                (6, lambda: rng.randint(max(low, -4), 9)),
                (2, lambda: rng.randint(max(low, -100), min(high, 100))),
                (2, lambda: min(max(self.pick((low, high, high // 2, high // 2 + 1)) + rng.randint(-2, 2), low), high)),
                (2, lambda: rng.randint(low, high)),
                (1, lambda: min(max(2 ** rng.randrange(BITS[kind]) + rng.randint(-1, 1), low), high)),
                (1, lambda: min(max(self.integer_near_a_tie(BITS[kind]), low), high)),
            )()
        to_kind = arithmetic.ROUND[kind]
        return to_kind(
            self.weighted(
                (4, lambda: float(rng.randint(-8, 8))),
                (9, lambda: rng.uniform(-4, 4)),
                (2, lambda: rng.randint(-1000, 1000) / 8),
                (1, lambda: rng.uniform(-1, 1) * 2.0 ** rng.randint(-160, 160)),
                (1, lambda: self.pick((0.0, -0.0, float("inf"), float("-inf"), float("nan")))),
                (1, lambda: float(2 ** rng.randrange(70)) + rng.randint(-1, 1)),
                (2, self.near_a_tie),
                (1, lambda: self.pick((1e-45, 6e-8, 65504.0, 65520.0, 3.4e38, 1e-40, 1.7e308, 5e-324, 2.0**-126))),
            )()
        )

    def near_a_tie(self) -> float:
        """A double about halfway between two neighbours of a narrower type, where a second rounding would show."""
        rng = self.rng
        bits, low = self.pick(((11, -24), (8, -20), (24, -20)))
        halfway = (2 * rng.randrange(2 ** (bits - 1), 2**bits) + 1) * 2.0 ** rng.randint(low, 4)
        return rng.choice((-1, 1)) * (halfway + rng.choice((-1, 0, 1)) * halfway * 2.0 ** -rng.randint(26, 51))

    def integer_near_a_tie(self, bits: int) -> int:
        """An integer about halfway between two neighbours of a float type."""
        rng, precision = self.rng, self.pick((8, 11, 24, 53))
        spare = max(bits - 1 - precision, 1)
        halfway = (2 * rng.randrange(2 ** (precision - 1), 2**precision) + 1) << rng.randrange(spare)
        return int(rng.choice((-1, 1)) * (halfway + rng.choice((-1, 0, 1))))

    def constant(self, kind: str) -> Expr:
        value = self.number(kind)
        if kind == "bool":
            return Expr("compare", "bool", [self.place(1), literal(self.rng.randint(-3, 3))], self.pick(_COMPARES))
        if kind in FLOATS:
            if value != value or value in (float("inf"), float("-inf")):
                special = Expr("special", "f64", [], "nan" if value != value else "inf")
                if value == float("-inf"):
                    special = Expr("unary", "f64", [special], "-")
                return convert(special, kind) if kind != "f64" else special
            return literal(value) if kind == "f64" and self.chance(0.7) else constant(kind, value)
        if kind == "i64" and self.chance(0.6):
            return literal(value)
        return constant(kind, value)

    # Expressions

    def place(self, depth: int) -> Expr:
        """An index of a thread, a length, a loop's counter, or arithmetic of them and literals."""
        if depth > 0 and self.chance(0.5):
            operator = self.pick(("+", "-", "*", "//", "%", "&", "<<", "min"))
            a = self.place(depth - 1)
            b = self.place(depth - 1) if operator != "<<" and self.chance(0.3) else literal(self.rng.randint(0, 9))
            if operator == "min":
                return call("place", self.pick(("min", "max")), a, b)
            return binary("place", operator, a, b)
        options = [lambda n=n: name(n, "place") for n, k in self.variables.items() if k == "place"]
        if self.lengths() and not self.in_function:
            options.append(lambda: length(self.pick(self.lengths())))
        if not self.pure:
            options.append(lambda: Expr("thread", "place", [], self.pick(self.coordinates())))
        return self.pick(options)()  # type: ignore[no-any-return]

    def leaf(self, kind: str) -> Expr:
        """A variable, a parameter or an element of a type, else a constant."""
        if kind == "place":
            return self.place(0)
        options: list[Callable[[], Expr]] = []
        options += [lambda n=n: name(n, kind) for n, k in self.variables.items() if k == kind] * 2
        options += [lambda n=n: name(n, kind) for n in self.loops if self.variables.get(n) == kind]
        options += [lambda p=p: self.read(p) for p in self.given if p.type == kind] * 2
        if not self.in_function:
            for parameter in self.program.parameters:
                if parameter.kind == "scalar" and parameter.type == kind:
                    options.append(lambda p=parameter: name(p.name, kind))
                if parameter.kind == "tuple":
                    for number, (field, field_kind) in enumerate(parameter.fields):
                        if field_kind == kind:
                            text = (
                                f"{parameter.name}.{field}"
                                if parameter.type == "named" and self.chance(0.7)
                                else f"{parameter.name}[{number}]"
                            )
                            value = (text, parameter.name, number)
                            options.append(lambda v=value: Expr("field", kind, [], v))
                if parameter.kind == "slice" and parameter.type == kind and not self.pure:
                    options += [lambda p=parameter: self.read(p)] * 2
                if parameter.kind == "shaped" and parameter.type == kind and not self.pure:
                    options += [lambda p=parameter: self.read_shaped(p)] * 2
                if parameter.kind == "shaped" and kind == "i64" and self.chance(0.3):
                    options.append(
                        lambda p=parameter: convert(self.extent(p, self.rng.randrange(1 + len(p.inner))), "i64")
                    )
            if not self.pure:
                options += [lambda n=n: Expr("ref", kind, [], n) for n, k in self.refs.items() if k == kind]
                for array in [*self.elements, *(each for each in self.program.arrays if each.kind == "constant")]:
                    if array.type == kind:
                        options.append(lambda a=array: self.element(a))
                options += [lambda n=n, t=t: self.element(t, "tile") for n, t in self.tiles.items() if t.type == kind]
                for view, k in self.views.items():
                    if k == kind:
                        options.append(lambda v=view: Expr("view", kind, [self.index(length(v))], v))
        if kind in INTEGERS and self.chance(0.15):
            options.append(lambda: convert(self.place(1), kind))
        if not options and kind != "bool" and self.chance(0.7):
            known = [name(each, k) for each, k in self.variables.items() if k != "bool"]
            if known:
                return convert(self.pick(known), kind)
        if not options or self.chance(0.2):
            return self.constant(kind)
        return self.pick(options)()  # type: ignore[no-any-return]

    def lengths(self) -> list[str]:
        return [p.name for p in self.program.parameters if p.kind in ("slice", "out", "atomic")]

    def coordinates(self) -> list[str]:
        found = ["thread.thread_idx.x", "thread.block_idx.x", "thread.block_dim.x", "thread.thread_idx.y"]
        if self.program.shape == "2d":
            found += ["thread.index_2d_row()", "thread.index_2d_col()", "thread.block_idx.y"]
        return found

    def read(self, parameter: Parameter, index: Expr | None = None) -> Expr:
        if index is None:
            index = self.index(length(parameter.name))
        return Expr("read", parameter.type, [index], parameter.name)

    def extent(self, parameter: Parameter, axis: int) -> Expr:
        return Expr("extent", "place", [], (parameter.name, axis))

    def read_shaped(self, parameter: Parameter) -> Expr:
        indices = [self.index(self.extent(parameter, axis)) for axis in range(1 + len(parameter.inner))]
        return Expr("shaped", parameter.type, indices, parameter.name)

    def element(self, array: Array, op: str = "element") -> Expr:
        return Expr(op, array.type, self.indices(array, tile=op == "tile"), array.name)

    def indices(self, array: Array, tile: bool = False) -> list[Expr]:
        found = []
        for side in array.shape:
            if self.chance(0.4):
                found.append(literal(self.rng.randrange(side)))
            elif self.chance(0.96) or (tile and self.pure):
                found.append(self.index(literal(side)))
            else:
                found.append(chain_begins(self.typed("i64", 1)))
            if tile and found[-1].op == "literal":
                found[-1] = literal(self.rng.randrange(side))  # any other is refused
        return found

    def index(self, limit: Expr) -> Expr:
        return chain_begins(self.any_index(limit))

    def any_index(self, limit: Expr) -> Expr:
        """An index into so many elements: inside by a remainder, or a loop's counter and what is like one, or any."""
        if self.loops and self.chance(0.5):
            loop = self.pick(self.loops)
            counter = name(loop, self.variables[loop])
            return self.weighted(
                (4, lambda: counter),
                (2, lambda: total("+", counter, literal(self.rng.randint(-1, 2)))),
                (2, lambda: total("*", counter, literal(self.rng.choice((-1, 0, 1, 2, 3))))),
                (2, lambda: total("+", counter, self.small())),
                (2, lambda: total("+", total("*", counter, self.small()), self.small())),
                (1, lambda: total("-", self.small(), counter)),
                (2, lambda: self.remainder(total("+", counter, self.small()), limit)),
            )()  # type: ignore[no-any-return]
        indices = [each for each in ("i", "row", "col") if each in self.variables]
        if indices and self.chance(0.4):
            own = name(self.pick(indices), "place")
            return own if self.chance(0.94) else binary("place", "+", own, literal(self.rng.choice((-1, 1, 2))))
        if self.chance(0.06):
            return self.narrow_chain()
        if self.chance(0.96):
            kind = self.pick(("place", "i64", "i32", "u32", "u8", "u64"))
            value = self.place(2) if kind == "place" else self.expr(kind, 1)
            if value.op == "literal":
                value = convert(value, kind) if value.type != kind else constant(kind, value.value)
            return self.remainder(value, limit)
        value = self.expr(self.pick(("i64", "i32", "u32", "u64", "i16", "u8")), self.rng.randint(1, 2))
        # A negative literal is refused, as Python's index from the end.
        return constant(value.type, value.value) if value.op == "literal" and value.value < 0 else value

    def narrow_chain(self) -> Expr:
        """An index that may wrap in its type, and is outside then."""
        kind = self.pick(("u8", "i8", "u16", "i32", "u32"))
        a, b = self.typed(kind, 0), self.typed(kind, 0)
        e = binary(kind, self.pick("+-*"), a, b)
        return self.weighted(
            (2, lambda: e),
            (1, lambda: binary(kind, "<<", a, literal(self.rng.randrange(9)))),
            (1, lambda: binary(kind, "-", total("+", e, a), b)),
            (1, lambda: total("+", e, self.small())),
            (1, lambda: call(kind, self.pick(("min", "max")), e, bare(kind, self.rng.randint(0, 9)))),
            (1, lambda: Expr("ternary", kind, [self.condition(1), e, bare(kind, self.rng.randint(0, 9))])),
            (1, lambda: binary(kind, self.pick(("//", "%", "&", "|")), e, bare(kind, self.rng.randint(1, 9)))),
            (1, lambda: Expr("convert", self.pick(("i64", kind)), [e])),
        )()  # type: ignore[no-any-return]

    def remainder(self, value: Expr, limit: Expr) -> Expr:
        if value.op == "literal":
            return convert(value, "i64") if limit.op == "literal" else binary("place", "%", value, limit)
        if value.type == "u64" and limit.op != "literal":
            value = convert(value, "i64")
        if limit.op == "literal" and value.type != "place" and not fits(limit.value, value.type):
            value = convert(value, "i64")
        if limit.op == "literal":
            return binary(value.type, "%", value, limit)
        return binary("place" if value.type == "place" else "i64", "%", value, limit)

    def small(self) -> Expr:
        """A number that is often small: a count, or a parameter, or the thread's own."""
        counts = [p for p in self.program.parameters if p.kind == "scalar" and p.name.startswith("n")]
        if counts and not self.in_function and self.chance(0.5):
            parameter = self.pick(counts)
            return name(parameter.name, parameter.type)
        if "i" in self.variables and self.chance(0.4):
            return name("i", "place")
        return literal(self.rng.randint(0, 4))

    def condition(self, depth: int) -> Expr:
        return self.expr("bool", depth)

    def expr(self, kind: str, depth: int) -> Expr:
        """An expression of a type."""
        if depth <= 0 or self.chance(0.12):
            return self.leaf(kind)
        makers = self.makers(kind)
        return self.weighted(*makers)(depth)  # type: ignore[no-any-return]

    def makers(self, kind: str) -> list[tuple[float, Callable[[int], Expr]]]:
        makers: list[tuple[float, Callable[[int], Expr]]] = [
            (3, lambda d: self.leaf(kind)),
            (1, lambda d: self.ternary(kind, d)),
        ]
        functions = [f for f in self.program.functions if f.returns == kind]
        if functions and not self.in_function:
            makers.append((3, lambda d: self.function(self.pick(functions), d)))
        if kind == "bool":
            return [
                *makers,
                (8, self.comparison),
                (2, self.chain),
                (2, lambda d: Expr(self.pick(("and", "or")), "bool", [self.expr("bool", d - 1) for _ in range(2)])),
                (1, lambda d: Expr("unary", "bool", [self.expr("bool", d - 1)], self.pick(("not", "~")))),
                (1, lambda d: binary("bool", self.pick("&|^"), self.expr("bool", d - 1), self.expr("bool", d - 1))),
                (1, self.literal_comparison),
                (1, lambda d: Expr("convert", "bool", [self.typed(self.pick((*INTEGERS, *FLOATS)), d - 1)])),
                (1, lambda d: call("bool", self.pick(_CLASSES), self.typed(self.pick(WIDE_FLOATS), d - 1))),
            ]
        makers.append((2, lambda d: self.extreme(kind, d)))
        makers.append((3, lambda d: self.conversion(kind, d)))
        makers.append((1, lambda d: call(kind, "abs", self.typed(kind, d - 1))))
        makers.append((1, lambda d: Expr("unary", kind, [self.typed(kind, d - 1)], self.pick("---+"))))
        if kind in INTEGERS:
            makers.append((1, lambda d: Expr("unary", kind, [self.typed(kind, d - 1)], "~")))
        if kind in INTEGERS:
            makers += [
                (8, lambda d: self.integer_sum(kind, d)),
                (3, lambda d: self.division(kind, d)),
                (2, lambda d: self.shift(kind, d)),
                (1, lambda d: self.integer_power(kind, d)),
                (1, lambda d: Expr("divmod", kind, self.operands(kind, d), self.pick((0, 1)))),
            ]
        if kind in ("i64", "u64"):
            makers += [
                (1, lambda d: call(kind, "math.gcd", self.typed(kind, d - 1), self.typed(kind, d - 1))),
                (0.5, lambda d: call(kind, "math.isqrt", self.typed(kind, d - 1))),
            ]
        if kind in ("i32", "i64", "u32", "u64"):
            makers += [
                (1, lambda d: call(kind, "intrinsics.brev", self.typed(kind, d - 1))),
                (1, lambda d: call(kind, "intrinsics.mulhi", self.typed(kind, d - 1), self.typed(kind, d - 1))),
                (1, lambda d: call(kind, self.pick(_SATURATING), self.typed(kind, d - 1), self.typed(kind, d - 1))),
            ]
        if kind == "i32":
            makers.append((2, lambda d: call("i32", self.pick(_COUNTS), self.typed(self.pick(_WORDS), d - 1))))
        if kind in ("u32", "u64"):
            makers.append((1, lambda d: self.bits(kind, d)))
        if kind == "i64":
            makers.append((1, lambda d: call("i64", "round", self.typed(self.pick(("f32", "f64")), d - 1))))
        if kind in FLOATS:
            makers += [
                (10, lambda d: self.float_operation(kind, d)),
                (1, lambda d: call(kind, "math.sqrt", self.typed(kind, d - 1))),
                (2, lambda d: call(kind, self.pick(_ROUNDINGS), self.typed(kind, d - 1))),
                (1, lambda d: call(kind, self.pick(_REMAINDERS), self.typed(kind, d - 1), self.typed(kind, d - 1))),
            ]
        if kind in WIDE_FLOATS:
            makers += [
                (2, lambda d: call(kind, "intrinsics.fma", *(self.typed(kind, d - 1) for _ in range(3)))),
                (1, lambda d: self.number_extreme(kind, d)),
                (1, lambda d: call(kind, "intrinsics.from_bits", self.typed("u32" if kind == "f32" else "u64", d - 1))),
                (1, lambda d: self.signed(kind, d)),
                (4, lambda d: self.sum_of_products(kind, d)),
            ]
        if kind in self.divisible():
            makers.append((1, lambda d: self.float_division(kind, d)))
        return makers

    def divisible(self) -> tuple[str, ...]:
        return ("f32", "f64")

    def typed(self, kind: str, depth: int) -> Expr:
        """An expression of a type that is no bare constant, so that its type is the only one it can have."""
        e = self.expr(kind, depth)
        if e.op == "special" or (e.op == "unary" and e.args[0].op == "special"):
            return Expr("convert", kind, [e])
        return constant(kind, e.value) if e.op == "literal" else e

    def bare(self, kind: str) -> Expr:
        if self.chance(0.3):
            return bare(kind, self.rng.randint(-9, 9))
        value = self.number(self.pick(("f64", kind)))
        return bare(kind, value if math.isfinite(value) else 0.1)

    def near(self, kind: str, depth: int) -> Expr:
        """An expression of a type that another operand has too, so that it may be a bare literal."""
        if kind in INTEGERS and self.chance(0.15):
            return bare(kind, self.number(kind))
        return self.bare(kind) if kind in FLOATS and self.chance(0.2) else self.typed(kind, depth)

    def literal_comparison(self, depth: int) -> Expr:
        """A comparison with a literal, which need not fit in the type of the other operand."""
        kind = self.pick((*INTEGERS, "place"))
        number = literal(self.number(self.pick(INTEGERS)))
        sides = [self.place(1) if kind == "place" else self.typed(kind, depth - 1), number]
        self.rng.shuffle(sides)
        return Expr("compare", "bool", sides, self.pick(_COMPARES))

    def comparison(self, depth: int) -> Expr:
        if self.chance(0.1):
            sides = [self.place(1), self.typed(self.pick(INTEGERS), depth - 1)]
            self.rng.shuffle(sides)
            return Expr("compare", "bool", sides, self.pick(_COMPARES))
        if self.chance(0.6):
            a, b = self.pick(INTEGERS), self.pick(INTEGERS)
        else:
            a = b = self.pick(FLOATS)
            if self.chance(0.2):
                b = self.pick(FLOATS)
        first = self.typed(a, depth - 1)
        # Often of one number in two types, which may be equal.
        second = convert(first, b) if self.chance(0.15) else self.typed(b, depth - 1)
        if a == b and self.chance(0.1):
            second = self.near(b, depth - 1)
        return Expr("compare", "bool", [first, second], self.pick(_COMPARES))

    def chain(self, depth: int) -> Expr:
        operators = self.pick((("<", "<="), ("<=", "<"), (">", ">="), ("<", "<"), ("==", "<")))
        return Expr("chain", "bool", [self.typed(self.pick(INTEGERS), depth - 1) for _ in range(3)], operators)

    def ternary(self, kind: str, depth: int) -> Expr:
        condition = self.condition(depth - 1)
        # A condition that is known at compile time leaves one operand, which a bare literal does not give its type.
        a, b = self.typed(kind, depth - 1), (self.typed if is_known(condition) else self.near)(kind, depth - 1)
        return Expr("ternary", kind, [condition, a, b])

    def function(self, function: Function, depth: int) -> Expr:
        given = []
        for _, kind in function.parameters:
            if kind.startswith("slice "):
                slices = [each.name for each in self.slices() if each.type == kind[6:]]
                given.append(Expr("slice", kind, [], self.pick(slices)))
            elif function.annotated and self.chance(0.3) and kind in INTEGERS:
                given.append(self.typed(self.pick([each for each in INTEGERS if is_storable(each, kind)]), depth - 1))
            else:
                given.append(self.typed(kind, depth - 1))
        return Expr("function", function.returns, given, function.name)

    def extreme(self, kind: str, depth: int) -> Expr:
        if kind in INTEGERS and self.chance(0.5):
            return call(kind, self.pick(("min", "max")), *self.operands(kind, depth, bools=False))
        count = 2 if self.chance(0.8) else 3
        given = [self.typed(kind, depth - 1), *(self.near(kind, depth - 1) for _ in range(count - 1))]
        self.rng.shuffle(given)
        return call(kind, self.pick(("min", "max")), *given)

    def conversion(self, kind: str, depth: int) -> Expr:
        others = [each for each in (*INTEGERS, *FLOATS, "bool") if each != kind]
        if kind in (*HALVES, "f32") and self.chance(0.4):
            return Expr("convert", kind, [self.typed(self.pick(("f64", "f64", "i64", "u64")), min(depth - 1, 1))])
        return Expr("convert", kind, [self.typed(self.pick(others), depth - 1)])

    def operands(self, kind: str, depth: int, *, bools: bool = True) -> list[Expr]:
        """Two operands whose common type is an integer type: typed numbers, a place, a literal that fits, or a bool."""
        first, second = self.pick(_OPERANDS[kind])
        if second == "bool" and not bools:
            second = "literal"
        sides = [self.place(1) if first == "place" else self.typed(first, depth - 1)]
        sides.append(bare(kind, self.number(kind)) if second == "literal" else self.typed(second, depth - 1))
        self.rng.shuffle(sides)
        return sides

    def integer_sum(self, kind: str, depth: int) -> Expr:
        return binary(kind, self.pick("++--***&|^"), *self.operands(kind, depth))

    def division(self, kind: str, depth: int) -> Expr:
        return binary(kind, self.pick(("//", "%")), *self.operands(kind, depth))

    def shift(self, kind: str, depth: int) -> Expr:
        if self.chance(0.15):  # a literal takes the type of the count
            return binary(kind, self.pick(("<<", ">>")), bare(kind, self.number(kind)), self.typed(kind, depth - 1))
        value = self.typed(kind, depth - 1)
        if self.chance(0.6):
            count = literal(self.rng.randrange(8) if self.chance(0.7) else self.pick((15, 16, 31, 32, 63, 64, 65)))
        else:
            count = self.typed(self.pick(INTEGERS), depth - 1)
            if self.chance(0.6):
                count = binary("i64", "&", convert(count, "i64"), literal(self.pick((7, 31, 63, 127))))
            elif self.chance(0.2):
                count = self.place(1)
        return binary(kind, self.pick(("<<", ">>")), value, count)

    def integer_power(self, kind: str, depth: int) -> Expr:
        if self.chance(0.2):  # a literal takes the type of the exponent
            return binary(kind, "**", bare(kind, self.number(kind)), self.typed(kind, depth - 1))
        base = self.typed(kind, depth - 1)
        if self.chance(0.4):
            return binary(kind, "**", base, literal(self.rng.randint(0, 5)))
        return binary(kind, "**", base, self.typed(self.pick(INTEGERS), depth - 1))

    def bits(self, kind: str, depth: int) -> Expr:
        """The bits of a float that is a number: those of a NaN differ between devices."""
        source = "f32" if kind == "u32" else "f64"
        value = self.variable(source)
        test = Expr("compare", "bool", [value, value], "==")
        return Expr("ternary", kind, [test, call(kind, "intrinsics.to_bits", value), constant(kind, 0)])

    def signed(self, kind: str, depth: int) -> Expr:
        """``copysign``, of the sign of a number: that of a NaN differs between devices."""
        value = self.variable(kind)
        test = Expr("compare", "bool", [value, value], "==")
        shown = call(kind, "math.copysign", self.typed(kind, depth - 1), value)
        return Expr("ternary", kind, [test, shown, constant(kind, 0.0)])

    def variable(self, kind: str) -> Expr:
        """A name of a type, or a constant that is a number."""
        names = [each for each, k in self.variables.items() if k == kind]
        if not self.in_function:
            names += [p.name for p in self.program.parameters if p.kind == "scalar" and p.type == kind]
        return name(self.pick(names), kind) if names else constant(kind, float(self.rng.randint(-9, 9)) / 4)

    def number_extreme(self, kind: str, depth: int) -> Expr:
        """C's ``fmax``, whose zero may have either sign: the sum with 0 has the one."""
        function = self.pick(("intrinsics.fmax", "intrinsics.fmin", "intrinsics.saturate"))
        count = 1 if function.endswith("saturate") else 2
        found = call(kind, function, *(self.typed(kind, depth - 1) for _ in range(count)))
        return binary(kind, "+", found, constant(kind, 0.0))

    def operand(self, kind: str, depth: int) -> Expr:
        """What may stand beside a float of a type in an operation that gives that type."""
        if kind in HALVES and self.chance(0.15):
            return self.typed(self.pick(INTEGERS), depth)
        if self.chance(0.1):
            return self.place(1)
        if kind == "f32" and self.chance(0.2):
            return self.typed(self.pick((*HALVES, "i8", "i16", "u8", "u16")), depth)
        if kind == "f64" and self.chance(0.15):
            return self.typed(self.pick(("f32", "f16", *INTEGERS)), depth)
        return self.near(kind, depth)

    def float_operation(self, kind: str, depth: int) -> Expr:
        if kind == "f64" and self.chance(0.1):
            return binary("f64", "/", *(self.typed(self.pick(INTEGERS), depth - 1) for _ in range(2)))
        operator = self.pick("+++--****/")
        sides = [self.typed(kind, depth - 1), self.operand(kind, depth - 1)]
        if self.chance(0.5):
            sides.reverse()
        return binary(kind, operator, *sides)

    def sum_of_products(self, kind: str, depth: int) -> Expr:
        """A sum of one product or two, of what is near at hand, so that its rounding shows."""

        def product() -> Expr:
            sides = [self.typed(kind, self.rng.randint(0, 1)) for _ in range(2)]
            if kind == "f64" and self.chance(0.2):
                sides[0] = self.typed("f32", 0)
            return binary(kind, "*", *sides)

        sides = [product(), product() if self.chance(0.5) else self.near(kind, depth - 1)]
        if self.chance(0.3):
            sides.reverse()
        return binary(kind, self.pick("+-"), *sides)

    def float_division(self, kind: str, depth: int) -> Expr:
        return binary(kind, self.pick(("//", "%")), self.typed(kind, depth - 1), self.near(kind, depth - 1))

    # Statements

    def block(self, size: int, depth: int) -> list[Stmt]:
        """Some statements; what they bind is known in them alone."""
        before, loops, views = dict(self.variables), list(self.loops), dict(self.views)
        body: list[Stmt] = []
        for _ in range(size):
            if self.budget <= 0:
                break
            self.budget -= 1
            body += self.statement(depth)
        self.variables, self.loops, self.views = before, loops, views
        return body

    def statement(self, depth: int) -> list[Stmt]:
        options: list[tuple[float, Callable[[int], list[Stmt]]]] = [
            (4, self.assign),
            (3, self.augment),
            (1, self.unpack),
        ]
        if depth > 0:
            options += [(3, self.branch), (3, self.range_loop), (1, self.while_loop)]
            if self.matrices() and not self.in_function:
                options.append((2, self.view_loop))
        if self.refs and not self.in_function:
            options.append((3, self.store))
        if (self.elements or self.tiles) and not self.in_function:
            options.append((4, self.put))
        if self.in_loop:
            options.append((0.7, self.jump))
        if self.allow_leave and not self.in_function:
            options.append((0.5, self.assertion))
            options.append((0.2, self.leave))
        if any(each.kind == "slice" for each in self.program.parameters) and not self.in_function:
            options.append((0.5, self.vector))
        if any(each.kind == "atomic" for each in self.program.parameters) and not self.in_function:
            options.append((2, self.atomic))
        return self.weighted(*options)(depth)  # type: ignore[no-any-return]

    def matrices(self) -> list[Parameter]:
        return [each for each in self.program.parameters if each.kind == "shaped" and len(each.inner) == 1]

    def slices(self) -> list[Parameter]:
        return [each for each in self.program.parameters if each.kind == "slice"]

    def kind(self) -> str:
        return self.pick(self.palette) if self.chance(0.8) else self.pick((*INTEGERS, *FLOATS, "bool"))

    def assign(self, depth: int) -> list[Stmt]:
        known = [each for each in self.variables if each not in self.frozen]
        if known and self.chance(0.4):
            variable = self.pick(known)
            kind = self.variables[variable]
        else:
            variable, kind = self.fresh(), "place" if self.chance(0.1) else self.kind()
        value = self.place(2) if kind == "place" else self.typed(kind, 3)
        statement = Stmt("assign", [value], [], variable)
        self.variables[variable] = kind
        return [statement]

    def augment(self, depth: int) -> list[Stmt]:
        known = [
            each for each, kind in self.variables.items() if each not in self.frozen and kind in (*INTEGERS, *FLOATS)
        ]
        if not known:
            return self.assign(depth)
        variable = self.pick(known)
        kind = self.variables[variable]
        if kind in FLOATS:
            operator = self.pick(("+", "+", "-", "*", "/"))
            operand = self.operand(kind, 2)
            if operand.type in HALVES and kind in HALVES and operand.type != kind:
                operand = self.typed(kind, 2)
        else:
            operator = self.pick(("+", "-", "*", "&", "|", "^", "<<", ">>", "//", "%"))
            others = INTEGERS if operator in ("<<", ">>") else [each for each in INTEGERS if common(each, kind) == kind]
            operand = self.typed(self.pick(others), 2)
            if self.chance(0.2) and operator not in ("<<", ">>"):
                operand = bare(kind, self.number(kind))
        return [Stmt("augment", [operand], [], (variable, operator, kind))]

    def unpack(self, depth: int) -> list[Stmt]:
        if self.chance(0.5):
            kind = self.pick(INTEGERS)
            first, second = self.fresh(), self.fresh()
            statement = Stmt("divmod", self.operands(kind, 2), [], (first, second, kind))
            self.variables |= {first: kind, second: kind}
            return [statement]
        kinds = [self.kind(), self.kind()]
        values = [self.typed(each, 2) for each in kinds]
        names = [self.fresh(), self.fresh()]
        known = [each for each, kind in self.variables.items() if each not in self.frozen and kind == kinds[0]]
        if known and self.chance(0.5):
            names[0] = self.pick(known)
        self.variables |= dict(zip(names, kinds, strict=True))
        return [Stmt("unpack", values, [], names)]

    def branch(self, depth: int) -> list[Stmt]:
        test = self.condition(2)
        body = self.block(self.rng.randint(1, 3), depth - 1)
        other = self.block(self.rng.randint(1, 2), depth - 1) if self.chance(0.5) else []
        if other and self.chance(0.4):
            # A name that both branches bind has a value behind them.
            variable = self.fresh()
            decided = test.op == "compare" and all(each.op == "literal" for each in test.args)  # one branch is gone
            kind = self.kind()
            values = [self.typed(kind, 2), self.typed(kind, 2) if decided or kind == "bool" else self.near(kind, 2)]
            self.rng.shuffle(values)
            for branch, value in zip((body, other), values, strict=True):
                branch.append(Stmt("join", [value], [], (variable, kind)))
            self.variables[variable] = kind
        return [Stmt("if", [test], [body, other])]

    def bounds(self) -> tuple[list[Expr], bool]:
        """What a ``range`` is given, and whether all of it is constant."""
        counts = [p for p in self.program.parameters if p.kind == "scalar" and p.name.startswith("n")]

        def count() -> Expr:
            if counts and not self.in_function and self.chance(0.6):
                parameter = self.pick(counts)
                return name(parameter.name, parameter.type)
            if self.chance(0.5):
                return literal(self.rng.randint(0, 7))
            return binary("i64", "%", self.typed("i64", 1), literal(self.rng.randint(1, 9)))

        roll = self.rng.random()
        if roll < 0.2:
            return [literal(self.rng.randint(0, 8))], True
        if roll < 0.6:
            return [count()], False
        if roll < 0.75:
            return [literal(self.rng.randint(-3, 3)), count()], False
        start, stop = count(), count()
        if self.allow_leave and self.chance(0.15):
            step: Expr = convert(self.typed("i32", 1), "i64")
        else:
            step = literal(self.pick((1, 2, 3, 5, -1, -1, -2, -3)))
        return [start, stop, step], False

    def range_loop(self, depth: int) -> list[Stmt]:
        bounds, constant_bounds = self.bounds()
        variable = self.fresh("j")
        kind = range_type(bounds)
        variables, loops, in_loop = dict(self.variables), list(self.loops), self.in_loop
        self.variables[variable] = "place"
        self.frozen.add(variable)
        self.loops = [*self.loops, variable]
        self.in_loop = True
        before = []
        if self.chance(0.4):
            # A sum, as loops have it.
            running, total_kind = self.fresh("s"), self.pick(("i64", "u64", "f32", "f64", *self.palette))
            if total_kind == "bool":
                total_kind = "f32"
            way = self.pick(("typed", "typed", "literal", "annotated"))
            if way == "annotated" and total_kind in INTEGERS:
                before.append(Stmt("annotated", [literal(0)], [], (running, total_kind)))
                others = [each for each in INTEGERS if common(total_kind, each) is not None]
                others = [each for each in others if is_storable(common(total_kind, each) or "", total_kind)]
                other = self.pick(others)
                value, result = self.typed(other, 3), common(total_kind, other)
                body = [Stmt("augment", [value], [], (running, self.pick("+-*^"), result))]
            elif way == "literal" and total_kind in ("i32", "i64", "u32", "u64", *FLOATS):
                before.append(Stmt("assign", [bare(total_kind, 0.0 if total_kind in FLOATS else 0)], [], running))
                body = [Stmt("augment", [self.typed(total_kind, 3)], [], (running, "+", total_kind))]
            else:
                way = "typed"
                before.append(Stmt("assign", [constant(total_kind, 0.0 if total_kind in FLOATS else 0)], [], running))
                self.variables[running] = total_kind
                body = [Stmt("augment", [self.typed(total_kind, 3)], [], (running, "+", total_kind))]
            variables[running] = total_kind
        else:
            body, way = [], ""
        if way in ("", "typed"):  # a literal has no type before the loop has been seen
            body += self.block(self.rng.randint(0 if body else 1, 3), depth - 1)
        self.variables, self.loops, self.in_loop = variables, loops, in_loop
        unrolled = constant_bounds and self.chance(0.3)
        return [*before, Stmt("range", bounds, [body], {"name": variable, "unroll": unrolled, "type": kind})]

    def while_loop(self, depth: int) -> list[Stmt]:
        counter = self.fresh("w")
        before = Stmt("assign", [constant("i64", self.rng.randint(-2, 2))], [], counter)
        variables, in_loop = dict(self.variables), self.in_loop
        variables[counter] = self.variables[counter] = "i64"
        self.frozen.add(counter)
        self.in_loop = True
        tests = [self.condition(2)] if self.chance(0.7) else []
        body = self.block(self.rng.randint(1, 3), depth - 1)
        self.variables, self.in_loop = variables, in_loop
        return [before, Stmt("while", tests, [body], (counter, self.rng.randint(1, 7)))]

    def view_loop(self, depth: int) -> list[Stmt]:
        parameter = self.pick(self.matrices())
        view, part = self.fresh("view"), self.pick(("row", "col", "tile"))
        given = [
            chain_begins(self.pick((literal(self.rng.randint(0, 3)), self.small())))
            for _ in range(4 if part == "tile" else 1)
        ]
        made = Stmt("view", given, [], {"name": view, "slice": parameter.name, "part": part})
        variables, loops, in_loop, views = dict(self.variables), list(self.loops), self.in_loop, dict(self.views)
        x = self.fresh("item")
        self.in_loop = True
        self.variables[x] = parameter.type
        self.frozen.add(x)
        if part == "tile":
            body = self.block(self.rng.randint(1, 2), 0)
            self.in_loop, self.variables = in_loop, variables
            # Leaving the inner loop by break would not leave the outer: the statement is two loops in one.
            body = [each for each in body if not _jumps([each])]
            loop = Stmt("rows", [], [body], (self.fresh("line"), x, view))
        else:
            other = self.pick(self.matrices())
            names, over, makes = [x], [view], [made]
            if self.chance(0.4):
                second = self.fresh("view")
                y = self.fresh("item")
                self.variables[y] = other.type
                self.frozen.add(y)
                equal = self.chance(0.8)  # the views are often equally long
                of = {"name": second, "slice": other.name, "part": part if equal else self.pick(("row", "col"))}
                makes.append(Stmt("view", [self.pick((given[0], self.small()))], [], of))
                names.append(y)
                over.append(second)
            self.views[view] = parameter.type
            body = self.block(self.rng.randint(1, 2), depth - 1)
            self.variables, self.loops, self.in_loop, self.views = variables, loops, in_loop, views
            loop = Stmt("each", [], [body], (names, over))
            if self.chance(0.8):
                return [*makes, Stmt("guard", [], [[loop]], over)]
            return [*makes, loop]
        if self.chance(0.8):
            return [made, Stmt("guard", [], [[loop]], [view])]
        return [made, loop]

    def store(self, depth: int) -> list[Stmt]:
        ref = self.pick(self.refs)
        kind = self.refs[ref]
        operator, value, result = self.stored(kind)
        return [Stmt("store", [value], [], (ref, operator, kind, result))]

    def stored(self, kind: str) -> tuple[str, Expr, str]:
        """What is stored in an element of a type: an operator or "", an operand, and the type of the result."""
        if kind in FLOATS and self.chance(0.3):
            return self.pick("+-*"), self.typed(kind, 3), kind
        if kind in INTEGERS and self.chance(0.3):
            results = {other: common(kind, other) for other in INTEGERS}
            other = self.pick([each for each, found in results.items() if found and is_storable(found, kind)])
            return self.pick("+-*^"), self.typed(other, 3), results[other] or kind
        if kind in INTEGERS and self.chance(0.3):
            if self.chance(0.2):
                return "", self.place(1), kind
            return "", self.typed(self.pick([each for each in INTEGERS if is_storable(each, kind)]), 3), kind
        if kind in FLOATS and self.chance(0.2):
            return "", self.typed(self.pick((*INTEGERS, *FLOATS)), 3), kind
        return "", self.typed(kind, 3), kind

    def put(self, depth: int) -> list[Stmt]:
        arrays = [*((each, False) for each in self.elements), *((each, True) for each in self.tiles.values())]
        array, tile = self.pick(arrays)
        operator, value, result = self.stored(array.type)
        indices = self.indices(array, tile)
        return [Stmt("put", [*indices, value], [], (array.name, operator, array.type, result))]

    def jump(self, depth: int) -> list[Stmt]:
        return [Stmt("if", [self.condition(2)], [[Stmt(self.pick(("break", "continue")))], []])]

    def leave(self, depth: int) -> list[Stmt]:
        return [Stmt("if", [self.condition(2)], [[Stmt("return")], []])]

    def assertion(self, depth: int) -> list[Stmt]:
        test = self.condition(2)
        if self.chance(0.7):
            test = Expr("or", "bool", [test, Expr("compare", "bool", [self.place(1), literal(-1)], ">")])
        return [Stmt("assert", [test], [], f"message {self.fresh('m')}")]

    def vector(self, depth: int) -> list[Stmt]:
        numbers = [each for each in self.program.parameters if each.kind in ("slice", "shaped") and each.type != "bool"]
        parameter = self.pick(numbers or [None])
        if parameter is None:
            return self.assign(depth)
        width = self.pick((2, 4))
        index = total("*", self.small(), literal(width))
        if self.chance(0.15):
            index = total("+", index, literal(self.pick((1, 2))))
        names = [self.fresh() for _ in range(width)]
        index = chain_begins(index)
        before = [self.index(self.extent(parameter, axis)) for axis in range(len(parameter.inner))]
        statement = Stmt("load", [*before, index], [], (parameter.name, names, parameter.type))
        self.variables |= dict.fromkeys(names, parameter.type)
        return [statement]

    def commuting(self, kind: str) -> str:
        """An atomic operation whose results do not depend on the order of threads."""
        methods = ["fetch_add", "fetch_min", "fetch_max"]
        if kind in INTEGERS:
            methods += ["fetch_sub", "fetch_and", "fetch_or", "fetch_xor"]
        return self.pick(methods)  # type: ignore[no-any-return]

    def fetch(self, parameter: Parameter) -> Expr:
        """An atomic operation on the element that is this thread's alone, and what it gives."""
        kind = parameter.type
        methods = ["fetch_add", "exchange", "load"]
        if kind in INTEGERS:
            methods += ["fetch_sub", "fetch_min", "fetch_max", "fetch_and", "fetch_or", "fetch_xor", "compare_exchange"]
        method = self.pick(methods)
        count = {"load": 0, "compare_exchange": 2}.get(method, 1)
        given = [self.atomic_value(kind, method) for _ in range(count)]
        return Expr("fetch", kind, [name("i", "place"), *given], (parameter.name, method))

    def atomic(self, depth: int) -> list[Stmt]:
        parameter = self.pick([each for each in self.program.parameters if each.kind == "atomic"])
        kind = parameter.type
        if parameter.name == "mine":
            if self.chance(0.3):
                return [
                    Stmt("atomic", [name("i", "place"), self.atomic_value(kind, "store")], [], ("mine", "store", kind))
                ]
            variable = self.fresh()
            statement = Stmt("assign", [self.fetch(parameter)], [], variable)
            self.variables[variable] = kind
            return [statement]
        method = self.methods[parameter.name]
        value = self.atomic_value(kind, method)
        return [Stmt("atomic", [self.index(length(parameter.name)), value], [], (parameter.name, method, kind))]

    def atomic_value(self, kind: str, method: str) -> Expr:
        """What an atomic operation is given. Sums of floats are of small whole numbers, which add up exactly."""
        if kind not in FLOATS:
            return self.typed(kind, 2)
        small = binary("i64", "&", convert(self.typed("i64", 2), "i64"), literal(7))
        return convert(small, kind)

    # The kernel

    def make(self) -> Program:
        rng, program = self.rng, self.program
        self.methods: dict[str, str] = {}
        self.palette = [self.pick(INTEGERS), self.pick((*FLOATS, "f32", "f64")), "i64"]
        self.palette += [self.pick((*INTEGERS, *FLOATS)) for _ in range(2)]
        program.fma = rng.random() < 0.85
        program.shape = "2d" if self.chance(0.2) else "1d"
        for number in range(rng.randint(0, 2)):
            program.parameters.append(
                Parameter(f"n{number}", "scalar", self.pick(("u32", "i32", "i64", "u64", "u8", "i16")))
            )
        for number in range(rng.randint(0, 2)):
            program.parameters.append(Parameter(f"p{number}", "scalar", self.pick((*self.palette, "bool", *FLOATS))))
        if self.chance(0.2):
            fields = tuple((f"f{n}", self.pick((*self.palette, "i32"))) for n in range(rng.randint(1, 3)))
            program.parameters.append(Parameter("pair", "tuple", self.pick(("named", "plain")), fields=fields))
        for number in range(rng.randint(1, 3)):
            kind = "bool" if self.chance(0.05) else self.pick(self.palette)
            program.parameters.append(Parameter(f"x{number}", "slice", kind))
        if self.chance(0.3):
            inner = (rng.randint(1, 5),) if self.chance(0.6) else (rng.randint(1, 3), rng.randint(1, 4))
            program.parameters.append(Parameter("a", "shaped", self.pick(self.palette), inner=inner))
        self.make_functions()
        self.make_arrays()
        atomic = self.chance(0.12)
        if atomic:
            kind = self.pick(("i32", "u32", "i64", "u64", "f32", "f64"))
            program.parameters.append(Parameter("counts", "atomic", kind))
            self.methods["counts"] = self.commuting(kind)
            if self.chance(0.5):
                kind = self.pick(("i32", "u32", "i64", "u64", "f32", "f64", "f16", "bf16"))
                program.parameters.append(Parameter("mine", "atomic", kind))
        tiles = not atomic and self.chance(0.2)
        shared = not tiles and program.shape == "1d" and self.chance(0.2)
        outputs = []
        for number in range(rng.randint(1, 3)):
            kind = "bool" if self.chance(0.05) else self.pick(self.palette)
            tile: tuple[int, ...] = ()
            if tiles and number == 0:
                tile = (rng.randint(1, 5),) if program.shape == "1d" else (rng.randint(1, 3), rng.randint(1, 4))
                kind = kind if kind != "bool" else "f32"
            outputs.append(Parameter(f"y{number}", "out", kind, tile=tile))
        program.parameters += outputs
        self.wide = None
        if program.shape == "1d" and self.chance(0.12):
            self.wide = Parameter("wide", "out", self.pick(self.palette))
            program.parameters.append(self.wide)
        self.make_generic(outputs)
        self.make_contracts(outputs)
        if program.shape == "2d":
            program.parameters.insert(0, Parameter("width", "scalar", self.pick(("u32", "i64", "u64", "i32"))))
        if shared:
            self.make_shared_kernel(outputs)
        else:
            self.make_body(outputs)
        return program

    def make_functions(self) -> None:
        for _ in range(self.rng.choice((0, 0, 1, 2))):
            self.in_function = True
            parameters = [(self.fresh("a"), self.kind()) for _ in range(self.rng.randint(1, 3))]
            if self.chance(0.3):
                parameters.append((self.fresh("a"), f"slice {self.pick(self.slices()).type}"))
            returns = self.kind()
            self.given = [Parameter(each, "slice", kind[6:]) for each, kind in parameters if kind.startswith("slice ")]
            self.variables = {each: kind for each, kind in parameters if not kind.startswith("slice ")}
            body = self.block(self.rng.randint(0, 3), 1)
            self.variables = {each: kind for each, kind in parameters if not kind.startswith("slice ")}
            if self.chance(0.3):
                body.append(
                    Stmt("if", [self.condition(2)], [[Stmt("return", [self.typed(returns, 2)], [], returns)], []])
                )
            annotated, given = self.chance(0.7), returns
            if annotated and self.chance(0.3) and returns != "bool":
                # Converted to the type that is declared, by the rule of a store.
                storable = [each for each in INTEGERS if is_storable(each, returns)]
                given = self.pick(storable if returns in INTEGERS else (*INTEGERS, *FLOATS))
            body.append(Stmt("return", [self.typed(given, 3)], [], returns))
            function = Function(self.fresh("fun"), parameters, returns, body, annotated=annotated)
            self.program.functions.append(function)
            self.in_function = False
            self.variables, self.given = {}, []

    def make_arrays(self) -> None:
        if self.chance(0.2):
            kind = self.pick([each for each in self.palette if each != "bf16"])
            shape = (self.rng.randint(1, 9),) if self.chance(0.7) else (self.rng.randint(1, 4), self.rng.randint(1, 4))
            count = int(np.prod(shape))
            numbers = arithmetic.to_array(kind, [self.number(kind) for _ in range(count)]).reshape(shape)
            self.program.arrays.append(Array("TABLE", "constant", kind, shape, numbers))
        if self.chance(0.25):
            shape = (self.rng.randint(1, 8),) if self.chance(0.7) else (self.rng.randint(1, 4), self.rng.randint(1, 4))
            self.program.arrays.append(Array("own", "local", self.pick(self.palette), shape))

    def make_generic(self, outputs: list[Parameter]) -> None:
        if not self.chance(0.1):
            return
        kinds = {each.type for each in self.program.parameters if each.kind in ("slice", "out")}
        for kind in self.rng.sample(sorted(kinds), len(kinds)):
            if kind not in ("bool", "bf16") and any(each.type == kind for each in self.slices()):
                for each in self.program.parameters:
                    if each.kind in ("slice", "out") and each.type == kind:
                        each.generic = True
                return

    def make_contracts(self, outputs: list[Parameter]) -> None:
        """Contracts that launches keep, nearly all: what is inside by them need not be checked."""
        if not self.chance(0.15):
            return
        counts = [p.name for p in self.program.parameters if p.kind == "scalar" and p.name.startswith("n")]
        found = []
        for _ in range(self.rng.randint(1, 2)):
            longer = f"len({self.pick(self.slices()).name})"
            shorter = f"len({self.pick([*outputs, *self.slices()]).name})"
            if counts and self.chance(0.7):
                shorter = f"{self.pick(counts)} * {self.rng.randint(1, 3)} + {self.rng.randint(-1, 2)}"
            found.append(f"{longer} >= {shorter}")
        if counts and self.chance(0.3):
            found.append(f"{self.pick(counts)} <= 7")
        self.program.requires = tuple(found)

    def cleared(self, array: Array) -> Stmt:
        """Loops that give every element of a local array a value."""
        names = [self.fresh("j") for _ in array.shape]
        indices = [name(each, "place") for each in names]
        value = self.typed(array.type, 1) if self.chance(0.5) else self.constant(array.type)
        if value.op == "literal":
            value = constant(array.type, value.value)
        statement = Stmt("put", [*indices, value], [], (array.name, "", array.type, array.type))
        for variable, side in reversed(list(zip(names, array.shape, strict=True))):
            statement = Stmt("range", [literal(side)], [[statement]], {"name": variable, "type": "i64"})
        return statement

    def make_body(self, outputs: list[Parameter]) -> None:
        rng, program, body = self.rng, self.program, self.program.body
        flat = program.shape == "1d"
        body.append(Stmt("index", [] if flat else [name("width", program.parameter("width").type)], [], "index"))
        inner = body
        if flat:
            body.append(Stmt("number", [], [], ("i", "index")))
        else:
            for axis in ("row", "col"):
                body.append(Stmt("assign", [Expr("thread", "place", [], f"thread.index_2d_{axis}()")], [], axis))
                self.variables[axis] = "place"
                self.frozen.add(axis)
            inner = []
            body.append(Stmt("guard", [], [inner], ["index"]))
            inner.append(Stmt("number", [], [], ("i", "index")))
        self.variables["i"] = "place"
        self.frozen.add("i")
        for array in program.arrays:
            if array.kind == "local":
                inner.append(self.cleared(array))
                self.elements.append(array)
        refs, rests = {}, {}
        for number, parameter in enumerate(outputs):
            ref = f"e{number}"
            inner.append(Stmt("mut", [], [], (ref, parameter.name, "index")))
            refs[ref] = parameter
            if parameter.tile:
                inner.append(Stmt("rest", [], [], (f"r{number}", parameter.name, "index")))
                rests[f"r{number}"] = parameter
        budget, self.budget = self.budget, 8
        inner += self.block_keeping(rng.randint(0, 2), 1)
        self.budget = budget
        if self.chance(0.08):
            guarded = inner  # nobody has looked whether there is an element
        else:
            guarded = []
            inner.append(Stmt("guard", [], [guarded], list(refs)))
        self.open(refs)
        guarded += self.block_keeping(rng.randint(2, 7), 2)
        for ref, parameter in refs.items():
            guarded += self.final(ref, parameter)
        if self.wide is not None:
            guarded += self.wide_stores(self.wide)
        self.refs, self.tiles = {}, {}
        for rest, parameter in rests.items():
            saved = dict(self.variables)
            if guarded is not inner:
                self.variables = {each: kind for each, kind in saved.items() if each in ("i", "row", "col")}
            array = Array(rest, "rest", parameter.type, parameter.tile)
            self.tiles = {rest: array}
            last = [Stmt("guard", [], [self.block(rng.randint(1, 2), 1) + self.final(rest, parameter)], [rest])]
            inner += last
            self.variables = saved
            self.tiles = {}

    def block_keeping(self, size: int, depth: int) -> list[Stmt]:
        """A block whose names stay known."""
        body: list[Stmt] = []
        for _ in range(size):
            self.budget -= 1
            body += self.statement(depth)
        return body

    def open(self, refs: dict[str, Parameter]) -> None:
        for ref, parameter in refs.items():
            if parameter.tile:
                self.tiles[ref] = Array(ref, "tile", parameter.type, parameter.tile)
            else:
                self.refs[ref] = parameter.type

    def final(self, ref: str, parameter: Parameter) -> list[Stmt]:
        """The last store of an output, of what the kernel has come to."""
        kind = parameter.type
        if not parameter.tile:
            operator, value, result = self.stored(kind)
            return [Stmt("store", [value], [], (ref, operator, kind, result))]
        names = [self.fresh("j") for _ in parameter.tile]
        whole = ref.startswith("e")
        self.loops = names
        self.variables |= dict.fromkeys(names, "place")
        indices = [name(each, "place") for each in names]
        operator, value, result = self.stored(kind)
        statement = Stmt("put", [*indices, value], [], (ref, operator, kind, result))
        for axis, (variable, side) in enumerate(reversed(list(zip(names, parameter.tile, strict=True)))):
            last = axis == len(names) - 1
            bound = length(ref) if last and (not whole or self.chance(0.5)) else literal(side)
            statement = Stmt("range", [bound], [[statement]], {"name": variable, "type": "i64"})
        self.loops = []
        for each in names:
            del self.variables[each]
        return [statement]

    def wide_stores(self, parameter: Parameter) -> list[Stmt]:
        """Four elements a thread of an output, without its rules: as a vector, or one after the other."""
        kind = parameter.type
        first = binary("place", "*", name("i", "place"), literal(4))
        test = Expr("compare", "bool", [binary("place", "+", first, literal(4)), length(parameter.name)], "<=")
        if self.chance(0.6):
            stores = [Stmt("vector", [first, *(self.typed(kind, 2) for _ in range(4))], [], (parameter.name, kind))]
        else:
            stores = [
                Stmt(
                    "unchecked",
                    [binary("place", "+", first, literal(each)), self.typed(kind, 2)],
                    [],
                    (parameter.name, kind),
                )
                for each in range(4)
            ]
        return [Stmt("if", [test], [stores, []])]

    def make_shared_kernel(self, outputs: list[Parameter]) -> None:
        """A kernel in phases: each thread writes its own element of a shared array, all meet, each reads any."""
        rng, program, body = self.rng, self.program, self.program.body
        size = self.pick((32, 64, 33, 7))
        program.block = (size, 1, 1)
        program.arrays = [each for each in program.arrays if each.kind == "constant"]
        kinds = [kind for kind in self.palette if kind != "bool"]
        arrays = [Array(f"tile{number}", "shared", self.pick(kinds), (size,)) for number in range(rng.randint(1, 2))]
        program.arrays += arrays
        self.allow_leave = False
        body.append(Stmt("index", [], [], "index"))
        body.append(Stmt("number", [], [], ("i", "index")))
        body.append(Stmt("assign", [Expr("thread", "place", [], "thread.thread_idx.x")], [], "t"))
        self.variables |= {"i": "place", "t": "place"}
        self.frozen |= {"i", "t"}
        for phase in range(rng.randint(1, 3)):
            for array in arrays:
                value = self.typed(array.type, 3)
                body.append(Stmt("put", [name("t", "place"), value], [], (array.name, "", array.type, array.type)))
            body.append(Stmt("barrier"))
            for array in arrays:
                if array.type in ("i32", "u32", "i64", "u64", "f32", "f64") and self.chance(0.3):
                    if array.type in FLOATS:
                        # What is there must add up exactly, and in any order.
                        body[-1:-1] = [Stmt("put", [name("t", "place"), constant(array.type, 3.0)], [],
                                            (array.name, "", array.type, array.type))]  # fmt: skip
                    method = self.commuting(array.type)
                    given = [self.index(literal(size)), self.atomic_value(array.type, method)]
                    body += [Stmt("atomic", given, [], (array.name, method, array.type)), Stmt("barrier")]
            self.elements = arrays
            budget, self.budget = self.budget, 8
            reads = []
            for _ in range(rng.randint(1, 3)):
                kind = self.pick([array.type for array in arrays])
                variable = self.fresh()
                reads.append(Stmt("assign", [self.typed(kind, 3)], [], variable))
                self.variables[variable] = kind
            body += reads
            self.elements = []
            body += self.meetings()
            body += self.block_keeping(rng.randint(0, 2), 2)
            self.budget = budget
            if phase < 2:
                body.append(Stmt("barrier"))
        refs = {}
        for number, parameter in enumerate(outputs):
            ref = f"e{number}"
            body.append(Stmt("mut", [], [], (ref, parameter.name, "index")))
            refs[ref] = parameter
        guarded: list[Stmt] = []
        body.append(Stmt("guard", [], [guarded], list(refs)))
        self.open(refs)
        guarded += self.block_keeping(rng.randint(1, 3), 2)
        for ref, parameter in refs.items():
            guarded += self.final(ref, parameter)

    def meetings(self) -> list[Stmt]:
        """What the threads of a warp or of a block do together."""
        found = []
        for _ in range(self.rng.randint(0, 2)):
            variable = self.fresh()
            kind = self.pick(("i32", "i64", "u32", "u64", "f32", "f64"))
            roll = self.rng.random()
            if roll < 0.25:
                how = self.pick(("count", "and", "or"))
                e = Expr("vote", "i32" if how == "count" else "bool", [self.condition(2)], f"thread.sync_threads_{how}")
            elif roll < 0.5:
                how = self.pick(("all", "any", "ballot"))
                e = Expr("warp", "u32" if how == "ballot" else "bool", [self.condition(2)], f"warp.{how}")
            elif roll < 0.75 and self.program.block is not None and self.program.block[0] % 32 == 0:
                lane = self.pick((literal(self.rng.randrange(32)), literal(self.pick((1, 2, 16)))))
                how = self.pick(("shuffle", "shuffle_xor", "shuffle_up", "shuffle_down"))
                e = Expr("warp", kind, [self.typed(kind, 2), lane], f"warp.{how}")
            else:
                methods = ["reduce_min", "reduce_max", "reduce_add"]
                if kind in INTEGERS:
                    methods += ["reduce_and", "reduce_or", "reduce_xor"]
                method = self.pick(methods)
                e = Expr("warp", kind, [self.atomic_value(kind, method)], f"warp.{method}")
            if e.type == "bool":
                e = Expr("ternary", "i64", [e, constant("i64", 1), constant("i64", 0)])
            found.append(Stmt("assign", [e], [], variable))
            self.variables[variable] = e.type
        return found


_COMPARES = ("<", "<=", ">", ">=", "==", "!=")
_CLASSES = ("math.isnan", "math.isinf", "math.isfinite")
_SATURATING = ("intrinsics.saturating_add", "intrinsics.saturating_sub")
_COUNTS = ("intrinsics.popc", "intrinsics.clz", "intrinsics.ffs")
_WORDS = ("i32", "i64", "u32", "u64")
_ROUNDINGS = ("math.floor", "math.ceil", "math.trunc", "math.fabs")
_REMAINDERS = ("math.fmod", "math.remainder")


def _jumps(body: list[Stmt]) -> bool:
    return any(each.op in ("break", "continue") for statement in body for each in statement.walk())


def program_of(seed: int) -> Program:
    """The program of a seed."""
    return Generator(random.Random(seed)).make()


# Launches


def launches_of(program: Program, seed: int, count: int) -> list[Launch]:
    """Launches of a program: sizes from 0 to 1000, whole and ragged, with spare blocks and without."""
    rng = random.Random(f"launches {seed}")
    return [_launch(program, rng, number) for number in range(count)]


def _launch(program: Program, rng: random.Random, number: int) -> Launch:
    values = Generator(rng)
    size = rng.choices(_SIZES, _WEIGHTS)[0]
    arguments: dict[str, Any] = {}
    tiles = [parameter.tile for parameter in program.parameters if parameter.tile]
    if program.shape == "2d":
        width = rng.choice((1, 2, 3, 5, 8, 16, 17, 33)) if rng.random() < 0.95 else rng.choice((0, 100))
        rows = rng.choice((0, 1, 2, 3, 4, 7, 9))
        arguments["width"] = width
        size = width * rows
        block = rng.choice(((8, 4, 1), (16, 2, 1), (32, 1, 1), (5, 3, 1), (1, 8, 1), (33, 2, 1)))
        grid = (max(-(-width // block[0]), 1), max(-(-rows // block[1]), 1), 1)
        if rng.random() < 0.2:
            grid = (grid[0] + 1, grid[1], 1)
    else:
        per_thread = tiles[0][0] if tiles and len(tiles[0]) == 1 else 1
        block = program.block or (
            rng.choice((1, 32, 64, 100, 128, 256) if size > 64 else (1, 7, 32, 33, 64, 256)),
            1,
            1,
        )
        threads = -(-size // per_thread)
        blocks = max(-(-threads // block[0]), 1) + (rng.random() < 0.2) - (rng.random() < 0.05)
        grid = (min(max(blocks, 1), 40), 1, 1)
    for parameter in program.parameters:
        name, kind = parameter.name, parameter.type
        if name in arguments:
            continue
        match parameter.kind:
            case "scalar":
                if name.startswith("n") and rng.random() < 0.97:
                    arguments[name] = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, min(size, 12)))
                else:
                    arguments[name] = values.number(kind)
            case "tuple":
                arguments[name] = tuple(values.number(each) for _, each in parameter.fields)
            case _:
                spare = (0,) * 6 + (1, 2, 3) if parameter.kind == "out" else (0,) * 4 + (3, 4, 8, 20, 20, 40)
                count = size + rng.choice(spare)
                if rng.random() < 0.12:
                    count = rng.choice((0, 1, 2, max(size - 1, 0), size // 2))
                count *= int(np.prod(parameter.inner))  # 1 for one axis
                if name == "wide":
                    count = size * 4 + rng.choice((0, 1, 3, -2 if size else 0))
                if parameter.kind == "atomic":
                    count = rng.choice((1, 3, 8)) if name == "counts" else count
                    arguments[name] = [_small(kind, rng) for _ in range(count)]
                else:
                    arguments[name] = [values.number(kind) for _ in range(count)]
    if rng.random() < 0.9:
        for contract in program.requires:
            longer = contract.split(" ")[0].removeprefix("len(").removesuffix(")")
            lengthened = arguments.get(longer)
            while isinstance(lengthened, list) and len(lengthened) < 2000 and not keeps(contract, arguments):
                lengthened.append(values.number(program.parameter(longer).type))
    return Launch(grid, block, arguments)


def keeps(contract: str, arguments: dict[str, Any]) -> bool:
    """Whether arguments keep a contract, which is Python over their numbers and lengths."""
    return bool(eval(contract, {"len": len, "__builtins__": {}}, arguments))


def _small(kind: str, rng: random.Random) -> Any:
    return float(rng.randrange(8)) if kind in FLOATS else rng.randrange(8)
