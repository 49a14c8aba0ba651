; The functions that sanitized code calls. ``check_functions.py`` replaces the names in braces and in angle brackets.

declare i32 @oxide.register.tid.x(ptr)
declare i32 @oxide.register.ctaid.x(ptr)
declare i32 @oxide.register.ctaid.y(ptr)
declare i32 @oxide.register.ctaid.z(ptr)
declare i32 @oxide.register.ntid.x(ptr)
declare i32 @oxide.register.ntid.y(ptr)
declare i32 @oxide.register.ntid.z(ptr)
declare i32 @oxide.register.nctaid.x(ptr)
declare i32 @oxide.register.nctaid.y(ptr)
declare i32 @oxide.linear_thread(ptr)
declare ptr @oxide.fault_record(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.cttz.i64(i64, i1)

; Returns the launch's state, after noting the running block in it.
define ptr @oxide.sanitize.enter(ptr %context) alwaysinline {
  %state = call ptr @oxide.fault_record(ptr %context)
  %x = call i32 @oxide.register.ctaid.x(ptr %context)
  %y = call i32 @oxide.register.ctaid.y(ptr %context)
  %z = call i32 @oxide.register.ctaid.z(ptr %context)
  %nx = call i32 @oxide.register.nctaid.x(ptr %context)
  %ny = call i32 @oxide.register.nctaid.y(ptr %context)
  %x.wide = zext i32 %x to i64
  %y.wide = zext i32 %y to i64
  %z.wide = zext i32 %z to i64
  %nx.wide = zext i32 %nx to i64
  %ny.wide = zext i32 %ny to i64
  %planes = mul i64 %z.wide, %ny.wide
  %rows = add i64 %planes, %y.wide
  %before = mul i64 %rows, %nx.wide
  %block = add i64 %before, %x.wide
  %old = load i64, {{running}}
  %same = icmp eq i64 %old, %block
  br i1 %same, label %done, label %begin
begin:
  call void @oxide.sanitize.begin(ptr %context, ptr %state, i64 %block)
  br label %done
done:
  ret ptr %state
}

define void @oxide.sanitize.begin(ptr %context, ptr %state, i64 %block) noinline {
  store i64 %block, {{running}}
  %now = load i64, {{now}}
  %tick = add i64 %now, 1
  store i64 %tick, {{now}}
  %met = load i64, {{met}}
  %in.cluster = icmp ne i64 %met, 0
  %first = select i1 %in.cluster, i64 %met, i64 %tick  ; the blocks of a cluster begin together
  store i64 %first, {{barrier}}
  store i64 %first, {{begun}}
  store i64 0, {{phase}}
  %grid.known = load i64, {{grid_known}}
  store i64 %grid.known, {{block_known}}
  store i64 %grid.known, {{pending_known}}
  %nx = call i32 @oxide.register.ntid.x(ptr %context)
  %ny = call i32 @oxide.register.ntid.y(ptr %context)
  %nz = call i32 @oxide.register.ntid.z(ptr %context)
  %plane = mul i32 %nx, %ny
  %threads = mul i32 %plane, %nz
  %threads.wide = zext i32 %threads to i64
  %bytes = mul i64 %threads.wide, 8
  call void @llvm.memset.p0.i64({{passed}}, i8 0, i64 %bytes, i1 false)
  call void @llvm.memset.p0.i64({{released}}, i8 0, i64 %bytes, i1 false)
  call void @llvm.memset.p0.i64({{acquired}}, i8 0, i64 %bytes, i1 false)
  call void @llvm.memset.p0.i64({{known}}, i8 0, i64 %bytes, i1 false)
  call void @llvm.memset.p0.i64({{pending}}, i8 0, i64 %bytes, i1 false)
  call void @llvm.memset.p0.i64({{groups}}, i8 0, i64 %bytes, i1 false)
  %shared = load i64, {{shared_bytes}}
  %inits = load ptr, {{shared_inits}}
  %alone = icmp eq ptr %inits, null
  br i1 %alone, label %look, label %choose
choose:
  ; All blocks live at once: each has its own shadow, which is not cleared.
  %inits.before = mul i64 %block, %shared
  %own = getelementptr i8, ptr %inits, i64 %inits.before
  store ptr %own, {{shared_init}}
  br label %done
look:
  %init = load ptr, {{shared_init}}
  %none = icmp eq ptr %init, null
  br i1 %none, label %done, label %clear
clear:
  call void @llvm.memset.p0.i64(ptr %init, i8 0, i64 %shared, i1 false)
  br label %done
done:
  ret void
}

define i64 @oxide.sanitize.thread(ptr %context) alwaysinline {
  %narrow = call i32 @oxide.linear_thread(ptr %context)
  %thread = zext i32 %narrow to i64
  ret i64 %thread
}

; Reports once for each kind and pair of accesses. %start is the beginning of the array that the access should be in,
; or 0 if it is not known.
define void @oxide.sanitize.report(ptr %state, i64 %kind, i64 %who, i64 %address, i64 %other, i64 %start)
    noinline cold {
entry:
  %outside = icmp eq i64 %kind, <out_of_bounds>
  %unwritten = icmp eq i64 %kind, <uninitialized>
  %made_up = or i1 %outside, %unwritten
  %stays = load i64, {{leaves}}
  %leaves = select i1 %made_up, i64 1, i64 %stays
  store i64 %leaves, {{leaves}}
  %count = load i64, {{reports}}
  %place = and i64 %who, 1048560
  %other.place = and i64 %other, 1048560
  br label %next
next:
  %number = phi i64 [ 0, %entry ], [ %number.next, %different ]
  %last = icmp eq i64 %number, %count
  br i1 %last, label %new, label %compare
compare:
  %offset = mul i64 %number, <sanitized_report.sizeof>
  %old = getelementptr i8, {{report}}, i64 %offset
  %old.kind = load i64, ptr %old
  %old.who.at = getelementptr i8, ptr %old, i64 <sanitized_report.who>
  %old.who = load i64, ptr %old.who.at
  %old.place = and i64 %old.who, 1048560
  %old.other.at = getelementptr i8, ptr %old, i64 <sanitized_report.other>
  %old.other = load i64, ptr %old.other.at
  %old.other.place = and i64 %old.other, 1048560
  %a = icmp eq i64 %old.kind, %kind
  %b = icmp eq i64 %old.place, %place
  %c = icmp eq i64 %old.other.place, %other.place
  %ab = and i1 %a, %b
  %abc = and i1 %ab, %c
  br i1 %abc, label %done, label %different
different:
  %number.next = add i64 %number, 1
  br label %next
new:
  %full = icmp uge i64 %count, <max_reports>
  br i1 %full, label %done, label %write
write:
  %at.offset = mul i64 %count, <sanitized_report.sizeof>
  %at = getelementptr i8, {{report}}, i64 %at.offset
  store i64 %kind, ptr %at
  %who.at = getelementptr i8, ptr %at, i64 <sanitized_report.who>
  store i64 %who, ptr %who.at
  %address.at = getelementptr i8, ptr %at, i64 <sanitized_report.address>
  store i64 %address, ptr %address.at
  %other.at = getelementptr i8, ptr %at, i64 <sanitized_report.other>
  store i64 %other, ptr %other.at
  %start.at = getelementptr i8, ptr %at, i64 <sanitized_report.start>
  store i64 %start, ptr %start.at
  %more = add i64 %count, 1
  store i64 %more, {{reports}}
  br label %done
done:
  ret void
}

; Returns whether the thread's last checked access gave a value that the thread can continue with. Resets the flag.
define i1 @oxide.sanitize.goes_on(ptr %context) alwaysinline {
  %state = call ptr @oxide.fault_record(ptr %context)
  %leaves = load i64, {{leaves}}
  store i64 0, {{leaves}}
  %result = icmp eq i64 %leaves, 0
  ret i1 %result
}

; Checks one access to [%lo, %hi). Shadow is indexed from %start: %init has a byte for each byte of memory, which is 1
; once that byte is written, and %cells has the cells of ``races.ll``. Returns the address to access: the scratch area
; if the access is out of bounds. An access of 0 bytes is not checked.
define ptr @oxide.sanitize.access(ptr %state, ptr %pointer, i64 %size, i64 %align, i64 %who, i64 %lo, i64 %hi,
    i64 %start, ptr %init, ptr %cells, i64 %shift, i64 %known) noinline {
entry:
  %none = icmp eq i64 %size, 0
  br i1 %none, label %go, label %some
some:
  %at = ptrtoint ptr %pointer to i64
  %end = add i64 %at, %size
  %above = icmp uge i64 %at, %lo
  %below = icmp ule i64 %end, %hi
  %within = icmp ult i64 %at, %hi
  %both = and i1 %above, %below
  %inside = and i1 %both, %within
  br i1 %inside, label %aligned, label %outside
outside:
  br i1 <memory>, label %outside.report, label %go
outside.report:
  call void @oxide.sanitize.report(ptr %state, i64 <out_of_bounds>, i64 %who, i64 %at, i64 0, i64 %lo)
  %scratch = getelementptr i8, {{scratch}}, i64 0
  ret ptr %scratch
aligned:
  %mask = sub i64 %align, 1
  %low = and i64 %at, %mask
  %is_aligned = icmp eq i64 %low, 0
  %unasked = xor i1 <memory>, true
  %fine = or i1 %is_aligned, %unasked
  br i1 %fine, label %values, label %misaligned
misaligned:
  call void @oxide.sanitize.report(ptr %state, i64 <misaligned>, i64 %who, i64 %at, i64 0, i64 %lo)
  br label %values
values:
  %offset = sub i64 %at, %start
  %tracked = icmp ne ptr %init, null
  %look = and i1 %tracked, <memory>
  br i1 %look, label %value, label %order
value:
  %bytes = getelementptr i8, ptr %init, i64 %offset
  %only_write.bits = and i64 %who, 9
  %only_write = icmp eq i64 %only_write.bits, 1
  br i1 %only_write, label %written, label %read
read:
  %byte = phi i64 [ 0, %value ], [ %byte.next, %read_more ]
  %byte.at = getelementptr i8, ptr %bytes, i64 %byte
  %flag = load i8, ptr %byte.at
  %unwritten = icmp eq i8 %flag, 0
  br i1 %unwritten, label %uninitialized, label %read_more
read_more:
  %byte.next = add i64 %byte, 1
  %byte.more = icmp ult i64 %byte.next, %size
  br i1 %byte.more, label %read, label %was_read
uninitialized:
  call void @oxide.sanitize.report(ptr %state, i64 <uninitialized>, i64 %who, i64 %at, i64 0, i64 %lo)
  br label %was_read
was_read:
  %is_write = trunc i64 %who to i1
  br i1 %is_write, label %written, label %order
written:
  call void @llvm.memset.p0.i64(ptr %bytes, i8 1, i64 %size, i1 false)
  br label %order
order:
  %has_cells = icmp ne ptr %cells, null
  %check = and i1 %has_cells, <race>
  br i1 %check, label %cell, label %go
cell:
  %first = lshr i64 %offset, %shift
  %last.byte = add i64 %offset, %size
  %last.inside = sub i64 %last.byte, 1
  %last = lshr i64 %last.inside, %shift
  br label %next
next:
  %number = phi i64 [ %first, %cell ], [ %number.next, %next ]
  %cell.offset = mul i64 %number, <sanitized_cell.sizeof>
  %cell.at = getelementptr i8, ptr %cells, i64 %cell.offset
  call void @oxide.sanitize.race(ptr %state, ptr %cell.at, i64 %who, i64 %known, i64 %at)
  %number.next = add i64 %number, 1
  %more = icmp ule i64 %number.next, %last
  br i1 %more, label %next, label %done
done:
  %flags = and i64 %who, <plain_or_under_way>
  %copies = icmp eq i64 %flags, <under_way>
  br i1 %copies, label %copy, label %go
copy:
  %first.offset = mul i64 %first, <sanitized_cell.sizeof>
  %first.at = getelementptr i8, ptr %cells, i64 %first.offset
  %between = sub i64 %last, %first
  %cell.count = add i64 %between, 1
  ; copy_async writes shared memory only, and store_tile other memory only.
  %own.cells = load ptr, {{shared_cells}}
  %in.shared = icmp eq ptr %cells, %own.cells
  %written.kind = select i1 %in.shared, i64 0, i64 2
  %writes = trunc i64 %who to i1
  %kind = select i1 %writes, i64 %written.kind, i64 1
  call void @oxide.sanitize.copying(ptr %state, i64 %who, ptr %first.at, i64 %cell.count, i64 %kind)
  br label %go
go:
  ret ptr %pointer
}

define i64 @oxide.sanitize.who(ptr %context, ptr %state, i64 %what) alwaysinline {
  %now = load i64, {{now}}
  %tick = add i64 %now, 1
  store i64 %tick, {{now}}
  %thread = call i64 @oxide.sanitize.thread(ptr %context)
  %thread.high = shl i64 %thread, 20
  %block = load i64, {{running}}
  %block.high = shl i64 %block, 32
  %place = or i64 %thread.high, %block.high
  %who = or i64 %place, %what
  ret i64 %who
}

; Reports the lanes that a warp operation with this mask needs and that took no part.
define void @oxide.sanitize.lanes(ptr %context, i32 %missing, i32 %mask, i64 %what) noinline {
entry:
  %none = icmp eq i32 %missing, 0
  br i1 %none, label %done, label %found
found:
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %who = call i64 @oxide.sanitize.who(ptr %context, ptr %state, i64 %what)
  %lanes = zext i32 %missing to i64
  %named = zext i32 %mask to i64
  call void @oxide.sanitize.report(ptr %state, i64 <missing_lanes>, i64 %who, i64 %lanes, i64 0, i64 %named)
  br label %done
done:
  ret void
}

; Checks an access to the device memory of a view's parameter. View -1 stands for any parameter; view -2 also for
; memory of no parameter.
define ptr @oxide.sanitize.device(ptr %context, ptr %pointer, i64 %size, i64 %align, i64 %what, i64 %view)
    noinline {
entry:
  %none = icmp eq i64 %size, 0
  br i1 %none, label %go_on, label %some
some:
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %who = call i64 @oxide.sanitize.who(ptr %context, ptr %state, i64 %what)
  %views = load ptr, {{views}}
  %count = load i64, {{view_count}}
  %at = ptrtoint ptr %pointer to i64
  %known_view = icmp sge i64 %view, 0
  br i1 %known_view, label %found, label %next
next:
  %number = phi i64 [ 0, %some ], [ %number.next, %other ]
  %past = icmp uge i64 %number, %count
  br i1 %past, label %unknown, label %try
try:
  %try.offset = mul i64 %number, <sanitized_view.sizeof>
  %try.lo.at = getelementptr i8, ptr %views, i64 %try.offset
  %try.lo = load i64, ptr %try.lo.at
  %try.hi.at = getelementptr i8, ptr %try.lo.at, i64 <sanitized_view.hi>
  %try.hi = load i64, ptr %try.hi.at
  %try.above = icmp uge i64 %at, %try.lo
  %try.below = icmp ult i64 %at, %try.hi
  %try.between = and i1 %try.above, %try.below
  %try.element = call i1 @oxide.sanitize.is_element(ptr %try.lo.at, i64 %at, i64 1)
  %try.in = and i1 %try.between, %try.element
  br i1 %try.in, label %found, label %other
other:
  %number.next = add i64 %number, 1
  br label %next
unknown:
  %nobody.knows = icmp eq i64 %view, -2
  %unasked = xor i1 <memory>, true
  %passes = or i1 %nobody.knows, %unasked
  br i1 %passes, label %go_on, label %outside
go_on:
  ret ptr %pointer
outside:
  call void @oxide.sanitize.report(ptr %state, i64 <out_of_bounds>, i64 %who, i64 %at, i64 0, i64 0)
  %scratch = getelementptr i8, {{scratch}}, i64 0
  ret ptr %scratch
found:
  %chosen = phi i64 [ %view, %some ], [ %number, %try ]
  %offset = mul i64 %chosen, <sanitized_view.sizeof>
  %lo.at = getelementptr i8, ptr %views, i64 %offset
  %lo = load i64, ptr %lo.at
  %hi.at = getelementptr i8, ptr %lo.at, i64 <sanitized_view.hi>
  %hi = load i64, ptr %hi.at
  %start.at = getelementptr i8, ptr %lo.at, i64 <sanitized_view.start>
  %start = load i64, ptr %start.at
  %init.at = getelementptr i8, ptr %lo.at, i64 <sanitized_view.init>
  %init = load ptr, ptr %init.at
  %cells.at = getelementptr i8, ptr %lo.at, i64 <sanitized_view.cells>
  %cells = load ptr, ptr %cells.at
  %shift.at = getelementptr i8, ptr %lo.at, i64 <sanitized_view.shift>
  %shift = load i64, ptr %shift.at
  %thread = call i64 @oxide.sanitize.thread(ptr %context)
  %own = load i64, {{known[%thread]}}
  %block = load i64, {{block_known}}
  %known = call i64 @llvm.umax.i64(i64 %own, i64 %block)
  %element = call i1 @oxide.sanitize.is_element(ptr %lo.at, i64 %at, i64 %size)
  %end = select i1 %element, i64 %hi, i64 %lo
  %go = call ptr @oxide.sanitize.access(ptr %state, ptr %pointer, i64 %size, i64 %align, i64 %who, i64 %lo, i64 %end,
      i64 %start, ptr %init, ptr %cells, i64 %shift, i64 %known)
  ret ptr %go
}

; Returns whether an access between a view's first and last address is to an element of the view. Returns true for an
; access outside these addresses.
define i1 @oxide.sanitize.is_element(ptr %row, i64 %at, i64 %size) {
  %elements.at = getelementptr i8, ptr %row, i64 <sanitized_view.elements>
  %elements = load ptr, ptr %elements.at
  %all = icmp eq ptr %elements, null
  br i1 %all, label %yes, label %strided
strided:
  %lo = load i64, ptr %row
  %hi.at = getelementptr i8, ptr %row, i64 <sanitized_view.hi>
  %hi = load i64, ptr %hi.at
  %end = add i64 %at, %size
  %above = icmp uge i64 %at, %lo
  %below = icmp ule i64 %end, %hi
  %within = icmp ult i64 %at, %hi
  %both = and i1 %above, %below
  %inside = and i1 %both, %within
  br i1 %inside, label %look, label %yes
look:
  %first.offset = sub i64 %at, %lo
  %last.offset.past = sub i64 %end, %lo
  %last.offset = sub i64 %last.offset.past, 1
  %first.at = getelementptr i8, ptr %elements, i64 %first.offset
  %first = load i8, ptr %first.at
  %last.at = getelementptr i8, ptr %elements, i64 %last.offset
  %last = load i8, ptr %last.at
  %ends = and i8 %first, %last
  %result = icmp ne i8 %ends, 0
  ret i1 %result
yes:
  ret i1 true
}

; Checks an access to a shared array, at %offset in the block's shared memory.
define ptr @oxide.sanitize.shared(ptr %context, ptr %pointer, i64 %size, i64 %align, i64 %what, ptr %array,
    i64 %bytes, i64 %offset, i64 %shift) noinline {
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %who = call i64 @oxide.sanitize.who(ptr %context, ptr %state, i64 %what)
  %lo = ptrtoint ptr %array to i64
  %hi = add i64 %lo, %bytes
  %start = sub i64 %lo, %offset
  %init = load ptr, {{shared_init}}
  %cells = load ptr, {{shared_cells}}
  %thread = call i64 @oxide.sanitize.thread(ptr %context)
  %own = load i64, {{known[%thread]}}
  %barrier = load i64, {{barrier}}
  %known = call i64 @llvm.umax.i64(i64 %own, i64 %barrier)
  %go = call ptr @oxide.sanitize.access(ptr %state, ptr %pointer, i64 %size, i64 %align, i64 %who, i64 %lo, i64 %hi,
      i64 %start, ptr %init, ptr %cells, i64 %shift, i64 %known)
  ret ptr %go
}

; Checks an access to a thread's local array. Its shadow follows the array in memory.
define ptr @oxide.sanitize.local(ptr %context, ptr %pointer, i64 %size, i64 %align, i64 %what, ptr %array,
    i64 %bytes) noinline {
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %who = call i64 @oxide.sanitize.who(ptr %context, ptr %state, i64 %what)
  %lo = ptrtoint ptr %array to i64
  %hi = add i64 %lo, %bytes
  %init = getelementptr i8, ptr %array, i64 %bytes
  %go = call ptr @oxide.sanitize.access(ptr %state, ptr %pointer, i64 %size, i64 %align, i64 %who, i64 %lo, i64 %hi,
      i64 %lo, ptr %init, ptr null, i64 0, i64 0)
  ret ptr %go
}

; Checks an access to a constant array, which has no shadow: all threads share it and none writes it.
define ptr @oxide.sanitize.constant(ptr %context, ptr %pointer, i64 %size, i64 %align, i64 %what, ptr %array,
    i64 %bytes) noinline {
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %who = call i64 @oxide.sanitize.who(ptr %context, ptr %state, i64 %what)
  %lo = ptrtoint ptr %array to i64
  %hi = add i64 %lo, %bytes
  %go = call ptr @oxide.sanitize.access(ptr %state, ptr %pointer, i64 %size, i64 %align, i64 %who, i64 %lo, i64 %hi,
      i64 %lo, ptr null, ptr null, i64 0, i64 0)
  ret ptr %go
}

; Checks an access whose kind of memory is known only at run time.
define ptr @oxide.sanitize.chosen(ptr %context, ptr %pointer, i64 %size, i64 %align, i64 %what, i64 %view, i64 %kind,
    ptr %array, i64 %bytes, i64 %offset, i64 %shift) noinline {
  switch i64 %kind, label %stack [
    i64 0, label %device
    i64 1, label %shared
    i64 2, label %local
    i64 3, label %constant
  ]
device:
  %in.device = call ptr @oxide.sanitize.device(ptr %context, ptr %pointer, i64 %size, i64 %align, i64 %what, i64 %view)
  ret ptr %in.device
shared:
  %in.shared = call ptr @oxide.sanitize.shared(ptr %context, ptr %pointer, i64 %size, i64 %align, i64 %what,
      ptr %array, i64 %bytes, i64 %offset, i64 %shift)
  ret ptr %in.shared
local:
  %in.local = call ptr @oxide.sanitize.local(ptr %context, ptr %pointer, i64 %size, i64 %align, i64 %what,
      ptr %array, i64 %bytes)
  ret ptr %in.local
constant:
  %in.constant = call ptr @oxide.sanitize.constant(ptr %context, ptr %pointer, i64 %size, i64 %align, i64 %what,
      ptr %array, i64 %bytes)
  ret ptr %in.constant
stack:
  ret ptr %pointer
}
