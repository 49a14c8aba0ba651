"""Early exits: a thread leaves the kernel at a failed check, if no thread of the kernel can wait for another.

Each check gets its own branch: a failed check jumps to the end of its function, and after the branch the check's result
is ``true``. A failed assertion jumps there too. The branches are added before any pass that folds branches: whether a
thread continues must not depend on whether LLVM finds that the value of a failed read is unused.

If a thread may have to wait for another, all threads continue: a failed read yields zero, and a failed write does
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from oxide.compiler.ir.module import Function, Module
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.recognise import fails_an_assert, is_check
from oxide.compiler.ir.values import FALSE, TRUE, Atomic, Block, Branch, Call, Instruction, Load, Return, Store, number
from oxide.compiler.primitives.effects import CONVERGENT, Effect, having

ALONE = having(Effect.ALONE)


def leave_after_faults(module: Module, kernel: PortableKernel) -> None:
    """Adds early exits after failed checks to a kernel, unless its threads may wait for one another. The module must
    not be optimised yet."""
    functions = [function for function in module.reached(kernel.symbol) if not function.is_declaration]
    if not threads_may_wait(kernel, functions):
        for function in functions:
            _leave_after_faults(function)


def threads_may_wait(kernel: PortableKernel, functions: Iterable[Function]) -> bool:
    """Returns whether a thread of the kernel, whose code is ``functions``, may wait for another thread. Then no thread
    may leave early."""
    own = {function.symbol: function for function in functions}
    return (
        kernel.suspends
        or kernel.cooperative
        or any(_may_meet(instruction, own) for function in own.values() for instruction in function.instructions)
    )


def _may_meet(instruction: Instruction, own: Iterable[str]) -> bool:
    """Returns whether threads may wait for one another at the instruction, or may wait for the value that it writes."""
    match instruction:
        case Atomic():
            return True
        case Load(before=before) | Store(before=before) if before:
            return True
        case Call(called=name) if name not in own and (not name.startswith(ALONE) or name.startswith(CONVERGENT)):
            return True
    return any("addrspace(3)" in operand.typed for operand in instruction.operands)


def _leave_after_faults(function: Function) -> None:
    """Adds early exits to one function. A function that is not the kernel returns the code of a failed ``assert``, and
    its callers return it in turn."""
    checks = [each for each in function.instructions if is_check(each) or fails_an_assert(each)]
    if not checks:
        return
    function.replace({check: TRUE for check in checks if is_check(check)})
    leaves = Block("%oxide.leaves", [Return(None if function.head.endswith("void") else number(1, "i32"))])
    parts: dict[Instruction, str] = {}
    for part, check in enumerate(checks, 1):
        inside = check.block.instructions
        parts[inside[inside.index(check) + 1]] = f"%oxide.inside.{part}"
    for check, rest in zip(checks, function.split(parts), strict=True):
        check.block.append(Branch(rest, leaves, check if is_check(check) else FALSE))
    function.add(leaves)
