"""Ready-made kernels, written only with oxide's public names.

Functions that need one launch are kernels: ``relu(x, y)`` is an operation whose grid follows from ``y``. Functions that
need several launches, or choose a kernel by the shape, take boxes or operations and return an operation too. An
operation yields its arguments, unless the function's docstring says otherwise. ``oxide_kernels.ops`` has the functions
in a form that allocates the output. The functions ``block_…`` and ``warp_…`` are device functions, to be called in
kernels.
"""

from __future__ import annotations

from . import ops
from .activations import gelu, relu, sigmoid, silu
from .attention import attention
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
from .data_movement import gather, transpose
from .elementwise import map_, zip_map
from .gemm import sgemm_tiled
from .histograms import histogram
from .linalg import matvec_2d, matvec_naive, sgemm_2d, sgemm_naive
from .matrix_products import matmul
from .matrix_vector import matvec
from .packed_products import matmul_packed, pack
from .reductions import argmax, dot, reduce_max, reduce_sum
from .rows import layer_norm, rms_norm, softmax
from .scans import exclusive_scan, inclusive_scan
from .vector import axpy

__all__ = [
    "argmax",
    "attention",
    "axpy",
    "block_broadcast",
    "block_exclusive_scan",
    "block_exclusive_sum",
    "block_inclusive_scan",
    "block_inclusive_sum",
    "block_max",
    "block_min",
    "block_reduce",
    "block_sum",
    "dot",
    "exclusive_scan",
    "gather",
    "gelu",
    "histogram",
    "inclusive_scan",
    "layer_norm",
    "map_",
    "matmul",
    "matmul_packed",
    "matvec",
    "matvec_2d",
    "matvec_naive",
    "ops",
    "pack",
    "reduce_max",
    "reduce_sum",
    "relu",
    "rms_norm",
    "sgemm_2d",
    "sgemm_naive",
    "sgemm_tiled",
    "sigmoid",
    "silu",
    "softmax",
    "transpose",
    "warp_exclusive_scan",
    "warp_inclusive_scan",
    "warp_inclusive_sum",
    "warp_reduce",
    "zip_map",
]
