"""Static bounds proofs: launch contracts and the kernel's own tests show that an access needs no run-time check.

An index is read as a polynomial with integer coefficients over *atoms*: parameters, slice lengths, the thread's
position and loop counters. ``0 <= index`` and ``index < length`` are then proved by replacing atoms with their bounds.
Bounds come from loops (``i < k``), from tests that dominate the access (``row < m``, or ``index is not None``) and from
contracts (``len(a) >= m * k``). In ``sgemm_naive``, ``len(a) - 1 - (row*k + i)`` is least where ``i`` is ``k - 1`` and
``row`` is ``m - 1``; there it is ``len(a) - m*k``, which is not negative by the contract.

The proofs are sound under wrap-around, for the reason given in ``affine``: sums and products modulo 2**64 are congruent
to the polynomial over the integers, and if the polynomial's value is in [0, length), it is the one congruent number in
that range. A comparison or a widening is used only if the ranges of the atoms show that its operands fit into their
type, so that nothing has wrapped.

Blocks are visited in a walk of the dominator tree: a fact learnt in a block holds in all blocks that it dominates, and
is forgotten when the walk leaves them. If several facts differ only in their constants, the strongest is kept. Each
access and each test has ``BUDGET`` steps. An access that takes more steps stays checked. So the time grows only
linearly with the number of accesses and tests.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias, TypeVar, final

from oxide.compiler.ir.control_flow import ControlFlow, Loop
from oxide.compiler.ir.module import Function
from oxide.compiler.ir.recognise import INVERSE, conditions_of, integer_intrinsic, register_of
from oxide.compiler.ir.values import Argument, Binary, Block, Branch, Call, Cast, Compare, Phi, Select, Value, number
from oxide.compiler.signature.contracts import Contract
from oxide.compiler.signature.signature import Closed, NumbaParameter, leaves

Polynomial: TypeAlias = dict[tuple[str, ...], int]
"""Coefficients by monomial. A monomial is the tuple of its sorted atoms, which is empty for the constant term."""

Shape: TypeAlias = tuple[tuple[tuple[str, ...], int], ...]
"""The terms of a polynomial, sorted, without its constant term."""

BUDGET = 600
"""The most steps for one access or one test. A step reads a value as a polynomial, or finds a bound of a polynomial."""

_MISSING: Any = object()
_DEPTH = 8
_DEEPEST = 64
_MOST_TERMS = 64
_HIGHEST_DEGREE = 8


@final
@dataclass(frozen=True, slots=True)
class Check:
    """A bounds check: the ``i64`` ``index`` must be in [0, ``length``) whenever control reaches ``block``."""

    call: Call
    block: Block
    index: Value
    length: Value
    site: int
    """The index of the access's fault site, or -1 for an access to one of several slices."""

    @classmethod
    def of(cls, call: Call) -> Check:
        _, index, length, site = call.arguments[:4]
        return cls(call, call.block, index, length, -1 if site.integer is None else site.integer)


_K = TypeVar("_K")
_V = TypeVar("_V")


class _Unknown(Exception):
    """Raised if the facts of the visited block do not show that the value is a polynomial over atoms."""


class _Never(_Unknown):
    """Raised if the value is not a polynomial in any block, for example a value loaded from memory."""


class _Exhausted(_Unknown):
    """Raised if the budget is spent."""


@final
class Prover:
    """Proves that accesses of one kernel are in bounds, from the kernel's tests, loops and contracts. ``steps`` counts
    the steps of all proofs."""

    def __init__(self, flow: ControlFlow, parameters: Sequence[Closed], contracts: Sequence[Contract]) -> None:
        self.flow = flow
        self.steps = 0
        self._limit = 0
        self._headers = {loop.header for loop in flow.loops}
        self._ranges: dict[str, tuple[int, int]] = {}
        self._arguments = self._argument_atoms(parameters)
        # The facts known in the visited block. The trail is an undo stack of (table, key, previous value).
        self._trail: list[tuple[dict[Any, Any], Any, Any]] = []
        self._truths: dict[Value, bool] = {}
        self._inside: dict[tuple[Value, Value], None] = {}
        self._forms: dict[Value, Polynomial] = {}
        self._counted: dict[Loop, None] = {}
        self._facts: dict[Shape, Polynomial] = {}
        self._by_monomial: dict[tuple[str, ...], dict[Shape, Polynomial]] = {}
        self._around: list[Loop] = []
        self._never: set[Value] = set()
        self._deep = 0
        self._failed: dict[frozenset[tuple[tuple[str, ...], int]], int] = {}
        for contract in contracts:
            for fact in _facts_of(contract):
                if all(atom in self._ranges for monomial in fact for atom in monomial):
                    self._add_contract(fact)

    def proven(self, checks: Sequence[Check]) -> Iterator[Check]:
        """Yields the checks that hold whenever control reaches them."""
        by_block: dict[Block, list[Check]] = {}
        for check in checks:
            by_block.setdefault(check.block, []).append(check)
        pending: list[tuple[Block, int]] = [(self.flow.entry, -1)]
        while pending:
            block, before = pending.pop()
            if before >= 0:
                self._forget(before)
                continue
            pending.append((block, len(self._trail)))
            self._enter(block)
            for check in by_block.get(block, ()):
                if self._proves(check.index, check.length):
                    yield check
            pending += ((child, -1) for child in self.flow.dominated(block))

    def _argument_atoms(self, parameters: Sequence[Closed]) -> dict[Value, str]:
        atoms: dict[Value, str] = {}
        for parameter, words in words_of(parameters, self.flow.function):
            if isinstance(parameter, NumbaParameter):
                continue
            if parameter.kind != "scalar":
                for length, atom in zip(words[1:], parameter.lengths, strict=True):
                    atoms[length] = atom
                    self._ranges[atom] = 0, 2**62
            elif parameter.dtype.kind in "iu":
                bits, signed = 8 * parameter.dtype.itemsize, parameter.dtype.kind == "i"
                atoms[words[0]] = parameter.name
                self._ranges[parameter.name] = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        return atoms

    def _add_contract(self, fact: Polynomial) -> None:
        for atom, (least, greatest) in list(self._ranges.items()):
            if fact.keys() <= {(atom,), ()} and fact.get((atom,)) == 1:
                self._ranges[atom] = max(least, -fact.get((), 0)), greatest
        self._add(fact)

    # Facts

    def _set(self, table: dict[_K, _V], key: _K, value: _V) -> None:
        self._trail.append((table, key, table.get(key, _MISSING)))
        table[key] = value

    def _forget(self, before: int) -> None:
        """Undoes the facts that were learnt since the trail had the length ``before``."""
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

    def _enter(self, block: Block) -> None:
        """Learns the facts that hold in a block and in all blocks that it dominates."""
        self._failed.clear()
        self._around = [loop for loop in self.flow.loops if block in loop.blocks and block is not loop.header]
        match self.flow.predecessors[block]:
            case [Block(terminator=Branch(condition=Value() as condition, yes=yes, no=no))] if yes is not no:
                self._learn(condition, yes is block)
        self._learn_counters()

    def _learn(self, condition: Value, truth: bool) -> None:
        pending = [(condition, truth)]
        while pending:
            condition, truth = pending.pop()
            if self._truths.get(condition) == truth:
                continue
            self._set(self._truths, condition, truth)
            pending += reversed(conditions_of(condition, truth))
            if isinstance(condition, Compare) and condition.opcode == "icmp":
                self._limit = self.steps + BUDGET
                self._learn_comparison(condition, truth)

    def _learn_comparison(self, compare: Compare, truth: bool) -> None:
        predicate = compare.predicate if truth else {**INVERSE, "eq": "ne", "ne": "eq"}[compare.predicate]
        left, right = compare.left, compare.right
        if (predicate, left.type) == ("ult", "i64"):
            self._set(self._inside, (left, right), None)
        if (predicate, right.integer) in (("sgt", -1), ("sge", 0)):
            # A ThreadIndex that is not None: the select that made it chose its number, so the select's condition holds.
            match left:
                case Select(condition=condition, right=Value(integer=-1)):
                    self._learn(condition, True)
        try:
            bits = _bits(left)
            first, second = self._form(left), self._form(right)
        except _Unknown:
            return
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
            try:
                iterations = self._count(loop)
            except _Unknown:
                continue
            atom = _counter(loop)
            self._set(self._counted, loop, None)
            self._set(self._ranges, atom, (0, max(0, self._greatest(iterations) - 1)))
            self._add(_plus(_plus(iterations, {(atom,): 1}, -1), {(): 1}, -1))

    def _count(self, loop: Loop) -> Polynomial:
        """Returns an upper bound of the iterations of a loop that counts down to 0. Raises ``_Unknown``."""
        match loop.header.terminator:
            case Branch(
                condition=Compare(predicate="sgt", left=Phi(block=loop.header) as phi, right=Value(integer=0)),
                yes=yes,
                no=no,
            ) if yes in loop.blocks and no not in loop.blocks and self._step(loop, phi) == -1:
                return self._iterations(phi.from_block(loop.preheader), _bits(phi))
        raise _Unknown

    def _iterations(self, value: Value, bits: int) -> Polynomial:
        """Returns an upper bound of a loop's initial count. The bound holds if the count is over 0, which it is if the
        loop's body runs. Raises ``_Unknown``."""
        match value:
            # The count is over 0, so a select did not choose 0.
            case Select(left=Value(integer=0), right=count) | Select(left=count, right=Value(integer=0)):
                return self._fitting(count, bits)
            case Cast(opcode="zext", value=Call(arguments=[_, Value(integer=0)]) as count):
                if integer_intrinsic(count) == "smax":
                    return self._iterations(count, _bits(count))
            case Call(arguments=[left, right]):
                match integer_intrinsic(value):
                    case "smax" if right.integer == 0:
                        return self._iterations(left, bits)
                    case "ssub.sat" | "usub.sat" as operation:
                        unsigned = operation == "usub.sat"
                        return _plus(self._fitting(left, bits, unsigned), self._fitting(right, bits, unsigned), -1)
                    case "umin":
                        if integer_intrinsic(left) == "usub.sat":
                            return self._iterations(left, bits)
                        return self._fitting(left, bits, unsigned=True)
            # LLVM's form of a saturating difference that cannot wrap: max(a, b) - b.
            case Binary(opcode="add" | "sub" as opcode, left=Call(arguments=[first, second]) as larger, right=taken):
                if opcode == "add":
                    taken = number(-taken.integer, taken.type) if taken.integer is not None else value
                if integer_intrinsic(larger) in ("smax", "umax") and taken in (first, second):
                    difference = _plus(self._form(second if taken == first else first), self._form(taken), -1)
                    if self._fits(difference, bits):
                        return difference
        return self._fitting(value, bits)

    def _fitting(self, value: Value, bits: int, unsigned: bool = False) -> Polynomial:
        """Returns the value's polynomial if it equals the value without wrap-around. Raises ``_Unknown``."""
        form = self._form(value)
        if not self._fits(form, bits, unsigned=unsigned):
            raise _Unknown
        return form

    # Polynomials

    def _form(self, value: Value) -> Polynomial:
        if value.integer is not None:
            return {(): value.integer} if value.integer else {}
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

    def _find_form(self, value: Value) -> Polynomial:
        match value:
            case Argument() if value in self._arguments:
                return {(self._arguments[value],): 1}
            case Binary():
                return self._arithmetic(value)
            case Cast(opcode="zext" | "sext" as opcode, value=narrow):
                form = self._form(narrow)
                if not self._fits(form, _bits(narrow), unsigned=opcode == "zext"):
                    raise _Unknown
                return form
            case Call(type="i32") if atom := register_of(value):
                self._ranges[atom] = 0, 2**32 - 1
                return {(atom,): 1}
            case Select(condition=condition, left=left, right=right):
                chosen = self._truths.get(condition)
                if chosen is None:
                    raise _Unknown
                try:
                    return self._form(left if chosen else right)
                except _Never:
                    raise _Unknown from None  # under the opposite condition, the value may be a polynomial
            case Phi(block=header) if header in self._headers:
                loop = next((loop for loop in self._around if loop.header is header), None)
                if loop is None:
                    raise _Unknown
                atom = _counter(loop)
                self._ranges.setdefault(atom, (0, 2**63 - 1))
                start = self._form(value.from_block(loop.preheader))
                return _plus(start, {(atom,): 1}, self._step(loop, value))
        raise _Never

    def _spend(self) -> None:
        self.steps += 1
        if self.steps > self._limit:
            raise _Exhausted

    def _arithmetic(self, value: Binary) -> Polynomial:
        if not (value.is_sum or value.opcode in ("sub", "mul", "shl")):
            raise _Never
        left, right = self._form(value.left), self._form(value.right)
        match value.opcode, value.right.integer:
            case "mul", _:
                return _times(left, right)
            case "shl", int(amount) if amount >= 0:
                return _times(left, {(): 1 << amount})
            case "shl", _:
                raise _Never
        return self._position(_plus(left, right, -1 if value.opcode == "sub" else 1))

    def _position(self, form: Polynomial) -> Polynomial:
        """Replaces a thread's global coordinate by one atom, because the kernel's tests compare the coordinate as a
        whole."""
        for axis in "xyz":
            if form == {(f"ctaid.{axis}", f"ntid.{axis}"): 1, (f"tid.{axis}",): 1}:
                atom = f"position.{axis}"
                self._ranges[atom] = 0, 2**42
                return {(atom,): 1}
        return form

    def _step(self, loop: Loop, phi: Phi) -> int:
        following = phi.from_block(loop.latch)
        for _ in range(4):
            match following:
                case Select(condition=condition, left=left, right=right) if condition in self._truths:
                    following = left if self._truths[condition] else right
                case Binary(opcode="add", left=left, right=Value(integer=int(step))) if left is phi:
                    return step
                case _:
                    raise _Unknown
        raise _Unknown

    # Inequalities

    def _proves(self, index: Value, length: Value) -> bool:
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
        """Yields lower bounds of a form. In each, one atom with a factor of at most 0 is replaced by its upper
        bound."""
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


def words_of(parameters: Sequence[Closed], function: Function) -> Iterator[tuple[Closed, list[Argument]]]:
    """Yields each parameter of the Python function with the arguments of the IR function that carry it: a slice's
    address and lengths, or a scalar. The parts of tuples and of complex numbers are yielded as parameters of their
    own."""
    words = iter(function.arguments[1:])
    for parameter in leaves(parameters):
        if isinstance(parameter, NumbaParameter):
            count = len(parameter.type.words)
        else:
            count = 1 if parameter.kind == "scalar" else 1 + parameter.ndim
        yield parameter, list(islice(words, count))


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
        case ast.Name() | ast.Call() | ast.Subscript():
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
    return f"counter {loop.header.name}"


def _bits(value: Value) -> int:
    """Returns the width of an integer. Raises ``_Never`` for a value of another type."""
    if not value.type.startswith("i"):
        raise _Never
    return int(value.type[1:])
