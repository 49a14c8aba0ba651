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
from .module import Function
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
    found, open_ends = {function.entry}, [function.entry]
    while open_ends:
        block = open_ends.pop()
        if not any(map(_waits, block.instructions)):
            open_ends += [target for target in block.successors if target not in found]
            found.update(block.successors)
    return found


def _reaches_device(instruction: Instruction) -> bool:
    """Returns whether an instruction may access memory that other kernels write."""
    match instruction:
        case Load(pointer=pointer) | Store(pointer=pointer):
            return _may_be_device(pointer, set())
        case Atomic():
            return _may_be_device(instruction.operands[0], set())
        case Call():
            symbol = called(instruction)
            if not symbol.startswith(_LOCAL):
                return not symbol.startswith("oxide.atomic.") or any(
                    each.type == "ptr" and _may_be_device(each, set()) for each in instruction.arguments[:1]
                )
            if symbol.startswith("llvm.mem"):
                return any(each.type == "ptr" and _may_be_device(each, set()) for each in instruction.arguments)
    return False


def _may_be_device(pointer: Value, seen: set[Value]) -> bool:
    """Returns whether a pointer may lead to device memory. Stack variables, shared memory and constants are not device
    memory."""
    if pointer in seen:
        return False
    seen.add(pointer)
    match pointer:
        case Alloca() | Constant():
            return False
        case GetElementPtr(pointer=base):
            return _may_be_device(base, seen)
        case Cast(opcode="bitcast" | "addrspacecast") | Operation(opcode="freeze"):
            return _may_be_device(pointer.operands[0], seen)
        case Phi():
            return any(_may_be_device(each, seen) for each, _ in pointer.incoming)
        case Select(left=left, right=right):
            return _may_be_device(left, seen) or _may_be_device(right, seen)
        case Call():
            return not called(pointer).startswith(("oxide.shared.", "oxide.cluster.map"))
    return True
