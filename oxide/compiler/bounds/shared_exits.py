"""One exit for all failed checks of a kernel with very many checks.

A back end inlines into each check the code that fills the fault record. For 800 checks that is 30,000 lines of PTX, and
LLVM's time grows faster than the number of checks. In such a kernel, each check that ends its thread becomes a plain
comparison. If the comparison fails, the thread jumps to a block that all these checks share. The block gets the index,
the length and the site of the failed check, and fills the record.

A kernel with fewer checks keeps an exit for each: the shared block costs registers, because the indices and lengths of
all checks must arrive there in the same registers.
"""

from __future__ import annotations

from collections.abc import Iterator

from oxide.compiler.ir.module import Function, Module
from oxide.compiler.ir.recognise import bounds_check, is_bounds_check, out_of_bounds
from oxide.compiler.ir.values import Block, Branch, Call, Compare, Phi, Return, Value

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
