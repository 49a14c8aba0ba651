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
- ``i32 oxide.print.<letters>(ptr format, items…)``, with a letter for each item (i for an i64, d for a double, s for a
  string), or ``none`` if there is no item; ``i64 oxide.clock64()``; and
  ``i1 oxide.stop.<trap|breakpoint>(ptr context, i32 site)``, which returns whether the thread must end. These three are
  defined here for each back end
- the barriers, copies of tiles and ``wgmma`` of ``oxide.tensor``, whose signatures are in ``ptx/tensor``

This module has the parts that both back ends share. ``ptx/primitives.py``, ``ptx/tensor`` and ``cpu/coroutines`` define
the functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from oxide.compiler.source.fragment_layouts import BITS
from oxide.compiler.source.source import SourcePlace, column_of, located_in
from oxide.driver.base import MAX_SHARED_BYTES
from oxide.errors import CompileError

from .module import Function, Module
from .values import Alloca

MULTICAST = ".multicast"
"""The end of the name of a copy to several blocks of a cluster."""


def reaches_cluster(symbol: str) -> bool:
    """Returns whether a primitive has a meaning only in a kernel with clusters."""
    return symbol.startswith("oxide.cluster.") or symbol.endswith(MULTICAST)


# Copies of tiles

LOAD_TILE, STORE_TILE = "oxide.tensor.load_tile.", "oxide.tensor.store_tile."
"""The prefixes of the primitives that copy a tile from a slice and to a slice."""

TILE_COPIES = (LOAD_TILE, STORE_TILE)

MOST_AXES = 5
"""The most axes of an array whose tiles can be copied."""


@final
@dataclass(frozen=True, slots=True)
class TileCopy:
    """A copy of a tile, as its primitive's name describes it. ``sides`` has the tile's length along each axis, and
    ``dtype`` is the type of its elements. The copy goes to shared memory, or from shared memory if ``stores`` is true.
    ``swizzled`` says whether the tile is swizzled in shared memory. With ``many`` the copy goes to several blocks. With
    ``optional`` the kernel skips the copy for arrays that the engine cannot read."""

    dtype: str
    sides: tuple[int, ...]
    swizzled: bool
    stores: bool
    many: bool
    optional: bool = False

    @classmethod
    def of(cls, symbol: str) -> TileCopy:
        """Returns the copy that a primitive makes, parsed from its name."""
        stores = symbol.startswith(STORE_TILE)
        name = symbol.removesuffix(MULTICAST).removeprefix(STORE_TILE if stores else LOAD_TILE)
        _, dtype, sides, order, *more = name.split(".")
        many = symbol.endswith(MULTICAST)
        return cls(dtype, tuple(map(int, sides.split("x"))), order == "swizzled", stores, many, more == ["optional"])

    @property
    def axes(self) -> int:
        return len(self.sides)

    @property
    def itemsize(self) -> int:
        """Returns the bytes of an element."""
        return BITS["f32" if self.dtype == "tf32" else self.dtype] // 8

    @property
    def bytes(self) -> int:
        """Returns the bytes of a tile."""
        return math.prod(self.sides) * self.itemsize


# Shared memory

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
        problem = f"SharedArrays take {end} bytes together, and no device gives a block more than {most}"
        raise _too_large(kernel, places[over], f"{problem}; make them smaller")
    return SharedMemory(tuple(arrays), end, "oxide.shared.dynamic" in module.functions)


# Local arrays

LOCAL_LIMIT = 512 * 1024
"""The bytes of local memory that every CUDA device gives a thread."""

_PREFIX = "%local_array."


def array_name(number: int, size: int) -> str:
    """Returns the name of an array of ``size`` bytes. ``place_local_memory`` reads the number and the size from the
    name."""
    return f"{_PREFIX[1:]}{number}.{size}"


def place_local_memory(
    kernel: Callable[..., Any], module: Module, symbol: str, places: Mapping[int, SourcePlace]
) -> None:
    """Numbers the module's local arrays from 0. Raises ``CompileError``, at the largest array, if their total size
    exceeds the limit.

    A device function's arrays count once for each of its calls, because each call is inlined with arrays of its own.
    """
    arrays = {alloca: size for function in module.defined for alloca, size in _arrays(function)}
    total = _bytes_of(symbol, module, {}) if arrays else 0
    if total > LOCAL_LIMIT:
        largest = max(arrays, key=lambda alloca: arrays[alloca])
        raise _too_large(
            kernel,
            places[int(largest.name.split(".")[1])],
            f"LocalArrays take {total} bytes together, and a thread has {LOCAL_LIMIT}; make them smaller, or give each "
            "thread its part of an array that is a parameter",
        )
    for place, alloca in enumerate(arrays):
        alloca.name = f"{_PREFIX}{place}"


def _arrays(function: Function) -> Iterator[tuple[Alloca, int]]:
    """Yields a function's local arrays, each with its size in bytes."""
    for instruction in function.instructions:
        if isinstance(instruction, Alloca) and instruction.name.startswith(_PREFIX):
            yield instruction, int(instruction.name.split(".")[2])


def _bytes_of(symbol: str, module: Module, known: dict[str, int]) -> int:
    """Returns the bytes that the local arrays of a function and its callees take. A recursive function counts once."""
    if symbol not in known and symbol in module.functions:
        known[symbol] = 0
        function = module.functions[symbol]
        own = sum(size for _, size in _arrays(function))
        known[symbol] = own + sum(_bytes_of(call.called, module, known) for call in function.calls)
    return known.get(symbol, 0)


def _too_large(kernel: Callable[..., Any], place: SourcePlace, problem: str) -> CompileError:
    file, line, span = place
    return located_in(file, line, f"kernel {kernel.__name__}: its {problem}", column_of(file, span))


# ``print`` and ``oxide.debug``

_PRINTED = {"i": "i64", "d": "double", "s": "ptr"}


def native_debugging(symbols: Collection[str]) -> str:
    """Returns the CPU's definitions. A line is printed by one ``dprintf`` to standard output, so that lines do not
    interleave."""
    texts = []
    for name, items in _prints(symbols):
        listed = "".join(f", {item}" for item in items)
        texts.append(
            f"define i32 @{name}(ptr %format{listed}) alwaysinline {{\n"
            f"  %written = call i32 (i32, ptr, ...) @dprintf(i32 1, ptr %format{listed})\n  ret i32 %written\n}}"
        )
    if texts:
        texts.append("declare i32 @dprintf(i32, ptr, ...)")
    if "oxide.clock64" in symbols:
        texts.append(_clock("llvm.readcyclecounter"))
    texts += [
        f"define i1 @oxide.stop.{how}(ptr %context, i32 %site) alwaysinline {{\n"
        "  call void @oxide.assertion_failed(ptr %context, i32 %site)\n  ret i1 true\n}"
        for how in _stops(symbols)
    ]
    if _stops(symbols):
        texts.append("declare void @oxide.assertion_failed(ptr, i32)")
    return "\n".join(texts)


def ptx_debugging(symbols: Collection[str]) -> str:
    """Returns a GPU's definitions. A line is printed by one ``vprintf``, which takes the items as a structure in
    memory."""
    texts = []
    for name, items in _prints(symbols):
        structure = "{ " + ", ".join(item.split()[0] for item in items) + " }" if items else "{ i64 }"
        stores = "\n".join(
            f"  %at.{number} = getelementptr {structure}, ptr %items, i32 0, i32 {number}\n"
            f"  store {item}, ptr %at.{number}"
            for number, item in enumerate(items)
        )
        texts.append(
            f"define i32 @{name}(ptr %format{''.join(f', {item}' for item in items)}) alwaysinline {{\n"
            f"  %items = alloca {structure}, align 8\n{stores}\n"
            "  %written = call i32 @vprintf(ptr %format, ptr %items)\n  ret i32 %written\n}"
        )
    if texts:
        texts.append("declare i32 @vprintf(ptr, ptr)")
    if "oxide.clock64" in symbols:
        texts.append(_clock("llvm.nvvm.read.ptx.sreg.clock64"))
    texts += [
        f"define i1 @oxide.stop.{how}(ptr %context, i32 %site) alwaysinline {{\n"
        f'  call void asm sideeffect "{"trap" if how == "trap" else "brkpt"};", "~{{memory}}"()\n  ret i1 false\n}}'
        for how in _stops(symbols)
    ]
    return "\n".join(texts)


def _prints(symbols: Collection[str]) -> list[tuple[str, list[str]]]:
    """Returns the printing functions among symbols, each with its items as typed operands, such as ``i64 %item.0``."""
    names = sorted(symbol for symbol in symbols if symbol.startswith("oxide.print."))
    return [(name, _items(name.removeprefix("oxide.print."))) for name in names]


def _items(kinds: str) -> list[str]:
    return [] if kinds == "none" else [f"{_PRINTED[kind]} %item.{number}" for number, kind in enumerate(kinds)]


def _stops(symbols: Collection[str]) -> list[str]:
    return [how for how in ("breakpoint", "trap") if f"oxide.stop.{how}" in symbols]


def _clock(intrinsic: str) -> str:
    return (
        f"declare i64 @{intrinsic}()\n"
        f"define i64 @oxide.clock64() alwaysinline {{\n  %now = call i64 @{intrinsic}()\n  ret i64 %now\n}}"
    )
