"""Arguments of launches: device arrays become boxes, host arrays are copied to the device and back.

The device memory of a host array is kept until the array is dropped, so a launch with the same arrays allocates none.
The CPU device copies too, though a kernel could use the array in place: arrays of numba.cuda are not checked, and a
program that writes a little past the end of one, which a GPU's memory forgives, would damage the process's own heap.
"""

from __future__ import annotations

import operator
import weakref
from functools import partial
from typing import Any

import numpy as np

import oxide
from oxide.interop.numba_cuda import arrays
from oxide.interop.numba_cuda.host_memory import MappedNDArray
from oxide.runtime.device.memory import DeviceBox


class ArgHint:
    """A host array with the direction of its copies."""

    copies_in = copies_out = True

    def __init__(self, value: Any) -> None:
        self.value = value


class In(ArgHint):
    """A host array that is copied to the device before a launch, and not back."""

    copies_out = False


class Out(ArgHint):
    """A host array that is copied back after a launch, and not to the device before."""

    copies_in = False


class InOut(ArgHint):
    """A host array that is copied to the device before a launch and back after it: the default."""


class HostArguments:
    """The host arrays of one launch."""

    __slots__ = ("_device", "_out", "_seen", "_stream")

    def __init__(self, stream: oxide.Stream) -> None:
        self._stream = stream
        self._device = stream.device
        self._out: list[tuple[np.ndarray[Any, Any], Kept]] = []
        self._seen: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._seen)

    def convert(self, value: Any) -> Any:
        """Returns an argument of the kernel for one of the launch."""
        kind = type(value)
        if kind is arrays.DeviceNDArray:
            return value.box
        if kind in _NUMBERS or value is None or kind is DeviceBox:
            return value
        if kind is np.ndarray:
            return self._host(value, True, True)
        if isinstance(value, MappedNDArray) and value.box is not None:
            return value.box
        if isinstance(value, np.ndarray):
            return self._host(np.asarray(value), True, True)
        if isinstance(value, ArgHint):
            given = value.value
            if isinstance(given, np.void):
                given = np.asarray(given)
            if not isinstance(given, np.ndarray):
                return self.convert(given)
            return self._host(np.asarray(given), value.copies_in, value.copies_out)
        if isinstance(value, np.void) and value.dtype.names is not None:
            return self._host(np.asarray(value), True, True)  # a view of the same record
        if isinstance(value, tuple):
            parts = [self.convert(part) for part in value]
            if all(map(operator.is_, parts, value)):
                return value  # the same object at each launch, which is then not packed again
            return tuple(parts) if kind is tuple else kind(*parts)
        if not isinstance(value, np.generic) and hasattr(value, "__cuda_array_interface__"):
            return arrays.as_cuda_array(value).box
        return value

    def _host(self, array: np.ndarray[Any, Any], copies_in: bool, copies_out: bool) -> DeviceBox:
        flags = array.flags
        transposed = flags.f_contiguous and not flags.c_contiguous
        plain = array.T if transposed else array
        again = id(array) in self._seen  # an array given twice has two copies, as in numba-cuda
        self._seen.add(id(array))
        kept = None if again else _kept.get(id(array))
        if kept is None or not kept.is_of(array, plain, self._device):
            kept = Kept(array, plain, self._stream)
            if not again:
                _kept[id(array)] = kept
        if copies_in and array.size:
            kept.fill(plain, self._stream)
        if copies_out and flags.writeable:
            self._out.append((plain, kept))
        return kept.box.T if transposed else kept.box

    def finish(self) -> None:
        """Waits for the launch and copies the arrays back. Raises the kernels' error."""
        self._stream.synchronize()
        for array, kept in self._out:
            if array.size:
                np.copyto(array, kept.elements(self._stream))


_NUMBERS = {int, float, bool, complex, *(np.dtype(code).type for code in "?bhilqBHILQefdFD")}


class Kept:
    """The device memory of a host array."""

    __slots__ = ("array", "box", "runtime", "view")

    def __init__(self, array: np.ndarray[Any, Any], plain: np.ndarray[Any, Any], stream: oxide.Stream) -> None:
        kind, each = array.dtype.kind, array.dtype.itemsize
        if array.dtype.hasobject or not array.dtype.isnative or (kind in "fc" and each > {"f": 8, "c": 16}[kind]):
            raise TypeError(
                f"kernels take arrays of records and of numbers of up to 64 bits in the machine's byte order, and the "
                f"array is of {array.dtype}; convert it with astype"
            )
        forget = partial(_kept.pop, id(array))  # in C: see ``oxide.dropping``
        self.array = weakref.ref(array, forget)
        self.runtime = stream.device.runtime
        self.box = oxide.empty(plain.shape, plain.dtype).sync_on(stream)
        # On the CPU device, an array on the box's memory. No launch is in flight when it is used: see ``finish``.
        self.view = self.box.host_view() if stream.device.kind == "cpu" and plain.size else None

    def is_of(self, array: np.ndarray[Any, Any], plain: np.ndarray[Any, Any], device: oxide.Device) -> bool:
        """Returns whether the memory fits an array as it is now, on a device."""
        box = self.box
        return (
            self.array() is array
            and box._shape == plain.shape
            and box._dtype == plain.dtype
            and box.device is device
            and self.runtime is device.runtime
        )

    def fill(self, plain: np.ndarray[Any, Any], stream: oxide.Stream) -> None:
        """Copies a host array to the device."""
        if self.view is not None:
            np.copyto(self.view, plain)
        else:
            oxide.memcpy(self.box, np.array(plain, order="C", copy=None)).sync_on(stream)

    def elements(self, stream: oxide.Stream) -> np.ndarray[Any, Any]:
        """Returns the elements on the host."""
        return self.view if self.view is not None else oxide.d2h(self.box).sync_on(stream)


_kept: dict[int, Kept] = {}
"""By the id of the host array. A weak reference to the array removes its entry."""
