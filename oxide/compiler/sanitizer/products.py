"""A thread's record of its ``wgmma`` products: the fragments and tiles in use until a wait (``products.ll``)."""

from __future__ import annotations

from typing import final

from oxide.compiler.ir.module import Function
from oxide.compiler.ir.recognise import called
from oxide.compiler.ir.values import Alloca, Value
from oxide.driver.records import PRODUCT_FRAGMENT, PRODUCT_TILE, PRODUCTS

from .origins import Origins

WGMMA = "oxide.tensor.wgmma."
TILES = 64
"""The number of tiles in a thread's list, which keeps the latest tiles. A GPU's kernels rarely have more than eight
products in flight."""
TILE_WORDS = PRODUCT_TILE.size // 8
_HEAD, _FRAGMENT = PRODUCTS.size // 8, PRODUCT_FRAGMENT.size // 8


@final
class Products:
    """The fragments that a kernel's products use, each with its place in the thread's record."""

    def __init__(self, function: Function, origins: Origins) -> None:
        self._origins = origins
        self._slots: dict[Value, int] = {}
        self._accumulators: set[Value] = set()
        for call in function.calls:
            if not called(call).startswith(WGMMA):
                continue
            for place in (2, 3):
                fragment = self._fragment(call.operands[place])
                if fragment is not None:
                    self._slots.setdefault(fragment, _HEAD + _FRAGMENT * len(self._slots))
                    if place == 2:
                        self._accumulators.add(fragment)
        self.record = Alloca("%sanitize.products", f"[{self.tiles + TILES * TILE_WORDS} x i64]", after=", align 16")
        """The thread's record, a variable that the function's entry clears."""

    @property
    def used(self) -> bool:
        return bool(self._slots)

    @property
    def tiles(self) -> int:
        """Returns the offset of the list of tiles in the record, in words."""
        return _HEAD + _FRAGMENT * len(self._slots)

    @property
    def bytes(self) -> int:
        return 8 * (self.tiles + TILES * TILE_WORDS)

    def slot(self, pointer: Value) -> int | None:
        """Returns the offset, in words of the record, of the fragment that a pointer leads to. None if no product uses
        the fragment."""
        fragment = self._fragment(pointer)
        return None if fragment is None else self._slots.get(fragment)

    def is_accumulator(self, pointer: Value) -> bool:
        return self._fragment(pointer) in self._accumulators

    def _fragment(self, pointer: Value) -> Value | None:
        """Returns the variable on the stack that a pointer leads to, or None if it does not lead to exactly one."""
        roots = self._origins.roots(pointer)
        return roots[0] if len(roots) == 1 and isinstance(roots[0], Alloca) else None
