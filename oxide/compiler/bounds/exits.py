"""How a thread leaves a kernel at a failed check.

*Early exits.* If no thread of the kernel can wait for another, each check gets its own branch: a failed check jumps to
the end of its function, and after the branch the check's result is ``true``. A failed assertion jumps there too. The
branches are added before any pass that folds branches: whether a thread continues must not depend on whether LLVM finds
that the value of a failed read is unused. If a thread may have to wait for another, all threads continue: a failed read
yields zero, and a failed write does nothing.

*Shared exits.* A back end inlines into each check the code that fills the fault record. For 800 checks that is 30,000
lines of PTX, and LLVM's time grows faster than the number of checks. In a kernel with very many checks, each check that
ends its thread becomes a plain comparison. If the comparison fails, the thread jumps to a block that all these checks
share. The block gets the index, the length and the site of the failed check, and fills the record. A kernel with fewer
checks keeps an exit for each: the shared block costs registers, because the indices and lengths of all checks must
arrive there in the same registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from oxide.compiler.ir.module import Function, Module
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.recognise import bounds_check, fails_an_assert, is_bounds_check, is_check, out_of_bounds
from oxide.compiler.ir.values import (
    FALSE,
    TRUE,
    Atomic,
    Block,
    Branch,
    Call,
    Compare,
    Instruction,
    Load,
    Phi,
    Return,
    Store,
    Value,
    number,
)
from oxide.compiler.primitives.effects import CONVERGENT, Effect, having

# Early exits

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


# Shared exits

MANY_CHECKS = 100


def share_exits(module: Module) -> Module:
    """Returns the module with one exit for the checks of each function that has more than ``MANY_CHECKS`` of them.
    Returns the module itself if it has no such function."""
    found = [function.symbol for function in module.defined if sum(1 for _ in _ending(function)) > MANY_CHECKS]
    if not found:
        return module
    module = module.copy()
    weights = module.add_metadata('!{!"branch_weights", i32 2000, i32 1}')
    for symbol in found:
        function = module.functions[symbol]
        for axes in (1, 2, 3):
            checks = [check for check in _ending(function) if check.called == bounds_check(axes)]
            if checks:
                _share(module, function, axes, checks, weights)
    return module


def _ending(function: Function) -> Iterator[Call]:
    """Yields the bounds checks that are followed by a branch to a block that only returns."""
    for block in function.blocks.values():
        match block.instructions:
            case [*_, Call() as check, Branch(condition=condition, no=Block(instructions=[Return(operands=[])]))] if (
                condition is check and is_bounds_check(check)
            ):
                yield check


def _share(module: Module, function: Function, axes: int, checks: list[Call], weights: str) -> None:
    """Replaces checks of accesses with ``axes`` axes by comparisons, and sends the threads that fail them to a new
    block, which fills the fault record."""
    context, *types = (argument.type for argument in checks[0].arguments)
    outside = Block(f"%oxide.outside.{axes}")
    for place, kind in enumerate(types, 1):
        incoming = [(check.arguments[place], check.block) for check in checks]
        outside.append(Phi(f"%oxide.outside.{axes}.{place}", kind, incoming))
    callee = module.declare("void", out_of_bounds(axes), [context, *types])
    outside.append(Call("", "void", callee, [checks[0].arguments[0], *outside.phis]))
    outside.append(Branch(checks[0].block.successors[1]))
    compared: dict[Value, Value] = {}
    for check in checks:
        _, index, length, *_ = check.arguments
        comparison = compared[check] = Compare(check.name, "ult", index, length)
        branch = Branch(check.block.successors[0], outside, comparison)
        branch.metadata["!prof"] = weights
        check.block.instructions[-2:] = []
        check.block.extend((comparison, branch))
    function.replace(compared)
    function.add(outside)
