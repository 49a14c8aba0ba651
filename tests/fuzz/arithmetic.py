"""Numbers as kernels have them: the arithmetic of the reference interpreter.

An integer is an ``int`` in its type's range, a float of any width a ``float`` that its type holds, a bool a ``bool``.
Integers are computed by NumPy, behind the exceptions that kernels make: shifts and powers have the type of their left
operand, a count may be anything, and a negative power is 0. Of floats, each operation is computed exactly, or in a
double where that is known to round to the same, and rounded once. Nothing here comes from oxide: the rules are those of
``docs/kernels.md``.
"""

from __future__ import annotations

import ctypes
import math
import operator
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = SIGNED + UNSIGNED
HALVES = ("f16", "bf16")
WIDE_FLOATS = ("f32", "f64")
FLOATS = HALVES + WIDE_FLOATS
TYPES = (*INTEGERS, *FLOATS, "bool")

BITS = {name: int(name[1:]) for name in INTEGERS} | {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
LEAST = {name: -(2 ** (BITS[name] - 1)) if name in SIGNED else 0 for name in INTEGERS}
GREATEST = {name: 2 ** (BITS[name] - (name in SIGNED)) - 1 for name in INTEGERS}
DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(f"{'int' if name in SIGNED else 'uint'}{BITS[name]}") for name in INTEGERS},
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bool": np.dtype(np.bool_),
}

_FORMATS = {
    "f16": (11, -24, 65504.0),
    "bf16": (8, -133, math.ldexp(255, 120)),
    "f32": (24, -149, math.ldexp(2**24 - 1, 104)),
}
"""Of each narrow float type: the bits of its significand, its least exponent of two, and its greatest number."""


# Integers


def wrap(kind: str, number: int) -> int:
    """Returns the integer of a type that is congruent to a number."""
    bits = BITS[kind]
    number &= (1 << bits) - 1
    return number - (1 << bits) if kind[0] == "i" and number >> (bits - 1) else number


def i64(number: int) -> int:
    return ((number + 0x8000000000000000) & 0xFFFFFFFFFFFFFFFF) - 0x8000000000000000


def u64(number: int) -> int:
    return number & 0xFFFFFFFFFFFFFFFF


def common(first: str, second: str) -> str | None:
    """Returns NumPy's common type of two integer types; None for ``u64`` and a signed one, which kernels refuse."""
    found = np.result_type(DTYPES[first], DTYPES[second])
    return f"{found.kind}{8 * found.itemsize}" if found.kind in "iu" else None


def _of_numpy(operate: Callable[[Any, Any], Any]) -> Callable[[str, int, int], int]:
    """An operation on two numbers of a type, which wraps in it."""

    def operation(kind: str, a: int, b: int) -> int:
        number = DTYPES[kind].type
        return operate(number(a), number(b)).item()  # type: ignore[no-any-return]

    return operation


add, subtract, multiply_integers = map(_of_numpy, (operator.add, operator.sub, operator.mul))
both, either, exclusive = map(_of_numpy, (operator.and_, operator.or_, operator.xor))
quotient, remainder = map(_of_numpy, (operator.floordiv, operator.mod))


def negative(kind: str, a: int) -> int:
    return subtract(kind, 0, a)


def power(kind: str, a: int, exponent: int) -> int:
    """Returns a power that wraps in the type of its base."""
    result = 1
    while exponent > 0:
        if exponent & 1:
            result = multiply_integers(kind, result, a)
        a, exponent = multiply_integers(kind, a, a), exponent >> 1
    return result if exponent == 0 else 0


def shift_left(kind: str, a: int, count: int) -> int:
    return wrap(kind, a << count) if 0 <= count < 64 else 0


def shift_right(kind: str, a: int, count: int) -> int:
    return a >> count if 0 <= count < 64 else (-1 if a < 0 else 0)


# Floats


def round_to(kind: str, number: float) -> float:
    """Rounds a double to a narrower type, to nearest with ties to even."""
    if kind == "f64" or number != number or math.isinf(number) or number == 0.0:
        return number
    precision, least, greatest = _FORMATS[kind]
    if abs(number) >= 2 * greatest:
        return math.copysign(math.inf, number)
    unit = max(math.frexp(number)[1] - precision, least)
    # A double's exponent may go below what ldexp can scale back without a rounding of its own: such a number is 0.
    if unit == least and abs(number) <= math.ldexp(1.0, least - 1):
        return math.copysign(0.0, number)
    rounded = math.ldexp(round(math.ldexp(number, -unit)), unit)
    return math.copysign(math.inf, number) if abs(rounded) > greatest else rounded


def f32(number: float) -> float:
    return ctypes.c_float(number).value


def f16(number: float) -> float:
    try:
        return struct.unpack("e", struct.pack("e", number))[0]  # type: ignore[no-any-return]
    except OverflowError:
        return math.copysign(math.inf, number)


def bf16(number: float) -> float:
    return round_to("bf16", number)


def f64(number: float) -> float:
    return number


ROUND: dict[str, Callable[[float], float]] = {"f16": f16, "bf16": bf16, "f32": f32, "f64": f64}


def of_integer(kind: str, number: int) -> float:
    """Rounds an integer to a float type, once."""
    size = abs(number)
    spare = size.bit_length() - 40
    if kind == "f64" or spare <= 0:
        return ROUND[kind](float(number))
    kept = (size >> spare) | bool(size & ((1 << spare) - 1))  # 40 bits and whether there are more decide any rounding
    return ROUND[kind](math.copysign(math.ldexp(float(kept), spare), number))


def to_integer(kind: str, number: float) -> int:
    """Converts a float: towards zero, held in the type's range; 0 of a NaN."""
    if number != number:
        return 0
    if math.isinf(number):
        return GREATEST[kind] if number > 0 else LEAST[kind]
    return min(max(int(number), LEAST[kind]), GREATEST[kind])


def convert(source: str, target: str, value: Any) -> Any:
    """Converts a number from one type to another."""
    source, target = ("i64" if kind == "place" else kind for kind in (source, target))
    if source == target:
        return value
    if target == "bool":
        return value != 0
    if source == "bool":
        value, source = int(value), "u8"
    if target in INTEGERS:
        return wrap(target, value) if source in INTEGERS else to_integer(target, value)
    return of_integer(target, value) if source in INTEGERS else ROUND[target](value)


def divide(a: float, b: float) -> float:
    """Divides in doubles."""
    if b == 0.0:
        return math.nan if a != a or a == 0.0 else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def multiply(a: float, b: float) -> float:
    return a * b


def square_root(a: float) -> float:
    return math.sqrt(a) if a >= 0.0 else a if a == 0.0 else math.nan


def fused(kind: str, a: float, b: float, c: float) -> float:
    """Returns a * b + c, rounded once to ``f32`` or ``f64``."""
    if a != a or b != b or c != c:
        return math.nan
    if math.isinf(a) or math.isinf(b):
        return a * b + c
    if math.isinf(c):
        return c
    if a == 0.0 or b == 0.0:
        return a * b + c
    if kind == "f32":
        product = a * b  # exact: 24 bits times 24
        total = product + c
        rest = total - product
        error = (product - (total - rest)) + (c - rest)
        if error != 0.0:
            # Rounded to odd, the double keeps what a second rounding needs.
            (bits,) = struct.unpack("q", struct.pack("d", total))
            if not bits & 1:
                total = math.nextafter(total, math.copysign(math.inf, error))
        return f32(total)
    (a_top, a_bottom), (b_top, b_bottom), (c_top, c_bottom) = (each.as_integer_ratio() for each in (a, b, c))
    top = a_top * b_top * c_bottom + c_top * a_bottom * b_bottom
    if top == 0:
        return 0.0
    try:
        return top / (a_bottom * b_bottom * c_bottom)  # of two ints: rounded once
    except OverflowError:
        return math.inf if top > 0 else -math.inf


def floor_divide(kind: str, a: float, b: float) -> float:
    """Returns ``a // b`` of floats as Python computes it, in a type's own arithmetic; of a zero ``b``, ``a / b``."""
    return _divided(kind, a, b)[0]


def modulo(kind: str, a: float, b: float) -> float:
    return _divided(kind, a, b)[1]


def _divided(kind: str, a: float, b: float) -> tuple[float, float]:
    to_kind = ROUND[kind]
    if a != a or b != b or math.isinf(a) or b == 0.0:
        return (divide(a, b) if b == 0.0 else math.nan), math.nan
    rest = math.fmod(a, b)
    division = to_kind(divide(to_kind(a - rest), b))
    if rest:
        if (b < 0) != (rest < 0):
            rest = to_kind(rest + b)
            division = to_kind(division - 1.0)
    else:
        rest = math.copysign(0.0, b)
    if division:
        floor = float(math.floor(division)) if not math.isinf(division) else division
        if division - floor > 0.5:
            floor = to_kind(floor + 1.0)
    else:
        floor = math.copysign(0.0, divide(a, b))
    return floor, rest


def remainder_of_floats(a: float, b: float) -> float:
    if a != a or b != b or math.isinf(a) or b == 0.0:
        return math.nan
    return math.remainder(a, b)


def fmod(a: float, b: float) -> float:
    if a != a or b != b or math.isinf(a) or b == 0.0:
        return math.nan
    return math.fmod(a, b)


def integral(how: Callable[[float], int], a: float) -> float:
    """Applies ``math.floor`` and its kin to a float that may be no number, keeping the sign of a zero."""
    if a != a or math.isinf(a):
        return a
    return math.copysign(float(how(a)), a)


def greater(a: Any, b: Any) -> Any:
    """Python's ``max`` of two numbers: the first, unless the second is greater."""
    return b if b > a else a


def lesser(a: Any, b: Any) -> Any:
    return b if b < a else a


def to_bits(kind: str, number: float) -> int:
    return int.from_bytes(struct.pack("<f" if kind == "f32" else "<d", number), "little")


def from_bits(kind: str, bits: int) -> float:
    raw = (bits & (2 ** BITS[kind] - 1)).to_bytes(BITS[kind] // 8, "little")
    return struct.unpack("<f" if kind == "f32" else "<d", raw)[0]  # type: ignore[no-any-return]


def of_array(kind: str, array: np.ndarray[Any, Any]) -> list[Any]:
    """Returns the numbers of an array of a type's dtype."""
    if kind == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(float).tolist()
    return array.tolist()


def to_array(kind: str, numbers: list[Any]) -> np.ndarray[Any, Any]:
    """Returns an array of numbers that their type holds."""
    if kind == "bf16":
        return (np.array(numbers, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(all="ignore"):
        return np.array(numbers, DTYPES[kind])
