; Barriers of ``oxide.tensor`` on the CPU, as LLVM IR.
;
; A barrier is four 32-bit numbers: the number of its phase, the arrivals that a phase takes, the arrivals that this
; phase still waits for, and the bytes of copies that this phase still waits for. A copy is made at its call.
;
; A thread that must wait records that it polls and suspends. ``schedule.ll`` resumes it after the other warps have run,
; and the thread tests the barrier again.

define void @oxide.tensor.barrier.init(ptr %context, ptr %memory, i32 %count, i32 %arrivals, i32 %site)
    alwaysinline {
entry:
  %thread = call i32 @oxide.linear_thread(ptr %context)
  %first = icmp eq i32 %thread, 0
  br i1 %first, label %next, label %done
next:
  %number = phi i32 [ 0, %entry ], [ %number.next, %next ]
  %barrier = getelementptr [4 x i32], ptr %memory, i32 %number
  store i32 0, ptr %barrier
  %expected.at = getelementptr i8, ptr %barrier, i64 <tensor_barrier.expected>
  store i32 %arrivals, ptr %expected.at
  %pending.at = getelementptr i8, ptr %barrier, i64 <tensor_barrier.pending>
  store i32 %arrivals, ptr %pending.at
  %bytes.at = getelementptr i8, ptr %barrier, i64 <tensor_barrier.bytes>
  store i32 0, ptr %bytes.at
  %number.next = add i32 %number, 1
  %more = icmp ult i32 %number.next, %count
  br i1 %more, label %next, label %done
done:
  ret void
}

; Adds to the arrivals and the bytes that a phase waits for. The phase ends if both are then 0.
define internal void @oxide.tensor.barrier.add(ptr %barrier, i32 %arrivals, i32 %bytes) noinline {
  %pending.at = getelementptr i8, ptr %barrier, i64 <tensor_barrier.pending>
  %pending.old = load i32, ptr %pending.at
  %pending = add i32 %pending.old, %arrivals
  %bytes.at = getelementptr i8, ptr %barrier, i64 <tensor_barrier.bytes>
  %bytes.old = load i32, ptr %bytes.at
  %bytes.new = add i32 %bytes.old, %bytes
  store i32 %bytes.new, ptr %bytes.at
  %either = or i32 %pending, %bytes.new
  %over = icmp eq i32 %either, 0
  br i1 %over, label %ends, label %goes_on
ends:
  %phase = load i32, ptr %barrier
  %phase.next = add i32 %phase, 1
  store i32 %phase.next, ptr %barrier
  %expected.at = getelementptr i8, ptr %barrier, i64 <tensor_barrier.expected>
  %expected = load i32, ptr %expected.at
  store i32 %expected, ptr %pending.at
  ret void
goes_on:
  store i32 %pending, ptr %pending.at
  ret void
}

define void @oxide.tensor.barrier.arrive(ptr %context, ptr %barrier, i32 %site) alwaysinline {
  call void @oxide.tensor.barrier.add(ptr %barrier, i32 -1, i32 0)
  ret void
}

define void @oxide.tensor.barrier.expect(ptr %context, ptr %barrier, i32 %bytes, i32 %site) alwaysinline {
  call void @oxide.tensor.barrier.add(ptr %barrier, i32 -1, i32 %bytes)
  ret void
}

define void @oxide.tensor.barrier.wait(ptr %context, ptr %barrier, i32 %phase, i32 %site) alwaysinline {
entry:
  %block = call ptr @oxide.block(ptr %context)
  br label %look
look:
  %polled = phi i32 [ 0, %entry ], [ 1, %poll ]
  %own = load volatile i32, ptr %barrier
  %differ = xor i32 %own, %phase
  %over = trunc i32 %differ to i1
  br i1 %over, label %passed, label %poll
poll:
  %thread = call i32 @oxide.linear_thread(ptr %context)
  call void @oxide.tensor.barrier.polls(ptr %block, ptr %barrier, i32 %thread, i32 %phase, i32 %site)
  call void @oxide.suspend()
  br label %look
passed:
  %passes = load i32, {{passes}}
  %passes.more = add i32 %passes, %polled
  store i32 %passes.more, {{passes}}
  ret void
}

; Waits for the 128 threads of the warpgroup. Their product has then read the tiles, whichever thread goes on first.
define internal void @oxide.tensor.warpgroup.meet(ptr %context, i32 %site) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %thread = call i32 @oxide.linear_thread(ptr %context)
  %group = lshr i32 %thread, 7
  %barrier = getelementptr i8, {{warpgroups[i32 %group]}}, i64 0
  %phase = load i32, ptr %barrier
  call void @oxide.tensor.barrier.add(ptr %barrier, i32 -1, i32 0)
  call void @oxide.tensor.barrier.wait(ptr %context, ptr %barrier, i32 %phase, i32 %site)
  ret void
}

; Records that a thread polls. Of the first thread that polls in a round, also records where it waits and what for.
define internal void @oxide.tensor.barrier.polls(ptr %block, ptr %barrier, i32 %thread, i32 %phase, i32 %site)
    noinline {
  %warp = lshr i32 %thread, 5
  %lane = and i32 %thread, 31
  %bit = shl i32 1, %lane
  %lanes = load i32, {{polling[i32 %warp]}}
  %lanes.more = or i32 %lanes, %bit
  store i32 %lanes.more, {{polling[i32 %warp]}}
  %warp.bit = shl i32 1, %warp
  %warps = load i32, {{polling.warps}}
  %warps.more = or i32 %warps, %warp.bit
  store i32 %warps.more, {{polling.warps}}
  %least = load i32, {{polling.thread}}
  %earlier = icmp ult i32 %thread, %least
  br i1 %earlier, label %keep, label %done
keep:
  store i32 %thread, {{polling.thread}}
  store i32 %site, {{polling.site}}
  store i32 %phase, {{polling.phase}}
  store ptr %barrier, {{polling.barrier}}
  br label %done
done:
  ret void
}

; Reports that threads wait at a Barrier and that no thread can go on.
define internal void @oxide.report_polling(ptr %block) noinline cold {
  %thread = load i32, {{polling.thread}}
  %site = load i32, {{polling.site}}
  %wanted = load i32, {{polling.phase}}
  %barrier = load ptr, {{polling.barrier}}
  %phase = load i32, ptr %barrier
  %pending.at = getelementptr i8, ptr %barrier, i64 <tensor_barrier.pending>
  %pending = load i32, ptr %pending.at
  %bytes.at = getelementptr i8, ptr %barrier, i64 <tensor_barrier.bytes>
  %bytes = load i32, ptr %bytes.at
  %pending.wide = zext i32 %pending to i64
  %bytes.wide = zext i32 %bytes to i64
  %bytes.high = shl i64 %bytes.wide, 32
  %left = or i64 %pending.wide, %bytes.high
  %wanted.wide = zext i32 %wanted to i64
  %wanted.high = shl i64 %wanted.wide, 36
  %phase.wide = zext i32 %phase to i64
  %phase.shifted = shl i64 %phase.wide, 8
  %phase.masked = and i64 %phase.shifted, 68719476480
  %phases = or i64 %phase.masked, %wanted.high
  %kind = or i64 %phases, 3
  call void @oxide.report_waits(ptr %block, i32 %site, i64 %left, i64 %kind, i32 %thread)
  ret void
}
