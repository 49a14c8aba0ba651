"""DLPack's capsules: made of a box, and read with suspicion.

A capsule holds the address of a structure that foreign code filled in, rightly or wrongly. So all of it is read and
judged before anything is taken over. A capsule that is refused is left as it was, and lets go of its tensor when it
dies, as one that nobody wanted does. The structures are those of DLPack 1.0, or those before it for a consumer that
does not say it takes them.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from oxide.runtime.foreign_layout import MOST_AXES, ForeignLayout

if TYPE_CHECKING:
    from oxide.runtime.memory import DeviceBox

VERSION = (1, 0)
CPU, CUDA = 1, 2  # DLDeviceType

_WHAT = "from_dlpack"

# DLDataTypeCode and bits of each of NumPy's types. bfloat16 comes in as uint16, the type of its storage.
_CODES: Final[dict[str, tuple[int, int]]] = {
    **{f"i{bits // 8}": (0, bits) for bits in (8, 16, 32, 64)},
    **{f"u{bits // 8}": (1, bits) for bits in (8, 16, 32, 64)},
    **{f"f{bits // 8}": (2, bits) for bits in (16, 32, 64)},
    **{f"c{bits // 8}": (5, bits) for bits in (64, 128)},
    "b1": (6, 8),
}
_BFLOAT = 4
_DTYPES: Final[dict[tuple[int, int], np.dtype[Any]]] = {
    (_BFLOAT, 16): np.dtype(np.uint16),
    **{code: np.dtype(name) for name, code in _CODES.items() if name != "b1"},
    _CODES["b1"]: np.dtype(np.bool_),
}
_CODE_NAMES = ("int", "uint", "float", "opaque handle", "bfloat", "complex", "bool")


class _Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_TENSOR = struct.Struct("@PiiiBBHPPQ")  # the same, to be read at once

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """``DLManagedTensor``, of DLPack before 1.0."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    """``DLManagedTensorVersioned``, of DLPack 1.x. Consumers take it for memory that they may write."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_READ_ONLY = 1  # in flags

_KINDS: dict[bytes, tuple[type[_Managed] | type[_ManagedVersioned], bytes]] = {
    b"dltensor_versioned": (_ManagedVersioned, b"used_dltensor_versioned"),  # what most libraries give, so it is first
    b"dltensor": (_Managed, b"used_dltensor"),
}
_python = ctypes.pythonapi
# A capsule keeps the pointer to its name: these are never freed.
_NAMES = {name: ctypes.create_string_buffer(name) for kind, entry in _KINDS.items() for name in (kind, entry[1])}
_ADDRESSES = {name: ctypes.addressof(buffer) for name, buffer in _NAMES.items()}
_USED = {name: _ADDRESSES[used] for name, (_, used) in _KINDS.items()}
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_New", _python)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(("PyCapsule_SetName", _python))


# Out

_exported: dict[int, tuple[Any, Any, DeviceBox]] = {}


def require_code(dtype: np.dtype[Any]) -> tuple[int, int]:
    """DLPack's code and bits of a dtype. Raises ``BufferError`` for one that it has no type for."""
    code = _CODES.get(f"{dtype.kind}{dtype.itemsize}") if dtype.isnative else None
    if code is None:
        raise BufferError(f"DLPack has no type for {dtype}")
    return code


def export(box: DeviceBox, device: tuple[int, int], *, versioned: bool) -> object:
    """A capsule of a box that lies on ``device``."""
    name = b"dltensor_versioned" if versioned else b"dltensor"
    managed: Any = _KINDS[name][0]()
    if versioned:
        managed.major, managed.minor = VERSION
    tensor = managed.tensor
    # Strides too: consumers were slow to take the null pointer that means C-contiguous.
    itemsize, ndim = box.dtype.itemsize, len(box.shape)
    numbers = (ctypes.c_int64 * (2 * ndim))(*box.shape, *[step // itemsize for step in box.strides])
    tensor.data = box.ptr
    tensor.device_type, tensor.device_id = device
    tensor.ndim = ndim
    (tensor.code, tensor.bits), tensor.lanes = require_code(box.dtype), 1
    start = ctypes.addressof(numbers)
    tensor.shape = ctypes.cast(start, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(start + 8 * ndim, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(_delete_export, ctypes.c_void_p)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, numbers, box)
    return _new_capsule(address, _ADDRESSES[name], ctypes.cast(_drop_capsule, ctypes.c_void_p))


def _delete(address: int | None, exported: dict[int, Any] = _exported) -> None:
    """The consumer is done. From any thread, at any moment: only takes the box out, whose finaliser only appends."""
    if address is not None:
        exported.pop(address, None)


def _drop(
    capsule: int,
    is_valid: Callable[..., Any] = _is_valid,
    pointer: Callable[..., Any] = _pointer,
    names: tuple[bytes, ...] = tuple(_KINDS),
) -> None:
    """The capsule dies. A consumer that took the tensor has renamed it."""
    for name in names:
        if is_valid(capsule, name):
            _delete(pointer(capsule, name))


_delete_export = _Deleter(_delete)
_drop_capsule = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_drop)


# In


@final
class ImportedTensor:
    """Another library's tensor. Once it is taken, it is let go when this is dropped."""

    __slots__ = ("_address", "_capsule", "_managed", "_name", "_taken", "layout")

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        """Reads what an array on ``device``, as it said, gave. Raises ``BufferError``; the capsule stays as it was."""
        self._taken = False
        self._capsule = capsule
        name, address = _unused_name(capsule)
        kind, _ = _KINDS[name]
        managed: Any = kind.from_address(address)
        self._name, self._address, self._managed = name, address, managed
        if kind is _ManagedVersioned:
            if managed.major != VERSION[0]:  # of which nothing else can be read
                raise BufferError(
                    f"{_WHAT}: a tensor of DLPack version {managed.major}.{managed.minor}; version 1 is understood"
                )
            if managed.flags & _READ_ONLY:
                raise BufferError(f"{_WHAT}: the array is read-only, and a box can be written; use h2d")
        self.layout = _layout_of(managed.tensor, device)

    def take(self) -> ImportedTensor:
        """Makes the tensor this object's. Raises ``BufferError`` where another thread was quicker."""
        if not _is_valid(id(self._capsule), self._name):
            raise BufferError(f"{_WHAT}: the capsule was taken by another thread meanwhile")
        _rename(self._capsule, _USED[self._name])
        self._taken = True
        return self

    def __del__(self) -> None:
        if self._taken and self._managed.deleter:
            self._taken = False
            _deleter_at(self._managed.deleter)(self._address)


@lru_cache(maxsize=64)
def _deleter_at(address: int) -> Callable[[int], None]:
    """A library's function that lets a tensor go, which is the same for all its tensors."""
    return _Deleter(address)


def _unused_name(capsule: Any) -> tuple[bytes, int]:
    """What a capsule that nobody has taken yet is called, and the address that it holds."""
    for name, (_, used) in _KINDS.items():
        try:
            return name, _pointer(id(capsule), name)
        except ValueError:  # of another name, or no capsule
            pass
        if _is_valid(id(capsule), used):
            raise BufferError(f"{_WHAT}: __dlpack__ gave a capsule that was taken before, {used.decode()}")
    raise BufferError(f"{_WHAT}: __dlpack__ gave no DLPack capsule, but {type(capsule).__name__}")


def _layout_of(tensor: _Tensor, announced: tuple[int, int]) -> ForeignLayout:
    """Where a tensor lies. Raises ``BufferError``."""
    data, kind, number, ndim, code, bits, lanes, shape_at, strides_at, byte_offset = _TENSOR.unpack_from(tensor)
    if kind != announced[0] or (kind != CPU and number != announced[1]):  # host memory has no number
        raise BufferError(
            f"{_WHAT}: the tensor is on DLPack device {(kind, number)}, and its array's __dlpack_device__ says "
            f"{announced}"
        )
    if not 0 <= ndim <= MOST_AXES:
        raise BufferError(f"{_WHAT}: the tensor has {ndim} axes; 0 to {MOST_AXES} are understood")
    dtype = _DTYPES.get((code, bits))
    if dtype is None or lanes != 1:
        name = _CODE_NAMES[code] if code < len(_CODE_NAMES) else "unknown"
        raise BufferError(
            f"{_WHAT}: no dtype for type code {code} ({name}), {bits} bits, {lanes} lanes; convert the array first"
        )
    if ndim and not shape_at:
        raise BufferError(f"{_WHAT}: the tensor has {ndim} axes, and the address of its shape is 0")
    shape = tuple(tensor.shape[:ndim]) if ndim else ()
    strides = tensor.strides[:ndim] if ndim and strides_at and 0 not in shape else None
    # 0 with an offset is no address either.
    return ForeignLayout(_WHAT, data + byte_offset if data else 0, shape, strides, dtype, dtype.itemsize)
