"""The part of the core's twin that native code calls, or that calls native code: it goes through ctypes. See
``_core_twin.py``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any, Final

__all__ = [
    "DROP_CAPSULE", "HEADER_BYTES", "MOVE", "NOTIFY", "RELEASE", "ROW_BYTES", "Calls", "Function", "Handle", "alarm",
    "copy", "launch", "released",
]  # fmt: skip

_POINTER: Final = ctypes.c_void_p
_kept: Final[list[Any]] = []  # never freed: they may be called at any time


def _address_of(function: Callable[[int], None], kind: Callable[..., Any] = ctypes.CFUNCTYPE) -> int:
    """Returns the address of a native function that calls ``function`` with its argument, an address."""
    native = kind(None, ctypes.c_void_p)(function)
    _kept.append(native)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))  # it outlives this module
    return ctypes.cast(native, ctypes.c_void_p).value or 0


def alarm(descriptor: int) -> int:
    """Returns the argument for ``NOTIFY`` with which it makes a file descriptor readable."""
    record = ctypes.c_int(descriptor)
    _kept.append(record)
    return ctypes.addressof(record)


_ONE: Final = (1).to_bytes(8, sys.byteorder)


def _notify(record: int) -> None:
    with contextlib.suppress(BlockingIOError):  # it is readable already
        os.write(ctypes.c_int.from_address(record).value, _ONE)


NOTIFY: Final = _address_of(_notify)


class _Row(ctypes.Structure):
    _fields_ = (
        ("destination", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("length", ctypes.c_int64),
        ("pool", ctypes.c_void_p),
    )


ROW_BYTES: Final = ctypes.sizeof(_Row)


def copy(row: int) -> None:
    """Makes the copy of the row at an address. Releases the GIL meanwhile."""
    asked = _Row.from_address(row)
    ctypes.memmove(asked.destination, asked.source, asked.length)


MOVE: Final = _address_of(copy)
HEADER_BYTES: Final = 32
_last: Final = [0]  # the address of the DLPack tensor that a consumer released last


# Another library may call it when this module's names are gone.
def _release(tensor: int, last: list[int] = _last, number: type[ctypes.c_int64] = ctypes.c_int64) -> None:
    link = number.from_address(tensor - 8)
    if link.value == -1:  # alive
        link.value = last[0]  # callers hold the GIL, so nothing comes between this line and the next
        last[0] = tensor


def _drop_capsule(capsule: int) -> None:
    name = _get_name(capsule)
    tensor = _get_pointer(capsule, name)
    if name == tensor - HEADER_BYTES:
        _release(tensor)


def released() -> int:
    """Returns the address of the tensor that was released last, 0 for none."""
    return _last[0]


_get_name = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("PyCapsule_GetName", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
RELEASE: Final = _address_of(_release)
DROP_CAPSULE: Final = _address_of(_drop_capsule, ctypes.PYFUNCTYPE)


# Calls of a driver's functions by address

_OF_ONE: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER)
_OF_TWO: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER)
_OF_LAUNCH: Final = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, *[ctypes.c_uint] * 7, _POINTER, _POINTER, _POINTER)
_EXTRA: Final = _POINTER * 5  # "here is the buffer", its address, "here is its size", that size's address, the end
_functions: Final[dict[int, Any]] = {}


def _function(kind: Any, entry: int) -> Any:
    found = _functions.get(entry)
    if found is None:
        if not entry:
            raise ValueError("entry is no address of a function")
        found = _functions[entry] = kind(entry)
    return found


def _checked(numbers: tuple[int, ...], bits: int) -> None:
    """Raises ``OverflowError`` for a number that C would cut off, ``TypeError`` for what is none."""
    for number in numbers:
        if number >> bits:
            raise OverflowError(f"{number} is beyond {bits} bits")


def launch(entry: int, function: int, grid: Any, block: Any, shared_bytes: int, params: bytes, stream: int) -> int:
    """Calls the cuLaunchKernel at address ``entry`` with the packed bytes ``params``, and returns its error code."""
    if not (type(params) is bytes and type(grid) is type(block) is tuple and len(grid) == len(block) == 3):
        raise TypeError("grid and block are tuples of three ints, and params are bytes")
    _checked((*grid, *block, shared_bytes), 32)
    _checked((function, stream), 64)
    buffer, size = ctypes.create_string_buffer(params, len(params)), ctypes.c_size_t(len(params))
    extra = _EXTRA(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 0)
    code: int = _function(_OF_LAUNCH, entry)(function, *grid, *block, shared_bytes, stream, None, extra)
    return code


class Handle:
    """A handle of a driver whose functions are called by address."""

    __slots__ = ("address",)


class Function:
    """A loaded kernel of such a driver. ``plain`` is True if a launch takes nothing but its parameters."""

    __slots__ = ("address", "parameter_bytes", "plain", "reports", "shared_limit")


def _call(entry: int, first: Any, second: Any = None) -> int:
    """Calls the driver's function at address ``entry`` with one or two handles, and returns its error code."""
    if second is None:
        return int(_function(_OF_ONE, entry)(first.address))
    return int(_function(_OF_TWO, entry)(first.address, second.address))


_NOT_READY: Final = 600  # CUDA_ERROR_NOT_READY


class Calls:
    """Such a driver: the addresses of its functions, and the methods that call them."""

    def query_stream(self: Any, stream: Any) -> bool:
        """Returns whether the device is past the stream's work. Raises the error of failed work."""
        return not self._called("cuStreamQuery", _call(self._stream_query, stream), _NOT_READY)

    def query_event(self: Any, event: Any) -> bool:
        """Returns whether the device is past the event. Raises the error of failed work."""
        return not self._called("cuEventQuery", _call(self._event_query, event), _NOT_READY)

    def record_event(self: Any, event: Any, stream: Any) -> None:
        """Records the event at the end of the stream's work."""
        self._called("cuEventRecord", _call(self._event_record, event, stream))

    def synchronize_event(self: Any, event: Any) -> None:
        """Blocks the thread until the device is past the event."""
        self._called("cuEventSynchronize", _call(self._event_synchronize, event))

    def launch_graph(self: Any, graph: Any, stream: Any) -> None:
        """Submits a launch of the graph."""
        self._called("cuGraphLaunch", _call(self._launch_graph, graph, stream))

    def _called(self: Any, name: str, code: int, may_be: int = 0) -> int:
        if code not in (0, may_be):
            raise self.call_failure(code, name)
        return code
