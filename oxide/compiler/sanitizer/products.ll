; The products of warpgroups in sanitized kernels, as LLVM IR. The CPU device computes a product at its call; a GPU ends it
; at the wait. So each thread keeps, in an array of words on its stack (``check_functions.py``), what its products still use:
;
; - ``products``: how many it has begun and ended, and the number of tiles;
; - a ``product_fragment`` for each fragment that products use;
; - a list with a ``product_tile`` for each of the last tiles that products read.
;
; An accumulator may be touched once a wait that names it has ended its last product, because only such a wait gives its
; registers back to the thread. An operand may be written once any wait has ended the product. Tiles count as read at
; the call and, once more, at the wait: so a tile that another thread may fill before the wait is in a race.

; Records that a product which now begins uses a fragment: its accumulator or its left operand.
define void @oxide.sanitize.product(ptr %context, ptr %own, i64 %slot, i64 %what) noinline {
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %who = call i64 @oxide.sanitize.who(ptr %context, ptr %state, i64 %what)
  %begun = load i64, ptr %own
  %number = add i64 %begun, 1
  %at = getelementptr i64, ptr %own, i64 %slot
  store i64 %number, ptr %at
  %who.at = getelementptr i8, ptr %at, i64 <product_fragment.who>
  store i64 %who, ptr %who.at
  ret void
}

; Counts the product, after its fragments and tiles.
define void @oxide.sanitize.begun(ptr %own) alwaysinline {
  %begun = load i64, ptr %own
  %number = add i64 %begun, 1
  store i64 %number, ptr %own
  ret void
}

; Adds to the list a tile that the next product reads.
define void @oxide.sanitize.tile(ptr %own, i64 %first, ptr %pointer, i64 %size, i64 %what, ptr %array, i64 %bytes,
    i64 %offset, i64 %shift) noinline {
  %count.at = getelementptr i8, ptr %own, i64 <products.tiles>
  %count = load i64, ptr %count.at
  %more = add i64 %count, 1
  store i64 %more, ptr %count.at
  %place = urem i64 %count, <tiles>
  %words = mul i64 %place, <tile_words>
  %word = add i64 %first, %words
  %at = getelementptr i64, ptr %own, i64 %word
  %begun = load i64, ptr %own
  %number = add i64 %begun, 1
  store i64 %number, ptr %at
  %pointer.at = getelementptr i8, ptr %at, i64 <product_tile.pointer>
  store ptr %pointer, ptr %pointer.at
  %size.at = getelementptr i8, ptr %at, i64 <product_tile.size>
  store i64 %size, ptr %size.at
  %what.at = getelementptr i8, ptr %at, i64 <product_tile.what>
  store i64 %what, ptr %what.at
  %array.at = getelementptr i8, ptr %at, i64 <product_tile.array>
  store ptr %array, ptr %array.at
  %bytes.at = getelementptr i8, ptr %at, i64 <product_tile.bytes>
  store i64 %bytes, ptr %bytes.at
  %offset.at = getelementptr i8, ptr %at, i64 <product_tile.offset>
  store i64 %offset, ptr %offset.at
  %shift.at = getelementptr i8, ptr %at, i64 <product_tile.shift>
  store i64 %shift, ptr %shift.at
  ret void
}

; Checks an access to a fragment: to an accumulator, or a write to a left operand (%any), which any wait gives back.
define void @oxide.sanitize.fragment(ptr %context, ptr %own, i64 %slot, i1 %any, i64 %what) noinline {
entry:
  %at = getelementptr i64, ptr %own, i64 %slot
  %number = load i64, ptr %at
  %unused = icmp eq i64 %number, 0
  %ended.at = getelementptr i8, ptr %own, i64 <products.ended>
  %ended = load i64, ptr %ended.at
  %over = icmp ule i64 %number, %ended
  %given.back = and i1 %over, %any
  %fine = or i1 %unused, %given.back
  %unasked = xor i1 <race>, true
  %passes = or i1 %fine, %unasked
  br i1 %passes, label %done, label %bad
bad:
  %state = call ptr @oxide.sanitize.enter(ptr %context)
  %who = call i64 @oxide.sanitize.who(ptr %context, ptr %state, i64 %what)
  %other.at = getelementptr i8, ptr %at, i64 <product_fragment.who>
  %other = load i64, ptr %other.at
  call void @oxide.sanitize.report(ptr %state, i64 <race_kind>, i64 %who, i64 0, i64 %other, i64 0)
  br label %done
done:
  ret void
}

; Ends the products before the last %pending, after a wait that names the accumulator of %slot.
define void @oxide.sanitize.products(ptr %context, ptr %own, i64 %slot, i64 %pending, i64 %first) noinline {
entry:
  %begun = load i64, ptr %own
  %enough = icmp ugt i64 %begun, %pending
  %less = sub i64 %begun, %pending
  %target = select i1 %enough, i64 %less, i64 0
  %at = getelementptr i64, ptr %own, i64 %slot
  %last = load i64, ptr %at
  %over = icmp ule i64 %last, %target
  %left = select i1 %over, i64 0, i64 %last
  store i64 %left, ptr %at
  %ended.at = getelementptr i8, ptr %own, i64 <products.ended>
  %ended = load i64, ptr %ended.at
  %news = icmp ugt i64 %target, %ended
  br i1 %news, label %tiles, label %done
tiles:
  store i64 %target, ptr %ended.at
  %count.at = getelementptr i8, ptr %own, i64 <products.tiles>
  %count = load i64, ptr %count.at
  %kept = call i64 @llvm.umin.i64(i64 %count, i64 <tiles>)
  %some = icmp ne i64 %kept, 0
  br i1 %some, label %next, label %done
next:
  %place = phi i64 [ 0, %tiles ], [ %place.next, %seen ]
  %words = mul i64 %place, <tile_words>
  %word = add i64 %first, %words
  %tile = getelementptr i64, ptr %own, i64 %word
  %number = load i64, ptr %tile
  %after = icmp ugt i64 %number, %ended
  %before = icmp ule i64 %number, %target
  %now = and i1 %after, %before
  br i1 %now, label %read, label %seen
read:
  %pointer.at = getelementptr i8, ptr %tile, i64 <product_tile.pointer>
  %pointer = load ptr, ptr %pointer.at
  %size.at = getelementptr i8, ptr %tile, i64 <product_tile.size>
  %size = load i64, ptr %size.at
  %what.at = getelementptr i8, ptr %tile, i64 <product_tile.what>
  %what = load i64, ptr %what.at
  %array.at = getelementptr i8, ptr %tile, i64 <product_tile.array>
  %array = load ptr, ptr %array.at
  %bytes.at = getelementptr i8, ptr %tile, i64 <product_tile.bytes>
  %bytes = load i64, ptr %bytes.at
  %offset.at = getelementptr i8, ptr %tile, i64 <product_tile.offset>
  %offset = load i64, ptr %offset.at
  %shift.at = getelementptr i8, ptr %tile, i64 <product_tile.shift>
  %shift = load i64, ptr %shift.at
  %same = call ptr @oxide.sanitize.shared(ptr %context, ptr %pointer, i64 %size, i64 1, i64 %what, ptr %array,
      i64 %bytes, i64 %offset, i64 %shift)
  br label %seen
seen:
  %place.next = add i64 %place, 1
  %more = icmp ult i64 %place.next, %kept
  br i1 %more, label %next, label %done
done:
  ret void
}
declare i64 @llvm.umin.i64(i64, i64)
