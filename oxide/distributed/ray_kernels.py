"""Pickles kernels of a script by value, as Ray's pickler does with the script's functions and classes.

Usually a kernel is pickled by its name (``global_name``), and the actor imports its module. But the script of a Ray
program is ``__main__``, which no other process can import: Ray's pickler sends its functions and classes as code. So a
kernel, tile kernel or device function that belongs to ``__main__``, or has no name in its module, is sent with its
Python function and the text of its file. The actor compiles it.
"""

from __future__ import annotations

import linecache
import threading
from typing import Any

from ray.cloudpickle import CloudPickler

from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.signature.device_function import DeviceFunction
from oxide.compiler.source.source import lines_of
from oxide.runtime.launching.launch import KernelLaunches
from oxide.runtime.launching.tile_kernel import TileKernel

_MADE_ANEW: dict[type, dict[str, Any]] = {
    Kernel: {
        "launches": KernelLaunches,
        "_lock": threading.Lock,
        "_specializations": dict,
        "only": type(None),
        "_unconfigured": type(None),
        "_interpreted": type(None),
        "_tuner": type(None),
    },
    TileKernel: {"_tuned": dict, "_kernels": dict, "_latest": type(None)},
    DeviceFunction: {},
}
"""Maps each type to its attributes that are not sent, and each attribute to the function that makes it anew."""


def register() -> None:
    """Makes Ray's pickler call ``_reduced`` for kernels, tile kernels and device functions."""
    for kind in _MADE_ANEW:
        CloudPickler.dispatch_table[kind] = _reduced


def _reduced(thing: Any) -> str | tuple[Any, ...]:
    if thing.__module__ != "__main__":
        try:
            name: str = thing.__reduce__()
            return name
        except TypeError:  # no module has a name for it
            pass
    file, lines = thing.function.__code__.co_filename, lines_of(thing.function)
    anew = _MADE_ANEW[type(thing)]
    state = {name: value for name, value in vars(thing).items() if name not in anew}
    # The attributes are set once the object exists: its function may refer to it.
    return _empty, (type(thing), file, lines), state, None, None, _fill


def _empty(kind: type, file: str, lines: list[str]) -> Any:
    linecache.cache[file] = (sum(map(len, lines)), None, lines, file)  # where the compiler reads the source
    return object.__new__(kind)


def _fill(thing: Any, state: dict[str, Any]) -> None:
    vars(thing).update(state)
    vars(thing).update({name: make() for name, make in _MADE_ANEW[type(thing)].items()})
