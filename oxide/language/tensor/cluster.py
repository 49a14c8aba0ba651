"""``tensor.cluster``: blocks that run together and reach one another's shared memory.

A kernel declares the size of its clusters, ``@kernel(cluster=2)`` or ``@kernel(cluster=(2, 1))``: up to 8 blocks, which
the GPU runs at the same time, next to one another. The grid's length along each axis must be a multiple of the
cluster's::

    mine = SharedArray(64, f32)
    mine[thread.thread_idx.x] = x
    tensor.cluster.sync()                              # all blocks have begun and have written their elements
    other = tensor.cluster.remote(mine, tensor.cluster.rank() ^ 1)
    total = mine[0] + other[0]
    tensor.cluster.sync()                              # no block ends while another reads its memory

A block may access another block's shared memory only between two calls of ``sync``. Before the first call the other
block has perhaps not begun, and after the last call it has perhaps ended. These are declarations: the compiler gives
them their meaning inside a kernel. A GPU needs compute capability 9.0.
"""

from __future__ import annotations

from typing import TypeVar

from oxide.language import primitives

Array = TypeVar("Array")


@primitives.function
def rank() -> int:
    """Returns the number of this block in its cluster, an ``i64``. Blocks are numbered from 0, x fastest, then y, then
    z."""


@primitives.function
def size() -> int:
    """Returns the number of blocks of a cluster, an ``i64``."""


@primitives.function
def sync() -> None:
    """Waits until all threads of all blocks of the cluster have made the call, except for threads that have returned.

    All threads of the block make the call together, as with ``thread.sync_threads()``. A thread's writes before the
    call, to any memory, are visible to all threads of the cluster after the call.
    """


@primitives.function
def meet() -> None:
    """Waits as ``sync`` does, but does not make the threads' writes visible. So it need not wait for stores, and is
    faster.

    Use it to ensure only that the other blocks have begun, or have not ended: after the creation of Barriers at which
    other blocks arrive, and at the end of a kernel whose blocks arrive at one another's Barriers.
    """


@primitives.function
def remote(array: Array, rank: int) -> Array:
    """Returns the counterpart of ``array`` in block ``rank`` of the cluster. ``array`` is a ``SharedArray`` or
    ``DynamicSharedArray`` of this block.

    The counterpart's elements are read and written like those of ``array``. Atomic methods and vectors work too. The
    functions of ``tensor`` that move matrices do not accept the result. A rank outside the cluster is a fault, and the
    result is then this block's own array.
    """
