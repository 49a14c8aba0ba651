"""``tensor.Barrier`` as PTX's ``mbarrier``, and ``tensor.cluster`` as clusters of blocks and distributed shared memory.

A barrier uses 8 of the 16 bytes that it occupies. A place in another block's shared memory is a generic address, so
that ordinary loads, stores and atomics work on ``remote`` arrays. Barriers in another block are reached by addresses of
32 bits, which PTX's ``mbarrier`` takes.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from oxide.driver.base import Dim3


def definitions(symbols: Collection[str], cluster: Dim3 | None) -> list[str]:
    """Returns the definitions for a kernel with these symbols and clusters of this shape."""
    # Only in a kernel that may write other blocks' shared memory and arrive at their Barriers do arrivals and waits
    # have cluster scope. This scope makes the writes of other blocks' threads visible, but doubles the time of a
    # product's step. Copies and products need no cluster scope to be ordered.
    scoped = "oxide.cluster.map" in symbols and "oxide.cluster.arrive" in symbols
    texts = []
    if any(symbol.startswith("oxide.tensor.barrier.") for symbol in symbols):
        texts.append(_BARRIERS.replace("<acquire>", ".acquire.cluster" if scoped else ""))
    if cluster is not None and any(symbol.startswith("oxide.cluster.") for symbol in symbols):
        text = _CLUSTERS.replace("<size>", str(math.prod(cluster)))
        texts.append(text.replace("<release>", ".release.cluster" if scoped else ""))
    return texts


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

_CLUSTERS = """
declare i32 @llvm.nvvm.read.ptx.sreg.cluster.ctarank()
declare void @llvm.nvvm.barrier.cluster.arrive() convergent
declare void @llvm.nvvm.barrier.cluster.arrive.relaxed() convergent
declare void @llvm.nvvm.barrier.cluster.wait() convergent
declare ptr @llvm.nvvm.mapa(ptr, i32)
define i32 @oxide.cluster.rank(ptr %context, i32 %site) alwaysinline {
  %rank = call i32 @llvm.nvvm.read.ptx.sreg.cluster.ctarank()
  ret i32 %rank
}
define i32 @oxide.cluster.size(ptr %context, i32 %site) alwaysinline {
  ret i32 <size>
}
define void @oxide.cluster.barrier(ptr %context, i32 %site) alwaysinline convergent {
  call void @llvm.nvvm.barrier.cluster.arrive() convergent
  call void @llvm.nvvm.barrier.cluster.wait() convergent
  ret void
}
define void @oxide.cluster.meeting(ptr %context, i32 %site) alwaysinline convergent {
  call void @llvm.nvvm.barrier.cluster.arrive.relaxed() convergent
  call void @llvm.nvvm.barrier.cluster.wait() convergent
  ret void
}
define ptr @oxide.cluster.map(ptr %context, ptr %address, i32 %rank, i32 %site) alwaysinline {
  %there = call ptr @llvm.nvvm.mapa(ptr %address, i32 %rank)
  ret ptr %there
}
define void @oxide.cluster.arrive(ptr %context, ptr %barrier, i32 %rank, i32 %site) alwaysinline {
  %address = call i32 @oxide.tensor.shared_address(ptr %barrier)
  call void asm sideeffect
    "{ .reg .b32 a; mapa.shared::cluster.u32 a, $0, $1; mbarrier.arrive<release>.shared::cluster.b64 _, [a]; }",
    "r,r,~{memory}"(i32 %address, i32 %rank)
  ret void
}
"""
