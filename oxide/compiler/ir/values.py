"""The compiler's IR as objects: values, blocks and instructions. ``module.py`` has functions and modules.

The IR is LLVM's. ``parser.parse`` reads a printed module, and ``str(module)`` prints it. Each form of instruction has a
class of its own, so that passes can match instructions by their structure:

    match value:
        case Binary(opcode="add", left=left, right=Constant(integer=1)):

An operand is a ``Value``: an instruction, an argument, a block, a global or a constant. Passes edit ``operands`` and
the blocks' lists of instructions directly. ``control_flow.py`` has dominators and loops.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import final

BINARY = frozenset(("add", "sub", "mul", "udiv", "sdiv", "urem", "srem", "shl", "lshr", "ashr", "and", "or", "xor")) | {
    "fadd", "fsub", "fmul", "fdiv", "frem",
}  # fmt: skip
CASTS = frozenset(("trunc", "zext", "sext", "ptrtoint", "inttoptr", "bitcast", "addrspacecast")) | {
    "fptrunc", "fpext", "fptoui", "fptosi", "uitofp", "sitofp",
}  # fmt: skip
LISTS = frozenset(("fneg", "freeze", "extractelement", "insertelement", "shufflevector"))
"""Opcodes whose operands are printed one after the other, each with its type."""


class Value:
    """An operand: its printed name and its type, such as ``%i`` and ``i64``."""

    __slots__ = ("name", "type")

    def __init__(self, name: str, type_: str) -> None:
        self.name = name
        self.type = type_

    @property
    def typed(self) -> str:
        """Returns the operand as it is printed with its type."""
        return f"{self.type} {self.name}"

    @property
    def integer(self) -> int | None:
        """Returns the number that an integer constant stands for (1 for ``true``, 0 for ``false``), or None for any
        other value."""
        return None

    @property
    def symbol(self) -> str:
        """Returns the name of a global without its sigil and quotes, or "" for any other value."""
        return unquoted(self.name[1:]) if self.name.startswith("@") else ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.typed}>"


@final
class Constant(Value):
    """A constant, a constant expression or a global. Its name is its text. Constants of equal text and type are
    equal."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and (self.name, self.type) == (other.name, other.type)

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def integer(self) -> int | None:
        if self.name in _TRUTHS:
            return _TRUTHS[self.name]
        return int(self.name) if self.name.removeprefix("-").isdecimal() else None


_TRUTHS = {"false": 0, "true": 1}
TRUE, FALSE = Constant("true", "i1"), Constant("false", "i1")


def number(value: int, type_: str = "i64") -> Constant:
    """Returns an integer constant."""
    return Constant(str(value), type_)


@final
class Argument(Value):
    """A function's parameter. ``attributes`` are printed between its type and its name."""

    __slots__ = ("attributes",)

    def __init__(self, name: str, type_: str, attributes: str = "") -> None:
        super().__init__(name, type_)
        self.attributes = attributes


@final
class Block(Value):
    """A basic block. Its name is its label, with the sigil ``%``."""

    __slots__ = ("instructions",)

    def __init__(self, name: str, instructions: Iterable[Instruction] = ()) -> None:
        super().__init__(name, "label")
        self.instructions: list[Instruction] = []
        self.extend(instructions)

    def extend(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            instruction.block = self
            self.instructions.append(instruction)

    def append(self, instruction: Instruction) -> None:
        self.extend((instruction,))

    def insert(self, place: int, instructions: Iterable[Instruction]) -> None:
        """Inserts instructions before the instruction with the index ``place``."""
        added = list(instructions)
        for instruction in added:
            instruction.block = self
        self.instructions[place:place] = added

    def replace(self, old: Instruction, new: Iterable[Instruction]) -> None:
        """Replaces an instruction of the block by others, possibly none. Does not change the uses of the old
        instruction."""
        place = self.instructions.index(old)
        del self.instructions[place]
        self.insert(place, new)

    @property
    def terminator(self) -> Instruction:
        return self.instructions[-1]

    @property
    def successors(self) -> list[Block]:
        return self.terminator.targets

    @property
    def phis(self) -> list[Phi]:
        return [instruction for instruction in self.instructions if isinstance(instruction, Phi)]

    def jump_to(self, target: Block) -> None:
        """Replaces the terminator by a jump."""
        self.instructions.pop()
        self.append(Branch(target))


class Instruction(Value):
    """An instruction. ``name`` is the name of its result, or "" if it has none. ``flags`` are the words before its
    operands, such as ``nsw``. ``metadata`` has its metadata nodes, by kind."""

    __slots__ = ("block", "flags", "metadata", "opcode", "operands")

    def __init__(self, name: str, type_: str, opcode: str, operands: Iterable[Value], flags: str = "") -> None:
        super().__init__(name, type_)
        self.opcode = opcode
        self.operands = list(operands)
        self.flags = flags
        self.metadata: dict[str, str] = {}
        self.block: Block

    @property
    def targets(self) -> list[Block]:
        """Returns the blocks that a terminator may branch to, in the order of its operands. Returns [] for any other
        instruction."""
        return []

    @property
    def body(self) -> str:
        """Returns the instruction as text, without its result's name and without its metadata."""
        listed = ", ".join(operand.typed for operand in self.operands)
        return " ".join(filter(None, (self.opcode, self.flags, listed)))

    def replace_operands(self, replaced: Mapping[Value, Value]) -> None:
        self.operands = [replaced.get(operand, operand) for operand in self.operands]

    def copy(self, replaced: Mapping[Value, Value], name: str) -> Instruction:
        """Returns a copy that is in no block, with a new name and with some operands replaced."""
        result = object.__new__(type(self))
        result.name, result.type, result.opcode, result.flags = name, self.type, self.opcode, self.flags
        result.operands = [replaced.get(operand, operand) for operand in self.operands]
        result.metadata = dict(self.metadata)
        for attribute in type(self).__slots__:  # what the class adds
            setattr(result, attribute, getattr(self, attribute))
        return result

    def __str__(self) -> str:
        text = f"  {self.name} = {self.body}" if self.name else f"  {self.body}"
        return text + "".join(f", {kind} {node}" for kind, node in self.metadata.items()) if self.metadata else text


@final
class Operand:
    """An operand of an instruction, by its place."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place

    def __get__(self, instruction: Instruction, owner: type[Instruction] | None = None) -> Value:
        return instruction.operands[self.place]


@final
class Binary(Instruction):
    """Arithmetic on two numbers of one type."""

    __slots__ = ()

    def __init__(self, name: str, opcode: str, left: Value, right: Value, flags: str = "") -> None:
        super().__init__(name, left.type, opcode, (left, right), flags)

    left = Operand(0)
    right = Operand(1)

    @property
    def is_sum(self) -> bool:
        """Returns whether the instruction adds integers. LLVM writes a sum without carries as a disjoint ``or``."""
        return self.opcode == "add" or (self.opcode == "or" and self.flags == "disjoint")

    @property
    def body(self) -> str:
        return f"{self.opcode} {spaced(self.flags)}{self.operands[0].typed}, {self.operands[1].name}"


@final
class Cast(Instruction):
    """A conversion of a value to another type."""

    __slots__ = ()

    def __init__(self, name: str, opcode: str, value: Value, type_: str, flags: str = "") -> None:
        super().__init__(name, type_, opcode, (value,), flags)

    value = Operand(0)

    @property
    def body(self) -> str:
        return f"{self.opcode} {spaced(self.flags)}{self.operands[0].typed} to {self.type}"


@final
class Compare(Instruction):
    """A comparison, ``icmp`` or ``fcmp``."""

    __slots__ = ("predicate",)

    def __init__(
        self, name: str, predicate: str, left: Value, right: Value, opcode: str = "icmp", flags: str = ""
    ) -> None:
        count = left.type[1:].partition(" ")[0] if left.type[0] == "<" and left.type[1] != "{" else ""
        super().__init__(name, f"<{count} x i1>" if count else "i1", opcode, (left, right), flags)
        self.predicate = predicate

    left = Operand(0)
    right = Operand(1)

    @property
    def body(self) -> str:
        left, right = self.operands
        return f"{self.opcode} {spaced(self.flags)}{self.predicate} {left.typed}, {right.name}"


@final
class Select(Instruction):
    """A choice of one of two values by a condition."""

    __slots__ = ()

    def __init__(self, name: str, condition: Value, left: Value, right: Value, flags: str = "") -> None:
        super().__init__(name, left.type, "select", (condition, left, right), flags)

    condition = Operand(0)
    left = Operand(1)
    right = Operand(2)


@final
class Phi(Instruction):
    """A value for each predecessor. The operands are values and their blocks, alternating."""

    __slots__ = ()

    def __init__(self, name: str, type_: str, incoming: Iterable[tuple[Value, Block]], flags: str = "") -> None:
        super().__init__(name, type_, "phi", [operand for pair in incoming for operand in pair], flags)

    @property
    def incoming(self) -> list[tuple[Value, Block]]:
        return list(zip(self.operands[::2], self.operands[1::2], strict=True))  # type: ignore[arg-type]

    @incoming.setter
    def incoming(self, pairs: Iterable[tuple[Value, Block]]) -> None:
        self.operands = [operand for pair in pairs for operand in pair]

    def from_block(self, block: Block) -> Value:
        """Returns the value for a predecessor. Raises ``KeyError`` for any other block."""
        return {before: value for value, before in self.incoming}[block]

    @property
    def body(self) -> str:
        pairs = ", ".join(f"[ {value.name}, {block.name} ]" for value, block in self.incoming)
        return f"phi {spaced(self.flags)}{self.type} {pairs}"


@final
class Branch(Instruction):
    """A jump to ``yes``, or a branch by a condition to ``yes`` or ``no``."""

    __slots__ = ()

    def __init__(self, yes: Block, no: Block | None = None, condition: Value | None = None) -> None:
        super().__init__("", "void", "br", (yes,) if no is None or condition is None else (condition, yes, no))

    @property
    def condition(self) -> Value | None:
        return self.operands[0] if len(self.operands) == 3 else None

    @property
    def yes(self) -> Block:
        return self.operands[-2 if len(self.operands) == 3 else 0]  # type: ignore[return-value]

    @property
    def no(self) -> Block:
        return self.operands[-1]  # type: ignore[return-value]

    @property
    def targets(self) -> list[Block]:
        return self.operands[-2:] if len(self.operands) == 3 else self.operands[:]  # type: ignore[return-value]


@final
class Switch(Instruction):
    """A multi-way branch. The operands are the value, the default block, and then numbers and their blocks,
    alternating."""

    __slots__ = ()

    def __init__(self, operands: Iterable[Value]) -> None:
        super().__init__("", "void", "switch", operands)

    @property
    def targets(self) -> list[Block]:
        return self.operands[1::2]  # type: ignore[return-value]

    @property
    def body(self) -> str:
        value, default, *cases = self.operands
        listed = "".join(
            f"\n    {case.typed}, {block.typed}" for case, block in zip(cases[::2], cases[1::2], strict=True)
        )
        return f"switch {value.typed}, {default.typed} [{listed}\n  ]"


@final
class Return(Instruction):
    """A return. The operand is the returned value, if there is one."""

    __slots__ = ()

    def __init__(self, value: Value | None = None) -> None:
        super().__init__("", "void", "ret", () if value is None else (value,))

    @property
    def body(self) -> str:
        return f"ret {self.operands[0].typed}" if self.operands else "ret void"


@final
class Unreachable(Instruction):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("", "void", "unreachable", ())


@final
class Load(Instruction):
    """A read of memory. ``before`` is the text between ``load`` and the type: ``atomic``, ``volatile`` or nothing.
    ``after`` is the text after the pointer: the scope, the ordering and the alignment."""

    __slots__ = ("after", "before")

    def __init__(self, name: str, type_: str, pointer: Value, after: str, before: str = "") -> None:
        super().__init__(name, type_, "load", (pointer,))
        self.before = before
        self.after = after

    pointer = Operand(0)

    @property
    def align(self) -> int:
        return alignment(self.after)

    @property
    def body(self) -> str:
        return f"load {spaced(self.before)}{self.type}, {self.operands[0].typed}{self.after}"


@final
class Store(Instruction):
    """A write to memory. ``before`` and ``after`` are as in ``Load``."""

    __slots__ = ("after", "before")

    def __init__(self, value: Value, pointer: Value, after: str, before: str = "") -> None:
        super().__init__("", "void", "store", (value, pointer))
        self.before = before
        self.after = after

    value = Operand(0)
    pointer = Operand(1)

    @property
    def align(self) -> int:
        return alignment(self.after)

    @property
    def body(self) -> str:
        value, pointer = self.operands
        return f"store {spaced(self.before)}{value.typed}, {pointer.typed}{self.after}"


@final
class GetElementPtr(Instruction):
    """An address computed from a pointer and indices. ``source`` is the type that the indices step through."""

    __slots__ = ("source",)

    def __init__(self, name: str, source: str, pointer: Value, indices: Iterable[Value], flags: str = "") -> None:
        super().__init__(name, pointer.type, "getelementptr", (pointer, *indices), flags)
        self.source = source

    pointer = Operand(0)

    @property
    def indices(self) -> list[Value]:
        return self.operands[1:]

    @property
    def body(self) -> str:
        listed = ", ".join(operand.typed for operand in self.operands)
        return f"getelementptr {spaced(self.flags)}{self.source}, {listed}"


@final
class Alloca(Instruction):
    """A variable on the stack of type ``allocated``. The operand is the number of elements, if it is given."""

    __slots__ = ("after", "allocated")

    def __init__(self, name: str, allocated: str, count: Value | None = None, after: str = "") -> None:
        super().__init__(name, "ptr", "alloca", () if count is None else (count,))
        self.allocated = allocated
        self.after = after

    @property
    def align(self) -> int:
        return alignment(self.after)

    @property
    def body(self) -> str:
        return f"alloca {', '.join([self.allocated, *(operand.typed for operand in self.operands)])}{self.after}"


@final
class Extract(Instruction):
    """``extractvalue``: reads a member of a structure. ``path`` has the member's indices."""

    __slots__ = ("path",)

    def __init__(self, name: str, type_: str, whole: Value, path: tuple[int, ...]) -> None:
        super().__init__(name, type_, "extractvalue", (whole,))
        self.path = path

    whole = Operand(0)

    @property
    def body(self) -> str:
        return f"extractvalue {self.operands[0].typed}, {', '.join(map(str, self.path))}"


@final
class Insert(Instruction):
    """``insertvalue``: returns a structure in which ``part`` replaces a member. ``path`` has the member's indices."""

    __slots__ = ("path",)

    def __init__(self, name: str, whole: Value, part: Value, path: tuple[int, ...]) -> None:
        super().__init__(name, whole.type, "insertvalue", (whole, part))
        self.path = path

    whole = Operand(0)
    part = Operand(1)

    @property
    def body(self) -> str:
        whole, part = self.operands
        return f"insertvalue {whole.typed}, {part.typed}, {', '.join(map(str, self.path))}"


@final
class Operation(Instruction):
    """An instruction with one of the opcodes in ``LISTS``."""

    __slots__ = ()


@final
class Call(Instruction):
    """A call of a function, a pointer or inline assembly.

    The first operand is the callee. Inline assembly is a ``Constant``. ``before`` has the words between ``call`` and
    the result's type. ``function_type``, if given, is printed instead of the result's type, as a call with variable
    arguments requires. ``attributes`` has the arguments' attributes, by position. ``after`` is the text after the
    arguments. ``bundles`` has, for each of LLVM's operand bundles, the tag and the number of operands. The bundles'
    operands are the last operands of the call.
    """

    __slots__ = ("after", "attributes", "before", "bundles", "function_type", "tail")

    def __init__(
        self,
        name: str,
        type_: str,
        callee: Value,
        arguments: Iterable[Value] = (),
        *,
        tail: str = "",
        before: str = "",
        after: str = "",
        function_type: str = "",
        attributes: Mapping[int, str] | None = None,
        bundles: Iterable[tuple[str, Iterable[Value]]] = (),
    ) -> None:
        bundled = [(tag, list(operands)) for tag, operands in bundles]
        last = [operand for _, operands in bundled for operand in operands]
        super().__init__(name, type_, "call", (callee, *arguments, *last))
        self.tail = tail
        self.before = before
        self.after = after
        self.function_type = function_type
        self.attributes = dict(attributes or {})
        self.bundles = [(tag, len(operands)) for tag, operands in bundled]

    callee = Operand(0)

    @property
    def called(self) -> str:
        """Returns the called function's symbol, or "" if the callee is inline assembly or a pointer."""
        return self.operands[0].symbol

    @property
    def is_assembly(self) -> bool:
        return self.operands[0].name.startswith("asm ")

    @property
    def arguments(self) -> list[Value]:
        return self.operands[1 : len(self.operands) - sum(count for _, count in self.bundles)]

    @property
    def body(self) -> str:
        listed = ", ".join(
            f"{argument.type} {spaced(self.attributes.get(place, ''))}{argument.name}"
            for place, argument in enumerate(self.arguments)
        )
        head = f"{spaced(self.tail)}call {spaced(self.before)}{self.function_type or self.type}"
        return f"{head} {self.callee.name}({listed}){self.after}{self._bundled() if self.bundles else ''}"

    def _bundled(self) -> str:
        last = iter(self.operands[len(self.arguments) + 1 :])
        parts = (f'"{tag}"({", ".join(each.typed for each in islice(last, count))})' for tag, count in self.bundles)
        return f" [ {', '.join(parts)} ]"


@final
class Atomic(Instruction):
    """``atomicrmw``, ``cmpxchg`` or ``fence``. ``before`` is the text between the opcode and the operands, and
    ``after`` is the text after the operands."""

    __slots__ = ("after", "before")

    def __init__(
        self, name: str, type_: str, opcode: str, operands: Iterable[Value], after: str, before: str = ""
    ) -> None:
        super().__init__(name, type_, opcode, operands)
        self.before = before
        self.after = after

    pointer = Operand(0)

    @property
    def body(self) -> str:
        listed = ", ".join(operand.typed for operand in self.operands)
        return " ".join(filter(None, (self.opcode, self.before, listed, self.after)))


# Names, strings and lists, as LLVM prints them


def spaced(words: str) -> str:
    return f"{words} " if words else ""


def alignment(text: str) -> int:
    """Returns the alignment at the end of an access's text, or 1 if the text has none."""
    _, found, align = text.rpartition("align ")
    return int(align.partition(",")[0]) if found else 1


_UNQUOTED = re.compile(r"[-\w$.]+", re.ASCII)  # LLVM takes other letters only in quotes


def identifier(name: str) -> str:
    """Returns a name that PTX takes, with an underscore for each other letter."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def quoted(symbol: str) -> str:
    return symbol if _UNQUOTED.fullmatch(symbol) else f'"{symbol}"'


def unquoted(name: str) -> str:
    return name[1:-1] if name.startswith('"') else name


def suffixed(name: str, suffix: str) -> str:
    """Appends a suffix to a name, inside its quotes if it has any."""
    return f'{name[:-1]}{suffix}"' if name.endswith('"') else name + suffix


_ESCAPE = re.compile(r"\\(\\|[0-9A-Fa-f]{2})")


def unescaped(text: str) -> str:
    """Returns a string as it was before LLVM printed it. LLVM escapes bytes that are not printable ASCII."""
    plain = _ESCAPE.sub(lambda match: "\\" if match[1] == "\\" else chr(int(match[1], 16)), text)
    return plain.encode("latin-1").decode("utf-8", "replace")


def split_list(text: str) -> list[str]:
    """Splits a list at its commas, except those in brackets. Returns [] for blank text."""
    found, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            found.append(text[start:place].strip())
            start = place + 1
    return [*found, text[start:].strip()] if text.strip() else []
