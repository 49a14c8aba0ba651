"""Warp primitives: shuffles, votes, matches and reductions over the 32 lanes of a warp, without shared memory.

The lanes of a warp are consecutive threads of the block, x fastest. Every function takes a ``mask``, by default all 32
lanes: bit i stands for lane i. All lanes in the mask that have not returned must make the same call with the same mask,
and they wait for one another. If a lane in the mask has returned, the result is undefined on a GPU, and the sanitizer
reports it. If a lane can never make the call, the CPU device reports a ``BarrierError``; a GPU does not. If a block's
size is not a multiple of 32, its last warp has fewer lanes, and the full mask stands for these. A shuffle from a lane
that does not exist, and any other mask that names one, are undefined and reported too. The terms and the semantics are
those of CUDA's ``__shfl_sync`` and related functions.

Values are integers and floats of 32 or 64 bits. These are declarations: the compiler gives them their meaning inside a
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
    """Returns the ``value`` of lane number ``lane`` (modulo 32). The result is undefined if that lane does not exist or
    is not in the mask."""
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
    """Returns whether ``condition`` is true in every lane of the mask."""
    _only_in_a_kernel("all")


def any(condition: bool, mask: int = FULL_MASK) -> bool:
    """Returns whether ``condition`` is true in at least one lane of the mask."""
    _only_in_a_kernel("any")


def ballot(condition: bool, mask: int = FULL_MASK) -> int:
    """Returns the lanes whose ``condition`` is true, as a mask: a ``u32`` with a bit for each lane."""
    _only_in_a_kernel("ballot")


def elect(mask: int = FULL_MASK) -> bool:
    """Returns true in one lane, which the GPU chooses, and false in the others. Use it for work that one lane does for
    the whole warp.

    In a branch on ``elect()`` the compiler knows that only one lane runs the code, so it issues copies of
    ``tensor.load_tile`` without a loop over the lanes. In a branch on ``thread_idx`` it needs this loop. PTX's name is
    ``elect.sync``. The CPU device, and a GPU before compute capability 9.0, choose the first lane.
    """
    _only_in_a_kernel("elect")


def match_any(value: float, mask: int = FULL_MASK) -> int:
    """Returns a mask, a ``u32``, of the lanes whose ``value`` has the same bits as this lane's ``value``."""
    _only_in_a_kernel("match_any")


def match_all(value: float, mask: int = FULL_MASK) -> int:
    """Returns a mask, a ``u32``, of all lanes that make the call, if ``value`` has the same bits in all of them.
    Otherwise returns 0."""
    _only_in_a_kernel("match_all")


def active_mask() -> int:
    """Returns a mask, a ``u32``, of the lanes that execute this call together. The device decides which lanes these
    are. Use the mask to share work, never to find out which lanes took a branch."""
    _only_in_a_kernel("active_mask")


def sync(mask: int = FULL_MASK) -> None:
    """Waits until the lanes of the mask have reached this call. Their earlier writes to memory are then visible to all
    of them."""
    _only_in_a_kernel("sync")


def reduce_add(value: T, mask: int = FULL_MASK) -> T:
    """Returns, in each lane, the sum of all lanes' values. The device chooses the order of a float sum: the result may
    differ in the last bits between devices, but it is the same in all lanes."""
    _only_in_a_kernel("reduce_add")


def reduce_min(value: T, mask: int = FULL_MASK) -> T:
    """Returns, in each lane, the least of all lanes' values. It is NaN only if all values are NaN."""
    _only_in_a_kernel("reduce_min")


def reduce_max(value: T, mask: int = FULL_MASK) -> T:
    """Returns, in each lane, the greatest of all lanes' values. It is NaN only if all values are NaN."""
    _only_in_a_kernel("reduce_max")


def reduce_and(value: int, mask: int = FULL_MASK) -> int:
    """Returns the bits that are set in every lane's integer."""
    _only_in_a_kernel("reduce_and")


def reduce_or(value: int, mask: int = FULL_MASK) -> int:
    """Returns the bits that are set in at least one lane's integer."""
    _only_in_a_kernel("reduce_or")


def reduce_xor(value: int, mask: int = FULL_MASK) -> int:
    """Returns the bits that are set in an odd number of the lanes' integers."""
    _only_in_a_kernel("reduce_xor")


def _only_in_a_kernel(name: str) -> NoReturn:
    raise TypeError(f"warp.{name} has a meaning only inside a @kernel, where the compiler gives it one")
