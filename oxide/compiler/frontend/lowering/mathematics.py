"""Functions of ``math`` and NumPy that numba-cuda lacks.

Functions of floats are calls of libdevice. Of the others, most are written here as ``@device`` functions and compiled
with the kernel that calls them, for both devices. They cannot raise in a kernel: ``isqrt``, ``factorial``, ``comb`` and
``perm`` return 0 for a negative number. ``factorial``, ``comb`` and ``perm`` return the greatest 64-bit number if their
result does not fit. ``gcd`` and ``lcm`` wrap, as every product does.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.check import numpy_functions
from oxide.compiler.primitives import scalars
from oxide.compiler.primitives.scalars import of_floats
from oxide.compiler.primitives.table import Primitive, float_of, floats
from oxide.compiler.signature.device_function import DeviceFunction, device
from oxide.language.types import f64, i64, u64

from .primitives import call, kind_of, register
from .registry import lowering_registry, note, parameters, typing_registry
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


# Functions of integers: each has a form for u64, and a form for i64 that calls the u64 form


@device
def _magnitude(x: i64) -> u64:
    magnitude = u64(x)
    if x < 0:
        magnitude = u64(0) - magnitude
    return magnitude


@device
def _gcd(a: u64, b: u64) -> u64:
    while b != u64(0):
        a, b = b, a % b
    return a


@device
def _gcd_signed(a: i64, b: i64) -> i64:
    return i64(_gcd(_magnitude(a), _magnitude(b)))


@device
def _lcm(a: u64, b: u64) -> u64:
    common = _gcd(a, b)
    if common == u64(0):
        return u64(0)
    return a // common * b


@device
def _lcm_signed(a: i64, b: i64) -> i64:
    return i64(_lcm(_magnitude(a), _magnitude(b)))


@device
def _isqrt(n: u64) -> u64:
    # The square root of n as a double is off by at most 1. The limit keeps the square of ``root`` from wrapping.
    root = min(u64(math.sqrt(f64(n))), u64(4294967295))
    while root * root > n:
        root = root - u64(1)
    while n - root * root > root + root and root < u64(4294967295):
        root = root + u64(1)
    return root


@device
def _isqrt_signed(n: i64) -> i64:
    return i64(_isqrt(u64(max(n, i64(0)))))


@device
def _perm_within(n: u64, k: u64, limit: u64) -> u64:
    if k > n:
        return u64(0)
    result, factor = u64(1), n
    while factor > n - k:
        if result > limit // factor:
            return limit
        result, factor = result * factor, factor - u64(1)
    return result


@device
def _comb_within(n: u64, k: u64, limit: u64) -> u64:
    if k > n:
        return u64(0)
    k = min(k, n - k)
    result, i = u64(1), u64(1)
    while i <= k:
        # result * (n - k + i) / i is an integer. Dividing by common factors first avoids an overflow of the product.
        common = _gcd(result, i)
        factor = (n - k + i) // (i // common)
        result = result // common
        if result > limit // factor:
            return limit
        result, i = result * factor, i + u64(1)
    return result


@device
def _perm(n: u64, k: u64) -> u64:
    return _perm_within(n, k, u64(18446744073709551615))


@device
def _perm_signed(n: i64, k: i64) -> i64:
    if n < 0 or k < 0:
        return i64(0)
    return i64(_perm_within(u64(n), u64(k), u64(9223372036854775807)))


@device
def _comb(n: u64, k: u64) -> u64:
    return _comb_within(n, k, u64(18446744073709551615))


@device
def _comb_signed(n: i64, k: i64) -> i64:
    if n < 0 or k < 0:
        return i64(0)
    return i64(_comb_within(u64(n), u64(k), u64(9223372036854775807)))


@device
def _factorial(n: u64) -> u64:
    return _perm(n, n)


@device
def _factorial_signed(n: i64) -> i64:
    return _perm_signed(n, n)


# Floats


@device
def _is_close(a: f64, b: f64, relative: f64, absolute: f64) -> Any:
    if a == b:
        return True
    if math.isinf(a) or math.isinf(b):
        return False
    difference = abs(b - a)
    return difference <= abs(relative * b) or difference <= abs(relative * a) or difference <= absolute


@device
def _ulp(x: Any) -> Any:
    # All numbers here are derived from x, so that all have the type of x.
    size = abs(x)
    above = math.nextafter(size, type(x)(math.inf))
    if math.isinf(size):
        return size
    if math.isinf(above):
        return size - math.nextafter(size, type(x)(0.0))
    return above - size


# Calls from kernels

Typed = Callable[[Any, tuple[Any, ...]], Any]
"""Maps a typing context and the types of a call's arguments to the call's signature, or to None after a note."""


def _register(function: Any, typed: Typed, lowered: Callable[[Any, Any, Any, Any], Any]) -> None:
    @typing_registry.register_global(function)
    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            if any(isinstance(argument, types.Optional) for argument in args):
                return None  # numba tries again with the type without None
            if kws:
                note(f"math.{function.__name__} takes its arguments by position in a kernel")
                return None
            return typed(self.context, plain(args))

    lowering_registry.lower(function, types.VarArg(types.Any))(lowered)


def _dispatcher(typing_context: Any, function: DeviceFunction[..., Any]) -> Any:
    return typing_context.resolve_value_type(function).dispatcher


def call_device_function(
    context: Any, builder: Any, function: DeviceFunction[..., Any], kinds: tuple[Any, ...], args: Any
) -> Any:
    """Emits a call of a device function, compiled for the argument types ``kinds``."""
    dispatcher = _dispatcher(context.typing_context, function)
    called = context.get_function(types.Dispatcher(dispatcher), dispatcher.compile_device(kinds).signature)
    return called(builder, args)


def _whole(
    function: Any, unsigned: DeviceFunction[..., Any], signed: DeviceFunction[..., Any], count: int, more: bool = False
) -> None:
    """Registers a function of ``count`` integers. With ``more``, a call may have further integers: the function is
    applied to the result so far and the next integer, from left to right."""

    def typed(context: Any, args: tuple[Any, ...]) -> Any:
        shown = f"math.{function.__name__}"
        if len(args) != count and not (more and len(args) > count):
            note(f"{shown} takes {count}{' or more' * more} integer{'s' * (count > 1)} in a kernel, not {len(args)}")
            return None
        for argument in args:
            if not isinstance(argument, types.Integer):
                note(f"{shown} takes integers, not {display(argument)}; convert it, as in i64(x)")
                return None
        kind = types.int64 if any(argument.signed for argument in args) else types.uint64
        _dispatcher(context, signed if kind.signed else unsigned).compile_device((kind,) * count)
        return signature(kind, *[kind] * len(args))

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        chosen = signed if sig.return_type.signed else unsigned
        found, rest = args[:count], args[count:]
        result = call_device_function(context, builder, chosen, sig.args[:count], found)
        for each in rest:
            result = call_device_function(context, builder, chosen, sig.args[:count], (result, each))
        return result

    _register(function, typed, lowered)
    for kind in (types.int64, types.uint64):  # exact types take precedence over numba's gcd, which takes any integers
        lowering_registry.lower(function, *[kind] * count)(lowered)


_whole(math.gcd, _gcd, _gcd_signed, 2, more=True)
_whole(math.lcm, _lcm, _lcm_signed, 2, more=True)
_whole(math.isqrt, _isqrt, _isqrt_signed, 1)
_whole(math.factorial, _factorial, _factorial_signed, 1)
_whole(math.comb, _comb, _comb_signed, 2)
_whole(math.perm, _perm, _perm_signed, 2)


@typing_registry.register_global(math.isclose)
class IsClose(AbstractTemplate):  # type: ignore[misc]
    """Types ``math.isclose``. It is computed in f64, because a tolerance of 1e-9 means nothing for an f32."""

    _defaults = {"rel_tol": 1e-9, "abs_tol": 0.0}  # noqa: RUF012

    def generic(self, args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        given = (*args, *kws.values())
        if len(args) != 2 or not kws.keys() <= self._defaults.keys() or floating(plain(given)) is None:
            note("math.isclose takes two numbers, and rel_tol and abs_tol by name")
            return None
        kinds = [types.float64 if name in kws else types.Omitted(value) for name, value in self._defaults.items()]
        _dispatcher(self.context, _is_close).compile_device((types.float64,) * 4)
        found = signature(types.boolean, types.float64, types.float64, *kinds)
        return found.replace(pysig=parameters(*"ab", **self._defaults))


@lowering_registry.lower(math.isclose, types.Any, types.Any, types.Any, types.Any)
def _lower_is_close(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    double = types.float64
    numbers = [
        context.get_constant(double, kind.value) if isinstance(kind, types.Omitted) else argument
        for kind, argument in zip(sig.args, args, strict=True)
    ]
    return call_device_function(context, builder, _is_close, (double,) * 4, numbers)


def _type_ulp(context: Any, args: tuple[Any, ...]) -> Any:
    kind = floating(args) if len(args) == 1 else None
    if kind is None:
        note(f"math.ulp takes one number, not {' and '.join(map(display, args)) or 'none'}")
        return None
    _dispatcher(context, _ulp).compile_device((kind,))
    return signature(kind, kind)


def _lower_ulp(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return call_device_function(context, builder, _ulp, sig.args, args)


_register(math.ulp, _type_ulp, _lower_ulp)


def _type_logarithm(context: Any, args: tuple[Any, ...]) -> Any:
    kind = floating(args) if len(args) == 2 else None  # numba itself has the form with one argument
    return None if kind is None else signature(kind, kind, kind)


def _lower_logarithm(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.return_type
    logarithm = context.get_function(math.log, signature(kind, kind))
    return builder.fdiv(*(logarithm(builder, (argument,)) for argument in args))


_register(math.log, _type_logarithm, _lower_logarithm)


# Lengths, and functions of tuples


def _length(builder: Any, numbers: list[Any]) -> Any:
    """Returns the square root of the sum of the numbers' squares, without intermediate overflow."""
    result = numbers[0]
    if len(numbers) == 1:
        return call_of_floats(builder, "fabs", result)
    for number in numbers[1:]:
        result = call_of_floats(builder, "hypot", result, number)
    return result


def _type_hypotenuse(context: Any, args: tuple[Any, ...]) -> Any:
    kind = floating(args) if len(args) > 2 else None  # numba itself has the form with two arguments
    return None if kind is None else signature(kind, *[kind] * len(args))


def _lower_hypotenuse(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _length(builder, list(args))


_register(math.hypot, _type_hypotenuse, _lower_hypotenuse)


def _tuples(shown: str, args: tuple[Any, ...]) -> bool:
    """Returns whether the arguments are two tuples of numbers of equal length. If not, adds a note."""
    fine = len(args) == 2 and all(isinstance(argument, types.BaseTuple) for argument in args)
    if fine and len(args[0]) == len(args[1]) > 0 and floating(plain((*args[0], *args[1]))) is not None:
        return True
    note(f"{shown} takes two tuples of numbers, of one length, not {' and '.join(map(display, args))}")
    return False


def _type_distance(context: Any, args: tuple[Any, ...]) -> Any:
    if not _tuples("math.dist", args):
        return None
    return signature(floating(plain((*args[0], *args[1]))), *args)


def _lower_distance(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, differences = sig.return_type, []
    for number, (first, second) in enumerate(zip(*sig.args, strict=True)):
        ends = [
            context.cast(builder, builder.extract_value(value, number), given, kind)
            for value, given in zip(args, (first, second), strict=True)
        ]
        differences.append(builder.fsub(*ends))
    return _length(builder, differences)


_register(math.dist, _type_distance, _lower_distance)


def _kind_of_all(context: Any, function: Any, kinds: Iterable[Any]) -> Any:
    """Returns the type of an operator's result over several numbers, from left to right."""
    return functools.reduce(lambda *pair: context.resolve_function_type(function, pair, {}).return_type, kinds)


def _of_all(context: Any, builder: Any, function: Any, operands: Iterable[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Returns the type and the value of an operator's result over several numbers, from left to right, typed and
    lowered
    as if the operator stood in the kernel. ``operands`` has the type and the value of each number."""

    def apply(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
        sig = context.typing_context.resolve_function_type(function, (left[0], right[0]), {})
        args = [
            context.cast(builder, value, kind, wanted)
            for (kind, value), wanted in zip((left, right), sig.args, strict=True)
        ]
        return sig.return_type, context.get_function(function, sig)(builder, args)

    return functools.reduce(apply, operands)


def _type_product(context: Any, args: tuple[Any, ...]) -> Any:
    numbers = len(args) == 1 and isinstance(args[0], types.BaseTuple) and len(args[0]) > 0
    if not numbers or floating(plain(args[0])) is None:
        note(f"math.prod takes a tuple of numbers in a kernel, not {' and '.join(map(display, args))}")
        return None
    return signature(_kind_of_all(context, operator.mul, plain(args[0])), *args)


def _numbers(builder: Any, kind: Any, value: Any) -> list[tuple[Any, Any]]:
    """Returns the type and the value of each number of a tuple."""
    return [(each, builder.extract_value(value, number)) for number, each in enumerate(plain(kind))]


def _lower_product(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _of_all(context, builder, operator.mul, _numbers(builder, sig.args[0], args[0]))[1]


_register(math.prod, _type_product, _lower_product)


def _type_sum_of_products(context: Any, args: tuple[Any, ...]) -> Any:
    if not _tuples("math.sumprod", args):
        return None
    kinds = [_kind_of_all(context, operator.mul, plain(pair)) for pair in zip(*args, strict=True)]
    return signature(_kind_of_all(context, operator.add, kinds), *args)


def _lower_sum_of_products(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    tuples = (_numbers(builder, kind, value) for kind, value in zip(sig.args, args, strict=True))
    products = [_of_all(context, builder, operator.mul, pair) for pair in zip(*tuples, strict=True)]
    return _of_all(context, builder, operator.add, products)[1]


if _sumprod := getattr(math, "sumprod", None):  # Python 3.12
    _register(_sumprod, _type_sum_of_products, _lower_sum_of_products)
