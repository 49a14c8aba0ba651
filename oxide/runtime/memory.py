"""Device memory that knows who uses it.

An allocation remembers the stream of its last write and of the reads since. That is enough to order any two
operations on any two streams, and to give the memory back only after its last use.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, SupportsIndex, final

import numpy as np

from oxide.errors import DeviceError

if TYPE_CHECKING:
    from oxide.runtime.context import Device
    from oxide.runtime.timeline import Timeline


@final
class Allocation:
    """A piece of device memory and its uses. Every method is called with the runtime's submission lock held."""

    __slots__ = ("_reads", "_write", "address", "device", "home", "nbytes")

    def __init__(self, timeline: Timeline, nbytes: int) -> None:
        """Allocates on a stream, which counts as the first write: other streams wait for it.

        Raises ``OutOfMemoryError``.
        """
        self.device = timeline.device
        self.home = timeline
        self.nbytes = nbytes
        self.address = 0
        self._reads: dict[Timeline, int] = {}
        self._write: tuple[Timeline, int] | None = None
        if nbytes:
            self.address = timeline.driver.allocate(nbytes, timeline.handle)
            self._write = (timeline, timeline.advance())

    def order_read(self, timeline: Timeline) -> None:
        """Makes a stream wait for the last write."""
        if self._write is not None and self._write[0] is not timeline:
            timeline.wait_for(*self._write)

    def order_write(self, timeline: Timeline) -> None:
        """Makes a stream wait for the last write and for the reads since."""
        self.order_read(timeline)
        for reader, position in self._reads.items():
            if reader is not timeline:
                timeline.wait_for(reader, position)

    def note_read(self, timeline: Timeline, position: int) -> None:
        self._reads[timeline] = position

    def note_write(self, timeline: Timeline, position: int) -> None:
        self._write = (timeline, position)
        self._reads.clear()

    def __del__(self) -> None:
        if self.address:
            uses = list(self._reads.items())
            if self._write is not None:
                uses.append(self._write)
            self.device.runtime.reclaimer.retire(self.address, self.home, tuple(uses))


@final
class DeviceBox:
    """An array in device memory: C-contiguous, of one dtype, freed when dropped and no longer in use.

    ``h2d``, ``zeros`` and their like make one; several may look at the same memory (``reshape``).
    """

    __slots__ = ("__weakref__", "_allocation", "dtype", "shape")

    def __init__(self, allocation: Allocation, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._allocation = allocation
        self.shape = shape
        self.dtype = dtype

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.size * self.dtype.itemsize

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def device(self) -> Device:
        """The device whose memory it is."""
        return self._allocation.device

    @property
    def ptr(self) -> int:
        """The address, 0 for an empty box. Work that oxide does not submit must be ordered by its submitter."""
        return self._allocation.address

    def reshape(self, *shape: SupportsIndex | tuple[SupportsIndex, ...]) -> DeviceBox:
        """The same memory with another shape of the same size; one axis may be -1. Raises ``ValueError``."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        asked = [int(size) for size in sizes]  # type: ignore[arg-type]
        given = list(asked)
        if given.count(-1) == 1:
            rest = math.prod(size for size in given if size != -1)
            given[given.index(-1)] = self.size // rest if rest else 0
        if any(size < 0 for size in given) or math.prod(given) != self.size:
            raise ValueError(f"a box of shape {self.shape} cannot be reshaped to {tuple(asked)}")
        return DeviceBox(self._allocation, tuple(given), self.dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device.driver.name != "cuda":
            raise AttributeError(f"a box on {self.device.label} has __array_interface__")
        return {**self._array_interface(), "stream": None, "version": 3}

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.device.driver.name != "cpu":
            raise AttributeError(
                f"a box on {self.device.label} has __cuda_array_interface__; d2h copies it to the host"
            )
        return {**self._array_interface(), "version": 3}

    def _array_interface(self) -> dict[str, Any]:
        write = self._allocation._write
        if write is not None and not write[0].passed(write[1]):
            write[0].mark().synchronize()
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.ptr, False), "strides": None}

    def __repr__(self) -> str:
        return f"<oxide.DeviceBox {'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype} on {self.device.label}>"


def parse_shape(shape: object, what: str) -> tuple[int, ...]:
    """A shape as given by a user, an int or a tuple, as a tuple. Raises ``TypeError`` or ``ValueError``."""
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    result = []
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)):
            raise TypeError(f"{what}: a shape is an int or a tuple of ints, not {shape!r}")
        if size < 0:
            raise ValueError(f"{what}: shape {shape!r} has a negative size")
        result.append(int(size))
    return tuple(result)


def require_device(box: DeviceBox, device: Device, what: str) -> None:
    """Raises ``DeviceError`` if the box lives on another device."""
    if box.device is not device:
        raise DeviceError(
            f"{what}: the box is on {box.device.label}, but the operation runs on {device.label}; "
            f"run it on {box.device.label}, or copy the box with memcpy"
        )
