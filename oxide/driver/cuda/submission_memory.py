"""C memory for CUDA submissions: pointers to the parameters of kernels, and the table of Python host functions.

``cuLaunchKernel`` takes parameters as an array of pointers or, through ``extra``, as one packed buffer. The runtime
packs parameters as the kernel's C structure, so a plain launch needs no pointers (``_core/launching.c``). The calls for
cooperative and dependent launches take pointers.

``cuLaunchHostFunc`` goes through ctypes, not cuda.bindings: the binding wraps every host function in a function that
takes the GIL, but a completion callback must run even while the interpreter is busy.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any, final


@final
class ParameterPacket:
    """A launch's packed parameters in C memory, and on request an array with a pointer to each parameter."""

    __slots__ = ("_buffer", "_pointers")

    def __init__(self, params: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(params, len(params))
        self._pointers: Any = None

    def pointers(self, places: tuple[int, ...]) -> int:
        """Returns the address of an array of pointers to the parameters, which are at the offsets ``places``. The
        packet keeps the array."""
        start = ctypes.addressof(self._buffer)
        self._pointers = (ctypes.c_void_p * len(places))(*[start + place for place in places])
        return ctypes.addressof(self._pointers)


@final
class HostFunctions:
    """Keeps the Python functions that streams will call. Each has a number, which the driver passes to the callback.

    One C entry point serves all of them. The alternative, a ctypes closure for each function, would have to outlive its
    call, and nothing would free it.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[], None]] = {}
        self._keys = itertools.count(1)
        self._entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._run)
        address = ctypes.cast(self._entry, ctypes.c_void_p).value
        assert address is not None
        self.entry = address

    def add(self, function: Callable[[], None]) -> int:
        """Stores a function and returns its number, the argument of ``entry``. The function is removed when it runs."""
        key = next(self._keys)
        self._waiting[key] = function
        return key

    def discard(self, key: int) -> None:
        """Removes a function whose submission failed."""
        self._waiting.pop(key, None)

    def __len__(self) -> int:
        return len(self._waiting)

    def _run(self, key: int) -> None:
        # An exception leaves through ctypes, which hands it to sys.unraisablehook.
        self._waiting.pop(key)()
