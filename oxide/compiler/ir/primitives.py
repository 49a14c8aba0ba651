"""The primitives by which threads of a block or a grid cooperate: calls in the portable IR that each back end defines.

The front end calls them with the hidden context as first argument:

- ``ptr oxide.shared.static.<number>()``, ``ptr oxide.shared.dynamic()``, ``i64 oxide.shared.dynamic.bytes()``;
- ``void oxide.block.barrier(i32 site)``, ``i32 oxide.block.barrier.count(i1, i32 site)``, and
  ``oxide.block.barrier.and`` and ``.or``, which return a bit;
- ``void oxide.block.grid_barrier(i32 site)``, which makes a kernel cooperative;
- ``oxide.warp.shuffle.<idx|up|down|bfly>.<i32|i64>(i32 mask, value, i32 lane, i32 site)``;
  ``oxide.warp.<all|any|ballot>(i32 mask, i1, i32 site)``; ``oxide.warp.match.<any|all>.<i32|i64>(i32 mask, value,
  i32 site)``; ``oxide.warp.reduce.<operator>.<type>(i32 mask, value, i32 site)``; ``oxide.warp.sync(i32 mask,
  i32 site)`` and ``oxide.warp.active_mask(i32 site)``.

This module has the parts that both back ends share; ``ptx/primitives.py`` and ``cpu/coroutines`` define the calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oxide.compiler.source.source import SourcePlace, column_of, located_in

PREFIXES = ("oxide.register.", "oxide.shared.", "oxide.block.", "oxide.warp.", "oxide.stop.")
"""Name prefixes of functions that take the context and that a back end defines."""

GRID_BARRIER = "oxide.block.grid_barrier"

STATIC_LIMIT = 48 * 1024
"""Bytes of static shared memory that every CUDA device gives a block."""

_STATIC = re.compile(r"@oxide\.shared\.static\.(\d+)\.(\d+)\.(\d+)\b")


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """A kernel's static arrays as (offset, bytes, alignment) in one region of ``total`` bytes, and whether it has
    dynamic shared memory."""

    arrays: tuple[tuple[int, int, int], ...]
    total: int
    dynamic: bool

    @property
    def used(self) -> bool:
        return bool(self.arrays) or self.dynamic


def suspends(module: Any) -> bool:
    """Returns whether the kernel has a call at which a thread may wait for another."""
    return any(function.name.startswith(("oxide.block.", "oxide.warp.")) for function in module.functions)


def cooperates(module: Any) -> bool:
    """Returns whether the kernel has a grid barrier."""
    return any(function.name == GRID_BARRIER for function in module.functions)


def place_shared_memory(
    kernel: Callable[..., Any], text: str, places: Mapping[int, SourcePlace]
) -> tuple[str, SharedMemory]:
    """Numbers the static arrays of a kernel from 0 and lays them out. Raises ``CompileError`` over the limit, at the
    first array past it."""
    found = sorted({tuple(map(int, match.groups())) for match in _STATIC.finditer(text)})
    numbers = {number: dense for dense, (number, _, _) in enumerate(found)}
    text = _STATIC.sub(lambda match: f"@oxide.shared.static.{numbers[int(match[1])]}", text)
    arrays: list[tuple[int, int, int]] = []
    end = 0
    over = None
    for number, size, alignment in found:
        offset = -(-end // alignment) * alignment
        arrays.append((offset, size, alignment))
        end = offset + size
        if end > STATIC_LIMIT and over is None:
            over = number
    if over is not None:
        file, line, span = places[over]
        raise located_in(
            file,
            line,
            f"kernel {kernel.__name__}: its SharedArrays take {end} bytes together, and a block has {STATIC_LIMIT}; "
            "make them smaller, or use DynamicSharedArray(dtype) with LaunchConfig(shared_mem_bytes=…)",
            column_of(file, span),
        )
    return text, SharedMemory(tuple(arrays), end, "@oxide.shared.dynamic" in text)


def declared_once(text: str) -> str:
    """Returns the text without repeated ``declare`` lines, which LLVM refuses."""
    seen: set[str] = set()
    lines = []
    for line in text.split("\n"):
        if line.startswith("declare "):
            if line in seen:
                continue
            seen.add(line)
        lines.append(line)
    return "\n".join(lines)
