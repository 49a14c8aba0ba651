"""LLVM IR text as a control flow graph: what an analysis needs that llvmlite, which cannot edit IR, does not give.

A ``Function`` is one definition out of a printed module in which every value and block has a name (LLVM's instruction
namer). Instructions stay lines of text; what is parsed is who defines what, the operands of the few instructions that
integer arithmetic is made of, and which block leads to which. Natural loops are found as in any compiler's textbook:
a back edge goes to a block that dominates its source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import final

WORD = r'(?:"[^"]*"|[-\w$.]+)'
"""What of a name comes after its sign, as a regular expression."""

NAME = f"%{WORD}"
"""A value's or block's name, as a regular expression."""

LABEL = re.compile(rf"^(?P<name>{WORD}):")
_RESULT = re.compile(rf"^\s+(?P<name>{NAME}) = ")
_TARGET = re.compile(rf"label ({NAME})")
_INCOMING = re.compile(rf"\[ ([^,\]]+), ({NAME}) \]")


@final
@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its result's name ("" for none), the block it is in, and its text after the ``=``."""

    name: str
    block: str
    text: str

    @property
    def opcode(self) -> str:
        return self.text.partition(" ")[0]

    def incoming(self) -> dict[str, str]:
        """A phi's values by the block they come from."""
        return {block: value for value, block in _INCOMING.findall(self.text)}


@final
@dataclass(eq=False, slots=True)
class Loop:
    """A natural loop with one latch and a preheader, as LLVM's loop-simplify leaves them."""

    header: str
    latch: str
    preheader: str
    blocks: set[str]
    parent: Loop | None = None
    children: list[Loop] = field(default_factory=list)

    def within(self) -> list[Loop]:
        """This loop and all loops in it."""
        return [self, *(inner for child in self.children for inner in child.within())]

    def chain(self, outer: Loop) -> list[Loop]:
        """The loops from this one out to ``outer``, which contains it; both included."""
        found = [self]
        while found[-1] is not outer:
            parent = found[-1].parent
            assert parent is not None
            found.append(parent)
        return found


@final
class Function:
    """One function definition of a module's text, its lines by block, and what is around it."""

    def __init__(self, module_text: str, symbol: str) -> None:
        lines = module_text.split("\n")
        quoted = (f"@{symbol}(", f'@"{symbol}"(')
        start = next(n for n, line in enumerate(lines) if line.startswith("define ") and any(q in line for q in quoted))
        end = next(n for n in range(start, len(lines)) if lines[n] == "}")
        self.before = lines[: start + 1]
        self.after = lines[end:]
        self.blocks: dict[str, list[str]] = {}
        for line in lines[start + 1 : end]:
            if match := LABEL.match(line):
                current = self.blocks[f"%{match['name']}"] = []
            elif line.strip():
                current.append(line)
        self.entry = next(iter(self.blocks))
        self.definitions: dict[str, Instruction] = {}
        for block, body in self.blocks.items():
            for line in body:
                instruction = parse(line, block)
                if instruction.name:
                    self.definitions[instruction.name] = instruction
        self.successors = {block: _TARGET.findall(body[-1]) for block, body in self.blocks.items()}
        self.predecessors: dict[str, list[str]] = {block: [] for block in self.blocks}
        for block, targets in self.successors.items():
            for target in targets:
                self.predecessors[target].append(block)
        self._dominators = self._find_dominators()

    def text(self) -> str:
        """The module's text, with the function's blocks as they are now."""
        lines = list(self.before)
        for block, body in self.blocks.items():
            lines += [f"{block[1:]}:", *body]
        return "\n".join([*lines, *self.after])

    def first_free_metadata(self) -> int:
        """The least number that no metadata of the module has."""
        used = (int(number) for line in self.after for number in re.findall(r"^!(\d+) = ", line))
        return 1 + max(used, default=-1)

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """The type and the name of each parameter, the context's first."""
        head = self.before[-1]
        words = [part.split() for part in head[head.index("(") + 1 : head.rindex(")")].split(", ")]
        return [(each[0], each[-1]) for each in words]

    def terminator(self, block: str) -> str:
        return self.blocks[block][-1].strip()

    def copy_loop(self, loop: Loop, suffix: str) -> dict[str, str]:
        """Adds a second version of a loop, which nothing enters yet and which leaves to where the loop leaves to.

        Returns the copy's names of the loop's blocks and values: its own with the suffix.
        """
        names = {block: suffixed(block, suffix) for block in loop.blocks}
        for block in loop.blocks:
            for line in self.blocks[block]:
                if match := _RESULT.match(line):
                    names[match["name"]] = suffixed(match["name"], suffix)
        copies = {
            names[b]: [renamed(line, names) for line in body] for b, body in self.blocks.items() if b in loop.blocks
        }
        for inner in loop.within():
            latch = copies[names[inner.latch]]
            latch[-1] = re.sub(r", !llvm\.loop !\d+", "", latch[-1])
        for exit_block in {target for b in loop.blocks for target in self.successors[b]} - loop.blocks:
            self.blocks[exit_block] = [_with_copies(line, names, loop.blocks) for line in self.blocks[exit_block]]
        self.blocks.update(copies)
        return names

    def dominates(self, first: str, second: str) -> bool:
        """Whether every way from the entry to ``second`` goes through ``first``."""
        return first in self._dominators.get(second, ())

    def loops(self) -> list[Loop]:
        """All natural loops, each before those it contains."""
        found: dict[str, Loop] = {}
        for latch, targets in self.successors.items():
            for header in targets:
                if latch not in self._dominators or not self.dominates(header, latch):
                    continue
                outside = [p for p in self.predecessors[header] if not self.dominates(header, p)]
                if header in found or len(outside) != 1 or len(self.successors[outside[0]]) != 1:
                    continue
                found[header] = Loop(header, latch, outside[0], self._body(header, latch))
        ordered = sorted(found.values(), key=lambda loop: -len(loop.blocks))
        for number, loop in enumerate(ordered):
            around = [outer for outer in ordered[:number] if loop.blocks < outer.blocks]
            if around:
                loop.parent = around[-1]
                around[-1].children.append(loop)
        return ordered

    def _body(self, header: str, latch: str) -> set[str]:
        blocks, pending = {header}, [latch]
        while pending:
            block = pending.pop()
            if block not in blocks:
                blocks.add(block)
                pending += self.predecessors[block]
        return blocks

    def _find_dominators(self) -> dict[str, frozenset[str]]:
        order: list[str] = []
        seen: set[str] = set()
        pending = [(self.entry, iter(self.successors[self.entry]))]
        seen.add(self.entry)
        while pending:
            block, targets = pending[-1]
            for target in targets:
                if target not in seen:
                    seen.add(target)
                    pending.append((target, iter(self.successors[target])))
                    break
            else:
                order.append(block)
                pending.pop()
        order.reverse()
        found: dict[str, frozenset[str]] = {self.entry: frozenset({self.entry})}
        changed = True
        while changed:
            changed = False
            for block in order[1:]:
                known = [found[p] for p in self.predecessors[block] if p in found]
                now = frozenset.intersection(*known) | {block}
                if found.get(block) != now:
                    found[block] = now
                    changed = True
        return found


def _with_copies(line: str, names: dict[str, str], blocks: set[str]) -> str:
    """An exit block's phi with the values that come from the loop's copy."""
    if " = phi " not in line:
        return line
    extra = [
        f", [ {names.get(value, value)}, {names[block]} ]"
        for value, block in _INCOMING.findall(line)
        if block in blocks
    ]
    return line + "".join(extra)


def parse(line: str, block: str) -> Instruction:
    """A line as an instruction; metadata at its end is left out."""
    match = _RESULT.match(line)
    name = match["name"] if match else ""
    text = line[match.end() :] if match else line.strip()
    return Instruction(name, block, re.sub(r"(, ![\w.]+ !\d+)+$", "", text))


def renamed(line: str, names: dict[str, str]) -> str:
    """A line in which every value and block of ``names`` goes by its other name."""
    return re.sub(NAME, lambda match: names.get(match[0], match[0]), line)


def suffixed(name: str, suffix: str) -> str:
    """A name with something at its end, within its quotes if it has any."""
    return f'{name[:-1]}{suffix}"' if name.endswith('"') else name + suffix
