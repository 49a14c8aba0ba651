; The memory of blocks on the CPU, as LLVM IR, for launches in which several blocks live at once: each has its own.

define internal ptr @oxide.make_block(ptr %launch, i64 %linear) noinline {
  %size.at = getelementptr <block>, ptr null, i32 1
  %size = ptrtoint ptr %size.at to i64
  %block = call ptr @oxide.allocate(i64 %size, i64 64)
<read_launch>
  ; With a seed, each block has a seed of its own, independent of what ran before. The block's seed is odd, because
  ; xorshift would stay at 0.
  %linear.narrow = trunc i64 %linear to i32
  %linear.mixed = mul i32 %linear.narrow, -1640531527
  %own = xor i32 %seed, %linear.mixed
  %own.odd = or i32 %own, 1
  %own.seed = select i1 %seeded, i32 %own.odd, i32 0
  store i32 %own.seed, {{seed}}
  store ptr null, {{frames}}
  store ptr null, {{room}}
  %bytes = add i64 %dynamic, <static>
  %shared = call ptr @oxide.allocate(i64 %bytes, i64 <alignment>)
  store ptr %shared, {{shared}}
  %gx.wide = zext i32 %gx to i64
  %gy.wide = zext i32 %gy to i64
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
  ret ptr %block
}

define internal void @oxide.release_block(ptr %block) noinline {
  %frames = load ptr, {{frames}}
  call void @oxide.release(ptr %frames)
  %shared = load ptr, {{shared}}
  call void @oxide.release(ptr %shared)
  call void @oxide.release(ptr %block)
  ret void
}
