"""Raw device memory: pointers that keep their allocation alive, and boxes on parts of it.

An address alone does not tell which allocation a copy to the address uses. So programs get raw memory as a
``DevicePointer``, which has the arithmetic of an address and refers to its allocation. Work on the memory is ordered,
and the memory is freed, as for a box. If a program converts a pointer to a number, the allocation is registered
(``address_ranges``): then a box made from the number shares the allocation and its history.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, final

import numpy as np
from numpy.lib.array_utils import byte_bounds

from oxide.errors import DeviceError
from oxide.language.types import as_dtype
from oxide.messages import byte_count, dtype_name, written
from oxide.runtime.device.arc import Arc
from oxide.runtime.device.memory import Allocation, DeviceBox, number_of_elements, parse_shape, require_data

if TYPE_CHECKING:
    from oxide.language.types import ScalarType
    from oxide.runtime.device.address_ranges import Known
    from oxide.runtime.device.runtime import Device

_WHAT = "DeviceBox.from_raw_parts"


@final
class DevicePointer:
    """An address in device memory that ``ctx.malloc_async`` allocated. It keeps the memory alive. The memory is freed
    when all pointers and boxes on it were dropped and the device is past its last use.

    ``pointer + 16`` points 16 bytes further, ``pointer - other`` is the distance in bytes, and ``int(pointer)`` is the
    address for other libraries, which must order their own work.
    """

    __slots__ = ("_allocation", "_known", "_offset")

    def __init__(self, allocation: Allocation, offset: int = 0, known: Known | None = None) -> None:
        self._allocation = allocation
        self._offset = offset
        self._known = known

    @property
    def device(self) -> Device:
        """Returns the device whose memory the pointer points to."""
        return self._allocation.device

    @property
    def nbytes(self) -> int:
        """Returns the number of bytes from the pointer to the end of the allocation."""
        return self._allocation.nbytes - self._offset

    def __int__(self) -> int:
        """Returns the address, 0 for an allocation of no bytes."""
        allocation = self._allocation
        if allocation.nbytes and self._known is None:
            ranges = allocation.device.runtime.shared_ranges
            self._known = ranges.add(allocation, allocation.address, allocation.nbytes)
        return allocation.address + self._offset

    def __index__(self) -> int:
        return int(self)

    def __add__(self, distance: SupportsIndex) -> DevicePointer:
        """Returns the pointer ``distance`` bytes further. Raises ``ValueError`` if it would lie outside the allocation.
        The end of the allocation is allowed."""
        if isinstance(distance, (DevicePointer, bool)) or not hasattr(distance, "__index__"):
            raise TypeError(f"a DevicePointer plus {written(distance)}: a distance is a number of bytes, an int")
        offset = self._offset + operator.index(distance)
        if not 0 <= offset <= self._allocation.nbytes:
            raise ValueError(
                f"{self!r} plus {written(distance)} bytes lies outside its allocation of "
                f"{byte_count(self._allocation.nbytes)}"
            )
        return DevicePointer(self._allocation, offset, self._known)

    def __radd__(self, distance: SupportsIndex) -> DevicePointer:
        return self.__add__(distance)

    def __sub__(self, other: Any) -> Any:
        """Returns the distance in bytes from ``other``, a pointer into the same allocation. If ``other`` is an int,
        returns the pointer that many bytes before this one. Raises ``ValueError`` for a pointer into another
        allocation, and if the result would lie outside this allocation."""
        if isinstance(other, DevicePointer):
            if other._allocation is not self._allocation:
                raise ValueError(f"{self!r} and {other!r} point into different allocations, which have no distance")
            return self._offset - other._offset
        if isinstance(other, bool) or not hasattr(other, "__index__"):
            raise TypeError(f"a DevicePointer minus {written(other)}: it takes a pointer or a number of bytes, an int")
        return self.__add__(-operator.index(other))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DevicePointer) and other._allocation is self._allocation and other._offset == self._offset
        )

    def __hash__(self) -> int:
        return hash((id(self._allocation), self._offset))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a DevicePointer cannot be pickled or copied by copy; copy its memory with ctx.memcpy_async")

    def __repr__(self) -> str:
        address = self._allocation.address + self._offset
        return f"<oxide.DevicePointer {address:#x}, {byte_count(self.nbytes)} to its end, on {self.device.label}>"


def box_of(
    pointer: DevicePointer | int, shape: object, dtype: ScalarType | np.dtype[Any] | type | str, owner: object
) -> DeviceBox:
    """Returns a box on raw memory: see ``DeviceBox.from_raw_parts``."""
    sizes = parse_shape(shape, _WHAT)
    resolved = as_dtype(dtype, _WHAT)
    require_data(resolved, _WHAT)
    nbytes = number_of_elements(sizes) * resolved.itemsize
    if isinstance(pointer, DevicePointer):
        if owner is not None:
            raise TypeError(
                f"{_WHAT}: owner is {written(owner)}, and the pointer is a DevicePointer, which keeps its memory "
                f"itself; leave owner out"
            )
        return _part(pointer._allocation, pointer._offset, sizes, resolved, nbytes, pointer._known)
    if isinstance(pointer, bool) or not hasattr(pointer, "__index__"):
        raise TypeError(
            f"{_WHAT}: the pointer is {written(pointer)}; it must be a DevicePointer, of ctx.malloc_async, or an "
            f"address, an int with owner="
        )
    address = operator.index(pointer)
    if owner is None:
        raise TypeError(
            f"{_WHAT}: nothing would keep the memory at {written(address)}: pass owner=, the object that frees the "
            f"memory when it is dropped"
        )
    inner = owner.value if isinstance(owner, Arc) else owner
    if isinstance(inner, (DeviceBox, DevicePointer)):  # oxide's own memory
        allocation = inner._allocation
        return _part(allocation, address - allocation.address, sizes, resolved, nbytes, inner._known)
    if isinstance(inner, np.ndarray):
        _require_inside(inner, address, nbytes)
    return _foreign(address, sizes, resolved, nbytes, owner)


def _require_inside(array: np.ndarray[Any, Any], address: int, nbytes: int) -> None:
    """Checks the ``nbytes`` bytes at ``address`` if they begin inside of ``array``: raises ``ValueError`` if they end
    after the array, or if the array is read-only."""
    first, after = byte_bounds(array)
    if not first <= address < after:
        return  # an array may keep other memory alive
    if address + nbytes > after:
        raise ValueError(
            f"{_WHAT}: {byte_count(nbytes)} at byte {address - first} overrun the owner, an array of "
            f"{byte_count(after - first)}"
        )
    if not array.flags.writeable:
        raise ValueError(f"{_WHAT}: the owner is a read-only array, and boxes can be written: pass a copy")


def _part(
    allocation: Allocation,
    offset: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    nbytes: int,
    known: Known | None,
) -> DeviceBox:
    """Returns a box on a part of an allocation. Raises ``ValueError`` if the part does not lie inside the allocation or
    is not aligned."""
    what = f"{_WHAT}: {'x'.join(map(str, shape)) or 'a scalar'} {dtype_name(dtype)}, {byte_count(nbytes)}"
    if offset < 0 or offset + nbytes > allocation.nbytes:
        raise ValueError(
            f"{what}, at byte {offset} overruns the allocation of {byte_count(allocation.nbytes)} that the pointer "
            f"points into; allocate more, or give a smaller shape"
        )
    if nbytes and (allocation.address + offset) % dtype.alignment:
        raise ValueError(f"{what}, begins at byte {offset}, and its elements lie at multiples of {dtype.alignment}")
    box = DeviceBox(allocation, shape, dtype, offset)
    box._known = known
    return box


def _foreign(address: int, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int, owner: object) -> DeviceBox:
    """Returns a box on memory that ``owner`` keeps alive. Raises ``DeviceError`` for unregistered memory of oxide's
    own: two allocations on it would have two histories. On registered memory, the box shares the existing
    allocation."""
    from oxide.runtime.device.foreign_layout import ForeignLayout
    from oxide.runtime.device.interop import box_on
    from oxide.runtime.device.runtime import current_runtime

    runtime = current_runtime()
    layout = ForeignLayout(_WHAT, address, shape, None, dtype)
    if nbytes and not runtime.shared_ranges.overlapping(address, nbytes):
        for device in runtime.devices:
            for begin, (size, *_) in list(device.live.items()):
                if begin < address + nbytes and address < begin + size:
                    raise DeviceError(
                        f"{_WHAT}: {byte_count(nbytes)} at {address:#x} lie in a box of oxide's own, whose uses "
                        f"are ordered with the box: pass the DevicePointer, or the box as owner="
                    )
    return box_on(runtime, layout, None, lambda: owner, _WHAT, written=False)
