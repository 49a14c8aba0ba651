"""LLVM IR text as a control flow graph with dominators and loops, since llvmlite cannot edit IR.

A ``Function`` is one definition from a printed module in which every value and block has a name (LLVM's instruction
namer). Instructions stay lines of text. Parsed are only definitions, phis and the edges between blocks; the operands of
integer arithmetic are left to ``patterns``. Natural loops are found in the textbook way: a back edge goes to a block
that dominates its source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import final

WORD = r'(?:"[^"]*"|[-\w$.]+)'
"""A name without its sigil ``%``, as a regular expression."""

NAME = f"%{WORD}"
"""The name of a value or block, as a regular expression."""

LABEL = re.compile(rf"^(?P<name>{WORD}):")
_RESULT = re.compile(rf"^\s+(?P<name>{NAME}) = ")
_TARGET = re.compile(rf"label ({NAME})")
_INCOMING = re.compile(rf"\[ ([^,\]]+), ({NAME}) \]")


@final
@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its result's name ("" for none), its block, and its text after the ``=``."""

    name: str
    block: str
    text: str

    @property
    def opcode(self) -> str:
        return self.text.partition(" ")[0]

    def incoming(self) -> dict[str, str]:
        """Returns a phi's values by incoming block."""
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
        """Returns this loop and all loops in it."""
        return [self, *(inner for child in self.children for inner in child.within())]

    def chain(self, outer: Loop) -> list[Loop]:
        """Returns the loops from this loop out to ``outer``, which contains it, both included."""
        found = [self]
        while found[-1] is not outer:
            parent = found[-1].parent
            assert parent is not None
            found.append(parent)
        return found


@final
class Function:
    """One function definition of a module's text: its lines by block, and the module's lines before and after them."""

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
        self._order = {block: number for number, block in enumerate(self.blocks)}
        self._children: dict[str, list[str]] = {}
        self._spans = self._dominator_spans()
        self.innermost: dict[str, Loop] = {}
        """The innermost loop of each block that is in a loop; ``loops`` fills it in."""

    def text(self) -> str:
        """Returns the module's text with the function's current blocks."""
        lines = list(self.before)
        for block, body in self.blocks.items():
            lines += [f"{block[1:]}:", *body]
        return "\n".join([*lines, *self.after])

    def first_free_metadata(self) -> int:
        """Returns the number after the highest one of the module's metadata."""
        used = (int(number) for line in self.after for number in re.findall(r"^!(\d+) = ", line))
        return 1 + max(used, default=-1)

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Returns the type and the name of each parameter, the context first."""
        head = self.before[-1]
        words = [part.split() for part in head[head.index("(") + 1 : head.rindex(")")].split(", ")]
        return [(each[0], each[-1]) for each in words]

    def terminator(self, block: str) -> str:
        return self.blocks[block][-1].strip()

    def copy_loop(self, loop: Loop, suffix: str) -> dict[str, str]:
        """Adds a copy of a loop. Nothing enters the copy yet; it leaves to the loop's exit blocks.

        Returns the copy's names by the names of the loop's blocks and values: these with the suffix.
        """
        names = {block: suffixed(block, suffix) for block in loop.blocks}
        for block in loop.blocks:
            for line in self.blocks[block]:
                if match := _RESULT.match(line):
                    names[match["name"]] = suffixed(match["name"], suffix)
        ordered = sorted(loop.blocks, key=self._order.__getitem__)
        copies = {names[b]: [renamed(line, names) for line in self.blocks[b]] for b in ordered}
        for inner in loop.within():
            latch = copies[names[inner.latch]]
            latch[-1] = re.sub(r", !llvm\.loop !\d+", "", latch[-1])
        for exit_block in {target for b in loop.blocks for target in self.successors[b]} - loop.blocks:
            self.blocks[exit_block] = [_with_copies(line, names, loop.blocks) for line in self.blocks[exit_block]]
        self.blocks.update(copies)
        return names

    def dominates(self, first: str, second: str) -> bool:
        """Returns whether every path from the entry to ``second`` goes through ``first``."""
        above, below = self._spans.get(first), self._spans.get(second)
        return above is not None and below is not None and above[0] <= below[0] < above[1]

    def dominated(self, block: str) -> list[str]:
        """Returns the blocks whose immediate dominator is ``block``."""
        return self._children.get(block, [])

    def loops(self) -> list[Loop]:
        """Returns the natural loops that have a preheader, each before the loops that it contains."""
        found: dict[str, Loop] = {}
        for latch, targets in self.successors.items():
            for header in targets:
                if not self.dominates(header, latch):
                    continue
                outside = [p for p in self.predecessors[header] if not self.dominates(header, p)]
                if header in found or len(outside) != 1 or len(self.successors[outside[0]]) != 1:
                    continue
                found[header] = Loop(header, latch, outside[0], self._body(header, latch))
        ordered = sorted(found.values(), key=lambda loop: -len(loop.blocks))
        self.innermost = {}
        for loop in ordered:
            loop.parent = self.innermost.get(loop.header)
            if loop.parent is not None:
                loop.parent.children.append(loop)
            self.innermost.update(dict.fromkeys(loop.blocks, loop))
        return ordered

    def _body(self, header: str, latch: str) -> set[str]:
        blocks, pending = {header}, [latch]
        while pending:
            block = pending.pop()
            if block not in blocks:
                blocks.add(block)
                pending += self.predecessors[block]
        return blocks

    def _dominator_spans(self) -> dict[str, tuple[int, int]]:
        """Returns, for each reachable block, its preorder number in the dominator tree and the first number after its
        subtree. Immediate dominators are computed as by Cooper, Harvey and Kennedy."""
        order = self._postorder()
        number = {block: place for place, block in enumerate(order)}
        above = {self.entry: self.entry}
        changed = True
        while changed:
            changed = False
            for block in reversed(order[:-1]):
                first, *others = (before for before in self.predecessors[block] if before in above)
                for other in others:
                    while first != other:
                        if number[first] < number[other]:
                            first = above[first]
                        else:
                            other = above[other]
                if above.get(block) != first:
                    above[block] = first
                    changed = True
        for block in reversed(order[:-1]):
            self._children.setdefault(above[block], []).append(block)
        starts: dict[str, int] = {}
        spans: dict[str, tuple[int, int]] = {}
        pending = [self.entry]
        while pending:
            block = pending[-1]
            if block in starts:
                pending.pop()
                spans[block] = starts[block], len(starts)
            else:
                starts[block] = len(starts)
                pending += self.dominated(block)
        return spans

    def _postorder(self) -> list[str]:
        """Returns the reachable blocks in postorder of a depth-first search; the entry is last."""
        order: list[str] = []
        seen = {self.entry}
        pending = [(self.entry, iter(self.successors[self.entry]))]
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
        return order


def _with_copies(line: str, names: dict[str, str], blocks: set[str]) -> str:
    """Adds the values that come from the loop's copy to a phi of an exit block; other lines stay unchanged."""
    if " = phi " not in line:
        return line
    extra = [
        f", [ {names.get(value, value)}, {names[block]} ]"
        for value, block in _INCOMING.findall(line)
        if block in blocks
    ]
    return line + "".join(extra)


def parse(line: str, block: str) -> Instruction:
    """Parses a line as an instruction, without the metadata at its end."""
    match = _RESULT.match(line)
    name = match["name"] if match else ""
    text = line[match.end() :] if match else line.strip()
    return Instruction(name, block, re.sub(r"(, ![\w.]+ !\d+)+$", "", text))


def renamed(line: str, names: dict[str, str]) -> str:
    """Returns a line with every value and block of ``names`` renamed."""
    return re.sub(NAME, lambda match: names.get(match[0], match[0]), line)


def suffixed(name: str, suffix: str) -> str:
    """Appends a suffix to a name, inside its quotes if it has any."""
    return f'{name[:-1]}{suffix}"' if name.endswith('"') else name + suffix
