"""The primitives of ``oxide.tensor`` on a GPU."""

from __future__ import annotations

from collections.abc import Collection

from . import barriers, copies, mma, tiles, wgmma
from .capabilities import architecture, check_capability
from .tiles import TensorMap, copies_tiles, entry_parameter, take_maps
from .wgmma import moves_registers

__all__ = [
    "TensorMap",
    "architecture",
    "check_capability",
    "copies_tiles",
    "definitions",
    "entry_parameter",
    "moves_registers",
    "take_maps",
]


def definitions(symbols: Collection[str]) -> str:
    """Returns the definitions of the primitives among ``symbols``."""
    return "\n".join(topic.definitions(symbols) for topic in (mma, copies, barriers, tiles, wgmma))
