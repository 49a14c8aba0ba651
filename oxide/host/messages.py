"""Messages to the program: values and dtypes as text, and warnings at the program's own line.

Python refuses to format an integer of more than 4300 digits: it raises a ``ValueError``, which would replace the
message. Far fewer digits are already useless to a reader.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import numpy as np

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

_LONGEST_BITS = 256
"""An integer of up to this many bits is written with its digits, at most 78. Every machine integer is shorter."""


def is_long(number: int) -> bool:
    """Returns whether an integer is so long that ``written()`` shows its number of bits instead of its digits."""
    return number.bit_length() > _LONGEST_BITS


def written(value: object) -> str:
    """Returns ``repr(value)``, but ``an int of 16610 bits`` for a long integer, also inside a tuple or a list."""
    if isinstance(value, int) and is_long(value):
        return f"{'a negative' if value < 0 else 'an'} int of {value.bit_length()} bits"
    if type(value) is list:
        return f"[{', '.join(map(written, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(written, value))}{',' * (len(value) == 1)})"
    try:
        return repr(value)
    except ValueError:
        return f"a {type(value).__name__} with an integer too long to be written"


_DTYPE_NAMES = {dtype: str(dtype) for dtype in map(np.dtype, "?bBhHiIlLqQefdgFDG")}


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Returns ``str(dtype)``. NumPy imports a module to compute it, and the import fails while the interpreter shuts
    down, in a ``__del__`` for example. So the names of the machine's types are computed when this module is loaded."""
    name = _DTYPE_NAMES.get(dtype)
    return str(dtype) if name is None else name


def byte_count(nbytes: int) -> str:
    """Returns an amount of memory as text, such as ``1.5 MiB``."""
    amount = float(nbytes)
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} GiB"


def warn_caller(message: str) -> None:
    """Gives a ``RuntimeWarning`` at the line of the program that called the package."""
    frame = sys._getframe()
    level = 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)
