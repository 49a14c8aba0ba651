"""Raw device memory: pointers that keep their allocation alive, and boxes on parts of it.

An address alone does not tell which allocation a copy to the address uses. So programs get raw memory as a
``DevicePointer``, which has the arithmetic of an address and refers to its allocation. Work on the memory is ordered,
and the memory is freed, as for a box. If a program converts a pointer to a number, the allocation is registered
(``address_ranges``): then a box made from the number shares the allocation and its history.
"""

from __future__ import annotations

import operator
from typing import Any, NoReturn, SupportsIndex, final

from oxide.host.messages import byte_count, written
from oxide.runtime.memory.allocation import Allocation, Known


@final
class DevicePointer:
    """An address in device memory that ``ctx.malloc_async`` allocated. It keeps the memory alive. The memory is freed
    when all pointers and boxes on it were dropped and the device is past its last use.

    ``pointer + 16`` points 16 bytes further, ``pointer - other`` is the distance in bytes, and ``int(pointer)`` is the
    address for other libraries, which must order their own work.
    """

    __slots__ = ("_allocation", "_known", "_offset", "device")

    def __init__(self, allocation: Allocation, offset: int = 0, known: Known | None = None) -> None:
        self._allocation = allocation
        self.device = allocation.device
        """The device whose memory the pointer points to."""
        self._offset = offset
        self._known = known

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
