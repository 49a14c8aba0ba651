"""Zero initialisation of a thread's local arrays.

A small array is cleared by one store of the whole array. LLVM splits it into one store for each element, and drops
these stores if the array lives in registers. For thousands of elements, LLVM's time grows with the square of their
number. So a large array is cleared by a loop, ``oxide.clear.<bits>(address, words)``. A memset is no alternative: on a
GPU it becomes a loop of single bytes.
"""

from __future__ import annotations

from collections.abc import Collection

LARGE = 256
"""An array of at least this many elements is cleared by a loop. It has more elements than a thread has registers, so it
is in memory anyway."""


def word_bits(size: int, alignment: int) -> int:
    """Returns the width in bits of the widest word whose size divides ``size`` and ``alignment``, both in bytes."""
    return 8 * next(width for width in (8, 4, 2, 1) if size % width == 0 and alignment % width == 0)


def function_name(bits: int) -> str:
    """Returns the name of the function that clears words of ``bits`` bits."""
    return f"oxide.clear.{bits}"


def portable_definitions(symbols: Collection[str]) -> str:
    """Returns definitions of the clearing functions among a kernel's symbols."""
    return "\n".join(_definition(bits) for bits in (8, 16, 32, 64) if function_name(bits) in symbols)


def _definition(bits: int) -> str:
    return f"""define linkonce_odr void @oxide.clear.{bits}(ptr %memory, i64 %words) alwaysinline {{
entry:
  br label %next
next:
  %word = phi i64 [ 0, %entry ], [ %following, %next ]
  %at = getelementptr inbounds i{bits}, ptr %memory, i64 %word
  store i{bits} 0, ptr %at
  %following = add i64 %word, 1
  %more = icmp ult i64 %following, %words
  br i1 %more, label %next, label %done
done:
  ret void
}}"""
