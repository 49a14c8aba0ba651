"""The twin of the extension ``oxide._core``, in plain Python: the same names, for a system without a C compiler.

What it costs: a call from a stream takes the GIL, so the device's host-function thread waits for Python when a task is
woken or an upload is copied; no threads help with large copies; no report names a kernel that ends the process; and an
exception that is on its way while another library drops a box of oxide's may be lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any, Final

_kept: Final[list[Any]] = []  # never freed: a stream, or another library, may call at any time


def _address_of(function: Callable[[int], None], kind: Callable[..., Any] = ctypes.CFUNCTYPE) -> int:
    """Returns the address of a native function that calls ``function`` with its argument, an address."""
    native = kind(None, ctypes.c_void_p)(function)
    _kept.append(native)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))  # it outlives this module
    return ctypes.cast(native, ctypes.c_void_p).value or 0


# Alarms


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


# Copies


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


# DLPack tensors that consumers release

HEADER_BYTES: Final = 32
_last: Final = [0]


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
