"""The sanitizer's checks as LLVM IR: the functions that are called before a sanitized kernel's accesses.

``accesses.ll`` checks bounds, alignment and reads of uninitialised memory; ``races.ll`` finds races. ``copies.ll`` and
``products.ll`` track which asynchronous copies and products have ended. ``tiles.ll`` checks the writes of copies of
tiles, and ``clusters.ll`` the accesses to other blocks' shared memory. The blocks of a sanitized launch run one after
the other on one worker, so nothing here is atomic, and time is a counter of accesses.

In these files, ``{{name}}`` stands for the address of a field of the launch's state, a ``SANITIZED_STATE`` of
``driver/records.py``.
"""

from __future__ import annotations

from oxide.compiler.ir.files import ir_file, with_addresses
from oxide.driver import sanitizing
from oxide.driver.records import MAX_COPIES, MAX_REPORTS, SANITIZED_STATE
from oxide.driver.sanitizing import STATE_BYTES

from .products import TILE_WORDS, TILES


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
