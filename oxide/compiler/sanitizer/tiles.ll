; The copies of tiles to outputs in sanitized kernels, as LLVM IR.

; Checks the writes of a copy of a tile to the array at %data, which is in the memory of a view. The copy writes those
; rows of a box of five axes that are inside the array.
define void @oxide.sanitize.stored(ptr %context, ptr %data, i64 %view, i64 %what, i64 %size, i64 %l0, i64 %l1, i64 %l2,
    i64 %l3, i64 %l4, i64 %p0, i64 %p1, i64 %p2, i64 %p3, i64 %p4, i64 %s0, i64 %s1, i64 %s2, i64 %s3, i64 %s4) noinline {
begin:
  %pitch = mul i64 %l4, %size
  %column = call i64 @oxide.sanitize.clamped(i64 %p4)
  %left = mul i64 %column, %size
  %width = mul i64 %s4, %size
  %right = add i64 %left, %width
  %from = call i64 @llvm.smax.i64(i64 %left, i64 0)
  %to = call i64 @llvm.smin.i64(i64 %right, i64 %pitch)
  %count = sub i64 %to, %from
  %any = icmp sgt i64 %count, 0
  %c0 = call i64 @oxide.sanitize.clamped(i64 %p0)
  %c1 = call i64 @oxide.sanitize.clamped(i64 %p1)
  %c2 = call i64 @oxide.sanitize.clamped(i64 %p2)
  %c3 = call i64 @oxide.sanitize.clamped(i64 %p3)
  %s01 = mul i64 %s0, %s1
  %s23 = mul i64 %s2, %s3
  %rows = mul i64 %s01, %s23
  br i1 %any, label %next, label %done
next:
  %row = phi i64 [ 0, %begin ], [ %row.next, %checked ]
  %i3 = urem i64 %row, %s3
  %planes = udiv i64 %row, %s3
  %i2 = urem i64 %planes, %s2
  %stacks = udiv i64 %planes, %s2
  %i1 = urem i64 %stacks, %s1
  %i0 = udiv i64 %stacks, %s1
  %a0 = add i64 %c0, %i0
  %a1 = add i64 %c1, %i1
  %a2 = add i64 %c2, %i2
  %a3 = add i64 %c3, %i3
  %in0 = icmp ult i64 %a0, %l0
  %in1 = icmp ult i64 %a1, %l1
  %in2 = icmp ult i64 %a2, %l2
  %in3 = icmp ult i64 %a3, %l3
  %in01 = and i1 %in0, %in1
  %in23 = and i1 %in2, %in3
  %inside = and i1 %in01, %in23
  br i1 %inside, label %check, label %checked
check:
  %n1 = mul i64 %a0, %l1
  %n1.sum = add i64 %n1, %a1
  %n2 = mul i64 %n1.sum, %l2
  %n2.sum = add i64 %n2, %a2
  %n3 = mul i64 %n2.sum, %l3
  %n3.sum = add i64 %n3, %a3
  %first = mul i64 %n3.sum, %pitch
  %within = add i64 %first, %from
  %at = getelementptr i8, ptr %data, i64 %within
  %same = call ptr @oxide.sanitize.device(ptr %context, ptr %at, i64 %count, i64 1, i64 %what, i64 %view)
  br label %checked
checked:
  %row.next = add i64 %row, 1
  %more = icmp ult i64 %row.next, %rows
  br i1 %more, label %next, label %done
done:
  ret void
}
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

; Returns a place clamped to bounds, so that no sum of places wraps around.
define i64 @oxide.sanitize.clamped(i64 %place) alwaysinline {
  %least = call i64 @llvm.smax.i64(i64 %place, i64 -1099511627776)
  %within = call i64 @llvm.smin.i64(i64 %least, i64 1099511627776)
  ret i64 %within
}
