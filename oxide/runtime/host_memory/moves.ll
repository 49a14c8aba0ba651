; A row is destination, source, bytes and the address of memcpy.

define void @oxide_move(ptr %row) nounwind {
  %source_field = getelementptr i64, ptr %row, i64 1
  %size_field = getelementptr i64, ptr %row, i64 2
  %memcpy_field = getelementptr i64, ptr %row, i64 3
  %destination = load ptr, ptr %row
  %source = load ptr, ptr %source_field
  %size = load i64, ptr %size_field
  %memcpy = load ptr, ptr %memcpy_field
  %ignored = call ptr %memcpy(ptr %destination, ptr %source, i64 %size)
  ret void
}
