"""Cooperative device functions for a warp or a block: reductions, scans and broadcasts.

The parameter ``op`` is any associative function of two values: a ``@device`` function, or a function that was passed to
the kernel. "``op`` over" some values means these values combined by ``op`` in the order of the threads, so ``op`` need
not be commutative. The result of ``op`` is converted to the values' type. Every thread of the warp or block must make
the call, with its own ``value`` of 32 or 64 bits, and each thread gets its own result. The block functions contain
barriers, so do not call them in a branch that some threads do not take. They work for blocks of any size and shape,
with threads counted x fastest.

The scheme is CUB's: the lanes of a warp exchange values by shuffles, and the warps of a block through 32 slots of
shared memory. ``block_sum``, ``block_max`` and ``block_min`` use ``warp.reduce_add`` and similar functions within a
warp: on hardware that has such an instruction, the function is this one instruction. For a broadcast in a warp, use
``warp.shuffle(value, lane)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from oxide import SharedArray, device, i64, thread, warp

T = TypeVar("T", int, float)


@device
def warp_reduce(op: Callable[[T, T], T], value: T) -> T:
    """Returns ``op`` over the values of the warp's lanes, in every lane."""
    return warp.shuffle(_to_first_lane(op, value), 0)


@device
def _to_first_lane(op: Callable[[T, T], T], value: T) -> T:
    """Returns, in the first lane, ``op`` over the values of the warp's lanes. The result in the other lanes is
    undefined."""
    lanes = lanes_in_warp()
    result = value
    delta = 1
    while delta < 32:
        is_there = warp.lane_id() + delta < lanes
        above = warp.shuffle_down(result, delta if is_there else 0)
        if is_there:
            result = type(value)(op(result, above))
        delta = delta * 2
    return result


@device
def warp_inclusive_scan(op: Callable[[T, T], T], value: T) -> T:
    """Returns ``op`` over the values of the lanes up to and including this lane."""
    result = value
    delta = 1
    while delta < 32:
        below = warp.shuffle_up(result, delta)
        if warp.lane_id() >= delta:
            result = type(value)(op(below, result))
        delta = delta * 2
    return result


@device
def warp_exclusive_scan(op: Callable[[T, T], T], value: T, identity: T) -> T:
    """Returns ``op`` over the values of all lanes before this lane. Returns ``identity`` in the first lane."""
    before = warp.shuffle_up(warp_inclusive_scan(op, value), 1)
    return type(value)(identity) if warp.lane_id() == 0 else before


@device
def block_reduce(op: Callable[[T, T], T], value: T) -> T:
    """Returns ``op`` over the values of the block's threads, in every thread."""
    return _across_warps(op, _to_first_lane(op, value))


@device
def _across_warps(op: Callable[[T, T], T], in_warp: T) -> T:
    """Returns, in every thread, ``op`` over the block's warps. The value of a warp is ``in_warp`` of its first lane."""
    partial = SharedArray(32, type(in_warp))
    if warp.lane_id() == 0:
        partial[warp.warp_id()] = in_warp
    thread.sync_threads()
    result = partial[0]
    for number in range(1, warps_in_block()):
        result = type(in_warp)(op(result, partial[number]))
    thread.sync_threads()
    return result


@device
def block_inclusive_scan(op: Callable[[T, T], T], value: T) -> T:
    """Returns ``op`` over the values of the block's threads up to and including this thread."""
    in_warp = warp_inclusive_scan(op, value)
    before = _of_the_warps_before(op, in_warp)
    return in_warp if warp.warp_id() == 0 else type(value)(op(before, in_warp))


@device
def block_exclusive_scan(op: Callable[[T, T], T], value: T, identity: T) -> T:
    """Returns ``op`` over the values of the threads before this thread in the block. Returns ``identity`` in the first
    thread."""
    in_warp = warp_inclusive_scan(op, value)
    before = _of_the_warps_before(op, in_warp)
    below = warp.shuffle_up(in_warp, 1)
    if warp.warp_id() == 0:
        return type(value)(identity) if warp.lane_id() == 0 else below
    return before if warp.lane_id() == 0 else type(value)(op(before, below))


@device
def _of_the_warps_before(op: Callable[[T, T], T], in_warp: T) -> T:
    """Returns ``op`` over the values of all warps before this warp. The result in the first warp is undefined.
    ``in_warp`` is the result of this thread's inclusive scan within its warp."""
    partial = SharedArray(32, type(in_warp))
    # In the last lane that exists, ``in_warp`` covers the whole warp.
    if warp.lane_id() == lanes_in_warp() - 1:
        partial[warp.warp_id()] = in_warp
    thread.sync_threads()
    before = partial[0]
    for number in range(1, warp.warp_id()):
        before = type(in_warp)(op(before, partial[number]))
    thread.sync_threads()
    return before


@device
def block_broadcast(value: T, source: i64, dtype: Any) -> T:
    """Returns, in every thread, the value of thread number ``source`` of the block, converted to ``dtype``."""
    slot = SharedArray(1, dtype)
    if linear_thread() == source:
        slot[0] = value
    thread.sync_threads()
    result = slot[0]
    thread.sync_threads()
    return result  # type: ignore[no-any-return]


@device
def warp_inclusive_sum(value: T, dtype: Any) -> T:
    """Returns the sum, as a ``dtype``, of the values of the warp's lanes up to and including this lane."""
    return warp_inclusive_scan(add, dtype(value))  # type: ignore[no-any-return]


@device
def block_sum(value: T, dtype: Any) -> T:
    """Returns, in every thread, the sum of the block's values, as a ``dtype``."""
    return _across_warps(add, warp.reduce_add(dtype(value)))  # type: ignore[no-any-return]


@device
def block_max(value: T, dtype: Any) -> T:
    """Returns, in every thread, the greatest of the block's values, as a ``dtype``."""
    return _across_warps(greater, warp.reduce_max(dtype(value)))  # type: ignore[no-any-return]


@device
def block_min(value: T, dtype: Any) -> T:
    """Returns, in every thread, the least of the block's values, as a ``dtype``."""
    return _across_warps(lesser, warp.reduce_min(dtype(value)))  # type: ignore[no-any-return]


@device
def block_inclusive_sum(value: T, dtype: Any) -> T:
    """Returns the sum, as a ``dtype``, of the values of the block's threads up to and including this thread."""
    return block_inclusive_scan(add, dtype(value))  # type: ignore[no-any-return]


@device
def block_exclusive_sum(value: T, dtype: Any) -> T:
    """Returns the sum, as a ``dtype``, of the values of the threads before this thread in the block. Returns 0 in the
    first thread."""
    return block_exclusive_scan(add, dtype(value), dtype(0))  # type: ignore[no-any-return]


@device
def add(a: T, b: T) -> T:
    """Returns ``a + b``."""
    return a + b


@device
def greater(a: T, b: T) -> T:
    """Returns the greater of two values."""
    return max(a, b)


@device
def lesser(a: T, b: T) -> T:
    """Returns the lesser of two values."""
    return min(a, b)


@device
def linear_thread() -> i64:
    """Returns this thread's number in its block, x fastest."""
    row = thread.thread_idx.z * thread.block_dim.y + thread.thread_idx.y
    return row * thread.block_dim.x + thread.thread_idx.x


@device
def threads_in_block() -> i64:
    """Returns the number of threads of a block."""
    return thread.block_dim.x * thread.block_dim.y * thread.block_dim.z


@device
def warps_in_block() -> i64:
    """Returns the number of warps of a block, including a last warp that is not full."""
    return (threads_in_block() + 31) // 32


@device
def lanes_in_warp() -> i64:
    """Returns the number of lanes of this thread's warp. It is 32, except that the last warp of a block may have
    fewer."""
    return min(32, threads_in_block() - warp.warp_id() * 32)
