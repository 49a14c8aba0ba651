"""Floats narrower than f32, on the host: rounding, and the conversion of numbers to bits and back.

The host rounds as kernels do: to nearest, ties to even, and only once. ``types.py`` converts arrays.
"""

from __future__ import annotations

import math
import struct

from .types import NAN, SCALARS, ScalarType


def rounded(name: str, number: float) -> float:
    """Rounds a number to a format as kernels do: to nearest, ties to even. A number beyond the format's greatest number
    becomes infinite or, if the format saturates, the greatest number."""
    form = SCALARS[name]
    nearest = _nearest(form, number)
    return math.copysign(form.greatest, number) if form.saturates and abs(nearest) > form.greatest else nearest


def _nearest(form: ScalarType, number: float) -> float:
    if number != number or math.isinf(number) or number == 0.0:
        return number
    unit = max(math.frexp(number)[1] - form.precision, form.least)
    # Up to half of the least number the result is 0. Such numbers are sorted out first, because ldexp could not scale
    # them exactly.
    if unit == form.least and abs(number) <= math.ldexp(0.5, form.least):
        return math.copysign(0.0, number)
    nearest = math.copysign(math.ldexp(round(math.ldexp(number, -unit)), unit), number)
    return math.copysign(math.inf, number) if abs(nearest) > form.greatest else nearest


_UPPER_PARTS = {5: ("<e", 16), 8: ("<f", 32)}
"""The floats that Python's ``struct`` knows, and their sizes, by the number of bits of their exponents. A format with
such an exponent is the upper part of such a float."""


def bits_of(name: str, number: float) -> int:
    """Returns the bits of a number that the format can represent exactly."""
    form = SCALARS[name]
    if number != number and form.bits == 8:
        return NAN
    if found := _UPPER_PARTS.get(form.bits - form.precision):
        code, size = found
        return int.from_bytes(struct.pack(code, number), "little") >> (size - form.bits)
    # An infinity has the bits of the number that would follow the greatest one.
    magnitude = min(abs(number), math.ldexp(1.0, math.frexp(form.greatest)[1]))
    count = int(math.ldexp(magnitude, -form.least))  # of the least positive number
    exponent = max(0, count.bit_length() - form.precision)
    size = (count >> exponent) + (exponent << (form.precision - 1))
    return size | ((math.copysign(1, number) < 0) << (form.bits - 1))


def encoded(name: str, number: float) -> int | None:
    """Returns the bits of the format's number that is nearest to ``number``. Returns None for a number beyond the
    format's range. An infinity is within the range if the format has infinities."""
    form = SCALARS[name]
    if math.isinf(number):
        return bits_of(name, number) if form.has_infinity else None
    nearest = _nearest(form, number)
    return None if math.isinf(nearest) else bits_of(name, nearest)


def number_of(name: str, bits: int) -> float:
    """Returns the number that ``bits`` represents in a format."""
    form = SCALARS[name]
    if found := _UPPER_PARTS.get(form.bits - form.precision):
        code, size = found
        return float(struct.unpack(code, (bits << (size - form.bits)).to_bytes(size // 8, "little"))[0])
    kept = form.precision - 1
    sign = 1 << (form.bits - 1)
    size, exponent = bits & (sign - 1), (bits & (sign - 1)) >> kept
    fraction = bits & ((1 << kept) - 1)
    number = math.ldexp((1 << kept) + fraction, form.least + exponent - 1) if exponent else math.ldexp(size, form.least)
    if number > form.greatest:
        number = math.inf if form.has_infinity and not fraction else math.nan
    return math.copysign(number, -1 if bits & sign else 1)
