"""DLPack capsules as a hostile exporter makes them: any number in any field, and a deleter that counts its calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from oxide.interop import dlpack

_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CAPSULE_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_GetName", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_NAMES = {
    name: ctypes.create_string_buffer(name) for name in (b"dltensor", b"dltensor_versioned", b"used_dltensor", b"other")
}


class Exporter:
    """An object whose ``__dlpack__`` gives what the arguments say.

    ``deleted`` counts the deleter's calls, ``capsules`` the capsules that there are. A consumer need not keep the
    exporter: its tensor is there until it is let go.
    """

    def __init__(
        self,
        data: int = 0,
        shape: Sequence[int] | None = (4,),
        strides: Sequence[int] | None = None,
        *,
        ndim: int | None = None,
        dtype: tuple[int, int, int] = (2, 32, 1),
        device: tuple[int, int] = (1, 0),
        announced: Any = (1, 0),
        byte_offset: int = 0,
        version: tuple[int, int] | None = (1, 0),
        flags: int = 0,
        name: bytes | None = None,
        deleter: bool = True,
    ) -> None:
        self.announced = announced
        self.deleted = 0
        self.capsules = 0
        self.versioned = version is not None
        self._name = name or (b"dltensor_versioned" if self.versioned else b"dltensor")
        managed: Any = dlpack._ManagedVersioned() if self.versioned else dlpack._Managed()
        if version is not None:
            managed.major, managed.minor = version
            managed.flags = flags
        tensor = managed.tensor
        tensor.data = data
        tensor.device_type, tensor.device_id = device
        tensor.ndim = len(shape or ()) if ndim is None else ndim
        tensor.code, tensor.bits, tensor.lanes = dtype
        tensor.byte_offset = byte_offset
        self._numbers = []
        for field, numbers in (("shape", shape), ("strides", strides)):
            if numbers is not None:
                array = (ctypes.c_int64 * max(1, len(numbers)))(*numbers)
                self._numbers.append(array)
                setattr(tensor, field, ctypes.cast(array, ctypes.POINTER(ctypes.c_int64)))
        if deleter:
            managed.deleter = ctypes.cast(_let_go, ctypes.c_void_p)
        self.managed = managed
        _exporters[ctypes.addressof(managed)] = self

    def capsule(self) -> Any:
        """A new capsule of the tensor."""
        make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        destructor = ctypes.cast(_end_capsule, ctypes.c_void_p)
        self.capsules += 1
        _owing.append(self)
        return make(("PyCapsule_New", ctypes.pythonapi))(
            ctypes.addressof(self.managed), ctypes.addressof(_NAMES[self._name]), destructor
        )

    def __dlpack_device__(self) -> Any:
        return self.announced

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule()


_exporters: WeakValueDictionary[int, Exporter] = WeakValueDictionary()  # by the address of the tensor
_owing: list[Exporter] = []  # once for each capsule whose tensor was not let go


# One function for all exporters, never freed: a closure of an exporter's own would be freed with it, while a capsule or
# a consumer still has its address.


@_DELETER
def _let_go(address: int) -> None:
    exporter = _exporters[address]
    exporter.deleted += 1
    if exporter in _owing:
        _owing.remove(exporter)


@_CAPSULE_DESTRUCTOR
def _end_capsule(capsule: int) -> None:
    name = _get_name(capsule)
    address = _get_pointer(capsule, name)
    exporter = _exporters.get(address)
    if exporter is None:  # whose tensor was taken, and let go before the capsule
        return
    exporter.capsules -= 1
    if name != exporter._name:  # the one who took the tensor lets it go
        return
    # As the protocol has it: a capsule that nobody took lets go of its tensor.
    if name.startswith(b"dltensor") and exporter.managed.deleter:
        _let_go(address)
    else:
        _owing.remove(exporter)


for _function in (_let_go, _end_capsule):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_function))
