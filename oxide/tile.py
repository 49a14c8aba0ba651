"""Tile kernels: ``from oxide import tile``, then ``@tile.kernel``. See docs/tiles.md.

A tile kernel says what a block computes, as NumPy would; the compiler decides what each thread does. The model is that
of cuTile: the kernel runs once for each tile of the tensor that it writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oxide.language.tile import (
    WORDS,
    Constant,
    Partition,
    Partition1,
    Partition2,
    Partition3,
    Target,
    Target1,
    Target2,
    Target3,
    Tensor,
    Tensor1,
    Tensor2,
    Tensor3,
)
from oxide.runtime.launching.tile_kernel import TileKernel, function, kernel

__all__ = [
    "Constant", "Partition", "Partition1", "Partition2", "Partition3", "Target", "Target1", "Target2", "Target3",
    "Tensor", "Tensor1", "Tensor2", "Tensor3", "TileKernel", "function", "kernel", *WORDS,
]  # fmt: skip

globals().update(WORDS)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
