"""The sanitizer's checks as LLVM IR: the functions that are called before a sanitized kernel's accesses.

``accesses.ll`` checks bounds, alignment and reads of uninitialised memory; ``races.ll`` finds races. ``copies.ll`` and
``products.ll`` track which asynchronous copies and products have ended. ``tiles.ll`` checks the writes of copies of
tiles, and ``clusters.ll`` the accesses to other blocks' shared memory. The blocks of a sanitized launch run one after
the other on one worker, so nothing here is atomic, and time is a counter of accesses.

The record of a thread's ``wgmma`` products has the fragments and tiles in use until a wait: ``Products`` is its layout.

In the files, ``{{name}}`` stands for the address of a field of the launch's state, a ``SANITIZED_STATE`` of
``driver/records.py``.
"""

from __future__ import annotations

from typing import final

from oxide.compiler.ir.llvm import ir_file, with_addresses
from oxide.compiler.ir.module import Function
from oxide.compiler.ir.recognise import called
from oxide.compiler.ir.values import Alloca, Value
from oxide.driver import sanitizing
from oxide.driver.records import MAX_COPIES, MAX_REPORTS, PRODUCT_FRAGMENT, PRODUCT_TILE, PRODUCTS, SANITIZED_STATE
from oxide.driver.sanitizing import STATE_BYTES

from .regions import Origins

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


def definitions(kinds: frozenset[str], clusters: bool) -> str:
    """Returns the functions that sanitized code calls. They check only for the kinds of faults in ``kinds``. In a
    kernel with ``clusters`` a thread may also access the memory of other blocks."""
    values = {
        "memory": "true" if "memory" in kinds else "false",
        "race": "true" if "race" in kinds else "false",
        "state_bytes": STATE_BYTES,
        "max_reports": MAX_REPORTS,
        "max_copies": MAX_COPIES,
        "tiles": TILES,
        "tile_words": TILE_WORDS,
        "plain_or_under_way": sanitizing.BLOCK_SCOPE | sanitizing.ATOMIC,
        "under_way": sanitizing.BLOCK_SCOPE,
        "scope_flag": sanitizing.BLOCK_SCOPE,
        "out_of_bounds": sanitizing.OUT_OF_BOUNDS,
        "misaligned": sanitizing.MISALIGNED,
        "uninitialized": sanitizing.UNINITIALIZED,
        "race_kind": sanitizing.RACE,
        "missing_lanes": sanitizing.MISSING_LANES,
        "unfinished_store": sanitizing.UNFINISHED_STORE,
    }
    names = ["accesses.ll", "races.ll", "copies.ll", "products.ll", "tiles.ll", *["clusters.ll"] * clusters]
    text = "".join(ir_file(__file__, name) for name in names)
    for name, value in values.items():
        text = text.replace(f"<{name}>", str(value))
    return with_addresses(text, _address)


def _address(result: str, field: str, index: str) -> str:
    """Returns the IR that computes the address of a field of the launch's state, or of an element of the field."""
    first = f"{result}.first" if index else result
    text = f"  {first} = getelementptr i8, ptr %state, i64 {SANITIZED_STATE.offset(field)}"
    return f"{text}\n  {result} = getelementptr i64, ptr {first}, i64 {index}" if index else text
