"""Ranges of affine indices over a loop, computed by the kernel itself at the loop's preheader.

For a loop and an index inside it, ``Range`` emits instructions at the loop's preheader. They compute the least and the
greatest value that the index takes in any iteration of the loop and of its inner loops.

**Why the analysis is sound under wrap-around.** An index is a 64-bit number. It is computed by sums and products modulo
2**64 from loop-invariant values and from the loops' counters (0, 1, 2, … in each). These operations form a ring, so the
index is congruent modulo 2**64 to ``c0 + c1*t1 + … + cn*tn``, where each ``c`` is *any* representative of its class:
here the machine's own 64-bit word, read as a signed number. The polynomial's extremes are then evaluated over the whole
numbers. 128 bits hold them: every ``c`` is at most 2**63 in magnitude, every ``t`` is required to be at most 2**61, and
there are at most six counters ``t``. If the polynomial's whole range is in [0, length), then in each iteration its
value is the one number in [0, 2**63) that is congruent to the machine's index: the index equals the polynomial's value
and is in bounds. Otherwise nothing is concluded, and the checks stay. Intermediate sums may wrap: only the final value
counts. Widening a narrower number is the one step that is not a ring operation. The narrow value's range is required to
fit the narrow type, and then widening does not change the value. An upper bound of a loop's number of iterations is
computed from the loop's own test, with the same arithmetic. Each number in this computation is required to be at most
2**61 in magnitude, so that the count cannot wrap before the test ends the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias, final

from oxide.compiler.ir.control_flow import ControlFlow, Loop
from oxide.compiler.ir.recognise import INVERSE, MIRROR, called, integer_intrinsic, register_of
from oxide.compiler.ir.values import (
    TRUE,
    Binary,
    Branch,
    Call,
    Cast,
    Compare,
    Constant,
    Instruction,
    Load,
    Phi,
    Select,
    Value,
    number,
)

Coefficient: TypeAlias = int | Value
"""A whole number known at compile time, or an ``i64`` value available at the preheader."""

Wide: TypeAlias = int | Value
"""A whole number known at compile time, or an ``i128`` that is available at the preheader."""

Variable: TypeAlias = Loop | Value
"""A loop's counter, or a value in the loop of which only the range is known."""

Affine: TypeAlias = dict[Variable | None, Coefficient]
"""The coefficients by variable. The key None holds the constant term."""

_LARGEST = 2**61
_MOST_VARIABLES = 6
_MOST_STEPS = 300
_DEEPEST = 100
_ARITHMETIC = frozenset(("add", "sub", "mul", "shl", "and", "or", "xor", "lshr", "ashr"))


class Undecidable(Exception):
    """Raised if the range of a value cannot be computed before the loop. The message gives the kernel's author the
    reason."""


@final
class Range:
    """The ranges of values in one loop. ``code`` computes the ranges at the preheader. The ranges are valid if all
    ``conditions`` hold."""

    def __init__(self, flow: ControlFlow, loop: Loop, prefix: str) -> None:
        self.flow = flow
        self.loop = loop
        self.code: list[Instruction] = []
        self.conditions: dict[Value, None] = {}
        self._prefix = prefix
        self._moved: dict[Value, Value | None] = {}
        self._extents: dict[Variable, tuple[Coefficient, Coefficient]] = {}
        self._counting: list[Loop] = []
        self._emitted: dict[str, Instruction] = {}
        self._steps = 0
        self._deep = 0

    def require_inside(self, index: Value, length: Value) -> None:
        """Adds the conditions for an ``i64`` index to be in [0, length) in every iteration. Raises ``Undecidable``."""
        size = self.before(length)
        if size is None:
            raise Undecidable("the slice is not the same in every iteration")
        self._steps = 0
        with self._all_or_nothing():
            low, high = self._extent(self._affine(index, "sext"))
        self._require("sge", low, 0)
        self._require("slt", high, self._wide(size))

    def start_of_consecutive(self, index: Value) -> Coefficient | None:
        """Returns the first value of an ``i64`` index that grows by one in each iteration; None for any other index.
        Raises ``Undecidable``."""
        self._steps = 0
        form = self._affine(index, "sext")
        return form.get(None, 0) if form.keys() <= {None, self.loop} and form.get(self.loop) == 1 else None

    def line(self, value: Value) -> tuple[int, Coefficient]:
        """Returns ``(factor, start)`` and adds to ``conditions``. If the conditions hold, the value, read as a signed
        number, is ``factor * counter + start``, and the start is at most 2**61 in magnitude. The loop's counter must be
        under 2**42. Raises ``Undecidable`` if the value does not have this form, or if the factor is not a compile-time
        constant of at most 2**18 in magnitude."""
        self._steps = 0
        with self._all_or_nothing():
            form = self._affine(value, "sext")
            factor, start = form.get(self.loop, 0), form.get(None, 0)
            if not isinstance(factor, int) or abs(factor) > 2**18 or not form.keys() <= {None, self.loop}:
                raise Undecidable("the index is no whole multiple of the thread's position")
            if value.type != "i64":
                self._require_fits(form, value.type, "sext")
            elif isinstance(start, int):
                if abs(start) > _LARGEST:
                    raise Undecidable("the index is far from all that is in memory")
            else:
                shifted = self._binary("add", start, _LARGEST, "i64")
                self._hold(Compare("", "ule", shifted, number(2 * _LARGEST)))
        return factor, start

    def before(self, value: Value) -> Value | None:
        """Returns a value as it is at the preheader, recomputed there if necessary. None if the value varies in the
        loop."""
        if isinstance(value, Constant):
            return None if value.integer is None else value
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

    def emit(self, instruction: Instruction) -> Value:
        """Appends an instruction to ``code`` under a new name, and returns it. If ``code`` has an equal instruction,
        returns that instruction instead."""
        known = self._emitted.setdefault(instruction.body, instruction)
        if known is instruction:
            self.code.append(instruction)
            instruction.name = f"%{self._prefix}.{len(self.code)}"
        return known

    def guard(self) -> Value:
        """Returns an ``i1``, computed at the preheader, that is true if all conditions hold."""
        result: Value = TRUE
        for condition in self.conditions:
            result = self.emit(Binary("", "and", result, condition))
        return result

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

    def _affine(self, value: Value, extension: str) -> Affine:
        """Returns an affine function that is congruent to the value modulo 2 to the power of the value's width. A
        constant of fewer than 64 bits is widened by ``extension``, "sext" or "zext". Raises ``Undecidable``."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise Undecidable("the index is made of too many sums and products")
        if value.type == "i128":
            raise Undecidable("the index is part of a product of 128 bits")
        moved = self.before(value)
        if moved is not None:
            return {None: self._word(moved, extension)}
        match value:
            case Phi():
                return self._recurrence(value, extension)
            case Binary(opcode=opcode) if opcode in _ARITHMETIC:
                return self._arithmetic(value, extension)
            case Cast(opcode="trunc", value=wider):
                return self._affine(wider, extension)
            case Cast(opcode="zext" | "sext" as how, value=narrower):
                form = self._affine(narrower, how)
                self._require_fits(form, narrower.type, how)
                return form
            case Select(condition=condition, left=left, right=right):
                chosen = self._tested(condition)
                if chosen is None:
                    return self._either(value, left, right)
                return self._affine(left if chosen else right, extension)
            case Call(arguments=[left, right]) if integer_intrinsic(value)[1:] in ("min", "max"):
                return self._either(value, left, right)
        raise Undecidable(_reason(value))

    def _arithmetic(self, value: Binary, extension: str) -> Affine:
        if value.opcode == "xor" and value.right.integer == -1:
            return self._sum({None: -1}, self._scaled(self._affine(value.left, extension), -1))
        if value.opcode in ("and", "or", "xor", "lshr", "ashr") and not value.is_sum:
            raise Undecidable("the index is no sum of products of loop counters")
        left = self._affine(value.left, extension)
        if value.opcode == "shl":
            amount = value.right.integer
            if amount is None or not 0 <= amount < _bits(value.type):
                raise Undecidable("the index is shifted by a number that is not constant")
            return self._scaled(left, 1 << amount)
        right = self._affine(value.right, extension)
        if value.opcode == "mul":
            if set(right) != {None}:
                left, right = right, left
            if set(right) != {None}:
                raise Undecidable("the index has a product of two numbers that change in the loop")
            return self._scaled(left, right[None])
        return self._sum(left, self._scaled(right, -1) if value.opcode == "sub" else right)

    def _recurrence(self, phi: Phi, extension: str) -> Affine:
        """Returns the form of a phi that changes by the same amount in each iteration of a loop. Raises ``Undecidable``
        for any other phi."""
        loop = next((loop for loop in self.loop.within() if loop.header is phi.block), None)
        if loop is None:
            loaded = any(isinstance(value, Load) for value, _ in phi.incoming)
            way = "is read from memory" if loaded else "depends on which way the kernel went"
            raise Undecidable(f"the index {way}")
        step = self._step(phi, loop)
        return self._sum(self._affine(phi.from_block(loop.preheader), extension), {loop: step})

    def _step(self, phi: Phi, loop: Loop) -> Coefficient:
        """Returns the amount by which a phi in a loop's header changes in each iteration. Raises ``Undecidable``."""
        problem = Undecidable("the index does not change by the same amount in every iteration")
        following = phi.from_block(loop.latch)
        for _ in range(8):
            match following:
                case Select(condition=condition, left=left, right=right):
                    chosen = self._tested(condition)
                    if chosen is None:
                        raise problem
                    following = left if chosen else right
                case Binary(left=left, right=right) if following.is_sum or following.opcode == "sub":
                    if right is phi and following.is_sum:
                        left, right = right, left
                    amount = self._affine(right, "sext") if left is phi else {}
                    if set(amount) != {None}:
                        raise problem
                    return amount[None] if following.is_sum else self._times(amount[None], -1)
                case _:
                    raise problem
        raise problem

    def _either(self, value: Value, *choices: Value) -> Affine:
        """Introduces a variable for a value that is one of two choices. Its range covers the ranges of both choices."""
        if value not in self._extents:
            lows, highs = [], []
            for choice in choices:
                form = self._affine(choice, "sext")
                self._require_fits(form, choice.type, "sext")
                low, high = self._extent(form)
                lows.append(low)
                highs.append(high)
            low, high = self._pick("slt", *lows), self._pick("sgt", *highs)
            self._extents[value] = self._bounded(low), self._bounded(high)
        return {value: 1}

    # The number of iterations

    def _counter(self, loop: Loop) -> tuple[Coefficient, Coefficient]:
        """Returns the range of a loop's counter, valid after the loop's own test has passed."""
        if loop not in self._extents:
            if loop in self._counting:
                raise Undecidable("the loop's end changes in the loop")
            self._counting.append(loop)
            try:
                iterations = self._iterations(loop)
                if set(iterations) != {None}:
                    # The inner loop's greatest count and the greatest index may be in different iterations of this
                    # loop. A check hoisted out of the inner loop alone is exact.
                    raise Undecidable("an inner loop's end changes in the loop")
                _, high = self._extent(iterations)
            finally:
                self._counting.pop()
            last = self._binary("sub", high, 1, "i128")
            self._extents[loop] = 0, self._bounded(self._pick("sgt", last, 0))
        return self._extents[loop]

    def _iterations(self, loop: Loop) -> Affine:
        """Returns an upper bound on the loop's iterations. It is valid only if the loop's body runs at least once."""
        problem = Undecidable("the loop does not count: its test is no comparison with a number known before it")
        match self._test(loop):
            case Compare(predicate=test, left=left, right=right), inside if test in INVERSE and _integer(left):
                predicate = test if inside else INVERSE[test]
            case _:
                raise problem
        if predicate == "sgt" and right.integer == 0 and (difference := self._difference(loop, left)):
            return difference
        counted, limit = self._affine(left, "sext"), self._affine(right, "sext")
        if loop in limit:
            counted, limit, predicate = limit, counted, MIRROR[predicate]
        step = counted.pop(loop, 0)
        if loop in limit or step != {"l": 1, "g": -1}[predicate[1]]:
            raise problem
        if predicate.endswith("e"):
            # `<= limit` is `< limit + 1` unless the sum overflows. It would if `limit` were the type's greatest number:
            # such a loop would never end.
            limit = self._sum(limit, {None: step})
        for form in (counted, limit):
            self._require_fits(form, left.type, "sext" if predicate[0] == "s" else "nneg")
        upper, lower = (limit, counted) if step == 1 else (counted, limit)
        return self._sum(upper, self._scaled(lower, -1))

    def _difference(self, loop: Loop, counter: Value) -> Affine | None:
        """Returns ``stop - start`` for a loop over a ``range`` of step 1 whose number of iterations varies in an
        enclosing loop. None for any other loop."""
        if not isinstance(counter, Phi) or counter.block is not loop.header:
            return None
        match counter.from_block(loop.preheader):
            case Call(arguments=[Call(arguments=[last, first]) as way, least]) as count:
                if integer_intrinsic(count) != "smax" or least.integer != 0 or integer_intrinsic(way) != "ssub.sat":
                    return None
            case _:
                return None
        if self.before(count) is not None or self._step(counter, loop) != -1:
            return None
        stop, start = self._affine(last, "sext"), self._affine(first, "sext")
        for form in (stop, start):
            self._require_fits(form, counter.type, "sext")  # so the subtraction does not saturate
        return self._sum(stop, self._scaled(start, -1))

    def _test(self, loop: Loop) -> tuple[Value, bool] | None:
        """Returns the condition of a loop's header, and whether the loop continues if the condition is true. None if
        the header has no such condition."""
        match loop.header.terminator:
            case Branch(condition=Value() as condition, yes=yes, no=no) if (yes in loop.blocks) != (no in loop.blocks):
                return None if loop.header in (yes, no) else (condition, yes in loop.blocks)
        return None

    def _tested(self, condition: Value) -> bool | None:
        """Returns whether a condition is true inside the loop whose test it is, or None if it is not the test of a
        loop."""
        for loop in self.loop.within():
            test = self._test(loop)
            if test is not None and test[0] is condition:
                return test[1]
        return None

    # Ranges

    def _extent(self, form: Affine) -> tuple[Wide, Wide]:
        """Returns the least and the greatest value of a form, computed over the whole numbers. Raises
        ``Undecidable``."""
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
            low, high = self._binary("add", low, smaller, "i128"), self._binary("add", high, larger, "i128")
        return low, high

    def _require_fits(self, form: Affine, type_: str, how: str) -> None:
        """Requires that all values of a form are in the range of a type, and in ±``_LARGEST``. ``how`` selects the
        range: all signed ("sext"), all unsigned ("zext") or only the non-negative signed numbers ("nneg")."""
        bits = _bits(type_)
        least, greatest = {
            "sext": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
            "zext": (0, 2**bits - 1),
            "nneg": (0, 2 ** (bits - 1) - 1),
        }[how]
        low, high = self._extent(form)
        self._require("sge", low, max(least, -_LARGEST))
        self._require("sle", high, min(greatest, _LARGEST))

    def _bounded(self, wide: Wide) -> Value:
        self._require("sge", wide, -_LARGEST)
        self._require("sle", wide, _LARGEST)
        return self.emit(Cast("", "trunc", _operand(wide, "i128"), "i64"))

    def _require(self, predicate: str, left: Wide, right: Wide) -> None:
        self._hold(Compare("", predicate, _operand(left, "i128"), _operand(right, "i128")))

    def _hold(self, comparison: Compare) -> None:
        self.conditions[self.emit(comparison)] = None

    # Instructions at the preheader

    def _find_moved(self, value: Value) -> Value | None:
        if not isinstance(value, Instruction) or self.flow.dominates(value.block, self.loop.preheader):
            return value
        operands = _recomputable(value)
        moved = {operand: before for operand in operands if (before := self.before(operand)) is not None}
        return self.emit(_always_defined(value.copy(moved, ""))) if moved and moved.keys() >= set(operands) else None

    def _word(self, value: Value, extension: str) -> Coefficient:
        constant = value.integer
        if constant is not None:
            return constant % 2 ** _bits(value.type) if extension == "zext" and value.type != "i64" else constant
        return value if value.type == "i64" else self.emit(Cast("", extension, value, "i64"))

    def _wide(self, word: Coefficient) -> Wide:
        if isinstance(word, int):
            return word
        return self.emit(Cast("", "sext", word, "i128")) if word.integer is None else word.integer

    def _product(self, left: Coefficient, right: Coefficient) -> Wide:
        if left == 0 or right == 0:
            return 0
        if left == 1 or right == 1:
            return self._wide(right if left == 1 else left)
        return self._binary("mul", self._wide(left), self._wide(right), "i128")

    def _pick(self, predicate: str, left: Wide, right: Wide) -> Wide:
        """Returns the smaller of two numbers for the predicate "slt", and the larger for "sgt"."""
        if left == right:
            return left
        first, second = _operand(left, "i128"), _operand(right, "i128")
        return self.emit(Select("", self.emit(Compare("", predicate, first, second)), first, second))

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
        return self._binary("add", left, right, "i64")

    def _times(self, left: Coefficient, right: Coefficient) -> Coefficient:
        if isinstance(left, int) and isinstance(right, int):
            return _signed(left * right)
        if left == 0 or right == 0:
            return 0
        if left == 1 or right == 1:
            return right if left == 1 else left
        return self._binary("mul", left, right, "i64")

    def _binary(self, opcode: str, left: Coefficient | Wide, right: Coefficient | Wide, type_: str) -> Value:
        return self.emit(Binary("", opcode, _operand(left, type_), _operand(right, type_)))


def _plain(form: Affine) -> Affine:
    """Returns a form without the variables whose coefficient is 0. The result has a constant term, even 0."""
    return {variable: c for variable, c in form.items() if variable is None or c != 0} | {None: form.get(None, 0)}


def _signed(word: int) -> int:
    """Returns the signed 64-bit word congruent to a whole number."""
    return (word + 2**63) % 2**64 - 2**63


def _recomputable(value: Instruction) -> list[Value]:
    """Returns the operands of an instruction if it may be executed before the loop, else []."""
    match value:
        case Binary(opcode="shl" | "lshr" | "ashr", right=right) if right.integer is None:
            return []  # the shift amount may be out of range where the loop does not execute the shift
        case Binary(opcode=opcode) if opcode in _ARITHMETIC:
            return value.operands
        case Cast(opcode="zext" | "sext" | "trunc") | Cast(opcode="ptrtoint", type="i64", value=Value(type="ptr")):
            return value.operands
        case Compare() | Select() if _integer(value.operands[-1]):
            return value.operands
        case Call() if register_of(value) or integer_intrinsic(value):
            return value.arguments
    return []


def _always_defined(instruction: Instruction) -> Instruction:
    """Removes properties of an instruction's result that hold only where the kernel executes it, such as ``nsw``."""
    if isinstance(instruction, Call):
        instruction.before, instruction.after, instruction.attributes = "", "", {}
    elif isinstance(instruction, Binary | Cast | Compare | Select):
        instruction.flags = ""
    instruction.metadata = {}
    return instruction


def _integer(value: Value) -> bool:
    return value.type.startswith("i")


def _bits(type_: str) -> int:
    return int(type_[1:])


def _operand(value: int | Value, type_: str) -> Value:
    return number(value, type_) if isinstance(value, int) else value


def _reason(value: Value) -> str:
    if isinstance(value, Load):
        return "the index is read from memory"
    if "fpto" in called(value) or (isinstance(value, Cast) and value.opcode.startswith("fpto")):
        return "the index is converted from a floating point number"
    if isinstance(value, Binary) and value.opcode in ("sdiv", "udiv", "srem", "urem"):
        return "the index is a quotient or a remainder"
    return "the index is no sum of products of loop counters"
