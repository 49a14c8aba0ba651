"""``Barrier``: barriers in shared memory at which threads wait for other threads and for copies (PTX's ``mbarrier``).

A barrier goes through phases. It counts the arrivals of threads and the bytes of copies for which the present phase
still waits. When both counts are 0, the phase ends, and the next phase begins with the same number of arrivals. A
thread waits for the end of a phase, not for all other threads, so the warps of a block can do different work::

    full = tensor.Barrier(4, 1)      # four barriers; one arrival ends a phase
    ...
    full.expect(stage, 49152)        # one thread: arrives, and announces the bytes of the copies that follow
    ...
    full.wait(stage, round)          # the others: wait for the end of phase ``round``

These are declarations: the compiler gives them their meaning inside a kernel. The terms are those of the PTX ISA.
"""

from __future__ import annotations

from typing import final

from oxide.language import primitives


@primitives.made_in_kernels
@final
class Barrier:
    """An array of ``count`` barriers in shared memory. A phase of each barrier ends after ``arrivals`` arrivals.

    Both numbers are constants. All threads of the block make the call together: they wait for one another in it, as at
    ``thread.sync_threads()``. Make the barriers once, at the kernel's beginning. All calls at one place in the source
    make the same barriers. An ``index`` outside the array is a fault, and the call then does nothing. A GPU needs
    compute capability 9.0.
    """

    def __init__(self, count: int, arrivals: int) -> None: ...

    def arrive(self, index: int, rank: int | None = None) -> None:
        """Arrives at barrier ``index``, without waiting. Threads that wait for the end of the phase then see this
        thread's earlier writes.

        With ``rank``, arrives at the corresponding barrier of block ``rank`` of the cluster. A rank outside the cluster
        is a fault, and the call then does nothing. ``tensor.cluster.meet()`` or ``sync()`` must come between the
        creation of the barriers and the first such call. The other block sees this thread's earlier writes only if the
        kernel uses ``tensor.cluster.remote``. Without ``remote``, threads do not access other blocks' memory, so
        arrivals need not make writes visible and are faster.
        """

    def expect(self, index: int, nbytes: int) -> None:
        """Arrives at barrier ``index``, and makes the present phase also wait for ``nbytes`` bytes of copies, at most
        2**20 - 1."""

    def wait(self, index: int, phase: int) -> None:
        """Waits until phase number ``phase`` of barrier ``index`` has ended. The phases are numbered from 0. Phase -1
        counts as ended, so a wait for it returns at once.

        Only the lowest bit of the number is used, so a thread may be at most one phase behind the barrier: the thread
        must have waited for a phase before the next phase can end.
        """
