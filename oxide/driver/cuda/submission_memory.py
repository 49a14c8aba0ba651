"""C memory for CUDA submissions: the parameters of kernels, and the table of Python host functions.

``cuLaunchKernel`` takes parameters as an array of pointers or, through ``extra``, as one packed buffer. The runtime
packs parameters as the kernel's C structure, so the packed form needs no pointer array. The driver copies the buffer
during the call.

The compiled form of the package has two functions in C (``call.c``): ``launch_from_c``, which packs and submits a
launch in a tenth of the time, and ``call_from_c`` for the short calls about streams and events.

``cuLaunchHostFunc`` goes through ctypes, not cuda.bindings: the binding wraps every host function in a function that
takes the GIL, but a completion callback must run even while the interpreter is busy.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any, final

from oxide.driver.base import Dim3

launch_from_c: Callable[[int, int, Dim3, Dim3, int, bytes, int], int] | None
call_from_c: Callable[..., int] | None
try:
    from oxide.driver.cuda import call as cuda_call
except ImportError:  # the interpreted form
    launch_from_c = call_from_c = None
else:
    launch_from_c, call_from_c = cuda_call.launch, cuda_call.call

_PARAM_BUFFER_POINTER = 1
_PARAM_BUFFER_SIZE = 2
_PARAM_END = 0


@final
class ParameterPacket:
    """A launch's packed parameters, and the arrays by which the driver finds them: ``extra``, which points to the
    packed buffer, and on request an array with a pointer to each parameter. Launches in progress do not share a packet.
    """

    __slots__ = ("_buffer", "_extra", "_pointers", "_size", "_start", "_view", "address")

    def __init__(self, capacity: int) -> None:
        self._buffer = ctypes.create_string_buffer(capacity)
        self._view = memoryview(self._buffer).cast("B")
        self._size = ctypes.c_size_t()
        self._extra = (ctypes.c_void_p * 5)(
            _PARAM_BUFFER_POINTER,
            ctypes.addressof(self._buffer),
            _PARAM_BUFFER_SIZE,
            ctypes.addressof(self._size),
            _PARAM_END,
        )
        self.address = ctypes.addressof(self._extra)
        self._start = ctypes.addressof(self._buffer)
        self._pointers: Any = None

    @property
    def capacity(self) -> int:
        return len(self._view)

    def fill(self, params: bytes) -> None:
        """Copies the parameters into the packet. ``address`` is then the ``extra`` of ``cuLaunchKernel``."""
        self._view[: len(params)] = params
        self._size.value = len(params)

    def pointers(self, places: tuple[int, ...]) -> int:
        """Returns the address of an array of pointers to the parameters, which are at the offsets ``places``. The
        packet keeps the array: compiled code drops a local variable after its last use, which is before the launch."""
        self._pointers = (ctypes.c_void_p * len(places))(*[self._start + place for place in places])
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
