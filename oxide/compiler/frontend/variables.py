"""Lowers variables to values instead of memory.

numba keeps each variable that is read in more than one block in memory of its own, which it clears at the function's
entry. It counts references too: it lowers each ``del`` and each assignment to a load of the old value and a store. LLVM
promotes all of that to registers, in a time that grows with the square of a function's branches, because the stores of
each variable may meet in any of the blocks that follow.

At this point numba's IR is in SSA form. A variable becomes a value if its only assignment dominates its reads. It
becomes a phi if all its assignments are at the ends of the predecessors of one block. numba's own phis have this form.
The few others stay in memory, such as those that are read where they may be unassigned. The machine code stays the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from numba.cuda import cgutils
from numba.cuda.core import analysis, ir_utils
from numba.cuda.core import ir as numba_ir
from numba.cuda.lowering import CUDALower


class UncountedLower(CUDALower):  # type: ignore[misc]
    """Lowers variables to values and phis where it can, and to memory without counting references elsewhere."""

    def _find_singly_assigned_variable(self) -> None:
        if self.func_ir.func_id.is_generator:
            super()._find_singly_assigned_variable()
            return
        found = _Variables(self.blocks)
        self._singly_assigned_vars = found.local
        self._blk_local_varmap: dict[str, Any] = {}
        self._across = found.across
        self._meeting = found.meeting
        self._phis: dict[int, list[str]] = {}
        for name, label in found.meeting.items():
            self._phis.setdefault(label, []).append(name)
        self._values: dict[str, Any] = {}
        """The values of the variables that are read outside of the block that assigns them."""
        self._assigned_in_block: list[tuple[str, Any]] = []
        self._incoming: list[tuple[str, Any, Any]] = []
        self._labels = {id(block): label for label, block in self.blocks.items()}

    def pre_block(self, block: Any) -> None:
        super().pre_block(block)
        for name in self._phis.get(self._labels[id(block)], ()):
            self._values[name] = self.builder.phi(self.context.get_value_type(self.typeof(name)), name=name)

    def post_block(self, block: Any) -> None:
        super().post_block(block)
        end = self.builder.basic_block
        self._incoming += [(name, value, end) for name, value in self._assigned_in_block]
        self._assigned_in_block.clear()

    def post_lower(self) -> None:
        super().post_lower()
        for name, value, block in self._incoming:
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
    """The blocks that assign a variable, and two sets of blocks that read it: before an assignment of their own, and
    after it."""

    assigned: list[int] = field(default_factory=list)
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)


class _Variables:
    """The variables of a function that need no memory."""

    def __init__(self, blocks: Mapping[int, Any]) -> None:
        self.local: set[str] = set()
        """Assigned once, and read in the same block after that."""
        self.across: set[str] = set()
        """Assigned once, at a place that dominates all reads, some of which are in other blocks."""
        self.meeting: dict[str, int] = {}
        """Assigned at the ends of all blocks before the given block, which dominates all reads."""
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

    def _reaches(self, first: int, second: int) -> bool:
        """Returns whether a value of a first block can be read in a second, other block, which is lowered later."""
        return self._lowered[first] < self._lowered[second] and self._dominates(first, second)

    def _meeting_of(self, uses: _Uses) -> int | None:
        """Returns the block whose predecessors assign a variable, one assignment each, if it dominates all reads."""
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
        """Returns whether a variable that is read only where ``meeting`` dominates can be assigned for its phi in a
        block before it. If the block ends in a branch, the branch's other target must not lead to such reads, as it
        does in a loop around ``meeting``."""
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
    """Yields the variables that a block reads and assigns, in the order of execution, and whether each is assigned."""
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
    """Returns the test for whether a first block dominates a second. ``above`` has the immediate dominators.

    A block dominates those whose numbers, in preorder of the dominator tree, are in its span."""
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
