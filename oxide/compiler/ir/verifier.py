"""Checks of the compiler's own work, for tests: with ``OXIDE_VERIFY=1`` every kernel's IR is checked while it compiles.

- ``verify_structure``: the IR is well formed. This holds between any two passes.
- ``verify_total``: no integer operation has undefined results. This holds for a translated module before LLVM's passes.
  These passes add flags and plain divisions where they have proved that the results are defined.
- ``verify_effects``: the table of effects (``compiler/primitives``) knows each function of oxide's that a back end
  defines. This holds for a translated module.
- ``verify_accesses``: each access to a slice has a bounds check, or a mark that it needs none. This holds once the
  kernel is inlined into one function, before any other pass of LLVM and before checks are proved and hoisted.

Each raises ``InvalidIR`` with the function and the instruction at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NoReturn, TypeAlias, final

from oxide.compiler.primitives.effects import KNOWN
from oxide.host.environment import word

from .control_flow import ControlFlow, postorder
from .known_functions import is_total
from .llvm import portable_module
from .module import Function, Module, reached
from .primitives import TILE_COPIES
from .recognise import called, conditions_of, is_bounds_check
from .values import (
    Argument,
    Atomic,
    Binary,
    Block,
    Branch,
    Call,
    Cast,
    Compare,
    Constant,
    Extract,
    GetElementPtr,
    Insert,
    Instruction,
    Load,
    Phi,
    Return,
    Select,
    Store,
    Switch,
    Value,
    number,
)

UNCHECKED = "!oxide.unchecked"
"""The kind of the metadata that marks an access without a check. Either the program declares the access unchecked, or a
loop over a view makes the access, and the view's length bounds the index. Only ``verify_accesses`` reads the mark."""


class InvalidIR(AssertionError):
    """Raised for IR that the compiler must never produce: the compiler has a bug, not the kernel."""


def is_enabled() -> bool:
    return word("OXIDE_VERIFY", ("0", "1")) == "1"


def verify(module: Module) -> None:
    """Checks a translated module: its structure, that its arithmetic is total, and that its callees are known. Raises
    ``InvalidIR``."""
    verify_structure(module)
    verify_total(module)
    verify_effects(module)


def verify_effects(module: Module) -> None:
    """Checks that the effects of each function of oxide's that the module only declares are known. Raises
    ``InvalidIR``."""
    for symbol, function in module.functions.items():
        if function.is_declaration and symbol.startswith("oxide.") and not symbol.startswith(KNOWN):
            raise InvalidIR(f"@{symbol} is declared, and compiler/primitives/effects.py does not say what it does")


def _refuse(function: Function, at: Value, problem: str) -> NoReturn:
    shown = str(at).strip() if isinstance(at, Instruction) else at.name
    raise InvalidIR(f"@{function.symbol}: {problem}: {shown}")


# Structure


def verify_structure(module: Module) -> None:
    """Checks that LLVM accepts the module, and that its objects belong together. Raises ``InvalidIR``.

    LLVM reads the module as text. The text does not say which object an operand is, has one type for all operands of
    some instructions, and begins another block after a terminator.
    """
    try:
        portable_module(str(module)).verify()
    except RuntimeError as error:
        listed = ", ".join(f"@{function.symbol}" for function in module.defined)
        raise InvalidIR(f"{listed}: {error}") from None
    for function in module.defined:
        values = function.values
        for name, block in function.blocks.items():
            if name != block.name:
                _refuse(function, block, f"the block is listed as {name}")
            for instruction in block.instructions:
                if instruction.block is not block:
                    _refuse(function, instruction, "the instruction belongs to another block")
                if isinstance(instruction, Branch | Switch | Return) and instruction is not block.terminator:
                    _refuse(function, instruction, "a terminator in the middle of a block")
                for operand in instruction.operands:
                    if not isinstance(operand, Constant) and values.get(operand.name) is not operand:
                        _refuse(function, instruction, f"{operand.name} is not defined in the function")
                if (problem := _other_types(module, instruction)) is not None:
                    _refuse(function, instruction, problem)


def _other_types(module: Module, instruction: Instruction) -> str | None:
    """Returns what is wrong with types that are not printed, or None."""
    match instruction:
        case Binary(left=left, right=right) | Compare(left=left, right=right) if left.type != right.type:
            return "the operands have two types"
        case Phi() if any(value.type != instruction.type for value, _ in instruction.incoming):
            return "an entry has another type"
        case Call(called=symbol) if symbol in module.functions:
            function = module.functions[symbol]
            given, expected = [each.type for each in instruction.arguments], [each.type for each in function.arguments]
            if given != expected and not (function.variadic and given[: len(expected)] == expected):
                return f"@{symbol} takes ({', '.join(expected)})"
            if not f" {function.head}".endswith(f" {instruction.type}"):
                return f"@{symbol} returns another type"
    return None


# Arithmetic


def verify_total(module: Module) -> None:
    """Checks that every integer operation has a defined result for all operands. Raises ``InvalidIR``.

    Checked are divisions, shifts, conversions of floating point to integers, flags that make poison, and intrinsics
    that take such a flag as an argument. The functions that make divisions and shifts total are exempt. Not checked are
    loads of uninitialised memory, ``undef`` and flags of floating point.
    """
    for function in module.defined:
        if is_total(function.symbol):
            continue
        for instruction in function.instructions:
            if (problem := _partial(instruction)) is not None:
                _refuse(function, instruction, problem)


_POISON = frozenset(("nsw", "nuw", "exact", "nneg", "samesign"))
_WITH_POISON = ("llvm.abs.", "llvm.ctlz.", "llvm.cttz.")


def _partial(instruction: Instruction) -> str | None:
    match instruction:
        case Binary(flags=flags) | Cast(flags=flags) | Compare(flags=flags) if not _POISON.isdisjoint(flags.split()):
            return "a flag makes poison of some results"
        case Binary(opcode="sdiv" | "udiv" | "srem" | "urem" as opcode, right=right):
            if right.integer is None or right.integer == 0 or (right.integer == -1 and opcode[0] == "s"):
                return "the division is undefined for some operands"
        case Binary(opcode="shl" | "lshr" | "ashr", right=right):
            if right.integer is None or not 0 <= right.integer < int(right.type[1:]):
                return "the shift is undefined for some amounts"
        case Cast(opcode="fptosi" | "fptoui"):
            return "the conversion is undefined out of range"
        case Call(operands=[_, _, flag]) if called(instruction).startswith(_WITH_POISON) and flag.integer != 0:
            return "a flag makes poison of some results"
    return None


# Accesses

_Facts: TypeAlias = frozenset[Value]
"""The indices that a bounds check has found to be in bounds, on every path to a place."""


def verify_accesses(module: Module, symbol: str, slices: Iterable[Argument]) -> None:
    """Checks that a load, store or atomic of a slice is guarded by a bounds check of its index. Raises ``InvalidIR``.

    ``slices`` are the parameters with the slices' addresses. An access is an instruction, possibly a call, that uses an
    address computed from one of these parameters. An access needs the mark ``UNCHECKED``, or, on every path to it, a
    check that has found its index in bounds. Its index is the last index that was added to the address, or 0 if none
    was added. An index counts as checked if it is the checked value itself. It also counts as checked if it is a sum of
    products, each of which has a checked factor, as for an element of a matrix.

    Limits: The check may be against the length of another slice. For an address within a view or a tile, only the index
    in the view is considered, as the view's lengths express its bounds. An address that is loaded from memory or
    computed from integers belongs to no slice. An address that was only aligned still belongs to its slice. Accesses in
    a recursive function, which is not inlined, are not considered.
    """
    function = module.functions[symbol]
    verifier = _Accesses(function, slices, {each.symbol for each in module.defined})
    for block in postorder(function.entry):
        verifier.verify(block)


@final
class _Accesses:
    def __init__(self, function: Function, slices: Iterable[Argument], defined: Collection[str]) -> None:
        self.function = function
        self.defined = defined
        self.slices = frozenset(slices)
        self._members: dict[tuple[Value, tuple[int, ...]], Value] = {}
        self.order = list(postorder(function.entry))[::-1]
        self.inside = self._facts()

    def verify(self, block: Block) -> None:
        for instruction in block.instructions:
            if called(instruction) in self.defined:
                continue
            for address in _accessed(instruction):
                if UNCHECKED in instruction.metadata or not self._is_of_slice(address):
                    continue
                if not self._is_inside(address, self.inside[block]):
                    _refuse(self.function, instruction, "no bounds check guards the access")

    def _facts(self) -> dict[Block, _Facts]:
        """Returns, for each reachable block, the indices that are known to be in bounds at its beginning: the greatest
        fixed point of a forward analysis."""
        flow = ControlFlow(self.function)
        known: dict[Block, _Facts] = {self.function.entry: frozenset()}
        changed = True
        while changed:
            changed = False
            for block in self.order[1:]:
                before = [self._on_edge(each, block, known) for each in flow.predecessors[block] if each in known]
                facts = frozenset.intersection(*before)
                if known.get(block) != facts:
                    known[block] = facts
                    changed = True
        return known

    def _on_edge(self, before: Block, block: Block, known: dict[Block, _Facts]) -> _Facts:
        match before.terminator:
            case Branch(condition=Value() as condition, yes=yes, no=no) if yes is not no:
                return known[before] | self._implied(condition, block is yes, known)
        return known[before]

    def _implied(self, condition: Value, truth: bool, known: dict[Block, _Facts]) -> _Facts:
        """Returns the indices that are in bounds if a condition has the value ``truth``."""
        if is_bounds_check(condition) and truth:
            return frozenset((self._plain(condition.operands[2]),))  # type: ignore[attr-defined]
        if isinstance(condition, Phi):
            ways = [
                known[before] | (frozenset() if isinstance(value, Phi) else self._implied(value, truth, known))
                for value, before in condition.incoming
                if value.integer in (None, truth) and before in known
            ]
            return frozenset.intersection(*ways) if ways else frozenset()
        parts = [self._implied(part, expected, known) for part, expected in conditions_of(condition, truth)]
        return frozenset().union(*parts)

    def _is_of_slice(self, address: Value) -> bool:
        """Returns whether an address may be computed from a slice's address."""
        sources = reached(self._plain(address), self._sources)
        return not self.slices.isdisjoint(sources)

    def _sources(self, address: Value) -> list[Value]:
        match address:
            case GetElementPtr(pointer=pointer):
                return [self._plain(pointer)]
            case Cast() | Binary() | Phi() | Select():
                return list(map(self._plain, address.operands))
            case Call() if called(address).startswith("llvm.ptrmask."):
                return [self._plain(address.arguments[0])]
        return []

    def _is_inside(self, address: Value, facts: _Facts) -> bool:
        match self._plain(address):
            case GetElementPtr(source=source, pointer=element, indices=[first, member]) if (
                source.startswith(("{", "[")) and first.integer == 0 and member.integer is not None
            ):  # a member of an element, such as the imaginary part, or a component of a vector
                return self._is_inside(element, facts)
            case GetElementPtr(indices=[*_, index]):
                return self._is_checked(index, facts)
            case Cast(value=value) | Binary(left=value):  # a 16-bit atomic aligns its address to a word
                return self._is_inside(value, facts)
            case Call(operands=[_, value, *_]):
                return self._is_inside(value, facts)
        return number(0) in facts

    def _is_checked(self, index: Value, facts: _Facts) -> bool:
        index = self._plain(index)
        match index:
            case _ if index in facts:
                return True
            case Binary(opcode="add", left=left, right=right):
                return self._is_checked(left, facts) and self._is_checked(right, facts)
            case Binary(opcode="mul", left=left, right=right):
                return self._is_checked(left, facts) or self._is_checked(right, facts)
        return False

    def _plain(self, value: Value) -> Value:
        """Returns, for an ``extractvalue``, the value that was inserted as the member that it reads. If no insertion of
        the member is found, returns the same ``extractvalue`` for all that read the member: the first one. Returns any
        other value unchanged."""
        if not isinstance(value, Extract):
            return value
        whole, path = self._plain(value.whole), value.path
        while isinstance(whole, Insert):
            if whole.path == path:
                return self._plain(whole.part)
            if all(one == other for one, other in zip(whole.path, path, strict=False)):
                break  # it replaces a part of the member, or a structure that contains the member
            whole = self._plain(whole.whole)
        return self._members.setdefault((whole, path), value)


def _accessed(instruction: Instruction) -> list[Value]:
    """Returns the addresses at which an instruction may access memory. Copies of tiles are left out, because they take
    the slice's lengths: outside of the slice they read zeros and write nothing."""
    match instruction:
        case Load(pointer=pointer) | Store(pointer=pointer) | Atomic(operands=[pointer, *_]):
            return [pointer]
        case Call() if not called(instruction).startswith(("llvm.assume", "llvm.ptrmask.", *TILE_COPIES)):
            return [argument for argument in instruction.arguments if argument.type.startswith("ptr")]
    return []
