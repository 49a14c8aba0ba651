"""``c64`` and ``c128``: the types of operations on complex numbers, and their lowering.

They are numba's ``complex64`` and ``complex128``: two floats, in a kernel's variables, in its parameters and in memory.
The results of operations are NumPy's:

- Both operands are converted to the type that ``numpy.result_type`` gives for them, so a real operand becomes a complex
  number.
- A product is computed from four real products, and each of them is rounded. A quotient is computed by Smith's method,
  as in NumPy: it does not overflow where the result is finite, and a division by zero gives infinities or NaNs. numba's
  own division raises ``ZeroDivisionError``.
- A complex literal, and a number computed from literals alone, has the type ``PythonComplex``. In an operation, the
  types of the other operands alone determine the result's type, so that ``z * 1j`` computes no f64 if ``z`` is a c64.

Kernels in numba-cuda's own vocabulary keep numba-cuda's behaviour.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda import types
from numba.cuda.core import errors
from numba.cuda.cpython import numbers as numba_numbers
from numba.cuda.extending import core_models, register_model
from numba.cuda.typeconv import Conversion
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.check.numpy_functions import CMATH
from oxide.compiler.signature.device_function import device
from oxide.language.types import i64

from .mathematics import call_device_function, call_of_floats, plain
from .registry import lowering_registry, note, session, typing_registry
from .types import HalfType, OpenFloat, display, forms_of, operation_of


class PythonComplex(types.Complex):  # type: ignore[misc]
    """The type of a complex literal, or of a number computed from literals alone. Its values are Python's ``complex``:
    two f64."""

    def __init__(self) -> None:
        types.Number.__init__(self, "complex")
        self.underlying_float = types.float64
        self.bitwidth = 128

    def cast_python_value(self, value: Any) -> complex:
        return complex(value)

    def can_convert_to(self, context: Any, other: Any) -> Any:
        return Conversion.safe if isinstance(other, types.Complex) else None


register_model(PythonComplex)(core_models.ComplexModel)

COMPLEX_LITERAL = PythonComplex()
_KINDS = (types.complex64, types.complex128, COMPLEX_LITERAL)

_POWERS = (operator.pow, pow)
_EQUALITIES = (operator.eq, operator.ne)
_ORDERS = {operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=", min: "min", max: "max"}
_OF_REALS = {
    operator.floordiv: "//",
    operator.mod: "%",
    operator.imod: "%",
    divmod: "divmod",
    int: "int(...)",
    float: "float(...)",
    round: "round(...)",
    **{function: f"math.{name}" for name, function in vars(math).items() if name[0] != "_" and callable(function)},
}
_CMATH = {function.__name__ for function in CMATH}


def complex_of(real: Any, imag: Any = None) -> Any:
    """Stands for Python's ``complex`` in a kernel, because numba's own typing of ``complex`` does not know
    ``PythonComplex``."""
    raise TypeError("only in a kernel")


def in_kernels(value: Any) -> Any:
    """Returns ``complex_of``, the function that a kernel calls for ``complex``, if ``value`` is ``complex``. Returns
    any other object unchanged."""
    return complex_of if value is complex else value


def type_of_constant(value: Any) -> Any:
    """Returns the type of a Python complex number that is a constant in a kernel. Returns None for any other value."""
    return COMPLEX_LITERAL if type(value) is complex else None


def as_numbas(kind: Any) -> Any:
    """Returns numba's complex128 for the type of a complex literal. Returns any other type unchanged."""
    return types.complex128 if isinstance(kind, PythonComplex) else kind


# Types


def _is_complex(kinds: Iterable[Any]) -> bool:
    return any(isinstance(kind, types.Complex) for kind in kinds)


def _are_numbers(kinds: Iterable[Any]) -> bool:
    return all(isinstance(kind, types.Number | types.Boolean) for kind in kinds)


def _is_literal(kind: Any) -> bool:
    """Returns whether a type belongs to a Python literal, which takes the type of the other operand."""
    return isinstance(kind, PythonComplex | OpenFloat) or (
        isinstance(kind, types.Literal) and isinstance(kind.literal_value, int | float)
    )


def _common(args: Iterable[Any]) -> Any:
    """Returns the complex type that numbers of the given types are promoted to, by NumPy's rules. Literals do not
    count; if all numbers are literals, returns ``PythonComplex``."""
    typed = [types.unliteral(argument) for argument in args if not _is_literal(argument)]
    if not typed:
        return COMPLEX_LITERAL
    found = np.result_type(*[np.float16 if isinstance(kind, HalfType) else np.dtype(str(kind)) for kind in typed])
    single = found in (np.float16, np.float32, np.complex64)
    return types.complex64 if single else types.complex128


def complex_arguments(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the types that the arguments of an operation on complex numbers are converted to. Returns the arguments
    of any other operation unchanged.

    Raises ``TypingError``, with a note, for an operation that complex numbers do not have.
    """
    kinds = plain(args)
    if not _is_complex(kinds) or not _are_numbers(kinds):
        return args
    if isinstance(function, types.NumberClass):
        _check_conversion(function.instance_type, kinds)
        return args
    key = operation_of(function)
    _check_operation(key, args, kinds)
    if (key in _OPERATIONS or key in _EQUALITIES) and len(args) == 2:
        return (_common(args),) * 2
    if key in _POWERS and len(args) == 2:
        return kinds[0], types.int64
    return args


def _check_operation(key: Any, args: tuple[Any, ...], kinds: tuple[Any, ...]) -> None:
    shown = " and ".join(map(display, kinds))
    if key in _ORDERS:
        raise _refused(f"{_ORDERS[key]} of {shown}: complex numbers have no order; compare abs(z), z.real or z.imag")
    if key in _OF_REALS:
        name = getattr(key, "__name__", "")
        instead = f"use cmath.{name}" if name in _CMATH else "take z.real, z.imag or abs(z)"
        raise _refused(f"{_OF_REALS[key]} takes real numbers, not {shown}; {instead}")
    if key in _POWERS and len(args) == 2 and not (isinstance(kinds[0], types.Complex) and _is_whole(kinds[1])):
        raise _refused(f"a power of {shown}: the exponent is an integer; for others write cmath.exp(y * cmath.log(z))")
    if key in _POWERS and len(args) != 2:
        raise _refused("pow of a complex number takes two arguments")


def _is_whole(kind: Any) -> bool:
    return isinstance(kind, types.Integer)


def _check_conversion(target: Any, kinds: tuple[Any, ...]) -> None:
    if len(kinds) > 1:
        raise _refused(f"the parts of a {display(target)} are real numbers, not {' and '.join(map(display, kinds))}")
    if not isinstance(target, types.Complex | types.Boolean):
        raise _refused(f"{display(target)}(...) takes no complex number, {display(kinds[0])}; take z.real or abs(z)")


def _refused(problem: str) -> Exception:
    note(problem)
    return errors.TypingError(problem)  # type: ignore[no-any-return]


def complex_signature(function: Any, args: tuple[Any, ...]) -> Any:
    """Returns the signature of an operation on complex numbers, given its converted arguments. Returns None for any
    other operation."""
    kinds = plain(args)
    if isinstance(function, types.NumberClass):
        return _parts_signature(function.instance_type, kinds) if len(kinds) == 2 else None
    key = operation_of(function)
    if not kinds or not isinstance(kinds[0], types.Complex):
        return None
    if len(kinds) == 2 and kinds[0] == kinds[1] and (key in _OPERATIONS or key in _EQUALITIES):
        return signature(types.boolean if key in _EQUALITIES else kinds[0], *kinds)
    if len(kinds) == 2 and key in _POWERS and _is_whole(kinds[1]):
        return signature(kinds[0], *kinds)
    if len(kinds) == 1 and key in (operator.neg, operator.pos):
        return signature(kinds[0], *kinds)
    if len(kinds) == 1 and key is abs:
        return signature(kinds[0].underlying_float, *kinds)
    return None


def _parts_signature(target: Any, kinds: tuple[Any, ...]) -> Any:
    if not isinstance(target, types.Complex) or not _are_numbers(kinds):
        return None
    return signature(target, *[target.underlying_float] * 2)


def unify_complex(first: Any, second: Any) -> Any:
    """Returns the type of a variable to which a complex number and a number of another type are assigned. Returns None
    for any other pair of types."""
    kinds = [types.unliteral(first), types.unliteral(second)]
    return _common((first, second)) if _is_complex(kinds) and _are_numbers(kinds) else None


@typing_registry.register_global(complex_of)
class Construction(AbstractTemplate):  # type: ignore[misc]
    """Types ``complex(z)`` and ``complex(real, imag)``. The result is a c64 if NumPy promotes the arguments to a
    float16, float32 or complex64, else a c128. Literals do not count; if all arguments are literals, the result is a
    ``PythonComplex``."""

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        kinds = plain(args)
        if kws or not _are_numbers(kinds):
            if not any(isinstance(kind, types.Optional) for kind in kinds):
                note(f"complex(...) takes numbers, not {' and '.join(map(display, kinds))}")
            return None
        if len(args) == 2 and _is_complex(kinds):
            note(f"the parts of a complex number are real, not {' and '.join(map(display, kinds))}")
            return None
        target = _common(args)
        return signature(
            target,
            target if len(args) == 1 else target.underlying_float,
            *([target.underlying_float] * (len(args) - 1)),
        )


# Lowering


def _parts(context: Any, builder: Any, kind: Any, value: Any) -> tuple[Any, Any]:
    parts = context.make_complex(builder, kind, value=value)
    return parts.real, parts.imag


def make(context: Any, builder: Any, kind: Any, real: Any, imag: Any) -> Any:
    """Returns a complex number with the given parts."""
    made = context.make_complex(builder, kind)
    made.real, made.imag = real, imag
    return made._getvalue()


def _quotient(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Emits NumPy's quotient, computed by Smith's method. If the divisor is 0, the parts of the dividend are divided by
    0."""
    if session().numba_style:
        return numba_numbers.complex_div_impl(context, builder, sig, args)
    kind = sig.return_type
    (a, b), (c, d) = (_parts(context, builder, kind, value) for value in args)
    size_c, size_d = call_of_floats(builder, "fabs", c), call_of_floats(builder, "fabs", d)
    by_real = builder.fcmp_ordered(">=", size_c, size_d)
    greater, less = builder.select(by_real, c, d), builder.select(by_real, d, c)
    x, y = builder.select(by_real, a, b), builder.select(by_real, b, a)
    ratio = builder.fdiv(less, greater)
    scale = builder.fdiv(ir.Constant(c.type, 1.0), builder.fadd(greater, builder.fmul(less, ratio)))
    real = builder.fmul(builder.fadd(x, builder.fmul(y, ratio)), scale)
    product = builder.fmul(x, ratio)
    difference = builder.select(by_real, builder.fsub(y, product), builder.fsub(product, y))
    imag = builder.fmul(difference, scale)
    zero = ir.Constant(c.type, 0.0)
    by_zero = builder.and_(by_real, builder.fcmp_ordered("==", size_c, zero))
    return make(
        context,
        builder,
        kind,
        builder.select(by_zero, builder.fdiv(a, size_c), real),
        builder.select(by_zero, builder.fdiv(b, size_c), imag),
    )


_OPERATIONS = {
    operator.add: numba_numbers.complex_add_impl,
    operator.sub: numba_numbers.complex_sub_impl,
    operator.mul: numba_numbers.complex_mul_impl,
    operator.truediv: _quotient,
}


def _magnitude(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return call_of_floats(builder, "hypot", *_parts(context, builder, sig.args[0], args[0]))


@device
def _power(z: Any, exponent: i64) -> Any:
    """Computes a power by repeated squaring, as NumPy does for exponents below 100."""
    if z == 0 and exponent < 0:
        return type(z)(math.nan, math.nan)
    left = abs(exponent)
    result, square = type(z)(1, 0), z
    if left > 0:
        while left & 1 == 0:
            square, left = square * square, left >> 1
        result, left = square, left >> 1
        while left > 0:
            square = square * square
            if left & 1:
                result = result * square
            left = left >> 1
    return type(z)(1, 0) / result if exponent < 0 else result


def _lower_power(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return call_device_function(context, builder, _power, tuple(sig.args), args)


for _kind in _KINDS:  # exact types take precedence over numba's own lowering
    for _function, _lowering in _OPERATIONS.items():
        for _form in forms_of(_function):
            lowering_registry.lower(_form, _kind, _kind)(_lowering)
    lowering_registry.lower(abs, _kind)(_magnitude)
    for _form in (*forms_of(operator.pow), pow):
        lowering_registry.lower(_form, _kind, types.int64)(_lower_power)


@lowering_registry.lower(complex_of, types.VarArg(types.Any))
@lowering_registry.lower(types.NumberClass, types.Float, types.Float)
def _construct(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return args[0] if len(args) == 1 else make(context, builder, sig.return_type, *args)


@lowering_registry.lower_cast(HalfType, types.Complex)
def _cast_from_half(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    single = context.cast(builder, value, source, types.float32)
    return context.cast(builder, single, types.float32, target)
