"""``memcpy`` past the cache, for data that the device reads next and this processor does not.

An ordinary store first reads the line that it will overwrite. So a copy through the cache moves three bytes for each
byte copied, and evicts the program's data. Non-temporal stores write whole lines and read none of them. ``memcpy`` uses
them only for copies of megabytes, but the helpers of ``copy_pool`` copy pieces of 128 KiB. GB/s on an H100's machine
with ``memcpy`` and with this copy, medians of 36 alternating runs: one upload of 64 MiB at a time 21.7 and 30.3, of an
array that is not in the cache 18.5 and 23.8; four at a time 42.0 and 40.5, and 35.9 and 38.4. Prefetching the source
made it slower.

It exists for x86-64 only, whose instruction set has these stores. Elsewhere the C library's ``memcpy`` is used.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from typing import Any

from oxide.runtime.loop.alarm import native_function


def streaming_copy_address() -> int:
    """Returns the address of ``void *copy(void *destination, const void *source, size_t bytes)``, which acts as
    ``memcpy`` does.

    When that function returns, the bytes are visible to other threads and to the device."""
    global _function
    if _function is None:
        if sys.platform == "linux" and platform.machine() in _MACHINE_CODE:
            _function = native_function(_MACHINE_CODE, STREAMING_IR, "oxide_copy_streaming")
        else:
            memcpy = ctypes.CDLL(None).memcpy
            _function = (ctypes.cast(memcpy, ctypes.c_void_p).value or 0, memcpy)
    return _function[0]


_function: tuple[int, Any] | None = None

# The output of LLVM 22 for the IR below, as in ``copy_pool``; a test compiles it again and compares.
_MACHINE_CODE = {
    "x86_64": bytes.fromhex(
        "4889f889c1f7d983e13f4839ca480f42ca4885c9741b31ff0f1f840000000000440fb6043e4488043848ffc74839f975ef49"
        "89d04929c84983e0c04c89c74809cf4d85c074414c8d0c084801f14531d2420f100411420f104c1110420f10541120420f10"
        "5c1130430f2b541120430f2b5c1130430f2b0411430f2b4c11104983c2404d39d075c94839d774130f1f40000fb60c3e880c"
        "3848ffc74839fa75f10faef8c3"
    ),
}

STREAMING_IR = """
; Single bytes up to a line's boundary of the destination, then whole lines, then what is left. The attribute keeps the
; loops over bytes from being made into calls of memcpy, whose address this code does not know.

define ptr @oxide_copy_streaming(ptr %destination, ptr %source, i64 %size) "no-builtins" {
entry:
  %address = ptrtoint ptr %destination to i64
  %negative = sub i64 0, %address
  %to_line = and i64 %negative, 63
  %short = icmp ult i64 %size, %to_line
  %head = select i1 %short, i64 %size, i64 %to_line
  %aligned = icmp eq i64 %head, 0
  br i1 %aligned, label %lines, label %head_byte
head_byte:
  %at = phi i64 [ 0, %entry ], [ %at_next, %head_byte ]
  %head_from = getelementptr i8, ptr %source, i64 %at
  %head_to = getelementptr i8, ptr %destination, i64 %at
  %head_value = load i8, ptr %head_from
  store i8 %head_value, ptr %head_to
  %at_next = add i64 %at, 1
  %head_done = icmp eq i64 %at_next, %head
  br i1 %head_done, label %lines, label %head_byte, !llvm.loop !1
lines:
  %left = sub i64 %size, %head
  %in_lines = and i64 %left, -64
  %end = add i64 %head, %in_lines
  %no_line = icmp eq i64 %in_lines, 0
  br i1 %no_line, label %tail, label %line
line:
  %begin = phi i64 [ %head, %lines ], [ %begin_next, %line ]
  %from = getelementptr i8, ptr %source, i64 %begin
  %to = getelementptr i8, ptr %destination, i64 %begin
  %value = load <16 x i32>, ptr %from, align 1
  store <16 x i32> %value, ptr %to, align 64, !nontemporal !0
  %begin_next = add i64 %begin, 64
  %lines_done = icmp eq i64 %begin_next, %end
  br i1 %lines_done, label %tail, label %line, !llvm.loop !1
tail:
  %whole = icmp eq i64 %end, %size
  br i1 %whole, label %done, label %tail_byte
tail_byte:
  %last = phi i64 [ %end, %tail ], [ %last_next, %tail_byte ]
  %tail_from = getelementptr i8, ptr %source, i64 %last
  %tail_to = getelementptr i8, ptr %destination, i64 %last
  %tail_value = load i8, ptr %tail_from
  store i8 %tail_value, ptr %tail_to
  %last_next = add i64 %last, 1
  %all = icmp eq i64 %last_next, %size
  br i1 %all, label %done, label %tail_byte, !llvm.loop !1
done:
  call void @llvm.x86.sse.sfence()
  ret ptr %destination
}

declare void @llvm.x86.sse.sfence()
!0 = !{i32 1}
!1 = distinct !{!1, !2, !3}
!2 = !{!"llvm.loop.unroll.disable"}
!3 = !{!"llvm.loop.vectorize.enable", i1 false}
"""
