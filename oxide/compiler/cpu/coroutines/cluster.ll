; A launch with clusters on the CPU, as LLVM IR. The blocks of a cluster live at once, and one worker runs them in turn:
; each block runs as far as it can alone, to the cluster's barrier or to Barriers that other blocks change.
;
; The driver gives out ranges of numbers. A range runs the clusters c for which it contains c times the size of a
; cluster, so each cluster runs once, wherever the ranges are split.

define void @<entry>(ptr %launch, i64 %from, i64 %end) {
entry:
  %blocks = alloca [<blocks> x ptr]
  %gx.at = getelementptr i8, ptr %launch, i64 <launch.grid[0]>
  %gx = load i32, ptr %gx.at
  %gx.wide = zext i32 %gx to i64
  %gy.at = getelementptr i8, ptr %launch, i64 <launch.grid[1]>
  %gy = load i32, ptr %gy.at
  %gy.wide = zext i32 %gy to i64
  %nx.at = getelementptr i8, ptr %launch, i64 <launch.block[0]>
  %nx = load i32, ptr %nx.at
  %ny.at = getelementptr i8, ptr %launch, i64 <launch.block[1]>
  %ny = load i32, ptr %ny.at
  %nz.at = getelementptr i8, ptr %launch, i64 <launch.block[2]>
  %nz = load i32, ptr %nz.at
  %plane = mul i32 %nx, %ny
  %threads = mul i32 %plane, %nz
  %across = udiv i64 %gx.wide, <across>
  %down = udiv i64 %gy.wide, <down>
  %from.more = add i64 %from, <blocks_less>
  %first = udiv i64 %from.more, <blocks>
  %end.more = add i64 %end, <blocks_less>
  %past = udiv i64 %end.more, <blocks>
  %any = icmp ult i64 %first, %past
  br i1 %any, label %next, label %done
next:
  %cluster = phi i64 [ %first, %entry ], [ %cluster.next, %ran ]
  %cluster.x = urem i64 %cluster, %across
  %cluster.rows = udiv i64 %cluster, %across
  %cluster.y = urem i64 %cluster.rows, %down
  %cluster.z = udiv i64 %cluster.rows, %down
  %x.first = mul i64 %cluster.x, <across>
  %y.first = mul i64 %cluster.y, <down>
  %z.first = mul i64 %cluster.z, <deep>
  br label %make
make:
  %rank = phi i64 [ 0, %next ], [ %rank.next, %make ]
  %x = urem i64 %rank, <across>
  %rows = udiv i64 %rank, <across>
  %y = urem i64 %rows, <down>
  %z = udiv i64 %rows, <down>
  %bx = add i64 %x.first, %x
  %by = add i64 %y.first, %y
  %bz = add i64 %z.first, %z
  %planes = mul i64 %bz, %gy.wide
  %lines = add i64 %planes, %by
  %before = mul i64 %lines, %gx.wide
  %linear = add i64 %before, %bx
  %block = call ptr @oxide.make_block(ptr %launch, i64 %linear)
  %record = load ptr, {{record}}
  %record.before = mul i64 %rank, <record_bytes>
  %record.own = getelementptr i8, ptr %record, i64 %record.before
  store ptr %record.own, {{record}}
  %rank.narrow = trunc i64 %rank to i32
  store i32 %rank.narrow, {{rank}}
  store ptr %blocks, {{peers}}
  %slot = getelementptr ptr, ptr %blocks, i64 %rank
  store ptr %block, ptr %slot
  %rank.next = add i64 %rank, 1
  %rank.more = icmp ult i64 %rank.next, <blocks>
  br i1 %rank.more, label %make, label %run
run:
  call void @oxide.cluster.meet(ptr %blocks)
  call void @oxide.run_cluster(ptr %blocks, i32 %threads)
  br label %release
release:
  %gone = phi i64 [ 0, %run ], [ %gone.next, %release ]
  %gone.slot = getelementptr ptr, ptr %blocks, i64 %gone
  %gone.block = load ptr, ptr %gone.slot
  call void @oxide.release_block(ptr %gone.block)
  %gone.next = add i64 %gone, 1
  %gone.more = icmp ult i64 %gone.next, <blocks>
  br i1 %gone.more, label %release, label %ran
ran:
  %cluster.next = add i64 %cluster, 1
  %more = icmp ult i64 %cluster.next, %past
  br i1 %more, label %next, label %done
done:
  ret void
}

; Runs the blocks of a cluster to their ends. A number for each block says where the block continues: 0 to 2 as for
; run_block, 3 at the cluster's barrier, 4 after the block's end.
define internal void @oxide.run_cluster(ptr %blocks, i32 %threads) noinline {
entry:
  %places = alloca [<blocks> x i32]
  call void @llvm.memset.p0.i64(ptr %places, i8 0, i64 <places_bytes>, i1 false)
  %first = load ptr, ptr %blocks
  %seeded = call i1 @oxide.cluster.seeded(ptr %first)
  br label %sweep
sweep:
  %none = shl i32 -1, <blocks>
  %every = xor i32 %none, -1
  br label %next
next:
  %left = phi i32 [ %every, %sweep ], [ %left.next, %seen ]
  %advanced = phi i1 [ false, %sweep ], [ %advanced.next, %seen ]
  %stuck = phi i32 [ -1, %sweep ], [ %stuck.next, %seen ]
  %lives = phi i1 [ false, %sweep ], [ %lives.next, %seen ]
  %rank = call i32 @oxide.pick(ptr %first, i32 %left, i1 %seeded)
  %bit = shl i32 1, %rank
  %left.next = xor i32 %left, %bit
  %slot = getelementptr ptr, ptr %blocks, i32 %rank
  %block = load ptr, ptr %slot
  %place = getelementptr i32, ptr %places, i32 %rank
  %how = load i32, ptr %place
  %rests = icmp uge i32 %how, 3
  br i1 %rests, label %seen, label %run
run:
  %before = load i32, {{passes}}
  call void @oxide.cluster.carry(ptr %blocks, ptr %block)
  %came = call i32 @oxide.run_block(ptr %block, i32 %threads, i32 %how)
  %after = load i32, {{passes}}
  %ended = icmp eq i32 %came, 0
  %polls = icmp eq i32 %came, 2
  %rest = select i1 %ended, i32 4, i32 3
  %how.next = select i1 %polls, i32 2, i32 %rest
  store i32 %how.next, ptr %place
  ; A block that polled before and polls again has made progress only if a wait has ended.
  %polled = icmp eq i32 %how, 2
  %both = and i1 %polls, %polled
  %passed = icmp ne i32 %before, %after
  %alone = xor i1 %both, true
  %goes = or i1 %passed, %alone
  br label %seen
seen:
  %now = phi i32 [ %how, %next ], [ %how.next, %run ]
  %went = phi i1 [ false, %next ], [ %goes, %run ]
  %advanced.next = or i1 %advanced, %went
  %now.polls = icmp eq i32 %now, 2
  %stuck.next = select i1 %now.polls, i32 %rank, i32 %stuck
  %now.lives = icmp ne i32 %now, 4
  %lives.next = or i1 %lives, %now.lives
  %more = icmp ne i32 %left.next, 0
  br i1 %more, label %next, label %swept
swept:
  br i1 %lives.next, label %look, label %done
look:
  %nobody_polls = icmp eq i32 %stuck.next, -1
  br i1 %nobody_polls, label %met, label %polling
polling:
  br i1 %advanced.next, label %sweep, label %for_ever
for_ever:
  %stuck.slot = getelementptr ptr, ptr %blocks, i32 %stuck.next
  %stuck.block = load ptr, ptr %stuck.slot
  call void @oxide.report_polling(ptr %stuck.block)
  br label %done
met:
  ; All blocks that have not ended are at the cluster's barrier.
  call void @oxide.cluster.meet(ptr %blocks)
  br label %go_on
go_on:
  %number = phi i32 [ 0, %met ], [ %number.next, %go_on ]
  %at = getelementptr i32, ptr %places, i32 %number
  %old = load i32, ptr %at
  %waited = icmp eq i32 %old, 3
  %new = select i1 %waited, i32 1, i32 %old
  store i32 %new, ptr %at
  %number.next = add i32 %number, 1
  %numbers.more = icmp ult i32 %number.next, <blocks>
  br i1 %numbers.more, label %go_on, label %sweep
done:
  ret void
}

define internal i1 @oxide.cluster.seeded(ptr %block) {
  %seed = load i32, {{seed}}
  %seeded = icmp ne i32 %seed, 0
  ret i1 %seeded
}

define i32 @oxide.cluster.rank(ptr %context, i32 %site) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %rank = load i32, {{rank}}
  ret i32 %rank
}

define i32 @oxide.cluster.size(ptr %context, i32 %site) alwaysinline {
  ret i32 <blocks>
}

define void @oxide.cluster.barrier(ptr %context, i32 %site) alwaysinline {
  call void @oxide.block.grid_barrier(ptr %context, i32 %site)
  ret void
}

define void @oxide.cluster.meeting(ptr %context, i32 %site) alwaysinline {
  call void @oxide.block.grid_barrier(ptr %context, i32 %site)
  ret void
}

; Returns the place in another block's shared memory that has the offset of an address in this block's.
define internal ptr @oxide.cluster.place(ptr %block, ptr %address, i32 %rank) noinline {
  %own = load ptr, {{shared}}
  %peers = load ptr, {{peers}}
  %peer.at = getelementptr ptr, ptr %peers, i32 %rank
  %peer = load ptr, ptr %peer.at
  %theirs = call ptr @oxide.cluster.memory(ptr %peer)
  %from = ptrtoint ptr %own to i64
  %to = ptrtoint ptr %address to i64
  %offset = sub i64 %to, %from
  %there = getelementptr i8, ptr %theirs, i64 %offset
  ret ptr %there
}

define internal ptr @oxide.cluster.memory(ptr %block) {
  %shared = load ptr, {{shared}}
  ret ptr %shared
}

define ptr @oxide.cluster.map(ptr %context, ptr %address, i32 %rank, i32 %site) alwaysinline {
  %block = call ptr @oxide.block(ptr %context)
  %there = call ptr @oxide.cluster.place(ptr %block, ptr %address, i32 %rank)
  ret ptr %there
}
