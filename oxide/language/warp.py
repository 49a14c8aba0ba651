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

from typing import TypeVar

from . import primitives

T = TypeVar("T", int, float)

FULL_MASK = 0xFFFFFFFF
"""All 32 lanes."""

SIZE = 32
"""The number of lanes of a warp."""


@primitives.function
def lane_id() -> int:
    """Returns this thread's number in its warp, 0 to 31, as an ``i64``."""


@primitives.function
def warp_id() -> int:
    """Returns this warp's number in its block, as an ``i64``."""


@primitives.function
def shuffle(value: T, lane: int, mask: int = FULL_MASK) -> T:
    """Returns the ``value`` of lane number ``lane`` (modulo 32). The result is undefined if that lane does not exist or
    is not in the mask."""


@primitives.function
def shuffle_up(value: T, delta: int, mask: int = FULL_MASK) -> T:
    """Returns the ``value`` of the lane ``delta`` below this lane, or this lane's own value if there is no such
    lane."""


@primitives.function
def shuffle_down(value: T, delta: int, mask: int = FULL_MASK) -> T:
    """Returns the ``value`` of the lane ``delta`` above this lane, or this lane's own value if there is no such
    lane."""


@primitives.function
def shuffle_xor(value: T, lane_mask: int, mask: int = FULL_MASK) -> T:
    """Returns the ``value`` of the lane whose number is this lane's with the bits of ``lane_mask`` flipped."""


@primitives.function
def all(condition: bool, mask: int = FULL_MASK) -> bool:
    """Returns whether ``condition`` is true in every lane of the mask."""


@primitives.function
def any(condition: bool, mask: int = FULL_MASK) -> bool:
    """Returns whether ``condition`` is true in at least one lane of the mask."""


@primitives.function
def ballot(condition: bool, mask: int = FULL_MASK) -> int:
    """Returns the lanes whose ``condition`` is true, as a mask: a ``u32`` with a bit for each lane."""


@primitives.function
def elect(mask: int = FULL_MASK) -> bool:
    """Returns true in one lane, which the GPU chooses, and false in the others. Use it for work that one lane does for
    the whole warp.

    In a branch on ``elect()`` the compiler knows that only one lane runs the code, so it issues copies of
    ``tensor.load_tile`` without a loop over the lanes. In a branch on ``thread_idx`` it needs this loop. PTX's name is
    ``elect.sync``. The CPU device, and a GPU before compute capability 9.0, choose the first lane.
    """


@primitives.function
def match_any(value: float, mask: int = FULL_MASK) -> int:
    """Returns a mask, a ``u32``, of the lanes whose ``value`` has the same bits as this lane's ``value``."""


@primitives.function
def match_all(value: float, mask: int = FULL_MASK) -> int:
    """Returns a mask, a ``u32``, of all lanes that make the call, if ``value`` has the same bits in all of them.
    Otherwise returns 0."""


@primitives.function
def active_mask() -> int:
    """Returns a mask, a ``u32``, of the lanes that execute this call together. The device decides which lanes these
    are. Use the mask to share work, never to find out which lanes took a branch."""


@primitives.function
def sync(mask: int = FULL_MASK) -> None:
    """Waits until the lanes of the mask have reached this call. Their earlier writes to memory are then visible to all
    of them."""


@primitives.function
def reduce_add(value: T, mask: int = FULL_MASK) -> T:
    """Returns, in each lane, the sum of all lanes' values. The device chooses the order of a float sum: the result may
    differ in the last bits between devices, but it is the same in all lanes."""


@primitives.function
def reduce_min(value: T, mask: int = FULL_MASK) -> T:
    """Returns, in each lane, the least of all lanes' values. It is NaN only if all values are NaN."""


@primitives.function
def reduce_max(value: T, mask: int = FULL_MASK) -> T:
    """Returns, in each lane, the greatest of all lanes' values. It is NaN only if all values are NaN."""


@primitives.function
def reduce_and(value: int, mask: int = FULL_MASK) -> int:
    """Returns the bits that are set in every lane's integer."""


@primitives.function
def reduce_or(value: int, mask: int = FULL_MASK) -> int:
    """Returns the bits that are set in at least one lane's integer."""


@primitives.function
def reduce_xor(value: int, mask: int = FULL_MASK) -> int:
    """Returns the bits that are set in an odd number of the lanes' integers."""
