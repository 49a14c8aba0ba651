"""Descriptions of arrays that foreign code reads and writes: their layout in memory, and DLPack capsules.

A layout comes from a DLPack tensor, from the fields of ``__cuda_array_interface__``, or is an address for
``DeviceBox.from_raw_parts``. Whether the memory exists cannot be checked. The description itself is checked: the array
fits into an address space, its elements are aligned and do not overlap, and its address is not null.

A capsule holds the address of a structure that foreign code filled in, correctly or not. So the whole structure is read
and validated before the tensor is taken over. A refused capsule is left unchanged: its own destructor releases the
tensor. The structures are those of DLPack 1.0. A consumer that does not announce support of 1.0 gets the structures of
the previous version.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, Final, final

import numpy as np

from oxide.host.core import DROP_CAPSULE, HEADER_BYTES, RELEASE, Dropping, released
from oxide.host.messages import written
from oxide.language.types import SCALARS, ScalarType, of_dtype
from oxide.runtime.memory import reclaim
from oxide.runtime.memory.memory import DeviceBox
from oxide.runtime.memory.strides import contiguous_strides, may_share_elements, span

MOST_AXES = 64
"""The largest number of axes that a NumPy array can have. ``d2h`` of a box with more axes would fail."""

_LARGEST = 2**63 - 1
_LOWEST_ADDRESS = 4096  # no system maps the first page
_HIGHEST_ADDRESS = 2**57  # a five-level page table reaches no further


@final
class ForeignLayout:
    """The address of an array's first element, its shape, its dtype and its strides. ``strides`` is in bytes, or None
    for a C-contiguous array. All elements lie in the ``nbytes`` bytes that begin at the address ``low``."""

    __slots__ = ("address", "dtype", "low", "nbytes", "shape", "strides")

    def __init__(
        self,
        what: str,
        address: int,
        shape: tuple[int, ...],
        strides: Sequence[int] | None,
        dtype: np.dtype[Any],
        unit: int = 1,
    ) -> None:
        """Validates a layout. ``what`` names the called function in errors. ``strides`` counts in units of ``unit``
        bytes; it is None for an array in C order.

        Raises ``BufferError`` for an impossible layout, and for an array that a box cannot represent.
        """
        self.shape = shape
        self.dtype = dtype
        self.strides: tuple[int, ...] | None = None
        itemsize = dtype.itemsize
        number = itemsize  # bytes of the axes so far: the C-order stride of the next axis
        contiguous = True
        for axis in range(len(shape) - 1, -1, -1):
            size = shape[axis]
            if size < 0:
                raise BufferError(f"{what}: the array's shape is {written(shape)}, and a size is 0 or more")
            if strides is not None and size > 1 and strides[axis] * unit != number:
                contiguous = False
            number *= size or 1
        if number > _LARGEST:
            raise BufferError(
                f"{what}: the array's shape is {written(shape)} with {itemsize} bytes an element, which is beyond the "
                "2**63 - 1 bytes that memory can have"
            )
        self.address = self.low = self.nbytes = 0
        if 0 in shape:  # no elements: the address may be null
            return
        self.address = address
        low, high = 0, number
        if strides is not None and not contiguous:
            usual = contiguous_strides(shape, itemsize)  # the stride of an axis of length one is ignored
            self.strides = tuple(
                [step * unit if size > 1 else other for size, step, other in zip(shape, strides, usual, strict=True)]
            )
            low, high = span(shape, self.strides, itemsize)
        self.low, self.nbytes = address + low, high - low
        if address == 0:
            raise BufferError(f"{what}: the array's address is 0, and it has elements: its shape is {shape}")
        if self.low < _LOWEST_ADDRESS or self.low + self.nbytes > _HIGHEST_ADDRESS:
            raise BufferError(
                f"{what}: the array, of shape {shape} and strides {written(self._steps())} bytes, at address "
                f"{address:#x}, does not lie where a process or a device has memory"
            )
        if address % dtype.alignment:
            raise BufferError(
                f"{what}: the array begins at address {address:#x}, and {dtype} elements lie at multiples of "
                f"{dtype.alignment}; copy it"
            )
        if self.strides is not None:
            self._check_steps(what)

    def _check_steps(self, what: str) -> None:
        steps, itemsize = self._steps(), self.dtype.itemsize
        if any(step % itemsize for step in steps):
            raise BufferError(
                f"{what}: the array's strides are {steps} bytes, and those of a box are multiples of an element's "
                f"{itemsize}; copy it"
            )
        if may_share_elements(self.shape, steps, itemsize):
            raise BufferError(
                f"{what}: elements of the array share memory, as its shape is {self.shape} and its strides are {steps} "
                "bytes: a box can be written, element by element; copy it"
            )

    def _steps(self) -> tuple[int, ...]:
        return self.strides or contiguous_strides(self.shape, self.dtype.itemsize)


# DLPack's structures

VERSION = (1, 0)
CPU, CUDA = 1, 2  # DLDeviceType

_WHAT = "from_dlpack"

_CODE_NAMES = (
    *("int", "uint", "float", "opaque handle", "bfloat", "complex", "bool", "float8_e3m4", "float8_e4m3"),
    *("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
"""The names of DLDataTypeCode. Those of floats of 8 bits are also the names of ``ml_dtypes``."""


def _code_of(scalar: ScalarType) -> tuple[int, int]:
    """Returns the DLDataTypeCode and the bits of a type."""
    name = scalar.dtype_name
    if name not in _CODE_NAMES:
        name = name.rstrip("0123456789")
    return _CODE_NAMES.index(name), scalar.bits


_TYPES: Final = {_code_of(scalar): scalar for scalar in SCALARS.values()}


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


_TENSOR = struct.Struct("@PiiiBBHPPQ")  # DLTensor as a struct format: one call reads all fields

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """``DLManagedTensor``, of DLPack before 1.0."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    """``DLManagedTensorVersioned``, of DLPack 1.x. Without flags, it tells consumers that they may write the memory."""

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
    # most libraries provide this kind, so it is tried first
    b"dltensor_versioned": (_ManagedVersioned, b"used_dltensor_versioned"),
    b"dltensor": (_Managed, b"used_dltensor"),
}
_python = ctypes.pythonapi
# A capsule keeps the pointer to its name, so the names are never freed.
_USED_NAMES = {name: ctypes.create_string_buffer(used) for name, (_, used) in _KINDS.items()}
_USED = {name: ctypes.addressof(buffer) for name, buffer in _USED_NAMES.items()}
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_New", _python)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(("PyCapsule_SetName", _python))


# Export

_exported: dict[int, tuple[Any, Any, DeviceBox]] = {}  # by the address of the tensor


def require_code(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Returns DLPack's type code and bits of a dtype. Raises ``BufferError`` if it has none."""
    scalar = of_dtype(dtype)
    if scalar is None:
        raise BufferError(f"DLPack has no type for {dtype}")
    return _code_of(scalar)


def export(box: DeviceBox, device: tuple[int, int], *, versioned: bool) -> object:
    """Returns a DLPack capsule of a box. ``device`` is the box's device as DLPack's type and number."""
    name = b"dltensor_versioned" if versioned else b"dltensor"
    kind = _KINDS[name][0]
    collect_exported()
    # Memory for the capsule's name, the link to the next tensor in the list of released tensors, and the tensor.
    memory = ctypes.create_string_buffer(name, HEADER_BYTES + ctypes.sizeof(kind))
    ctypes.c_int64.from_buffer(memory, HEADER_BYTES - 8).value = -1
    managed: Any = kind.from_buffer(memory, HEADER_BYTES)
    if versioned:
        managed.major, managed.minor = VERSION
    tensor = managed.tensor
    # Gives strides in every case: some consumers do not accept the null pointer that means C-contiguous.
    itemsize, ndim = box.dtype.itemsize, len(box.shape)
    numbers = (ctypes.c_int64 * (2 * ndim))(*box.shape, *[step // itemsize for step in box.strides])
    tensor.data = box.ptr
    tensor.device_type, tensor.device_id = device
    tensor.ndim = ndim
    (tensor.code, tensor.bits), tensor.lanes = require_code(box.dtype), 1
    start = ctypes.addressof(numbers)
    tensor.shape = ctypes.cast(start, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(start + 8 * ndim, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = RELEASE
    address = ctypes.addressof(managed)
    _exported[address] = (memory, numbers, box)
    # The destructor releases the tensor only if no consumer has taken it: taking it renames the capsule.
    return _new_capsule(address, address - HEADER_BYTES, DROP_CAPSULE)


_collected: tuple[int, Any] = (0, None)
"""The head of the list of released tensors at the last collection, and its memory, which is kept so that no other
tensor gets its address. The head is the tensor that was released last, 0 for an empty list. The eight bytes before a
tensor are its link, the address of the tensor that was released before it."""
_graves: dict[int, Any] = {}
_collecting = threading.Lock()


def collect_exported() -> None:
    """Drops the boxes whose consumers have released them. An interrupt may end the function at any point; the next call
    then drops the rest."""
    global _collected
    if _collecting.locked():  # by another thread, or by this thread, which the garbage collector interrupted
        return
    with _collecting:
        last = released()
        tensor = last
        while tensor != _collected[0]:
            _graves[tensor] = _exported.get(tensor)
            tensor = ctypes.c_int64.from_address(tensor - 8).value
        if last != _collected[0]:
            _collected = last, _graves[last][0]
        for tensor in list(_graves):
            _exported.pop(tensor, None)
        _graves.clear()


reclaim.collectors.append(collect_exported)

# A consumer may release a tensor after this module is gone.
_python.Py_IncRef(ctypes.py_object(_exported))


# Import


@final
class ImportedTensor(Dropping):
    """Another library's tensor. After ``take``, dropping this object releases the tensor."""

    __slots__ = ("_address", "_capsule", "_managed", "_name", "layout")

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        """Reads and validates the tensor of an array whose ``__dlpack_device__`` gave ``device``. Leaves the capsule
        unchanged. Raises ``BufferError`` for a tensor that a box cannot represent."""
        self._capsule = capsule
        name, address = _unused_name(capsule)
        kind, _ = _KINDS[name]
        managed: Any = kind.from_address(address)
        self._name, self._address, self._managed = name, address, managed
        if kind is _ManagedVersioned:
            if managed.major != VERSION[0]:  # the rest of the structure cannot be read
                raise BufferError(
                    f"{_WHAT}: a tensor of DLPack version {managed.major}.{managed.minor}; version 1 is understood"
                )
            if managed.flags & _READ_ONLY:
                raise BufferError(f"{_WHAT}: the array is read-only, and a box can be written; use h2d")
        self.layout = _layout_of(managed.tensor, device)

    def take(self) -> ImportedTensor:
        """Takes ownership of the tensor. Raises ``BufferError`` if another thread took it first."""
        capsule, used = self._capsule, _USED[self._name]
        deleter = self._managed.deleter
        drop = partial(_deleter_at(deleter), self._address) if deleter else None
        if not _is_valid(id(capsule), self._name):
            raise BufferError(f"{_WHAT}: the capsule was taken by another thread meanwhile")
        self._drop = drop  # no call between this and the rename, so that no interrupt comes between them
        _rename(capsule, used)
        self._capsule = None  # drops the capsule now: its destructor may be unloaded once the deleter has been called
        return self


@lru_cache(maxsize=64)
def _deleter_at(address: int) -> Callable[[int], None]:
    """Returns a library's deleter as a callable. A library uses one deleter for all its tensors."""
    return _Deleter(address)


def _unused_name(capsule: Any) -> tuple[bytes, int]:
    """Returns the name of a capsule that was not taken yet, and the address that the capsule holds. Raises
    ``BufferError`` for a capsule that was taken, and for an object that is no such capsule."""
    for name, (_, used) in _KINDS.items():
        try:
            return name, _pointer(id(capsule), name)
        except ValueError:  # a different name, or no capsule
            pass
        if _is_valid(id(capsule), used):
            raise BufferError(f"{_WHAT}: __dlpack__ gave a capsule that was taken before, {used.decode()}")
    raise BufferError(f"{_WHAT}: __dlpack__ gave no DLPack capsule, but {type(capsule).__name__}")


def _layout_of(tensor: _Tensor, announced: tuple[int, int]) -> ForeignLayout:
    """Returns a tensor's layout. Raises ``BufferError`` if it is not on the device ``announced``, or fits no box."""
    data, kind, number, ndim, code, bits, lanes, shape_at, strides_at, byte_offset = _TENSOR.unpack_from(tensor)
    # for host memory the device number is not compared
    if kind != announced[0] or (kind != CPU and number != announced[1]):
        raise BufferError(
            f"{_WHAT}: the tensor is on DLPack device {(kind, number)}, and its array's __dlpack_device__ says "
            f"{announced}"
        )
    if not 0 <= ndim <= MOST_AXES:
        raise BufferError(f"{_WHAT}: the tensor has {ndim} axes; 0 to {MOST_AXES} are understood")
    scalar = _TYPES.get((code, bits))
    if scalar is None or lanes != 1:
        name = _CODE_NAMES[code] if code < len(_CODE_NAMES) else "unknown"
        raise BufferError(
            f"{_WHAT}: no dtype for type code {code} ({name}), {bits} bits, {lanes} lanes; convert the array first"
        )
    if ndim and not shape_at:
        raise BufferError(f"{_WHAT}: the tensor has {ndim} axes, and the address of its shape is 0")
    shape = tuple(tensor.shape[:ndim]) if ndim else ()
    strides = tensor.strides[:ndim] if ndim and strides_at and 0 not in shape else None
    # A null pointer with an offset is not an address.
    return ForeignLayout(_WHAT, data + byte_offset if data else 0, shape, strides, scalar.dtype, scalar.bits // 8)
