"""Pickles kernels and device functions by name, as Python does with functions: another process looks up its own object
of that name in the module.

A kernel has compiled code and locks, which no other process can use. A kernel without a name in a module, for example
one made in a function, cannot be pickled.
"""

from __future__ import annotations

import sys
from typing import Any


def global_name(thing: Any, shown: str) -> str:
    """Returns the name under which a module holds a kernel or a device function, for ``__reduce__`` to return.

    Raises ``TypeError`` if the module holds it under no name. ``shown`` describes the object in the error.
    """
    module = sys.modules.get(thing.__module__)
    held: Any = module
    for part in thing.__qualname__.split("."):
        held = getattr(held, part, None)
    if held is thing:
        return str(thing.__qualname__)
    # The name may differ from the function's, as in `adopted = kernel(f)`.
    for name, held in vars(module).items() if module is not None else ():
        if held is thing:
            return name
    raise TypeError(
        f"{shown} cannot be pickled: it is pickled by its name, as a function is, and module {thing.__module__} has no "
        f"name for it; define {thing.__name__} at the top of a module"
    )
