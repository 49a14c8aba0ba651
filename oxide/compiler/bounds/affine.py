"""Ranges of affine indices over a loop, computed by the kernel itself at the loop's preheader.

For a loop and an index inside it, ``Range`` emits instructions at the loop's preheader. They compute the least and the
greatest value that the index takes in any iteration of the loop and of its inner loops.

**Why the analysis is sound under wrap-around.** An index is a 64-bit number. It is computed by sums and products modulo
2**64 from loop-invariant values and from the loops' counters (0, 1, 2, … in each). These operations form a ring, so the
index is congruent modulo 2**64 to ``c0 + c1*t1 + … + cn*tn``, where each ``c`` is *any* representative of its class:
here the machine's own 64-bit word, read as a signed number. The polynomial's extremes are then evaluated over the whole
numbers. 128 bits hold them: every ``c`` is at most 2**63 in magnitude, every ``t`` is required to be at most 2**61, and
there are at most six of them. If the polynomial's whole range is in [0, length), then in each iteration its value is
the one number in [0, 2**63) that is congruent to the machine's index: the index equals that value and is in bounds.
Otherwise nothing is concluded, and the checks stay. Intermediate sums may wrap: only the final value counts. Widening a
narrower number is the one step that is not a ring operation. The narrow value's range is required to fit the narrow
type, and then widening does not change it. A loop's number of iterations is bounded by its own test, by the same
arithmetic. Each number in it is required to be at most 2**61 in magnitude, so that the count cannot wrap before the
test ends the loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias, final

from oxide.compiler.ir.patterns import BINARY, BRANCH, CAST, COMPARE, INTRINSIC, INVERSE, MIRROR, REGISTER, SELECT
from oxide.compiler.ir.ssa import NAME, Function, Instruction, Loop

Coefficient: TypeAlias = int | str
"""A whole number known at compile time, or the name of an ``i64`` that is available at the preheader."""

Variable: TypeAlias = Loop | str
"""A loop's counter, or a value in the loop of which only the range is known."""

Affine: TypeAlias = dict[Variable | None, Coefficient]
"""Coefficients by variable; the key None holds the constant term."""

_LARGEST = 2**61
_MOST_VARIABLES = 6
_MOST_STEPS = 300
_DEEPEST = 100
_ADDRESS = re.compile(rf"ptrtoint ptr (?P<pointer>{NAME}) to i64$")


class Undecidable(Exception):
    """The range of a value cannot be computed before the loop. The message gives the kernel's author the reason."""


@final
class Range:
    """Ranges of values in one loop. ``code`` computes them at the preheader; they are valid if ``conditions`` hold."""

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
        """Adds the conditions for an ``i64`` index to be in [0, length) in every iteration. Raises ``Undecidable``."""
        size = self.before(length)
        if size is None:
            raise Undecidable("the slice is not the same in every iteration")
        self._steps = 0
        with self._all_or_nothing():
            low, high = self._extent(self._affine(index, "i64", "sext"))
        self._require("sge", low, 0)
        self._require("slt", high, self._wide(size))

    def start_of_consecutive(self, index: str) -> Coefficient | None:
        """Returns an ``i64`` index's first value if it grows by one an iteration, else None. Raises ``Undecidable``."""
        self._steps = 0
        form = self._affine(index, "i64", "sext")
        return form.get(None, 0) if form.keys() <= {None, self.loop} and form.get(self.loop) == 1 else None

    def line(self, value: str, kind: str) -> tuple[int, Coefficient]:
        """Returns factor and start: where the conditions hold, the value as a signed number is
        ``factor * counter + start``, and the start is at most 2**61 in magnitude. The loop's counter must be under
        2**42. Raises ``Undecidable``, also if the factor is not known at compile time."""
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
        """Returns a loop-invariant value at the preheader, recomputed there if necessary; None if it varies."""
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
        """Returns ``left - right - less``, computed at the preheader."""
        return self._plus(self._plus(left, self._times(right, -1)), -less)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Rolls back the extents and conditions that the body added if it raises ``Undecidable``."""
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
        """Returns an affine function congruent to the value modulo 2**bits. Narrower constants are widened by
        ``extension``. Raises ``Undecidable``."""
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
        """Returns the form of a header's phi that changes by a constant amount. Raises ``Undecidable``."""
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
        """Introduces a variable for a value that is one of two choices; its range covers both of theirs."""
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
        """Returns the range of a loop's counter, valid where the loop's own test has been passed."""
        if loop not in self._extents:
            if loop in self._counting:
                raise Undecidable("the loop's end changes in the loop")
            self._counting.append(loop)
            try:
                iterations = self._iterations(loop)
                if set(iterations) != {None}:
                    # Its greatest count need not occur with the greatest index. Decided at the inner loop, it is exact.
                    raise Undecidable("an inner loop's end changes in the loop")
                _, high = self._extent(iterations)
            finally:
                self._counting.pop()
            last = self._emit(f"sub i128 {high}, 1")
            self._extents[loop] = 0, self._bounded(self._pick("sgt", last, "0"))
        return self._extents[loop]

    def _iterations(self, loop: Loop) -> Affine:
        """Returns an upper bound of the number of times that the loop's body runs, valid if that is over zero."""
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
            # `<= limit` is `< limit + 1` unless that overflows; `<=` the type's greatest number would never end.
            limit = self._sum(limit, {None: step})
        for form in (counted, limit):
            self._require_fits(form, kind, "sext" if predicate[0] == "s" else "nneg")
        upper, lower = (limit, counted) if step == 1 else (counted, limit)
        return self._sum(upper, self._scaled(lower, -1))

    def _difference(self, loop: Loop, counter: str, kind: str) -> Affine | None:
        """Returns ``stop - start`` of a ``range`` of step 1 whose count varies in an enclosing loop, else None."""
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
            self._require_fits(form, kind, "sext")  # so the subtraction does not saturate
        return self._sum(stop, self._scaled(start, -1))

    def _test(self, loop: Loop) -> tuple[str, bool] | None:
        """Returns the condition of a loop's header and whether the loop continues if it is true, or None."""
        match = BRANCH.match(self.function.terminator(loop.header))
        if match is None or (match["yes"] in loop.blocks) == (match["no"] in loop.blocks):
            return None
        inside = match["yes"] if match["yes"] in loop.blocks else match["no"]
        return None if inside == loop.header else (match["condition"], inside == match["yes"])

    def _tested(self, condition: str) -> bool | None:
        """Returns the truth of a condition inside the loop that it is the test of, or None if it is no loop's test."""
        for loop in self.loop.within():
            test = self._test(loop)
            if test is not None and test[0] == condition:
                return test[1]
        return None

    def _loop_of(self, header: str) -> Loop | None:
        return next((loop for loop in self.loop.within() if loop.header == header), None)

    # Ranges

    def _extent(self, form: Affine) -> tuple[str, str]:
        """Returns the least and the greatest value over the whole numbers, as ``i128``. Raises ``Undecidable``."""
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
        """Requires that all values fit ``kind``, signed or not as ``how`` says, and are in ±``_LARGEST``."""
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
            return None  # the shift amount may be out of range in a case in which the loop would never execute it
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
        """Returns the smaller or the larger of two ``i128`` numbers."""
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
    """Returns a form without the variables whose coefficient is 0, and with a constant term."""
    return {variable: c for variable, c in form.items() if variable is None or c != 0} | {None: form.get(None, 0)}


def _signed(number: int) -> int:
    """Returns the signed 64-bit word congruent to a whole number."""
    return (number + 2**63) % 2**64 - 2**63


def _reason(text: str) -> str:
    if text.startswith("load"):
        return "the index is read from memory"
    if "fpto" in text.partition(" ")[2] or text.startswith("fpto"):
        return "the index is converted from a floating point number"
    if text.startswith(("sdiv", "udiv", "srem", "urem")):
        return "the index is a quotient or a remainder"
    return "the index is no sum of products of loop counters"
