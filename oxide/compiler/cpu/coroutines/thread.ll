declare token @llvm.coro.id(i32, ptr, ptr, ptr)
declare i64 @llvm.coro.size.i64()
declare ptr @llvm.coro.begin(token, ptr)
declare i8 @llvm.coro.suspend(token, i1)
declare void @llvm.coro.end(ptr, i1, token)
declare void @llvm.coro.resume(ptr)

define internal ptr @oxide.thread(ptr %block, i32 %thread, i32 %x, i32 %y, i32 %z) presplitcoroutine noinline {
entry:
  %context = alloca <context>
  %id = call token @llvm.coro.id(i32 64, ptr null, ptr null, ptr null)
  %size = call i64 @llvm.coro.size.i64()
  %padded = add i64 %size, 63
  %stride = and i64 %padded, -64
  %frames = call ptr @oxide.frames(ptr %block, i64 %stride)
  %wide = zext i32 %thread to i64
  %offset = mul i64 %wide, %stride
  %memory = getelementptr i8, ptr %frames, i64 %offset
  %handle = call ptr @llvm.coro.begin(token %id, ptr %memory)
<fill>
  %params = load ptr, {{params}}
<loads>
<call>
  %live = load i32, {{live}}
  %fewer = sub i32 %live, 1
  store i32 %fewer, {{live}}
  %warp = lshr i32 %thread, 5
  %lane = and i32 %thread, 31
  %bit = shl i32 1, %lane
  %others = xor i32 %bit, -1
  %alive = load i32, {{alive[i32 %warp]}}
  %left = and i32 %alive, %others
  store i32 %left, {{alive[i32 %warp]}}
  %last = call i8 @llvm.coro.suspend(token none, i1 true)
  switch i8 %last, label %suspended [ i8 1, label %suspended ]
suspended:
  call void @llvm.coro.end(ptr %handle, i1 false, token none)
  ret ptr %handle
}

define internal ptr @oxide.frames(ptr %block, i64 %stride) alwaysinline {
  %old = load ptr, {{frames}}
  %none = icmp eq ptr %old, null
  br i1 %none, label %first, label %done
first:
  %new = call ptr @oxide.make_frames(ptr %block, i64 %stride)
  br label %done
done:
  %frames = phi ptr [ %old, %0 ], [ %new, %first ]
  ret ptr %frames
}

define internal ptr @oxide.make_frames(ptr %block, i64 %stride) noinline cold {
  %nx = load i32, {{ntid[i32 0]}}
  %ny = load i32, {{ntid[i32 1]}}
  %nz = load i32, {{ntid[i32 2]}}
  %plane = mul i32 %nx, %ny
  %threads = mul i32 %plane, %nz
  %wide = zext i32 %threads to i64
  %bytes = mul i64 %wide, %stride
  %room = load ptr, {{room}}
  %frames = call ptr @oxide.take(ptr %room, i64 %bytes, i64 64)
  store ptr %frames, {{frames}}
  store i64 %stride, {{stride}}
  ret ptr %frames
}
