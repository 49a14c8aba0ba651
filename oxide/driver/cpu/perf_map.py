"""Names the CPU device's code for Linux's perf.

``OXIDE_PERF=map`` writes ``/tmp/perf-PID.map``, with a line of address, size and name for each function. perf reads the
file without further steps, and shows kernels by name.

The file is not removed when the process ends, because perf reads it later. The code that it names stays mapped until
the process ends: perf could not tell it from code that is loaded later to the same addresses.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from oxide.driver.object import MappedFunction, MappedObject
from oxide.host.locks import new_lock, unheld

__all__ = ["announce"]

_lock = new_lock()
_kept: list[Any] = []
_failed = False


def announce(loaded: MappedObject, memory: Any) -> None:
    """Writes the names of a loaded object's functions to the map, and keeps the object's memory mapped. If that fails,
    warns with a ``RuntimeWarning``, once."""
    global _failed
    with unheld(_lock):
        _kept.append(memory)
        if _failed:
            return
        try:
            _add(loaded)
        except OSError as error:
            _failed = True
            warnings.warn(f"oxide: OXIDE_PERF=map: {error}; perf gets no names", RuntimeWarning, stacklevel=2)


def name_of(loaded: MappedObject, function: MappedFunction) -> str:
    """Returns the name of a function: its kernel's name, followed by the symbol unless the function is the kernel's
    entry. The name begins with the word "kernel", because perf skips lines of a map with names of one or two letters.
    Returns the symbol alone if the object does not name a kernel."""
    if not loaded.file:
        return function.symbol
    kernel = f"kernel {loaded.file}"
    return kernel if function.symbol.startswith("oxide_run_") else f"{kernel} [{function.symbol}]"


def _add(loaded: MappedObject) -> None:
    lines = [f"{each.address:x} {each.size:x} {name_of(loaded, each)}\n" for each in loaded.functions]
    # perf looks in this folder only. A symbolic link of that name, perhaps by another user, is not followed.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(f"/tmp/perf-{os.getpid()}.map", flags, 0o600), "a", encoding="utf-8") as file:
        file.writelines(lines)
