"""``tensor.Barrier`` as PTX's ``mbarrier``. A barrier uses 8 of the 16 bytes that it occupies."""

from __future__ import annotations

from collections.abc import Collection

_PREFIX = "oxide.tensor.barrier."


def definitions(symbols: Collection[str]) -> str:
    """Returns the definitions for a kernel with these symbols, or "" if the kernel has no barriers."""
    if not any(symbol.startswith(_PREFIX) for symbol in symbols):
        return ""
    return _BARRIERS.replace("<acquire>", ".acquire.cluster" if writes_other_blocks(symbols) else "")


def writes_other_blocks(symbols: Collection[str]) -> bool:
    """Returns whether a kernel may write other blocks' shared memory and arrive at their Barriers. Only in such a
    kernel do arrivals and waits have cluster scope. This scope makes the writes of other blocks' threads visible, but
    doubles the time of a product's step. Copies and products need no cluster scope to be ordered."""
    return "oxide.cluster.map" in symbols and "oxide.cluster.arrive" in symbols


_BARRIERS = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.tid.y()
declare i32 @llvm.nvvm.read.ptx.sreg.tid.z()
define void @oxide.tensor.barrier.init(ptr %context, ptr %memory, i32 %count, i32 %arrivals, i32 %site)
    alwaysinline convergent {
entry:
  %first.address = call i32 @oxide.tensor.shared_address(ptr %memory)
  %x = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %y = call i32 @llvm.nvvm.read.ptx.sreg.tid.y()
  %z = call i32 @llvm.nvvm.read.ptx.sreg.tid.z()
  %xy = or i32 %x, %y
  %xyz = or i32 %xy, %z
  %first = icmp eq i32 %xyz, 0
  br i1 %first, label %next, label %done
next:
  %number = phi i32 [ 0, %entry ], [ %number.next, %next ]
  %offset = shl i32 %number, 4
  %address = add i32 %first.address, %offset
  call void asm sideeffect "mbarrier.init.shared::cta.b64 [$0], $1;", "r,r,~{memory}"(i32 %address, i32 %arrivals)
  %number.next = add i32 %number, 1
  %more = icmp ult i32 %number.next, %count
  br i1 %more, label %next, label %made
made:
  ; The copy engine sees the barriers.
  call void asm sideeffect "fence.mbarrier_init.release.cluster;", "~{memory}"()
  br label %done
done:
  ret void
}
define void @oxide.tensor.barrier.arrive(ptr %context, ptr %barrier, i32 %site) alwaysinline {
  %address = call i32 @oxide.tensor.shared_address(ptr %barrier)
  call void asm sideeffect "mbarrier.arrive.shared::cta.b64 _, [$0];", "r,~{memory}"(i32 %address)
  ret void
}
define void @oxide.tensor.barrier.expect(ptr %context, ptr %barrier, i32 %bytes, i32 %site) alwaysinline {
  %address = call i32 @oxide.tensor.shared_address(ptr %barrier)
  call void asm sideeffect "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,r,~{memory}"
    (i32 %address, i32 %bytes)
  ret void
}
define void @oxide.tensor.barrier.wait(ptr %context, ptr %barrier, i32 %phase, i32 %site) alwaysinline convergent {
entry:
  %address = call i32 @oxide.tensor.shared_address(ptr %barrier)
  %parity = and i32 %phase, 1
  br label %poll
poll:
  %over = call i32 asm sideeffect
    "{ .reg .pred done; mbarrier.try_wait.parity<acquire>.shared::cta.b64 done, [$1], $2; selp.u32 $0, 1, 0, done; }",
    "=r,r,r,~{memory}"(i32 %address, i32 %parity) convergent
  %waits = icmp eq i32 %over, 0
  br i1 %waits, label %poll, label %passed
passed:
  ret void
}
"""
