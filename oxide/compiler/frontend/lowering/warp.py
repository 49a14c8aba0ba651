"""``oxide.warp``. Each function is lowered to a call of a primitive that both back ends define
(``compiler.ir.primitives``).

A primitive takes a value as an integer of the value's width. Only a reduction takes the value with its own type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.language import warp

from .barrier import as_bit
from .primitives import call_primitive, site
from .registry import first_parameters, lowering_registry, note, typing_registry
from .types import display

_BIT = ir.IntType(1)
_INT = ir.IntType(32)
_WORD = ir.IntType(64)


def _register(
    function: Any, least: int, typed: Callable[[tuple[Any, ...]], Any], lowered: Callable[..., Any], mask: bool = True
) -> None:
    """Registers a function of ``least`` arguments and, if ``mask``, an optional mask after them.

    ``typed`` returns the type of the result followed by the types of the arguments, without the mask. ``lowered`` takes
    ``(context, builder, kind, args, mask, place)`` and returns the result. ``kind`` is the type of the first argument,
    or None if there is no argument.
    """
    name = function.__name__

    @typing_registry.register_global(function)
    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            given = dict(kws or {})
            last = given.pop("mask", None)
            every = (*args, last) if last is not None else args
            if given or not least <= len(every) <= least + mask:
                note(f"warp.{name} takes {least} argument{'s' * (least != 1)}" + (" and a mask" if mask else ""))
                return None
            plain = tuple(types.unliteral(argument) for argument in every)
            if len(plain) > least and not isinstance(plain[least], types.Integer):
                note(f"the mask of warp.{name} is an integer, a bit for each lane; it is {display(plain[least])}")
                return None
            found = typed(plain[:least])
            if found is None:
                return None
            result, *arguments = found
            every_type = [*arguments, types.uint32] if len(plain) > least else arguments
            return signature(result, *every_type).replace(pysig=first_parameters(function, len(every_type)))

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes = args[least] if len(args) > least else ir.Constant(_INT, warp.FULL_MASK)
        kind = sig.args[0] if sig.args else None
        return lowered(context, builder, kind, args, lanes, site(builder, f"warp.{name}()"))

    for count in range(least, least + mask + 1):
        lowering_registry.lower(function, *[types.Any] * count)(lower)


def _is_value(name: str, kind: Any, integer: bool = False) -> bool:
    allowed = types.Integer if integer else types.Integer | types.Float
    if isinstance(kind, allowed) and kind.bitwidth in (32, 64):
        return True
    wanted = "a 32- or 64-bit integer" if integer else "a 32- or 64-bit integer or float"
    instead = "call it for each of z.real and z.imag" if isinstance(kind, types.Complex) else "convert it, as in i32(x)"
    note(f"warp.{name} takes {wanted}, not {display(kind)}; {instead}")
    return False


def _bits(builder: Any, kind: Any, value: Any) -> Any:
    return builder.bitcast(value, ir.IntType(kind.bitwidth)) if isinstance(kind, types.Float) else value


def _shuffle(function: Any, how: str) -> None:
    def typed(args: tuple[Any, ...]) -> Any:
        value, lane = args
        if not _is_value(function.__name__, value):
            return None
        if not isinstance(lane, types.Integer):
            note(f"warp.{function.__name__} takes an integer for the lane, not {display(lane)}")
            return None
        return value, value, types.int32

    def lowered(context: Any, builder: Any, kind: Any, args: Any, mask: Any, place: Any) -> Any:
        word = ir.IntType(kind.bitwidth)
        bits = _bits(builder, kind, args[0])
        name = f"oxide.warp.shuffle.{how}.i{kind.bitwidth}"
        moved = call_primitive(builder, word, name, (mask, bits, args[1], place))
        return builder.bitcast(moved, context.get_value_type(kind))

    _register(function, 2, typed, lowered)


_shuffle(warp.shuffle, "idx")
_shuffle(warp.shuffle_up, "up")
_shuffle(warp.shuffle_down, "down")
_shuffle(warp.shuffle_xor, "bfly")


def _vote(function: Any, how: str, result: Any, llvm_result: Any) -> None:
    def typed(args: tuple[Any, ...]) -> Any:
        if not isinstance(args[0], types.Boolean | types.Integer):
            note(f"warp.{function.__name__} takes a condition, not {display(args[0])}; compare it, as in x > 0")
            return None
        return result, types.boolean

    def lowered(context: Any, builder: Any, kind: Any, args: Any, mask: Any, place: Any) -> Any:
        condition = as_bit(builder, args[0])
        return call_primitive(builder, llvm_result, f"oxide.warp.{how}", (mask, condition, place))

    _register(function, 1, typed, lowered)


_vote(warp.all, "all", types.boolean, _BIT)
_vote(warp.any, "any", types.boolean, _BIT)
_vote(warp.ballot, "ballot", types.uint32, _INT)


def _match(function: Any, how: str) -> None:
    def typed(args: tuple[Any, ...]) -> Any:
        return (types.uint32, args[0]) if _is_value(function.__name__, args[0]) else None

    def lowered(context: Any, builder: Any, kind: Any, args: Any, mask: Any, place: Any) -> Any:
        name = f"oxide.warp.match.{how}.i{kind.bitwidth}"
        return call_primitive(builder, _INT, name, (mask, _bits(builder, kind, args[0]), place))

    _register(function, 1, typed, lowered)


_match(warp.match_any, "any")
_match(warp.match_all, "all")


def _reduce(function: Any, operation: str, integer: bool) -> None:
    def typed(args: tuple[Any, ...]) -> Any:
        return (args[0], args[0]) if _is_value(function.__name__, args[0], integer) else None

    def lowered(context: Any, builder: Any, kind: Any, args: Any, mask: Any, place: Any) -> Any:
        letter = "f" if isinstance(kind, types.Float) else "i"
        unsigned = letter == "i" and not kind.signed and operation in ("min", "max")
        name = f"oxide.warp.reduce.{'u' if unsigned else ''}{operation}.{letter}{kind.bitwidth}"
        return call_primitive(builder, context.get_value_type(kind), name, (mask, args[0], place))

    _register(function, 1, typed, lowered)


for _function, _operation in (
    (warp.reduce_add, "add"),
    (warp.reduce_min, "min"),
    (warp.reduce_max, "max"),
    (warp.reduce_and, "and"),
    (warp.reduce_or, "or"),
    (warp.reduce_xor, "xor"),
):
    _reduce(_function, _operation, integer=_operation in ("and", "or", "xor"))


def _lowered_sync(context: Any, builder: Any, kind: Any, args: Any, mask: Any, place: Any) -> Any:
    lanes = args[0] if len(args) else mask
    call_primitive(builder, ir.VoidType(), "oxide.warp.sync", (lanes, place))
    return context.get_dummy_value()


def _lowered_active_mask(context: Any, builder: Any, kind: Any, args: Any, mask: Any, place: Any) -> Any:
    return call_primitive(builder, _INT, "oxide.warp.active_mask", (place,))


def _lowered_lane_id(context: Any, builder: Any, kind: Any, args: Any, mask: Any, place: Any) -> Any:
    return builder.zext(_special(builder, "laneid"), _WORD)


def _lowered_warp_id(context: Any, builder: Any, kind: Any, args: Any, mask: Any, place: Any) -> Any:
    # The hardware's %warpid is not used: it is the warp's current slot, which may change while the warp runs.
    rows = builder.add(builder.mul(_special(builder, "tid.z"), _special(builder, "ntid.y")), _special(builder, "tid.y"))
    linear = builder.add(builder.mul(rows, _special(builder, "ntid.x")), _special(builder, "tid.x"))
    return builder.zext(builder.lshr(linear, ir.Constant(_INT, 5)), _WORD)


def _special(builder: Any, name: str) -> Any:
    return call_primitive(builder, _INT, f"llvm.nvvm.read.ptx.sreg.{name}", ())


def _lowered_elect(context: Any, builder: Any, kind: Any, args: Any, mask: Any, place: Any) -> Any:
    return call_primitive(builder, _BIT, "oxide.warp.elect", (args[0] if len(args) else mask, place))


_register(warp.elect, 0, lambda args: (types.boolean,), _lowered_elect)
_register(warp.sync, 0, lambda args: (types.none,), _lowered_sync)
_register(warp.active_mask, 0, lambda args: (types.uint32,), _lowered_active_mask, mask=False)
_register(warp.lane_id, 0, lambda args: (types.int64,), _lowered_lane_id, mask=False)
_register(warp.warp_id, 0, lambda args: (types.int64,), _lowered_warp_id, mask=False)
