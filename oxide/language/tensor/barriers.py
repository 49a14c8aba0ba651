"""``Barrier``: barriers in shared memory on which threads wait for other threads and for copies (PTX's ``mbarrier``).

A barrier counts what a phase still waits for: arrivals of threads, and bytes of copies. When both counts are 0 the
phase ends, and the next one begins with the same number of arrivals. A thread waits for the end of a phase, not for all
other threads, so the warps of a block can do different work::

    full = tensor.Barrier(4, 1)      # four barriers; one arrival ends a phase
    ...
    full.expect(stage, 49152)        # one thread: arrives, and announces the bytes of the copies that follow
    ...
    full.wait(stage, round)          # the others: wait for the end of phase ``round``

These are declarations: the compiler gives them their meaning inside a kernel. The terms are those of the PTX ISA.
"""

from __future__ import annotations

from typing import NoReturn, final


@final
class Barrier:
    """An array of ``count`` barriers in shared memory, whose phases take ``arrivals`` arrivals each.

    Both numbers are constants. All threads of the block make the barriers together: they wait for one another in the
    call, as at ``thread.sync_threads()``. Make them once, at the kernel's beginning. All calls at one place in the
    source make the same barriers. An ``index`` outside the array is a fault, and the call then does nothing. A GPU
    needs compute capability 9.0.
    """

    def __init__(self, count: int, arrivals: int) -> None:
        _only_in_a_kernel("Barrier")

    def arrive(self, index: int, rank: int | None = None) -> None:
        """Arrives at a barrier, without waiting. The thread's earlier writes are visible to the threads that wait for
        the end of the phase.

        With ``rank``, arrives at the corresponding barrier of block ``rank`` of the cluster. A rank outside the cluster
        is a fault, and the call then does nothing. ``tensor.cluster.meet()`` or ``sync()`` must come between the
        creation of the barriers and the first such call. The thread's writes are visible to the other block only if the
        kernel uses ``tensor.cluster.remote``. Without ``remote``, blocks can only pass on tiles, and arrivals are
        faster.
        """
        _only_in_a_kernel("Barrier.arrive")

    def expect(self, index: int, nbytes: int) -> None:
        """Arrives at a barrier, and lets the phase also wait for ``nbytes`` bytes of copies, up to 2**20 - 1."""
        _only_in_a_kernel("Barrier.expect")

    def wait(self, index: int, phase: int) -> None:
        """Waits until phase number ``phase`` has ended. The phases are numbered from 0, and -1 has always ended.

        Only the lowest bit of the number counts, so a thread may be at most one phase behind the barrier: it must have
        waited for a phase before another thread can end the next one.
        """
        _only_in_a_kernel("Barrier.wait")


def _only_in_a_kernel(name: str) -> NoReturn:
    raise TypeError(f"tensor.{name} has a meaning only inside a @kernel, where the compiler gives it one")
