"""``Code``: LLVM IR as text, instruction by instruction, in the dialect that ``ir.portable`` translates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

__all__ = ["ROLLED", "Code"]

ROLLED = "rolled"
"""The prefix of the names of blocks that begin loops which LLVM must not unroll."""


@final
class Code:
    """The body of one function. ``block`` is the name of the block to which instructions are added. ``line`` is the
    source line of these instructions. With ``located``, instructions carry their lines."""

    def __init__(self, *, located: bool = False) -> None:
        self.line = 0
        self.located = located
        self.lines: list[str] = []
        self.entry: list[str] = []
        """The instructions at the function's beginning, before all others."""
        self.prelude = self.entry
        """The instructions that precede the code of the program. They are at the function's beginning, unless a
        producer's code is there."""
        self.declared: dict[str, str] = {}
        self.texts: list[str] = []
        """Constant strings."""
        self.block = "entry"
        self._count = 0

    def emit(self, text: str) -> None:
        """Adds a line of IR: an instruction without a result, or ``name = instruction``."""
        place = ""
        if self.located and not text.partition(" = ")[2 if " = " in text else 0].startswith("phi "):
            place = f", !dbg !{self.line}"
        self.lines.append(f"  {text}{place}")

    @contextmanager
    def at_line(self, line: int) -> Iterator[None]:
        """Sets the source line of the instructions that are added in this context."""
        outer, self.line = self.line, line
        yield
        self.line = outer

    def name_of(self, hint: str = "t") -> str:
        """Returns a new name for a value."""
        self._count += 1
        return f"%{hint}.{self._count}"

    def new(self, text: str) -> str:
        """Adds an instruction and returns its result."""
        name = self.name_of()
        self.emit(f"{name} = {text}")
        return name

    def call(self, result: str, name: str, *arguments: tuple[str, str]) -> str:
        """Adds a call of a function with arguments ``(type, value)`` and returns its result."""
        self.declare(result, name, [kind for kind, _ in arguments])
        text = f"call {result} @{name}({', '.join(f'{kind} {value}' for kind, value in arguments)})"
        if result == "void":
            self.emit(text)
            return ""
        return self.new(text)

    def declare(self, result: str, name: str, kinds: Sequence[str]) -> None:
        """Declares a function."""
        self.declared[name] = f"declare {result} @{name}({', '.join(kinds)})"

    def variable(self, kind: str, hint: str = "variable") -> str:
        """Returns the address of a new variable of the type ``kind``. LLVM keeps the variable in registers."""
        name = self.name_of(hint)
        self.entry.append(f"  {name} = alloca {kind}")
        return name

    def text(self, content: str) -> str:
        """Returns the address of a constant string."""
        data = content.encode() + b"\0"
        name = f"@oxide.text.tile.{len(self.texts)}"
        self.texts.append(f'{name} = internal constant [{len(data)} x i8] c"{_escaped(data)}"')
        return name

    def places(self, file: str, function: str, first_line: int) -> list[str]:
        """Returns the metadata for the source lines of the instructions, which are places in one Python function."""
        numbers = sorted({int(line.rpartition("!dbg !")[2]) for line in self.lines if "!dbg !" in line})
        path, name = _escaped(file.encode()), _escaped(function.encode())
        return [f'!{number} = !{{!"{path}", i32 {number}, !"{name}", i32 {first_line}}}' for number in numbers]

    # Control flow

    def labels(self, *hints: str) -> list[str]:
        """Returns new names of blocks."""
        self._count += 1
        return [f"{hint}.{self._count}" for hint in hints]

    def label(self, name: str) -> None:
        """Begins a block."""
        self.lines.append(f"{name}:")
        self.block = name

    def jump(self, label: str) -> None:
        """Ends the block with a jump."""
        self.emit(f"br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        """Ends the block with a branch."""
        self.emit(f"br i1 {condition}, label %{yes}, label %{no}")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Opens a block of code that runs only if a condition holds."""
        do, after = self.labels("when", "otherwise")
        self.branch(condition, do, after)
        self.label(do)
        yield
        self.jump(after)
        self.label(after)

    def either(self, kind: str, condition: str, yes: Callable[[], str], no: str) -> str:
        """Returns a value that is computed if a condition holds, and ``no`` otherwise."""
        before, (do, after) = self.block, self.labels("inside", "beyond")
        self.branch(condition, do, after)
        self.label(do)
        found = yes()
        end = self.block
        self.jump(after)
        self.label(after)
        return self.new(f"phi {kind} [ {found}, %{end} ], [ {no}, %{before} ]")

    @contextmanager
    def counted(self, end: int | str, start: str = "0", step: int | str = 1, *, rolled: bool = False) -> Iterator[str]:
        """Opens a loop whose counter goes from ``start`` to below ``end``. If ``start`` is "0" and ``end`` is an int,
        the int must be positive, and the loop runs at least once. Any other loop may run no iteration. ``rolled`` keeps
        LLVM from unrolling a loop that rarely runs."""
        body, after = self.labels(ROLLED if rolled else "loop", "after")
        before = self.block
        if start != "0" or not isinstance(end, int):
            self.branch(self.new(f"icmp slt i64 {start}, {end}"), body, after)
        else:
            self.jump(body)
        self.label(body)
        i, following = self.name_of("i"), self.name_of("next")
        place = len(self.lines)
        self.lines.append("")
        yield i
        self.emit(f"{following} = add i64 {i}, {step}")
        self.lines[place] = f"  {i} = phi i64 [ {start}, %{before} ], [ {following}, %{self.block} ]"
        self.branch(self.new(f"icmp slt i64 {following}, {end}"), body, after)
        self.label(after)

    def goes_on(self, value: str, stop: str, step: str) -> str:
        """Returns whether a counter has not reached the end of its range yet, for a positive or a negative step."""
        up = self.new(f"icmp sgt i64 {step}, 0")
        below, above = self.new(f"icmp slt i64 {value}, {stop}"), self.new(f"icmp sgt i64 {value}, {stop}")
        return self.new(f"select i1 {up}, i1 {below}, i1 {above}")

    # Places in memory

    def add(self, one: str, two: str | int) -> str:
        """Returns a sum of i64."""
        if str(two) == "0":
            return one
        return str(two) if one == "0" else self.new(f"add i64 {one}, {two}")

    def times(self, one: str, factor: str | int) -> str:
        """Returns a product of i64."""
        if one == "0" or str(factor) == "1":
            return one
        return self.new(f"mul i64 {one}, {factor}")

    def all_of(self, conditions: Sequence[str]) -> str:
        """Returns a condition that holds if all given conditions hold."""
        found = "true"
        for each in dict.fromkeys(conditions):
            found = each if found == "true" else self.new(f"and i1 {found}, {each}")
        return found

    def at(self, kind: str, base: str, index: str) -> str:
        """Returns the address of an element."""
        return self.new(f"getelementptr {kind}, ptr {base}, i64 {index}")


def _escaped(data: bytes) -> str:
    """Returns bytes as LLVM writes them in a string."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in (34, 92) else f"\\{byte:02x}" for byte in data)
