"""The control flow of a function: predecessors, dominators and natural loops.

Immediate dominators are computed as by Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm". Natural loops
are found by their back edges: edges to a block that dominates their source. A ``ControlFlow`` describes the function as
it was when the ``ControlFlow`` was created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import final

from .module import Function, copy_blocks, reached
from .values import Block, Value


@final
@dataclass(eq=False, slots=True)
class Loop:
    """A natural loop with one latch and a preheader, the form that LLVM's loop-simplify pass gives loops."""

    header: Block
    latch: Block
    preheader: Block
    blocks: set[Block]
    parent: Loop | None = None
    children: list[Loop] = field(default_factory=list)

    def within(self) -> list[Loop]:
        """Returns this loop and all loops nested in it."""
        return [self, *(inner for child in self.children for inner in child.within())]

    def chain(self, outer: Loop) -> list[Loop]:
        """Returns the loops from this loop out to ``outer``, both included. ``outer`` must contain this loop."""
        found = [self]
        while found[-1] is not outer:
            parent = found[-1].parent
            assert parent is not None
            found.append(parent)
        return found


@final
class ControlFlow:
    """Predecessors, dominators and loops of a function."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.entry = function.entry
        self.predecessors: dict[Block, list[Block]] = {block: [] for block in function.blocks.values()}
        for block in function.blocks.values():
            for target in block.successors:
                self.predecessors[target].append(block)
        self._children: dict[Block, list[Block]] = {}
        self._spans = self._dominator_spans()
        self.innermost: dict[Block, Loop] = {}
        """The innermost loop of each block that is in a loop."""
        self.loops = self._find_loops()
        """The natural loops that have a preheader, each before the loops that it contains."""

    def dominates(self, first: Block, second: Block) -> bool:
        """Returns whether every path from the entry to ``second`` goes through ``first``."""
        above, below = self._spans.get(first), self._spans.get(second)
        return above is not None and below is not None and above[0] <= below[0] < above[1]

    def dominated(self, block: Block) -> list[Block]:
        """Returns the blocks whose immediate dominator is ``block``."""
        return self._children.get(block, [])

    def is_reachable(self, block: Block) -> bool:
        return block in self._spans

    def _find_loops(self) -> list[Loop]:
        found: dict[Block, Loop] = {}
        for latch in self.function.blocks.values():
            for header in latch.successors:
                if not self.dominates(header, latch):
                    continue
                outside = [block for block in self.predecessors[header] if not self.dominates(header, block)]
                if header in found or len(outside) != 1 or len(outside[0].successors) != 1:
                    continue
                found[header] = Loop(header, latch, outside[0], self._body(header, latch))
        ordered = sorted(found.values(), key=lambda loop: -len(loop.blocks))
        for loop in ordered:
            loop.parent = self.innermost.get(loop.header)
            if loop.parent is not None:
                loop.parent.children.append(loop)
            self.innermost.update(dict.fromkeys(loop.blocks, loop))
        return ordered

    def _body(self, header: Block, latch: Block) -> set[Block]:
        return {header, *reached(latch, lambda block: [] if block is header else self.predecessors[block])}

    def _dominator_spans(self) -> dict[Block, tuple[int, int]]:
        """Returns, for each reachable block, its preorder number in the dominator tree and the first number after its
        subtree."""
        order = list(postorder(self.entry))
        number = {block: place for place, block in enumerate(order)}
        above = {self.entry: self.entry}
        changed = True
        while changed:
            changed = False
            for block in reversed(order[:-1]):
                # Predecessors are merged from the deepest on, so that each walk up the tree begins where the walk
                # before it ended.
                first, *others = sorted(
                    (each for each in self.predecessors[block] if each in above), key=number.__getitem__
                )
                for other in others:
                    while first is not other:
                        if number[first] < number[other]:
                            first = above[first]
                        else:
                            other = above[other]
                if above.get(block) is not first:
                    above[block] = first
                    changed = True
        for block in reversed(order[:-1]):
            self._children.setdefault(above[block], []).append(block)
        starts: dict[Block, int] = {}
        spans: dict[Block, tuple[int, int]] = {}
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


def postorder(
    entry: Block, successors: Callable[[Block], list[Block]] = lambda block: block.successors
) -> Iterator[Block]:
    """Yields the reachable blocks in postorder of a depth-first search; the entry is last."""
    seen = {entry}
    pending = [(entry, iter(successors(entry)))]
    while pending:
        block, targets = pending[-1]
        for target in targets:
            if target not in seen:
                seen.add(target)
                pending.append((target, iter(successors(target))))
                break
        else:
            yield block
            pending.pop()


def copy_loop(function: Function, loop: Loop, suffix: str) -> Loop:
    """Adds a copy of a loop, to which no block branches yet, and returns it. The copy exits to the same blocks as the
    loop, and their phis get its values. The copies' names end in the suffix, and their latches have no loop metadata.
    """
    ordered = [block for block in function.blocks.values() if block in loop.blocks]
    copies: dict[Value, Value] = {}
    blocks = copy_blocks(ordered, copies, suffix)
    for copied in blocks.values():
        function.add(copied)
    for inner in loop.within():
        blocks[inner.latch].terminator.metadata.pop("!llvm.loop", None)
    exits = {target: None for block in ordered for target in block.successors if target not in loop.blocks}
    for target in exits:
        for phi in target.phis:
            added = [(copies.get(value, value), blocks[block]) for value, block in phi.incoming if block in blocks]
            phi.incoming = [*phi.incoming, *added]

    def copied_loop(each: Loop, parent: Loop | None) -> Loop:
        preheader = blocks.get(each.preheader, each.preheader)
        inside = {blocks[block] for block in each.blocks}
        result = Loop(blocks[each.header], blocks[each.latch], preheader, inside, parent)
        result.children = [copied_loop(child, result) for child in each.children]
        return result

    return copied_loop(loop, loop.parent)
