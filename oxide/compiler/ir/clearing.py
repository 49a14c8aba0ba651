"""The zeros that a thread's own array begins with.

A small array gets them by one store of the whole, which LLVM takes apart into one for each element, and then drops
where the array lives in registers. Of thousands of elements that takes LLVM time that grows with the square of their
number, so a large array is cleared by a loop: ``oxide.clear.<bits>(address, words)``. A memset will not do, as on a GPU
it becomes a loop of single bytes.
"""

from __future__ import annotations

import re

LARGE = 256
"""Elements, from which an array is cleared by a loop. No thread has so many registers."""

_NAME = re.compile(r"@\"?oxide\.clear\.(8|16|32|64)\"?\(")


def word_bits(size: int, alignment: int) -> int:
    """The widest words that ``size`` bytes at such an address are a whole number of."""
    return 8 * next(width for width in (8, 4, 2, 1) if size % width == 0 and alignment % width == 0)


def function_name(bits: int) -> str:
    """The function for words of so many bits."""
    return f"oxide.clear.{bits}"


def portable_definitions(text: str) -> str:
    """What of these a kernel's IR calls."""
    return "\n".join(_definition(bits) for bits in sorted(set(_NAME.findall(text))))


def left_out(text: str) -> str:
    """The IR without its calls of these: for who looks for reads of what nobody has written."""
    return re.sub(r'^ *call void @"?oxide\.clear\.\d+"?\([^\n]*\n', "", text, flags=re.MULTILINE)


def _definition(bits: str) -> str:
    return f"""define linkonce_odr void @oxide.clear.{bits}(ptr %memory, i64 %words) alwaysinline {{
entry:
  br label %next
next:
  %word = phi i64 [ 0, %entry ], [ %following, %next ]
  %at = getelementptr inbounds i{bits}, ptr %memory, i64 %word
  store i{bits} 0, ptr %at
  %following = add nuw nsw i64 %word, 1
  %more = icmp ult i64 %following, %words
  br i1 %more, label %next, label %done
done:
  ret void
}}"""
