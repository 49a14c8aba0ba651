"""Early exits: a thread leaves the kernel at a failed check, if no thread of the kernel can wait for another.

Each check gets its own branch: a failed check jumps to the end of the kernel, and after the branch the check's result
is ``true``. A failed assertion jumps there too. The branches are added once the functions are inlined and the variables
are SSA values, before any pass that folds branches: whether a thread continues must not depend on whether LLVM finds
that the value which it would have read is unused.

If a thread may have to wait for another, all threads continue: a failed access reads zero and writes nothing.
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
"""Name prefixes of calls that affect one thread only: none waits, and none has an effect that another thread sees."""

CONVERGENT = ("llvm.nvvm.", "llvm.coro.")
"""Name prefixes of convergent calls among ``ALONE``: threads make these together."""

_LEAVES = "%oxide.leaves"
_DEFINITION = re.compile(r'^define (?P<head>[^@\n]*)@"?(?P<name>[-\w$.]+)"?\(')
_INCOMING_BLOCK = re.compile(rf", (?P<block>{NAME}) \]")
_SHARED = re.compile(r"\b(?:atomicrmw|cmpxchg|fence|volatile|atomic|addrspace\(3\))")


def leaving_after_a_fault(text: str, kernel: PortableKernel) -> str:
    """Returns the module, not optimised yet, with early exits after failed checks; unchanged if its threads may wait
    for one another."""
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
    """Returns whether a thread of the kernel with code ``text`` may wait for another: then none may leave early."""
    if kernel.suspends or kernel.cooperative:
        return True
    lines = text.split("\n")
    # A recursive function is not inlined; its body is searched like the kernel's.
    own = {match["name"] for line in lines if (match := _DEFINITION.match(line))}
    return any(_may_meet(line, own) for line in lines if line.startswith("  "))


def _may_meet(line: str, own: set[str]) -> bool:
    """Returns whether threads may wait for one another at the instruction, or for the value that it writes."""
    if _SHARED.search(line):
        return True
    name = called_by(line)
    return name is not None and name not in own and (not name.startswith(ALONE) or name.startswith(CONVERGENT))


def _leaving(function: list[str]) -> list[str]:
    """Returns one function's lines with early exits. A function that is not the kernel returns the code of a failed
    ``assert``, which its callers return in turn."""
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
