"""Static bounds proofs: launch contracts and the kernel's own tests show that an access needs no run-time check.

An index is read as a polynomial with whole coefficients over *atoms*: parameters, slice lengths, the thread's position
and loop counters. ``0 <= index`` and ``index < length`` are then proved by replacing atoms with their bounds. Bounds
come from the loops (``i < k``), from tests that dominate the access (``row < m``, an index that is not None) and from
contracts (``len(a) >= m * k``). In ``sgemm_naive``, ``len(a) - 1 - (row*k + i)`` is least where ``i`` is ``k - 1`` and
``row`` is ``m - 1``; there it is ``len(a) - m*k``, which is not negative by the contract.

The proofs are sound under wrap-around, for the reason given in ``affine``: sums and products modulo 2**64 are congruent
to the polynomial over the whole numbers, and if the polynomial's value is in [0, length), it is the one congruent
number in that range. Comparisons and widenings are used only if their polynomials stay within the type by the ranges of
their atoms.

Blocks are visited in a walk of the dominator tree: a fact learnt in a block holds in all blocks that it dominates, and
is undone after them. Of facts that differ only in their constants, the strongest is kept. Each access and each test has
``BUDGET`` steps. An access that takes more stays checked, so that time grows only linearly with their number.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, final

from oxide.compiler.ir.patterns import (
    BINARY,
    BRANCH,
    CAST,
    COMPARE,
    INTRINSIC,
    INVERSE,
    REGISTER,
    SELECT,
    conditions_of,
)
from oxide.compiler.ir.ssa import Function, Loop
from oxide.compiler.signature.contracts import Contract
from oxide.compiler.signature.signature import Closed, NumbaParameter

Polynomial: TypeAlias = dict[tuple[str, ...], int]
"""Coefficients by monomial: its atoms, sorted. The constant's monomial is empty."""

Shape: TypeAlias = tuple[tuple[tuple[str, ...], int], ...]
"""A polynomial without its constant, sorted."""

BUDGET = 600
"""The most steps for one access or one test: values read as polynomials, and polynomials bounded."""

_MISSING: Any = object()
_DEPTH = 8
_DEEPEST = 64
_MOST_TERMS = 64
_HIGHEST_DEGREE = 8


class Access(Protocol):
    """An access to prove: in ``block``, the ``i64`` ``index`` is in [0, ``length``)."""

    @property
    def block(self) -> str: ...
    @property
    def index(self) -> str: ...
    @property
    def length(self) -> str: ...


_A = TypeVar("_A", bound=Access)
_K = TypeVar("_K")
_V = TypeVar("_V")


class _Unknown(Exception):
    """With the facts of the visited block, the value is not known to be a polynomial over atoms."""


class _Never(_Unknown):
    """The value is not a polynomial in any block, for example a value loaded from memory."""


class _Exhausted(_Unknown):
    """The budget is spent."""


@final
class Prover:
    """Proves accesses of one kernel from its tests, its loops and its contracts. ``steps`` counts the work."""

    def __init__(
        self,
        function: Function,
        loops: Sequence[Loop],
        parameters: Sequence[Closed],
        contracts: Sequence[Contract],
    ) -> None:
        self.function = function
        self.steps = 0
        self._limit = 0
        self._headers = {loop.header for loop in loops}
        self._ranges: dict[str, tuple[int, int]] = {}
        self._arguments = self._argument_atoms(parameters)
        # The facts known in the visited block. The trail is an undo stack of (table, key, previous value).
        self._trail: list[tuple[dict[Any, Any], Any, Any]] = []
        self._truths: dict[str, bool] = {}
        self._inside: dict[tuple[str, str], None] = {}
        self._forms: dict[str, Polynomial] = {}
        self._counted: dict[Loop, None] = {}
        self._facts: dict[Shape, Polynomial] = {}
        self._by_monomial: dict[tuple[str, ...], dict[Shape, Polynomial]] = {}
        self._around: list[Loop] = []
        self._never: set[str] = set()
        self._deep = 0
        self._failed: dict[frozenset[tuple[tuple[str, ...], int]], int] = {}
        for contract in contracts:
            for fact in _facts_of(contract):
                if all(atom in self._ranges for monomial in fact for atom in monomial):
                    self._add_contract(fact)

    def proven(self, accesses: Sequence[_A]) -> Iterator[_A]:
        """Yields the accesses that are in bounds whenever control reaches them."""
        by_block: dict[str, list[_A]] = {}
        for access in accesses:
            by_block.setdefault(access.block, []).append(access)
        pending: list[tuple[str, int]] = [(self.function.entry, -1)]
        while pending:
            block, before = pending.pop()
            if before >= 0:
                self._forget(before)
                continue
            pending.append((block, len(self._trail)))
            self._enter(block)
            for access in by_block.get(block, ()):
                if self._proves(access.index, access.length):
                    yield access
            pending += ((child, -1) for child in self.function.dominated(block))

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
                    self._ranges[parameter.name] = (
                        (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
                    )
            else:
                atom = atoms[next(names)] = f"len({parameter.name})"
                self._ranges[atom] = 0, 2**62
        return atoms

    def _add_contract(self, fact: Polynomial) -> None:
        for atom, (least, greatest) in list(self._ranges.items()):
            if fact.keys() <= {(atom,), ()} and fact.get((atom,)) == 1:
                self._ranges[atom] = max(least, -fact.get((), 0)), greatest
        self._add(fact)

    # What is known in a block

    def _set(self, table: dict[_K, _V], key: _K, value: _V) -> None:
        self._trail.append((table, key, table.get(key, _MISSING)))
        table[key] = value

    def _forget(self, before: int) -> None:
        """Undoes what was learnt since the trail had length ``before``."""
        while len(self._trail) > before:
            table, key, value = self._trail.pop()
            if value is _MISSING:
                del table[key]
            else:
                table[key] = value
        self._failed.clear()

    def _add(self, fact: Polynomial) -> None:
        """Adds the fact that a polynomial is not negative."""
        shape: Shape = tuple(sorted((m, c) for m, c in fact.items() if m))
        known = self._facts.get(shape)
        if not shape or (known is not None and known.get((), 0) <= fact.get((), 0)):
            return
        self._failed.clear()
        self._set(self._facts, shape, fact)
        for monomial, _ in shape:
            self._set(self._by_monomial.setdefault(monomial, {}), shape, fact)

    def _enter(self, block: str) -> None:
        """Learns what holds in a block and in all blocks that it dominates."""
        self._failed.clear()
        self._around = [loop for loop in self._loops_around(block) if block != loop.header]
        before = self.function.predecessors[block]
        match = BRANCH.match(self.function.terminator(before[0])) if len(before) == 1 else None
        if match is not None and match["yes"] != match["no"]:
            self._learn(match["condition"], match["yes"] == block)
        self._learn_counters()

    def _loops_around(self, block: str) -> list[Loop]:
        """Returns the loops that contain a block, outermost first."""
        found = []
        loop = self.function.innermost.get(block)
        while loop is not None:
            found.append(loop)
            loop = loop.parent
        return found[::-1]

    def _learn(self, condition: str, truth: bool) -> None:
        pending = [(condition, truth)]
        while pending:
            condition, truth = pending.pop()
            if self._truths.get(condition) == truth:
                continue
            self._set(self._truths, condition, truth)
            instruction = self.function.definitions.get(condition)
            if instruction is None:
                continue
            pending += reversed(conditions_of(instruction.text, truth))
            if match := COMPARE.match(instruction.text):
                self._limit = self.steps + BUDGET
                self._learn_comparison(match, truth)

    def _learn_comparison(self, match: re.Match[str], truth: bool) -> None:
        predicate = match["predicate"] if truth else {**INVERSE, "eq": "ne", "ne": "eq"}[match["predicate"]]
        left, right = match["left"], match["right"]
        if (predicate, match["type"]) == ("ult", "i64"):
            self._set(self._inside, (left, right), None)
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
        if not (self._fits(first, bits) and self._fits(second, bits)):
            return
        if predicate[0] == "u":
            # Unsigned: if the larger side is not negative, the smaller side is not negative either.
            small, large = (first, second) if predicate[1] == "l" else (second, first)
            if self._least(large) < 0:
                return
            self._add(small)
        strict: Polynomial = {(): 0 if predicate.endswith("e") else 1}
        if predicate in ("sgt", "sge", "ugt", "uge"):
            self._add(_plus(_plus(first, second, -1), strict, -1))
        elif predicate in ("slt", "sle", "ult", "ule"):
            self._add(_plus(_plus(second, first, -1), strict, -1))
        elif predicate == "eq":
            self._add(_plus(first, second, -1))
            self._add(_plus(second, first, -1))

    def _learn_counters(self) -> None:
        """Learns ``counter <= iterations - 1`` for each enclosing loop that counts down to 0, as ``range`` does."""
        for loop in self._around:
            if loop in self._counted:
                continue
            self._limit = self.steps + BUDGET
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
            self._set(self._counted, loop, None)
            self._set(self._ranges, atom, (0, max(0, self._greatest(iterations) - 1)))
            self._add(_plus(_plus(iterations, {(atom,): 1}, -1), {(): 1}, -1))

    def _iterations(self, value: str, bits: int) -> Polynomial:
        """Returns an upper bound of a loop's initial count, which is over 0 as the loop runs. Raises ``_Unknown``."""
        instruction = self.function.definitions.get(value)
        text = instruction.text if instruction else ""
        if match := SELECT.match(text):
            # The count is over 0, so the select did not choose 0.
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
            # LLVM's form of a saturating difference that cannot wrap: max(a, b) - b.
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
        """Returns the value's polynomial if it equals the value over the whole numbers too. Raises ``_Unknown``."""
        form = self._form(value)
        if not self._fits(form, bits, unsigned=unsigned):
            raise _Unknown
        return form

    # Polynomials

    def _form(self, value: str) -> Polynomial:
        if not value.startswith("%"):
            if not re.fullmatch(r"-?\d+", value):
                raise _Never
            return {(): int(value)} if int(value) else {}
        known = self._forms.get(value)
        if known is None:
            if value in self._never:
                raise _Never
            self._spend()
            if self._deep == _DEEPEST:
                raise _Unknown
            self._deep += 1
            try:
                known = self._find_form(value)
            except _Never:
                self._never.add(value)
                raise
            finally:
                self._deep -= 1
            self._set(self._forms, value, known)
        return known

    def _find_form(self, value: str) -> Polynomial:
        instruction = self.function.definitions.get(value)
        if instruction is None:
            atom = self._arguments.get(value)
            if atom is None:
                raise _Never
            return {(atom,): 1}
        text = instruction.text
        if match := BINARY.match(text):
            return self._arithmetic(match)
        if match := CAST.match(text):
            return self._cast(match)
        if match := REGISTER.match(text):
            atom = match["name"]
            self._ranges[atom] = 0, 2**32 - 1
            return {(atom,): 1}
        if match := SELECT.match(text):
            chosen = self._truths.get(match["condition"])
            if chosen is None:
                raise _Unknown
            try:
                return self._form(match["left" if chosen else "right"])
            except _Never:
                raise _Unknown from None  # under the opposite condition, the value may be a polynomial
        if instruction.opcode != "phi" or instruction.block not in self._headers:
            raise _Never
        loop = next((loop for loop in self._around if loop.header == instruction.block), None)
        if loop is None:
            raise _Unknown
        atom = _counter(loop)
        self._ranges.setdefault(atom, (0, 2**63 - 1))
        start = self._form(instruction.incoming()[loop.preheader])
        return _plus(start, {(atom,): 1}, self._step(loop, value))

    def _spend(self) -> None:
        self.steps += 1
        if self.steps > self._limit:
            raise _Exhausted

    def _arithmetic(self, match: re.Match[str]) -> Polynomial:
        operation = match["operation"]
        if operation not in ("add", "sub", "or disjoint", "mul", "shl"):
            raise _Never
        left, right = self._form(match["left"]), self._form(match["right"])
        if operation == "mul":
            return _times(left, right)
        if operation == "shl":
            if not match["right"].isdigit():
                raise _Never
            return _times(left, {(): 1 << int(match["right"])})
        return self._position(_plus(left, right, -1 if operation == "sub" else 1))

    def _cast(self, match: re.Match[str]) -> Polynomial:
        form = self._form(match["value"])
        bits = int(match["source"][1:])
        if match["operation"] == "trunc":
            raise _Never
        if not self._fits(form, bits, unsigned=match["operation"] == "zext"):
            raise _Unknown
        return form

    def _position(self, form: Polynomial) -> Polynomial:
        """Replaces a thread's global coordinate by one atom, as the kernel's tests compare that."""
        for axis in "xyz":
            if form == {(f"ctaid.{axis}", f"ntid.{axis}"): 1, (f"tid.{axis}",): 1}:
                atom = f"position.{axis}"
                self._ranges[atom] = 0, 2**42
                return {(atom,): 1}
        return form

    def _step(self, loop: Loop, phi: str) -> int:
        following = self.function.definitions[phi].incoming()[loop.latch]
        for _ in range(4):
            instruction = self.function.definitions.get(following)
            if instruction is None:
                raise _Unknown
            if match := SELECT.match(instruction.text):
                if match["condition"] not in self._truths:
                    raise _Unknown
                following = match["left"] if self._truths[match["condition"]] else match["right"]
            elif (match := BINARY.match(instruction.text)) and match["operation"] == "add" and match["left"] == phi:
                if not re.fullmatch(r"-?\d+", match["right"]):
                    raise _Unknown
                return int(match["right"])
            else:
                raise _Unknown
        raise _Unknown

    # Inequalities

    def _proves(self, index: str, length: str) -> bool:
        if (index, length) in self._inside:
            return True
        self._limit = self.steps + BUDGET
        try:
            form, size = self._form(index), self._form(length)
            return self._nonnegative(form, _DEPTH) and self._nonnegative(
                _plus(_plus(size, form, -1), {(): 1}, -1), _DEPTH
            )
        except _Unknown:
            return False

    def _nonnegative(self, form: Polynomial, depth: int) -> bool:
        key = frozenset(form.items())
        if self._failed.get(key, -1) >= depth:
            return False
        if self._bounded(form) or any(self._bounded(_plus(form, fact, -1)) for fact in self._facts_about(form)):
            return True
        if depth > 0 and any(self._nonnegative(less, depth - 1) for less in self._with_bounds(form)):
            return True
        self._failed[key] = depth
        return False

    def _facts_about(self, form: Polynomial) -> list[Polynomial]:
        """Returns the facts that share a monomial with a form."""
        found: dict[Shape, Polynomial] = {}
        for monomial in form:
            found |= self._by_monomial.get(monomial, {})
        return list(found.values())

    def _with_bounds(self, form: Polynomial) -> Iterator[Polynomial]:
        """Yields lower bounds of a form: one atom with a factor of at most 0 is replaced by its upper bound."""
        for atom in sorted({atom for monomial in form for atom in monomial}):
            if any(monomial.count(atom) > 1 for monomial in form):
                continue
            factor = {tuple(a for a in m if a != atom): c for m, c in form.items() if atom in m}
            if not self._bounded(_times(factor, {(): -1})):
                continue
            rest = {m: c for m, c in form.items() if atom not in m}
            for fact in list(self._by_monomial.get((atom,), {}).values()):
                # `fact` is bound - atom, so atom <= bound, and factor * atom >= factor * bound.
                if fact[(atom,)] == -1 and not any(atom in m and m != (atom,) for m in fact):
                    bound = {m: c for m, c in fact.items() if m != (atom,)}
                    yield _plus(rest, _times(factor, bound))

    def _bounded(self, form: Polynomial) -> bool:
        """Returns whether the ranges of a form's atoms alone show that it is not negative."""
        self._spend()
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
            least, greatest = self._ranges[atom]
            ends = [end * other for end in (low, high) for other in (least, greatest)]
            low, high = min(ends), max(ends)
        return low, high


def _facts_of(contract: Contract) -> list[Polynomial]:
    """Returns polynomials that are not negative if the contract holds; none if it does not compare polynomials."""
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
    """Returns the product. Raises ``_Unknown`` if it has too many terms or too high a degree."""
    if len(left) * len(right) > _MOST_TERMS:
        raise _Unknown
    result: Polynomial = {}
    for first, a in left.items():
        for second, b in right.items():
            monomial = tuple(sorted((*first, *second)))
            if len(monomial) > _HIGHEST_DEGREE:
                raise _Unknown
            result[monomial] = result.get(monomial, 0) + a * b
    return {monomial: coefficient for monomial, coefficient in result.items() if coefficient}


def _counter(loop: Loop) -> str:
    return f"counter {loop.header}"
