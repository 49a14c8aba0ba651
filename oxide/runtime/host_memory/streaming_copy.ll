; Copies single bytes up to the destination's next cache line, then whole lines, then the remaining bytes. The attribute
; no-builtins keeps LLVM from turning the loops over bytes into calls of memcpy, whose address this code does not know.

define ptr @oxide_copy_streaming(ptr %destination, ptr %source, i64 %size) nounwind "no-builtins" {
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
