"""``tensor.load_tile`` as a copy by the tensor memory accelerator (TMA).

The engine reads a tensor map: the address, the lengths and the strides of a matrix, and the shape of a tile, in a form
that the driver makes. A kernel's entry takes one map for each slice and shape of tile that it copies, after all other
parameters. Each is 128 bytes at a multiple of 64, as the hardware asks. The PTX text lists them in comments, which the
CUDA driver (``driver/cuda/tensor_maps.py``) reads when it loads the code::

    // oxide.tensor_map <offset of the slice's words> <axes> <type> <rows of a tile> <columns of a tile> <name>

So a launch passes the same words to the kernel on both devices, and only the CUDA driver knows of maps.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import final

from oxide.compiler.ir.module import Module
from oxide.compiler.ir.portable import PortableKernel
from oxide.compiler.ir.tiles import copied_parameters
from oxide.compiler.ir.values import Argument, Call
from oxide.compiler.ir.verifier import LOAD_TILE
from oxide.compiler.signature.signature import Closed

_COPY = "oxide.tensor.copy_tile"


@final
@dataclass(frozen=True, slots=True)
class TensorMap:
    """A map of one parameter: the offset of its words among the kernel's parameters, the number of its axes, its name,
    and a tile's type and shape."""

    offset: int
    axes: int
    dtype: str
    rows: int
    columns: int
    name: str

    @property
    def comment(self) -> str:
        """The line of PTX that asks the driver for the map."""
        return f"// oxide.tensor_map {self.offset} {self.axes} {self.dtype} {self.rows} {self.columns} {self.name}\n"


def copies_tiles(module: Module) -> bool:
    """Returns whether a kernel copies tiles."""
    return any(symbol.startswith(LOAD_TILE) for symbol in module.functions)


def take_maps(kernel: PortableKernel, module: Module, signature: tuple[Closed, ...]) -> list[TensorMap]:
    """Gives the kernel's function in ``module`` a parameter for each map, and each copy its map. Returns the maps.

    Raises ``CompileError`` for a copy from a slice that is no parameter of the kernel.
    """
    function = module.functions[kernel.symbol]
    offsets = _offsets(signature)
    maps: dict[TensorMap, Argument] = {}
    for call, number in copied_parameters(kernel, module, signature):
        context, tile, _, _, _, _, plane, row, column, barrier, _ = call.arguments
        axes, dtype, rows, columns = call.called.removeprefix(LOAD_TILE).split(".")
        found = TensorMap(offsets[number], int(axes), dtype, int(rows), int(columns), signature[number].name)
        if found not in maps:
            maps[found] = Argument(f"%oxide.map.{len(maps)}", "ptr")
            function.arguments.append(maps[found])
        place = (row, column) if axes == "2" else (plane, row, column)
        kinds = ("ptr", "ptr", "ptr", *["i64"] * len(place), "ptr")
        copied = module.declare("void", f"{_COPY}.{axes}", kinds)
        block = call.block
        block.replace(call, [Call("", "void", copied, (context, tile, maps[found], *place, barrier))])
    for symbol in [symbol for symbol in module.functions if symbol.startswith(LOAD_TILE)]:
        del module.functions[symbol]
    return list(maps)


def _offsets(signature: tuple[Closed, ...]) -> list[int]:
    """Returns the offset of each parameter's first word among the parameters."""
    formats, offsets = "@", []
    for parameter in signature:
        offsets.append(struct.calcsize(formats + "0Q"))
        formats += parameter.struct_format
    return offsets


def entry_parameter(number: int) -> str:
    """Returns the parameter of the kernel's entry for map ``number``."""
    return f'ptr byval([128 x i8]) align 64 "nvvm.grid_constant" %map.{number}'


def definitions(symbols: Collection[str]) -> str:
    """Returns the definitions of the copies for a kernel with these symbols; none if it copies no tiles."""
    if not any(symbol.startswith(LOAD_TILE) for symbol in symbols):
        return ""
    return "\n".join([_COORDINATE, _copy(2), _copy(3)])


_COORDINATE = """
define internal i32 @oxide.tensor.coordinate(i64 %index) alwaysinline {
  %least = call i64 @llvm.smax.i64(i64 %index, i64 -2147483648)
  %within = call i64 @llvm.smin.i64(i64 %least, i64 2147483647)
  %narrow = trunc i64 %within to i32
  ret i32 %narrow
}
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""


def _copy(axes: int) -> str:
    """Defines the copy of a tile of a slice with so many axes. The engine counts the coordinates from the last axis."""
    names = ("column", "row", "plane")[:axes]
    indices = ", ".join(f"i64 %{name}" for name in reversed(names))
    lines = [
        f"define void @{_COPY}.{axes}(ptr %context, ptr %tile, ptr %map, {indices}, ptr %barrier) alwaysinline {{",
        "  %to = call i32 @oxide.tensor.shared_address(ptr %tile)",
        "  %counted = call i32 @oxide.tensor.shared_address(ptr %barrier)",
        *(f"  %at.{name} = call i32 @oxide.tensor.coordinate(i64 %{name})" for name in names),
    ]
    places = ", ".join(f"${2 + number}" for number in range(axes))
    given = ", ".join(f"i32 %at.{name}" for name in names)
    text = f"cp.async.bulk.tensor.{axes}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
    text += f"[$0], [$1, {{{places}}}], [${2 + axes}];"
    constraints = ",".join(["r", "l", *["r"] * (axes + 1), "~{memory}"])
    lines.append(f'  call void asm sideeffect "{text}", "{constraints}"(i32 %to, ptr %map, {given}, i32 %counted)')
    return "\n".join([*lines, "  ret void", "}"])
