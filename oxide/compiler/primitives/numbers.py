"""Represents the numbers of kernels as Python numbers, and implements conversions and operators on them for the types
that the front end inferred.

An integer is an ``int`` in the range of its type. A float of any width is a Python ``float`` with a value that the
kernel's type can represent. A complex number is a ``complex`` of two such floats. So a debugger shows ordinary numbers.
Each result is computed exactly and rounded once, or computed in double precision if this gives the same result. In
complex arithmetic, this holds for each operation on the parts.
"""

from __future__ import annotations

import ctypes
import functools
import math
import operator
import struct
from collections.abc import Callable
from typing import Any, TypeAlias, final

from oxide.language import narrow
from oxide.language.structures import StructureType
from oxide.language.types import NARROW, SCALARS
from oxide.language.vectors import VECTORS, Vector, VectorType

Convert: TypeAlias = Callable[[Any], Any]

INTEGERS = [name for name, scalar in SCALARS.items() if scalar.kind in "iu"]
FLOATS = [name for name, scalar in SCALARS.items() if scalar.kind == "f"]
PARTS = {name: scalar.part for name, scalar in SCALARS.items() if scalar.part}
"""For each complex type, the type of its real and its imaginary part."""
BITS = {name: scalar.bits for name, scalar in SCALARS.items()}
LEAST = {name: SCALARS[name].limits[0] for name in INTEGERS}
GREATEST = {name: SCALARS[name].limits[1] for name in INTEGERS}


def _wrapper(kind: str) -> Callable[[int], int]:
    mask = (1 << BITS[kind]) - 1
    if LEAST[kind] == 0:
        return lambda number: number & mask
    half = 1 << (BITS[kind] - 1)
    return lambda number: ((number + half) & mask) - half


WRAP = {kind: _wrapper(kind) for kind in INTEGERS}
"""For each integer type, a function that wraps an integer to the type's range."""


@final
class Wrapped(int):
    """An integer that wrapped in its type. ``whole`` is the number that it would be in 64 bits: an index is checked
    with it (``frontend/lowering/whole_numbers.py``). Conversions, and all operations but ``+ - * <<``, unary minus,
    ``min`` and ``max``, give an ordinary integer."""

    whole: int


def whole(number: int) -> int:
    """Returns the number that an index would be if nothing had wrapped."""
    return number.whole if type(number) is Wrapped else number


def _chained(result: str, operation: Callable[..., int]) -> Callable[..., int]:
    """Returns an operation whose result wraps in its type, and keeps the number that it would be in 64 bits."""
    wrapped, in_64_bits = WRAP[result], WRAP["i64"]

    def operate(*operands: int) -> int:
        exact = operation(*operands)
        found = wrapped(exact)
        if found == exact and Wrapped not in map(type, operands):
            return found
        known = in_64_bits(operation(*map(whole, operands)))
        if known == in_64_bits(found):
            return found
        found = Wrapped(found)
        found.whole = known
        return found

    return operate


def widened(kind: str) -> Convert:
    """Returns the function that converts the operand of an operation. A number that the type holds keeps its ``whole``
    number."""
    convert = CONVERT[kind]

    def converted(number: Any) -> Any:
        found = convert(number)
        return number if type(number) is Wrapped and found == number else found

    return converted


def _f32(number: float) -> float:
    return ctypes.c_float(number).value


ROUND: dict[str, Callable[[float], float]] = {
    **{name: functools.partial(narrow.rounded, name) for name in NARROW},
    "f32": _f32,
    "f64": float,
}
"""For each float type, a function that rounds a number to the type: to nearest, ties to even."""


def of_integer(kind: str, number: int) -> float:
    """Converts an integer to a float type with a single rounding."""
    size = abs(number)
    spare = size.bit_length() - 40
    if kind == "f64" or spare <= 0:
        return ROUND[kind](float(number))
    kept = (size >> spare) | bool(size & ((1 << spare) - 1))  # sticky bit: the last bit is 1 if any dropped bit is 1
    return ROUND[kind](math.copysign(math.ldexp(float(kept), spare), number))


def to_integer(kind: str, number: float) -> int:
    """Converts a float to an integer type: rounds towards zero, and limits the result to the type's range. NaN becomes
    0."""
    if number != number:
        return 0
    if math.isinf(number):
        return GREATEST[kind] if number > 0 else LEAST[kind]
    return min(max(int(number), LEAST[kind]), GREATEST[kind])


def _converter(kind: str) -> Convert:
    if kind == "bool_":
        return lambda value: value != 0
    if kind in FLOATS:
        rounded = ROUND[kind]
        return lambda value: rounded(value) if type(value) is float else of_integer(kind, int(value))
    wrapped = WRAP[kind]
    return lambda value: to_integer(kind, value) if type(value) is float else wrapped(int(value))


CONVERT: dict[str, Convert] = {kind: _converter(kind) for kind in (*INTEGERS, *FLOATS, "bool_")}
"""For each type, a function that converts a number of any type to it. The function of a complex type also accepts the
real and the imaginary part as two arguments."""


def _complex_converter(kind: str) -> Callable[..., complex]:
    part = CONVERT[PARTS[kind]]

    def convert(value: Any, imag: Any = 0.0) -> complex:
        real, imag = (value.real, value.imag) if type(value) is complex else (value, imag)
        return complex(part(real), part(imag))

    return convert


CONVERT |= {kind: _complex_converter(kind) for kind in PARTS}

COMPONENTS = {
    found.name: found
    for made_of in VECTORS.values()
    for scalar in SCALARS.values()
    for found in [VectorType(made_of, scalar)]
}
"""The types of vectors by name."""


def part_of(kind: str) -> str:
    """Returns the type of a vector's components. Returns any other type as it is."""
    return COMPONENTS[kind].scalar.name if kind in COMPONENTS else kind


def each(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of vectors and scalars that computes a vector of the type ``kind`` from the results of
    ``function`` for each component."""
    made_of, count = COMPONENTS[kind].made_of, COMPONENTS[kind].count

    def of_vectors(*args: Any) -> Any:
        columns = [list(arg) if isinstance(arg, Vector) else [arg] * count for arg in args]
        return made_of(*[function(*row) for row in zip(*columns, strict=True)])

    return of_vectors


def _vector_converter(kind: str) -> Callable[..., Any]:
    convert, fields = CONVERT[part_of(kind)], COMPONENTS[kind].made_of._fields
    of_one = each(kind, convert)

    def converted(*parts: Any, **named: Any) -> Any:
        if len(parts) + len(named) == 1:
            return of_one(*parts)
        parts = (*parts, *[named[name] for name in fields[len(parts) :]])
        return COMPONENTS[kind].made_of(*map(convert, parts))

    return converted


CONVERT |= {kind: _vector_converter(kind) for kind in COMPONENTS}


def converter_of(kind: Any) -> Convert:
    """Returns the function that converts a value to a scalar type, a vector type or a structure type: each field of a
    structure. For a structure it also takes 0, for zeros in all fields."""
    if not isinstance(kind, StructureType):
        return CONVERT[kind.name]
    converters = [converter_of(each) for each in kind.kinds]

    def converted(value: Any) -> Any:
        parts = value if isinstance(value, tuple) else [value] * len(converters)
        return kind.made_of(*[convert(part) for convert, part in zip(converters, parts, strict=True)])

    return converted


def conversion(source: str, target: str) -> Convert | None:
    """Returns the function that converts numbers of one type to another. Returns None if the conversion changes no
    number, or if ``target`` is ""."""
    if target == "" or source == target:
        return None
    if source in COMPONENTS and target in COMPONENTS and conversion(part_of(source), part_of(target)) is None:
        return None
    if (
        source in INTEGERS
        and target in INTEGERS
        and LEAST[target] <= LEAST[source] <= GREATEST[source] <= (GREATEST[target])
    ):
        return None
    if source in FLOATS and target in FLOATS and (target == "f64" or (target == "f32" and source != "f64")):
        return None
    if source in PARTS and target == "c128":
        return None
    return CONVERT[target]


def divide(a: float, b: float) -> float:
    """Divides in double precision. Division by zero gives infinities and NaNs."""
    if b == 0.0:
        return math.nan if a != a or a == 0.0 else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def fused(kind: str, a: float, b: float, c: float) -> float:
    """Returns ``a * b + c``, rounded once to ``f32`` or ``f64``."""
    if a != a or b != b or c != c:
        return math.nan
    if math.isinf(a) or math.isinf(b):
        return a * b + c
    if math.isinf(c):
        return c
    if a == 0.0 or b == 0.0:
        return a * b + c
    if kind == "f32":
        product = a * b  # exact: two significands of 24 bits
        total = product + c
        rest = total - product
        error = (product - (total - rest)) + (c - rest)
        if error != 0.0:
            # Round to odd, so that the second rounding, from the double to f32, is correct.
            (bits,) = struct.unpack("q", struct.pack("d", total))
            if not bits & 1:
                total = math.nextafter(total, math.copysign(math.inf, error))
        return _f32(total)
    (a_top, a_bottom), (b_top, b_bottom), (c_top, c_bottom) = (each.as_integer_ratio() for each in (a, b, c))
    top = a_top * b_top * c_bottom + c_top * a_bottom * b_bottom
    if top == 0:
        return 0.0
    try:
        return top / (a_bottom * b_bottom * c_bottom)  # Python rounds the quotient of two integers once
    except OverflowError:
        return math.inf if top > 0 else -math.inf


def divided(kind: str, a: float, b: float) -> tuple[float, float]:
    """Returns ``a // b`` and ``a % b`` of floats as Python computes them, with each step rounded to the type
    ``kind``."""
    rounded = ROUND[kind]
    if a != a or b != b or math.isinf(a) or b == 0.0:
        return (rounded(divide(a, b)) if b == 0.0 else math.nan), math.nan
    rest = math.fmod(a, b)
    division = rounded(divide(rounded(a - rest), b))
    if rest:
        if (b < 0) != (rest < 0):
            rest = rounded(rest + b)
            division = rounded(division - 1.0)
    else:
        rest = math.copysign(0.0, b)
    if division:
        floor = float(math.floor(division)) if not math.isinf(division) else division
        if division - floor > 0.5:
            floor = rounded(floor + 1.0)
    else:
        floor = math.copysign(0.0, divide(a, b))
    return floor, rest


_CHAINED: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "LShift": lambda a, b: a << b if 0 <= b < 64 else 0,
}
_INTEGER: dict[str, Callable[[int, int], int]] = {
    "BitAnd": operator.and_,
    "BitOr": operator.or_,
    "BitXor": operator.xor,
    "FloorDiv": lambda a, b: a // b if b else 0,
    "Mod": lambda a, b: a % b if b else 0,
    "Pow": lambda a, b: pow(a, b, 2**64) if b >= 0 else 0,
    "RShift": lambda a, b: a >> (b if 0 <= b < 64 else 64),
}
_FLOAT: dict[str, Callable[[float, float], float]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": divide,
}


def _of_complex(name: str, kind: str) -> Callable[[complex, complex], complex] | None:
    """Returns the function of an operator on complex numbers, which rounds each product and each sum of parts. Returns
    None for an operator other than ``+``, ``-`` and ``*``."""
    rounded = ROUND[PARTS[kind]]
    if name in ("Add", "Sub"):
        of_parts = _FLOAT[name]
        return lambda a, b: complex(rounded(of_parts(a.real, b.real)), rounded(of_parts(a.imag, b.imag)))
    if name != "Mult":
        return None

    def multiply(a: complex, b: complex) -> complex:
        real = rounded(rounded(a.real * b.real) - rounded(a.imag * b.imag))
        return complex(real, rounded(rounded(a.real * b.imag) + rounded(a.imag * b.real)))

    return multiply


_UNARY: dict[str, Callable[[Any], Any]] = {"USub": operator.neg, "UAdd": operator.pos, "Invert": operator.invert}


@functools.cache
def binary(name: str, left: str, right: str, result: str) -> Callable[[Any, Any], Any] | None:
    """Returns the function of a binary operator, or None if the interpreter has no such function. The caller converts
    the operands to the types ``left`` and ``right`` first."""
    if result in COMPONENTS:
        of_parts = binary(name, *map(part_of, (left, right, result)))
        return None if of_parts is None else each(result, of_parts)
    if result in FLOATS:
        if name in ("FloorDiv", "Mod"):
            place = int(name == "Mod")
            if result in NARROW:  # computed in f32, then rounded to the narrow type
                return lambda a, b: ROUND[result](divided("f32", a, b)[place])
            return lambda a, b: divided(result, a, b)[place]
        of_floats = _FLOAT.get(name)
        if of_floats is None:
            return None
        if result == "f64":
            return of_floats
        rounded = ROUND[result]
        return lambda a, b: rounded(of_floats(a, b))
    if result in PARTS:
        return _of_complex(name, result)
    if result == "bool_":
        return _INTEGER[name] if name in ("BitAnd", "BitOr", "BitXor") else None
    if result not in INTEGERS:
        return None
    if name in _CHAINED:
        return _chained(result, _CHAINED[name])
    wrapped, of_integers = WRAP[result], _INTEGER.get(name)
    return None if of_integers is None else lambda a, b: wrapped(of_integers(a, b))


def unary(name: str, result: str) -> Callable[[Any], Any] | None:
    """Returns the function of a unary operator, or None if the interpreter has no such function. The caller converts
    the operand to the type of the result first."""
    if result in COMPONENTS:
        of_parts = unary(name, part_of(result))
        return None if of_parts is None else each(result, of_parts)
    if result == "bool_":
        return operator.not_ if name == "Invert" else None
    of_numbers = _UNARY[name]
    if result in FLOATS or result in PARTS:
        return of_numbers if name != "Invert" else None
    if result not in INTEGERS:
        return None
    if name == "Invert":
        wrapped = WRAP[result]
        return lambda a: wrapped(~a)
    return _chained(result, of_numbers)


def bits_of(kind: str, value: Any) -> int:
    """Returns the bits of a number as an unsigned integer."""
    match kind:
        case _ if kind in NARROW:
            return narrow.bits_of(kind, value)
        case "f32":
            return int.from_bytes(struct.pack("<f", value), "little")
        case "f64":
            return int.from_bytes(struct.pack("<d", value), "little")
    return int(value) & ((1 << BITS[kind]) - 1)


def least(a: Any, b: Any) -> Any:
    """Returns the lesser of two numbers. If one of them is a NaN, returns the other."""
    return b if a != a or b < a else a


def greatest(a: Any, b: Any) -> Any:
    return b if a != a or b > a else a
