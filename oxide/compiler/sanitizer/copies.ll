; The asynchronous copies of sanitized kernels, as LLVM IR: each thread keeps a list of those it has not waited for.

; Adds a copy to its thread's list. If the list is full, the copy counts as finished: that can hide a race.
define void @oxide.sanitize.copying(ptr %state, i64 %who, ptr %cell, i64 %cells) noinline {
  %thread.high = lshr i64 %who, 20
  %thread = and i64 %thread.high, 2047
  %count = load i64, {{pending[%thread]}}
  %full = icmp uge i64 %count, <max_copies>
  br i1 %full, label %finish, label %keep
finish:
  %now = load i64, {{now}}
  call void @oxide.sanitize.copied(ptr %cell, i64 %cells, i64 %now)
  ret void
keep:
  %entry.at = call ptr @oxide.sanitize.copy(ptr %state, i64 %thread, i64 %count)
  store ptr %cell, ptr %entry.at
  %cells.at = getelementptr i8, ptr %entry.at, i64 <sanitized_copy.cells>
  store i64 %cells, ptr %cells.at
  %closed = load i64, {{groups[%thread]}}
  %group = add i64 %closed, 1
  %group.at = getelementptr i8, ptr %entry.at, i64 <sanitized_copy.group>
  store i64 %group, ptr %group.at
  %more = add i64 %count, 1
  store i64 %more, {{pending[%thread]}}
  ret void
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

; Makes the writes of a finished copy plain ones of this time. Other writes to its cells stay.
define void @oxide.sanitize.copied(ptr %cell, i64 %cells, i64 %now) noinline {
entry:
  br label %next
next:
  %number = phi i64 [ 0, %entry ], [ %number.next, %kept ]
  %offset = mul i64 %number, <sanitized_cell.sizeof>
  %at = getelementptr i8, ptr %cell, i64 %offset
  %who.at = getelementptr i8, ptr %at, i64 <sanitized_access.who>
  %who = load i64, ptr %who.at
  %flags = and i64 %who, 7
  %copies = icmp eq i64 %flags, <asynchronous>
  br i1 %copies, label %change, label %kept
change:
  %plain = xor i64 %who, <scope_flag>
  store i64 %plain, ptr %who.at
  store i64 %now, ptr %at
  br label %kept
kept:
  %number.next = add i64 %number, 1
  %more = icmp ult i64 %number.next, %cells
  br i1 %more, label %next, label %done
done:
  ret void
}

; Closes a group of the thread's copies.
define void @oxide.sanitize.committed(ptr %context) noinline {
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %thread = call i64 @oxide.sanitize.thread(ptr %context)
  %closed = load i64, {{groups[%thread]}}
  %more = add i64 %closed, 1
  store i64 %more, {{groups[%thread]}}
  ret void
}

; Finishes the thread's copies in closed groups, except for the last %left groups.
define void @oxide.sanitize.waited(ptr %context, i64 %left) noinline {
entry:
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %thread = call i64 @oxide.sanitize.thread(ptr %context)
  %then = load i64, {{now}}
  %now = add i64 %then, 1
  store i64 %now, {{now}}
  %count = load i64, {{pending[%thread]}}
  %closed = load i64, {{groups[%thread]}}
  %last = sub i64 %closed, %left
  br label %next
next:
  %number = phi i64 [ 0, %entry ], [ %number.next, %looked ]
  %kept = phi i64 [ 0, %entry ], [ %kept.next, %looked ]
  %more = icmp ult i64 %number, %count
  br i1 %more, label %look, label %done
look:
  %at = call ptr @oxide.sanitize.copy(ptr %state, i64 %thread, i64 %number)
  %cell = load ptr, ptr %at
  %cells.at = getelementptr i8, ptr %at, i64 <sanitized_copy.cells>
  %cells = load i64, ptr %cells.at
  %group.at = getelementptr i8, ptr %at, i64 <sanitized_copy.group>
  %group = load i64, ptr %group.at
  %finished = icmp sle i64 %group, %last
  br i1 %finished, label %finish, label %keep
finish:
  call void @oxide.sanitize.copied(ptr %cell, i64 %cells, i64 %now)
  br label %looked
keep:
  %to = call ptr @oxide.sanitize.copy(ptr %state, i64 %thread, i64 %kept)
  store ptr %cell, ptr %to
  %to.cells = getelementptr i8, ptr %to, i64 <sanitized_copy.cells>
  store i64 %cells, ptr %to.cells
  %to.group = getelementptr i8, ptr %to, i64 <sanitized_copy.group>
  store i64 %group, ptr %to.group
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
