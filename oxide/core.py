"""What the runtime needs of machine code: the extension ``oxide._core``, and where there is none, its twin in Python.

``pip install`` builds the extension where it finds a C compiler. ``_core_twin.py`` says what its absence costs.
``OXIDE_CORE=0`` in the environment has the twin used where both are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Final


def _found() -> ModuleType:
    if os.environ.get("OXIDE_CORE") != "0":
        try:
            from oxide import _core  # type: ignore[attr-defined, unused-ignore]
        except ImportError:
            pass
        else:
            extension: ModuleType = _core
            if extension.__file__ is not None:  # Python takes the folder of its sources for a package
                return extension
    from oxide import _core_twin

    return _core_twin


_core = _found()

FORM: Final = "Python" if _core.__name__.endswith("_twin") else "C"
"""``"C"``, or ``"Python"`` for the twin."""

alarm: Final[Callable[[int], int]] = _core.alarm
NOTIFY: Final[int] = _core.NOTIFY
"""The address of ``void notify(void *alarm)``, which makes the descriptor of an ``alarm`` readable. A stream calls
it."""

ROW_BYTES: Final[int] = _core.ROW_BYTES
MOVE: Final[int] = _core.MOVE
"""The address of ``void move(void *row)``, which makes the copy of a row."""
copy: Final[Callable[[int], None]] = _core.copy
start_helpers: Final[Callable[[int, int, int], tuple[int, int]] | None] = getattr(_core, "start_helpers", None)
"""None in the twin, and where the system has no futex."""
SHARE_COPY: Final[int] = getattr(_core, "SHARE_COPY", 0)
"""The address of ``void share_copy(void *row)``, which makes the copy of a row together with helpers."""

watch_kernel: Final[Callable[[int, int, bytes], None] | None] = getattr(_core, "watch_kernel", None)
"""None in the twin, and where no signal handler can tell a kernel."""

HEADER_BYTES: Final[int] = _core.HEADER_BYTES
RELEASE: Final[int] = _core.RELEASE
"""The address of the deleter of a tensor, which is behind a header. It adds the tensor to the list of ``released``."""
DROP_CAPSULE: Final[int] = _core.DROP_CAPSULE
"""The address of the destructor of a tensor's capsule."""
released: Final[Callable[[], int]] = _core.released
