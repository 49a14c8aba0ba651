"""Hoists bounds checks out of loops: one range check before a loop selects a version of the loop without checks.

For each loop, outermost first, all accesses whose ranges are computable before the loop (``affine``) share one guard.
If the guard holds, the loop runs without their checks. Otherwise a copy of the loop runs with every check in its
original position, so that the behaviour and the reports of a faulty program do not change. The two loops are
equivalent: a guard that fails needlessly costs time only. Measured on one H100: a check at every read makes a naive
matrix product 2.5 times slower, the guard costs nothing.

Three kinds stay unhoisted: accesses under a condition inside the loop, whose index may be out of bounds where the
condition is false; accesses in a loop's own test; and loops with a barrier or another convergent call, since a second
version of the loop could make the threads of a warp diverge.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import llvmlite.binding as llvm

from oxide.compiler.ir import verifier
from oxide.compiler.ir.control_flow import ControlFlow
from oxide.compiler.ir.llvm import run_passes
from oxide.compiler.ir.module import Block, Value
from oxide.compiler.ir.parser import parse
from oxide.compiler.ir.patterns import BOUNDS_CHECK, BRANCH, called_by, fails_an_assert
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.recognise import is_bounds_check
from oxide.compiler.ir.ssa import LABEL, Function, Loop
from oxide.compiler.signature.contracts import Contract
from oxide.compiler.signature.signature import Closed, NumbaParameter

from .affine import Range, Undecidable
from .leaving import ALONE, CONVERGENT, leaving_after_a_fault
from .prove import Prover, words_of

Place = Literal["proved", "hoisted", "access"]


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of one access's check, and the reason if it stayed at the access. ``in_loop`` says whether the access
    is in a loop. ``depth`` counts the loops around the access within the loop that its check was hoisted out of."""

    site: int
    place: Place
    reason: str
    in_loop: bool
    depth: int = 0


_HARMLESS = (*ALONE, "oxide.atomic.")
_LARGEST_COPY = 2000
# `sroa` runs before inlining too, so that functions are copied without their stack variables.
_INLINING = ("sroa", "always_inliner", "global_dead_code_eliminate", "sroa", "instruction_namer")
_PASSES = (
    "instruction_combine",
    "sroa",
    "simplify_cfg",
    "jump_threading",
    "simplify_cfg",
    "lower_switch",
    "global_dead_code_eliminate",
    "loop_simplify",
    "lcssa",
    "instruction_namer",
)


def hoist_checks(
    kernel: PortableKernel, parameters: Sequence[Closed], contracts: Sequence[Contract]
) -> tuple[PortableKernel, tuple[Placement, ...]]:
    """Returns the kernel with its checks proved or hoisted where possible, and the placement of each access's check."""
    inlined = _inlined(kernel)
    if verifier.is_enabled():
        _verify_accesses(inlined, kernel.symbol, parameters)
    text = leaving_after_a_fault(inlined, kernel)
    function = Function(_run(llvm.parse_assembly(text), _PASSES), kernel.symbol)
    hoister = _Hoister(function, kernel.symbol)
    hoister.prove(parameters, contracts)
    placements = hoister.run()
    module = llvm.parse_assembly(function.text() + hoister.metadata())
    module.verify()
    hoisted = parse(str(module))
    if verifier.is_enabled():
        verifier.verify_structure(hoisted)
    return replace(kernel, module=hoisted), placements


def _verify_accesses(inlined: str, symbol: str, parameters: Sequence[Closed]) -> None:
    """Verifies the accesses to slices. Those to arrays of numba-cuda have no bounds checks."""
    module = parse(inlined)
    slices = [
        words[0]
        for parameter, words in words_of(parameters, module.functions[symbol])
        if not isinstance(parameter, NumbaParameter) and parameter.kind != "scalar"
    ]
    verifier.verify_accesses(module, symbol, slices)


def leave_checks_out(kernel: PortableKernel) -> PortableKernel:
    """Returns the kernel without bounds checks and asserts, in the form that ``hoist_checks`` gives."""
    text = re.sub(r"call i1 @oxide\.aligned\([^)]*\)", "icmp eq i32 0, 0", leave_assertions_out(kernel).text)
    text = _run(llvm.parse_assembly(_inlined(replace(kernel, module=parse(text)))), _PASSES)
    return replace(kernel, module=parse(re.sub(r"call i1 @oxide\.in_bounds\([^)]*\)", "icmp eq i32 0, 0", text)))


def leave_assertions_out(kernel: PortableKernel) -> PortableKernel:
    """Returns the kernel with each branch to a failing assert replaced by a jump to the branch's other target."""
    functions = re.split(r"(?<=^}$)", kernel.text, flags=re.MULTILINE)
    return replace(kernel, module=parse("".join(_without_assertions_of(function) for function in functions)))


def _without_assertions_of(function: str) -> str:
    failing = set()
    block = ""
    for line in function.split("\n"):
        if match := LABEL.match(line):
            block = f"%{match['name']}"
        elif fails_an_assert(line):
            failing.add(block)
    if not failing:
        return function

    def go_on(match: re.Match[str]) -> str:
        yes, no = match["yes"], match["no"]
        if (yes in failing) == (no in failing):
            return match[0]
        return f"br label {no if yes in failing else yes}"

    return BRANCH.sub(go_on, function)


def _inlined(kernel: PortableKernel) -> str:
    """Returns the kernel inlined into one function, with its variables as SSA values and no other change."""
    module = llvm.parse_assembly(_DECLARATION.sub(_with_attributes, kernel.text))
    for function in module.functions:
        if not function.is_declaration and function.name != kernel.symbol:
            function.linkage = "internal"
    return _run(module, _INLINING)


def _run(module: Any, passes: Sequence[str]) -> str:
    from oxide.compiler.ir.llvm import host_machine, host_target

    run_passes(module, host_machine(host_target()), passes, speed_level=1)
    return str(module)


_DECLARATION = re.compile(r'^declare [^@\n]*@"?(?P<name>[-\w$.]+)"?\([^\n]*\)$', re.MULTILINE)


def _with_attributes(match: re.Match[str]) -> str:
    if match["name"].startswith("oxide.register."):
        # A thread's coordinates never change, so these calls have no side effects and may be moved.
        return f"{match[0]} nounwind willreturn speculatable memory(none)"
    if match["name"].startswith(("oxide.f16.", "oxide.bf16.")):
        return f"{match[0]} nounwind willreturn memory(none)"
    # An unknown call may be convergent: then LLVM must neither duplicate nor move it.
    return match[0] if match["name"].startswith(_HARMLESS) else f"{match[0]} convergent"


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    block: str
    place: int
    index: str
    length: str
    site: int


@dataclass(frozen=True, slots=True)
class _Access:
    block: Block
    index: Value
    length: Value


class _Hoister:
    def __init__(self, function: Function, symbol: str) -> None:
        self.symbol = symbol
        self.function = function
        self.loops = function.loops()
        self.checks = [
            _Check(match["name"], block, place, match["index"], match["length"], _site(match["site"]))
            for block, body in function.blocks.items()
            for place, line in enumerate(body)
            if (match := BOUNDS_CHECK.match(line))
        ]
        self._first_metadata = function.first_free_metadata()
        self._cold_loops: list[int] = []
        self._versions = 0
        self.placed: dict[_Check, Placement] = {}

    def prove(self, parameters: Sequence[Closed], contracts: Sequence[Contract]) -> None:
        """Removes the checks of accesses that are proved to be in bounds."""
        function = parse(self.function.text()).functions[self.symbol]
        calls = [call for call in function.calls if is_bounds_check(call)]
        places = {
            id(a := _Access(call.block, call.arguments[1], call.arguments[2])): (a, check)
            for call, check in zip(calls, self.checks, strict=True)
        }
        prover = Prover(ControlFlow(function), parameters, contracts)
        for access in list(prover.proven([a for a, _ in places.values()])):
            check = places[id(access)][1]
            self._leave_out(check)
            self.placed[check] = Placement(check.site, "proved", "", self._innermost(check) is not None)

    def run(self) -> tuple[Placement, ...]:
        placed = self.placed
        reasons: dict[_Check, str] = {}
        for loop in self.loops:
            inside = [check for check in self.checks if check.block in loop.blocks and check not in placed]
            if not inside:
                continue
            problem = self._cannot_copy(loop)
            self._versions += 1
            prefix = f"oxide.range.{self._versions}"
            ranges = Range(self.function, loop, prefix)
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
                self._version(loop, decided, ranges, prefix)
                for check in decided:
                    depth = _depth(self._innermost(check)) - _depth(loop)
                    placed[check] = Placement(check.site, "hoisted", "", True, depth)
        return tuple(
            placed.get(check)
            or Placement(
                check.site, "access", reasons.get(check, "it is in no loop"), self._innermost(check) is not None
            )
            for check in self.checks
        )

    def metadata(self) -> str:
        """Returns the metadata that the copies refer to."""
        first = self._first_metadata
        lines = [
            f'!{first} = !{{!"branch_weights", i32 2000, i32 1}}',
            f'!{first + 1} = !{{!"llvm.loop.unroll.disable"}}',
            *(f"!{number} = distinct !{{!{number}, !{first + 1}}}" for number in self._cold_loops),
        ]
        return "\n" + "\n".join(lines) + "\n"

    def _loop_metadata(self) -> int:
        """Allots the number of a loop's own metadata node, which disables unrolling of that loop."""
        self._cold_loops.append(self._first_metadata + 2 + len(self._cold_loops))
        return self._cold_loops[-1]

    def _innermost(self, check: _Check) -> Loop | None:
        return self.function.innermost.get(check.block)

    def _conditional(self, check: _Check, loop: Loop) -> str | None:
        """Returns the reason why some iteration of the loop may not make the access, or None if all make it."""
        inner = self._innermost(check)
        assert inner is not None
        point = check.block
        for around in inner.chain(loop):
            if point == around.header:
                inside = around.blocks.issuperset(self.function.successors[point])
                ends_thread = f"br i1 {check.name}," in self.function.terminator(point)  # if the check fails
                if around.header == around.latch or inside or ends_thread:
                    return "it is in a while loop, whose number of iterations is not known before"
                return "the access is part of the loop's own test"
            if not self.function.dominates(point, around.latch):
                return "the access is under a condition inside the loop"
            point = around.header
        return None

    def _cannot_copy(self, loop: Loop) -> str | None:
        size = 0
        for block in loop.blocks:
            size += len(self.function.blocks[block])
            for line in self.function.blocks[block]:
                name = called_by(line)
                if name is None or (name == "" and "asm sideeffect" not in line):
                    continue
                if not name.startswith(_HARMLESS) or name.startswith(CONVERGENT):
                    return "the loop has a barrier or another call that threads make together"
        return "the loop is too large to have twice" if size > _LARGEST_COPY else None

    def _version(self, loop: Loop, decided: list[_Check], ranges: Range, prefix: str) -> None:
        function = self.function
        names = function.copy_loop(loop, f".checked.{self._versions}")
        # The copy's loops are cold and stay small: the registers they need are allocated to every thread.
        for cold in loop.within():
            metadata = self._loop_metadata()
            latch = function.blocks[names[cold.latch]]
            latch[-1] += f", !llvm.loop !{metadata}"
        guard = "true"
        for number, condition in enumerate(ranges.conditions):
            name = f"%{prefix}.all.{number}"
            ranges.code.append(f"  {name} = and i1 {guard}, {condition}")
            guard = name
        weights = f", !prof !{self._first_metadata}"
        inside = f"%{prefix}.holds"  # a new preheader, for later passes that look for the loop
        function.blocks[loop.preheader][-1:] = [
            *ranges.code,
            f"  br i1 {guard}, label {inside}, label {names[loop.header]}{weights}",
        ]
        function.blocks[inside] = [f"  br label {loop.header}"]
        function.blocks[loop.header] = [
            line.replace(f", {loop.preheader} ]", f", {inside} ]") for line in function.blocks[loop.header]
        ]
        for check in decided:
            self._leave_out(check)

    def _leave_out(self, check: _Check) -> None:
        body = self.function.blocks[check.block]
        body[check.place] = f"  {check.name} = icmp eq i32 0, 0"
        match = BRANCH.match(body[-1].strip())
        if match and match["condition"] == check.name and " = phi " not in "".join(self.function.blocks[match["no"]]):
            body[-1] = f"  br label {match['yes']}"


def _site(text: str) -> int:
    """Returns the access's number, or -1 for an access to one of several slices."""
    return int(text) if text.isdigit() else -1


def _depth(loop: Loop | None) -> int:
    depth = 0
    while loop is not None:
        depth, loop = depth + 1, loop.parent
    return depth
