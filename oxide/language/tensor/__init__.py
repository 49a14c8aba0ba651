"""``oxide.tensor``: tensor cores and asynchronous copies in thread-level kernels.

The lanes of a warp compute a product of matrices together. Each lane holds some elements of each operand in its
registers. These elements are called a fragment, and ``mma`` multiplies fragments. The terms and the layouts are those
of the PTX ISA. ``fragments.py`` declares fragments, their products, and the copies between fragments, shared memory and
slices. For Hopper, ``hopper.py`` declares barriers at which threads and copies arrive, copies of whole tiles, and
products that four warps compute together, and ``cluster.py`` the functions of ``tensor.cluster``, for blocks that run
together.
"""

from __future__ import annotations

from . import cluster
from .fragments import (
    Accumulator,
    FragmentA,
    FragmentB,
    commit,
    convert,
    copy_async,
    ldmatrix,
    load,
    mma,
    stmatrix,
    store,
    tf32,
    wait,
)
from .hopper import (
    Barrier,
    SharedTiles,
    commit_stores,
    decrease_registers,
    fence_stores,
    increase_registers,
    load_tile,
    store_tile,
    wait_stores,
    wait_wgmma,
    wgmma,
)

__all__ = [
    "Accumulator",
    "Barrier",
    "FragmentA",
    "FragmentB",
    "SharedTiles",
    "cluster",
    "commit",
    "commit_stores",
    "convert",
    "copy_async",
    "decrease_registers",
    "fence_stores",
    "increase_registers",
    "ldmatrix",
    "load",
    "load_tile",
    "mma",
    "stmatrix",
    "store",
    "store_tile",
    "tf32",
    "wait",
    "wait_stores",
    "wait_wgmma",
    "wgmma",
]
