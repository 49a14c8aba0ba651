"""``oxide.tensor``: tensor cores and asynchronous copies in thread-level kernels.

A warp computes a product of matrices together: each lane holds some elements of each operand in its registers, a
fragment, and ``mma`` multiplies fragments. The terms and the layouts are those of the PTX ISA. ``fragments.py``
declares fragments, ``mma.py`` the products and ``copies.py`` the ways between fragments, shared memory and slices.
"""

from __future__ import annotations

from .copies import commit, copy_async, ldmatrix, load, stmatrix, store, wait
from .fragments import Accumulator, FragmentA, FragmentB
from .mma import mma, tf32

__all__ = [
    "Accumulator",
    "FragmentA",
    "FragmentB",
    "commit",
    "copy_async",
    "ldmatrix",
    "load",
    "mma",
    "stmatrix",
    "store",
    "tf32",
    "wait",
]
