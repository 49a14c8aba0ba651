; Copies of tiles on the CPU, as LLVM IR.

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

; Copies a tile of elements of %size bytes to rows of 128 bytes in the 128-byte swizzle. The length of a matrix's row,
; and the length of its part before the tile, are multiples of 16 bytes. So each 16-byte part of a tile's row is either
; wholly inside or wholly outside the matrix.
define internal void @oxide.tensor.copy_tile(ptr %tile, ptr %data, i64 %rows, i64 %columns, i64 %row, i64 %column,
    i64 %height, i64 %size) noinline {
entry:
  ; No sum below wraps around.
  %row.least = call i64 @llvm.smax.i64(i64 %row, i64 -1099511627776)
  %top = call i64 @llvm.smin.i64(i64 %row.least, i64 1099511627776)
  %column.least = call i64 @llvm.smax.i64(i64 %column, i64 -1099511627776)
  %column.within = call i64 @llvm.smin.i64(i64 %column.least, i64 1099511627776)
  %left = mul i64 %column.within, %size
  %pitch = mul i64 %columns, %size
  br label %next_row
next_row:
  %r = phi i64 [ 0, %entry ], [ %r.next, %row_done ]
  %from = add i64 %top, %r
  %there = icmp ult i64 %from, %rows
  %first = mul i64 %from, %pitch
  %to.offset = shl i64 %r, 7
  %to = getelementptr i8, ptr %tile, i64 %to.offset
  br i1 %there, label %next_part, label %empty
empty:
  call void @llvm.memset.p0.i64(ptr align 16 %to, i8 0, i64 128, i1 false)
  br label %row_done
next_part:
  %p = phi i64 [ 0, %next_row ], [ %p.next, %part_done ]
  %swizzle = and i64 %r, 7
  %place = xor i64 %p, %swizzle
  %place.bytes = shl i64 %place, 4
  %part = getelementptr i8, ptr %to, i64 %place.bytes
  %p.bytes = shl i64 %p, 4
  %begin = add i64 %left, %p.bytes
  %inside = icmp ult i64 %begin, %pitch
  br i1 %inside, label %copy, label %clear
copy:
  %at = add i64 %first, %begin
  %source = getelementptr i8, ptr %data, i64 %at
  call void @llvm.memcpy.p0.p0.i64(ptr align 16 %part, ptr align 16 %source, i64 16, i1 false)
  br label %part_done
clear:
  call void @llvm.memset.p0.i64(ptr align 16 %part, i8 0, i64 16, i1 false)
  br label %part_done
part_done:
  %p.next = add i64 %p, 1
  %p.more = icmp ult i64 %p.next, 8
  br i1 %p.more, label %next_part, label %row_done
row_done:
  %r.next = add i64 %r, 1
  %r.more = icmp ult i64 %r.next, %height
  br i1 %r.more, label %next_row, label %done
done:
  ret void
}

; Copies a box of five axes between an array and a tile, in 16-byte parts of the box's rows. The last of the places is a
; multiple of 16 bytes. Only an array of one axis can have a 16-byte part that is partly outside: the bytes outside are
; zeros in the tile, and are not written to the array.
define internal void @oxide.tensor.copy_box(ptr %tile, ptr %data, i64 %size, i1 %swizzled, i1 %stores, i64 %l0, i64 %l1,
    i64 %l2, i64 %l3, i64 %l4, i64 %p0, i64 %p1, i64 %p2, i64 %p3, i64 %p4, i64 %s0, i64 %s1, i64 %s2, i64 %s3, i64 %s4)
    noinline {
entry:
  %c0 = call i64 @oxide.tensor.clamped(i64 %p0)
  %c1 = call i64 @oxide.tensor.clamped(i64 %p1)
  %c2 = call i64 @oxide.tensor.clamped(i64 %p2)
  %c3 = call i64 @oxide.tensor.clamped(i64 %p3)
  %c4 = call i64 @oxide.tensor.clamped(i64 %p4)
  %left = mul i64 %c4, %size
  %pitch = mul i64 %l4, %size
  %row.bytes = mul i64 %s4, %size
  %row.parts = lshr i64 %row.bytes, 4
  %s01 = mul i64 %s0, %s1
  %s23 = mul i64 %s2, %s3
  %rows = mul i64 %s01, %s23
  %parts = mul i64 %rows, %row.parts
  br label %next
next:
  %number = phi i64 [ 0, %entry ], [ %number.next, %done_part ]
  %part = urem i64 %number, %row.parts
  %row = udiv i64 %number, %row.parts
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
  %in.rows = and i1 %in01, %in23
  %part.bytes = shl i64 %part, 4
  %begin = add i64 %left, %part.bytes
  %in.row = icmp ult i64 %begin, %pitch
  %inside = and i1 %in.rows, %in.row
  %row.left = sub i64 %pitch, %begin
  %most = call i64 @llvm.smin.i64(i64 %row.left, i64 16)
  %count = select i1 %inside, i64 %most, i64 0
  %n1 = mul i64 %a0, %l1
  %n1.sum = add i64 %n1, %a1
  %n2 = mul i64 %n1.sum, %l2
  %n2.sum = add i64 %n2, %a2
  %n3 = mul i64 %n2.sum, %l3
  %n3.sum = add i64 %n3, %a3
  %first = mul i64 %n3.sum, %pitch
  %offset = add i64 %first, %begin
  %known = select i1 %inside, i64 %offset, i64 0
  %there = getelementptr i8, ptr %data, i64 %known
  %low = and i64 %row, 7
  %exchanged = xor i64 %part, %low
  %place = select i1 %swizzled, i64 %exchanged, i64 %part
  %row.first = mul i64 %row, %row.parts
  %parts.before = add i64 %row.first, %place
  %here.offset = shl i64 %parts.before, 4
  %here = getelementptr i8, ptr %tile, i64 %here.offset
  br i1 %stores, label %store, label %load
store:
  call void @llvm.memcpy.p0.p0.i64(ptr %there, ptr %here, i64 %count, i1 false)
  br label %done_part
load:
  call void @llvm.memset.p0.i64(ptr align 16 %here, i8 0, i64 16, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %here, ptr %there, i64 %count, i1 false)
  br label %done_part
done_part:
  %number.next = add i64 %number, 1
  %more = icmp ult i64 %number.next, %parts
  br i1 %more, label %next, label %done
done:
  ret void
}

; Returns a place clamped to bounds, so that no sum of places wraps around.
define internal i64 @oxide.tensor.clamped(i64 %place) alwaysinline {
  %least = call i64 @llvm.smax.i64(i64 %place, i64 -1099511627776)
  %within = call i64 @llvm.smin.i64(i64 %least, i64 1099511627776)
  ret i64 %within
}
