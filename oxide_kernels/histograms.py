"""``histogram``: counts how often each integer occurs."""

from __future__ import annotations

from typing import Any, TypeVar

from oxide import (
    AtomicSlice,
    DeviceBox,
    DeviceOperation,
    SharedArray,
    Slice,
    atomic,
    i32,
    i64,
    kernel,
    thread,
    u8,
    u16,
    u32,
)

from .operand_checks import called
from .operands import Operand, with_boxes

V = TypeVar("V", u8, u16, u32, i32, i64)

_BLOCK = 256
_MOST_BLOCKS = 1056
_IN_SHARED_MEMORY = 4096


def histogram(values: Operand, counts: Operand) -> DeviceOperation[tuple[Any, ...]]:
    """Adds the number of occurrences of ``v`` in ``values`` to ``counts[v]``, for each index ``v`` of ``counts``. The
    values are u8, u16, u32, i32 or i64, and the counts are u32. Yields values and counts. Counts accumulate over calls.
    Pass ``zeros(bins, u32)`` to begin at 0, as ``ops.histogram`` does.

    A value that is not an index of ``counts`` raises ``BoundsError``, and the other counts are then unreliable. With up
    to 4096 bins each block first counts in its shared memory, so that fewer threads increment the same count at once.
    """

    def count(x: DeviceBox, bins: DeviceBox) -> DeviceOperation[tuple[Any, ...]]:
        blocks = max(1, min(_MOST_BLOCKS, -(-x.size // (8 * _BLOCK))))
        counting = _in_shared_memory if bins.size <= _IN_SHARED_MEMORY else _in_global_memory
        return counting[blocks, _BLOCK](x, bins)

    return with_boxes(count, values, counts)


@kernel
@called("histogram")
def _in_shared_memory(values: Slice[V], counts: AtomicSlice[u32]) -> None:
    bins = SharedArray(_IN_SHARED_MEMORY, u32)
    for i in range(thread.thread_idx.x, len(counts), thread.block_dim.x):
        bins[i] = 0
    thread.sync_threads()
    for i in range(thread.index_1d().get(), len(values), thread.grid_dim.x * thread.block_dim.x):
        value = values[i]
        if 0 <= value < len(counts):
            bins.fetch_add(value, 1, scope=atomic.BLOCK)
        else:
            counts.fetch_add(value, 1)  # always out of bounds: this call reports the fault
    thread.sync_threads()
    for i in range(thread.thread_idx.x, len(counts), thread.block_dim.x):
        if bins[i] > 0:
            counts.fetch_add(i, bins[i])


@kernel
@called("histogram")
def _in_global_memory(values: Slice[V], counts: AtomicSlice[u32]) -> None:
    for i in range(thread.index_1d().get(), len(values), thread.grid_dim.x * thread.block_dim.x):
        counts.fetch_add(values[i], 1)
