"""The proof that a kernel is elementwise.

An elementwise kernel has these properties:

- It uses the thread's coordinates only for the thread's *position*: ``thread.index_1d()``, or row and column for
  ``thread.index_2d(width)``. So another kernel may run this kernel's code for any position.
- A thread writes a slice only at the thread's position. If the kernel writes a slice, a thread also reads the slice
  only at its position. When kernels are fused, all these slices must have one length, or one shape.
- A thread whose position is outside these slices does nothing.
- Its threads do not communicate: no barriers, atomics, shared memory or warp operations. It does not print.

The proof reads the kernel's IR after its checks are placed. It is conservative: a kernel without a proof gets a reason
in words.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
from typing import final

from oxide.compiler.bounds.prove import words_of
from oxide.compiler.ir.control_flow import postorder
from oxide.compiler.ir.module import Function, Module, reached
from oxide.compiler.ir.parameters import element_type
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.recognise import (
    MIRROR,
    fails_an_assert,
    is_bounds_check,
    is_check,
    leave_out_unused,
    register_of,
    replace_positions,
)
from oxide.compiler.ir.values import (
    FALSE,
    TRUE,
    Argument,
    Atomic,
    Binary,
    Block,
    Branch,
    Call,
    Compare,
    GetElementPtr,
    Instruction,
    Load,
    Operation,
    Return,
    Select,
    Store,
    Value,
)
from oxide.compiler.primitives.effects import CONVERGENT, Effect, having
from oxide.compiler.signature.signature import Closed, NumbaParameter, Parameter

from . import Elementwise, OwnAccess

_PURE = having(Effect.PURE)
_GUARDS = {"ult": True, "slt": True, "uge": False, "sge": False}
"""Maps each comparison of a position with a length to its result for a thread that has an element."""


_REASONS = {
    "oxide.print.": "it prints",
    "oxide.unanimous": "it loops over consecutive elements, which the threads of a warp load together",
}


class _Refused(Exception):
    """Raised if a kernel is not elementwise. The message is the reason, which continues ``kernel f is not fused:``."""


def elementwise(portable: PortableKernel, parameters: Sequence[Closed], axes: int) -> Elementwise | str:
    """Returns the accesses of an elementwise kernel, or the reason why the kernel is not proved to be elementwise. The
    kernel's launches must have ``axes`` axes, 1 or 2."""
    try:
        return _Proof(portable, parameters, axes).found()
    except _Refused as refused:
        return str(refused)


def element_form(portable: PortableKernel, axes: int) -> tuple[Module, Function, list[Argument]]:
    """Returns a copy of a kernel's module, its function, and the last parameters of the function. These parameters,
    which the copy adds, are the thread's position, or for two axes the position's row and column."""
    module = portable.module.copy()
    function = module.functions[portable.symbol]
    position = [Argument(f"%oxide.position.{axis}", "i64") for axis in "yx"[-axes:]]
    for axis, place in zip("yx"[-axes:], position, strict=True):
        replace_positions(function, place, axis)
    leave_out_unused(function)
    function.arguments += position
    return module, function, position


def guards_of(
    function: Function, position: Sequence[Value], lengths: Sequence[Collection[Value]]
) -> dict[Value, tuple[int, bool]]:
    """Returns the comparisons of a position with some slices' lengths, and the checks of a position against these
    lengths. Each is mapped to its axis, and to its result for a thread whose position along the axis is inside the
    slices. For any other thread the result is the opposite."""
    known: dict[Value, tuple[int, bool]] = {}
    for each in function.instructions:
        match each:
            case Compare(opcode="icmp", predicate=predicate, left=left, right=right) if predicate in MIRROR:
                pairs = [(left, right, predicate), (right, left, MIRROR[predicate])]
            case Call(arguments=[_, left, right, *_]) if is_bounds_check(each):
                pairs = [(left, right, "ult")]
            case _:
                continue
        for index, length, predicate in pairs:
            for axis, place in enumerate(position):
                if index is place and length in lengths[axis] and predicate in _GUARDS:
                    known[each] = axis, _GUARDS[predicate]
    return known


def addresses_in(function: Function, address: Value) -> list[Value]:
    """Returns the instructions that compute addresses in a slice from the slice's own address, directly or in several
    steps."""

    def steps(base: Value) -> list[Value]:
        return [each for each in function.instructions if isinstance(each, GetElementPtr) and each.pointer is base]

    return reached(address, steps)[1:]


@final
class _Proof:
    """The proof for one kernel. ``own`` has the slices that the kernel accesses only at its position. The set shrinks
    until it is consistent, because the lengths of these slices decide which accesses are guarded."""

    def __init__(self, portable: PortableKernel, parameters: Sequence[Closed], axes: int) -> None:
        if portable.shared.used:
            raise _Refused("it uses shared memory")
        if portable.suspends or portable.cooperative:
            raise _Refused("its threads wait for one another")
        if len(portable.module.defined) > 1:
            raise _Refused("it calls a function that calls itself")
        _, self.function, self.position = element_form(portable, axes)
        self.axes = axes
        self.slices: dict[Argument, tuple[Parameter, list[Argument]]] = {}
        names = {each.name for each in parameters}
        for parameter, words in words_of(parameters, self.function):
            if isinstance(parameter, NumbaParameter) or parameter.kind == "scalar":
                continue
            if parameter.kind not in ("slice", "disjoint") or parameter.name not in names:
                raise _Refused(f"its parameter {parameter.name} is {parameter.annotation}")
            self.slices[words[0]] = parameter, words[1:]
        self.users = self.function.users()
        self.own = {
            address
            for address, (parameter, lengths) in self.slices.items()
            if len(lengths) == axes and element_type(parameter) is not None
        }
        self.lengths: list[set[Value]] = []
        """The lengths of the slices in ``own``, by axis."""
        self.guards: dict[Value, tuple[int, bool]] = {}

    def found(self) -> Elementwise:
        """Returns the accesses. Raises ``_Refused``."""
        self._check_instructions()
        others: set[Argument] | None = None
        while others is None or others:
            self.own -= others or set()
            self.lengths = [{self.slices[address][1][axis] for address in self.own} for axis in range(self.axes)]
            self.guards = guards_of(self.function, self.position, self.lengths)
            others = {address for address in self.own if self._elements(address) is None}
        for address, (parameter, _) in self.slices.items():
            if parameter.kind == "disjoint" and address not in self.own:
                raise _Refused(f"it accesses {parameter.name} at other indices than its thread's")
        self._check_threads_past_the_end()
        own = tuple(self._accesses(address) for address in self.slices if address in self.own)
        if not any(each.writes for each in own):
            raise _Refused("it writes no slice")
        tables = (parameter.name for address, (parameter, _) in self.slices.items() if address not in self.own)
        return Elementwise(self.axes, own, tuple(tables))

    def _check_instructions(self) -> None:
        for each in self.function.instructions:
            match each:
                case Atomic():
                    raise _Refused("it uses atomics")
                case Load(before=words) | Store(before=words) if words:
                    raise _Refused("it has atomic or volatile accesses")
                case Call(is_assembly=True):
                    raise _Refused("it has inline PTX")
                case Call(called=name):
                    if register_of(each):
                        raise _Refused("it uses its thread in other ways than by its index")
                    pure = name.startswith(_PURE) and not name.startswith(CONVERGENT)
                    if not (pure or is_check(each) or fails_an_assert(each)):
                        raise _Refused(_reason(name))

    # Accesses

    def _elements(self, address: Argument) -> list[Instruction] | None:
        """Returns the addresses of the elements that the kernel accesses in a slice. None if some access is not to the
        whole element at the thread's position."""
        kind = element_type(self.slices[address][0])
        rows: list[Value] = [address]
        if self.axes == 2:
            rows = []
            for at in self.users.get(address, ()):
                match at:
                    case GetElementPtr(source=source, pointer=pointer, indices=[index]) if (
                        source == kind and pointer is address and self._is_row(index)
                    ):
                        rows.append(at)
                    case _:
                        return None
        found: list[Instruction] = []
        for row in rows:
            for at in self.users.get(row, ()):
                match at:
                    case GetElementPtr(source=source, pointer=pointer, indices=[index]) if (
                        source == kind and pointer is row and self._is(index, self.position[-1])
                    ):
                        found.append(at)
                    case _:
                        return None
        for at in found:
            for access in self.users.get(at, ()):
                match access:
                    case Load(type=type_) if type_ == kind:
                        pass
                    case Store(value=value) if value.type == kind and value is not at:
                        pass
                    case _:
                        return None
        return found

    def _is_row(self, value: Value) -> bool:
        """Returns whether a value is the number of elements before the thread's row."""
        match value:
            case Binary(opcode="mul", left=left, right=right):
                return (right in self.lengths[1] and self._is(left, self.position[0])) or (
                    left in self.lengths[1] and self._is(right, self.position[0])
                )
        return False

    def _is(self, value: Value, place: Value) -> bool:
        """Returns whether a value is the coordinate ``place`` of the thread's position, for a thread inside the
        slices."""
        while value is not place:
            match value:
                case Select(condition=condition, left=left, right=right):
                    chosen = self._truth(condition, self._inside)
                    if chosen is None:
                        return False
                    value = left if chosen else right
                case Operation(opcode="freeze", operands=[frozen]):
                    value = frozen
                case _:
                    return False
        return True

    def _accesses(self, address: Argument) -> OwnAccess:
        places = [user for at in self._elements(address) or () for user in self.users.get(at, ())]
        stores = {each.block for each in places if isinstance(each, Store)}
        unwritten = (block.terminator for block in self._reached(stores, self._inside))
        return OwnAccess(
            self.slices[address][0].name,
            reads=any(isinstance(each, Load) for each in places),
            writes=bool(stores),
            always=not any(isinstance(each, Return) for each in unwritten),
        )

    # Control flow

    def _check_threads_past_the_end(self) -> None:
        """Raises ``_Refused`` if a thread outside the slices has an effect. A check counts as an effect, because it may
        fail."""
        outside = (each for each in product((False, True), repeat=self.axes) if not all(each))
        reached = {block: None for inside in outside for block in self._reached((), inside)}
        for each in (instruction for block in reached for instruction in block.instructions):
            match each:
                case Call() if is_check(each) or fails_an_assert(each):
                    raise _Refused("its threads past the end of its slices have checks")
                case Load() | Store():
                    raise _Refused("its threads past the end of its slices access memory")

    @property
    def _inside(self) -> tuple[bool, ...]:
        return (True,) * self.axes

    def _reached(self, without: Collection[Block], inside: tuple[bool, ...]) -> list[Block]:
        """Returns the blocks that a thread may reach without passing a block in ``without``, if no check and no
        ``assert`` fails. ``inside`` says, for each axis, whether the thread is inside the slices."""

        def targets(block: Block) -> list[Block]:
            return [each for each in self._targets(block, inside) if each not in without]

        return [] if self.function.entry in without else list(postorder(self.function.entry, targets))

    def _targets(self, block: Block, inside: tuple[bool, ...]) -> list[Block]:
        match block.terminator:
            case Branch(condition=Value() as condition, yes=yes, no=no):
                truth = self._truth(condition, inside)
                for way, target in ((True, yes), (False, no)):
                    if truth is None and all(inside) and any(map(fails_an_assert, target.instructions)):
                        truth = not way
                if truth is None and all(inside) and is_check(condition):
                    truth = True
                return [yes, no] if truth is None else [yes if truth else no]
        return block.successors

    def _truth(self, condition: Value, inside: tuple[bool, ...]) -> bool | None:
        """Returns the value of a condition for the threads that ``inside`` describes; None if it may be true or
        false."""
        if condition in (TRUE, FALSE):
            return condition == TRUE
        if condition in self.guards:
            axis, holds = self.guards[condition]
            return holds == inside[axis]
        match condition:
            case Binary(opcode="xor", type="i1", left=inner, right=Value(integer=int())):
                truth = self._truth(inner, inside)
                return None if truth is None else not truth
            case Binary(opcode="and" | "or", type="i1", left=left, right=right):
                return self._joined(left, right, condition.opcode == "or", inside)
            case Select(condition=left, left=right, right=Value(integer=0)):
                return self._joined(left, right, False, inside)
            case Select(condition=left, left=Value(integer=1 | -1), right=right):
                return self._joined(left, right, True, inside)
        return None

    def _joined(self, left: Value, right: Value, deciding: bool, inside: tuple[bool, ...]) -> bool | None:
        """Returns the value of two conditions joined by ``or`` if ``deciding`` is True, else by ``and``."""
        truths = [self._truth(left, inside), self._truth(right, inside)]
        if deciding in truths:
            return deciding
        return None if None in truths else not deciding


def _reason(symbol: str) -> str:
    """Returns the reason why a kernel that calls a function is not elementwise."""
    found = (reason for prefix, reason in _REASONS.items() if symbol.startswith(prefix))
    return next(found, f"it uses {symbol.removeprefix('oxide.') or 'a call by address'}")
