"""Kernels people use, written only with oxide's public names."""

from __future__ import annotations

from .activations import relu
from .cooperative import (
    block_broadcast,
    block_exclusive_scan,
    block_exclusive_sum,
    block_inclusive_scan,
    block_inclusive_sum,
    block_max,
    block_min,
    block_reduce,
    block_sum,
    warp_exclusive_scan,
    warp_inclusive_scan,
    warp_inclusive_sum,
    warp_reduce,
)
from .elementwise import map_, zip_map
from .linalg import matvec_naive, sgemm_naive

__all__ = [
    "block_broadcast",
    "block_exclusive_scan",
    "block_exclusive_sum",
    "block_inclusive_scan",
    "block_inclusive_sum",
    "block_max",
    "block_min",
    "block_reduce",
    "block_sum",
    "map_",
    "matvec_naive",
    "relu",
    "sgemm_naive",
    "warp_exclusive_scan",
    "warp_inclusive_scan",
    "warp_inclusive_sum",
    "warp_reduce",
    "zip_map",
]
