"""The rule of ``thread.wait_dependencies()``: a thread makes the call before it accesses device memory or returns.

A kernel with the call may begin while the kernel before it in the stream still runs. What it does before the call must
not depend on that kernel, and no thread may end without it: the next kernel in the stream counts on it. So the rule
makes an early begin invisible. It is checked where all calls are inlined: some call dominates each access and each
return.
"""

from __future__ import annotations

from oxide.compiler.source.source import located_in

from .control_flow import ControlFlow
from .llvm import host_machine, host_target, portable_module, run_passes
from .parser import parse
from .portable import PortableKernel
from .recognise import called
from .values import (
    Alloca,
    Atomic,
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

_LOCAL = (
    "oxide.in_bounds",
    "oxide.aligned",
    "oxide.register.",
    "oxide.shared.",
    "oxide.site.",
    "oxide.block.barrier",
    "oxide.warp.",
    "oxide.cluster.",
    "oxide.tensor.barrier.",
    "oxide.tensor.registers.",
    "oxide.dependencies.",
    "oxide.nanosleep",
    "oxide.clock64",
    "oxide.clear.",
    "__nv_",
    "llvm.",
)
"""Name prefixes of calls that access no device memory, or only at an address that an argument has."""


def check_dependencies(kernel: PortableKernel) -> None:
    """Raises ``CompileError`` for a kernel that calls ``thread.wait_dependencies()`` on some paths only, or after an
    access to device memory."""
    if WAIT not in kernel.module.functions:
        return
    inlined = portable_module(kernel.text)
    run_passes(inlined, host_machine(host_target()), ("always_inliner", "sroa"))
    function = parse(str(inlined)).functions[kernel.symbol]
    flow = ControlFlow(function)
    waits = [call for call in function.calls if call.called == WAIT]
    for block in function.blocks.values():
        if not flow.is_reachable(block):
            continue
        after = any(wait.block is not block and flow.dominates(wait.block, block) for wait in waits)
        for instruction in block.instructions:
            after = after or instruction in waits
            early = "returns" if isinstance(instruction, Return) else "accesses device memory"
            if after or not (isinstance(instruction, Return) or _reaches_device(instruction)):
                continue
            site = next(call for call in kernel.module.calls if call.called == WAIT).arguments[-1].integer or 0
            place = kernel.sites[site]
            raise located_in(
                place.file,
                place.line,
                f"kernel {kernel.name}: a thread {early} before thread.wait_dependencies(), on some path; each thread "
                "makes the call first, where the kernel begins; only shared memory, barriers and numbers come before",
            )


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
    """Returns whether a pointer may lead to device memory: to none of a stack variable, an array in shared memory and a
    constant."""
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
