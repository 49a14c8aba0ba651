"""The layouts of fragments, as the PTX ISA defines them for ``mma`` and ``ldmatrix``: which lane holds which elements.

A fragment consists of blocks. A block has 8 rows of 16 bytes, and its 32-bit words are spread over the lanes: lane l
holds word ``l % 4`` of row ``l // 4``. The fragment of a right operand has the layout of the operand's transpose. A
tile, the part of a fragment that one instruction multiplies, consists of several blocks. A fragment holds its tiles in
row-major order. Blocks of f64, and of accumulators of 32-bit elements, have wider words: a word holds one element of an
operand, or two elements of an accumulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from oxide.language.types import SCALARS

LANES = 32

_OPERANDS = sorted((each for each in SCALARS.values() if each.depth), key=lambda each: each.bits == 8)

F8 = [each.name for each in _OPERANDS if each.kind == "f" and each.bits == 8]
BITS = {name: each.bits for name, each in SCALARS.items()}
"""The sizes of elements in bits."""

DEPTHS = {each.name: each.depth for each in _OPERANDS}
"""The extent of one instruction along k, by the type of the operands."""

ELEMENTS = {
    "FragmentA": tuple(DEPTHS),
    "FragmentB": tuple(DEPTHS),
    "Accumulator": tuple(dict.fromkeys(["f32", *(name for name in DEPTHS if BITS[name] != 8), "i32"])),
}
"""The types of elements that each kind of fragment may hold. An accumulator of bf16 is only converted and stored."""

PRODUCTS = {(a.name, b.name): a.sums for a in _OPERANDS for b in _OPERANDS if (a.depth, a.sums) == (b.depth, b.sums)}
"""The types that an accumulator may have, for each pair of the operands' types."""


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a fragment: its ``kind``, such as "FragmentA", the shape of the matrix, and the type of the
    elements."""

    kind: str
    rows: int
    columns: int
    dtype: str

    @property
    def tile(self) -> tuple[int, int]:
        """Returns the shape of one instruction's tile."""
        height = 8 if self.dtype == "f64" else 16
        match self.kind:
            case "FragmentA":
                return height, DEPTHS[self.dtype]
            case "FragmentB":
                return DEPTHS[self.dtype], 8
            case _:
                return height, 8

    @property
    def tiles(self) -> tuple[int, int]:
        """Returns the number of tiles along each axis."""
        height, width = self.tile
        return self.rows // height, self.columns // width

    @property
    def tile_length(self) -> int:
        """Returns the number of elements of one tile that each lane holds."""
        height, width = self.tile
        return height * width // LANES

    @property
    def length(self) -> int:
        """Returns the number of elements that each lane holds."""
        return self.rows * self.columns // LANES

    @property
    def word(self) -> int:
        """Returns the number of elements in a word."""
        return 2 if self.kind == "Accumulator" else max(1, 32 // BITS[self.dtype])

    @property
    def is_of_blocks(self) -> bool:
        """Returns whether the words have 32 bits, so that ``ldmatrix`` and ``stmatrix`` can move them."""
        return self.word * BITS[self.dtype] == 32

    def place(self, lane: int, index: int) -> tuple[int, int]:
        """Returns the row and the column that element ``index`` of a lane has in the matrix."""
        tile, place = divmod(index, self.tile_length)
        word, within = divmod(place, self.word)
        group, thread = divmod(lane, 4)
        height, width = self.tile
        row, column = (each * size for each, size in zip(divmod(tile, self.tiles[1]), (height, width), strict=True))
        if self.kind == "FragmentB":
            return row + 4 * self.word * word + self.word * thread + within, column + group
        upper, lower = divmod(word, 2)
        return row + 8 * lower + group, column + 4 * self.word * upper + self.word * thread + within

    def block(self, number: int) -> tuple[int, int]:
        """Returns the row and the column that the first element of block ``number`` has in the matrix."""
        return self.place(0, number * self.word)

    @property
    def blocks(self) -> int:
        return self.length // self.word


def instruction(a: Layout, b: Layout, c: Layout) -> str:
    """Returns the name of the primitive that multiplies one tile of ``a`` by one tile of ``b`` and adds to one tile of
    ``c``, such as ``m16n8k16.f32.bf16.bf16.f32``."""
    height, depth = a.tile
    return f"m{height}n{b.tile[1]}k{depth}.{c.dtype}.{a.dtype}.{b.dtype}.{c.dtype}"
