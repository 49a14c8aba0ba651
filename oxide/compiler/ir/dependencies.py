"""The rule of ``thread.wait_dependencies()``: a thread makes the call before it accesses device memory or returns.

A kernel with the call may begin while the kernel before it in the stream still runs. Its work before the call must not
depend on the previous kernel. No thread may end without the call, because the next kernel in the stream relies on it.
Under this rule, a kernel that began early computes the same results. The rule is checked after all calls are inlined:
each path to an access or a return must contain a call of ``thread.wait_dependencies()``.
"""

from __future__ import annotations

import itertools

from oxide.compiler.primitives.effects import Effect, having
from oxide.compiler.source.source import located_in

from .llvm import host_machine, host_target, portable_module, run_passes
from .module import Function, reached
from .parser import parse
from .portable import PortableKernel
from .recognise import called
from .values import (
    Alloca,
    Atomic,
    Block,
    Call,
    Cast,
    Constant,
    GetElementPtr,
    Instruction,
    Load,
    Operation,
    Phi,
    Return,
    Select,
    Store,
    Value,
)

WAIT = "oxide.dependencies.wait"

_LOCAL = having(Effect.LOCAL)


def check_dependencies(kernel: PortableKernel) -> None:
    """Raises ``CompileError`` for a kernel that calls ``thread.wait_dependencies()`` on some paths only, or after an
    access to device memory."""
    if WAIT not in kernel.module.functions:
        return
    inlined = portable_module(kernel.text)
    run_passes(inlined, host_machine(host_target()), ("always_inliner", "sroa", "sccp", "simplify_cfg"))
    function = parse(str(inlined)).functions[kernel.symbol]
    early_blocks = _entered_early(function)
    for block in function.blocks.values():
        if block not in early_blocks:
            continue
        for instruction in itertools.takewhile(lambda each: not _waits(each), block.instructions):
            early = "returns" if isinstance(instruction, Return) else "accesses device memory"
            if not (isinstance(instruction, Return) or _reaches_device(instruction)):
                continue
            site = next(call for call in kernel.module.calls if call.called == WAIT).arguments[-1].integer or 0
            place = kernel.sites[site]
            raise located_in(
                place.file,
                place.line,
                f"kernel {kernel.name}: a thread {early} before thread.wait_dependencies(), on some path; each thread "
                "makes the call first, where the kernel begins; only shared memory, barriers and numbers come before",
            )


def _waits(instruction: Instruction) -> bool:
    return isinstance(instruction, Call) and instruction.called == WAIT


def _entered_early(function: Function) -> set[Block]:
    """Returns the blocks that some path from the entry reaches without a call that waits."""
    return set(reached(function.entry, lambda block: [] if any(map(_waits, block.instructions)) else block.successors))


def _reaches_device(instruction: Instruction) -> bool:
    """Returns whether an instruction may access memory that other kernels write."""
    match instruction:
        case Load(pointer=pointer) | Store(pointer=pointer):
            return _may_be_device(pointer)
        case Atomic():
            return _may_be_device(instruction.operands[0])
        case Call():
            symbol = called(instruction)
            if not symbol.startswith(_LOCAL):
                return not symbol.startswith("oxide.atomic.") or any(
                    each.type == "ptr" and _may_be_device(each) for each in instruction.arguments[:1]
                )
            if symbol.startswith("llvm.mem"):
                return any(each.type == "ptr" and _may_be_device(each) for each in instruction.arguments)
    return False


def _may_be_device(pointer: Value) -> bool:
    """Returns whether a pointer may lead to device memory. Stack variables, shared memory and constants are not device
    memory."""
    return any(
        not _sources(root)
        and not isinstance(root, Alloca | Constant)
        and not called(root).startswith(("oxide.shared.", "oxide.cluster.map"))
        for root in reached(pointer, _sources)
    )


def _sources(pointer: Value) -> list[Value]:
    """Returns the pointers that a pointer is computed from, or [] if it is computed from none."""
    match pointer:
        case GetElementPtr() | Cast(opcode="bitcast" | "addrspacecast") | Operation(opcode="freeze"):
            return pointer.operands[:1]
        case Phi():
            return pointer.operands[::2]
        case Select(left=left, right=right):
            return [left, right]
    return []
