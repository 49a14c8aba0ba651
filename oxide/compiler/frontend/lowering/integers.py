"""The types of integer arithmetic in kernels of oxide's vocabulary, as ``oxide/language/promotion.py`` has them, and
their lowering.

Two kinds of integers have no type of their own: Python integers, which are literals or *open*, and *places*. Both are
computed in 64 bits. Kernels in numba-cuda's vocabulary keep numba's rule.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Final

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core import errors
from numba.cuda.extending import core_models, register_model
from numba.cuda.typing.templates import signature

from oxide.language import promotion
from oxide.language.promotion import Operand, Refused

from .registry import lowering_registry, note
from .types import (
    COMPARISONS,
    NUMBA_TYPES,
    OPEN,
    OPEN_INTEGER,
    PLACE,
    OpenInteger,
    Place,
    WeakInteger,
    forms_of,
    makes_vector,
    operand_of,
    operation_of,
)
from .whole_numbers import shifted


@register_model(OpenInteger)
@register_model(Place)
class WeakIntegerModel(core_models.IntegerModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, types.int64)


_ARITHMETIC: Final = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)
_BITWISE: Final = (operator.and_, operator.or_, operator.xor)
_SHIFTS: Final = (operator.lshift, operator.rshift)
_POWERS: Final = (operator.pow, pow)
_EXTREMES: Final = (min, max)
_UNARY: Final = (operator.neg, operator.pos, operator.invert, abs)
SYMBOLS: Final[dict[Any, str]] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    pow: "**",
    operator.lshift: "<<",
    operator.rshift: ">>",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
    operator.neg: "-",
    operator.pos: "+",
    operator.invert: "~",
    **COMPARISONS,
}


def _is_bool(kind: Any) -> bool:
    return isinstance(types.unliteral(kind), types.Boolean)


def integer_signature(function: Any, args: tuple[Any, ...]) -> Any:
    """Returns the signature of an operation on integers and bools. Returns None if it is another operation, or has
    other operands. Raises ``TypingError`` for operands that the operation does not take together."""
    key = operation_of(function)
    if not args or not all(isinstance(kind, types.Integer) or _is_bool(kind) for kind in args):
        return None
    try:
        return _signature(key, args, [operand_of(kind) for kind in args])
    except Refused as refused:
        note(str(refused))
        raise errors.TypingError("arithmetic of integers") from None


def _signature(key: Any, args: tuple[Any, ...], operands: list[Operand]) -> Any:
    symbol = SYMBOLS.get(key) or str(getattr(key, "__name__", ""))
    if len(args) == 1 and key in _UNARY:
        kind = _type_of(promotion.unary(symbol, *operands))
        return signature(kind, _computed(kind))
    if len(args) == 2 and key in COMPARISONS:
        return signature(types.boolean, *[NUMBA_TYPES[each.name] for each in promotion.compared(*operands)])
    if len(args) == 2 and key is operator.truediv:
        return signature(_type_of(promotion.binary("/", operands)), types.float64, types.float64)
    if len(args) == 2 and key in (*_SHIFTS, *_POWERS):
        kind, right = _type_of(promotion.binary(symbol, operands)), args[1]
        known = key in _POWERS and isinstance(right, types.IntegerLiteral) and right.literal_value >= 0
        return signature(kind, _computed(kind), right if known else _wide(right))
    if (len(args) > 1 and key in _EXTREMES) or (len(args) == 2 and key in (*_ARITHMETIC, *_BITWISE, divmod)):
        kind = _type_of(promotion.binary(symbol, operands))
        return signature(types.UniTuple(kind, 2) if key is divmod else kind, *[_computed(kind)] * len(args))
    return None


def _type_of(operand: Operand) -> Any:
    """Returns the type of a result."""
    if operand.weak is float:
        return OPEN
    if operand.weak is not None:
        return PLACE if operand.weak is promotion.Place else OPEN_INTEGER
    return NUMBA_TYPES[operand.scalar.name]


def _computed(kind: Any) -> Any:
    return types.int64 if isinstance(kind, WeakInteger) else kind


def _wide(kind: Any) -> Any:
    """Returns the integer type of 64 bits that holds a count."""
    return types.uint64 if isinstance(kind, types.Integer) and not kind.signed else types.int64


_OF_FLOATS: Final = (*_ARITHMETIC, operator.truediv, *_POWERS, *_EXTREMES, divmod)


def small_integers(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the types that the arguments of arithmetic on f32 and small integers are converted to: an f32 holds all
    integers of 16 bits, so that NumPy keeps it, and so it holds bools. numba does so only for some of them."""
    if types.float32 not in args or operation_of(function) not in (*_OF_FLOATS, *COMPARISONS):
        return args
    small = [kind for kind in args if _is_bool(kind) or (isinstance(kind, types.Integer) and kind.bitwidth <= 16)]
    others = [kind for kind in args if kind not in small]
    return (types.float32,) * len(args) if small and all(kind == types.float32 for kind in others) else args


def unify_integers(first: Any, second: Any) -> Any:
    """Returns the type of a variable to which two different integers are assigned, of which at least one is a Python
    integer or a place; for typed integers the common type, or ``i64``. ``check_variables`` then refuses those that are
    not alike. Returns None for any other pair of types."""
    if not (isinstance(first, types.Integer) and isinstance(second, types.Integer)):
        return None
    operands = [operand_of(kind) for kind in (first, second)]
    found = promotion.assigned(operands)
    if found is not None:
        return _type_of(found)
    both = promotion.common(*[each.scalar for each in operands])
    return types.int64 if both is None else NUMBA_TYPES[both.name]


def closed_arguments(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the types of arguments with ``i64`` in place of integers that have no type of their own, but for
    literals. Tuples, and the functions that oxide types, keep them."""
    if isinstance(function, types.Dispatcher) or not isinstance(function, types.Callable):
        return args
    if _is_oxides(function) or makes_vector(function):
        return args
    return as_numbas(args)


def as_numbas(args: Iterable[Any]) -> tuple[Any, ...]:
    """Returns types with ``i64`` in place of integers that have no type of their own, but for literals."""
    return tuple(types.int64 if isinstance(kind, WeakInteger) else kind for kind in args)


def _is_oxides(function: Any) -> bool:
    """Returns whether oxide types the calls of a function."""
    templates = function.templates if isinstance(function, types.Function) else [getattr(function, "template", None)]
    if isinstance(function, types.BoundFunction):
        templates = function.template.__mro__  # numba makes a class of its own for each bound method
    return any(getattr(template, "__module__", "").startswith("oxide.") for template in templates)


# Lowering


def _lower_shift(operation: str) -> Any:
    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind, given = sig.args
        value = context.cast(builder, args[0], kind, sig.return_type)
        width = value.type.width
        exact = count = context.cast(builder, args[1], given, types.int64 if given.signed else types.uint64)
        if isinstance(count, ir.Constant):
            count = ir.Constant(value.type, min(count.constant % 2**64, width))
        elif width < 64:
            most = ir.Constant(count.type, width)
            beyond = builder.icmp_unsigned(">", count, most)  # a negative count, too
            count = builder.trunc(builder.select(beyond, most, count), value.type)
        if operation == "shl":
            return shifted(builder.shl(value, count), value, exact)
        return (builder.ashr if sig.return_type.signed else builder.lshr)(value, count)

    return lowered


for _operator in forms_of(operator.lshift):
    lowering_registry.lower(_operator, types.Integer, types.Integer)(_lower_shift("shl"))
for _operator in forms_of(operator.rshift):
    lowering_registry.lower(_operator, types.Integer, types.Integer)(_lower_shift("shr"))


@lowering_registry.lower(operator.invert, types.boolean)
def _lower_not(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.not_(args[0])
