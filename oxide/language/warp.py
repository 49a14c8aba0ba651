"""What the 32 threads of a warp do together: shuffles, votes, matches and reductions, without shared memory.

The lanes of a warp are threads that follow one another in the block, x fastest. Every function takes a ``mask``, by
default all 32 lanes: bit i stands for lane i. Each lane that the mask names and that has not returned must make the
same call with the same mask, and waits for the others to make it; the CPU device reports a ``BarrierError`` where one
cannot come, a GPU does not. In a block whose threads are no multiple of 32, the lanes that the last warp lacks are not
waited for. The terms and the semantics are those of CUDA's ``__shfl_sync`` and its kin.

Values are 32- or 64-bit integers and floats. These are declarations: the compiler gives them their meaning inside a
kernel.
"""

from __future__ import annotations

from typing import NoReturn, TypeVar

T = TypeVar("T", int, float)

FULL_MASK = 0xFFFFFFFF
"""All 32 lanes."""

SIZE = 32
"""How many lanes a warp has."""


def lane_id() -> int:
    """This thread's place in its warp, 0 to 31, an ``i64``."""
    _only_in_a_kernel("lane_id")


def warp_id() -> int:
    """This warp's place in its block, an ``i64``."""
    _only_in_a_kernel("warp_id")


def shuffle(value: T, lane: int, mask: int = FULL_MASK) -> T:
    """The ``value`` of ``lane`` (modulo 32). Of a lane that is not there, or that the mask does not name: undefined."""
    _only_in_a_kernel("shuffle")


def shuffle_up(value: T, delta: int, mask: int = FULL_MASK) -> T:
    """The ``value`` of the lane ``delta`` below this one; this lane's own where there is none."""
    _only_in_a_kernel("shuffle_up")


def shuffle_down(value: T, delta: int, mask: int = FULL_MASK) -> T:
    """The ``value`` of the lane ``delta`` above this one; this lane's own where there is none."""
    _only_in_a_kernel("shuffle_down")


def shuffle_xor(value: T, lane_mask: int, mask: int = FULL_MASK) -> T:
    """The ``value`` of the lane whose number is this one's with the bits of ``lane_mask`` flipped."""
    _only_in_a_kernel("shuffle_xor")


def all(condition: bool, mask: int = FULL_MASK) -> bool:
    """Whether ``condition`` is true in every lane."""
    _only_in_a_kernel("all")


def any(condition: bool, mask: int = FULL_MASK) -> bool:
    """Whether ``condition`` is true in some lane."""
    _only_in_a_kernel("any")


def ballot(condition: bool, mask: int = FULL_MASK) -> int:
    """The lanes whose ``condition`` is true, as a ``u32`` of bits."""
    _only_in_a_kernel("ballot")


def match_any(value: float, mask: int = FULL_MASK) -> int:
    """The lanes whose ``value`` has the same bits as this one's, as a ``u32``."""
    _only_in_a_kernel("match_any")


def match_all(value: float, mask: int = FULL_MASK) -> int:
    """All the lanes, as a ``u32``, if their ``value`` has the same bits in each; else 0."""
    _only_in_a_kernel("match_all")


def active_mask() -> int:
    """The lanes that are here together with this one, as a ``u32``. Which are is up to the device: use it to share work
    among those that happen to be here, never to find out who took a branch."""
    _only_in_a_kernel("active_mask")


def sync(mask: int = FULL_MASK) -> None:
    """Waits for the lanes; what they wrote to memory before, all of them see after."""
    _only_in_a_kernel("sync")


def reduce_add(value: T, mask: int = FULL_MASK) -> T:
    """The sum over the lanes, in each of them. The order of a float sum is the device's: results may differ in the last
    bits between devices, and are the same in all lanes."""
    _only_in_a_kernel("reduce_add")


def reduce_min(value: T, mask: int = FULL_MASK) -> T:
    """The least value of the lanes; a NaN counts only if all are."""
    _only_in_a_kernel("reduce_min")


def reduce_max(value: T, mask: int = FULL_MASK) -> T:
    """The greatest value of the lanes; a NaN counts only if all are."""
    _only_in_a_kernel("reduce_max")


def reduce_and(value: int, mask: int = FULL_MASK) -> int:
    """The bits set in every lane's integer."""
    _only_in_a_kernel("reduce_and")


def reduce_or(value: int, mask: int = FULL_MASK) -> int:
    """The bits set in some lane's integer."""
    _only_in_a_kernel("reduce_or")


def reduce_xor(value: int, mask: int = FULL_MASK) -> int:
    """The bits set in an odd number of the lanes' integers."""
    _only_in_a_kernel("reduce_xor")


def _only_in_a_kernel(name: str) -> NoReturn:
    raise TypeError(f"warp.{name} has a meaning only inside a @kernel, where the compiler gives it one")
