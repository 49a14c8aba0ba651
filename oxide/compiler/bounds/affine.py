"""Indices as affine functions of loop counters, and their ranges, computed by the kernel itself before a loop.

For a loop and an index inside it, ``Range`` writes the instructions that compute, at the loop's preheader, the least
and the greatest value that the index can take, whatever the iteration, in the loop and in the loops within.

**Why wrap-around cannot fool it.** An index is a 64-bit number, computed by sums and products modulo 2**64 from values
that do not change in the loop, and from the loops' counters (0, 1, 2, … in each). Those operations are a ring, so
modulo 2**64 the index is congruent to ``c0 + c1*t1 + … + cn*tn`` where each ``c`` is *any* representative of its
class: here the machine's own 64-bit word, read as a signed number. That polynomial is then evaluated over the whole
numbers at its extremes: in 128 bits, which hold it, as every ``c`` is under 2**63 and every ``t`` is required to be
under 2**61, with at most six of them. If its whole range is in [0, length), then for each iteration the one number in
[0, 2**63) that is congruent to the machine's index is the polynomial's value: the index is that value, and inside. If
it is not, nothing is concluded, and the checks stay. Sums that wrap half-way need no thought: only the last value
counts. Widening a narrower number is the one step that is no ring operation; there the narrow value's range is
required to fit the narrow type, and then widening does not change it. A loop's number of iterations is bounded by its
own test, in the same numbers, each required to be under 2**61 in magnitude, so that counting cannot wrap before the
test ends it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias, final

from oxide.compiler.ir.patterns import BINARY, BRANCH, CAST, COMPARE, INTRINSIC, INVERSE, MIRROR, REGISTER, SELECT
from oxide.compiler.ir.ssa import NAME, Function, Instruction, Loop

Coefficient: TypeAlias = int | str
"""A whole number known now, or the name of an ``i64`` that is known at the preheader."""

Variable: TypeAlias = Loop | str
"""A loop's counter, or a value of the loop for which only a range is known."""

Affine: TypeAlias = dict[Variable | None, Coefficient]
"""Coefficients by variable; that of None is the constant."""

_LARGEST = 2**61
_MOST_VARIABLES = 6
_MOST_STEPS = 300
_DEEPEST = 100
_ADDRESS = re.compile(rf"ptrtoint ptr (?P<pointer>{NAME}) to i64$")


class Undecidable(Exception):
    """The range of a value cannot be computed before the loop; the text says why, to the kernel's author."""


@final
class Range:
    """What one loop's preheader can say about values in the loop: ``code`` computes it, ``conditions`` must hold."""

    def __init__(self, function: Function, loop: Loop, prefix: str) -> None:
        self.function = function
        self.loop = loop
        self.code: list[str] = []
        self.conditions: dict[str, None] = {}
        self._prefix = prefix
        self._count = 0
        self._moved: dict[str, str | None] = {}
        self._extents: dict[Variable, tuple[Coefficient, Coefficient]] = {}
        self._counting: list[Loop] = []
        self._emitted: dict[str, str] = {}
        self._steps = 0
        self._deep = 0

    def require_inside(self, index: str, length: str) -> None:
        """Conditions under which an ``i64`` index is in [0, length) in every iteration. Raises ``Undecidable``."""
        size = self.before(length)
        if size is None:
            raise Undecidable("the slice is not the same in every iteration")
        self._steps = 0
        with self._all_or_nothing():
            low, high = self._extent(self._affine(index, "i64", "sext"))
        self._require("sge", low, 0)
        self._require("slt", high, self._wide(size))

    def start_of_consecutive(self, index: str) -> Coefficient | None:
        """The ``i64`` index in the loop's first iteration, if it grows by one in each. Raises ``Undecidable``."""
        self._steps = 0
        form = self._affine(index, "i64", "sext")
        return form.get(None, 0) if form.keys() <= {None, self.loop} and form.get(self.loop) == 1 else None

    def line(self, value: str, kind: str) -> tuple[int, Coefficient]:
        """Factor and start: the value, as a signed number, is ``factor * counter + start`` where the conditions hold,
        the start under 2**61 in magnitude. Raises ``Undecidable``, also where the factor is not known now, for a loop
        whose counter is under 2**42."""
        self._steps = 0
        with self._all_or_nothing():
            form = self._affine(value, kind, "sext")
            factor, start = form.get(self.loop, 0), form.get(None, 0)
            if not isinstance(factor, int) or abs(factor) > 2**18 or not form.keys() <= {None, self.loop}:
                raise Undecidable("the index is no whole multiple of the thread's position")
            if kind != "i64":
                self._require_fits(form, kind, "sext")
            elif isinstance(start, int):
                if abs(start) > _LARGEST:
                    raise Undecidable("the index is far from all that is in memory")
            else:
                shifted = self._emit(f"add i64 {start}, {_LARGEST}")
                self._hold(f"icmp ule i64 {shifted}, {2 * _LARGEST}")
        return factor, start

    def before(self, value: str) -> str | None:
        """A value as it is at the preheader: itself, or computed again there; None if it differs in the loop."""
        if not value.startswith("%"):
            return value if re.fullmatch(r"-?\d+|true|false", value) else None
        if value not in self._moved:
            if self._deep == _DEEPEST:
                return None
            self._deep += 1
            self._moved[value] = None
            self._moved[value] = self._find_moved(value)
            self._deep -= 1
        return self._moved[value]

    def word_difference(self, left: Coefficient, right: Coefficient, less: int) -> Coefficient:
        """``left - right - less``, at the preheader."""
        return self._plus(self._plus(left, self._times(right, -1)), -less)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Around what may be ``Undecidable``: what was found on the way there rests on conditions, and both go."""
        extents, conditions = len(self._extents), len(self.conditions)
        try:
            yield
        except Undecidable:
            for table, size in ((self._extents, extents), (self.conditions, conditions)):
                while len(table) > size:
                    table.popitem()
            raise

    # Affine forms

    def _affine(self, value: str, kind: str, extension: str) -> Affine:
        """The value as an affine function, congruent to it modulo 2**bits; narrower constants are widened by
        ``extension``."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise Undecidable("the index is made of too many sums and products")
        if kind == "i128":
            raise Undecidable("the index is part of a product of 128 bits")
        moved = self.before(value)
        if moved is not None:
            return {None: self._word(moved, kind, extension)}
        instruction = self.function.definitions[value]
        text = instruction.text
        if instruction.opcode == "phi":
            return self._recurrence(instruction, kind, extension)
        if match := BINARY.match(text):
            return self._arithmetic(match, extension)
        if match := CAST.match(text):
            inner = self._affine(
                match["value"], match["source"], extension if match["operation"] == "trunc" else match["operation"]
            )
            if match["operation"] != "trunc":
                self._require_fits(inner, match["source"], match["operation"])
            return inner
        if match := SELECT.match(text):
            chosen = self._tested(match["condition"])
            if chosen is not None:
                return self._affine(match["left" if chosen else "right"], kind, extension)
            return self._either(value, kind, [match["left"], match["right"]])
        if (match := INTRINSIC.match(text)) and match["operation"][1:] in ("min", "max"):
            return self._either(value, kind, [match["left"], match["right"]])
        raise Undecidable(_reason(text))

    def _arithmetic(self, match: re.Match[str], extension: str) -> Affine:
        kind, operation = match["type"], match["operation"]
        if (operation, match["right"]) == ("xor", "-1"):
            return self._sum({None: -1}, self._scaled(self._affine(match["left"], kind, extension), -1))
        if operation in ("and", "or", "xor", "lshr", "ashr"):
            raise Undecidable("the index is no sum of products of loop counters")
        left = self._affine(match["left"], kind, extension)
        if operation == "shl":
            if not match["right"].isdigit() or int(match["right"]) >= int(kind[1:]):
                raise Undecidable("the index is shifted by a number that is not constant")
            return self._scaled(left, 1 << int(match["right"]))
        right = self._affine(match["right"], kind, extension)
        if operation == "mul":
            if set(right) != {None}:
                left, right = right, left
            if set(right) != {None}:
                raise Undecidable("the index has a product of two numbers that change in the loop")
            return self._scaled(left, right[None])
        return self._sum(left, self._scaled(right, -1) if operation == "sub" else right)

    def _recurrence(self, phi: Instruction, kind: str, extension: str) -> Affine:
        """A header's phi that grows by the same amount in every iteration."""
        loop = self._loop_of(phi.block)
        incoming = phi.incoming()
        if loop is None:
            sources = (self.function.definitions.get(value) for value in incoming.values())
            loaded = any(source is not None and source.opcode == "load" for source in sources)
            way = "is read from memory" if loaded else "depends on which way the kernel went"
            raise Undecidable(f"the index {way}")
        step = self._step(phi, incoming[loop.latch], kind)
        return self._sum(self._affine(incoming[loop.preheader], kind, extension), {loop: step})

    def _step(self, phi: Instruction, following: str, kind: str) -> Coefficient:
        problem = Undecidable("the index does not change by the same amount in every iteration")
        for _ in range(8):
            instruction = self.function.definitions.get(following)
            if instruction is None:
                raise problem
            if match := SELECT.match(instruction.text):
                chosen = self._tested(match["condition"])
                if chosen is None:
                    raise problem
                following = match["left" if chosen else "right"]
                continue
            match = BINARY.match(instruction.text)
            if match is None or match["operation"] not in ("add", "sub", "or disjoint"):
                raise problem
            left, right = match["left"], match["right"]
            if right == phi.name and match["operation"] != "sub":
                left, right = right, left
            if left != phi.name:
                raise problem
            amount = self._affine(right, kind, "sext")
            if set(amount) != {None}:
                raise problem
            return self._times(amount[None], -1) if match["operation"] == "sub" else amount[None]
        raise problem

    def _either(self, value: str, kind: str, choices: list[str]) -> Affine:
        """One of several values: a variable whose range covers all of theirs."""
        if value not in self._extents:
            lows, highs = [], []
            for choice in choices:
                form = self._affine(choice, kind, "sext")
                self._require_fits(form, kind, "sext")
                low, high = self._extent(form)
                lows.append(low)
                highs.append(high)
            low, high = self._pick("slt", *lows), self._pick("sgt", *highs)
            self._extents[value] = self._bounded(low), self._bounded(high)
        return {value: 1}

    # How often a loop runs

    def _counter(self, loop: Loop) -> tuple[Coefficient, Coefficient]:
        """The range of a loop's counter, wherever the loop's own test has been passed."""
        if loop not in self._extents:
            if loop in self._counting:
                raise Undecidable("the loop's end changes in the loop")
            self._counting.append(loop)
            try:
                iterations = self._iterations(loop)
                if set(iterations) != {None}:
                    # Its greatest count need not go with the greatest index: decided inside, it is exact.
                    raise Undecidable("an inner loop's end changes in the loop")
                _, high = self._extent(iterations)
            finally:
                self._counting.pop()
            last = self._emit(f"sub i128 {high}, 1")
            self._extents[loop] = 0, self._bounded(self._pick("sgt", last, "0"))
        return self._extents[loop]

    def _iterations(self, loop: Loop) -> Affine:
        """At least the number of times that the loop's test lets its body run, where it is over zero."""
        problem = Undecidable("the loop does not count: its test is no comparison with a number known before it")
        condition, inside_if = self._test(loop) or (None, True)
        if condition is None or condition not in self.function.definitions:
            raise problem
        match = COMPARE.match(self.function.definitions[condition].text)
        if match is None or match["predicate"] not in INVERSE:
            raise problem
        predicate = match["predicate"] if inside_if else INVERSE[match["predicate"]]
        kind = match["type"]
        if (predicate, match["right"]) == ("sgt", "0") and (difference := self._difference(loop, match["left"], kind)):
            return difference
        counted, limit = (self._affine(match[side], kind, "sext") for side in ("left", "right"))
        if loop in limit:
            counted, limit, predicate = limit, counted, MIRROR[predicate]
        step = counted.pop(loop, 0)
        if loop in limit or step != {"l": 1, "g": -1}[predicate[1]]:
            raise problem
        if predicate.endswith("e"):
            # `<= limit` is `< limit + 1` where that exists; `<=` the type's greatest number would never end.
            limit = self._sum(limit, {None: step})
        for form in (counted, limit):
            self._require_fits(form, kind, "sext" if predicate[0] == "s" else "nneg")
        upper, lower = (limit, counted) if step == 1 else (counted, limit)
        return self._sum(upper, self._scaled(lower, -1))

    def _difference(self, loop: Loop, counter: str, kind: str) -> Affine | None:
        """The way that a ``range`` goes in steps of 1, if it differs from iteration to iteration of a loop around."""
        phi = self.function.definitions.get(counter)
        if phi is None or phi.opcode != "phi" or phi.block != loop.header:
            return None
        incoming = phi.incoming()
        first = self.function.definitions.get(incoming[loop.preheader])
        count = INTRINSIC.match(first.text) if first else None
        if first is None or count is None or (count["operation"], count["right"]) != ("smax", "0"):
            return None
        way = self.function.definitions.get(count["left"])
        ends = INTRINSIC.match(way.text) if way else None
        if ends is None or ends["operation"] != "ssub.sat" or self.before(first.name) is not None:
            return None
        if self._step(phi, incoming[loop.latch], kind) != -1:
            return None
        stop, start = (self._affine(ends[side], kind, "sext") for side in ("left", "right"))
        for form in (stop, start):
            self._require_fits(form, kind, "sext")  # so nothing saturates
        return self._sum(stop, self._scaled(start, -1))

    def _test(self, loop: Loop) -> tuple[str, bool] | None:
        """The condition in a loop's header, and whether the loop goes on where it is true."""
        match = BRANCH.match(self.function.terminator(loop.header))
        if match is None or (match["yes"] in loop.blocks) == (match["no"] in loop.blocks):
            return None
        inside = match["yes"] if match["yes"] in loop.blocks else match["no"]
        return None if inside == loop.header else (match["condition"], inside == match["yes"])

    def _tested(self, condition: str) -> bool | None:
        """What a condition is behind the tests of the loops, or None if it is no test of one."""
        for loop in self.loop.within():
            test = self._test(loop)
            if test is not None and test[0] == condition:
                return test[1]
        return None

    def _loop_of(self, header: str) -> Loop | None:
        return next((loop for loop in self.loop.within() if loop.header == header), None)

    # Ranges

    def _extent(self, form: Affine) -> tuple[str, str]:
        """The least and the greatest value over the whole numbers, as ``i128``."""
        variables = [variable for variable in form if variable is not None]
        if len(variables) > _MOST_VARIABLES:
            raise Undecidable(f"the index depends on more than {_MOST_VARIABLES} numbers that change in the loop")
        low = high = self._wide(form.get(None, 0))
        for variable in variables:
            least, greatest = self._counter(variable) if isinstance(variable, Loop) else self._extents[variable]
            first, last = (self._product(form[variable], end) for end in (least, greatest))
            coefficient = form[variable]
            if isinstance(coefficient, int):
                smaller, larger = (first, last) if coefficient >= 0 else (last, first)
            else:
                smaller, larger = self._pick("slt", first, last), self._pick("sgt", first, last)
            low, high = self._emit(f"add i128 {low}, {smaller}"), self._emit(f"add i128 {high}, {larger}")
        return low, high

    def _require_fits(self, form: Affine, kind: str, how: str) -> None:
        """Requires that all values of the form are numbers of ``kind``, signed or not, and no larger than counted."""
        bits = int(kind[1:])
        least, greatest = {
            "sext": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
            "zext": (0, 2**bits - 1),
            "nneg": (0, 2 ** (bits - 1) - 1),
        }[how]
        low, high = self._extent(form)
        self._require("sge", low, max(least, -_LARGEST))
        self._require("sle", high, min(greatest, _LARGEST))

    def _bounded(self, wide: str) -> str:
        self._require("sge", wide, -_LARGEST)
        self._require("sle", wide, _LARGEST)
        return self._emit(f"trunc i128 {wide} to i64")

    def _require(self, predicate: str, left: str, right: Coefficient) -> None:
        self._hold(f"icmp {predicate} i128 {left}, {right}")

    def _hold(self, comparison: str) -> None:
        self.conditions[self._emit(comparison)] = None

    # Instructions at the preheader

    def _find_moved(self, value: str) -> str | None:
        instruction = self.function.definitions.get(value)
        if instruction is None or self.function.dominates(instruction.block, self.loop.preheader):
            return value
        text = instruction.text
        if REGISTER.match(text):
            return self._emit(text)
        if address := _ADDRESS.match(text):
            pointer = self.before(address["pointer"])
            return None if pointer is None else self._emit(f"ptrtoint ptr {pointer} to i64")
        matches = (pattern.match(text) for pattern in (BINARY, CAST, COMPARE, SELECT, INTRINSIC))
        match = next(filter(None, matches), None)
        if match is None:
            return None
        parts = match.groupdict()
        names = [parts[key] for key in ("condition", "left", "right", "value") if parts.get(key)]
        moved = [self.before(name) for name in names]
        if None in moved:
            return None
        operands = [operand for operand in moved if operand is not None]
        operation = parts.get("operation")
        if "function" in parts:
            kind = parts["type"]
            return self._emit(f"call {kind} {parts['function']}({kind} {operands[0]}, {kind} {operands[1]})")
        if operation is None and "predicate" in parts:
            return self._emit(f"icmp {parts['predicate']} {parts['type']} {operands[0]}, {operands[1]}")
        if operation is None:
            return self._emit(f"select i1 {operands[0]}, {parts['type']} {operands[1]}, {parts['type']} {operands[2]}")
        if operation in ("zext", "sext", "trunc"):
            return self._emit(f"{operation} {parts['source']} {operands[0]} to {parts['type']}")
        if operation in ("shl", "lshr", "ashr") and not operands[1].isdigit():
            return None  # the shift might be by too much where the loop would never have got to it
        plain = "or" if operation == "or disjoint" else operation
        return self._emit(f"{plain} {parts['type']} {operands[0]}, {operands[1]}")

    def _word(self, operand: str, kind: str, extension: str) -> Coefficient:
        if not operand.startswith("%"):
            number = {"true": 1, "false": 0}.get(operand)
            number = int(operand) if number is None else number
            return number % 2 ** int(kind[1:]) if extension == "zext" and kind != "i64" else number
        return operand if kind == "i64" else self._emit(f"{extension} {kind} {operand} to i64")

    def _wide(self, word: Coefficient) -> str:
        if isinstance(word, int) or not word.startswith("%"):
            return str(word)
        return self._emit(f"sext i64 {word} to i128")

    def _product(self, left: Coefficient, right: Coefficient) -> str:
        if left == 0 or right == 0:
            return "0"
        if left == 1 or right == 1:
            return self._wide(right if left == 1 else left)
        return self._emit(f"mul i128 {self._wide(left)}, {self._wide(right)}")

    def _pick(self, predicate: str, left: str, right: str) -> str:
        """The smaller or the larger of two wide numbers."""
        if left == right:
            return left
        smaller = self._emit(f"icmp {predicate} i128 {left}, {right}")
        return self._emit(f"select i1 {smaller}, i128 {left}, i128 {right}")

    def _sum(self, left: Affine, right: Affine) -> Affine:
        result = dict(left)
        for variable, coefficient in right.items():
            result[variable] = self._plus(result.get(variable, 0), coefficient)
        return _plain(result)

    def _scaled(self, form: Affine, factor: Coefficient) -> Affine:
        result: Affine = {variable: self._times(coefficient, factor) for variable, coefficient in form.items()}
        return _plain(result)

    def _plus(self, left: Coefficient, right: Coefficient) -> Coefficient:
        if isinstance(left, int) and isinstance(right, int):
            return _signed(left + right)
        if left == 0 or right == 0:
            return right if left == 0 else left
        return self._emit(f"add i64 {left}, {right}")

    def _times(self, left: Coefficient, right: Coefficient) -> Coefficient:
        if isinstance(left, int) and isinstance(right, int):
            return _signed(left * right)
        if left == 0 or right == 0:
            return 0
        if left == 1 or right == 1:
            return right if left == 1 else left
        return self._emit(f"mul i64 {left}, {right}")

    def _emit(self, text: str) -> str:
        if text not in self._emitted:
            self._count += 1
            name = self._emitted[text] = f"%{self._prefix}.{self._count}"
            self.code.append(f"  {name} = {text}")
        return self._emitted[text]


def _plain(form: Affine) -> Affine:
    """A form without the variables that are not in it, and with a constant."""
    return {variable: c for variable, c in form.items() if variable is None or c != 0} | {None: form.get(None, 0)}


def _signed(number: int) -> int:
    """A whole number as the signed 64-bit word congruent to it."""
    return (number + 2**63) % 2**64 - 2**63


def _reason(text: str) -> str:
    if text.startswith("load"):
        return "the index is read from memory"
    if "fpto" in text.partition(" ")[2] or text.startswith("fpto"):
        return "the index is converted from a floating point number"
    if text.startswith(("sdiv", "udiv", "srem", "urem")):
        return "the index is a quotient or a remainder"
    return "the index is no sum of products of loop counters"
