; The clocks of a sanitized cluster on the CPU, as LLVM IR. Each block has a record of its own, a ``sanitized_state``, which
; counts accesses. A block that goes on continues at the latest count of its cluster.

define internal void @oxide.cluster.carry(ptr %blocks, ptr %block) noinline {
  %latest = call i64 @oxide.cluster.latest(ptr %blocks)
  %record = call ptr @oxide.cluster.record(ptr %block)
  %now.at = getelementptr i8, ptr %record, i64 <sanitized_state.now>
  store i64 %latest, ptr %now.at
  ret void
}

; Notes in all records that the cluster's blocks begin or have met.
define internal void @oxide.cluster.meet(ptr %blocks) noinline {
entry:
  %latest = call i64 @oxide.cluster.latest(ptr %blocks)
  %time = add i64 %latest, 1
  br label %next
next:
  %number = phi i32 [ 0, %entry ], [ %number.next, %next ]
  %at = getelementptr ptr, ptr %blocks, i32 %number
  %block = load ptr, ptr %at
  %record = call ptr @oxide.cluster.record(ptr %block)
  %now.at = getelementptr i8, ptr %record, i64 <sanitized_state.now>
  store i64 %time, ptr %now.at
  %met.at = getelementptr i8, ptr %record, i64 <sanitized_state.met>
  store i64 %time, ptr %met.at
  %number.next = add i32 %number, 1
  %more = icmp ult i32 %number.next, <blocks>
  br i1 %more, label %next, label %done
done:
  ret void
}

define internal i64 @oxide.cluster.latest(ptr %blocks) noinline {
entry:
  br label %next
next:
  %number = phi i32 [ 0, %entry ], [ %number.next, %next ]
  %latest = phi i64 [ 0, %entry ], [ %latest.next, %next ]
  %at = getelementptr ptr, ptr %blocks, i32 %number
  %block = load ptr, ptr %at
  %record = call ptr @oxide.cluster.record(ptr %block)
  %now.at = getelementptr i8, ptr %record, i64 <sanitized_state.now>
  %now = load i64, ptr %now.at
  %later = icmp ugt i64 %now, %latest
  %latest.next = select i1 %later, i64 %now, i64 %latest
  %number.next = add i32 %number, 1
  %more = icmp ult i32 %number.next, <blocks>
  br i1 %more, label %next, label %done
done:
  ret i64 %latest.next
}

define internal ptr @oxide.cluster.record(ptr %block) alwaysinline {
  %record = load ptr, {{record}}
  ret ptr %record
}
