"""``tensor.load_tile`` and ``store_tile`` as copies by the tensor memory accelerator (TMA).

The engine reads a tensor map: the address, the lengths and the strides of an array, and the shape of a tile, in an
opaque form that the driver creates. A kernel's entry takes one map for each slice and shape of tile that it copies,
after all other parameters. Each map has 128 bytes, at an address that is a multiple of 64, as the hardware requires.
The PTX text lists the maps in comments, which the CUDA driver (``driver/cuda/tensor_maps.py``) reads when it loads the
code::

    // oxide.tensor_map <offset of the slice's words> <type> <sides of a tile, as 1x64x32> <swizzled|plain> <name>

A ``?`` after ``swizzled`` or ``plain`` says that the kernel does not use the map for arrays that the engine cannot
read.

So a launch passes the same words to the kernel on both devices, and only the CUDA driver knows of maps.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import final

from oxide.compiler.ir.module import Module
from oxide.compiler.ir.portable import PortableKernel, copied_parameters
from oxide.compiler.ir.primitives import TILE_COPIES, TileCopy
from oxide.compiler.ir.values import Argument, Call
from oxide.compiler.signature.signature import Closed


@final
@dataclass(frozen=True, slots=True)
class TensorMap:
    """A map of one parameter. ``offset`` is the offset in bytes of the parameter's words among the kernel's parameters,
    and ``name`` the parameter's name. ``dtype`` is the type of a tile's elements, and ``sides`` has the tile's lengths.
    ``swizzled`` says whether the tile is swizzled in shared memory, and ``optional`` whether the array may be one that
    the engine cannot read."""

    offset: int
    dtype: str
    sides: tuple[int, ...]
    swizzled: bool
    name: str
    optional: bool

    @property
    def comment(self) -> str:
        """Returns the comment line in the PTX that asks the driver for the map."""
        sides, order = "x".join(map(str, self.sides)), "swizzled" if self.swizzled else "plain"
        return f"// oxide.tensor_map {self.offset} {self.dtype} {sides} {order}{'?' * self.optional} {self.name}\n"


def copies_tiles(module: Module) -> bool:
    """Returns whether a kernel copies tiles."""
    return any(symbol.startswith(TILE_COPIES) for symbol in module.functions)


def take_maps(kernel: PortableKernel, module: Module, signature: tuple[Closed, ...]) -> list[TensorMap]:
    """Gives the kernel's function in ``module`` a parameter for each map, and passes each copy its map. Returns the
    maps.

    Raises ``CompileError`` for a copy from or to a slice that is not a parameter of the kernel.
    """
    function = module.functions[kernel.symbol]
    offsets = _offsets(signature)
    maps: dict[TensorMap, Argument] = {}
    for call, number in copied_parameters(kernel, module, signature):
        copy = TileCopy.of(call.called)
        context, tile, _, *words, _ = call.arguments
        rest = words[copy.axes :]  # the place, and for a load also the mask of a multicast and the barrier
        found = TensorMap(offsets[number], copy.dtype, copy.sides, copy.swizzled, signature[number].name, copy.optional)
        if found not in maps:
            maps[found] = Argument(f"%oxide.map.{len(maps)}", "ptr")
            function.arguments.append(maps[found])
        given = (context, tile, maps[found], *rest)
        copied = module.declare("void", _name(copy), [each.type for each in given])
        block = call.block
        block.replace(call, [Call("", "void", copied, given)])
    for symbol in [symbol for symbol in module.functions if symbol.startswith(TILE_COPIES)]:
        del module.functions[symbol]
    return list(maps)


def _name(copy: TileCopy) -> str:
    """Returns the name of the function that makes a copy and takes the copy's map as an argument. Copies of tiles of
    different sizes share the function."""
    way = "store" if copy.stores else "load_many" if copy.many else "load"
    return f"oxide.tensor.copied.{way}.{copy.axes}"


def _offsets(signature: tuple[Closed, ...]) -> list[int]:
    """Returns the offset in bytes of each parameter's first word among the kernel's parameters."""
    formats, offsets = "@", []
    for parameter in signature:
        offsets.append(struct.calcsize(formats + "0Q"))
        formats += parameter.struct_format
    return offsets


def entry_parameter(number: int) -> str:
    """Returns the parameter of the kernel's entry for map ``number``."""
    return f'ptr byval([128 x i8]) align 64 "nvvm.grid_constant" %map.{number}'


def definitions(symbols: Collection[str]) -> list[str]:
    """Returns the definitions of the copies, and of the fences and waits for stores, for a kernel with these
    symbols."""
    copies = {_name(copy): copy for copy in (TileCopy.of(each) for each in symbols if each.startswith(TILE_COPIES))}
    texts = [_COORDINATE] if copies else []
    texts += [_store(copy) if copy.stores else _load(copy) for copy in copies.values()]
    for symbol in sorted(symbols):
        if symbol in _STORES:
            texts.append(_plain(symbol, _STORES[symbol]))
        elif symbol.startswith(_WAIT):
            groups, what = symbol.removeprefix(_WAIT).split(".")
            texts.append(_plain(symbol, f"cp.async.bulk.wait_group{'.read' * (what == 'read')} {groups};"))
    return texts


_WAIT = "oxide.tensor.wait_stores."
_STORES = {
    "oxide.tensor.fence_stores": "fence.proxy.async.shared::cta;",
    "oxide.tensor.commit_stores": "cp.async.bulk.commit_group;",
}


def _plain(symbol: str, instruction: str) -> str:
    return (
        f"define void @{symbol}(ptr %context, i32 %site) alwaysinline {{\n"
        f'  call void asm sideeffect "{instruction}", "~{{memory}}"()\n  ret void\n}}'
    )


_COORDINATE = """
define internal i32 @oxide.tensor.coordinate(i64 %index) alwaysinline {
  %least = call i64 @llvm.smax.i64(i64 %index, i64 -2147483648)
  %within = call i64 @llvm.smin.i64(i64 %least, i64 2147483632)
  %narrow = trunc i64 %within to i32
  ret i32 %narrow
}
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""


def _load(copy: TileCopy) -> str:
    """Defines the copy of a tile to this block, or to several blocks of a cluster."""
    axes, many = copy.axes, copy.many
    more = ["i32 %mask"] * many + ["ptr %barrier"]
    lines, places, given = _head(copy, more)
    lines.append("  %counted = call i32 @oxide.tensor.shared_address(ptr %barrier)")
    lines += ["  %blocks = trunc i32 %mask to i16"] * many
    text = f"cp.async.bulk.tensor.{axes}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    text += f"{'.multicast::cluster' * many} [$0], [$1, {places}], [${2 + axes}]{f', ${3 + axes}' * many};"
    constraints = ",".join(["r", "l", *["r"] * (axes + 1), *["h"] * many, "~{memory}"])
    values = ", ".join([*given, "i32 %counted", *["i16 %blocks"] * many])
    lines.append(f'  call void asm sideeffect "{text}", "{constraints}"({values})')
    return "\n".join([*lines, "  ret void", "}"])


def _store(copy: TileCopy) -> str:
    """Defines the copy of a tile from this block."""
    lines, places, given = _head(copy, [])
    text = f"cp.async.bulk.tensor.{copy.axes}d.global.shared::cta.tile.bulk_group [$1, {places}], [$0];"
    constraints = ",".join(["r", "l", *["r"] * copy.axes, "~{memory}"])
    lines.append(f'  call void asm sideeffect "{text}", "{constraints}"({", ".join(given)})')
    return "\n".join([*lines, "  ret void", "}"])


def _head(copy: TileCopy, more: list[str]) -> tuple[list[str], str, list[str]]:
    """Returns the first lines of a copy's definition, the coordinates in the instruction's syntax, and the first
    operands: the tile, the map and the coordinates. The engine counts the coordinates from the last axis."""
    axes = range(copy.axes)
    arguments = ", ".join(["ptr %context", "ptr %tile", "ptr %map", *(f"i64 %place.{axis}" for axis in axes), *more])
    lines = [
        f"define void @{_name(copy)}({arguments}) alwaysinline {{",
        "  %shared = call i32 @oxide.tensor.shared_address(ptr %tile)",
        *(f"  %at.{axis} = call i32 @oxide.tensor.coordinate(i64 %place.{axis})" for axis in axes),
    ]
    places = ", ".join(f"${2 + number}" for number in axes)
    return lines, f"{{{places}}}", ["i32 %shared", "ptr %map", *(f"i32 %at.{axis}" for axis in reversed(axes))]
