"""What the program is told by environment variables: whole numbers, and one of several words.

What is neither is refused by the variable's name, as a device of the wrong size or a run that repeats nothing would
show only much later.
"""

from __future__ import annotations

import os

from oxide.errors import DeviceError


def whole_number(variable: str, *, least: int) -> int | None:
    """The number of ``least`` or more that an environment variable holds; None if it is not set.

    Raises ``DeviceError`` for anything else."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    # Python reads no more than 4300 digits, and no number that is needed here has more than twenty.
    if not (text.isascii() and text.isdecimal() and len(text) <= 4300) or int(text) < least:
        raise DeviceError(
            f"{variable}={text!r:.80}: a whole number of {least} or more is needed; set it so, or unset it"
        )
    return int(text)


def word(variable: str, known: tuple[str, ...]) -> str | None:
    """The one of ``known`` that an environment variable holds; None if it is not set.

    Raises ``DeviceError`` for anything else."""
    text = os.environ.get(variable, "").strip()
    if text and text not in known:
        needed = f"one of {', '.join(known)}" if len(known) > 1 else known[0]
        raise DeviceError(f"{variable}={text!r}: {needed} is needed; set it so, or unset it")
    return text or None
