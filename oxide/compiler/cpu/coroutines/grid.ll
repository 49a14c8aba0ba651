; A cooperative launch on the CPU, as LLVM IR. All blocks live at once. A call of the entry runs blocks up to the next
; grid barrier.
;
; The launch record is a ``cooperative`` (driver/records.py). The driver (``driver/cpu/streams.py``) calls
; the entry for every block, pass after pass, until all have finished. If some blocks wait and others have finished, or
; wait elsewhere, none can ever continue. Then the driver calls the entry once more with ``abandon``, which reports the
; deadlock and frees the blocks' memory.

define void @<entry>(ptr %launch, i64 %from, i64 %end) {
entry:
  %nx.at = getelementptr i8, ptr %launch, i64 <launch.block[0]>
  %nx = load i32, ptr %nx.at
  %ny.at = getelementptr i8, ptr %launch, i64 <launch.block[1]>
  %ny = load i32, ptr %ny.at
  %nz.at = getelementptr i8, ptr %launch, i64 <launch.block[2]>
  %nz = load i32, ptr %nz.at
  %plane = mul i32 %nx, %ny
  %threads = mul i32 %plane, %nz
  %blocks.at = getelementptr i8, ptr %launch, i64 <cooperative.blocks>
  %blocks = load ptr, ptr %blocks.at
  %waiting.at = getelementptr i8, ptr %launch, i64 <cooperative.waiting>
  %finished.at = getelementptr i8, ptr %launch, i64 <cooperative.finished>
  %least.at = getelementptr i8, ptr %launch, i64 <cooperative.least>
  %greatest.at = getelementptr i8, ptr %launch, i64 <cooperative.greatest>
  %abandon.at = getelementptr i8, ptr %launch, i64 <cooperative.abandon>
  %abandon.number = load i32, ptr %abandon.at
  %abandon = icmp ne i32 %abandon.number, 0
  %any = icmp slt i64 %from, %end
  br i1 %any, label %next, label %done
next:
  %linear = phi i64 [ %from, %entry ], [ %linear.next, %went ]
  %slot = getelementptr ptr, ptr %blocks, i64 %linear
  %old = load ptr, ptr %slot
  %known = icmp ne ptr %old, null
  br i1 %abandon, label %give_up, label %go_on
give_up:
  br i1 %known, label %report, label %went
report:
  call void @oxide.abandon_block(ptr %old, ptr %launch)
  call void @oxide.release_block(ptr %old)
  store ptr null, ptr %slot
  br label %went
go_on:
  br i1 %known, label %run, label %make
make:
  %new = call ptr @oxide.make_block(ptr %launch, i64 %linear)
  store ptr %new, ptr %slot
  br label %run
run:
  %block = phi ptr [ %old, %go_on ], [ %new, %make ]
  %how = zext i1 %known to i32
  %came = call i32 @oxide.run_block(ptr %block, i32 %threads, i32 %how)
  %waits = icmp eq i32 %came, 1
  br i1 %waits, label %waiting, label %finished
waiting:
  %site = load i32, {{grid.site}}
  %waiting.before = atomicrmw add ptr %waiting.at, i32 1 monotonic
  %least.before = atomicrmw umin ptr %least.at, i32 %site monotonic
  %greatest.before = atomicrmw umax ptr %greatest.at, i32 %site monotonic
  br label %went
finished:
  %finished.before = atomicrmw add ptr %finished.at, i32 1 monotonic
  call void @oxide.release_block(ptr %block)
  store ptr null, ptr %slot
  br label %went
went:
  %linear.next = add nuw nsw i64 %linear, 1
  %more = icmp slt i64 %linear.next, %end
  br i1 %more, label %next, label %done
done:
  ret void
}

define internal void @oxide.abandon_block(ptr %block, ptr %launch) noinline cold {
  %least.at = getelementptr i8, ptr %launch, i64 <cooperative.least>
  %least = load i32, ptr %least.at
  %greatest.at = getelementptr i8, ptr %launch, i64 <cooperative.greatest>
  %greatest = load i32, ptr %greatest.at
  %one = icmp eq i32 %least, %greatest
  %kind = select i1 %one, i32 2, i32 0
  call void @oxide.report_divergence(ptr %block, i32 %least, i32 %greatest, i32 %kind, i32 0)
  ret void
}
