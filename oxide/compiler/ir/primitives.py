"""The primitives by which threads of a block or a grid cooperate: functions that the portable IR calls and that each
back end defines. ``compiler/primitives`` has those of ``oxide.warp`` and ``oxide.thread``. The others follow. Each
takes the hidden context as its first argument, which this list leaves out:

- ``ptr oxide.shared.static.<number>()``, ``ptr oxide.shared.dynamic()``, ``i64 oxide.shared.dynamic.bytes()``
- ``void oxide.tensor.mma.<shape>.<d>.<a>.<b>.<c>(ptr c, ptr a, ptr b, i32 site)``, on one tile of each fragment
- ``void oxide.tensor.<ldmatrix|stmatrix>.<x1|x2|x4>[.trans](ptr row, ptr words, i32 site)``
- ``void oxide.tensor.copy_async.<4|8|16>(ptr target, ptr source, i32 bytes, i32 site)``,
  ``oxide.tensor.commit(i32 site)`` and ``oxide.tensor.wait.<groups>(i32 site)``
- ``i32 oxide.cluster.rank(i32 site)``, ``i32 oxide.cluster.size(i32 site)``, ``void oxide.cluster.barrier(i32 site)``,
  ``void oxide.cluster.meeting(i32 site)``, which orders no memory, and
  ``ptr oxide.cluster.map(ptr, i32 rank, i32 site)``, which returns the address of the same place in another block's
  shared memory
- the barriers, copies of tiles and ``wgmma`` of ``oxide.tensor``, whose signatures are in ``ptx/tensor``

This module has the parts that both back ends share. ``ptx/primitives.py``, ``ptx/tensor`` and ``cpu/coroutines`` define
the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from oxide.compiler.source.source import SourcePlace, column_of, located_in
from oxide.driver.base import MAX_SHARED_BYTES

from .module import Module

MULTICAST = ".multicast"
"""The end of the name of a copy to several blocks of a cluster."""


def reaches_cluster(symbol: str) -> bool:
    """Returns whether a primitive has a meaning only in a kernel with clusters."""
    return symbol.startswith("oxide.cluster.") or symbol.endswith(MULTICAST)


STATIC_LIMIT = 48 * 1024
"""The bytes of static shared memory that every CUDA device gives a block. A kernel that needs more takes dynamic shared
memory."""

LEAST_ALIGNMENT = 16
"""The alignment in bytes of shared arrays that ask for none, and of dynamic shared memory."""

_STATIC = "oxide.shared.static."


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The layout of a kernel's shared memory. ``arrays`` has the (offset, bytes, alignment) of each ``SharedArray`` in
    one region of ``total`` bytes. ``dynamic`` says whether the kernel has a ``DynamicSharedArray``."""

    arrays: tuple[tuple[int, int, int], ...]
    total: int
    dynamic: bool

    @property
    def used(self) -> bool:
        return bool(self.arrays) or self.dynamic

    @property
    def alignment(self) -> int:
        """Returns the alignment of the whole region."""
        return max([LEAST_ALIGNMENT, *(alignment for _, _, alignment in self.arrays)])

    @property
    def beyond_static(self) -> int:
        """Returns the bytes of dynamic shared memory that the arrays take on a GPU. This is 0 if the arrays fit in
        static shared memory, else the size of all arrays. A ``DynamicSharedArray`` begins after these bytes."""
        return -(-self.total // LEAST_ALIGNMENT) * LEAST_ALIGNMENT if self.total > STATIC_LIMIT else 0


def place_shared_memory(
    kernel: Callable[..., Any], module: Module, places: Mapping[int, SourcePlace], most: int = MAX_SHARED_BYTES
) -> SharedMemory:
    """Numbers a kernel's ``SharedArray``s from 0 and lays them out. If they take more than ``most`` bytes, raises
    ``CompileError`` at the first array beyond this limit.

    The front end calls ``oxide.shared.static.<number>.<bytes>.<alignment>`` for the address of an array.
    """
    found = sorted(
        (tuple(map(int, symbol.removeprefix(_STATIC).split("."))), symbol)
        for symbol in module.functions
        if symbol.startswith(_STATIC)
    )
    arrays: list[tuple[int, int, int]] = []
    end = 0
    over = None
    for dense, ((number, size, alignment), symbol) in enumerate(found):
        module.rename(symbol, f"{_STATIC}{dense}")
        offset = -(-end // alignment) * alignment
        arrays.append((offset, size, alignment))
        end = offset + size
        if end > most and over is None:
            over = number
    if over is not None:
        file, line, span = places[over]
        raise located_in(
            file,
            line,
            f"kernel {kernel.__name__}: its SharedArrays take {end} bytes together, and no device gives a block more "
            f"than {most}; make them smaller",
            column_of(file, span),
        )
    return SharedMemory(tuple(arrays), end, "oxide.shared.dynamic" in module.functions)


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
