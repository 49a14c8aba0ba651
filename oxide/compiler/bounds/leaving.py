"""What a fault does to its thread: it leaves the kernel there, wherever no thread of the kernel can wait for another.

Each check gets a branch of its own, to the end of the kernel where it fails, and behind it its result is ``true``; a
failed assertion ends there too. This is written into the kernel once its functions are inlined and its variables are
values, before any pass that folds branches: whether a thread goes on must not depend on whether LLVM finds that nothing
needs what it would have read.

Where a thread may have to wait for another, all go on: an access that failed reads zero and writes nothing.
"""

from __future__ import annotations

import re

from oxide.compiler.ir.patterns import CHECK_RESULT, called_by, fails_an_assert
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.ssa import LABEL, NAME, renamed

ALONE = (
    "oxide.in_bounds",
    "oxide.aligned",
    "oxide.assertion_failed",
    "oxide.register.",
    "oxide.f16.",
    "oxide.bf16.",
    "oxide.print.",
    "oxide.clock64",
    "oxide.nanosleep",
    "oxide.stop.",
    "oxide.held.local",
    "__nv_",
    "llvm.",
)
"""How the names of calls begin that a thread makes by itself: none waits, and none is for another thread to see."""

CONVERGENT = ("llvm.nvvm.", "llvm.coro.")
"""How the names of those among them begin that threads make together nevertheless."""

_LEAVES = "%oxide.leaves"
_DEFINITION = re.compile(r'^define (?P<head>[^@\n]*)@"?(?P<name>[-\w$.]+)"?\(')
_INCOMING_BLOCK = re.compile(rf", (?P<block>{NAME}) \]")
_SHARED = re.compile(r"\b(?:atomicrmw|cmpxchg|fence|volatile|atomic|addrspace\(3\))")


def leaving_after_a_fault(text: str, kernel: PortableKernel) -> str:
    """The module, in which nothing was optimised yet, with its threads leaving the kernel behind a check that fails; as
    it is if they may wait for one another."""
    if threads_may_wait(kernel, text):
        return text
    result: list[str] = []
    function: list[str] = []
    for line in text.split("\n"):
        (function if function or line.startswith("define ") else result).append(line)
        if function and line == "}":
            result += _leaving(function)
            function = []
    return "\n".join(result)


def threads_may_wait(kernel: PortableKernel, text: str) -> bool:
    """Whether a thread of the kernel, whose code is ``text``, may wait for another: none may leave early then."""
    if kernel.suspends or kernel.cooperative:
        return True
    lines = text.split("\n")
    # A function that calls itself stays one; it is looked at like the kernel.
    own = {match["name"] for line in lines if (match := _DEFINITION.match(line))}
    return any(_may_meet(line, own) for line in lines if line.startswith("  "))


def _may_meet(line: str, own: set[str]) -> bool:
    """Whether threads may wait for one another by the instruction, or for what it writes."""
    if _SHARED.search(line):
        return True
    name = called_by(line)
    return name is not None and name not in own and (not name.startswith(ALONE) or name.startswith(CONVERGENT))


def _leaving(function: list[str]) -> list[str]:
    """The lines of one function. One that is not the kernel returns what a failed ``assert`` does, which its callers
    return in their turn."""
    passed = {match["name"]: "true" for line in function if (match := CHECK_RESULT.match(line))}
    if not passed and not any(map(fails_an_assert, function)):
        return function
    lines: list[str] = []
    last_parts: dict[str, str] = {}
    block, parts = "", 0
    for line in function:
        if label := LABEL.match(line):
            block = f"%{label['name']}"
        match = CHECK_RESULT.match(line)
        if match is None and not fails_an_assert(line):
            lines.append(renamed(line, passed) if "i1 " in line else line)
            continue
        parts += 1
        rest = last_parts[block] = f"%oxide.inside.{parts}"
        inside = match["name"] if match else "false"
        lines += [line, f"  br i1 {inside}, label {rest}, label {_LEAVES}", f"{rest[1:]}:"]
    for place, line in enumerate(lines):
        if " = phi " in line:
            lines[place] = _INCOMING_BLOCK.sub(
                lambda match: f", {last_parts.get(match['block'], match['block'])} ]", line
            )
    definition = _DEFINITION.match(function[0])
    assert definition is not None
    returned = "ret void" if definition["head"].endswith("void ") else "ret i32 1"
    return [*lines[:-1], f"{_LEAVES[1:]}:", f"  {returned}", lines[-1]]
