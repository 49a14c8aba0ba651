"""Functions of ``math`` and built-ins that numba-cuda lacks."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core import errors
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.check import numpy_functions
from oxide.compiler.ir.known_functions import ROUND_DECIMALS
from oxide.compiler.primitives import scalars
from oxide.compiler.primitives.scalars import of_floats
from oxide.compiler.primitives.table import Primitive, float_of, floats

from .primitives import call, kind_of, register
from .registry import lowering_registry, note, typing_registry
from .types import NUMBA_TYPES, display


def call_of_floats(builder: Any, name: str, *arguments: Any) -> Any:
    """Emits a call of a libdevice function, in its f32 or its f64 form by the type of the first argument. The result
    has this type."""
    kind = arguments[0].type
    return call(builder, f"__nv_{name}{'f' if kind == ir.FloatType() else ''}", kind, *arguments)


def plain(args: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the types of arguments, with each literal type replaced by the type of its value."""
    return tuple(types.unliteral(argument) for argument in args)


def floating(args: tuple[Any, ...]) -> Any:
    """Returns the type in which a function of floats computes: f32 if all arguments are f32, else f64. Returns None if
    an argument is not a number."""
    kind = float_of(tuple(map(kind_of, args)))
    return None if kind is None else NUMBA_TYPES[kind]


for _entry in scalars.ENTRIES:
    register(_entry)
for _rounding in numpy_functions.ROUNDING:
    register(Primitive(_rounding, floats, of_floats(_rounding.__name__)), f"np.{_rounding.__name__}")
register(Primitive(math.cbrt, floats, of_floats("cbrt")))
if _fma := getattr(math, "fma", None):  # Python 3.13
    register(Primitive(_fma, floats, of_floats("fma")))


class LogarithmToABase(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        kind = floating(plain(args)) if len(args) == 2 and not kws else None
        return None if kind is None else signature(kind, kind, kind)


typing_registry.register_global(math.log)(LogarithmToABase)


@lowering_registry.lower(math.log, types.Float, types.Float)
def _lower_logarithm(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.return_type
    logarithm = context.get_function(math.log, signature(kind, kind))
    return builder.fdiv(*(logarithm(builder, (argument,)) for argument in args))


# The built-in round, divmod, pow and **

_POWERS = (operator.pow, operator.ipow, pow, math.pow)


def power_arguments(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the types that the arguments of a power are converted to.

    An f32 to the power of an integer is an f32; numba would compute it in f64. With an f64 base, an unsigned exponent
    becomes an f64. A constant exponent of ``**`` stays a constant, because numba expands the power into products. A
    negative constant exponent of an integer is refused, because the result could only be 0, 1 or -1.
    """
    key = getattr(function, "typing_key", function)
    if len(args) != 2 or key not in _POWERS:
        return args
    base, exponent = types.unliteral(args[0]), types.unliteral(args[1])
    constant = args[1].literal_value if isinstance(args[1], types.IntegerLiteral) and key is not math.pow else None
    if not isinstance(exponent, types.Integer):
        return args
    if isinstance(base, types.Integer) and constant is not None and constant < 0:
        note(f"an integer to the power of {constant} is a fraction; convert it, as in f64(x) ** {constant}")
        raise errors.TypingError("negative power of an integer")
    if constant is None and (base == types.float32 or (base == types.float64 and not exponent.signed)):
        return (base, base)
    return args


@typing_registry.register_global(round)
class Round(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if kws or len(args) != 1:
            note("round takes 1 or 2 arguments, by position")
            return None
        (kind,) = plain(args)
        if isinstance(kind, types.Optional):
            return None  # numba tries again with the type without None
        if not isinstance(kind, types.Float | types.Integer):
            note(f"round(x) takes a number, not {display(kind)}")
            return None
        if kind == types.float16:  # numba-cuda's float16
            return signature(types.int64, types.float32)
        return signature(types.int64 if isinstance(kind, types.Float) else kind, kind)


@lowering_registry.lower(round, types.Any)
def _lower_round(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    if isinstance(kind, types.Integer):
        return args[0]
    return call(builder, f"__nv_{'float' if kind.bitwidth == 32 else 'double'}2ll_rn", ir.IntType(64), *args)


@typing_registry.register_global(divmod)
class DivMod(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if kws or len(args) != 2 or not all(isinstance(argument, types.Integer | types.Float) for argument in args):
            note(f"divmod takes two numbers, not {' and '.join(map(display, args))}")
            return None
        quotient = self.context.resolve_function_type(operator.floordiv, args, {})
        return signature(types.UniTuple(quotient.return_type, 2), *quotient.args)


@lowering_registry.lower(divmod, types.Any, types.Any)
def lower_divmod(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Lowers ``divmod`` as ``//`` and ``%``."""
    parts = []
    for function in (operator.floordiv, operator.mod):
        implementation = context.get_function(function, signature(sig.return_type.dtype, *sig.args))
        parts.append(implementation(builder, args))
    return context.make_tuple(builder, sig.return_type, parts)


def _lower_round_decimals(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, double = sig.args[0], types.float64
    number = context.cast(builder, args[0], kind, double)
    digits = context.cast(builder, args[1], sig.args[1], types.int64)
    return context.cast(builder, call(builder, ROUND_DECIMALS, number.type, number, digits), double, kind)


for _kind in (types.float32, types.float64):  # exact types take precedence over numba's own lowering
    lowering_registry.lower(round, _kind)(_lower_round)
    lowering_registry.lower(round, _kind, types.Integer)(_lower_round_decimals)
