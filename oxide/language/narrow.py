"""Floats narrower than an f32 on the host: rounding, and the bits of a number.

Kernels and host round alike: to nearest, ties to even, once. ``ml_dtypes`` converts a float64 through float32, which
rounds twice, so conversions of the host go through ``narrowed``.
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
    """A format of narrow floats: its size, its precision in bits, the exponent of its least number, and its greatest
    number."""

    bits: int
    precision: int
    least: int
    greatest: float


FORMATS = {
    "f16": Format(16, 11, -24, 65504.0),
    "bf16": Format(16, 8, -133, math.ldexp(255, 120)),
}


def rounded(name: str, number: float) -> float:
    """Returns the nearest number of a format, ties to even. It is infinite beyond the greatest number."""
    if number != number or math.isinf(number) or number == 0.0:
        return number
    form = FORMATS[name]
    unit = max(math.frexp(number)[1] - form.precision, form.least)
    # Below half of the least number the result is 0, and ldexp could not scale the number exactly.
    if unit == form.least and abs(number) <= math.ldexp(0.5, form.least):
        return math.copysign(0.0, number)
    nearest = math.copysign(math.ldexp(round(math.ldexp(number, -unit)), unit), number)
    return math.copysign(math.inf, number) if abs(nearest) > form.greatest else nearest


def bits_of(name: str, number: float) -> int:
    """Returns the bits of a number that the format holds."""
    if name == "f16":
        return int.from_bytes(struct.pack("<e", number), "little")
    return int.from_bytes(struct.pack("<f", number), "little") >> 16


def number_of(name: str, bits: int) -> float:
    """Returns the number that has these bits."""
    if name == "f16":
        return float(struct.unpack("<e", bits.to_bytes(2, "little"))[0])
    return float(struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0])


def narrowed(values: Any, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns numbers as an array of a format's dtype, each rounded once."""
    given = np.asarray(values)
    if given.dtype == dtype:
        return given
    with np.errstate(over="ignore", invalid="ignore"):
        return _singles(given).astype(dtype)


def _singles(given: NDArray[Any]) -> NDArray[Any]:
    """Returns numbers as f32, rounded to odd, so that they may be rounded once more."""
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
