"""``oxide.intrinsics``, ``oxide.fast``, and the functions of ``math`` and the built-ins that numba-cuda lacks.

Most of them become calls of libdevice's functions (``__nv_popc``, …). Both back ends define these functions, in
``compiler.ir.instructions``, ``compiler.ptx.libdevice`` and ``compiler.cpu.libdevice``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core import errors
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.check import numpy_functions
from oxide.compiler.ir import decimal_rounding
from oxide.language import fast, intrinsics

from .registry import lowering_registry, note, typing_registry
from .types import display

_Lowered = Callable[[Any, Any, Any, Any], Any]
"""A lowering function: maps ``(context, builder, signature, arguments)`` to the result."""


def _register(
    function: Any,
    count: int,
    shown: str,
    typed: Callable[[tuple[Any, ...]], Any],
    lowered: _Lowered,
    takes: str | None = None,
) -> None:
    """Registers a function of ``count`` arguments. ``typed`` maps the types of the arguments to a signature, or to
    None. ``takes`` describes the arguments in error messages. It must be given if the function also has forms with
    other numbers of arguments, which are registered elsewhere."""
    takes = takes or f"{count} argument{'s' * (count != 1)}"

    @typing_registry.register_global(function)
    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            if kws or len(args) != count:
                note(f"{shown} takes {takes}, by position")
                return None
            if any(isinstance(argument, types.Optional) for argument in args):
                return None  # numba tries again with the type without None
            return typed(plain(args))

    lowering_registry.lower(function, *[types.Any] * count)(lowered)


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Emits a call of a function of libdevice, of LLVM or of oxide's back ends. The types of the arguments determine
    the function's declaration."""
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), arguments)


def call_of_floats(builder: Any, name: str, *arguments: Any) -> Any:
    """Emits a call of a libdevice function, in its f32 or its f64 form by the type of the first argument. The result
    has this type."""
    kind = arguments[0].type
    return call(builder, f"__nv_{name}{'f' if kind == ir.FloatType() else ''}", kind, *arguments)


def plain(args: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the types of arguments, with each literal type replaced by the type of its value."""
    return tuple(types.unliteral(argument) for argument in args)


def _width(kind: Any, single: str, double: str) -> str:
    return single if kind.bitwidth == 32 else double


# Integers


def _integers(shown: str, result: Any = None) -> Callable[[tuple[Any, ...]], Any]:
    def typed(args: tuple[Any, ...]) -> Any:
        for argument in args:
            if not (isinstance(argument, types.Integer) and argument.bitwidth in (32, 64)):
                note(f"{shown} takes 32- and 64-bit integers, not {display(argument)}; convert it, as in u32(x)")
                return None
        if len(set(args)) != 1:
            note(f"{shown} takes integers of one type, not {' and '.join(map(display, args))}; convert one of them")
            return None
        return signature(result or args[0], *args)

    return typed


def _counting(function: Any, base: str) -> None:
    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return call(builder, f"__nv_{base}{_width(sig.args[0], '', 'll')}", ir.IntType(32), *args)

    shown = f"intrinsics.{function.__name__}"
    _register(function, 1, shown, _integers(shown, types.int32), lowered)


_counting(intrinsics.popc, "popc")
_counting(intrinsics.clz, "clz")
_counting(intrinsics.ffs, "ffs")


def _lower_brev(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return call(builder, f"__nv_brev{_width(sig.args[0], '', 'll')}", args[0].type, *args)


def _lower_mulhi(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    name = f"__nv_{'' if kind.signed else 'u'}{_width(kind, 'mulhi', 'mul64hi')}"
    return call(builder, name, args[0].type, *args)


def _saturating(operation: str) -> _Lowered:
    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = sig.args[0]
        name = f"llvm.{'s' if kind.signed else 'u'}{operation}.sat.i{kind.bitwidth}"
        return call(builder, name, args[0].type, *args)

    return lowered


_register(intrinsics.brev, 1, "intrinsics.brev", _integers("intrinsics.brev"), _lower_brev)
_register(intrinsics.mulhi, 2, "intrinsics.mulhi", _integers("intrinsics.mulhi"), _lower_mulhi)
for _saturated, _operation in ((intrinsics.saturating_add, "add"), (intrinsics.saturating_sub, "sub")):
    _shown = f"intrinsics.{_saturated.__name__}"
    _register(_saturated, 2, _shown, _integers(_shown), _saturating(_operation))


# Floats


def floating(args: tuple[Any, ...]) -> Any:
    """Returns the type in which a function of floats computes: f32 if all arguments are f32, else f64. Returns None if
    an argument is not a number."""
    if not all(isinstance(argument, types.Integer | types.Float | types.Boolean) for argument in args):
        return None
    return types.float32 if all(argument == types.float32 for argument in args) else types.float64


def _floats(shown: str) -> Callable[[tuple[Any, ...]], Any]:
    def typed(args: tuple[Any, ...]) -> Any:
        kind = floating(args)
        if kind is None:
            note(f"{shown} takes numbers, not {' and '.join(map(display, args))}")
            return None
        return signature(kind, *[kind] * len(args))

    return typed


def _libdevice(name: str) -> _Lowered:
    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return call_of_floats(builder, name, *args)

    return lowered


_register(intrinsics.fma, 3, "intrinsics.fma", _floats("intrinsics.fma"), _libdevice("fma"))
_register(intrinsics.fmax, 2, "intrinsics.fmax", _floats("intrinsics.fmax"), _libdevice("fmax"))
_register(intrinsics.fmin, 2, "intrinsics.fmin", _floats("intrinsics.fmin"), _libdevice("fmin"))
_register(intrinsics.rsqrt, 1, "intrinsics.rsqrt", _floats("intrinsics.rsqrt"), _libdevice("rsqrt"))
for _rounding in numpy_functions.ROUNDING:
    _shown = f"np.{_rounding.__name__}"
    _register(_rounding, 1, _shown, _floats(_shown), _libdevice(_rounding.__name__))
_register(math.cbrt, 1, "math.cbrt", _floats("math.cbrt"), _libdevice("cbrt"))
if _fma := getattr(math, "fma", None):  # Python 3.13
    _register(_fma, 3, "math.fma", _floats("math.fma"), _libdevice("fma"))


def _lower_saturate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    value = args[0]
    zero, one = ir.Constant(value.type, 0.0), ir.Constant(value.type, 1.0)
    # The maximum comes first, because fmax of a NaN and 0 is 0.
    return call_of_floats(builder, "fmin", call_of_floats(builder, "fmax", value, zero), one)


_register(intrinsics.saturate, 1, "intrinsics.saturate", _floats("intrinsics.saturate"), _lower_saturate)


def _typed_to_bits(args: tuple[Any, ...]) -> Any:
    if args[0] not in (types.float32, types.float64):
        note(f"intrinsics.to_bits takes an f32 or f64, not {display(args[0])}; convert it, as in f32(x)")
        return None
    return signature(types.uint32 if args[0] == types.float32 else types.uint64, *args)


def _typed_from_bits(args: tuple[Any, ...]) -> Any:
    if not (isinstance(args[0], types.Integer) and args[0].bitwidth in (32, 64)):
        note(f"intrinsics.from_bits takes 32- and 64-bit integers, not {display(args[0])}; convert it, as in u32(x)")
        return None
    return signature(types.float32 if args[0].bitwidth == 32 else types.float64, *args)


def _lower_bits(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.bitcast(args[0], context.get_value_type(sig.return_type))


_register(intrinsics.to_bits, 1, "intrinsics.to_bits", _typed_to_bits, _lower_bits)
_register(intrinsics.from_bits, 1, "intrinsics.from_bits", _typed_from_bits, _lower_bits)


def _fast(function: Any, count: int, name: str) -> None:
    shown = f"fast.{function.__name__}"

    def typed(args: tuple[Any, ...]) -> Any:
        if any(argument != types.float32 for argument in args):
            found = " and ".join(map(display, args))
            note(f"{shown} approximates for f32, not {found}; use math's function, or convert, as in f32(x)")
            return None
        return signature(types.float32, *args)

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return call(builder, f"__nv_fast_{name}", args[0].type, *args)

    _register(function, count, shown, typed, lowered)


for _approximation, _name in (
    (fast.exp, "expf"),
    (fast.exp2, "exp2f"),
    (fast.exp10, "exp10f"),
    (fast.log, "logf"),
    (fast.log2, "log2f"),
    (fast.log10, "log10f"),
    (fast.sin, "sinf"),
    (fast.cos, "cosf"),
    (fast.tan, "tanf"),
    (fast.reciprocal, "reciprocalf"),
):
    _fast(_approximation, 1, _name)
_fast(fast.pow, 2, "powf")
_fast(fast.divide, 2, "fdividef")


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


def _type_round(args: tuple[Any, ...]) -> Any:
    if not isinstance(args[0], types.Float | types.Integer):
        note(f"round(x) takes a number, not {display(args[0])}")
        return None
    if args[0] == types.float16:  # numba-cuda's float16
        return signature(types.int64, types.float32)
    return signature(types.int64 if isinstance(args[0], types.Float) else args[0], *args)


def _lower_round(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    if isinstance(kind, types.Integer):
        return args[0]
    return call(builder, f"__nv_{_width(kind, 'float', 'double')}2ll_rn", ir.IntType(64), *args)


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


_register(round, 1, "round", _type_round, _lower_round, takes="1 or 2 arguments")


def _lower_round_decimals(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, double = sig.args[0], types.float64
    number = context.cast(builder, args[0], kind, double)
    digits = context.cast(builder, args[1], sig.args[1], types.int64)
    return context.cast(builder, call(builder, decimal_rounding.NAME, number.type, number, digits), double, kind)


for _kind in (types.float32, types.float64):  # exact types take precedence over numba's own lowering
    lowering_registry.lower(round, _kind)(_lower_round)
    lowering_registry.lower(round, _kind, types.Integer)(_lower_round_decimals)
