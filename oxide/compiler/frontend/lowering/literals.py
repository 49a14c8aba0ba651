"""Literals and known integers in kernels of oxide's vocabulary. A literal takes the type of a typed float that it
*meets*, which means that both are operands of one operation.

The rule is NumPy 2's for Python scalars (NEP 50). A Python float is *open* until it meets a typed float: ``0.5 * x[i]``
is an f32 if ``x[i]`` is, and so is an accumulator that begins as ``0.0`` and to which f32 values are added. Open floats
have a numba type of their own, so the rule also holds for variables, calls and loops. An open float is computed in f64,
with Python's precision. It is rounded once, where it meets a narrower type. An integer literal that meets a float takes
the float's type. Operations on integers alone follow the rule for integers: they are computed in 64 bits. Kernels in
numba-cuda's vocabulary keep numba's rule.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from types import ModuleType
from typing import Any, Final, TypeAlias

from numba.cuda import types
from numba.cuda.core import ir as numba_ir
from numba.cuda.extending import core_models, register_model
from numba.cuda.typing.templates import signature

from oxide.language import intrinsics

from .registry import compiler_pass, is_numbas, lowering_registry, session
from .types import ARITHMETIC, COMPARISONS, OPEN, HalfType, OpenFloat, OpenInteger, Place, makes_vector, operation_of

_ARITHMETIC = frozenset(
    {
        *(*ARITHMETIC, *COMPARISONS, operator.neg, operator.pos, abs, min, max, pow, divmod),
        *(intrinsics.fma, intrinsics.fmin, intrinsics.fmax, intrinsics.rsqrt),
    }
)
_POWERS = frozenset({operator.pow, pow, math.pow})
_WITH_INTEGERS = frozenset({math.ldexp})
_INTEGERS = types.IntegerLiteral | OpenInteger | Place


@register_model(OpenFloat)
class OpenFloatModel(core_models.FloatModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, types.float64)


def literal_arguments(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the types that the arguments of an operation are converted to. Literals take the type of the typed floats
    among the arguments.

    If the function is not arithmetic, or if no argument is a typed float, open floats become f64, except where they may
    stay open (``_takes_open``).
    """
    if not any(isinstance(argument, OpenFloat | _INTEGERS) for argument in args):
        return args
    if any(isinstance(argument, types.Complex) for argument in args):
        return args  # ``complex_numbers.py`` has the rule for them
    key = operation_of(function)
    if not all(_is_number(argument) for argument in args):
        return args if _takes_open(function) else _closed(args)
    met = _met(args)
    if met is None or not _meets(key):
        return args if _takes_open(function) else _closed(args)
    taken = []
    for number, argument in enumerate(args):
        exponent = key in _POWERS and number == 1
        is_integer = isinstance(argument, _INTEGERS) and not exponent and key not in _WITH_INTEGERS
        taken.append(met if isinstance(argument, OpenFloat) or is_integer else argument)
    return tuple(taken)


def open_result(function: Any, args: tuple[Any, ...], resolved: Any) -> Any:
    """Returns the signature of an operation whose operands are all literals and whose result is an open float. Returns
    ``resolved`` for any other operation."""
    key = operation_of(function)
    if (
        resolved is None
        or resolved.return_type != types.float64
        or not all(isinstance(argument, OpenFloat | _INTEGERS) for argument in args)
        or not _meets(key)
    ):
        return resolved
    return signature(OPEN, *resolved.args)


def unify_literals(first: Any, second: Any) -> Any:
    """Returns the type of a variable to which a literal and another number are assigned, at least one of them a float.
    Returns None for any other pair of types."""
    for literal, other in ((first, second), (second, first)):
        if isinstance(literal, OpenFloat):
            if isinstance(other, types.Float | HalfType):
                return other
            if isinstance(other, _INTEGERS):
                return OPEN
            if isinstance(other, types.Integer | types.Boolean):
                return types.float64
        if isinstance(literal, _INTEGERS) and isinstance(other, types.Float | HalfType):
            return other
    return None


def _met(args: tuple[Any, ...]) -> Any:
    """Returns the type that the literals among the arguments take: the widest float type of the other arguments, or f32
    if these are narrow floats of different types. Returns None if no argument is a typed float."""
    floats = [a for a in args if isinstance(a, types.Float | HalfType) and not isinstance(a, OpenFloat)]
    if not floats:
        return None
    if len({*floats}) > 1 and all(isinstance(kind, HalfType) for kind in floats):
        return types.float32
    return max(floats, key=lambda kind: kind.bitwidth)


def _meets(key: Any) -> bool:
    return key in _ARITHMETIC or getattr(key, "__module__", None) in ("math", "numpy", "oxide.language.fast")


def _takes_open(function: Any) -> bool:
    """Returns whether arguments that are open floats stay open. They stay open in calls of device functions, in tuples
    and in vectors."""
    return isinstance(function, types.Dispatcher) or not isinstance(function, types.Callable) or makes_vector(function)


def _closed(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(types.float64 if isinstance(argument, OpenFloat) else argument for argument in args)


def _is_number(argument: Any) -> bool:
    return isinstance(argument, types.Number | types.Boolean | types.IntegerLiteral | types.BooleanLiteral)


@lowering_registry.lower_cast(OpenFloat, types.Float)
@lowering_registry.lower_cast(OpenFloat, HalfType)
@lowering_registry.lower_cast(OpenFloat, types.Complex)
@lowering_registry.lower_cast(OpenFloat, types.Integer)
@lowering_registry.lower_cast(OpenFloat, types.Boolean)
def _from_open(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return value if isinstance(target, OpenFloat) else context.cast(builder, value, types.float64, target)


@lowering_registry.lower_cast(types.Float, OpenFloat)
@lowering_registry.lower_cast(types.Integer, OpenFloat)
@lowering_registry.lower_cast(types.IntegerLiteral, OpenFloat)
@lowering_registry.lower_cast(types.Boolean, OpenFloat)
def _to_open(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return value if isinstance(source, OpenFloat) else context.cast(builder, value, source, types.float64)


# Arithmetic on integers that are known at compile time is folded. The result is a Python integer, which is typed like a
# literal. Python itself computes ``2 * 3``. This pass also computes expressions with names: constants of a module or of
# an enclosing function, and variables whose value is known. So if ``x[i]`` is an f32, ``(COUNT + 1) * x[i]`` is an f32.
#
# An operation is folded only if the kernel's own arithmetic would give an equal result. The pass looks at values in
# numba's IR after SSA construction, and not at types, because the type of a loop's variable is a literal until
# inference has seen the end of the loop.

_LEAST: Final = -(2**63)
_GREATEST: Final = 2**63 - 1
_EXACT: Final = 2**53
"""The magnitude up to which an f64 represents every integer exactly."""

_Number: TypeAlias = int | float

_OF_INTEGERS: Final = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.pow),
        *(operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift),
        *(operator.neg, operator.pos, operator.invert),
    }
)


@compiler_pass
def fold_integers(state: Any) -> bool:
    """Replaces arithmetic on known integers by its result, in functions that a kernel's author wrote."""
    if session().numba_style or is_numbas(state.func_id.filename):
        return False
    function = state.func_ir
    statements = [
        statement
        for _, block in sorted(function.blocks.items())
        for statement in block.body
        if isinstance(statement, numba_ir.Assign)
    ]
    times = Counter(statement.target.name for statement in statements)
    once = [statement for statement in statements if times[statement.target.name] == 1]
    return _fold(function, once)


def _fold(function: Any, statements: list[Any]) -> bool:
    known: dict[str, Any] = {}
    """The known values of variables: integers, floats that were computed from integers, and modules."""
    changed, before = False, -1
    while len(known) > before:  # again, because a block may come before a block that dominates it
        before = len(known)
        for statement in statements:
            name, value = statement.target.name, statement.value
            if name in known:
                continue
            found = _value(value, known)
            if found is None:
                continue
            known[name] = found
            if isinstance(value, numba_ir.Expr) and value.op != "getattr":
                statement.value = numba_ir.Const(found, value.loc)
                function._definitions[name] = [statement.value]
                changed = True
    return changed


def _value(value: Any, known: dict[str, Any]) -> Any:
    """Returns the value of an expression that is a known integer, a float computed from known integers, or a module.
    Returns None for any other expression."""
    match value:
        case numba_ir.Const() | numba_ir.Global() | numba_ir.FreeVar():
            return value.value if type(value.value) is int or isinstance(value.value, ModuleType) else None
        case numba_ir.Var():
            return known.get(value.name)
        case numba_ir.Expr(op="getattr"):
            module = known.get(value.value.name)
            found = getattr(module, value.attr, None) if isinstance(module, ModuleType) else None
            return found if type(found) is int or isinstance(found, ModuleType) else None
        case numba_ir.Expr(op="binop"):
            return _computed(value.fn, known.get(value.lhs.name), known.get(value.rhs.name))
        case numba_ir.Expr(op="inplace_binop"):
            return _computed(value.immutable_fn, known.get(value.lhs.name), known.get(value.rhs.name))
        case numba_ir.Expr(op="unary"):
            return _computed(value.fn, known.get(value.value.name))
    return None


def _computed(function: Any, *numbers: Any) -> _Number | None:
    """Returns the result of an operator if all operands are known integers and the kernel's arithmetic gives an equal
    result. Returns None otherwise."""
    if not all(type(number) is int and _LEAST <= number <= _GREATEST for number in numbers):
        return None
    *_, last = numbers
    if function is operator.truediv:
        exact = last != 0 and all(abs(number) <= _EXACT for number in numbers)
        return numbers[0] / last if exact else None
    if function not in _OF_INTEGERS or (function in (operator.floordiv, operator.mod) and last == 0):
        return None
    if function in (operator.pow, operator.lshift, operator.rshift) and not 0 <= last < 64:
        return None
    found: int = function(*numbers)
    return found if _LEAST <= found <= _GREATEST else None
