"""The primitives of ``oxide.tensor`` on a GPU."""

from __future__ import annotations

from collections.abc import Collection

from oxide.driver.base import Dim3

from . import barriers, clusters, copies, mma, shared_tiles, wgmma
from .capabilities import architecture, check_capability
from .shared_tiles import TensorMap, copies_tiles, entry_parameter, take_maps
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


def definitions(symbols: Collection[str], cluster: Dim3 | None) -> str:
    """Returns the definitions of the primitives among ``symbols``, for a kernel with clusters of this shape."""
    texts = [topic.definitions(symbols) for topic in (mma, copies, barriers, shared_tiles, wgmma)]
    texts.append(clusters.definitions(symbols, cluster))
    if any("@oxide.tensor.shared_address" in text for text in texts):
        texts.insert(0, _SHARED_ADDRESS)
    return "\n".join(texts)


# Shared addresses are 32-bit numbers in PTX's instructions.
_SHARED_ADDRESS = """
define internal i32 @oxide.tensor.shared_address(ptr %address) alwaysinline {
  %shared = addrspacecast ptr %address to ptr addrspace(3)
  %number = ptrtoint ptr addrspace(3) %shared to i32
  ret i32 %number
}
"""
