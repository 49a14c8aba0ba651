define void @oxide_notify(ptr %record) nounwind {
  %one = alloca i64
  store i64 1, ptr %one
  %write_field = getelementptr i8, ptr %record, i64 <alarm.write>
  %wide = load i64, ptr %record
  %descriptor = trunc i64 %wide to i32
  %write = load ptr, ptr %write_field
  %written = call i64 %write(i32 %descriptor, ptr %one, i64 8)
  ret void
}
