"""Hoists bounds checks out of loops: one range check before a loop selects a version of the loop without checks.

For each loop, outermost first, all accesses whose ranges are computable before the loop (``affine``) share one guard.
If the guard holds, the loop runs without their checks. Otherwise a copy of the loop runs with every check in its
original position, so that the behaviour and the reports of a faulty program do not change. The two loops are
equivalent: a guard that fails needlessly costs only time. Measured on one H100: a check at every read makes a naive
matrix product 2.5 times slower, and the guard has no measurable cost.

Three kinds of checks are not hoisted: checks of accesses under a condition inside the loop, because the index may be
out of bounds where the condition is false; checks of accesses in a loop's own test; and checks in loops with a barrier
or another convergent call, because a second version of the loop could make the threads of a warp diverge.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from oxide.compiler.ir import verifier
from oxide.compiler.ir.control_flow import ControlFlow, Loop, copy_loop
from oxide.compiler.ir.llvm import host_machine, host_target, keep_inside, portable_module, run_passes
from oxide.compiler.ir.module import Function, Module
from oxide.compiler.ir.parser import parse
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.recognise import fails_an_assert, is_alignment_check, is_bounds_check
from oxide.compiler.ir.values import TRUE, Block, Branch, Call
from oxide.compiler.primitives.effects import CONVERGENT, CONVERSIONS
from oxide.compiler.signature.contracts import Contract
from oxide.compiler.signature.signature import Closed, NumbaParameter

from .affine import Range, Undecidable
from .exits import ALONE, leave_after_faults
from .prove import Check, Prover, words_of

CheckPlace = Literal["proved", "hoisted", "access"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Says where the check of one access is done, and the reason if it is done at the access. ``in_loop`` says whether
    the access is in a loop. ``depth`` is 0 if the check was hoisted only out of the innermost loop around the access, 1
    if it was also hoisted out of the next outer loop, and so on."""

    site: int
    place: CheckPlace
    reason: str
    in_loop: bool
    depth: int = 0


_HARMLESS = (*ALONE, "oxide.atomic.")
_LARGEST_COPY = 2000
# `sroa` runs before inlining too, so that functions are copied without their stack variables.
_INLINING = ("sroa", "always_inliner", "global_dead_code_eliminate", "sroa")
_PASSES = (
    *_INLINING,
    "instruction_combine",
    "sroa",
    # Once more, because `simplify_cfg` joins tests that are not simplified yet into one branch. That hides the facts
    # that each test proves.
    "instruction_combine",
    "simplify_cfg",
    "jump_threading",
    "simplify_cfg",
    "lower_switch",
    "global_dead_code_eliminate",
    "loop_simplify",
    "lcssa",
)


def hoist_checks(
    kernel: PortableKernel, parameters: Sequence[Closed], contracts: Sequence[Contract]
) -> tuple[PortableKernel, tuple[Placement, ...]]:
    """Returns the kernel with its checks proved or hoisted where possible, and the placement of each access's check."""
    if verifier.is_enabled():
        _verify_accesses(simplified(kernel.module.copy(), kernel.symbol, _INLINING), kernel.symbol, parameters)
    module = kernel.module.copy()
    leave_after_faults(module, kernel)
    module = simplified(module, kernel.symbol)
    hoister = _Hoister(module, kernel.symbol)
    hoister.prove(parameters, contracts)
    placements = hoister.run()
    if verifier.is_enabled():
        verifier.verify_structure(module)
    return replace(kernel, module=module), placements


def _verify_accesses(module: Module, symbol: str, parameters: Sequence[Closed]) -> None:
    """Verifies the accesses to slices. Accesses to numba-cuda's arrays are left out: they have no bounds checks."""
    slices = [
        words[0]
        for parameter, words in words_of(parameters, module.functions[symbol])
        if not isinstance(parameter, NumbaParameter) and parameter.kind != "scalar"
    ]
    verifier.verify_accesses(module, symbol, slices)


def leave_checks_out(kernel: PortableKernel) -> PortableKernel:
    """Returns the kernel without bounds checks and asserts, after the same passes as in ``hoist_checks``."""
    module = leave_assertions_out(kernel).module
    for function in module.defined:
        _leave_out(function, list(filter(is_alignment_check, function.calls)))
    module = simplified(module, kernel.symbol)
    for function in module.defined:
        _leave_out(function, list(filter(is_bounds_check, function.calls)))
    return replace(kernel, module=module)


def leave_assertions_out(kernel: PortableKernel) -> PortableKernel:
    """Returns the kernel with each branch to a failing assert replaced by a jump to the branch's other target."""
    module = kernel.module.copy()
    for function in module.defined:
        failing = {call.block for call in function.calls if fails_an_assert(call)}
        for block in function.blocks.values():
            match block.terminator:
                case Branch(targets=[yes, no]) if (yes in failing) != (no in failing):
                    block.jump_to(no if yes in failing else yes)
    return replace(kernel, module=module)


def _leave_out(function: Function, checks: Collection[Call]) -> None:
    """Replaces checks by ``true``."""
    for check in checks:
        match check.block.terminator:
            case Branch(condition=condition, yes=yes, no=no) if condition is check and not no.phis:
                check.block.jump_to(yes)
    function.supersede(dict.fromkeys(checks, TRUE))


def simplified(module: Module, symbol: str, passes: Sequence[str] = _PASSES) -> Module:
    """Returns the module after some of LLVM's passes, by default those that ``hoist_checks`` runs. They inline all
    functions, so that the kernel becomes one function, and put its variables into registers."""
    for function in module.functions.values():
        if function.is_declaration:
            function.add_attributes(*_attributes(function.symbol))
    read = portable_module(str(module))
    keep_inside(read, symbol)
    run_passes(read, host_machine(host_target()), passes, speed_level=1)
    return parse(str(read))


def _attributes(symbol: str) -> tuple[str, ...]:
    if symbol.startswith("oxide.register."):
        # A thread's coordinates never change, so these calls have no side effects and may be moved.
        return "nounwind", "willreturn", "speculatable", "memory(none)"
    if symbol.startswith(CONVERSIONS):
        return "nounwind", "willreturn", "memory(none)"
    # An unknown call may be convergent: then LLVM must neither duplicate nor move it.
    return () if symbol.startswith(_HARMLESS) else ("convergent",)


class _Hoister:
    def __init__(self, module: Module, symbol: str) -> None:
        self.module = module
        self.function = module.functions[symbol]
        self.flow = ControlFlow(self.function)
        self.checks = [Check.of(call) for call in self.function.calls if is_bounds_check(call)]
        self._versions = 0
        self.placed: dict[Check, Placement] = {}

    def prove(self, parameters: Sequence[Closed], contracts: Sequence[Contract]) -> None:
        """Removes the checks of accesses that are proved to be in bounds."""
        proved = list(Prover(self.flow, parameters, contracts).proven(self.checks))
        _leave_out(self.function, [check.call for check in proved])
        for check in proved:
            self.placed[check] = Placement(check.site, "proved", "", check.block in self.flow.innermost)

    def run(self) -> tuple[Placement, ...]:
        placed = self.placed
        reasons: dict[Check, str] = {}
        for loop in self.flow.loops:
            inside = [check for check in self.checks if check.block in loop.blocks and check not in placed]
            if not inside:
                continue
            problem = _cannot_copy(loop)
            self._versions += 1
            ranges = Range(self.flow, loop, f"oxide.range.{self._versions}")
            decided = []
            for check in inside:
                reason = problem or self._conditional(check, loop)
                if reason is None:
                    try:
                        ranges.require_inside(check.index, check.length)
                    except Undecidable as error:
                        reason = str(error)
                if reason is None:
                    decided.append(check)
                else:
                    reasons[check] = reason
            if decided:
                self._version(loop, decided, ranges)
                for check in decided:
                    depth = len(self.flow.innermost[check.block].chain(loop)) - 1
                    placed[check] = Placement(check.site, "hoisted", "", True, depth)
        return tuple(
            placed.get(check)
            or Placement(
                check.site, "access", reasons.get(check, "it is in no loop"), check.block in self.flow.innermost
            )
            for check in self.checks
        )

    def _conditional(self, check: Check, loop: Loop) -> str | None:
        """Returns the reason why some iteration of the loop may skip the access. Returns None if no iteration skips
        it."""
        point = check.block
        for around in self.flow.innermost[point].chain(loop):
            if point is around.header:
                inside = around.blocks.issuperset(point.successors)
                ends_thread = check.call in point.terminator.operands  # by failing
                if around.header is around.latch or inside or ends_thread:
                    return "it is in a while loop, whose number of iterations is not known before"
                return "the access is part of the loop's own test"
            if not self.flow.dominates(point, around.latch):
                return "the access is under a condition inside the loop"
            point = around.header
        return None

    def _version(self, loop: Loop, decided: list[Check], ranges: Range) -> None:
        copy = copy_loop(self.function, loop, f".checked.{self._versions}")
        # The copy's loops are cold and stay small: the registers they need are allocated to every thread.
        disabled = self.module.add_metadata('!{!"llvm.loop.unroll.disable"}')
        for cold in copy.within():
            node = self.module.add_metadata(lambda place: f"distinct !{{!{place}, {disabled}}}")
            cold.latch.terminator.metadata["!llvm.loop"] = node
        # A new preheader, for later passes that look for the loop.
        holds = self.function.add(Block(f"%oxide.range.{self._versions}.holds", [Branch(loop.header)]))
        for phi in loop.header.phis:
            phi.replace_operands({loop.preheader: holds})
        choice = Branch(holds, copy.header, ranges.guard())
        choice.metadata["!prof"] = self.module.add_metadata('!{!"branch_weights", i32 2000, i32 1}')
        loop.preheader.instructions.pop()
        loop.preheader.extend([*ranges.code, choice])
        _leave_out(self.function, [check.call for check in decided])


def _cannot_copy(loop: Loop) -> str | None:
    inside = [instruction for block in loop.blocks for instruction in block.instructions]
    for call in inside:
        if isinstance(call, Call) and (call.called or call.is_assembly) and not _alone(call):
            return "the loop has a barrier or another call that threads make together"
    return "the loop is too large to have twice" if len(inside) > _LARGEST_COPY else None


def _alone(call: Call) -> bool:
    """Returns whether a thread may make a call independently of the other threads."""
    if call.is_assembly:
        return "sideeffect" not in call.callee.name.partition('"')[0]
    return call.called.startswith(_HARMLESS) and not call.called.startswith(CONVERGENT)
