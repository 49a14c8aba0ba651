; The entry. Runs a range of blocks, one after another.

define void @<entry>(ptr %launch, i64 %from, i64 %end) {
entry:
  %block = alloca <block>, align 64
  %shared.room = alloca [<room> x i8], align <alignment>
  %frames.room = alloca [<room> x i8], align 64
<read_launch>
  store ptr null, {{frames}}
  store ptr %frames.room, {{room}}
  %bytes = add i64 %dynamic, <static>
  %shared = call ptr @oxide.take(ptr %shared.room, i64 %bytes, i64 <alignment>)
  store ptr %shared, {{shared}}
  %plane = mul i32 %nx, %ny
  %threads = mul i32 %plane, %nz
  %gx.wide = zext i32 %gx to i64
  %gy.wide = zext i32 %gy to i64
  %any = icmp slt i64 %from, %end
  br i1 %any, label %next, label %done
next:
  %linear = phi i64 [ %from, %entry ], [ %linear.next, %next ]
  %bx = urem i64 %linear, %gx.wide
  %rows = udiv i64 %linear, %gx.wide
  %by = urem i64 %rows, %gy.wide
  %bz = udiv i64 %rows, %gy.wide
  %bx.narrow = trunc i64 %bx to i32
  store i32 %bx.narrow, {{ctaid[i32 0]}}
  %by.narrow = trunc i64 %by to i32
  store i32 %by.narrow, {{ctaid[i32 1]}}
  %bz.narrow = trunc i64 %bz to i32
  store i32 %bz.narrow, {{ctaid[i32 2]}}
  ; With a seed, each block has a seed of its own, independent of what ran before. The block's seed is odd, because
  ; xorshift would stay at 0.
  %linear.narrow = trunc i64 %linear to i32
  %linear.mixed = mul i32 %linear.narrow, -1640531527
  %own = xor i32 %seed, %linear.mixed
  %own.odd = or i32 %own, 1
  %own.seed = select i1 %seeded, i32 %own.odd, i32 0
  store i32 %own.seed, {{seed}}
  call i32 @oxide.run_block(ptr %block, i32 %threads, i32 0)
  %linear.next = add nuw nsw i64 %linear, 1
  %more = icmp slt i64 %linear.next, %end
  br i1 %more, label %next, label %done
done:
  %frames = load ptr, {{frames}}
  call void @oxide.leave(ptr %frames, ptr %frames.room)
  call void @oxide.leave(ptr %shared, ptr %shared.room)
  ret void
}
