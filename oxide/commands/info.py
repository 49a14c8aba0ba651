"""``oxide info``: which package and which form of it runs."""

from __future__ import annotations

import os
import platform

from oxide.commands.output import say
from oxide.native import form


def info() -> None:
    """Says where oxide is, and whether its host path runs compiled or interpreted.

    \b
    Example:
      oxide info
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    say(f"oxide in {package}, Python {platform.python_version()}")
    say(f"host path: {form()}")
