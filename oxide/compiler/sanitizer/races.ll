; The race detector of sanitized kernels, as LLVM IR.
;
; The model is FastTrack's (Flanagan and Freund, 2009) with a block's barriers instead of most of its vector clocks.
; A cell of shadow memory for each element keeps the last plain write and, since then, two reads, an atomic read and two
; atomic writes: the time of each, and its block, thread and access.
; An access is ordered after an earlier access if
;
; - the same thread made both;
; - both are of one block, and a barrier was passed since;
; - both are of one warp, and a ``warp.sync`` with both lanes in its mask came between;
; - the earlier access was released by a fence and an atomic that this thread has acquired. All accesses made by then
;   count as released, whichever thread made them: this can hide a race, but never reports a false one.
;
; The write, or the read, of an asynchronous copy is ordered before no other access until the copy's thread waits for
; it. The wait turns it into a plain access at the time of the wait.
;
; Two accesses race if one of them is a write and they are not ordered. Two atomic accesses do not race, unless one of
; them has block scope and they are of different blocks. A shared array belongs to a block: accesses made before the
; block began are ignored.

; Returns whether an access made at %time is ordered before the thread's present access. Time 0 stands for no access.
define i1 @oxide.sanitize.ordered(ptr %state, i64 %time, i64 %old, i64 %who, i64 %known) alwaysinline {
entry:
  %flags = and i64 %old, <plain_or_under_way>
  %copies = icmp eq i64 %flags, <under_way>
  %begun = load i64, {{begun}}
  %here = icmp ugt i64 %time, %begun
  %under_way = and i1 %copies, %here
  br i1 %under_way, label %no, label %finished
finished:
  %before = icmp ule i64 %time, %known
  br i1 %before, label %done, label %look
look:
  %both = xor i64 %old, %who
  %differ = lshr i64 %both, 20
  %own = icmp eq i64 %differ, 0
  br i1 %own, label %done, label %block
block:
  %blocks = lshr i64 %both, 32
  %same = icmp eq i64 %blocks, 0
  br i1 %same, label %phase, label %no
phase:
  %barrier = load i64, {{barrier}}
  %passed = icmp ule i64 %time, %barrier
  br i1 %passed, label %done, label %warp
warp:
  %warps = lshr i64 %both, 25
  %one = icmp eq i64 %warps, 0
  br i1 %one, label %lane, label %no
lane:
  %old.thread = lshr i64 %old, 20
  %old.lane = and i64 %old.thread, 31
  %thread.high = lshr i64 %who, 20
  %thread = and i64 %thread.high, 2047
  %row = mul i64 %thread, 32
  %index = add i64 %row, %old.lane
  %seen = load i64, {{seen[%index]}}
  %synchronised = icmp ule i64 %time, %seen
  ret i1 %synchronised
no:
  ret i1 false
done:
  ret i1 true
}

; Returns whether two accesses conflict if they are not ordered.
define i1 @oxide.sanitize.conflict(i64 %old, i64 %who) alwaysinline {
  %either = or i64 %old, %who
  %writes = trunc i64 %either to i1
  %both = and i64 %old, %who
  %atomic.bit = and i64 %both, 2
  %atomic = icmp ne i64 %atomic.bit, 0
  %scope.bit = and i64 %either, 4
  %narrow = icmp ne i64 %scope.bit, 0
  %differ = xor i64 %old, %who
  %blocks = lshr i64 %differ, 32
  %apart = icmp ne i64 %blocks, 0
  %outside = and i1 %narrow, %apart
  %inside = xor i1 %outside, true
  %fine = and i1 %atomic, %inside
  %not_fine = xor i1 %fine, true
  %result = and i1 %writes, %not_fine
  ret i1 %result
}

define void @oxide.sanitize.against(ptr %state, ptr %record, i64 %who, i64 %known, i64 %address) alwaysinline {
  %time = load i64, ptr %record
  %old.at = getelementptr i8, ptr %record, i64 <sanitized_access.who>
  %old = load i64, ptr %old.at
  %conflict = call i1 @oxide.sanitize.conflict(i64 %old, i64 %who)
  br i1 %conflict, label %look, label %done
look:
  %ordered = call i1 @oxide.sanitize.ordered(ptr %state, i64 %time, i64 %old, i64 %who, i64 %known)
  br i1 %ordered, label %done, label %bad
bad:
  call void @oxide.sanitize.report(ptr %state, i64 <race_kind>, i64 %who, i64 %address, i64 %old, i64 0)
  br label %done
done:
  ret void
}

; Keeps the latest access of a sort and, in a second slot, an access of another thread. An access of another block is
; preferred for this slot, since no barrier orders it.
define void @oxide.sanitize.note(ptr %first, i64 %now, i64 %who) alwaysinline {
entry:
  %first.who.at = getelementptr i8, ptr %first, i64 <sanitized_access.who>
  %second = getelementptr i8, ptr %first, i64 <sanitized_access.sizeof>
  %second.who.at = getelementptr i8, ptr %second, i64 <sanitized_access.who>
  %first.time = load i64, ptr %first
  %first.who = load i64, ptr %first.who.at
  %differ = xor i64 %first.who, %who
  %threads = lshr i64 %differ, 20
  %own = icmp eq i64 %threads, 0
  %none = icmp eq i64 %first.time, 0
  %replace = or i1 %own, %none
  br i1 %replace, label %latest, label %beside
beside:
  %second.time = load i64, ptr %second
  %second.who = load i64, ptr %second.who.at
  %free = icmp eq i64 %second.time, 0
  %second.differ = xor i64 %second.who, %who
  %second.blocks = lshr i64 %second.differ, 32
  %second.here = icmp eq i64 %second.blocks, 0
  %blocks = lshr i64 %differ, 32
  %from_other = icmp ne i64 %blocks, 0
  %nearer = or i1 %second.here, %from_other
  ; An atomic of block scope conflicts with more accesses than other atomics do.
  %second.scope = and i64 %second.who, 4
  %first.scope = and i64 %first.who, 4
  %wider = icmp uge i64 %first.scope, %second.scope
  %useful = and i1 %nearer, %wider
  %move = or i1 %free, %useful
  br i1 %move, label %keep, label %latest
keep:
  store i64 %first.time, ptr %second
  store i64 %first.who, ptr %second.who.at
  br label %latest
latest:
  store i64 %now, ptr %first
  store i64 %who, ptr %first.who.at
  ret void
}

define void @oxide.sanitize.race(ptr %state, ptr %cell, i64 %who, i64 %known, i64 %address) noinline {
entry:
  %now = load i64, {{now}}
  %read = getelementptr i8, ptr %cell, i64 <sanitized_cell.read>
  %other_read = getelementptr i8, ptr %cell, i64 <sanitized_cell.other_read>
  %load = getelementptr i8, ptr %cell, i64 <sanitized_cell.load>
  %atomic = getelementptr i8, ptr %cell, i64 <sanitized_cell.atomic>
  %other_atomic = getelementptr i8, ptr %cell, i64 <sanitized_cell.other_atomic>
  call void @oxide.sanitize.against(ptr %state, ptr %cell, i64 %who, i64 %known, i64 %address)
  %writes = trunc i64 %who to i1
  br i1 %writes, label %reads, label %atomics
reads:
  call void @oxide.sanitize.against(ptr %state, ptr %read, i64 %who, i64 %known, i64 %address)
  call void @oxide.sanitize.against(ptr %state, ptr %other_read, i64 %who, i64 %known, i64 %address)
  br label %atomics
atomics:
  %load.time = load i64, ptr %load
  %atomic.time = load i64, ptr %atomic
  %either.time = or i64 %load.time, %atomic.time
  %no_atomics = icmp eq i64 %either.time, 0
  br i1 %no_atomics, label %sort, label %against_atomics
against_atomics:
  call void @oxide.sanitize.against(ptr %state, ptr %atomic, i64 %who, i64 %known, i64 %address)
  call void @oxide.sanitize.against(ptr %state, ptr %other_atomic, i64 %who, i64 %known, i64 %address)
  call void @oxide.sanitize.against(ptr %state, ptr %load, i64 %who, i64 %known, i64 %address)
  br label %sort
sort:
  %atomic.bit = and i64 %who, 2
  %is_atomic = icmp ne i64 %atomic.bit, 0
  br i1 %is_atomic, label %synchronise, label %plain
synchronise:
  ; The thread may acquire what the location's releases made known; a write publishes what the thread released.
  %thread.high = lshr i64 %who, 20
  %thread = and i64 %thread.high, 2047
  %clock.at = getelementptr i8, ptr %cell, i64 <sanitized_cell.known>
  %clock = load i64, ptr %clock.at
  %acquired = load i64, {{acquired[%thread]}}
  %acquired.new = call i64 @llvm.umax.i64(i64 %acquired, i64 %clock)
  store i64 %acquired.new, {{acquired[%thread]}}
  br i1 %writes, label %release, label %atomic_load
atomic_load:
  %load.who.at = getelementptr i8, ptr %load, i64 <sanitized_access.who>
  store i64 %now, ptr %load
  store i64 %who, ptr %load.who.at
  br label %done
release:
  call void @oxide.sanitize.note(ptr %atomic, i64 %now, i64 %who)
  %released = load i64, {{released[%thread]}}
  %clock.new = call i64 @llvm.umax.i64(i64 %released, i64 %clock)
  store i64 %clock.new, ptr %clock.at
  br label %done
plain:
  br i1 %writes, label %write, label %look
look:
  call void @oxide.sanitize.note(ptr %read, i64 %now, i64 %who)
  br label %done
write:
  ; All earlier accesses are ordered before the write, or were reported.
  %who.at = getelementptr i8, ptr %cell, i64 <sanitized_access.who>
  store i64 %now, ptr %cell
  store i64 %who, ptr %who.at
  store i64 0, ptr %read
  store i64 0, ptr %other_read
  store i64 0, ptr %atomic
  store i64 0, ptr %other_atomic
  store i64 0, ptr %load
  br label %done
done:
  ret void
}

; Called after a barrier by each thread that has passed it. The first thread advances the block's phase. After the
; barrier of a cluster the block knows all accesses up to the barrier: other blocks of the cluster made some of them.
define void @oxide.sanitize.passed(ptr %context, i1 %cluster) noinline {
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %thread = call i64 @oxide.sanitize.thread(ptr %context)
  %old = load i64, {{passed[%thread]}}
  %count = add i64 %old, 1
  store i64 %count, {{passed[%thread]}}
  %phase = load i64, {{phase}}
  %first = icmp ugt i64 %count, %phase
  br i1 %first, label %move, label %done
move:
  store i64 %count, {{phase}}
  %now = load i64, {{now}}
  %met = load i64, {{met}}
  %time = select i1 %cluster, i64 %met, i64 %now
  store i64 %time, {{barrier}}
  %pending = load i64, {{pending_known}}
  %later = call i64 @llvm.umax.i64(i64 %pending, i64 %met)
  %knows = select i1 %cluster, i64 %later, i64 %pending
  store i64 %knows, {{pending_known}}
  store i64 %knows, {{block_known}}
  br label %done
done:
  ret void
}

; Releases all accesses up to now: threads that read this thread's later atomic writes may acquire them.
define void @oxide.sanitize.release(ptr %context) noinline {
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %thread = call i64 @oxide.sanitize.thread(ptr %context)
  %now = load i64, {{now}}
  store i64 %now, {{released[%thread]}}
  ret void
}

define void @oxide.sanitize.acquire(ptr %context) noinline {
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %thread = call i64 @oxide.sanitize.thread(ptr %context)
  %acquired = load i64, {{acquired[%thread]}}
  %known = load i64, {{known[%thread]}}
  %more = call i64 @llvm.umax.i64(i64 %acquired, i64 %known)
  store i64 %more, {{known[%thread]}}
  %pending = load i64, {{pending_known}}
  %pending.more = call i64 @llvm.umax.i64(i64 %pending, i64 %more)
  store i64 %pending.more, {{pending_known}}
  ret void
}

; Warp synchronisation is executed twice: between the two, each lane reads the arrival times of the others.
define void @oxide.sanitize.arrive(ptr %context) noinline {
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %thread = call i64 @oxide.sanitize.thread(ptr %context)
  %now = load i64, {{now}}
  store i64 %now, {{arrived[%thread]}}
  ret void
}

define void @oxide.sanitize.join(ptr %context, i32 %mask) noinline {
entry:
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %thread = call i64 @oxide.sanitize.thread(ptr %context)
  %first = and i64 %thread, -32
  %row = mul i64 %thread, 32
  %lanes = zext i32 %mask to i64
  br label %next
next:
  %left = phi i64 [ %lanes, %entry ], [ %rest, %joined ]
  %none = icmp eq i64 %left, 0
  br i1 %none, label %done, label %lane
lane:
  %number = call i64 @llvm.cttz.i64(i64 %left, i1 true)
  %other = or i64 %first, %number
  %arrived = load i64, {{arrived[%other]}}
  %index = add i64 %row, %number
  %seen = load i64, {{seen[%index]}}
  %more = call i64 @llvm.umax.i64(i64 %seen, i64 %arrived)
  store i64 %more, {{seen[%index]}}
  %known = load i64, {{known[%thread]}}
  %other.known = load i64, {{known[%other]}}
  %known.more = call i64 @llvm.umax.i64(i64 %known, i64 %other.known)
  store i64 %known.more, {{known[%thread]}}
  %other.row = mul i64 %other, 32
  br label %through
through:
  ; What that lane has seen of the warp's other lanes, this lane has now seen too.
  %k = phi i64 [ 0, %lane ], [ %k.next, %through ]
  %there = add i64 %other.row, %k
  %here = add i64 %row, %k
  %there.seen = load i64, {{seen[%there]}}
  %here.seen = load i64, {{seen[%here]}}
  %both = call i64 @llvm.umax.i64(i64 %there.seen, i64 %here.seen)
  store i64 %both, {{seen[%here]}}
  %k.next = add i64 %k, 1
  %k.more = icmp ult i64 %k.next, 32
  br i1 %k.more, label %through, label %joined
joined:
  %less = sub i64 %left, 1
  %rest = and i64 %left, %less
  br label %next
done:
  ret void
}
