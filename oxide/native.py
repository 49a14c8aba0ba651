"""What the compiled form of the package needs of its source: decorators, and a warning that finds its caller.

The runtime is ordinary Python. With a C compiler at hand, `setup.py` turns its hot modules into extension modules
(mypyc), from this same source; everything works without, only slower. What differs between the two forms is here:

- ``mypyc_attr`` says how a class is compiled. A compiled class is closed to subclasses in Python, and cannot be
  weakly referenced, unless it says otherwise; in the interpreted form the decorator does nothing.
- Compiled functions have no frames, so ``warnings``' ``stacklevel`` counts differently: ``warn_caller`` looks for the
  first frame outside of the package.
- ``is_compiled()`` says which form this process runs.

This file itself is never compiled.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_options):
        return lambda decorated: decorated


def is_compiled() -> bool:
    """Whether the runtime's modules are the compiled ones."""
    return not str(sys.modules["oxide.runtime.launch"].__file__).endswith(".py")


_PACKAGE = __file__.rpartition("/")[0] + "/"


def warn_caller(message: str) -> None:
    """A ``RuntimeWarning`` at the line of the program that called the package."""
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)
