"""The calls between the portable IR and the two back ends for what threads of a block do together.

The front end calls them, and each back end defines them, always with the hidden context in front:

- ``ptr oxide.shared.static.<number>()``, ``ptr oxide.shared.dynamic()``, ``i64 oxide.shared.dynamic.bytes()``;
- ``void oxide.block.barrier(i32 site)``, ``i32 oxide.block.barrier.count(i1, i32 site)`` and, giving a bit,
  ``oxide.block.barrier.and`` and ``.or``;
- ``void oxide.block.grid_barrier(i32 site)``, which makes a kernel cooperative;
- ``oxide.warp.shuffle.<idx|up|down|bfly>.<i32|i64>(i32 mask, value, i32 lane, i32 site)``;
  ``oxide.warp.<all|any|ballot>(i32 mask, i1, i32 site)``; ``oxide.warp.match.<any|all>.<i32|i64>(i32 mask, value,
  i32 site)``; ``oxide.warp.reduce.<operator>.<type>(i32 mask, value, i32 site)``; ``oxide.warp.sync(i32 mask,
  i32 site)`` and ``oxide.warp.active_mask(i32 site)``.

Here is what both back ends need to know of them; ``ptx/primitives.py`` and ``cpu/coroutines`` define them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oxide.compiler.source.source import SourcePlace, column_of, located_in

PREFIXES = ("oxide.register.", "oxide.shared.", "oxide.block.", "oxide.warp.", "oxide.stop.")
"""The names of functions that take the context and that a back end defines."""

GRID_BARRIER = "oxide.block.grid_barrier"

STATIC_LIMIT = 48 * 1024
"""Bytes of static shared memory that every CUDA device gives a block."""

_STATIC = re.compile(r"@oxide\.shared\.static\.(\d+)\.(\d+)\.(\d+)\b")


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """A kernel's static arrays, as (offset, bytes, alignment) in one run of ``total`` bytes; and whether it has dynamic
    shared memory."""

    arrays: tuple[tuple[int, int, int], ...]
    total: int
    dynamic: bool

    @property
    def used(self) -> bool:
        return bool(self.arrays) or self.dynamic


def suspends(module: Any) -> bool:
    """Whether the kernel has a call at which a thread may wait for another."""
    return any(function.name.startswith(("oxide.block.", "oxide.warp.")) for function in module.functions)


def cooperates(module: Any) -> bool:
    """Whether the kernel has a call at which the threads of its whole grid meet."""
    return any(function.name == GRID_BARRIER for function in module.functions)


def place_shared_memory(
    kernel: Callable[..., Any], text: str, places: Mapping[int, SourcePlace]
) -> tuple[str, SharedMemory]:
    """Numbers the static arrays of a kernel from 0 and lays them out. Raises ``CompileError`` over the limit, at the
    array that goes over it."""
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
    """The text with each ``declare`` line kept only the first time: LLVM refuses a second."""
    seen: set[str] = set()
    lines = []
    for line in text.split("\n"):
        if line.startswith("declare "):
            if line in seen:
                continue
            seen.add(line)
        lines.append(line)
    return "\n".join(lines)
