; The kernel as the body of a loop that counts from 0, to find the values that are linear in the counter. The loop ends
; at the end of the blocks, and tests before each iteration. The kernel's blocks come between oxide.test and oxide.next.
define void @oxide.analysed(i64 %oxide.end.position, i32 %oxide.block.x, i32 %oxide.grid.x) {
oxide.prepare:
  br label %oxide.test
oxide.test:
  %oxide.position = phi i64 [ 0, %oxide.prepare ], [ %oxide.position.next, %oxide.next ]
  %oxide.position.more = icmp slt i64 %oxide.position, %oxide.end.position
  br i1 %oxide.position.more, label %oxide.next, label %oxide.after
oxide.next:
  %oxide.position.next = add i64 %oxide.position, 1
  br label %oxide.test
oxide.after:
  ret void
}

; Runs a range of blocks. oxide.prepare gets the loads of the kernel's arguments and the code of add_requirements, which
; also gives the phis of oxide.choose their values. The kernel's blocks come between oxide.turn and oxide.next.
define void @oxide.entry(ptr %oxide.launch, i64 %oxide.first, i64 %oxide.end) {
oxide.enter:
  %oxide.grid.y.at = getelementptr i8, ptr %oxide.launch, i64 <launch.grid[1]>
  %oxide.grid.z.at = getelementptr i8, ptr %oxide.launch, i64 <launch.grid[2]>
  %oxide.block.x.at = getelementptr i8, ptr %oxide.launch, i64 <launch.block[0]>
  %oxide.block.y.at = getelementptr i8, ptr %oxide.launch, i64 <launch.block[1]>
  %oxide.block.z.at = getelementptr i8, ptr %oxide.launch, i64 <launch.block[2]>
  %oxide.grid.x = load i32, ptr %oxide.launch
  %oxide.grid.y = load i32, ptr %oxide.grid.y.at
  %oxide.grid.z = load i32, ptr %oxide.grid.z.at
  %oxide.block.x = load i32, ptr %oxide.block.x.at
  %oxide.block.y = load i32, ptr %oxide.block.y.at
  %oxide.block.z = load i32, ptr %oxide.block.z.at
  %oxide.planes = or i32 %oxide.grid.y, %oxide.grid.z
  %oxide.rows = or i32 %oxide.block.y, %oxide.block.z
  %oxide.beyond.x = or i32 %oxide.planes, %oxide.rows
  %oxide.flat = icmp eq i32 %oxide.beyond.x, 1
  br i1 %oxide.flat, label %oxide.prepare, label %oxide.after
oxide.prepare:
  %oxide.params.at = getelementptr i8, ptr %oxide.launch, i64 <launch.params>
  %oxide.params = load ptr, ptr %oxide.params.at
  %oxide.ntid = zext i32 %oxide.block.x to i64
  %oxide.first.position = mul i64 %oxide.first, %oxide.ntid
  %oxide.end.position = mul i64 %oxide.end, %oxide.ntid
  ; A grid has fewer positions than 2**42: CUDA's limits are 2**31 blocks along x and 2**10 threads.
  %oxide.counts = icmp ult i64 %oxide.end.position, 4398046511104
  br label %oxide.choose
oxide.choose:
  ; Where the requirements hold: the first position, the end of the positions, whether there are any, and the first block.
  %oxide.least = phi i64 [ %oxide.first.position, %oxide.prepare ]
  %oxide.most = phi i64 [ %oxide.end.position, %oxide.prepare ]
  %oxide.holds = phi i1 [ %oxide.counts, %oxide.prepare ]
  %oxide.least.block = phi i64 [ %oxide.first, %oxide.prepare ]
  %oxide.most.some = call i64 @llvm.smax.i64(i64 %oxide.most, i64 0)
  %oxide.most.block = udiv i64 %oxide.most.some, %oxide.ntid
  ; The number of blocks is rounded down so that the loop runs a multiple of 64 times, which is at least the number of
  ; elements of a processor's vector. LLVM sees that and emits no remainder loop.
  %oxide.ntid.step = or i64 %oxide.ntid, 64
  %oxide.ntid.negative = sub i64 0, %oxide.ntid.step
  %oxide.ntid.power = and i64 %oxide.ntid.step, %oxide.ntid.negative
  %oxide.multiple = udiv i64 64, %oxide.ntid.power
  %oxide.way = sub i64 %oxide.most.block, %oxide.least.block
  %oxide.some = call i64 @llvm.smax.i64(i64 %oxide.way, i64 0)
  %oxide.odd = urem i64 %oxide.some, %oxide.multiple
  %oxide.even = sub i64 %oxide.some, %oxide.odd
  %oxide.blocks = select i1 %oxide.holds, i64 %oxide.even, i64 0
  %oxide.any = icmp ne i64 %oxide.blocks, 0
  %oxide.from.block = select i1 %oxide.any, i64 %oxide.least.block, i64 %oxide.first
  %oxide.to.block = add i64 %oxide.from.block, %oxide.blocks
  %oxide.from = mul i64 %oxide.from.block, %oxide.ntid
  %oxide.threads = mul i64 %oxide.blocks, %oxide.ntid
  %oxide.steps = udiv i64 %oxide.threads, 64
  %oxide.steps.some = call i64 @llvm.umax.i64(i64 %oxide.steps, i64 1)
  %oxide.count = mul nuw nsw i64 %oxide.steps.some, 64
  call void @oxide.checked_blocks(ptr %oxide.launch, i64 %oxide.first, i64 %oxide.from.block)
  br i1 %oxide.any, label %oxide.turn, label %oxide.after
oxide.turn:
  %oxide.turns = phi i64 [ 0, %oxide.choose ], [ %oxide.turns.next, %oxide.next ]
  %oxide.position = add i64 %oxide.from, %oxide.turns
  br label %oxide.next
oxide.next:
  %oxide.turns.next = add nuw nsw i64 %oxide.turns, 1
  %oxide.turns.more = icmp ult i64 %oxide.turns.next, %oxide.count
  br i1 %oxide.turns.more, label %oxide.turn, label %oxide.after
oxide.after:
  %oxide.rest = phi i64 [ %oxide.first, %oxide.enter ], [ %oxide.first, %oxide.choose ], [ %oxide.to.block, %oxide.next ]
  call void @oxide.checked_blocks(ptr %oxide.launch, i64 %oxide.rest, i64 %oxide.end)
  ret void
}
declare void @oxide.checked_blocks(ptr, i64, i64)
