"""Powers of integers whose exponent the device computes, in the language of tile kernels itself."""

from __future__ import annotations

from typing import Any, Final

from oxide.language.tile import WORDS, Function

__all__ = ["power"]

where: Final = WORDS["where"]


@Function
def power(base: Any, exponent: Any) -> Any:
    """Returns ``base ** exponent`` by repeated squaring, in the type and the shape of ``base``. A negative power is
    0."""
    result, factor = base**0, base
    for _ in range(64):
        result = where(exponent & 1 == 1, result * factor, result)
        factor = factor * factor
        exponent = exponent >> 1
    return where(exponent < 0, base * 0, result)
