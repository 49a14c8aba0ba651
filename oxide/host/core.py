"""What the runtime needs of machine code: the extension ``oxide._core``, and where there is none, its twin in Python.

``pip install`` builds the extension where it finds a C compiler. ``_core_twin.py`` says what its absence costs.
``OXIDE_CORE=0`` in the environment has the twin used where both are. This module has all names of the one that is used:
``_core.pyi`` has their types, and the classes of the runtime that derive from its types describe these.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final


def _is_used() -> bool:
    """Returns whether the extension is here and wanted."""
    if os.environ.get("OXIDE_CORE") == "0":
        return False
    try:
        from oxide import _core
    except ImportError:
        return False
    return _core.__file__ is not None  # Python takes the folder of its sources for a package


if TYPE_CHECKING or _is_used():
    from oxide import _core
    from oxide._core import *  # noqa: F403
else:
    from oxide import _core_twin as _core
    from oxide._core_twin import *  # noqa: F403

FORM: Final = "Python" if _core.__name__.endswith("_twin") else "C"
"""``"C"``, or ``"Python"`` for the twin."""
