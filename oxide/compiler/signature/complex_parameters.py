"""Complex scalars as kernel parameters: ``z: c64`` is passed as two words, its real and its imaginary part.

Kept out of ``signature.py``, because few programs need it and each module adds to the time of ``import oxide``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from oxide.language.types import SCALARS, ScalarType

from .signature import Parameter, no_number


@final
@dataclass(frozen=True, slots=True)
class Parts:
    """The two floats that are passed for a complex scalar."""

    kernel: str
    name: str
    scalar: ScalarType

    @property
    def parts(self) -> tuple[Parameter, ...]:
        """Returns the real and the imaginary part, as the scalars that are passed."""
        kind = SCALARS[self.scalar.part]
        return tuple(Parameter(self.kernel, f"{self.name}.{part}", "scalar", kind) for part in ("real", "imag"))

    @property
    def annotation(self) -> str:
        """Returns the annotation as it is written."""
        return self.scalar.name

    @property
    def identity(self) -> str:
        """Returns the type's name, which is the same in every process."""
        return self.scalar.name

    def words(self, argument: Any) -> tuple[Any, ...]:
        """Returns the real and the imaginary part of a number, which may have any number type of Python or NumPy.

        Raises ``ArgumentError`` for anything else, and for a part that the type cannot hold.
        """
        number = argument[()] if type(argument) is np.ndarray and argument.ndim == 0 else argument
        if not isinstance(number, int | float | complex | np.number | np.bool_):
            raise no_number(self, argument)
        real, imag = self.parts
        return real.convert(number.real), imag.convert(number.imag)
