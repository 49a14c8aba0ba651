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
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.source.fragment_layouts import BITS, DEPTHS, PRODUCTS, Layout
from oxide.language.tensor.wgmma import decrease_registers, increase_registers, wait_wgmma, wgmma

from ..common import element_index, in_bounds
from ..primitives import call_primitive, site
from ..registry import bound, lowering_registry, note_first, parameters, typing_registry
from ..types import display
from .barriers import shown
from .fragments import FragmentType
from .shared_tiles import ROW_BYTES, TilesType, tile_at

_BYTE_POINTER = ir.IntType(8).as_pointer()
_WORD = ir.IntType(64)
_VOID = ir.VoidType()

_GROUP_ROWS = 64
"""The number of rows of the result of one ``wgmma``."""
_MOST_COLUMNS = 256
_PANEL = 64
"""The number of columns of a tile of a transposed operand. A row of such a tile is one position along k."""


def _accumulator(name: str, kind: Any) -> Layout | None:
    """Returns the layout of an accumulator to which ``wgmma`` can add. For any other type, adds a note and returns
    None."""
    if isinstance(kind, FragmentType) and kind.layout.kind == "Accumulator":
        layout: Layout = kind.layout
        if layout.rows == 16 and layout.dtype in ("f32", "i32") and layout.columns <= _MOST_COLUMNS:
            return layout
    note_first(
        f"tensor.{name} takes an Accumulator((16, n), f32), or i32, the rows of one of the four warps, with n a "
        f"multiple of 8 up to {_MOST_COLUMNS}; it got {display(kind)}"
    )
    return None


def _is_product(total: Layout, a: Any, b: Any) -> bool:
    """Returns whether the GPU has an instruction for these types of elements. If not, adds a note with the reason."""
    a_type, b_type = display(a.dtype), display(b.dtype)
    sums = [each for each in PRODUCTS.get((a_type, b_type), ()) if each in ("f32", "i32")]
    if not sums:
        note_first(
            "tensor.wgmma multiplies elements of one type, or of two of 8 bits of one kind; they are of "
            f"{a_type} and {b_type}"
        )
        return False
    if total.dtype not in sums:
        note_first(f"tensor.wgmma adds products of {a_type} to an Accumulator of {sums[0]}; it is of {total.dtype}")
        return False
    if total.dtype == "i32" and total.columns > 24 and total.columns % 16:
        note_first(f"tensor.wgmma adds integers to 8 or 24 columns or a multiple of 16, not to {total.columns}")
        return False
    return True


_NAMES = ("accumulator", "a", "a_index", "b", "b_number")
_FLAGS = {"a_transposed": False, "b_transposed": False, "add": True}
_A_INDEX = "a tile's number and its first row"


@typing_registry.register_global(wgmma)
class Wgmma(AbstractTemplate):  # type: ignore[misc]
    prefer_literal = True

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        given = bound((*_NAMES, *_FLAGS), args, kws, optional=len(_FLAGS))
        if given is None:
            note_first(f"tensor.wgmma takes ({', '.join((*_NAMES, *_FLAGS))}), the last three optional")
            return None
        total = _accumulator("wgmma", given["accumulator"])
        a, b = given["a"], given["b"]
        if total is None:
            return None
        in_registers = isinstance(a, FragmentType) and a.layout.kind == "FragmentA"
        if not ((isinstance(a, TilesType) or in_registers) and isinstance(b, TilesType)):
            note_first(
                "tensor.wgmma multiplies tensor.SharedTiles, or a FragmentA, by SharedTiles, not "
                f"{display(a)} and {display(b)}"
            )
            return None
        if not _is_product(total, a, b):
            return None
        flags = []
        for name, usual in _FLAGS.items():
            flag = given.get(name)
            if not (flag is None or isinstance(flag, types.Omitted | types.BooleanLiteral)):
                note_first(f"tensor.wgmma: {name} is a constant, True or False")
                return None
            flags.append(bool(flag.literal_value) if isinstance(flag, types.BooleanLiteral) else usual)
        for name, operand, flag in zip(_FLAGS, (a, b), flags, strict=False):
            if flag and BITS[display(operand.dtype)] != 16:
                note_first(f"tensor.wgmma: {name} is for f16 and bf16; {operand.name} is read as it is")
                return None
        index = given["a_index"]
        parts = list(index) if isinstance(index, types.BaseTuple) else []
        integers = (*parts, given["b_number"])
        as_expected = isinstance(index, types.NoneType) if in_registers else len(parts) == 2
        if not as_expected or not all(isinstance(types.unliteral(each), types.Integer) for each in integers):
            note_first(
                f"tensor.wgmma: a_index is {'None for a FragmentA' if in_registers else _A_INDEX}, and b_number an "
                "integer"
            )
            return None
        if not (_fits_registers(a.layout, b, *flags[:2]) if in_registers else _fits(a, b, *flags[:2])):
            return None
        if not _has_columns(b, total.columns, flags[1]):
            return None
        kinds = [given["accumulator"], a, types.unliteral(index), b, types.unliteral(given["b_number"])]
        kinds += [types.literal(flag) for flag in flags]
        return signature(types.none, *kinds).replace(pysig=parameters(*_NAMES, **_FLAGS))


def _fits(a: Any, b: Any, a_transposed: bool, b_transposed: bool) -> bool:
    """Returns whether the tiles of ``a`` and ``b`` have the same length along k, and the tiles of ``a`` have enough
    rows. If not, adds a note with the reason."""
    depth, found, step = a.rows if a_transposed else a.columns, _depth(b, b_transposed), _step(b)
    if found != depth or depth % step:
        note_first(
            f"tensor.wgmma adds {depth} products of {a.name}, and {b.name} has {found}; they are the same multiple of "
            f"{step}"
        )
        return False
    if not a_transposed and a.rows < _GROUP_ROWS:
        note_first(f"tensor.wgmma multiplies {_GROUP_ROWS} rows, and {a.name} has tiles of {a.rows}")
        return False
    return True


def _fits_registers(a: Layout, b: Any, a_transposed: bool, b_transposed: bool) -> bool:
    """Returns whether the fragment ``a`` has the rows of one warp, and the same length along k as the tiles of ``b``.
    If not, adds a note with the reason."""
    name, found = f"FragmentA(({a.rows}, {a.columns}), {a.dtype})", _depth(b, b_transposed)
    if a_transposed:
        note_first(f"tensor.wgmma: {name} is in registers, which have one order; a_transposed is for SharedTiles")
        return False
    if a.rows != 16 or a.columns != found or found % _step(b):
        note_first(
            f"tensor.wgmma multiplies a FragmentA of 16 rows, those of one of the four warps, and {found} columns by "
            f"{b.name}, not {name}"
        )
        return False
    return True


def _depth(b: Any, transposed: bool) -> int:
    """Returns the length of a tile of ``b`` along k."""
    return int(b.rows if transposed else b.columns)


def _step(b: Any) -> int:
    """Returns the extent of one instruction along k."""
    return DEPTHS[display(b.dtype)]


def _has_columns(b: Any, columns: int, transposed: bool) -> bool:
    """Returns whether the accumulator's columns fit the tiles of ``b``: they must fit into one tile, or fill several
    tiles completely. If not, adds a note with the reason."""
    if transposed and columns > _PANEL and columns % _PANEL:
        note_first(
            f"tensor.wgmma: with b_transposed the accumulator's columns, {columns}, are up to {_PANEL} or a multiple"
        )
        return False
    if not transposed and b.rows < columns and (columns % b.rows or columns > b.rows * b.count):
        note_first(
            f"tensor.wgmma: the accumulator has {columns} columns, and the tiles of {b.name} have {b.rows} rows; they "
            "have as many, or a whole number of tiles has"
        )
        return False
    return True


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
    return _multiply(context, builder, sig, args, "r", builder.bitcast(args[1], _BYTE_POINTER), ())


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
    place = site(builder, "tensor.wgmma()")
    for condition in conditions:
        there = builder.and_(there, condition)
    with builder.if_then(there, likely=True):
        memory = builder.bitcast(args[0], _BYTE_POINTER)
        call_primitive(builder, _VOID, symbol, (memory, a_address, b_address), place)
    return context.get_dummy_value()


@typing_registry.register_global(wait_wgmma)
class WaitWgmma(AbstractTemplate):  # type: ignore[misc]
    prefer_literal = True

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        given = bound(("accumulator", "pending"), args, kws, optional=1)
        if given is None:
            note_first("tensor.wait_wgmma takes (accumulator, pending), the last optional")
            return None
        pending = given.get("pending", types.literal(0))
        if isinstance(pending, types.Omitted):
            pending = types.literal(pending.value)
        if not isinstance(pending, types.IntegerLiteral) or not 0 <= pending.literal_value <= 7:
            note_first(f"tensor.wait_wgmma: pending is a constant from 0 to 7; it is {shown(pending)}")
            return None
        if _accumulator("wait_wgmma", given["accumulator"]) is None:
            return None
        return signature(types.none, given["accumulator"], pending).replace(pysig=parameters("accumulator", pending=0))


@lowering_registry.lower(wait_wgmma, FragmentType, types.Any)
def _lower_wait(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, pending = sig.args
    symbol = f"oxide.tensor.wgmma_wait.{kind.layout.length}.{kind.layout.dtype}.{pending.literal_value}"
    call_primitive(
        builder, _VOID, symbol, (builder.bitcast(args[0], _BYTE_POINTER),), site(builder, "tensor.wait_wgmma()")
    )
    return context.get_dummy_value()


def _registers(function: Any, how: str) -> None:
    name = function.__name__

    @typing_registry.register_global(function)
    class Registers(AbstractTemplate):  # type: ignore[misc]
        prefer_literal = True

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            given = [*args, *dict(kws or {}).values()]
            count = given[0].literal_value if len(given) == 1 and isinstance(given[0], types.IntegerLiteral) else 0
            if not 24 <= count <= 256 or count % 8:
                note_first(f"tensor.{name} takes a constant, a multiple of 8 from 24 to 256")
                return None
            return signature(types.none, given[0]).replace(pysig=parameters("count"))

    @lowering_registry.lower(function, types.Any)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        call_primitive(
            builder,
            _VOID,
            f"oxide.tensor.registers.{how}.{sig.args[0].literal_value}",
            (),
            site(builder, f"tensor.{name}()"),
        )
        return context.get_dummy_value()


_registers(increase_registers, "inc")
_registers(decrease_registers, "dec")
