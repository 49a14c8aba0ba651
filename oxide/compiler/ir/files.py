"""Constant IR, in ``.ll`` files of the package. It may contain names for a back end to fill in."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def ir_file(module: str, name: str) -> str:
    """Returns the text of ``name``, a file in the directory of the module whose ``__file__`` is ``module``."""
    return Path(module).with_name(name).read_text(encoding="utf-8")
