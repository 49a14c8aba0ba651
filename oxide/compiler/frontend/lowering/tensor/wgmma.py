"""``tensor.wgmma`` and the functions that belong to it, lowered to calls of primitives that each back end defines.

- ``void oxide.tensor.wgmma.<n>.<a's type>.<b's type>.<a's order>.<b's order>.<steps>.<b's panel bytes>.<add|set>(
  ptr accumulators, ptr a, ptr b, i32 site)``.
  The order of an operand is ``k`` if consecutive elements in memory are consecutive along k. It is ``mn`` if they are
  consecutive along the operand's other axis. If ``a`` is in registers, its order is ``r``, and the argument ``a`` is
  the address of the thread's elements. Each step covers 32 bytes along k.
- ``void oxide.tensor.wgmma_wait.<count of accumulators>.<type>.<pending>(ptr accumulators, i32 site)``
- ``void oxide.tensor.registers.<inc|dec>.<count>(i32 site)``
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typing.templates import signature

from oxide.compiler.source.fragment_layouts import BITS, DEPTHS, PRODUCTS, Layout
from oxide.language.tensor.hopper import decrease_registers, increase_registers, wait_wgmma, wgmma

from ..common import element_index, in_bounds
from ..primitives import site
from ..registry import lowering_registry
from ..types import display
from .fragments import FragmentType
from .rules import BYTE_POINTER, emitted, is_integer, shown, typed
from .shared_tiles import ROW_BYTES, TilesType, tile_at

_WORD = ir.IntType(64)

_GROUP_ROWS = 64
"""The number of rows of the result of one ``wgmma``."""
_MOST_COLUMNS = 256
_PANEL = 64
"""The number of columns of a tile of a transposed operand. A row of such a tile is one position along k."""


def _accumulator_problem(name: str, kind: Any) -> str | None:
    """Returns why ``wgmma`` cannot add to a value, or None."""
    layout = kind.layout if isinstance(kind, FragmentType) else None
    if (
        layout is not None
        and (layout.kind, layout.rows) == ("Accumulator", 16)
        and layout.dtype in ("f32", "i32")
        and layout.columns <= _MOST_COLUMNS
    ):
        return None
    return (
        f"tensor.{name} takes an Accumulator((16, n), f32), or i32, the rows of one of the four warps, with n a "
        f"multiple of 8 up to {_MOST_COLUMNS}; it got {display(kind)}"
    )


def _product_problem(total: Layout, a: Any, b: Any) -> str | None:
    """Returns why the GPU has no instruction for these types of elements, or None."""
    a_type, b_type = display(a.dtype), display(b.dtype)
    sums = [each for each in PRODUCTS.get((a_type, b_type), ()) if each in ("f32", "i32")]
    if not sums:
        return (
            "tensor.wgmma multiplies elements of one type, or of two of 8 bits of one kind; they are of "
            f"{a_type} and {b_type}"
        )
    if total.dtype not in sums:
        return f"tensor.wgmma adds products of {a_type} to an Accumulator of {sums[0]}; it is of {total.dtype}"
    if total.dtype == "i32" and total.columns > 24 and total.columns % 16:
        return f"tensor.wgmma adds integers to 8 or 24 columns or a multiple of 16, not to {total.columns}"
    return None


@typed(wgmma)
def _wgmma(
    accumulator: Any, a: Any, a_index: Any, b: Any, b_number: Any, a_transposed: Any, b_transposed: Any, add: Any
) -> Any:
    in_registers = isinstance(a, FragmentType) and a.layout.kind == "FragmentA"
    problem = _accumulator_problem("wgmma", accumulator)
    if problem is not None:
        return problem
    if not ((isinstance(a, TilesType) or in_registers) and isinstance(b, TilesType)):
        return (
            "tensor.wgmma multiplies tensor.SharedTiles, or a FragmentA, by SharedTiles, not "
            f"{display(a)} and {display(b)}"
        )
    problem = _product_problem(accumulator.layout, a, b)
    if problem is not None:
        return problem
    flags = {"a_transposed": a_transposed, "b_transposed": b_transposed, "add": add}
    for name, flag in flags.items():
        if not isinstance(flag, types.BooleanLiteral):
            return f"tensor.wgmma: {name} is a constant, True or False"
    for (name, flag), operand in zip(flags.items(), (a, b), strict=False):
        if flag.literal_value and BITS[display(operand.dtype)] != 16:
            return f"tensor.wgmma: {name} is for f16 and bf16; {operand.name} is read as it is"
    parts = list(a_index) if isinstance(a_index, types.BaseTuple) else []
    as_expected = isinstance(a_index, types.NoneType) if in_registers else len(parts) == 2
    if not as_expected or not all(map(is_integer, (*parts, b_number))):
        place = "None for a FragmentA" if in_registers else "a tile's number and its first row"
        return f"tensor.wgmma: a_index is {place}, and b_number an integer"
    fit = _registers_problem if in_registers else _tiles_problem
    problem = fit(a, b, a_transposed.literal_value, b_transposed.literal_value)
    problem = problem or _columns_problem(b, accumulator.layout.columns, b_transposed.literal_value)
    kinds = (accumulator, a, types.unliteral(a_index), b, types.unliteral(b_number), *flags.values())
    return problem or signature(types.none, *kinds)


def _tiles_problem(a: Any, b: Any, a_transposed: bool, b_transposed: bool) -> str | None:
    """Returns why the tiles of ``a`` and ``b`` do not fit: they have the same length along k, and the tiles of ``a``
    have enough rows."""
    depth, found, step = a.rows if a_transposed else a.columns, _depth(b, b_transposed), _step(b)
    if found != depth or depth % step:
        return (
            f"tensor.wgmma adds {depth} products of {a.name}, and {b.name} has {found}; they are the same multiple of "
            f"{step}"
        )
    if not a_transposed and a.rows < _GROUP_ROWS:
        return f"tensor.wgmma multiplies {_GROUP_ROWS} rows, and {a.name} has tiles of {a.rows}"
    return None


def _registers_problem(a: Any, b: Any, a_transposed: bool, b_transposed: bool) -> str | None:
    """Returns why a fragment ``a`` and the tiles of ``b`` do not fit: the fragment has the rows of one warp, and the
    tiles' length along k."""
    found, layout = _depth(b, b_transposed), a.layout
    if a_transposed:
        return f"tensor.wgmma: {a.name} is in registers, which have one order; a_transposed is for SharedTiles"
    if layout.rows != 16 or layout.columns != found or found % _step(b):
        return (
            f"tensor.wgmma multiplies a FragmentA of 16 rows, those of one of the four warps, and {found} columns by "
            f"{b.name}, not {a.name}"
        )
    return None


def _depth(b: Any, transposed: bool) -> int:
    """Returns the length of a tile of ``b`` along k."""
    return int(b.rows if transposed else b.columns)


def _step(b: Any) -> int:
    """Returns the extent of one instruction along k."""
    return DEPTHS[display(b.dtype)]


def _columns_problem(b: Any, columns: int, transposed: bool) -> str | None:
    """Returns why the accumulator's columns do not fit the tiles of ``b``: they fit into one tile, or fill several
    tiles completely."""
    if transposed and columns > _PANEL and columns % _PANEL:
        return f"tensor.wgmma: with b_transposed the accumulator's columns, {columns}, are up to {_PANEL} or a multiple"
    if not transposed and b.rows < columns and (columns % b.rows or columns > b.rows * b.count):
        return (
            f"tensor.wgmma: the accumulator has {columns} columns, and the tiles of {b.name} have {b.rows} rows; they "
            "have as many, or a whole number of tiles has"
        )
    return None


_ARGUMENTS = (types.Any, TilesType, *[types.Any] * 4)


@lowering_registry.lower(wgmma, FragmentType, TilesType, *_ARGUMENTS)
def _lower_wgmma(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    _, a, index_types, _, _, a_flag, _, _ = sig.args
    a_transposed = bool(a_flag.literal_value)
    number, row = (builder.extract_value(args[2], place) for place in (0, 1))
    inside, a_address = tile_at(builder, a, args[1], index_types[0], number)
    first = element_index(builder, index_types[1], row)
    # The number of rows at which 64 rows of a tile may begin: multiples of 8, because of the hardware's swizzle.
    places = 1 if a_transposed else (a.rows - _GROUP_ROWS) // 8 + 1
    eighth = builder.ashr(first, _WORD(3))
    uneven = builder.icmp_unsigned("!=", builder.and_(first, _WORD(7)), _WORD(0))
    eighth = builder.select(uneven, _WORD(-1), eighth)
    within = in_bounds(builder, eighth, _WORD(places), site(builder, f"{a.name}'s rows by 8"))
    a_address = builder.gep(a_address, [builder.mul(first, _WORD(ROW_BYTES))])
    return _multiply(context, builder, sig, args, "mn" if a_transposed else "k", a_address, (inside, within))


@lowering_registry.lower(wgmma, FragmentType, FragmentType, *_ARGUMENTS)
def _lower_wgmma_of_registers(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _multiply(context, builder, sig, args, "r", builder.bitcast(args[1], BYTE_POINTER), ())


def _multiply(
    context: Any, builder: Any, sig: Any, args: Any, a_order: str, a_address: Any, conditions: tuple[Any, ...]
) -> Any:
    """Emits the call of the ``wgmma`` primitive. The call is under a branch: it runs only if all values in
    ``conditions`` are true and the tiles of ``b`` that it reads are in bounds."""
    accumulator, a, _, b, number_type, _, b_flag, add = sig.args
    b_transposed, columns = bool(b_flag.literal_value), accumulator.layout.columns
    panels = -(-columns // (_PANEL if b_transposed else b.rows))
    there, b_address = tile_at(builder, b, args[3], number_type, args[4], panels)
    orders = f"{a_order}.{'mn' if b_transposed else 'k'}"
    steps = _depth(b, b_transposed) // _step(b)
    symbol = f"oxide.tensor.wgmma.{columns}.{display(a.dtype)}.{display(b.dtype)}.{orders}.{steps}.{b.tile_bytes}."
    symbol += "add" if add.literal_value else "set"
    for condition in conditions:
        there = builder.and_(there, condition)
    with builder.if_then(there, likely=True):
        memory = builder.bitcast(args[0], BYTE_POINTER)
        return emitted(context, builder, symbol, "tensor.wgmma()", memory, a_address, b_address)


@typed(wait_wgmma)
def _wait(accumulator: Any, pending: Any) -> Any:
    if not isinstance(pending, types.IntegerLiteral) or not 0 <= pending.literal_value <= 7:
        return f"tensor.wait_wgmma: pending is a constant from 0 to 7; it is {shown(pending)}"
    return _accumulator_problem("wait_wgmma", accumulator) or signature(types.none, accumulator, pending)


@lowering_registry.lower(wait_wgmma, FragmentType, types.Any)
def _lower_wait(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, pending = sig.args
    symbol = f"oxide.tensor.wgmma_wait.{kind.layout.length}.{kind.layout.dtype}.{pending.literal_value}"
    return emitted(context, builder, symbol, "tensor.wait_wgmma()", builder.bitcast(args[0], BYTE_POINTER))


def _registers(function: Any, how: str) -> None:
    name = f"tensor.{function.__name__}"
    usage = f"{name} takes a constant, a multiple of 8 from 24 to 256"

    @typed(function, usage)
    def rule(count: Any) -> Any:
        number = count.literal_value if isinstance(count, types.IntegerLiteral) else 0
        return signature(types.none, count) if 24 <= number <= 256 and number % 8 == 0 else usage

    @lowering_registry.lower(function, types.Any)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        symbol = f"oxide.tensor.registers.{how}.{sig.args[0].literal_value}"
        return emitted(context, builder, symbol, f"{name}()")


_registers(increase_registers, "inc")
_registers(decrease_registers, "dec")
