"""The GPU's definitions of the primitives that a kernel calls, and of its shared memory."""

from __future__ import annotations

from collections.abc import Collection

from oxide.compiler.ir.primitives import LEAST_ALIGNMENT, SharedMemory
from oxide.compiler.primitives import threads, warps


def definitions(symbols: Collection[str], shared: SharedMemory, capability: int) -> str:
    """Returns definitions of the primitives for a kernel with these symbols. Unused definitions are dropped before
    instruction selection."""
    texts = [_shared(shared), _INSTRUCTIONS, *([_UNANIMOUS] if "oxide.unanimous" in symbols else [])]
    texts += [_WORD] * ("oxide.word" in symbols)
    texts += [entry.ptx_text(capability) for entry in threads.ENTRIES if entry.symbol in symbols]
    return "\n".join([*texts, *warps.ptx_definitions(symbols, capability)])


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

_WORD = """
define i32 @oxide.word(i32 %word) alwaysinline {
  %same = call i32 asm "mov.b32 $0, $1;", "=r,r"(i32 %word)
  ret i32 %same
}
"""
"""Defines ``oxide.word`` so that LLVM does not know its result, and computes with it in 32 bits."""


_INSTRUCTIONS = """
define void @oxide.breakpoint() alwaysinline {
  call void asm sideeffect "brkpt;", ""()
  ret void
}
"""
