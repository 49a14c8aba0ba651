"""Kernels people use, written only with oxide's public names."""

from __future__ import annotations

from .activations import relu
from .cooperative import (
    block_broadcast,
    block_exclusive_sum,
    block_inclusive_sum,
    block_max,
    block_min,
    block_sum,
    warp_inclusive_sum,
)
from .linalg import matvec_naive, sgemm_naive

__all__ = [
    "block_broadcast",
    "block_exclusive_sum",
    "block_inclusive_sum",
    "block_max",
    "block_min",
    "block_sum",
    "matvec_naive",
    "relu",
    "sgemm_naive",
    "warp_inclusive_sum",
]
