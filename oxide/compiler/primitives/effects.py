"""The effects of the functions that the IR calls, by the prefixes of their names."""

from __future__ import annotations

from enum import Flag, auto

from oxide.language.types import NARROW

from .table import SCALAR


class Effect(Flag):
    """Says what a function takes and does, or does not do."""

    CONTEXT = auto()
    """It takes the hidden context as its first argument."""
    WAITS = auto()
    """A thread may wait for other threads in it."""
    ALONE = auto()
    """It affects one thread only: it does not wait, and other threads see no effect of it."""
    LOCAL = auto()
    """It accesses no device memory, or only memory to which an argument points."""
    PURE = auto()
    """It computes a value from its arguments."""


CONVERSIONS = (*(f"oxide.{name}." for name in NARROW), "oxide.tf32.")
"""The prefixes of conversions of narrow floats, and of tf32."""

_CHECK = Effect.CONTEXT | Effect.ALONE | Effect.LOCAL
_MEETING = Effect.CONTEXT | Effect.WAITS
_NUMBERS = Effect.PURE | Effect.ALONE | Effect.LOCAL

_EFFECTS = {
    "oxide.in_bounds": _CHECK,
    "oxide.aligned": _CHECK,
    "oxide.assertion_failed": Effect.CONTEXT | Effect.ALONE,
    "oxide.register.": _CHECK,
    "oxide.shared.": Effect.CONTEXT | Effect.LOCAL,
    "oxide.stop.": Effect.CONTEXT | Effect.ALONE,
    "oxide.block.": _MEETING,
    "oxide.block.barrier": _MEETING | Effect.LOCAL,
    "oxide.warp.": _MEETING | Effect.LOCAL,
    "oxide.cluster.": _MEETING | Effect.LOCAL,
    "oxide.tensor.": _MEETING,
    "oxide.tensor.barrier.": _MEETING | Effect.LOCAL,
    "oxide.tensor.registers.": _MEETING | Effect.LOCAL,
    "oxide.dependencies.": Effect.LOCAL,
    "oxide.site.": Effect.LOCAL,
    "oxide.clear.": Effect.LOCAL,
    "oxide.nanosleep": Effect.ALONE | Effect.LOCAL,
    "oxide.clock64": Effect.ALONE | Effect.LOCAL,
    "oxide.print.": Effect.ALONE,
    "oxide.breakpoint": Effect(0),
    "oxide.held.local": Effect.ALONE,
    SCALAR: _NUMBERS,
    "oxide.word": _NUMBERS,
    "__nv_": _NUMBERS,
    "llvm.": _NUMBERS,
    **dict.fromkeys(CONVERSIONS, Effect.PURE | Effect.ALONE),
}

CONVERGENT = ("llvm.nvvm.", "llvm.coro.")
"""The prefixes of those functions of LLVM that the threads of a warp must call together."""


def having(effect: Effect) -> tuple[str, ...]:
    """Returns the prefixes of the functions that have an effect. CONVERGENT ones are among them."""
    return tuple(prefix for prefix, effects in _EFFECTS.items() if effect in effects)


KNOWN = tuple(_EFFECTS)
"""The prefixes of all functions that a back end, libdevice or LLVM defines."""

WAITING = having(Effect.WAITS)
