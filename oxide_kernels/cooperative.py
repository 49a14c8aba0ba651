"""What the threads of a warp or of a block compute together: sums, extremes, scans and broadcasts, as device functions.

Every thread of the block calls them, with its own ``value``, and gets the result; ``dtype`` is the value's scalar type,
``f32`` say. They hold barriers, so none may stand in a branch that some threads do not take, and they work for blocks
of any size and shape, threads counted with x fastest. The scheme is CUB's: shuffles within a warp, 32 slots of shared
memory between the warps.
"""

from __future__ import annotations

from typing import Any, TypeVar

from oxide import SharedArray, device, i64, thread, warp

T = TypeVar("T", int, float)


@device
def warp_inclusive_sum(value: T, dtype: Any) -> T:
    """The sum of the values of this lane and of those before it in the warp. All 32 lanes take part."""
    total = dtype(value)
    delta = 1
    while delta < 32:
        below = warp.shuffle_up(total, delta)
        if warp.lane_id() >= delta:
            total = dtype(total + below)
        delta = delta * 2
    return total  # type: ignore[no-any-return]


@device
def block_sum(value: T, dtype: Any) -> T:
    """The sum of the block's values, in every thread."""
    partial = SharedArray(32, dtype)
    in_warp = warp.reduce_add(dtype(value))
    if warp.lane_id() == 0:
        partial[warp.warp_id()] = in_warp
    thread.sync_threads()
    total = dtype(0)
    for number in range(warps_in_block()):
        total = dtype(total + partial[number])
    thread.sync_threads()
    return total  # type: ignore[no-any-return]


@device
def block_max(value: T, dtype: Any) -> T:
    """The greatest of the block's values, in every thread."""
    partial = SharedArray(32, dtype)
    in_warp = warp.reduce_max(dtype(value))
    if warp.lane_id() == 0:
        partial[warp.warp_id()] = in_warp
    thread.sync_threads()
    greatest = partial[0]
    for number in range(1, warps_in_block()):
        greatest = max(greatest, partial[number])
    thread.sync_threads()
    return greatest  # type: ignore[no-any-return]


@device
def block_min(value: T, dtype: Any) -> T:
    """The least of the block's values, in every thread."""
    partial = SharedArray(32, dtype)
    in_warp = warp.reduce_min(dtype(value))
    if warp.lane_id() == 0:
        partial[warp.warp_id()] = in_warp
    thread.sync_threads()
    least = partial[0]
    for number in range(1, warps_in_block()):
        least = min(least, partial[number])
    thread.sync_threads()
    return least  # type: ignore[no-any-return]


@device
def block_inclusive_sum(value: T, dtype: Any) -> T:
    """The sum of the values of this thread and of those before it in the block."""
    partial = SharedArray(32, dtype)
    in_warp = warp_inclusive_sum(value, dtype)
    # The last lane that there is has the warp's sum.
    last_lane = warp.lane_id() == 31 or linear_thread() == threads_in_block() - 1
    if last_lane:
        partial[warp.warp_id()] = in_warp
    thread.sync_threads()
    before = dtype(0)
    for number in range(warp.warp_id()):
        before = dtype(before + partial[number])
    thread.sync_threads()
    return dtype(before + in_warp)  # type: ignore[no-any-return]


@device
def block_exclusive_sum(value: T, dtype: Any) -> T:
    """The sum of the values of the threads before this one in the block; 0 in the first."""
    before = SharedArray(1024, dtype)
    through = block_inclusive_sum(value, dtype)
    if linear_thread() + 1 < threads_in_block():
        before[linear_thread() + 1] = through
    if linear_thread() == 0:
        before[0] = dtype(0)
    thread.sync_threads()
    total = before[linear_thread()]
    thread.sync_threads()
    return total  # type: ignore[no-any-return]


@device
def block_broadcast(value: T, source: i64, dtype: Any) -> T:
    """The value of the thread whose number in the block is ``source``, in every thread."""
    slot = SharedArray(1, dtype)
    if linear_thread() == source:
        slot[0] = dtype(value)
    thread.sync_threads()
    result = slot[0]
    thread.sync_threads()
    return result  # type: ignore[no-any-return]


@device
def linear_thread() -> i64:
    """This thread's number in its block, x fastest."""
    row = thread.thread_idx.z * thread.block_dim.y + thread.thread_idx.y
    return row * thread.block_dim.x + thread.thread_idx.x


@device
def threads_in_block() -> i64:
    """How many threads a block has."""
    return thread.block_dim.x * thread.block_dim.y * thread.block_dim.z


@device
def warps_in_block() -> i64:
    """How many warps a block has, the last one counted even if it is not full."""
    return (threads_in_block() + 31) // 32
