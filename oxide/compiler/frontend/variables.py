"""Lowers variables to values instead of memory.

numba keeps each variable that is read in more than one block in a stack slot of its own, which it clears at the
function's entry. Because it also counts references, it lowers each ``del`` and each assignment to a load of the old
value and a store. LLVM promotes all of these slots to registers, but in a time that grows with the square of a
function's branches: the stores of each variable may meet in any of the blocks that follow.

numba's IR is in SSA form when it is lowered. A variable becomes a value if its only assignment dominates all its reads.
A variable becomes a phi if all its assignments are at the ends of the predecessors of one block, as in numba's own
phis. The few other variables stay in memory, such as those that are read where they may be unassigned. The machine code
is the same as with numba's lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from numba.cuda import cgutils
from numba.cuda.core import analysis, ir_utils
from numba.cuda.core import ir as numba_ir
from numba.cuda.lowering import CUDALower

from .lowering.whole_numbers import branches_meet


class UncountedLower(CUDALower):  # type: ignore[misc]
    """Lowers variables to values and phis where this is possible, and the other variables to memory. Does not count
    references."""

    def _find_singly_assigned_variable(self) -> None:
        if self.func_ir.func_id.is_generator:
            super()._find_singly_assigned_variable()
            return
        found = _Variables(self.blocks)
        self._singly_assigned_vars = found.local
        self._blk_local_varmap: dict[str, Any] = {}
        self._across = found.across
        self._meeting = found.meeting
        self._branches_into = found.branches_into
        self._phis: dict[int, list[str]] = {}
        for name, label in found.meeting.items():
            self._phis.setdefault(label, []).append(name)
        self._values: dict[str, Any] = {}
        """The values of the variables that are read outside of the block that assigns them, by name."""
        self._assigned_in_block: list[tuple[str, Any]] = []
        self._incoming: dict[str, list[tuple[Any, Any]]] = {}
        """The values of each phi so far, with the blocks that they come from."""
        self._labels = {id(block): label for label, block in self.blocks.items()}

    def pre_block(self, block: Any) -> None:
        super().pre_block(block)
        label = self._labels[id(block)]
        for name in self._phis.get(label, ()):
            phi = self.builder.phi(self.context.get_value_type(self.typeof(name)), name=name)
            self._values[name] = phi
            known = self._incoming.get(name, [])
            if len(known) == self._branches_into(label):  # no loop changes the variable
                branches_meet(phi, known)

    def post_block(self, block: Any) -> None:
        super().post_block(block)
        end = self.builder.basic_block
        for name, value in self._assigned_in_block:
            self._incoming.setdefault(name, []).append((value, end))
        self._assigned_in_block.clear()

    def post_lower(self) -> None:
        super().post_lower()
        for name, branches in self._incoming.items():
            for value, block in branches:
                self._values[name].add_incoming(value, block)

    def loadvar(self, name: str) -> Any:
        return self._values[name] if name in self._values else super().loadvar(name)

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        elif name in self._across:
            self._values[name] = value
        elif name in self._meeting:
            self._assigned_in_block.append((name, value))
        else:
            self.builder.store(value, self.getvar(name))

    def delvar(self, name: str) -> None:
        pass

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        return cgutils.alloca_once(self.builder, lltype, name=name)  # numba also describes it to debuggers


@dataclass(slots=True)
class _Uses:
    """The blocks that use a variable. ``assigned`` has the blocks that assign it. ``before`` has the blocks that read
    it without having assigned it first, and ``after`` the blocks that read it after an assignment of their own."""

    assigned: list[int] = field(default_factory=list)
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)


class _Variables:
    """The variables of a function that need no memory, in three groups."""

    def __init__(self, blocks: Mapping[int, Any]) -> None:
        self.local: set[str] = set()
        """Variables that are assigned once, and read only later in the same block."""
        self.across: set[str] = set()
        """Variables that are assigned once, at a place that dominates all reads, some of which are in other blocks."""
        self.meeting: dict[str, int] = {}
        """Variables that become a phi, each with the label of the phi's block. All predecessors of this block assign
        the variable, and the block dominates all reads."""
        self._blocks = blocks
        self._lowered = {label: number for number, label in enumerate(blocks)}
        self._flow = flow = analysis.compute_cfg_from_blocks(blocks)
        self._dominates = _dominance(flow.immediate_dominators())
        in_memory = analysis.must_use_alloca(blocks)
        for name, uses in _uses(blocks).items():
            if name in in_memory:
                continue
            if len(uses.assigned) == 1:
                if not uses.before:
                    self.local.add(name)
                elif all(self._reaches(uses.assigned[0], label) for label in uses.before):
                    self.across.add(name)
            elif uses.assigned and not uses.after:
                label = self._meeting_of(uses)
                if label is not None:
                    self.meeting[name] = label

    def branches_into(self, label: int) -> int:
        """Returns the number of blocks that branch to a block."""
        return len(list(self._flow.predecessors(label)))

    def _reaches(self, first: int, second: int) -> bool:
        """Returns whether a value that block ``first`` assigns can be read in block ``second``: the second block must
        be lowered later, and the first block must dominate it."""
        return self._lowered[first] < self._lowered[second] and self._dominates(first, second)

    def _meeting_of(self, uses: _Uses) -> int | None:
        """Returns the block whose predecessors assign a variable, one assignment each, if this block dominates all
        reads. Returns None if there is no such block."""
        first = uses.assigned[0]
        targets: list[int] = self._blocks[first].terminator.get_targets()
        for label in dict.fromkeys(targets):
            before = sorted(predecessor for predecessor, _ in self._flow.predecessors(label))
            if (
                before == sorted(uses.assigned)
                and label != self._flow.entry_point()
                and all(self._assigns_for(each, label) for each in before)
                and all(label == each or self._reaches(label, each) for each in uses.before)
            ):
                return label
        return None

    def _assigns_for(self, label: int, meeting: int) -> bool:
        """Returns whether the block ``label``, a predecessor of ``meeting``, may assign the value of a phi in
        ``meeting``. The phi's variable is read only in blocks that ``meeting`` dominates. If ``label`` ends in a
        branch, the branch's other target must not lead to such blocks; in a loop, where ``meeting`` dominates
        ``label``, it does. Returns False also if both targets are ``meeting``."""
        targets = self._blocks[label].terminator.get_targets()
        others = [target for target in targets if target != meeting]
        return label != meeting and len(targets) == len(others) + 1 and not (others and self._dominates(meeting, label))


def _uses(blocks: Mapping[int, Any]) -> dict[str, _Uses]:
    found: dict[str, _Uses] = {}
    for label, block in blocks.items():
        for name, is_assignment in _names(block):
            uses = found.get(name)
            if uses is None:
                uses = found[name] = _Uses()
            if is_assignment:
                uses.assigned.append(label)
            elif uses.assigned and uses.assigned[-1] == label:
                uses.after.add(label)
            else:
                uses.before.add(label)
    return found


def _names(block: Any) -> Iterator[tuple[str, bool]]:
    """Yields the variables that a block reads and assigns, in the order of execution, each with True for an assignment
    and False for a read."""
    for statement in block.body:
        if isinstance(statement, numba_ir.Del):
            continue
        names = [variable.name for variable in ir_utils.compat_list_vars_stmt(statement)]
        target = statement.target.name if isinstance(statement, numba_ir.Assign) else None
        if target is not None:
            names.remove(target)
        for name in names:
            yield name, False
        if target is not None:
            yield target, True


def _dominance(above: Mapping[int, int]) -> Callable[[int, int], bool]:
    """Returns a function that tells whether a first block dominates a second. ``above`` maps each block to its
    immediate dominator.

    Blocks are numbered in preorder of the dominator tree. The blocks that a block dominates have consecutive numbers,
    which are the block's span."""
    below: dict[int, list[int]] = {}
    pending: list[int] = []
    for label, dominator in above.items():
        if label == dominator:
            pending.append(label)
        else:
            below.setdefault(dominator, []).append(label)
    spans: dict[int, tuple[int, int]] = {}
    starts: dict[int, int] = {}
    while pending:
        label = pending[-1]
        if label in starts:
            spans[label] = starts[label], len(starts)
            pending.pop()
        else:
            starts[label] = len(starts)
            pending += below.get(label, ())

    def dominates(first: int, second: int) -> bool:
        if first not in spans or second not in spans:
            return False
        start, end = spans[first]
        return start <= spans[second][0] < end

    return dominates
