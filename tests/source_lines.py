"""The line of a kernel that a test means: it says so itself, in a comment at its end."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from oxide import Kernel


def line_of(code: Kernel | Callable[..., Any], marker: str) -> int:
    """The number of the one line that ends with a comment of that word."""
    lines, first = inspect.getsourcelines(code.function if isinstance(code, Kernel) else code)
    (found,) = (number for number, line in enumerate(lines, first) if line.rstrip().endswith(f"# {marker}"))
    return found
