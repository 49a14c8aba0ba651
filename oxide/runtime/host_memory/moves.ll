define void @oxide_move(ptr %row) nounwind {
  %source_field = getelementptr i8, ptr %row, i64 <copy_row.source>
  %size_field = getelementptr i8, ptr %row, i64 <copy_row.length>
  %memcpy_field = getelementptr i8, ptr %row, i64 <copy_row.copier>
  %destination = load ptr, ptr %row
  %source = load ptr, ptr %source_field
  %size = load i64, ptr %size_field
  %memcpy = load ptr, ptr %memcpy_field
  %ignored = call ptr %memcpy(ptr %destination, ptr %source, i64 %size)
  ret void
}
