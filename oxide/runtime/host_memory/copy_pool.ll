; driver/records.py declares the pool's fields, and copy_pool.py describes the protocol. The generation is the first
; field, so its futex has the pool's address. <pause> stands for the processor's instruction for a loop that polls.

<declared>

define internal void @share(ptr %pool) alwaysinline nounwind {
  %next = getelementptr i8, ptr %pool, i64 <copy_pool.next>
  %piece_field = getelementptr i8, ptr %pool, i64 <copy_pool.piece>
  %memcpy_field = getelementptr i8, ptr %pool, i64 <copy_pool.memcpy>
  %job = getelementptr i8, ptr %pool, i64 <copy_pool.destination>
  %source_field = getelementptr i8, ptr %pool, i64 <copy_pool.source>
  %size_field = getelementptr i8, ptr %pool, i64 <copy_pool.length>
  %piece = load i64, ptr %piece_field
  %memcpy = load ptr, ptr %memcpy_field
  %destination = load ptr, ptr %job
  %source = load ptr, ptr %source_field
  %size = load i64, ptr %size_field
  br label %claim
claim:
  %begin = atomicrmw add ptr %next, i64 %piece seq_cst
  %left = sub i64 %size, %begin
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %copy, label %done
copy:
  %whole = icmp sgt i64 %left, %piece
  %bytes = select i1 %whole, i64 %piece, i64 %left
  %to = getelementptr i8, ptr %destination, i64 %begin
  %from = getelementptr i8, ptr %source, i64 %begin
  %ignored = call ptr %memcpy(ptr %to, ptr %from, i64 %bytes)
  br label %claim
done:
  ret void
}

define void @oxide_copy_together(ptr %row) nounwind {
  %row_source = getelementptr i8, ptr %row, i64 <copy_row.source>
  %row_size = getelementptr i8, ptr %row, i64 <copy_row.length>
  %row_pool = getelementptr i8, ptr %row, i64 <copy_row.copier>
  %destination = load ptr, ptr %row
  %source = load ptr, ptr %row_source
  %size = load i64, ptr %row_size
  %pool = load ptr, ptr %row_pool
  %busy = getelementptr i8, ptr %pool, i64 <copy_pool.busy>
  %open = getelementptr i8, ptr %pool, i64 <copy_pool.open>
  %next = getelementptr i8, ptr %pool, i64 <copy_pool.next>
  %inside = getelementptr i8, ptr %pool, i64 <copy_pool.inside>
  %memcpy_field = getelementptr i8, ptr %pool, i64 <copy_pool.memcpy>
  %syscall_field = getelementptr i8, ptr %pool, i64 <copy_pool.syscall>
  %yield_field = getelementptr i8, ptr %pool, i64 <copy_pool.sched_yield>
  %futex_field = getelementptr i8, ptr %pool, i64 <copy_pool.futex>
  %helpers_field = getelementptr i8, ptr %pool, i64 <copy_pool.helpers>
  %looks_field = getelementptr i8, ptr %pool, i64 <copy_pool.looks>
  %job = getelementptr i8, ptr %pool, i64 <copy_pool.destination>
  %source_field = getelementptr i8, ptr %pool, i64 <copy_pool.source>
  %size_field = getelementptr i8, ptr %pool, i64 <copy_pool.length>
  %swap = cmpxchg ptr %busy, i32 0, i32 1 seq_cst seq_cst
  %mine = extractvalue { i32, i1 } %swap, 1
  br i1 %mine, label %together, label %alone
alone:
  %memcpy = load ptr, ptr %memcpy_field
  %ignored = call ptr %memcpy(ptr %destination, ptr %source, i64 %size)
  ret void
together:
  store ptr %destination, ptr %job
  store ptr %source, ptr %source_field
  store i64 %size, ptr %size_field
  store atomic i64 0, ptr %next seq_cst, align 8
  store atomic i32 1, ptr %open seq_cst, align 4
  %generation = atomicrmw add ptr %pool, i32 1 seq_cst
  %syscall = load ptr, ptr %syscall_field
  %futex = load i64, ptr %futex_field
  %helpers = load i64, ptr %helpers_field
  %yield = load ptr, ptr %yield_field
  %looks = load i64, ptr %looks_field
  %woken = call i64 (i64, ...) %syscall(i64 %futex, ptr %pool, i64 129, i64 %helpers)  ; FUTEX_WAKE_PRIVATE
  call void @share(ptr %pool)
  store atomic i32 0, ptr %open seq_cst, align 4
  br label %check
check:
  %waited = phi i64 [ 0, %together ], [ %waits, %wait ], [ %waited, %give_way ]
  %left = load atomic i64, ptr %inside seq_cst, align 8
  %all_out = icmp eq i64 %left, 0
  br i1 %all_out, label %done, label %not_yet
not_yet:
  %long = icmp eq i64 %waited, %looks
  br i1 %long, label %give_way, label %wait
wait:
  <pause>
  %waits = add i64 %waited, 1
  br label %check
give_way:
  %yielded = call i32 %yield()  ; a helper has not finished and may be waiting for this core
  br label %check
done:
  store atomic i32 0, ptr %busy seq_cst, align 4
  ret void
}

define ptr @oxide_copy_help(ptr %pool) nounwind {
entry:
  %open = getelementptr i8, ptr %pool, i64 <copy_pool.open>
  %inside = getelementptr i8, ptr %pool, i64 <copy_pool.inside>
  %syscall_field = getelementptr i8, ptr %pool, i64 <copy_pool.syscall>
  %futex_field = getelementptr i8, ptr %pool, i64 <copy_pool.futex>
  %looks_field = getelementptr i8, ptr %pool, i64 <copy_pool.looks>
  %syscall = load ptr, ptr %syscall_field
  %futex = load i64, ptr %futex_field
  %looks = load i64, ptr %looks_field
  br label %again
again:
  %generation = load atomic i32, ptr %pool seq_cst, align 4
  %entered = atomicrmw add ptr %inside, i64 1 seq_cst
  %state = load atomic i32, ptr %open seq_cst, align 4
  %is_open = icmp ne i32 %state, 0
  br i1 %is_open, label %work, label %leave
work:
  call void @share(ptr %pool)
  br label %leave
leave:
  %left = atomicrmw sub ptr %inside, i64 1 seq_cst
  br label %look
look:
  %count = phi i64 [ 0, %leave ], [ %counted, %pause ]
  %now = load atomic i32, ptr %pool seq_cst, align 4
  %same = icmp eq i32 %now, %generation
  br i1 %same, label %tired, label %again
tired:
  %enough = icmp eq i64 %count, %looks
  br i1 %enough, label %sleep, label %pause
pause:
  %counted = add i64 %count, 1
  <pause>
  br label %look
sleep:
  %woken = call i64 (i64, ...) %syscall(i64 %futex, ptr %pool, i64 128, i32 %generation, ptr null)  ; FUTEX_WAIT_PRIVATE
  br label %again
}
