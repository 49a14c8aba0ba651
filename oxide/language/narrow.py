"""Floats narrower than f32, on the host: rounding, and the conversion of numbers to bits and back.

The host rounds as kernels do: to nearest, ties to even, and only once. ``ml_dtypes`` converts a float64 through
float32, which rounds twice, so the host uses ``narrowed`` instead.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@final
@dataclass(frozen=True, slots=True)
class Format:
    """A format of narrow floats: its size in bits, its precision in bits, the exponent of its least positive number,
    and its greatest number."""

    bits: int
    precision: int
    least: int
    greatest: float
    saturates: bool = False
    """True if a conversion turns numbers beyond the greatest into the greatest number, as on a GPU for formats of 8
    bits. False if it turns them into infinity."""
    has_infinity: bool = True


FORMATS = {
    "f16": Format(16, 11, -24, 65504.0),
    "bf16": Format(16, 8, -133, math.ldexp(255, 120)),
    "f8e4m3": Format(8, 4, -9, 448.0, saturates=True, has_infinity=False),
    "f8e5m2": Format(8, 3, -16, 57344.0, saturates=True),
}
_NAN = 0x7F
"""The bits of the NaN to which a conversion to 8 bits turns any NaN."""


def rounded(name: str, number: float) -> float:
    """Rounds a number to a format as kernels do: to nearest, ties to even. A number beyond the format's greatest number
    becomes infinite or, if the format saturates, the greatest number."""
    form = FORMATS[name]
    nearest = _nearest(form, number)
    return math.copysign(form.greatest, number) if form.saturates and abs(nearest) > form.greatest else nearest


def fits(name: str, number: float) -> bool:
    """Returns whether a number, rounded, is within a format's range. An infinity is within the range if the format has
    infinities."""
    form = FORMATS[name]
    return form.has_infinity if math.isinf(number) else not math.isinf(_nearest(form, number))


def _nearest(form: Format, number: float) -> float:
    if number != number or math.isinf(number) or number == 0.0:
        return number
    unit = max(math.frexp(number)[1] - form.precision, form.least)
    # Up to half of the least number the result is 0. Such numbers are sorted out first, because ldexp could not scale
    # them exactly.
    if unit == form.least and abs(number) <= math.ldexp(0.5, form.least):
        return math.copysign(0.0, number)
    nearest = math.copysign(math.ldexp(round(math.ldexp(number, -unit)), unit), number)
    return math.copysign(math.inf, number) if abs(nearest) > form.greatest else nearest


def bits_of(name: str, number: float) -> int:
    """Returns the bits of a number that the format can represent exactly."""
    match name:
        case "f16":
            return int.from_bytes(struct.pack("<e", number), "little")
        case "bf16":
            return int.from_bytes(struct.pack("<f", number), "little") >> 16
    if number != number:
        return _NAN
    if name == "f8e5m2":  # the upper half of an f16
        return int.from_bytes(struct.pack("<e", number), "little") >> 8
    # Numbers below 2**-6 are multiples of 2**-9. Larger numbers have 3 bits after the leading one.
    fraction, exponent = math.frexp(abs(number))
    size = int(abs(number) * 512) if abs(number) < 2**-6 else ((exponent + 6) << 3) + int(fraction * 16) - 8
    return size | (128 if math.copysign(1, number) < 0 else 0)


def encoded(name: str, number: float) -> int:
    """Returns the bits of the format's number that is nearest to ``number``. ``fits(name, number)`` must be true."""
    return bits_of(name, number if math.isinf(number) else rounded(name, number))


def number_of(name: str, bits: int) -> float:
    """Returns the number that ``bits`` represents in a format."""
    match name:
        case "f16":
            return float(struct.unpack("<e", bits.to_bytes(2, "little"))[0])
        case "bf16":
            return float(struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0])
        case "f8e5m2":
            return float(struct.unpack("<e", (bits << 8).to_bytes(2, "little"))[0])
    size, exponent = bits & 127, bits >> 3 & 15
    number = math.ldexp(8 + (bits & 7), exponent - 10) if exponent else math.ldexp(size, -9)
    return math.copysign(math.nan if size == _NAN else number, -1 if bits & 128 else 1)


def narrowed(values: Any, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Converts numbers to an array of ``dtype``, the dtype of the format ``name``. Each number is rounded once, as in
    kernels."""
    given, form = np.asarray(values), FORMATS[name]
    if given.dtype == dtype:
        return given
    with np.errstate(over="ignore", invalid="ignore"):
        singles = _singles(given)
        if not form.saturates:
            return singles.astype(dtype)
        found: NDArray[Any] = np.asarray(np.clip(singles, -form.greatest, form.greatest).astype(dtype))
        found[np.isnan(singles)] = np.uint8(_NAN).view(dtype)
        return found


def _singles(given: NDArray[Any]) -> NDArray[Any]:
    """Converts numbers to f32, rounded to odd: rounding them again to a narrower format then gives the same result as
    rounding the given numbers once."""
    if given.dtype.kind in "iu" and given.dtype.itemsize == 8:
        kept = given & given.dtype.type(-2048 if given.dtype.kind == "i" else 2**64 - 2048)
        odd = np.where(given == kept, kept, kept | given.dtype.type(2048))
        small = (given < 2**53) & (given > -(2**53)) if given.dtype.kind == "i" else given < 2**53
        given = np.where(small, given, odd)
    wide = given.astype(np.float64)
    near = wide.astype(np.float32)
    back = near.astype(np.float64)
    inexact = (back != wide) & ~np.isnan(wide)
    bits = near.view(np.uint32)
    odd_bits = (bits - (np.abs(back) > np.abs(wide))) | np.uint32(1)
    chosen: NDArray[Any] = np.where(inexact, odd_bits, bits).astype(np.uint32).view(np.float32)
    return chosen
