"""What a CPU driver is told from outside: whole numbers in the environment, and a seed.

What is no such number is refused by name, as a driver of the wrong size or a run that repeats nothing would show only
much later.
"""

from __future__ import annotations

import operator
import os

from oxide.errors import DeviceError


def whole_number(variable: str, *, least: int) -> int | None:
    """The number of ``least`` or more that an environment variable holds; None if it is not set.

    Raises ``DeviceError`` for anything else."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise DeviceError(f"{variable}={text!r}: a whole number of {least} or more is needed; set it so, or unset it")
    return int(text)


def checked_seed(seed: int) -> int:
    """A seed that ``OXIDE_SEED`` can hold too. Raises ``TypeError`` or ``ValueError``."""
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"seed={seed!r}: a whole number of 0 or more is needed, not {type(seed).__name__}") from None
    if number < 0:
        raise ValueError(f"seed={seed!r}: a whole number of 0 or more is needed")
    return number
