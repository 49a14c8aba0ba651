; The asynchronous copies of sanitized kernels, as LLVM IR. Each thread has a list of its copies that it has not waited
; for.
;
; A copy by ``store_tile`` is two entries: its read of the tile, which a wait for the reads ends, and its writes.

; Adds a copy to its thread's list, or a row to the last copy. If the list is full, the copy counts as finished: that can
; hide a race.
define void @oxide.sanitize.copying(ptr %state, i64 %who, ptr %cell, i64 %cells, i64 %kind) noinline {
entry:
  %thread.high = lshr i64 %who, 20
  %thread = and i64 %thread.high, 2047
  %count = load i64, {{pending[%thread]}}
  %closed = call i64 @oxide.sanitize.closed(ptr %state, i64 %thread, i64 %kind)
  %group = add i64 %closed, 1
  %none = icmp eq i64 %count, 0
  br i1 %none, label %new, label %look
look:
  %before = sub i64 %count, 1
  %last = call ptr @oxide.sanitize.copy(ptr %state, i64 %thread, i64 %before)
  %last.cell = load ptr, ptr %last
  %last.cells.at = getelementptr i8, ptr %last, i64 <sanitized_copy.cells>
  %last.cells = load i64, ptr %last.cells.at
  %last.rows.at = getelementptr i8, ptr %last, i64 <sanitized_copy.rows>
  %last.rows = load i64, ptr %last.rows.at
  %last.pitch.at = getelementptr i8, ptr %last, i64 <sanitized_copy.pitch>
  %last.pitch = load i64, ptr %last.pitch.at
  %last.kind.at = getelementptr i8, ptr %last, i64 <sanitized_copy.kind>
  %last.kind = load i64, ptr %last.kind.at
  %last.group.at = getelementptr i8, ptr %last, i64 <sanitized_copy.group>
  %last.group = load i64, ptr %last.group.at
  %here = ptrtoint ptr %cell to i64
  %there = ptrtoint ptr %last.cell to i64
  %way = sub i64 %here, %there
  %single = icmp eq i64 %last.rows, 1
  %pitch = select i1 %single, i64 %way, i64 %last.pitch
  %expected = mul i64 %last.rows, %pitch
  %follows = icmp eq i64 %way, %expected
  %as.long = icmp eq i64 %last.cells, %cells
  %alike = icmp eq i64 %last.kind, %kind
  %together = icmp eq i64 %last.group, %group
  %row = and i1 %follows, %as.long
  %same = and i1 %alike, %together
  %extends = and i1 %row, %same
  br i1 %extends, label %extend, label %new
extend:
  %rows = add i64 %last.rows, 1
  store i64 %rows, ptr %last.rows.at
  store i64 %pitch, ptr %last.pitch.at
  ret void
new:
  %full = icmp uge i64 %count, <max_copies>
  br i1 %full, label %finish, label %keep
finish:
  %now = load i64, {{now}}
  call void @oxide.sanitize.copied(ptr %state, i64 %thread, ptr %cell, i64 %cells, i64 1, i64 0, i64 %now)
  ret void
keep:
  %entry.at = call ptr @oxide.sanitize.copy(ptr %state, i64 %thread, i64 %count)
  store ptr %cell, ptr %entry.at
  %cells.at = getelementptr i8, ptr %entry.at, i64 <sanitized_copy.cells>
  store i64 %cells, ptr %cells.at
  %rows.at = getelementptr i8, ptr %entry.at, i64 <sanitized_copy.rows>
  store i64 1, ptr %rows.at
  %kind.at = getelementptr i8, ptr %entry.at, i64 <sanitized_copy.kind>
  store i64 %kind, ptr %kind.at
  %group.at = getelementptr i8, ptr %entry.at, i64 <sanitized_copy.group>
  store i64 %group, ptr %group.at
  %who.at = getelementptr i8, ptr %entry.at, i64 <sanitized_copy.who>
  store i64 %who, ptr %who.at
  %more = add i64 %count, 1
  store i64 %more, {{pending[%thread]}}
  ret void
}

; Returns the number of the thread's closed groups of copies of a kind.
define i64 @oxide.sanitize.closed(ptr %state, i64 %thread, i64 %kind) alwaysinline {
  %copies = load i64, {{groups[%thread]}}
  %stores = load i64, {{stores[%thread]}}
  %is.copy = icmp eq i64 %kind, 0
  %closed = select i1 %is.copy, i64 %copies, i64 %stores
  ret i64 %closed
}

; Returns the address of an entry of a thread's list.
define ptr @oxide.sanitize.copy(ptr %state, i64 %thread, i64 %number) alwaysinline {
  %copies = load ptr, {{copies}}
  %before = mul i64 %thread, <max_copies>
  %place = add i64 %before, %number
  %offset = mul i64 %place, <sanitized_copy.sizeof>
  %entry.at = getelementptr i8, ptr %copies, i64 %offset
  ret ptr %entry.at
}

; Turns the accesses of the thread's finished copy into plain accesses of this time. Other accesses to the copy's cells
; stay.
define void @oxide.sanitize.copied(ptr %state, i64 %thread, ptr %cell, i64 %cells, i64 %rows, i64 %pitch, i64 %now)
    noinline {
entry:
  %block = load i64, {{running}}
  %block.high = shl i64 %block, 12
  %own = or i64 %block.high, %thread
  %all = mul i64 %rows, %cells
  br label %next
next:
  %number = phi i64 [ 0, %entry ], [ %number.next, %next ]
  %row = udiv i64 %number, %cells
  %column = urem i64 %number, %cells
  %row.offset = mul i64 %row, %pitch
  %column.offset = mul i64 %column, <sanitized_cell.sizeof>
  %offset = add i64 %row.offset, %column.offset
  %at = getelementptr i8, ptr %cell, i64 %offset
  %read = getelementptr i8, ptr %at, i64 <sanitized_cell.read>
  %other_read = getelementptr i8, ptr %at, i64 <sanitized_cell.other_read>
  call void @oxide.sanitize.ended(ptr %at, i64 %own, i64 %now)
  call void @oxide.sanitize.ended(ptr %read, i64 %own, i64 %now)
  call void @oxide.sanitize.ended(ptr %other_read, i64 %own, i64 %now)
  %number.next = add i64 %number, 1
  %more = icmp ult i64 %number.next, %all
  br i1 %more, label %next, label %done
done:
  ret void
}

; Turns an access into a plain access of this time, if a copy of the thread and block %own made it.
define void @oxide.sanitize.ended(ptr %access, i64 %own, i64 %now) alwaysinline {
  %who.at = getelementptr i8, ptr %access, i64 <sanitized_access.who>
  %who = load i64, ptr %who.at
  %flags = and i64 %who, <plain_or_under_way>
  %copies = icmp eq i64 %flags, <under_way>
  %thread = lshr i64 %who, 20
  %same = icmp eq i64 %thread, %own
  %changes = and i1 %copies, %same
  br i1 %changes, label %change, label %done
change:
  %plain = xor i64 %who, <scope_flag>
  store i64 %plain, ptr %who.at
  store i64 %now, ptr %access
  br label %done
done:
  ret void
}

; Closes a group of the thread's copies by copy_async, or by store_tile.
define void @oxide.sanitize.committed(ptr %context, i1 %of.stores) noinline {
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %thread = call i64 @oxide.sanitize.thread(ptr %context)
  %copy = zext i1 %of.stores to i64
  %other = sub i64 1, %copy
  %groups = load i64, {{groups[%thread]}}
  %stores = load i64, {{stores[%thread]}}
  %groups.now = add i64 %groups, %other
  %stores.now = add i64 %stores, %copy
  store i64 %groups.now, {{groups[%thread]}}
  store i64 %stores.now, {{stores[%thread]}}
  ret void
}

; Finishes the thread's copies in closed groups, except for the last %left groups. %kinds has a bit for each kind that the
; wait ends.
define void @oxide.sanitize.waited(ptr %context, i64 %left, i64 %kinds) noinline {
entry:
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %thread = call i64 @oxide.sanitize.thread(ptr %context)
  %then = load i64, {{now}}
  %now = add i64 %then, 1
  store i64 %now, {{now}}
  %count = load i64, {{pending[%thread]}}
  br label %next
next:
  %number = phi i64 [ 0, %entry ], [ %number.next, %looked ]
  %kept = phi i64 [ 0, %entry ], [ %kept.next, %looked ]
  %more = icmp ult i64 %number, %count
  br i1 %more, label %look, label %done
look:
  %at = call ptr @oxide.sanitize.copy(ptr %state, i64 %thread, i64 %number)
  %kind.at = getelementptr i8, ptr %at, i64 <sanitized_copy.kind>
  %kind = load i64, ptr %kind.at
  %bit = shl i64 1, %kind
  %asked = and i64 %bit, %kinds
  %of.kind = icmp ne i64 %asked, 0
  %closed = call i64 @oxide.sanitize.closed(ptr %state, i64 %thread, i64 %kind)
  %last = sub i64 %closed, %left
  %group.at = getelementptr i8, ptr %at, i64 <sanitized_copy.group>
  %group = load i64, ptr %group.at
  %over = icmp sle i64 %group, %last
  %finished = and i1 %of.kind, %over
  br i1 %finished, label %finish, label %keep
finish:
  %cell = load ptr, ptr %at
  %cells.at = getelementptr i8, ptr %at, i64 <sanitized_copy.cells>
  %cells = load i64, ptr %cells.at
  %rows.at = getelementptr i8, ptr %at, i64 <sanitized_copy.rows>
  %rows = load i64, ptr %rows.at
  %pitch.at = getelementptr i8, ptr %at, i64 <sanitized_copy.pitch>
  %pitch = load i64, ptr %pitch.at
  call void @oxide.sanitize.copied(ptr %state, i64 %thread, ptr %cell, i64 %cells, i64 %rows, i64 %pitch, i64 %now)
  br label %looked
keep:
  %to = call ptr @oxide.sanitize.copy(ptr %state, i64 %thread, i64 %kept)
  call void @llvm.memmove.p0.p0.i64(ptr %to, ptr %at, i64 <sanitized_copy.sizeof>, i1 false)
  %kept.more = add i64 %kept, 1
  br label %looked
looked:
  %kept.next = phi i64 [ %kept, %finish ], [ %kept.more, %keep ]
  %number.next = add i64 %number, 1
  br label %next
done:
  store i64 %kept, {{pending[%thread]}}
  ret void
}
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)

; Reports the copies by store_tile that still read their tiles as the thread ends.
define void @oxide.sanitize.stores_left(ptr %context) noinline {
entry:
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %thread = call i64 @oxide.sanitize.thread(ptr %context)
  %count = load i64, {{pending[%thread]}}
  br label %next
next:
  %number = phi i64 [ 0, %entry ], [ %number.next, %looked ]
  %more = icmp ult i64 %number, %count
  br i1 %more, label %look, label %done
look:
  %at = call ptr @oxide.sanitize.copy(ptr %state, i64 %thread, i64 %number)
  %kind.at = getelementptr i8, ptr %at, i64 <sanitized_copy.kind>
  %kind = load i64, ptr %kind.at
  %reads = icmp eq i64 %kind, 1
  br i1 %reads, label %report, label %looked
report:
  %who.at = getelementptr i8, ptr %at, i64 <sanitized_copy.who>
  %who = load i64, ptr %who.at
  call void @oxide.sanitize.report(ptr %state, i64 <unfinished_store>, i64 %who, i64 0, i64 0, i64 0)
  br label %looked
looked:
  %number.next = add i64 %number, 1
  br label %next
done:
  ret void
}
