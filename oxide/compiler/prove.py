"""Accesses that launch contracts and the kernel's own tests prove to be inside, so that nothing is checked at run time.

An index is read as a polynomial with whole coefficients over *atoms*: parameters, slice lengths, the thread's position
and loop counters. ``0 <= index`` and ``index < length`` are then proved by replacing atoms with their bounds, which
come from the loops (``i < k``), from tests that dominate the access (``row < m``, an index that is not None) and from
contracts (``len(a) >= m * k``). In ``sgemm_naive``: ``len(a) - 1 - (row*k + i)`` is least where ``i`` is ``k - 1`` and
``row`` is ``m - 1``; there it is ``len(a) - m*k``, which the contract says is not negative.

Wrap-around cannot fool it, for the reason given in ``affine``: sums and products modulo 2**64 are congruent to the
polynomial over the whole numbers, and a polynomial whose value is in [0, length) is the one number congruent to it
there. Comparisons and widenings are believed only of polynomials whose atoms' ranges keep them within the type.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import TypeAlias, final

from .contracts import Contract
from .patterns import BINARY, BRANCH, CAST, COMPARE, INTRINSIC, INVERSE, REGISTER, SELECT, conditions_of
from .signature import Closed, NumbaParameter
from .ssa import Function, Loop

Polynomial: TypeAlias = dict[tuple[str, ...], int]
"""Coefficients by monomial: the atoms that are multiplied, sorted. The constant's monomial is empty."""

_DEPTH = 8


class _Unknown(Exception):
    """A value that is no polynomial over atoms."""


@final
class Prover:
    """What is known in one kernel: its parameters and its contracts."""

    def __init__(
        self,
        function: Function,
        loops: Sequence[Loop],
        parameters: Sequence[Closed],
        contracts: Sequence[Contract],
    ) -> None:
        self.function = function
        self.loops = loops
        self.ranges: dict[str, tuple[int, int]] = {}
        self.arguments = self._argument_atoms(parameters)
        self.contracts: list[Polynomial] = []
        for contract in contracts:
            self.contracts += _facts_of(contract)

    def proves(self, block: str, index: str, length: str) -> bool:
        """Whether an ``i64`` index is in [0, length) whenever control is in ``block``."""
        try:
            return _Place(self, block).is_inside(index, length)
        except _Unknown:
            return False

    def _argument_atoms(self, parameters: Sequence[Closed]) -> dict[str, str]:
        names = (name for _, name in self.function.parameters[1:])
        atoms = {}
        flat = [part for p in parameters for part in ((p,) if p.lifted is None else p.lifted.parts)]
        for parameter in flat:
            if isinstance(parameter, NumbaParameter):
                for _ in parameter.type.words:
                    next(names)
                continue
            word = next(names)
            if parameter.kind == "scalar":
                if parameter.dtype.kind in "iu":
                    bits, signed = 8 * parameter.dtype.itemsize, parameter.dtype.kind == "i"
                    atoms[word] = parameter.name
                    self.ranges[parameter.name] = (
                        (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
                    )
            else:
                atom = atoms[next(names)] = f"len({parameter.name})"
                self.ranges[atom] = 0, 2**62
        return atoms


@final
class _Place:
    """What is known where control is in one block."""

    def __init__(self, prover: Prover, block: str) -> None:
        self.prover = prover
        self.function = prover.function
        self.block = block
        self.around = [loop for loop in prover.loops if block in loop.blocks and block != loop.header]
        self.ranges = dict(prover.ranges)
        self.truths: dict[str, bool] = {}
        self.facts: list[Polynomial] = list(prover.contracts)
        self.inside: set[tuple[str, str]] = set()
        self._forms: dict[str, Polynomial] = {}
        self._learn_conditions()

    def is_inside(self, index: str, length: str) -> bool:
        if (index, length) in self.inside:
            return True
        self._learn_counters()
        form, size = self._form(index), self._form(length)
        return self._nonnegative(form, _DEPTH) and self._nonnegative(_plus(_plus(size, form, -1), {(): 1}, -1), _DEPTH)

    # What is known

    def _learn_conditions(self) -> None:
        for block in self.function.blocks:
            match = BRANCH.match(self.function.terminator(block))
            if match is None or match["yes"] == match["no"] or block == self.block:
                continue
            for target, truth in ((match["yes"], True), (match["no"], False)):
                only = self.function.predecessors[target] == [block]
                if only and self.function.dominates(target, self.block):
                    self._learn(match["condition"], truth)

    def _learn(self, condition: str, truth: bool) -> None:
        self.truths[condition] = truth
        instruction = self.function.definitions.get(condition)
        if instruction is None:
            return
        for part, is_so in conditions_of(instruction.text, truth):
            self._learn(part, is_so)
        if match := COMPARE.match(instruction.text):
            self._learn_comparison(match, truth)

    def _learn_comparison(self, match: re.Match[str], truth: bool) -> None:
        predicate = match["predicate"] if truth else {**INVERSE, "eq": "ne", "ne": "eq"}[match["predicate"]]
        left, right = match["left"], match["right"]
        if (predicate, match["type"]) == ("ult", "i64"):
            self.inside.add((left, right))
        if (predicate, right) in (("sgt", "-1"), ("sge", "0")):
            # A ThreadIndex that is not None: the select that made it chose its number.
            chosen = self.function.definitions.get(left)
            if chosen and (picked := SELECT.match(chosen.text)) and picked["right"] == "-1":
                self._learn(picked["condition"], True)
        try:
            first, second = self._form(left), self._form(right)
        except _Unknown:
            return
        bits = int(match["type"][1:])
        if predicate[0] == "u":
            # Unsigned, with one side known to be no negative number: so is the smaller one.
            if not (self._fits(first, bits) and self._fits(second, bits)):
                return
            small, large = (first, second) if predicate[1] == "l" else (second, first)
            if self._least(large) < 0:
                return
            self.facts.append(small)
        elif not (self._fits(first, bits) and self._fits(second, bits)):
            return
        strict: Polynomial = {(): 0 if predicate.endswith("e") else 1}
        if predicate in ("sgt", "sge", "ugt", "uge"):
            self.facts.append(_plus(_plus(first, second, -1), strict, -1))
        elif predicate in ("slt", "sle", "ult", "ule"):
            self.facts.append(_plus(_plus(second, first, -1), strict, -1))
        elif predicate == "eq":
            self.facts += [_plus(first, second, -1), _plus(second, first, -1)]

    def _learn_counters(self) -> None:
        """``counter <= iterations - 1``, for each loop around whose test counts down to 0, as ``range`` does."""
        for loop in self.around:
            atom = _counter(loop)
            match = BRANCH.match(self.function.terminator(loop.header))
            test = self.function.definitions.get(match["condition"]) if match else None
            compared = COMPARE.match(test.text) if test else None
            if match is None or compared is None or match["yes"] not in loop.blocks or match["no"] in loop.blocks:
                continue
            phi = self.function.definitions.get(compared["left"])
            if (compared["predicate"], compared["right"]) != ("sgt", "0") or phi is None or phi.block != loop.header:
                continue
            try:
                if self._step(loop, phi.name) != -1:
                    continue
                iterations = self._iterations(phi.incoming()[loop.preheader], int(compared["type"][1:]))
            except (_Unknown, KeyError):
                continue
            self.facts.append(_plus(_plus(iterations, {(atom,): 1}, -1), {(): 1}, -1))
            self.ranges[atom] = 0, max(0, self._greatest(iterations) - 1)

    def _iterations(self, value: str, bits: int) -> Polynomial:
        """At least the first count of a loop that runs, so one over 0. Raises ``_Unknown``."""
        instruction = self.function.definitions.get(value)
        text = instruction.text if instruction else ""
        if match := SELECT.match(text):
            # A select between it and 0 chose it.
            if match["left"] == "0":
                return self._fitting(match["right"], bits)
            if match["right"] == "0":
                return self._fitting(match["left"], bits)
        if (match := CAST.match(text)) and match["operation"] == "zext":
            inner = self.function.definitions.get(match["value"])
            call = INTRINSIC.match(inner.text) if inner else None
            if call and (call["operation"], call["right"]) == ("smax", "0"):
                return self._iterations(match["value"], int(match["source"][1:]))
        if match := INTRINSIC.match(text):
            if (match["operation"], match["right"]) == ("smax", "0"):
                return self._iterations(match["left"], bits)
            if match["operation"] in ("ssub.sat", "usub.sat"):
                unsigned = match["operation"] == "usub.sat"
                left, right = (self._fitting(match[side], bits, unsigned) for side in ("left", "right"))
                return _plus(left, right, -1)
            if match["operation"] == "umin":
                inner = self.function.definitions.get(match["left"])
                if inner and inner.text.startswith("call") and "usub.sat" in inner.text:
                    return self._iterations(match["left"], bits)
                return self._fitting(match["left"], bits, unsigned=True)
        if (match := BINARY.match(text)) and match["operation"] in ("add", "sub"):
            # As LLVM writes a saturated difference that cannot wrap: the larger of two, less one of them.
            taken = match["right"] if match["operation"] == "sub" else match["right"].removeprefix("-")
            larger = self.function.definitions.get(match["left"])
            call = INTRINSIC.match(larger.text) if larger else None
            if call and call["operation"] in ("smax", "umax") and taken in (call["left"], call["right"]):
                other = call["right"] if taken == call["left"] else call["left"]
                if match["operation"] == "sub" or match["right"] == f"-{taken}":
                    difference = _plus(self._form(other), self._form(taken), -1)
                    if self._fits(difference, bits):
                        return difference
        return self._fitting(value, bits)

    def _fitting(self, value: str, bits: int, unsigned: bool = False) -> Polynomial:
        """The value's polynomial, which it is over the whole numbers too. Raises ``_Unknown``."""
        form = self._form(value)
        if not self._fits(form, bits, unsigned=unsigned):
            raise _Unknown
        return form

    # Polynomials

    def _form(self, value: str) -> Polynomial:
        if not value.startswith("%"):
            if not re.fullmatch(r"-?\d+", value):
                raise _Unknown
            return {(): int(value)} if int(value) else {}
        if value not in self._forms:
            self._forms[value] = self._find_form(value)
        return self._forms[value]

    def _find_form(self, value: str) -> Polynomial:
        instruction = self.function.definitions.get(value)
        if instruction is None:
            atom = self.prover.arguments.get(value)
            if atom is None:
                raise _Unknown
            return {(atom,): 1}
        text = instruction.text
        if match := BINARY.match(text):
            return self._arithmetic(match)
        if match := CAST.match(text):
            return self._cast(match)
        if match := REGISTER.match(text):
            atom = match["name"]
            self.ranges[atom] = 0, 2**32 - 1
            return {(atom,): 1}
        if match := SELECT.match(text):
            if match["condition"] in self.truths:
                return self._form(match["left"] if self.truths[match["condition"]] else match["right"])
            raise _Unknown
        loop = next((loop for loop in self.around if loop.header == instruction.block), None)
        if instruction.opcode == "phi" and loop is not None:
            atom = _counter(loop)
            self.ranges.setdefault(atom, (0, 2**63 - 1))
            start = self._form(instruction.incoming()[loop.preheader])
            return _plus(start, {(atom,): 1}, self._step(loop, value))
        raise _Unknown

    def _arithmetic(self, match: re.Match[str]) -> Polynomial:
        operation = match["operation"]
        left, right = self._form(match["left"]), self._form(match["right"])
        if operation in ("add", "sub", "or disjoint"):
            return self._position(_plus(left, right, -1 if operation == "sub" else 1))
        if operation == "mul":
            return _times(left, right)
        if operation == "shl" and match["right"].isdigit():
            return _times(left, {(): 1 << int(match["right"])})
        raise _Unknown

    def _cast(self, match: re.Match[str]) -> Polynomial:
        form = self._form(match["value"])
        bits = int(match["source"][1:])
        if match["operation"] == "trunc":
            raise _Unknown
        if not self._fits(form, bits, unsigned=match["operation"] == "zext"):
            raise _Unknown
        return form

    def _position(self, form: Polynomial) -> Polynomial:
        """A thread's global coordinate is one atom: it is what tests are made on."""
        for axis in "xyz":
            if form == {(f"ctaid.{axis}", f"ntid.{axis}"): 1, (f"tid.{axis}",): 1}:
                atom = f"position.{axis}"
                self.ranges[atom] = 0, 2**42
                return {(atom,): 1}
        return form

    def _step(self, loop: Loop, phi: str) -> int:
        following = self.function.definitions[phi].incoming()[loop.latch]
        for _ in range(4):
            instruction = self.function.definitions.get(following)
            if instruction is None:
                raise _Unknown
            if match := SELECT.match(instruction.text):
                if match["condition"] not in self.truths:
                    raise _Unknown
                following = match["left"] if self.truths[match["condition"]] else match["right"]
            elif (match := BINARY.match(instruction.text)) and match["operation"] == "add" and match["left"] == phi:
                if not re.fullmatch(r"-?\d+", match["right"]):
                    raise _Unknown
                return int(match["right"])
            else:
                raise _Unknown
        raise _Unknown

    # Inequalities

    def _nonnegative(self, form: Polynomial, depth: int) -> bool:
        if self._plainly_nonnegative(form) or any(
            self._plainly_nonnegative(_plus(form, fact, -1)) for fact in self.facts
        ):
            return True
        if depth == 0:
            return False
        for atom in sorted({atom for monomial in form for atom in monomial}):
            if any(monomial.count(atom) > 1 for monomial in form):
                continue
            factor = {tuple(a for a in m if a != atom): c for m, c in form.items() if atom in m}
            rest = {m: c for m, c in form.items() if atom not in m}
            if not self._plainly_nonnegative(_times(factor, {(): -1})):
                continue
            for fact in self.facts:
                # `fact` is bound - atom, so atom <= bound, and factor * atom >= factor * bound.
                if fact.get((atom,)) != -1 or any(atom in m and m != (atom,) for m in fact):
                    continue
                bound = {m: c for m, c in fact.items() if m != (atom,)}
                if self._nonnegative(_plus(rest, _times(factor, bound)), depth - 1):
                    return True
        return False

    def _plainly_nonnegative(self, form: Polynomial) -> bool:
        return self._least(form) >= 0

    def _least(self, form: Polynomial) -> int:
        return sum(min(coefficient * end for end in self._range_of(m)) for m, coefficient in form.items())

    def _greatest(self, form: Polynomial) -> int:
        return -self._least(_times(form, {(): -1}))

    def _fits(self, form: Polynomial, bits: int, *, unsigned: bool = False) -> bool:
        least, greatest = self._least(form), self._greatest(form)
        return (
            least >= 0 and greatest < 2**bits
            if unsigned
            else -(2 ** (bits - 1)) <= least and greatest < 2 ** (bits - 1)
        )

    def _range_of(self, monomial: tuple[str, ...]) -> tuple[int, int]:
        low = high = 1
        for atom in monomial:
            least, greatest = self.ranges[atom]
            for fact in self.prover.contracts:
                if set(fact) <= {(atom,), ()} and fact.get((atom,)) == 1:
                    least = max(least, -fact.get((), 0))
            ends = [end * other for end in (low, high) for other in (least, greatest)]
            low, high = min(ends), max(ends)
        return low, high


def _facts_of(contract: Contract) -> list[Polynomial]:
    """Polynomials that are not negative if the contract holds; none where it is no polynomial comparison."""
    try:
        left, right = _polynomial(contract.left), _polynomial(contract.right)
    except _Unknown:
        return []
    more, less = _plus(left, right, -1), _plus(right, left, -1)
    match contract.comparison:
        case ast.GtE():
            return [more]
        case ast.Gt():
            return [_plus(more, {(): 1}, -1)]
        case ast.LtE():
            return [less]
        case ast.Lt():
            return [_plus(less, {(): 1}, -1)]
        case _:
            return [more, less]


def _polynomial(node: ast.expr) -> Polynomial:
    match node:
        case ast.Constant(value=int(value)):
            return {(): value} if value else {}
        case ast.UnaryOp(operand=operand):
            return _times(_polynomial(operand), {(): -1})
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _plus(_polynomial(left), _polynomial(right))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _plus(_polynomial(left), _polynomial(right), -1)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _times(_polynomial(left), _polynomial(right))
        case ast.Name() | ast.Call():
            return {(ast.unparse(node),): 1}
        case _:
            raise _Unknown


def _plus(left: Polynomial, right: Polynomial, factor: int = 1) -> Polynomial:
    result = dict(left)
    for monomial, coefficient in right.items():
        result[monomial] = result.get(monomial, 0) + factor * coefficient
    return {monomial: coefficient for monomial, coefficient in result.items() if coefficient}


def _times(left: Polynomial, right: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for first, a in left.items():
        for second, b in right.items():
            monomial = tuple(sorted((*first, *second)))
            result[monomial] = result.get(monomial, 0) + a * b
    return {monomial: coefficient for monomial, coefficient in result.items() if coefficient}


def _counter(loop: Loop) -> str:
    return f"counter {loop.header}"
