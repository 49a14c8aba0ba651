"""The CPU's fast path for a launch: one loop over the threads' positions, without checks, which LLVM vectorises.

Most kernels use their thread only by its position in the launch, ``blockIdx.x * blockDim.x + threadIdx.x``. A range of
blocks is then one loop over positions. Such a kernel's checks, its test whether the thread has an element
(``if elem is not None``, ``if i < n``) and numba-cuda's test for negative indices compare numbers that are *linear* in
the position: each holds in one interval of positions. ``positions`` writes a function that computes the intersection of
those intervals once a call (``affine`` explains why wrap-around cannot break this). It runs the whole blocks within the
intersection in the loop, without these tests. The blocks before and after run with every check, so that a faulty thread
behaves and reports as without the fast path: a faulty block never takes it.

LLVM turns the remaining tests in the loop, such as tests of data, into masks. It need not compare addresses: threads
that no barrier separates may run in any order, also in lockstep, so the loop's accesses are marked as independent
across iterations.

The fast path excludes kernels that use a thread's coordinates in any other way, that have memory of their own, that
have a check that is not linear in the position, or that loop. One kind of loop is allowed: a thread of four elements
may loop where its vectors are incomplete. Bypassing that loop is then one more requirement.
"""

from __future__ import annotations

import re
from typing import final

from oxide.compiler.bounds.affine import Range, Undecidable
from oxide.compiler.ir import parameters
from oxide.compiler.ir.patterns import (
    ALIGNMENT_CHECK,
    BINARY,
    BOUNDS_CHECK,
    BRANCH,
    CAST,
    COMPARE,
    INVERSE,
    REGISTER,
    called_by,
    conditions_of,
    fails_an_assert,
)
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.ssa import NAME, Function, parse
from oxide.compiler.signature.signature import Closed

from .scalarise import scalarised
from .whole_blocks import CHECKED_BLOCKS, Line, whole_blocks

_P = "%oxide.position"
_PURE = re.compile(r"__nv_|llvm\.(?!nvvm\.|coro\.|mem|stack|lifetime)|oxide\.(?:maxnum|minnum|f16|bf16|round_to_odd)\b")
_REFUSED = re.compile(
    r"\b(?:alloca|atomicrmw|cmpxchg|fence|volatile|asm|switch|indirectbr|addrspace\(3\)|unreachable)\b"
)
_VECTOR = re.compile(r"^  (?:\S+ = load|store) <")
_ACCESS = re.compile(r"^  (?:\S+ = load|store) (?!atomic )")  # LLVM would vectorise atomic accesses, or abort


def positions(kernel: PortableKernel, entry: str, signature: tuple[Closed, ...]) -> str | None:
    """Returns a module with the function ``entry``, which runs a range of a launch's blocks, or None for a kernel that
    needs more than its threads' positions. The caller defines ``CHECKED_BLOCKS``."""
    if kernel.suspends or kernel.cooperative or kernel.shared.used:
        return None
    try:
        return _Positions(Function(kernel.text, kernel.symbol), entry, signature).text()
    except Undecidable:
        return None


@final
class _Positions:
    """One kernel's loop. Its body is the kernel's, line by line; a return continues with the next position."""

    def __init__(self, kernel: Function, entry: str, signature: tuple[Closed, ...]) -> None:
        self.entry = entry
        self.signature = signature
        self.kernel = kernel
        self.body = {block: list(lines) for block, lines in kernel.blocks.items()}
        self._replace_positions(kernel)
        self._leave_out_unused()
        self._replace_registers()
        # The kernel as the body of a loop that counts from 0, to find the values that are linear in the counter.
        looped = Function(self._analysed(), entry)
        around = next(loop for loop in looped.loops() if loop.header == "%oxide.test")
        self.ranges = Range(looped, around, "oxide.range")
        self.function = looped
        self.required: dict[Line, None] = {}
        self.held: list[str] = []
        self.known: dict[str, bool] = {}

    def text(self) -> str:
        self._go_round_loops()
        self._require_checks()
        self._require_ways_on()
        self._learn_what_follows()
        self._replace_known()
        self._refuse_other_calls()
        self.body = scalarised(self.body)
        around = [*self.kernel.before[:-1], *self.kernel.after[1:]]
        return "\n".join(line for line in around if not line.startswith("; ")) + "\n" + self._function()

    # The thread's position

    def _replace_positions(self, kernel: Function) -> None:
        for block, body in self.body.items():
            for place, line in enumerate(body):
                instruction = parse(line, block)
                match = BINARY.match(instruction.text)
                if match and match["operation"] == "add" and _is_position(kernel, match["left"], match["right"]):
                    kind = match["type"]
                    same = f"add i64 {_P}, 0" if kind == "i64" else f"trunc i64 {_P} to {kind}"
                    body[place] = f"  {instruction.name} = {same}"

    def _leave_out_unused(self) -> None:
        """Removes the instructions that computed the positions, if nothing else uses them."""
        while True:
            used = {
                name
                for body in self.body.values()
                for line in body
                for name in re.findall(NAME, line.partition(" = ")[2] or line)
            }
            found = False
            for body in self.body.values():
                kept = [line for line in body if not _unused(line, used)]
                found = found or len(kept) < len(body)
                body[:] = kept
            if not found:
                return

    def _replace_registers(self) -> None:
        for body in self.body.values():
            body[:] = [REGISTER.sub(_register, line) for line in body]

    # The loop's requirements on a position

    def _go_round_loops(self) -> None:
        """Requires the paths that bypass a kernel's loops, if the loops are for threads with incomplete vectors. Raises
        ``Undecidable`` for other loops."""
        if not self._cyclic(next(iter(self.body))):
            return
        if not any(_VECTOR.match(line) for body in self.body.values() for line in body):
            raise Undecidable("it loops")
        while self._cyclic(next(iter(self.body))):
            decided = len(self.known)
            for block in self._reached():
                match = BRANCH.match(self.body[block][-1].strip())
                if match and match["condition"] not in self.known:
                    loops = self._cyclic(match["yes"]), self._cyclic(match["no"])
                    if loops[0] != loops[1]:
                        self._try(match["condition"], loops[1])
            if len(self.known) == decided:
                raise Undecidable("it loops")
        if not any(_VECTOR.match(line) for line in self._lines()):
            raise Undecidable("it loops")

    def _require_checks(self) -> None:
        """Requires every check to pass. Raises ``Undecidable`` for a check that is not linear."""
        for line in self._lines():
            if match := ALIGNMENT_CHECK.match(line):
                self._hold(match["bits"], "0")
                self.known[match["name"]] = True
            if match := BOUNDS_CHECK.match(line):
                self._require(self._ordered("ult", match["index"], match["length"], "i64"))
                self.known[match["name"]] = True

    def _hold(self, left: str, right: str) -> None:
        """Requires two numbers to be equal. Raises ``Undecidable`` unless each is the same for all threads."""
        first, second = self.ranges.before(left), self.ranges.before(right)
        if first is None or second is None:
            raise Undecidable("a test that differs from thread to thread")
        self.held.append(f"icmp eq i64 {first}, {second}")

    def _require_ways_on(self) -> None:
        """Requires, where linear, the tests that keep a thread from ending at once, and indices not to be negative."""
        ends = {
            block for block, body in self.body.items() if body[0] == "  ret void" or any(map(fails_an_assert, body))
        }
        for block in self._reached():
            body = self.body[block]
            match = BRANCH.match(body[-1].strip())
            if match and (match["yes"] in ends) != (match["no"] in ends):
                self._try(match["condition"], match["no"] in ends)
            for line in body:
                instruction = parse(line, block)
                compared = COMPARE.match(instruction.text)
                if compared and (compared["predicate"], compared["right"]) == ("slt", "0"):
                    self._try(instruction.name, False)

    def _try(self, condition: str, truth: bool) -> None:
        """Requires the linear ones of a condition's comparisons to have the values that make it ``truth``."""
        instruction = self.function.definitions.get(condition)
        if instruction is None or condition in self.known:
            return
        for part, is_so in conditions_of(instruction.text, truth):
            self._try(part, is_so)
        if match := COMPARE.match(instruction.text):
            try:
                if match["predicate"] == ("eq" if truth else "ne") and match["type"] == "i64":
                    self._hold(match["left"], match["right"])
                else:
                    self._require(self._compared(match, truth))
            except Undecidable:
                return
            self.known[condition] = truth

    def _learn_what_follows(self) -> None:
        """Marks tests as known that the requirements already decide, such as an author's test before an access."""
        for block in self._reached():
            for line in self.body[block]:
                instruction = parse(line, block)
                both = BINARY.match(instruction.text)
                if (
                    both
                    and both["operation"] == "and"
                    and all(self.known.get(both[side]) for side in ("left", "right"))
                ):
                    self.known[instruction.name] = True
                match = COMPARE.match(instruction.text)
                if match is None or instruction.name in self.known:
                    continue
                for truth in (True, False):
                    try:
                        if self.required.keys() >= set(self._compared(match, truth)):
                            self.known[instruction.name] = truth
                    except Undecidable:
                        pass

    def _require(self, lines: list[Line]) -> None:
        self.required.update(dict.fromkeys(lines))

    def _compared(self, match: re.Match[str], truth: bool) -> list[Line]:
        """Returns lines. If none is negative, the comparison is ``truth``. Raises ``Undecidable``."""
        if match["predicate"] not in INVERSE:
            raise Undecidable("a test for one position")
        predicate = match["predicate"] if truth else INVERSE[match["predicate"]]
        return self._ordered(predicate, match["left"], match["right"], match["type"])

    def _ordered(self, predicate: str, left: str, right: str, kind: str) -> list[Line]:
        if predicate[1] == "g":
            left, right = right, left
        smaller, larger = self.ranges.line(left, kind), self.ranges.line(right, kind)
        order = self._difference(larger, smaller, 0 if predicate.endswith("e") else 1)
        # Numbers that are not negative compare alike signed and unsigned. The larger is not, if the smaller is not.
        return [order] if predicate[0] == "s" else [smaller, order]

    def _difference(self, left: Line, right: Line, less: int) -> Line:
        return left[0] - right[0], self.ranges.word_difference(left[1], right[1], less)

    # The loop's body

    def _replace_known(self) -> None:
        """Replaces known conditions by constants and removes unreachable blocks."""
        self.body = {block: self.body[block] for block in self._reached()}
        for body in self.body.values():
            for place, line in enumerate(body):
                name = line.strip().partition(" = ")[0]
                if name in self.known:
                    body[place] = f"  {name} = icmp {'eq' if self.known[name] else 'ne'} i32 0, 0"
        targets = {block: self._targets(block) for block in self.body}
        for block, ways in targets.items():
            if len(ways) == 1:
                self.body[block][-1] = f"  br label {ways[0]}"
        for block, body in self.body.items():
            for place, line in enumerate(body):
                if " = phi " in line:
                    ways = [
                        f"[ {value}, {before} ]"
                        for before, value in parse(line, block).incoming().items()
                        for _ in range(targets.get(before, []).count(block))
                    ]
                    body[place] = f"{line.partition(' [ ')[0]} {', '.join(ways)}"

    def _refuse_other_calls(self) -> None:
        for line in self._lines():
            if _REFUSED.search(line):
                raise Undecidable("it has memory of its own, or is not simple")
            name = called_by(line)
            if name is not None and not _PURE.match(name):
                raise Undecidable("it makes a call that threads cannot make in step")

    def _targets(self, block: str) -> list[str]:
        """Returns a block's successors, given the known conditions."""
        match = BRANCH.match(self.body[block][-1].strip())
        if match and match["condition"] in self.known:
            return [match["yes"] if self.known[match["condition"]] else match["no"]]
        return re.findall(rf"label ({NAME})", self.body[block][-1])

    def _reached(self) -> list[str]:
        """Returns the reachable blocks in depth-first order."""
        found: dict[str, None] = {}
        pending = [next(iter(self.body))]
        while pending:
            block = pending.pop()
            if block not in found:
                found[block] = None
                pending += reversed(self._targets(block))
        return list(found)

    def _cyclic(self, start: str) -> bool:
        """Returns whether a loop is reachable from a block."""
        left, entered = set[str](), {start}
        pending = [(start, iter(self._targets(start)))]
        while pending:
            block, targets = pending[-1]
            target = next(targets, None)
            if target is None:
                pending.pop()
                entered.remove(block)
                left.add(block)
            elif target in entered:
                return True
            elif target not in left:
                entered.add(target)
                pending.append((target, iter(self._targets(target))))
        return False

    def _lines(self) -> list[str]:
        return [line for block in self._reached() for line in self.body[block]]

    # The function

    def _analysed(self) -> str:
        """Returns the body in a loop to the end of the blocks that tests before each iteration, for analysis."""
        return self._assembled(
            "  br label %oxide.test\noxide.test:\n"
            f"  {_P} = phi i64 [ 0, %oxide.prepare ], [ {_P}.next, %oxide.next ]\n"
            f"  {_P}.more = icmp slt i64 {_P}, %oxide.end.position\n"
            f"  br i1 {_P}.more, label {next(iter(self.body))}, label %oxide.after",
            f"  {_P}.next = add i64 {_P}, 1\n  br label %oxide.test",
            self._lines_of_body(""),
            "[ 0, %oxide.test ]",
        )

    def _function(self) -> str:
        """Returns the function and its metadata."""
        first = self.kernel.first_free_metadata()
        return self._assembled(
            whole_blocks(self.ranges, self.held, self.required)
            + "\n  br i1 %oxide.any, label %oxide.turn, label %oxide.after\noxide.turn:\n"
            "  %oxide.turns = phi i64 [ 0, %oxide.prepare ], [ %oxide.turns.next, %oxide.next ]\n"
            f"  {_P} = add i64 %oxide.from, %oxide.turns\n"
            f"  br label {next(iter(self.body))}",
            "  %oxide.turns.next = add nuw nsw i64 %oxide.turns, 1\n"
            "  %oxide.turns.more = icmp ult i64 %oxide.turns.next, %oxide.count\n"
            f"  br i1 %oxide.turns.more, label %oxide.turn, label %oxide.after, !llvm.loop !{first + 1}",
            self._lines_of_body(f", !llvm.access.group !{first}"),
            "[ %oxide.first, %oxide.prepare ], [ %oxide.to.block, %oxide.next ]",
        ) + (
            f"\n!{first} = distinct !{{}}\n!{first + 1} = distinct !{{!{first + 1}, !{first + 2}, !{first + 3}}}\n"
            f'!{first + 2} = !{{!"llvm.loop.parallel_accesses", !{first}}}\n'
            f'!{first + 3} = !{{!"llvm.loop.interleave.count", i32 1}}\n'
        )

    def _lines_of_body(self, access: str) -> str:
        """Returns the kernel's blocks. A return continues with the next position; accesses get the metadata."""
        lines = []
        for block, body in self.body.items():
            lines.append(f"{block[1:]}:")
            for line in body:
                line = "  br label %oxide.next" if line.strip() == "ret void" else line
                lines.append(line + access if _ACCESS.match(line) else line)
        return "\n".join(lines)

    def _assembled(self, before: str, after: str, body: str, rest: str) -> str:
        loads = "\n".join(self._loads())
        launch = "\n".join(
            f"  %oxide.{what}.at = getelementptr i32, ptr %oxide.launch, i64 {place}\n"
            f"  %oxide.{what} = load i32, ptr %oxide.{what}.at"
            for place, what in enumerate(f"{what}.{axis}" for what in ("grid", "block") for axis in "xyz")
        )
        return f"""
define void @{self.entry}(ptr %oxide.launch, i64 %oxide.first, i64 %oxide.end) {{
oxide.enter:
{launch}
  %oxide.planes = or i32 %oxide.grid.y, %oxide.grid.z
  %oxide.rows = or i32 %oxide.block.y, %oxide.block.z
  %oxide.beyond.x = or i32 %oxide.planes, %oxide.rows
  %oxide.flat = icmp eq i32 %oxide.beyond.x, 1
  br i1 %oxide.flat, label %oxide.prepare, label %oxide.after
oxide.prepare:
  %oxide.params.at = getelementptr i8, ptr %oxide.launch, i64 32
  %oxide.params = load ptr, ptr %oxide.params.at
{loads}
  %oxide.ntid = zext i32 %oxide.block.x to i64
  %oxide.first.position = mul i64 %oxide.first, %oxide.ntid
  %oxide.end.position = mul i64 %oxide.end, %oxide.ntid
{before}
{body}
oxide.next:
{after}
oxide.after:
  %oxide.rest = phi i64 [ %oxide.first, %oxide.enter ], {rest}
  call void @{CHECKED_BLOCKS}(ptr %oxide.launch, i64 %oxide.rest, i64 %oxide.end)
  ret void
}}
declare void @{CHECKED_BLOCKS}(ptr, i64, i64)
"""

    def _loads(self) -> list[str]:
        """Returns the loads of the kernel's arguments, named as its parameters."""
        named = self.kernel.parameters[1:]
        types = parameters.word_types(self.signature)
        if len(types) != len(named):
            raise Undecidable("a parameter is no machine word")
        structure = "{ " + ", ".join(types) + " }"
        lines = []
        for number, ((inner, name), kind) in enumerate(zip(named, types, strict=True)):
            lines.append(f"  %oxide.at.{number} = getelementptr {structure}, ptr %oxide.params, i32 0, i32 {number}")
            if inner == kind:
                lines.append(f"  {name} = load {kind}, ptr %oxide.at.{number}")
            else:
                lines.append(f"  %oxide.word.{number} = load {kind}, ptr %oxide.at.{number}")
                lines.append(f"  {name} = trunc {kind} %oxide.word.{number} to {inner}")
        return lines


def _register(match: re.Match[str]) -> str:
    """Returns a register's value in a one-dimensional launch. Raises ``Undecidable`` for a thread's coordinate."""
    name, _, axis = match["name"].partition(".")
    if axis in ("y", "z"):
        return f"add i32 {int(name.startswith('n'))}, 0"
    sizes = {"ntid": "%oxide.block.x", "nctaid": "%oxide.grid.x"}
    if name not in sizes:
        raise Undecidable("it uses the thread's coordinates by themselves")
    return f"add i32 {sizes[name]}, 0"


def _is_position(kernel: Function, left: str, right: str) -> bool:
    """Returns whether a sum is ``ctaid.x * ntid.x + tid.x``."""
    for product, thread in ((left, right), (right, left)):
        definition = kernel.definitions.get(product)
        match = BINARY.match(definition.text) if definition else None
        if match and match["operation"] == "mul" and _register_of(kernel, thread) == "tid.x":
            return {_register_of(kernel, match["left"]), _register_of(kernel, match["right"])} == {"ctaid.x", "ntid.x"}
    return False


def _register_of(kernel: Function, value: str) -> str | None:
    definition = kernel.definitions.get(value)
    if definition and (cast := CAST.match(definition.text)) and cast["operation"] != "trunc":
        definition = kernel.definitions.get(cast["value"])
    match = REGISTER.match(definition.text) if definition else None
    return match["name"] if match else None


def _unused(line: str, used: set[str]) -> bool:
    name, _, text = line.strip().partition(" = ")
    if not text or name in used:
        return False
    return any(pattern.match(parse(line, "").text) for pattern in (BINARY, CAST, REGISTER))
