"""Pickling by name, as Python does with functions: kernels and device functions are pickled as the place that they have
in a module, and another process finds its own there.

A kernel has compiled code and locks, which no other process can use. What has no such place, as a kernel that was made
in a function, cannot be pickled.
"""

from __future__ import annotations

import sys
from typing import Any


def global_name(thing: Any, shown: str) -> str:
    """Returns the name under which a function's module holds what was made of it; ``__reduce__`` returns that.

    Raises ``TypeError`` where the module holds it under no name; ``shown`` says what it is.
    """
    module = sys.modules.get(thing.__module__)
    held: Any = module
    for part in thing.__qualname__.split("."):
        held = getattr(held, part, None)
    if held is thing:
        return str(thing.__qualname__)
    # `adopted = kernel(f)` has another name than f.
    for name, held in vars(module).items() if module is not None else ():
        if held is thing:
            return name
    raise TypeError(
        f"{shown} cannot be pickled: it is pickled by its name, as a function is, and module {thing.__module__} has no "
        f"name for it; define {thing.__name__} at the top of a module"
    )
