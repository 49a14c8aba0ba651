"""Warp primitives: shuffles, votes, matches and reductions over the 32 lanes of a warp, without shared memory.

The lanes of a warp are consecutive threads of the block, x fastest. Every function takes a ``mask``, by default all 32
lanes: bit i stands for lane i. Each lane that the mask names and that has not returned must make the same call with the
same mask, and waits for the others to make it. If the mask names a lane that has returned, the result is undefined on a
GPU; the sanitizer reports it. If a lane can never make the call, the CPU device reports a ``BarrierError``; a GPU does
not. If a block's size is not a multiple of 32, the missing lanes of its last warp are not waited for. The terms and the
semantics are those of CUDA's ``__shfl_sync`` and related functions.

Values are 32- or 64-bit integers and floats. These are declarations: the compiler gives them their meaning inside a
kernel.
"""

from __future__ import annotations

from typing import NoReturn, TypeVar

T = TypeVar("T", int, float)

FULL_MASK = 0xFFFFFFFF
"""All 32 lanes."""

SIZE = 32
"""The number of lanes of a warp."""


def lane_id() -> int:
    """Returns this thread's number in its warp, 0 to 31, as an ``i64``."""
    _only_in_a_kernel("lane_id")


def warp_id() -> int:
    """Returns this warp's number in its block, as an ``i64``."""
    _only_in_a_kernel("warp_id")


def shuffle(value: T, lane: int, mask: int = FULL_MASK) -> T:
    """Returns the ``value`` of ``lane`` (modulo 32); undefined if that lane does not exist or is not in the mask."""
    _only_in_a_kernel("shuffle")


def shuffle_up(value: T, delta: int, mask: int = FULL_MASK) -> T:
    """Returns the ``value`` of the lane ``delta`` below this lane, or this lane's own value if there is no such
    lane."""
    _only_in_a_kernel("shuffle_up")


def shuffle_down(value: T, delta: int, mask: int = FULL_MASK) -> T:
    """Returns the ``value`` of the lane ``delta`` above this lane, or this lane's own value if there is no such
    lane."""
    _only_in_a_kernel("shuffle_down")


def shuffle_xor(value: T, lane_mask: int, mask: int = FULL_MASK) -> T:
    """Returns the ``value`` of the lane whose number is this lane's with the bits of ``lane_mask`` flipped."""
    _only_in_a_kernel("shuffle_xor")


def all(condition: bool, mask: int = FULL_MASK) -> bool:
    """Returns whether ``condition`` is true in every lane."""
    _only_in_a_kernel("all")


def any(condition: bool, mask: int = FULL_MASK) -> bool:
    """Returns whether ``condition`` is true in some lane."""
    _only_in_a_kernel("any")


def ballot(condition: bool, mask: int = FULL_MASK) -> int:
    """Returns the lanes whose ``condition`` is true, as a ``u32`` of bits."""
    _only_in_a_kernel("ballot")


def elect(mask: int = FULL_MASK) -> bool:
    """Returns true in one lane, which the GPU chooses. Use it for work that one lane does for the whole warp.

    The compiler then knows that only one lane runs the code. So it issues copies of ``tensor.load_tile`` without a loop
    over the lanes. After a comparison of ``thread_idx`` it needs the loop. CUDA's name is ``elect.sync``. The CPU
    device, and a GPU before compute capability 9.0, choose the first lane.
    """
    _only_in_a_kernel("elect")


def match_any(value: float, mask: int = FULL_MASK) -> int:
    """Returns the lanes whose ``value`` has the same bits as this lane's, as a ``u32``."""
    _only_in_a_kernel("match_any")


def match_all(value: float, mask: int = FULL_MASK) -> int:
    """Returns all the lanes, as a ``u32``, if their ``value`` has the same bits in each; else 0."""
    _only_in_a_kernel("match_all")


def active_mask() -> int:
    """Returns the lanes that execute this call together, as a ``u32``. The device decides which lanes those are: use
    them to share work, never to find out which lanes took a branch."""
    _only_in_a_kernel("active_mask")


def sync(mask: int = FULL_MASK) -> None:
    """Waits until the lanes of the mask have reached this call. Their earlier writes to memory are then visible to all
    of them."""
    _only_in_a_kernel("sync")


def reduce_add(value: T, mask: int = FULL_MASK) -> T:
    """Returns the sum over the lanes, in each of them. The device chooses the order of a float sum: results may differ
    in the last bits between devices, and are the same in all lanes."""
    _only_in_a_kernel("reduce_add")


def reduce_min(value: T, mask: int = FULL_MASK) -> T:
    """Returns the least value of the lanes; NaN only if all are NaN."""
    _only_in_a_kernel("reduce_min")


def reduce_max(value: T, mask: int = FULL_MASK) -> T:
    """Returns the greatest value of the lanes; NaN only if all are NaN."""
    _only_in_a_kernel("reduce_max")


def reduce_and(value: int, mask: int = FULL_MASK) -> int:
    """Returns the bits set in every lane's integer."""
    _only_in_a_kernel("reduce_and")


def reduce_or(value: int, mask: int = FULL_MASK) -> int:
    """Returns the bits set in some lane's integer."""
    _only_in_a_kernel("reduce_or")


def reduce_xor(value: int, mask: int = FULL_MASK) -> int:
    """Returns the bits set in an odd number of the lanes' integers."""
    _only_in_a_kernel("reduce_xor")


def _only_in_a_kernel(name: str) -> NoReturn:
    raise TypeError(f"warp.{name} has a meaning only inside a @kernel, where the compiler gives it one")
