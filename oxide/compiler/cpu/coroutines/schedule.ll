; The schedule of a block on the CPU, as LLVM IR: rounds from barrier to barrier, and within a round warp after warp.
;
; Warps, and the threads of a warp, run in order or, with a seed, in a random order that differs from round to round.

; Publishes the values of the running warp's lanes that may continue, and returns these lanes. 0 means deadlock.
define internal i32 @oxide.release_lanes(ptr %block, i32 %alive) noinline {
entry:
  %waiting = load i32, {{waiting}}
  %converging = load i32, {{converging}}
  %apart = xor i32 %converging, -1
  %asking = and i32 %waiting, %apart
  br label %next
next:
  %left = phi i32 [ %asking, %entry ], [ %left.refused, %refuse ], [ %left.released, %released ]
  %free = phi i32 [ 0, %entry ], [ %free, %refuse ], [ %free.more, %released ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %finish, label %look
look:
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %bit = shl i32 1, %lane
  %mask = load i32, {{mask[i32 %lane]}}
  %group = and i32 %mask, %alive
  %come = and i32 %group, %asking
  %complete = icmp eq i32 %come, %group
  %own = and i32 %group, %bit
  %member = icmp ne i32 %own, 0
  %candidate = and i1 %complete, %member
  br i1 %candidate, label %agree, label %refuse
agree:
  %unseen = phi i32 [ %group, %look ], [ %unseen.next, %same ]
  %all_seen = icmp eq i32 %unseen, 0
  br i1 %all_seen, label %publish, label %compare
compare:
  %other = call i32 @llvm.cttz.i32(i32 %unseen, i1 true)
  %other.mask = load i32, {{mask[i32 %other]}}
  %equal = icmp eq i32 %other.mask, %mask
  br i1 %equal, label %same, label %refuse
same:
  %unseen.less = sub i32 %unseen, 1
  %unseen.next = and i32 %unseen, %unseen.less
  br label %agree
refuse:
  %not_bit = xor i32 %bit, -1
  %left.refused = and i32 %left, %not_bit
  br label %next
publish:
  call void @oxide.publish(ptr %block, i32 %group)
  br label %released
released:
  %not_group = xor i32 %group, -1
  %left.released = and i32 %left, %not_group
  %free.more = or i32 %free, %group
  br label %next
finish:
  %nobody = icmp eq i32 %free, 0
  %some = icmp ne i32 %converging, 0
  %last_resort = and i1 %nobody, %some
  br i1 %last_resort, label %converge, label %done
converge:
  ; No other lane can continue, so the lanes at one active_mask() have converged as far as they can.
  %first = call i32 @llvm.cttz.i32(i32 %converging, i1 true)
  %place = load i32, {{site[i32 %first]}}
  br label %gather
gather:
  %rest = phi i32 [ %converging, %converge ], [ %rest.next, %gather ]
  %together = phi i32 [ 0, %converge ], [ %together.more, %gather ]
  %each = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  %each.bit = shl i32 1, %each
  %each.place = load i32, {{site[i32 %each]}}
  %here = icmp eq i32 %each.place, %place
  %added = select i1 %here, i32 %each.bit, i32 0
  %together.more = or i32 %together, %added
  %rest.less = sub i32 %rest, 1
  %rest.next = and i32 %rest, %rest.less
  %more = icmp ne i32 %rest.next, 0
  br i1 %more, label %gather, label %gathered
gathered:
  call void @oxide.publish(ptr %block, i32 %together.more)
  br label %done
done:
  %result = phi i32 [ %free, %finish ], [ %together.more, %gathered ]
  %keep = xor i32 %result, -1
  %still = and i32 %waiting, %keep
  store i32 %still, {{waiting}}
  %still.converging = and i32 %converging, %keep
  store i32 %still.converging, {{converging}}
  ret i32 %result
}

define internal void @oxide.publish(ptr %block, i32 %group) {
entry:
  %not_group = xor i32 %group, -1
  %bits = load i32, {{bits}}
  %bits.new = and i32 %bits, %group
  %published = load i32, {{published.bits}}
  %bits.old = and i32 %published, %not_group
  %bits.all = or i32 %bits.old, %bits.new
  store i32 %bits.all, {{published.bits}}
  br label %next
next:
  %left = phi i32 [ %group, %entry ], [ %left.next, %next ]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %value = load i64, {{value[i32 %lane]}}
  store i64 %value, {{published[i32 %lane]}}
  store i32 %group, {{group[i32 %lane]}}
  %less = sub i32 %left, 1
  %left.next = and i32 %left, %less
  %more = icmp ne i32 %left.next, 0
  br i1 %more, label %next, label %done
done:
  ret void
}

declare i32 @llvm.ctpop.i32(i32)

; Picks the next of a warp's lanes, or of a block's warps, among those in %left: the first or, with a seed, a random
; one.
define internal i32 @oxide.pick(ptr %block, i32 %left, i1 %seeded) alwaysinline {
  br i1 %seeded, label %draw, label %first
first:
  %least = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  ret i32 %least
draw:
  %drawn = call i32 @oxide.draw(ptr %block, i32 %left)
  ret i32 %drawn
}

; Marsaglia's xorshift. Its high bits choose among those left with equal probability.
define internal i32 @oxide.draw(ptr %block, i32 %left) noinline {
entry:
  %x = load i32, {{seed}}
  %a = shl i32 %x, 13
  %xa = xor i32 %x, %a
  %b = lshr i32 %xa, 17
  %xb = xor i32 %xa, %b
  %c = shl i32 %xb, 5
  %next = xor i32 %xb, %c
  store i32 %next, {{seed}}
  %mixed = mul i32 %next, -1640531527
  %high = lshr i32 %mixed, 16
  %count = call i32 @llvm.ctpop.i32(i32 %left)
  %scaled = mul i32 %high, %count
  %skipped = lshr i32 %scaled, 16
  br label %look
look:
  %skip = phi i32 [ %skipped, %entry ], [ %skip.less, %clear ]
  %rest = phi i32 [ %left, %entry ], [ %rest.less, %clear ]
  %here = icmp eq i32 %skip, 0
  br i1 %here, label %done, label %clear
clear:
  %skip.less = sub i32 %skip, 1
  %below = sub i32 %rest, 1
  %rest.less = and i32 %rest, %below
  br label %look
done:
  %chosen = call i32 @llvm.cttz.i32(i32 %rest, i1 true)
  ret i32 %chosen
}

; Runs a block as far as it can run alone: from its beginning (%how is 0), from the grid's or the cluster's barrier (1),
; or from where its threads polled Barriers (2). Returns 0 at its end, 1 if its threads wait at the grid's or the
; cluster's barrier, and 2, in a cluster, if they poll Barriers that only other blocks can change.
define internal i32 @oxide.run_block(ptr %block, i32 %threads, i32 %how) noinline {
entry:
  %nx = load i32, {{ntid[i32 0]}}
  %ny = load i32, {{ntid[i32 1]}}
  %rounded = add i32 %threads, 31
  %warps = lshr i32 %rounded, 5
  %seed = load i32, {{seed}}
  %seeded = icmp ne i32 %seed, 0
  switch i32 %how, label %begin [ i32 1, label %round
                                  i32 2, label %poll_again ]
begin:
  store i32 %threads, {{live}}
  store i32 0, {{arrived}}
  store i32 -1, {{least}}
  store i32 0, {{greatest}}
  store i32 0, {{count}}
  store i32 0, {{waiting}}
  store i32 0, {{converging}}
  store i32 0, {{grid}}
  br label %count_lanes
count_lanes:
  %w = phi i32 [ 0, %begin ], [ %w.next, %count_lanes ]
  %w.first = shl i32 %w, 5
  %w.left = sub i32 %threads, %w.first
  %w.whole = icmp uge i32 %w.left, 32
  %w.shift = and i32 %w.left, 31
  %w.high = shl i32 -1, %w.shift
  %w.low = xor i32 %w.high, -1
  %w.lanes = select i1 %w.whole, i32 -1, i32 %w.low
  store i32 %w.lanes, {{alive[i32 %w]}}
  %w.next = add i32 %w, 1
  %w.more = icmp ult i32 %w.next, %warps
  br i1 %w.more, label %count_lanes, label %counted
counted:
  br i1 <polls>, label %clear_polls, label %round
clear_polls:
  call void @oxide.clear_polls(ptr %block)
  br label %round
round:
  %starting = phi i1 [ false, %entry ], [ true, %counted ], [ true, %clear_polls ], [ false, %next_round ]
  %unused = sub i32 32, %warps
  %every_warp = lshr i32 -1, %unused
  br label %warp
warp:
  %to_come = phi i32 [ %every_warp, %round ], [ %to_come.next, %warp_done ], [ %polling.all, %polls ]
  %begins = phi i1 [ %starting, %round ], [ %begins, %warp_done ], [ false, %polls ]
  %polled = phi i1 [ false, %round ], [ %polled, %warp_done ], [ true, %polls ]
  %number = call i32 @oxide.pick(ptr %block, i32 %to_come, i1 %seeded)
  %number.bit = shl i32 1, %number
  %to_come.next = xor i32 %to_come, %number.bit
  %first = shl i32 %number, 5
  %lanes = load i32, {{alive[i32 %number]}}
  %empty = icmp eq i32 %lanes, 0
  br i1 %empty, label %warp_done, label %there
there:
  br i1 %polled, label %poll, label %pass
poll:
  %polling = call i32 @oxide.unpark(ptr %block, i32 %number)
  br label %pass
pass:
  %fresh = phi i1 [ %begins, %there ], [ false, %poll ], [ false, %again ]
  %going = phi i32 [ %lanes, %there ], [ %polling, %poll ], [ %released, %again ]
  br i1 %fresh, label %start, label %resume
start:
  %start.left = phi i32 [ %going, %pass ], [ %start.left.next, %start ]
  %start.lane = call i32 @oxide.pick(ptr %block, i32 %start.left, i1 %seeded)
  %start.thread = or i32 %first, %start.lane
  %x = urem i32 %start.thread, %nx
  %rows = udiv i32 %start.thread, %nx
  %y = urem i32 %rows, %ny
  %z = udiv i32 %rows, %ny
  %handle = call ptr @oxide.thread(ptr %block, i32 %start.thread, i32 %x, i32 %y, i32 %z)
  %start.bit = shl i32 1, %start.lane
  %start.left.next = xor i32 %start.left, %start.bit
  %start.more = icmp ne i32 %start.left.next, 0
  br i1 %start.more, label %start, label %ran
resume:
  %frames = load ptr, {{frames}}
  %stride = load i64, {{stride}}
  br label %resume_lane
resume_lane:
  %left = phi i32 [ %going, %resume ], [ %left.next, %resume_lane ]
  %lane = call i32 @oxide.pick(ptr %block, i32 %left, i1 %seeded)
  %thread = or i32 %first, %lane
  %thread.wide = zext i32 %thread to i64
  %offset = mul i64 %thread.wide, %stride
  %frame = getelementptr i8, ptr %frames, i64 %offset
  call void @llvm.coro.resume(ptr %frame)
  %lane.bit = shl i32 1, %lane
  %left.next = xor i32 %left, %lane.bit
  %more = icmp ne i32 %left.next, 0
  br i1 %more, label %resume_lane, label %ran
ran:
  %waiting = load i32, {{waiting}}
  %nobody_waits = icmp eq i32 %waiting, 0
  br i1 %nobody_waits, label %warp_done, label %again
again:
  %alive = load i32, {{alive[i32 %number]}}
  %released = call i32 @oxide.release_lanes(ptr %block, i32 %alive)
  %stuck = icmp eq i32 %released, 0
  br i1 %stuck, label %stuck_lanes, label %pass
stuck_lanes:
  br i1 <polls>, label %perhaps_parked, label %deadlock
perhaps_parked:
  %parked = call i1 @oxide.park(ptr %block, i32 %number)
  br i1 %parked, label %warp_done, label %deadlock
warp_done:
  %warps.more = icmp ne i32 %to_come.next, 0
  br i1 %warps.more, label %warp, label %round_done
round_done:
  %live = load i32, {{live}}
  %finished = icmp eq i32 %live, 0
  br i1 %finished, label %done, label %unfinished
unfinished:
  br i1 <polls>, label %look_for_polls, label %barrier
look_for_polls:
  %polling.warps = load i32, {{polling.warps}}
  %no_polls = icmp eq i32 %polling.warps, 0
  br i1 %no_polls, label %barrier, label %progress
progress:
  ; In a round of polls only a thread whose wait has ended can have made progress.
  %passes = load i32, {{passes}}
  %passes.before = load i32, {{passes.before}}
  %no_passes = icmp eq i32 %passes, %passes.before
  %stalled = and i1 %polled, %no_passes
  br i1 %stalled, label %polls_for_ever, label %polls
poll_again:
  %passes.again = load i32, {{passes}}
  %polling.again = load i32, {{polling.warps}}
  br label %polls
polls:
  %passes.now = phi i32 [ %passes, %progress ], [ %passes.again, %poll_again ]
  %polling.all = phi i32 [ %polling.warps, %progress ], [ %polling.again, %poll_again ]
  store i32 %passes.now, {{passes.before}}
  store i32 0, {{polling.warps}}
  store i32 -1, {{polling.thread}}
  br label %warp
polls_for_ever:
  br i1 <cluster>, label %polls_others, label %polls_alone
polls_others:
  ret i32 2
polls_alone:
  call void @oxide.report_polling(ptr %block)
  br label %done
barrier:
  ; A thread that has not returned and is at no warp operation is at a barrier. If all these threads are at the same
  ; barrier, all have arrived.
  %least = load i32, {{least}}
  %greatest = load i32, {{greatest}}
  %one = icmp eq i32 %least, %greatest
  br i1 %one, label %next_round, label %divergent
next_round:
  %arrived = load i32, {{arrived}}
  store i32 %arrived, {{passed.arrived}}
  %count = load i32, {{count}}
  store i32 %count, {{passed.count}}
  store i32 0, {{arrived}}
  store i32 0, {{count}}
  store i32 -1, {{least}}
  store i32 0, {{greatest}}
  %grid = load i32, {{grid}}
  store i32 0, {{grid}}
  %whole_grid = icmp ne i32 %grid, 0
  br i1 %whole_grid, label %grid_barrier, label %round
grid_barrier:
  store i32 %least, {{grid.site}}
  %everybody = icmp eq i32 %arrived, %threads
  %enough = or i1 %everybody, <cluster>  ; a cluster's barrier does not wait for threads that have returned
  br i1 %enough, label %wait, label %returned
returned:
  call void @oxide.report_divergence(ptr %block, i32 %least, i32 %least, i32 2, i32 0)
  br label %done
wait:
  ret i32 1
divergent:
  call void @oxide.report_divergence(ptr %block, i32 %least, i32 %greatest, i32 0, i32 0)
  br label %done
deadlock:
  ; A lane waits for lanes that are at the barrier, or that wait with another mask.
  %stuck.waiting = load i32, {{waiting}}
  %stuck.lane = call i32 @llvm.cttz.i32(i32 %stuck.waiting, i1 true)
  %stuck.site = load i32, {{site[i32 %stuck.lane]}}
  %stuck.thread = or i32 %first, %stuck.lane
  %at_barrier = load i32, {{arrived}}
  %barrier.empty = icmp eq i32 %at_barrier, 0
  br i1 %barrier.empty, label %other_lane, label %other_barrier
other_barrier:
  %barrier.site = load i32, {{least}}
  br label %report
other_lane:
  %stuck.less = sub i32 %stuck.waiting, 1
  %stuck.rest = and i32 %stuck.waiting, %stuck.less
  %alone = icmp eq i32 %stuck.rest, 0
  %stuck.other = select i1 %alone, i32 %stuck.waiting, i32 %stuck.rest
  %other.lane = call i32 @llvm.cttz.i32(i32 %stuck.other, i1 true)
  %other.site = load i32, {{site[i32 %other.lane]}}
  br label %report
report:
  %other = phi i32 [ %barrier.site, %other_barrier ], [ %other.site, %other_lane ]
  call void @oxide.report_divergence(ptr %block, i32 %stuck.site, i32 %other, i32 1, i32 %stuck.thread)
  br label %done
done:
  ret i32 0
}

define internal void @oxide.clear_polls(ptr %block) noinline {
entry:
  store i32 0, {{passes}}
  store i32 0, {{polling.warps}}
  store i32 -1, {{polling.thread}}
  br label %next
next:
  %warp = phi i32 [ 0, %entry ], [ %warp.next, %next ]
  store i32 0, {{polling[i32 %warp]}}
  store i32 0, {{parked[i32 %warp, i32 0]}}
  %warp.next = add i32 %warp, 1
  %more = icmp ult i32 %warp.next, 32
  br i1 %more, label %next, label %group
group:
  %number = phi i32 [ 0, %next ], [ %number.next, %group ]
  store [4 x i32] [ i32 0, i32 128, i32 128, i32 0 ], {{warpgroups[i32 %number]}}
  %number.next = add i32 %number, 1
  %groups.more = icmp ult i32 %number.next, 8
  br i1 %groups.more, label %group, label %done
done:
  ret void
}

; Keeps the state of a warp whose lanes wait at warp operations, if other lanes of it poll. Returns whether they do.
define internal i1 @oxide.park(ptr %block, i32 %warp) noinline {
  %polling = load i32, {{polling[i32 %warp]}}
  %some = icmp ne i32 %polling, 0
  br i1 %some, label %park, label %done
park:
  %bytes.at = getelementptr <exchange>, ptr null, i32 1
  %bytes = ptrtoint ptr %bytes.at to i64
  call void @llvm.memcpy.p0.p0.i64({{parked[i32 %warp]}}, {{waiting}}, i64 %bytes, i1 false)
  store i32 0, {{waiting}}
  store i32 0, {{converging}}
  br label %done
done:
  ret i1 %some
}

; Restores the state of a warp that was parked. Returns its lanes that polled.
define internal i32 @oxide.unpark(ptr %block, i32 %warp) noinline {
  %polling = load i32, {{polling[i32 %warp]}}
  store i32 0, {{polling[i32 %warp]}}
  %waiting = load i32, {{parked[i32 %warp, i32 0]}}
  %parked = icmp ne i32 %waiting, 0
  br i1 %parked, label %restore, label %done
restore:
  %bytes.at = getelementptr <exchange>, ptr null, i32 1
  %bytes = ptrtoint ptr %bytes.at to i64
  call void @llvm.memcpy.p0.p0.i64({{waiting}}, {{parked[i32 %warp]}}, i64 %bytes, i1 false)
  store i32 0, {{parked[i32 %warp, i32 0]}}
  br label %done
done:
  ret i32 %polling
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal void @oxide.report_divergence(ptr %block, i32 %site, i32 %other, i32 %kind, i32 %thread) noinline cold {
  %other.wide = zext i32 %other to i64
  %kind.wide = zext i32 %kind to i64
  call void @oxide.report_waits(ptr %block, i32 %site, i64 %other.wide, i64 %kind.wide, i32 %thread)
  ret void
}

define internal void @oxide.report_waits(ptr %block, i32 %site, i64 %other.wide, i64 %kind.wide, i32 %thread)
    noinline cold {
  %record = load ptr, {{record}}
  %none = icmp eq ptr %record, null
  br i1 %none, label %done, label %claim
claim:
  %exchange = cmpxchg ptr %record, i32 0, i32 <divergent> monotonic monotonic
  %claimed = extractvalue { i32, i1 } %exchange, 1
  br i1 %claimed, label %fill, label %done
fill:
  %site.at = getelementptr i8, ptr %record, i64 <fault.site>
  store i32 %site, ptr %site.at
  %other.at = getelementptr i8, ptr %record, i64 <fault.index>
  store i64 %other.wide, ptr %other.at
  %kind.at = getelementptr i8, ptr %record, i64 <fault.length>
  store i64 %kind.wide, ptr %kind.at
  %id.at = getelementptr i8, ptr %record, i64 <fault.kernel_id>
  store i64 <kernel_id>, ptr %id.at
  %cx = load i32, {{ctaid[i32 0]}}
  %cx.at = getelementptr i8, ptr %record, i64 <fault.block[0]>
  store i32 %cx, ptr %cx.at
  %cy = load i32, {{ctaid[i32 1]}}
  %cy.at = getelementptr i8, ptr %record, i64 <fault.block[1]>
  store i32 %cy, ptr %cy.at
  %cz = load i32, {{ctaid[i32 2]}}
  %cz.at = getelementptr i8, ptr %record, i64 <fault.block[2]>
  store i32 %cz, ptr %cz.at
  %nx = load i32, {{ntid[i32 0]}}
  %ny = load i32, {{ntid[i32 1]}}
  %x = urem i32 %thread, %nx
  %rows = udiv i32 %thread, %nx
  %y = urem i32 %rows, %ny
  %z = udiv i32 %rows, %ny
  %x.at = getelementptr i8, ptr %record, i64 <fault.thread[0]>
  store i32 %x, ptr %x.at
  %y.at = getelementptr i8, ptr %record, i64 <fault.thread[1]>
  store i32 %y, ptr %y.at
  %z.at = getelementptr i8, ptr %record, i64 <fault.thread[2]>
  store i32 %z, ptr %z.at
  br label %done
done:
  ret void
}
