"""Layouts of other libraries' arrays in memory, validated before use.

The description of a layout comes from foreign code: a DLPack tensor, the fields of ``__cuda_array_interface__``, or an
address for ``DeviceBox.from_raw_parts``. Whether the memory exists cannot be checked. The description itself is
checked: the array fits into an address space, its elements are aligned and do not overlap, and its address is not null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from oxide.host.messages import written
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
