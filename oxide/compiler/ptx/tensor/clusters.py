"""``tensor.cluster`` as PTX's clusters of blocks and distributed shared memory.

A place in another block's shared memory is a generic address, so that ordinary loads, stores and atomics work on
``remote`` arrays. Barriers in another block are reached by addresses of 32 bits, which PTX's ``mbarrier`` takes.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from oxide.driver.base import Dim3

from .barriers import writes_other_blocks

_PREFIX = "oxide.cluster."


def definitions(symbols: Collection[str], cluster: Dim3 | None) -> str:
    """Returns the definitions for a kernel with these symbols, or "" if the kernel reaches no other block."""
    if cluster is None or not any(symbol.startswith(_PREFIX) for symbol in symbols):
        return ""
    text = _CLUSTERS.replace("<size>", str(math.prod(cluster)))
    return text.replace("<release>", ".release.cluster" if writes_other_blocks(symbols) else "")


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
