"""What threads of a block do together, on a GPU: each primitive of ``primitives.py`` is an instruction or two."""

from __future__ import annotations

from .primitives import SharedMemory


def definitions(shared: SharedMemory, arch: str) -> str:
    """Definitions of all primitives; what a kernel does not use is dropped before instructions are selected."""
    return "\n".join([_shared(shared), _BARRIERS])


def _shared(shared: SharedMemory) -> str:
    texts = [
        f"@oxide.shared.memory.{number} = internal addrspace(3) global [{size} x i8] poison, align {alignment}\n"
        f"define ptr @oxide.shared.static.{number}(ptr %context) alwaysinline {{\n"
        f"  ret ptr addrspacecast (ptr addrspace(3) @oxide.shared.memory.{number} to ptr)\n}}"
        for number, (_, size, alignment) in enumerate(shared.arrays)
    ]
    if shared.dynamic:
        texts.append(_DYNAMIC)
    return "\n".join(texts)


_DYNAMIC = """
@oxide_dynamic_shared = external addrspace(3) global [0 x i8], align 16
define ptr @oxide.shared.dynamic(ptr %context) alwaysinline {
  ret ptr addrspacecast (ptr addrspace(3) @oxide_dynamic_shared to ptr)
}
define i64 @oxide.shared.dynamic.bytes(ptr %context) alwaysinline {
  %narrow = call i32 asm "mov.u32 $0, %dynamic_smem_size;", "=r"()
  %bytes = zext i32 %narrow to i64
  ret i64 %bytes
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
