"""IR that does not vary, in ``.ll`` files of the package, with names for a back end to fill in."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def ir_file(module: str, name: str) -> str:
    """Returns the text of ``name``, a file beside the module whose ``__file__`` is ``module``."""
    return Path(module).with_name(name).read_text(encoding="utf-8")
