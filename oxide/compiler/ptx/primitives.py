"""Operations of a block's threads on a GPU: most primitives of ``ir/primitives.py`` become one or two instructions."""

from __future__ import annotations

from collections.abc import Collection

from oxide.compiler.ir import reduction_operators
from oxide.compiler.ir.primitives import GRID_BARRIER, LEAST_ALIGNMENT, SharedMemory


def definitions(symbols: Collection[str], shared: SharedMemory, arch: str) -> str:
    """Returns definitions of the primitives for a kernel with these symbols. Unused definitions are dropped before
    instruction selection."""
    texts = [_shared(shared), _nanosleep(arch), _dependencies(arch), _INSTRUCTIONS]
    if "oxide.unanimous" in symbols:
        texts.append(_UNANIMOUS)
    if any(symbol.startswith("oxide.block.") for symbol in symbols):
        texts.append(_BARRIERS)
    if GRID_BARRIER in symbols:
        texts.append(_GRID_BARRIER)
    if any(symbol.startswith("oxide.warp.") for symbol in symbols):
        texts += [_SHUFFLES, _VOTES, _MATCHES, _WARP_SYNC, _ELECT if _capability(arch) >= 90 else _FIRST]
        texts.append("declare i32 @llvm.cttz.i32(i32, i1)")
    found = reduction_operators.used(symbols)
    return "\n".join([*texts, *(_reduction(*reduction, arch) for reduction in found)])


def _shared(shared: SharedMemory) -> str:
    """Defines the arrays in static shared memory if they fit there, else at offsets in dynamic shared memory."""
    before = shared.beyond_static
    texts = []
    if before:
        texts += [_in_dynamic(f"static.{number}", offset) for number, (offset, _, _) in enumerate(shared.arrays)]
    else:
        texts += [
            f"@oxide.shared.memory.{number} = internal addrspace(3) global [{size} x i8] poison, align {alignment}\n"
            f"define ptr @oxide.shared.static.{number}(ptr %context) alwaysinline {{\n"
            f"  ret ptr addrspacecast (ptr addrspace(3) @oxide.shared.memory.{number} to ptr)\n}}"
            for number, (_, size, alignment) in enumerate(shared.arrays)
        ]
    if shared.dynamic:
        texts += [_in_dynamic("dynamic", before), _DYNAMIC_BYTES.replace("<before>", str(before))]
    if shared.dynamic or before:
        alignment = shared.alignment if before else LEAST_ALIGNMENT
        texts.append(f"@oxide_dynamic_shared = external addrspace(3) global [0 x i8], align {alignment}")
    return "\n".join(texts)


def _in_dynamic(name: str, offset: int) -> str:
    return (
        f"define ptr @oxide.shared.{name}(ptr %context) alwaysinline {{\n"
        f"  %at = getelementptr i8, ptr addrspace(3) @oxide_dynamic_shared, i64 {offset}\n"
        "  %generic = addrspacecast ptr addrspace(3) %at to ptr\n  ret ptr %generic\n}"
    )


_DYNAMIC_BYTES = """
define i64 @oxide.shared.dynamic.bytes(ptr %context) alwaysinline {
  %narrow = call i32 asm "mov.u32 $0, %dynamic_smem_size;", "=r"()
  %given = sub i32 %narrow, <before>
  %bytes = zext i32 %given to i64
  ret i64 %bytes
}
"""

_UNANIMOUS = """
declare i32 @llvm.nvvm.activemask() convergent
declare i1 @llvm.nvvm.vote.all.sync(i32, i1) convergent
define i1 @oxide.unanimous(i1 %condition) alwaysinline convergent {
  %threads = call i32 @llvm.nvvm.activemask() convergent
  %all = call i1 @llvm.nvvm.vote.all.sync(i32 %threads, i1 %condition) convergent
  ret i1 %all
}
"""


def _nanosleep(arch: str) -> str:
    """Defines the sleep: one instruction from compute capability 7.0 on, a no-op on older GPUs."""
    rests = 'call void asm sideeffect "nanosleep.u32 $0;", "r"(i32 %nanoseconds)' if _capability(arch) >= 70 else ""
    return f"define void @oxide.nanosleep(i32 %nanoseconds) alwaysinline {{\n  {rests}\n  ret void\n}}"


def _dependencies(arch: str) -> str:
    """Defines the two functions of programmatic dependent launch. They are no-ops before compute capability 9.0, where
    a kernel always begins after the previous kernel has ended."""
    texts = []
    for name, instruction in (("wait", "wait"), ("launch", "launch_dependents")):
        text = f'call void asm sideeffect "griddepcontrol.{instruction};", "~{{memory}}"()'
        made = text if _capability(arch) >= 90 else ""
        texts.append(f"define void @oxide.dependencies.{name}(i32 %site) alwaysinline {{\n  {made}\n  ret void\n}}")
    return "\n".join(texts)


_INSTRUCTIONS = """
define void @oxide.breakpoint() alwaysinline {
  call void asm sideeffect "brkpt;", ""()
  ret void
}
"""

_BARRIERS = """
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) convergent
declare i32 @llvm.nvvm.barrier0.popc(i32) convergent
declare i32 @llvm.nvvm.barrier0.and(i32) convergent
declare i32 @llvm.nvvm.barrier0.or(i32) convergent
define void @oxide.block.barrier(ptr %context, i32 %site) alwaysinline convergent {
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0) convergent
  ret void
}
define i32 @oxide.block.barrier.count(ptr %context, i1 %condition, i32 %site) alwaysinline convergent {
  %wide = zext i1 %condition to i32
  %count = call i32 @llvm.nvvm.barrier0.popc(i32 %wide) convergent
  ret i32 %count
}
define i1 @oxide.block.barrier.and(ptr %context, i1 %condition, i32 %site) alwaysinline convergent {
  %wide = zext i1 %condition to i32
  %result = call i32 @llvm.nvvm.barrier0.and(i32 %wide) convergent
  %bit = icmp ne i32 %result, 0
  ret i1 %bit
}
define i1 @oxide.block.barrier.or(ptr %context, i1 %condition, i32 %site) alwaysinline convergent {
  %wide = zext i1 %condition to i32
  %result = call i32 @llvm.nvvm.barrier0.or(i32 %wide) convergent
  %bit = icmp ne i32 %result, 0
  ret i1 %bit
}
"""

# The algorithm of cooperative groups, on the workspace that the driver gives each cooperative launch, also in graphs.
# The workspace's address is in %envreg1 and 2, and the barrier is its second word. The threads of a block first meet.
# The first thread adds 1 to the word; in the first block it adds the number that makes the total 2**31. When the word's
# highest bit has changed, all blocks have arrived. The word is then ready for the next barrier without clearing. The
# fences extend the order that the block's barriers establish to the other blocks.
_GRID_BARRIER = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.tid.y()
declare i32 @llvm.nvvm.read.ptx.sreg.tid.z()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.z()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.y()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.z()
declare i32 @llvm.nvvm.read.ptx.sreg.envreg1()
declare i32 @llvm.nvvm.read.ptx.sreg.envreg2()
define void @oxide.block.grid_barrier(ptr %context, i32 %site) alwaysinline convergent {
entry:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0) convergent
  %x = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %y = call i32 @llvm.nvvm.read.ptx.sreg.tid.y()
  %z = call i32 @llvm.nvvm.read.ptx.sreg.tid.z()
  %xy = or i32 %x, %y
  %xyz = or i32 %xy, %z
  %first = icmp eq i32 %xyz, 0
  br i1 %first, label %arrive, label %meet
arrive:
  %high = call i32 @llvm.nvvm.read.ptx.sreg.envreg1()
  %low = call i32 @llvm.nvvm.read.ptx.sreg.envreg2()
  %high.wide = zext i32 %high to i64
  %high.placed = shl i64 %high.wide, 32
  %low.wide = zext i32 %low to i64
  %address = or i64 %high.placed, %low.wide
  %workspace = inttoptr i64 %address to ptr addrspace(1)
  %word = getelementptr i8, ptr addrspace(1) %workspace, i64 4
  %bx = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %by = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
  %bz = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.z()
  %gx = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %gy = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.y()
  %gz = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.z()
  %plane = mul i32 %gx, %gy
  %blocks = mul i32 %plane, %gz
  %rest = sub i32 -2147483647, %blocks
  %bxy = or i32 %bx, %by
  %bxyz = or i32 %bxy, %bz
  %leads = icmp eq i32 %bxyz, 0
  %share = select i1 %leads, i32 %rest, i32 1
  fence syncscope("device") acq_rel
  %before = atomicrmw add ptr addrspace(1) %word, i32 %share syncscope("device") monotonic
  br label %poll
poll:
  %now = load atomic i32, ptr addrspace(1) %word syncscope("device") monotonic, align 4
  %changed = xor i32 %before, %now
  %same = icmp sge i32 %changed, 0
  br i1 %same, label %poll, label %passed
passed:
  fence syncscope("device") acq_rel
  br label %meet
meet:
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0) convergent
  ret void
}
"""

_SHUFFLES = "\n".join(
    f"""
declare i32 @llvm.nvvm.shfl.sync.{how}.i32(i32, i32, i32, i32) convergent
define i32 @oxide.warp.shuffle.{how}.i32(ptr %context, i32 %mask, i32 %value, i32 %lane, i32 %site)
    alwaysinline convergent {{
  %moved = call i32 @llvm.nvvm.shfl.sync.{how}.i32(i32 %mask, i32 %value, i32 %lane, i32 {clamp}) convergent
  ret i32 %moved
}}
define i64 @oxide.warp.shuffle.{how}.i64(ptr %context, i32 %mask, i64 %value, i32 %lane, i32 %site)
    alwaysinline convergent {{
  %low = trunc i64 %value to i32
  %shifted = lshr i64 %value, 32
  %high = trunc i64 %shifted to i32
  %low.moved = call i32 @llvm.nvvm.shfl.sync.{how}.i32(i32 %mask, i32 %low, i32 %lane, i32 {clamp}) convergent
  %high.moved = call i32 @llvm.nvvm.shfl.sync.{how}.i32(i32 %mask, i32 %high, i32 %lane, i32 {clamp}) convergent
  %low.wide = zext i32 %low.moved to i64
  %high.wide = zext i32 %high.moved to i64
  %high.placed = shl i64 %high.wide, 32
  %moved = or i64 %high.placed, %low.wide
  ret i64 %moved
}}"""
    for how, clamp in (("idx", 31), ("up", 0), ("down", 31), ("bfly", 31))
)

_VOTES = "\n".join(
    f"""
declare {kind} @llvm.nvvm.vote.{how}.sync(i32, i1) convergent
define {kind} @oxide.warp.{how}(ptr %context, i32 %mask, i1 %condition, i32 %site) alwaysinline convergent {{
  %result = call {kind} @llvm.nvvm.vote.{how}.sync(i32 %mask, i1 %condition) convergent
  ret {kind} %result
}}"""
    for how, kind in (("all", "i1"), ("any", "i1"), ("ballot", "i32"))
)

_ELECT = """
declare { i32, i1 } @llvm.nvvm.elect.sync(i32) convergent
define i1 @oxide.warp.elect(ptr %context, i32 %mask, i32 %site) alwaysinline convergent {
  %both = call { i32, i1 } @llvm.nvvm.elect.sync(i32 %mask) convergent
  %elected = extractvalue { i32, i1 } %both, 1
  ret i1 %elected
}
"""

_FIRST = """
define i1 @oxide.warp.elect(ptr %context, i32 %mask, i32 %site) alwaysinline convergent {
  %lanes = call i32 @llvm.nvvm.vote.ballot.sync(i32 %mask, i1 true) convergent
  %first = call i32 @llvm.cttz.i32(i32 %lanes, i1 false)
  %lane = call i32 @oxide.register.laneid(ptr %context)
  %elected = icmp eq i32 %lane, %first
  ret i1 %elected
}
"""

_MATCHES = "\n".join(
    f"""
declare i32 @llvm.nvvm.match.any.sync.{kind}(i32, {kind}) convergent
declare {{ i32, i1 }} @llvm.nvvm.match.all.sync.{kind}p(i32, {kind}) convergent
define i32 @oxide.warp.match.any.{kind}(ptr %context, i32 %mask, {kind} %value, i32 %site) alwaysinline convergent {{
  %lanes = call i32 @llvm.nvvm.match.any.sync.{kind}(i32 %mask, {kind} %value) convergent
  ret i32 %lanes
}}
define i32 @oxide.warp.match.all.{kind}(ptr %context, i32 %mask, {kind} %value, i32 %site) alwaysinline convergent {{
  %both = call {{ i32, i1 }} @llvm.nvvm.match.all.sync.{kind}p(i32 %mask, {kind} %value) convergent
  %lanes = extractvalue {{ i32, i1 }} %both, 0
  ret i32 %lanes
}}"""
    for kind in ("i32", "i64")
)

_WARP_SYNC = """
declare void @llvm.nvvm.bar.warp.sync(i32) convergent
declare i32 @llvm.nvvm.activemask() convergent
define void @oxide.warp.sync(ptr %context, i32 %mask, i32 %site) alwaysinline convergent {
  call void @llvm.nvvm.bar.warp.sync(i32 %mask) convergent
  ret void
}
define i32 @oxide.warp.active_mask(ptr %context, i32 %site) alwaysinline convergent {
  %lanes = call i32 @llvm.nvvm.activemask() convergent
  ret i32 %lanes
}
"""


def _reduction(symbol: str, operator: str, kind: str, arch: str) -> str:
    """Defines a reduction. A reduction of 32-bit integers is one instruction from sm_80 on. Any other is a butterfly of
    shuffles if the mask has all lanes, and one shuffle for each lane in the mask if not."""
    name, bits = reduction_operators.llvm_type(kind), reduction_operators.bits_type(kind)
    head = (
        f"{reduction_operators.declaration(operator, kind)}\n"
        f"define {name} @{symbol}(ptr %context, i32 %mask, {name} %value, i32 %site) alwaysinline convergent {{\n"
    )
    if kind == "i32" and _capability(arch) >= 80:
        redux = f"@llvm.nvvm.redux.sync.{operator}"
        return (
            f"declare i32 {redux}(i32, i32) convergent\n{head}"
            f"  %result = call i32 {redux}(i32 %value, i32 %mask) convergent\n  ret i32 %result\n}}"
        )

    def moved(how: str, result: str, value: str, lane: str) -> list[str]:
        call = f"call {bits} @oxide.warp.shuffle.{how}.{bits}(ptr %context, i32 %live, {bits} {result}.bits, "
        return [
            f"  {result}.bits = bitcast {name} {value} to {bits}",
            f"  {result}.moved = {call}i32 {lane}, i32 %site) convergent",
            f"  {result} = bitcast {bits} {result}.moved to {name}",
        ]

    butterfly: list[str] = []
    value = "%value"
    for step in (16, 8, 4, 2, 1):
        butterfly += moved("bfly", f"%other.{step}", value, str(step))
        butterfly.append(reduction_operators.combine(operator, kind, f"%sum.{step}", value, f"%other.{step}"))
        value = f"%sum.{step}"
    return "\n".join(
        [
            head.rstrip("\n"),
            "entry:",
            # The mask without the lanes that a short warp lacks, from which a butterfly would read undefined values.
            "  %live = call i32 @oxide.warp.ballot(ptr %context, i32 %mask, i1 true, i32 %site) convergent",
            "  %full = icmp eq i32 %live, -1",
            "  br i1 %full, label %butterfly, label %first",
            "butterfly:",
            *butterfly,
            f"  ret {name} {value}",
            "first:",
            "  %first.lane = call i32 @llvm.cttz.i32(i32 %live, i1 false)",
            *moved("idx", "%first.value", "%value", "%first.lane"),
            "  %first.less = sub i32 %live, 1",
            "  %first.rest = and i32 %live, %first.less",
            "  br label %next",
            "next:",
            "  %left = phi i32 [ %first.rest, %first ], [ %rest, %more ]",
            f"  %sum = phi {name} [ %first.value, %first ], [ %sum.more, %more ]",
            "  %done = icmp eq i32 %left, 0",
            "  br i1 %done, label %finish, label %more",
            "more:",
            "  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 false)",
            *moved("idx", "%next.value", "%value", "%lane"),
            reduction_operators.combine(operator, kind, "%sum.more", "%sum", "%next.value"),
            "  %less = sub i32 %left, 1",
            "  %rest = and i32 %left, %less",
            "  br label %next",
            "finish:",
            f"  ret {name} %sum",
            "}",
        ]
    )


def _capability(arch: str) -> int:
    return int("".join(letter for letter in arch if letter.isdigit()))
