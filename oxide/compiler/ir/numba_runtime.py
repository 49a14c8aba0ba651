"""Runtime functions that numba's lowering of arrays calls, as IR. numba-cuda defines these functions in CUDA C++."""

from __future__ import annotations


def definition(symbol: str) -> str | None:
    """Returns the definition of a runtime function, or None for any other symbol."""
    return _DEFINITIONS.get(symbol)


_DEFINITIONS = {
    # numba accepts `reshape` of contiguous arrays only. The strides then follow from the new shape, so any shape of the
    # same size needs no copy. Returns 1, or 0 if the sizes differ.
    "numba_attempt_nocopy_reshape": """
define i32 @numba_attempt_nocopy_reshape(i64 %nd, ptr %dims, ptr %strides, i64 %newnd, ptr %newdims, ptr %newstrides,
    i64 %itemsize, i32 %is_f_order) alwaysinline {
entry:
  br label %old
old:
  %i = phi i64 [ 0, %entry ], [ %i.next, %old.more ]
  %old.size = phi i64 [ 1, %entry ], [ %old.size.next, %old.more ]
  %old.left = icmp ult i64 %i, %nd
  br i1 %old.left, label %old.more, label %new
old.more:
  %dim.at = getelementptr i64, ptr %dims, i64 %i
  %dim = load i64, ptr %dim.at
  %old.size.next = mul i64 %old.size, %dim
  %i.next = add i64 %i, 1
  br label %old
new:
  %j = phi i64 [ %newnd, %old ], [ %j.next, %new.more ]
  %new.size = phi i64 [ 1, %old ], [ %new.size.next, %new.more ]
  %step = phi i64 [ %itemsize, %old ], [ %step.next, %new.more ]
  %new.left = icmp ugt i64 %j, 0
  br i1 %new.left, label %new.more, label %done
new.more:
  %j.next = sub i64 %j, 1
  %newdim.at = getelementptr i64, ptr %newdims, i64 %j.next
  %newdim = load i64, ptr %newdim.at
  %stride.at = getelementptr i64, ptr %newstrides, i64 %j.next
  store i64 %step, ptr %stride.at
  %step.next = mul i64 %step, %newdim
  %new.size.next = mul i64 %new.size, %newdim
  br label %new
done:
  %same = icmp eq i64 %old.size, %new.size
  %result = zext i1 %same to i32
  ret i32 %result
}""",
}
