"""Converts arrays to floats narrower than f32, as kernels do: each number is rounded only once.

``ml_dtypes`` converts a float64 through float32, which rounds twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAN = 0x7F
"""The bits of the NaN to which a conversion to 8 bits turns any NaN."""


class Format(Protocol):
    """A format of numbers: a ``ScalarType``."""

    @property
    def greatest(self) -> float: ...

    @property
    def saturates(self) -> bool: ...


def narrowed(values: Any, form: Format, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Converts numbers to an array of ``dtype``, the dtype of the format ``form``. Each number is rounded once, as in
    kernels."""
    given = np.asarray(values)
    if given.dtype == dtype:
        return given
    with np.errstate(over="ignore", invalid="ignore"):
        singles = _singles(given)
        if not form.saturates:
            return singles.astype(dtype)
        found: NDArray[Any] = np.asarray(np.clip(singles, -form.greatest, form.greatest).astype(dtype))
        found[np.isnan(singles)] = np.uint8(NAN).view(dtype)
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
