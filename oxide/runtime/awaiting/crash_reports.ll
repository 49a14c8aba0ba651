; A signal handler that names the kernel whose code was running. It calls only functions that a handler may call: write
; and sigaction, by their addresses.
;
; A call with signal 0 stores the address of a crash_table (driver/records.py), its second argument, for later signals.

@table = internal global ptr null

define void @oxide_crash(i32 %signal, ptr %info, ptr %context) nounwind {
entry:
  %asked = icmp eq i32 %signal, 0
  br i1 %asked, label %take, label %crashed
take:
  store atomic ptr %info, ptr @table release, align 8
  ret void
crashed:
  %known = load atomic ptr, ptr @table acquire, align 8
  %write = load ptr, ptr %known
  %sigaction.at = getelementptr i8, ptr %known, i64 <crash_table.sigaction>
  %sigaction = load ptr, ptr %sigaction.at
  %before.at = getelementptr i8, ptr %known, i64 <crash_table.counter_at>
  %before = load i64, ptr %before.at
  %count.at = getelementptr i8, ptr %known, i64 <crash_table.count>
  %count = load i64, ptr %count.at
  %records.at = getelementptr i8, ptr %known, i64 <crash_table.kernels>
  %records = load ptr, ptr %records.at
  %counter.at = getelementptr i8, ptr %context, i64 %before
  %counter = load i64, ptr %counter.at
  br label %next
next:
  %left = phi i64 [ %count, %crashed ], [ %number, %look ]
  %none = icmp eq i64 %left, 0
  br i1 %none, label %pass_on, label %look
look:
  %number = sub i64 %left, 1
  %offset = mul i64 %number, <crash_kernel.sizeof>
  %record = getelementptr i8, ptr %records, i64 %offset
  %first = load i64, ptr %record
  %end.at = getelementptr i8, ptr %record, i64 <crash_kernel.end>
  %end = load i64, ptr %end.at
  %after = icmp uge i64 %counter, %first
  %inside = icmp ult i64 %counter, %end
  %here = and i1 %after, %inside
  br i1 %here, label %tell, label %next
tell:
  %text.at = getelementptr i8, ptr %record, i64 <crash_kernel.text>
  %text = load ptr, ptr %text.at
  %length.at = getelementptr i8, ptr %record, i64 <crash_kernel.length>
  %length = load i64, ptr %length.at
  %written = call i64 %write(i32 2, ptr %text, i64 %length)
  br label %pass_on
pass_on:
  ; After the return the instruction runs and fails again: then the signal's previous action handles the failure.
  %signal.wide = zext i32 %signal to i64
  %all.old.at = getelementptr i8, ptr %known, i64 <crash_table.before>
  %old.at = getelementptr i64, ptr %all.old.at, i64 %signal.wide
  %old = load ptr, ptr %old.at
  %restored = call i32 %sigaction(i32 %signal, ptr %old, ptr null)
  ret void
}
