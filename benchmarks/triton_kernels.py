"""The launch benchmark's kernel in Triton. Imported only where Triton is installed.

The pointers have no annotations: Triton compiles those too, and knows its own types only."""

import triton
import triton.language as tl


@triton.jit
def add(a, b, c, size: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.arange(0, size)
    tl.store(c + offsets, tl.load(a + offsets) + tl.load(b + offsets))
