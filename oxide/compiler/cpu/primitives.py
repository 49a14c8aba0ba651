"""The CPU's primitives as LLVM IR: a thread's context, registers and shared memory.

The context is a structure on the stack, which LLVM promotes to registers once everything is inlined. Each call that
runs a range of blocks allocates shared memory once. The blocks of the range use this memory one after another.
"""

from __future__ import annotations

from oxide.compiler.ir.primitives import SharedMemory
from oxide.compiler.primitives import threads

REGISTERS = ("tid", "ctaid", "ntid", "nctaid")

CONTEXT = "{ [3 x i32], [3 x i32], [3 x i32], [3 x i32], ptr, ptr, i64, ptr }"
"""The fields: ``REGISTERS``, the fault record, the block's shared memory, the size of its dynamic part in bytes, and
the block's state, for kernels whose threads wait for one another (``coroutines``)."""

RECORD_FIELD, SHARED_FIELD, DYNAMIC_FIELD, BLOCK_FIELD = 4, 5, 6, 7

ALIGNMENT = 64
"""The alignment of the threads' frames, and the least alignment of a block's shared memory, in bytes."""

ROOM_BYTES = 1 << 15
"""The size of a stack buffer. Each call that runs a range of blocks has two: for shared memory, and for the threads'
frames."""


def definitions(shared: SharedMemory) -> str:
    """Returns the definitions of the registers, the fault record and shared memory, all read from the context."""
    texts = [
        f"define i32 @oxide.register.{register}.{axis}(ptr %context) alwaysinline {{\n"
        f"  %at = getelementptr {CONTEXT}, ptr %context, i32 0, i32 {field}, i32 {place}\n"
        "  %value = load i32, ptr %at\n  ret i32 %value\n}"
        for field, register in enumerate(REGISTERS)
        for place, axis in enumerate("xyz")
    ]
    texts += [_field("oxide.fault_record", RECORD_FIELD, "ptr"), _LANE, _UNANIMOUS, _BREAKPOINT]
    texts += [entry.cpu_text for entry in threads.WAITS]
    texts += [_array(f"static.{number}", offset) for number, (offset, _, _) in enumerate(shared.arrays)]
    if shared.dynamic:
        texts.append(_array("dynamic", static_bytes(shared)))
        texts.append(_field("oxide.shared.dynamic.bytes", DYNAMIC_FIELD, "i64"))
    return "\n".join(texts)


_UNANIMOUS = "define i1 @oxide.unanimous(i1 %condition) alwaysinline {\n  ret i1 false\n}"
"""Defines ``oxide.unanimous`` as false, so that of a loop's two versions only the version without alignment runs. A CPU
loads neighbouring elements as fast without alignment, and LLVM vectorises this version."""

WORD = "define i32 @oxide.word(i32 %word) alwaysinline {\n  ret i32 %word\n}"
"""Defines ``oxide.word``. A CPU's vectors multiply 32 bits by 32 as LLVM widens them."""


WIDE_DIVISIONS = "\n".join(
    f"""define i128 @{name}(i128 %a, i128 %b) {{
  br label %bit
bit:
  %place = phi i128 [ 127, %0 ], [ %next, %bit ]
  %quotient = phi i128 [ 0, %0 ], [ %longer, %bit ]
  %rest = phi i128 [ 0, %0 ], [ %less, %bit ]
  %from = lshr i128 %a, %place
  %lowest = and i128 %from, 1
  %twice = shl i128 %rest, 1
  %more = or i128 %twice, %lowest
  %carried = icmp slt i128 %rest, 0
  %reaches = icmp uge i128 %more, %b
  %goes = or i1 %carried, %reaches
  %part = select i1 %goes, i128 %b, i128 0
  %less = sub i128 %more, %part
  %one = zext i1 %goes to i128
  %shifted = shl i128 %quotient, 1
  %longer = or i128 %shifted, %one
  %next = add i128 %place, -1
  %last = icmp eq i128 %place, 0
  br i1 %last, label %end, label %bit
end:
  ret i128 {result}
}}"""
    for name, result in (("__udivti3", "%longer"), ("__umodti3", "%less"))
)
"""Divisions of 128 bits, one bit at a time. LLVM sometimes emits such a division, for the upper half of a product in a
loop. It then calls a function of the compiler's runtime library, which the process may not have loaded."""


def alignment(shared: SharedMemory) -> int:
    """Returns the alignment of a block's shared memory."""
    return max(ALIGNMENT, shared.alignment)


def static_bytes(shared: SharedMemory) -> int:
    """Returns the offset at which dynamic shared memory begins."""
    return -(-shared.total // ALIGNMENT) * ALIGNMENT


def _field(name: str, field: int, kind: str) -> str:
    return (
        f"define {kind} @{name}(ptr %context) alwaysinline {{\n"
        f"  %at = getelementptr {CONTEXT}, ptr %context, i32 0, i32 {field}\n"
        f"  %value = load {kind}, ptr %at\n  ret {kind} %value\n}}"
    )


def _array(name: str, offset: int) -> str:
    """Returns the definition of the function that returns the address of a shared array."""
    return (
        f"define ptr @oxide.shared.{name}(ptr %context) alwaysinline {{\n"
        f"  %at = getelementptr {CONTEXT}, ptr %context, i32 0, i32 {SHARED_FIELD}\n"
        f"  %memory = load ptr, ptr %at\n  %array = getelementptr i8, ptr %memory, i64 {offset}\n  ret ptr %array\n}}"
    )


_LANE = """
define i32 @oxide.linear_thread(ptr %context) alwaysinline {
  %x = call i32 @oxide.register.tid.x(ptr %context)
  %y = call i32 @oxide.register.tid.y(ptr %context)
  %z = call i32 @oxide.register.tid.z(ptr %context)
  %nx = call i32 @oxide.register.ntid.x(ptr %context)
  %ny = call i32 @oxide.register.ntid.y(ptr %context)
  %planes = mul i32 %z, %ny
  %rows = add i32 %planes, %y
  %before = mul i32 %rows, %nx
  %linear = add i32 %before, %x
  ret i32 %linear
}
define i32 @oxide.register.laneid(ptr %context) alwaysinline {
  %linear = call i32 @oxide.linear_thread(ptr %context)
  %lane = and i32 %linear, 31
  ret i32 %lane
}
define i32 @oxide.register.warpsize(ptr %context) alwaysinline {
  ret i32 32
}
"""

_BREAKPOINT = """
define void @oxide.breakpoint() alwaysinline {
  ret void
}
"""
"""A no-op on the CPU, where no debugger can stop a kernel's threads."""

ALLOCATOR = f"""
declare noalias ptr @malloc(i64)
declare void @free(ptr)
define ptr @oxide.allocate(i64 %bytes, i64 %alignment) noinline {{
  %twice = shl i64 %alignment, 1
  %more = add i64 %bytes, %twice
  %raw = call ptr @malloc(i64 %more)
  %number = ptrtoint ptr %raw to i64
  %beyond = add i64 %number, %twice
  %after = add i64 %beyond, -1
  %mask = sub i64 0, %alignment
  %aligned = and i64 %after, %mask
  %start = inttoptr i64 %aligned to ptr
  %before = getelementptr i8, ptr %start, i64 -8
  store ptr %raw, ptr %before
  ret ptr %start
}}
define void @oxide.release(ptr %start) noinline {{
  %none = icmp eq ptr %start, null
  br i1 %none, label %done, label %give_back
give_back:
  %before = getelementptr i8, ptr %start, i64 -8
  %raw = load ptr, ptr %before
  call void @free(ptr %raw)
  br label %done
done:
  ret void
}}
define ptr @oxide.take(ptr %room, i64 %bytes, i64 %alignment) noinline {{
  %none = icmp eq ptr %room, null
  %more = icmp ugt i64 %bytes, {ROOM_BYTES}
  %allocates = or i1 %none, %more
  br i1 %allocates, label %allocate, label %fits
allocate:
  %new = call ptr @oxide.allocate(i64 %bytes, i64 %alignment)
  ret ptr %new
fits:
  ret ptr %room
}}
define void @oxide.leave(ptr %start, ptr %room) noinline {{
  %own = icmp eq ptr %start, %room
  br i1 %own, label %done, label %give_back
give_back:
  call void @oxide.release(ptr %start)
  br label %done
done:
  ret void
}}
"""
"""Functions that allocate aligned memory. The eight bytes before the memory hold the address that ``malloc`` returned.

``oxide.take`` returns the stack buffer of ``ROOM_BYTES`` bytes if there is a buffer and it is large enough. Most
kernels' shared memory and frames fit, which saves 0.08 of 0.6 microseconds a range. ``oxide.take`` must not be inlined:
LLVM would see that nothing has written the buffer, and treat reads of it as undefined.
"""
