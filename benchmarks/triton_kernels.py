"""The launch benchmark's kernel in Triton. Imported only where Triton is installed."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def add(a: Any, b: Any, c: Any, size: tl.constexpr) -> None:
    offsets = tl.arange(0, size)
    tl.store(c + offsets, tl.load(a + offsets) + tl.load(b + offsets))
