; Accesses to other blocks' shared memory in sanitized kernels, as LLVM IR. Each block of a cluster has a state of its own:
; state r follows state 0 by r times its size, and shares nothing with it but time (``cpu/coroutines/cluster.ll``).
;
; An access is checked by the accessing thread's state against the shadow of the other block's memory. The caller passes
; the address that has the same offset in its own block.

declare i32 @oxide.cluster.rank(ptr, i32)

; Checks an access to the place that block %rank has for %pointer, an address in this block's array. Returns the pointer,
; or the scratch area for an access out of bounds.
define ptr @oxide.sanitize.peer(ptr %context, i32 %rank, ptr %pointer, i64 %size, i64 %align, i64 %what, ptr %array,
    i64 %bytes, i64 %offset, i64 %shift) noinline {
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %who = call i64 @oxide.sanitize.who(ptr %context, ptr %state, i64 %what)
  %own.rank = call i32 @oxide.cluster.rank(ptr %context, i32 0)
  %steps = sub i32 %rank, %own.rank
  %steps.wide = sext i32 %steps to i64
  %distance = mul i64 %steps.wide, <state_bytes>
  %there = getelementptr i8, ptr %state, i64 %distance
  %init = call ptr @oxide.sanitize.shared_init(ptr %there)
  %cells = call ptr @oxide.sanitize.shared_cells(ptr %there)
  %lo = ptrtoint ptr %array to i64
  %hi = add i64 %lo, %bytes
  %start = sub i64 %lo, %offset
  %thread = call i64 @oxide.sanitize.thread(ptr %context)
  %own = load i64, {{known[%thread]}}
  %barrier = load i64, {{barrier}}
  %known = call i64 @llvm.umax.i64(i64 %own, i64 %barrier)
  %go = call ptr @oxide.sanitize.access(ptr %state, ptr %pointer, i64 %size, i64 %align, i64 %who, i64 %lo, i64 %hi,
      i64 %start, ptr %init, ptr %cells, i64 %shift, i64 %known)
  ret ptr %go
}

define ptr @oxide.sanitize.shared_init(ptr %state) alwaysinline {
  %init = load ptr, {{shared_init}}
  ret ptr %init
}

define ptr @oxide.sanitize.shared_cells(ptr %state) alwaysinline {
  %cells = load ptr, {{shared_cells}}
  ret ptr %cells
}

; Checks an access through another block's array. %base is the array's address in block %rank, %local the array's
; address in this block, and %pointer an address in the array at %base. Returns the address to access.
define ptr @oxide.sanitize.remote(ptr %context, ptr %pointer, i64 %size, i64 %align, i64 %what, i32 %rank, ptr %base,
    ptr %local, ptr %array, i64 %bytes, i64 %offset, i64 %shift) noinline {
  %at = ptrtoint ptr %pointer to i64
  %first = ptrtoint ptr %base to i64
  %distance = sub i64 %at, %first
  %same = getelementptr i8, ptr %local, i64 %distance
  %go = call ptr @oxide.sanitize.peer(ptr %context, i32 %rank, ptr %same, i64 %size, i64 %align, i64 %what, ptr %array,
      i64 %bytes, i64 %offset, i64 %shift)
  %inside = icmp eq ptr %go, %same
  %result = select i1 %inside, ptr %pointer, ptr %go
  ret ptr %result
}

; Checks a copy's access to the same place of each block in a mask.
define void @oxide.sanitize.peers(ptr %context, i32 %mask, ptr %pointer, i64 %size, i64 %align, i64 %what, ptr %array,
    i64 %bytes, i64 %offset, i64 %shift) noinline {
entry:
  br label %look
look:
  %left = phi i32 [ %mask, %entry ], [ %left.next, %next ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %next
next:
  %rank = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %go = call ptr @oxide.sanitize.peer(ptr %context, i32 %rank, ptr %pointer, i64 %size, i64 %align, i64 %what,
      ptr %array, i64 %bytes, i64 %offset, i64 %shift)
  %less = sub i32 %left, 1
  %left.next = and i32 %left, %less
  br label %look
done:
  ret void
}
declare i32 @llvm.cttz.i32(i32, i1)
