"""``oxide.tensor``: tensor cores and asynchronous copies in thread-level kernels.

The lanes of a warp compute a product of matrices together. Each lane holds some elements of each operand in its
registers. These elements are called a fragment, and ``mma`` multiplies fragments. The terms and the layouts are those
of the PTX ISA. ``fragments.py`` declares fragments, ``mma.py`` the products and ``copies.py`` the copies between
fragments, shared memory and slices. For Hopper, ``barriers.py`` declares barriers at which threads and copies arrive,
``shared_tiles.py`` copies of whole tiles, ``wgmma.py`` products that four warps compute together, and ``cluster.py``
the functions of ``tensor.cluster``, for blocks that run together.
"""

from __future__ import annotations

from . import cluster
from .barriers import Barrier
from .copies import commit, copy_async, ldmatrix, load, stmatrix, store, wait
from .fragments import Accumulator, FragmentA, FragmentB, convert
from .mma import mma, tf32
from .shared_tiles import SharedTiles, commit_stores, fence_stores, load_tile, store_tile, wait_stores
from .wgmma import decrease_registers, increase_registers, wait_wgmma, wgmma

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
