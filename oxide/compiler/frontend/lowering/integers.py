"""The types of integer arithmetic in kernels of oxide's vocabulary: NumPy's (NEP 50), with few exceptions.

Two typed integers have NumPy's common type, and the result wraps in it. Two kinds of integers have no type of their
own:

- A Python integer, which is a literal, or a variable that holds one (*open*). It takes the type of the typed number
  that it meets. A literal must fit in that type.
- A *place*: an index of a thread, a length, or the variable of a ``range``. To typed integers it is an ``i64``, and to
  floats a Python integer, so that ``dx * column`` is an f32 if ``dx`` is.

Both are computed in 64 bits. Exceptions from NumPy: a ``u64`` with a signed integer is refused, except in comparisons,
which compare the numbers; a shift has the type of its left operand, and a power that of its base. Kernels in
numba-cuda's vocabulary keep numba's rule.
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

from .registry import lowering_registry, note
from .types import (
    COMPARISONS,
    OPEN,
    OPEN_INTEGER,
    PLACE,
    OpenFloat,
    OpenInteger,
    Place,
    WeakInteger,
    display,
    forms_of,
    operation_of,
)


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


def is_weak(kind: Any) -> bool:
    """Returns whether a type is that of an integer without a type of its own."""
    return isinstance(kind, types.IntegerLiteral | WeakInteger)


def is_python_number(kind: Any) -> bool:
    """Returns whether a type is that of a number that floats take for a Python number."""
    return is_weak(kind) or isinstance(kind, OpenFloat)


def _is_bool(kind: Any) -> bool:
    return isinstance(types.unliteral(kind), types.Boolean)


def common(first: Any, second: Any) -> Any:
    """Returns NumPy's common type of two typed integers. Returns None for ``u64`` and a signed integer."""
    if first.signed == second.signed:
        return first if first.bitwidth >= second.bitwidth else second
    signed, unsigned = (first, second) if first.signed else (second, first)
    if unsigned.bitwidth == 64:
        return None
    wide = max(signed.bitwidth, 2 * unsigned.bitwidth)
    return getattr(types, f"int{wide}")


def integer_signature(function: Any, args: tuple[Any, ...]) -> Any:
    """Returns the signature of an operation on integers and bools. Returns None if it is another operation, or has
    other operands. Raises ``TypingError`` for operands that the operation does not take together."""
    key = operation_of(function)
    if not args or not all(isinstance(kind, types.Integer) or _is_bool(kind) for kind in args):
        return None
    if len(args) == 1:
        return _unary(key, args[0])
    if len(args) == 2 and key in COMPARISONS:
        return _comparison(args)
    if len(args) == 2 and key is operator.truediv:
        result = OPEN if all(map(is_weak, args)) else types.float64
        return signature(result, types.float64, types.float64)
    if len(args) == 2 and key in (*_SHIFTS, *_POWERS):
        return _by_the_left(key, *args)
    if key in _EXTREMES or (len(args) == 2 and key in (*_ARITHMETIC, *_BITWISE, divmod)):
        if all(map(_is_bool, args)):
            if key in _BITWISE:
                return signature(types.boolean, *[types.boolean] * len(args))
            _refuse_bools(key)
        kind = _together(key, args)
        computed = types.int64 if isinstance(kind, WeakInteger) else kind
        return signature(types.UniTuple(kind, 2) if key is divmod else kind, *[computed] * len(args))
    return None


def _unary(key: Any, kind: Any) -> Any:
    if key not in _UNARY:
        return None
    if _is_bool(kind):
        if key is operator.invert:
            return signature(types.boolean, types.boolean)
        _refuse_bools(key)
    if isinstance(kind, types.IntegerLiteral):
        return signature(OPEN_INTEGER, types.int64)
    return signature(kind, types.int64 if isinstance(kind, WeakInteger) else kind)


def _refuse_bools(key: Any) -> None:
    shown = SYMBOLS.get(key) or key.__name__
    note(f"{shown} of bools: write &, | or ^ for logic, or convert to count, as in i32(x)")
    raise errors.TypingError("arithmetic of bools")


def _comparison(args: tuple[Any, ...]) -> Any:
    """Compares the numbers, whatever the types are."""
    first, second = (types.boolean if _is_bool(kind) else kind for kind in args)
    if first == second == types.boolean:
        return signature(types.boolean, first, second)
    kinds = [types.int64 if kind == types.boolean else types.unliteral(kind) for kind in (first, second)]
    kinds = [types.int64 if isinstance(kind, WeakInteger) else kind for kind in kinds]
    for number, kind in enumerate((first, second)):
        if isinstance(kind, types.IntegerLiteral) and _fits(kind, kinds[1 - number]):
            return signature(types.boolean, *[kinds[1 - number]] * 2)
    wide = common(*kinds)
    if wide is not None:
        return signature(types.boolean, wide, wide)
    return signature(types.boolean, *[types.int64 if kind.signed else types.uint64 for kind in kinds])


def _by_the_left(key: Any, left: Any, right: Any) -> Any:
    """Types a shift or a power: it has the type of its left operand. A Python number there takes the type of a typed
    right operand."""
    if _is_bool(left) and _is_bool(right):
        _refuse_bools(key)
    kind = types.int64 if _is_bool(left) else left
    if isinstance(left, types.IntegerLiteral | OpenInteger) and not is_weak(right) and not _is_bool(right):
        kind = right
        _require_fit(key, (left, right), left, right)
    elif isinstance(left, types.IntegerLiteral):
        kind = PLACE if isinstance(right, Place) else OPEN_INTEGER
    computed = types.int64 if isinstance(kind, WeakInteger) else kind
    if key in _POWERS and isinstance(right, types.IntegerLiteral) and right.literal_value >= 0:
        return signature(kind, computed, right)
    return signature(kind, computed, _wide(right))


def _wide(kind: Any) -> Any:
    """Returns the integer type of 64 bits that holds a count."""
    return types.uint64 if isinstance(kind, types.Integer) and not kind.signed else types.int64


def _together(key: Any, args: Iterable[Any]) -> Any:
    """Returns the type of an operation on integers and bools."""
    args = tuple(args)
    typed = [kind for kind in args if not is_weak(kind) and not _is_bool(kind)]
    places = any(isinstance(kind, Place) for kind in args)
    if not typed and not any(map(_is_bool, args)):
        return PLACE if places else OPEN_INTEGER
    if places or not typed:
        typed.append(types.int64)
    found = typed[0]
    for kind in typed[1:]:
        both = common(found, kind)
        if both is None:
            shown = f" {SYMBOLS[key]} ".join(map(display, args)) if key in SYMBOLS else _called(key, args)
            note(f"{shown}: no integer type holds both; convert one, as in i64(x) or u64(x)")
            raise errors.TypingError("u64 and a signed integer")
        found = both
    for kind in args:
        _require_fit(key, args, kind, found)
    return found


def _called(key: Any, args: tuple[Any, ...]) -> str:
    return f"{key.__name__}({', '.join(map(display, args))})"


def _fits(literal: Any, kind: Any) -> bool:
    return bool(kind.minval <= literal.literal_value <= kind.maxval)


def _require_fit(key: Any, args: tuple[Any, ...], given: Any, kind: Any) -> None:
    """Refuses a literal that does not fit in the type that it takes."""
    if not isinstance(given, types.IntegerLiteral) or _fits(given, kind):
        return
    value = given.literal_value
    shown = [str(each.literal_value) if isinstance(each, types.IntegerLiteral) else display(each) for each in args]
    text = f" {SYMBOLS[key]} ".join(shown) if key in SYMBOLS else f"{key.__name__}({', '.join(shown)})"
    note(
        f"{text}: {value} does not fit in {display(kind)}, which holds {kind.minval} to {kind.maxval}; convert "
        f"the other operand to a wider type, or write {display(kind)}({value}), which wraps"
    )
    raise errors.TypingError("a literal that does not fit")


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
    integer or a place; for typed integers the common type, or ``i64``. ``CheckVariables`` then refuses those that are
    not alike. Returns None for any other pair of types."""
    if not (isinstance(first, types.Integer) and isinstance(second, types.Integer)):
        return None
    if is_weak(first) and is_weak(second):
        return PLACE if Place in (type(first), type(second)) else OPEN_INTEGER
    for weak, other in ((first, second), (second, first)):
        if isinstance(weak, Place):
            return common(types.int64, other) or types.int64
        if is_weak(weak):
            return other
    return common(first, second) or types.int64


def closed_arguments(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the types of arguments with ``i64`` in place of integers that have no type of their own, but for
    literals. Tuples, and the functions that oxide types, keep them."""
    if isinstance(function, types.Dispatcher) or not isinstance(function, types.Callable) or _is_oxides(function):
        return args
    return tuple(types.int64 if isinstance(kind, WeakInteger) else kind for kind in args)


def _is_oxides(function: Any) -> bool:
    """Returns whether oxide types the calls of a function."""
    templates = function.templates if isinstance(function, types.Function) else [getattr(function, "template", None)]
    return any(getattr(template, "__module__", "").startswith("oxide.") for template in templates)


# Lowering


def _lower_shift(operation: str) -> Any:
    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind, given = sig.args
        value = context.cast(builder, args[0], kind, sig.return_type)
        width = value.type.width
        count = context.cast(builder, args[1], given, types.int64 if given.signed else types.uint64)
        if isinstance(count, ir.Constant):
            count = ir.Constant(value.type, min(count.constant % 2**64, width))
        elif width < 64:
            most = ir.Constant(count.type, width)
            beyond = builder.icmp_unsigned(">", count, most)  # a negative count, too
            count = builder.trunc(builder.select(beyond, most, count), value.type)
        name = operation if operation == "shl" else "ashr" if sig.return_type.signed else "lshr"
        return getattr(builder, name)(value, count)

    return lowered


for _operator in forms_of(operator.lshift):
    lowering_registry.lower(_operator, types.Integer, types.Integer)(_lower_shift("shl"))
for _operator in forms_of(operator.rshift):
    lowering_registry.lower(_operator, types.Integer, types.Integer)(_lower_shift("shr"))


@lowering_registry.lower(operator.invert, types.boolean)
def _lower_not(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.not_(args[0])
