"""Arguments of launches: device arrays become boxes, host arrays are copied to the device and back.

Arrays of other libraries with ``__cuda_array_interface__`` or ``__dlpack__`` are used in place. On the CPU device these
are arrays in host memory, and a launch with one waits for its kernel, as a program may look at the memory right after.

The device memory of a host array is kept until the array is dropped, so a further launch with the same arrays allocates
nothing. A record is a NumPy scalar without an identity of its own, so its device memory is reused for the next record
of the same type. The copies of a launch run in order on its stream, and the thread waits once, for the last copy.

On the CPU device, host arrays are copied, too, though a kernel could use them in place. Accesses of numba.cuda's
kernels are not checked. A program may write a little past the end of an array: a GPU's memory tolerates that, but in
place it would damage the heap of the process.
"""

from __future__ import annotations

import operator
import weakref
from functools import partial
from typing import Any

import numpy as np

import oxide
from oxide.driver.sanitizing import Tracking
from oxide.interop.numba_cuda import device_arrays as arrays
from oxide.interop.numba_cuda.streams import raise_errors
from oxide.interop.sharing import on_interface
from oxide.runtime.memory.memory import DeviceBox


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

    __slots__ = ("_device", "_in_place", "_out", "_records", "_seen", "_stream")

    def __init__(self, stream: oxide.Stream) -> None:
        self._stream = stream
        self._device = stream.device
        self._out: list[tuple[np.ndarray[Any, Any], Kept]] = []
        self._records: list[Kept] = []
        self._seen: set[int] = set()
        self._in_place = False

    def __bool__(self) -> bool:
        return bool(self._seen or self._records or self._in_place)

    def convert(self, value: Any) -> Any:
        """Converts an argument of the launch to an argument for the oxide kernel."""
        kind = type(value)
        if kind is arrays.DeviceNDArray:
            return self.on_device(value.box)
        if kind is DeviceBox:
            return self.on_device(value)
        if kind in NUMBERS or value is None:
            return value
        if kind is np.ndarray:
            return self._host(value, value, True, True)
        if kind is tuple:
            return self._tuple(value)
        if isinstance(value, arrays.MappedNDArray) and value.box is not None:
            return value.box
        if isinstance(value, np.ndarray):
            return self._host(value, np.asarray(value), True, True)
        if isinstance(value, ArgHint):
            given = value.value
            if isinstance(given, np.void):
                return self._record(given, value.copies_in, value.copies_out)
            if not isinstance(given, np.ndarray):
                return self.convert(given)
            return self._host(given, np.asarray(given), value.copies_in, value.copies_out)
        if isinstance(value, np.void) and value.dtype.names is not None:
            return self._record(value, True, True)
        if isinstance(value, tuple):
            return self._tuple(value)
        if not isinstance(value, np.generic):
            # Read once: other libraries compute the attribute each time.
            interface = getattr(value, "__cuda_array_interface__", None)
            if interface is not None:
                return on_interface(arrays.Interface(interface, value), self._stream._timeline)
            if hasattr(value, "__dlpack__"):
                return self.on_device(oxide.from_dlpack(value))
        return value

    def on_device(self, box: DeviceBox) -> DeviceBox:
        """Returns a box that kernels use in place. If its memory is the host's, notes that the launch must have run
        before the host looks at it."""
        self._in_place = self._in_place or arrays.is_hosts(box)
        return box

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        parts = [self.convert(part) for part in value]
        if all(map(operator.is_, parts, value)):
            return value  # the same object at each launch, so that it is not packed again
        return tuple(parts) if type(value) is tuple else type(value)(*parts)

    def _host(self, given: Any, array: np.ndarray[Any, Any], copies_in: bool, copies_out: bool) -> DeviceBox:
        """Returns a box for the host array ``given``, and copies ``given`` to it if ``copies_in``. ``array`` is
        ``given`` as a plain ``numpy.ndarray``."""
        flags = array.flags
        transposed = flags.f_contiguous and not flags.c_contiguous
        plain = array.T if transposed else array
        again = id(given) in self._seen  # an array given twice has two copies, as in numba-cuda
        self._seen.add(id(given))
        kept = None if again else _kept.get(id(given))
        if kept is None or kept.array is None or kept.array() is not given or not kept.fits(plain, self._device):
            kept = Kept(plain, self._stream)
            if not again:
                forget = partial(_kept.pop, id(given))  # in C: see ``host/weak_table.py``
                kept.array = weakref.ref(given, forget)
                _kept[id(given)] = kept
        self._copy(plain, kept, copies_in, copies_out and flags.writeable)
        return kept.box.T if transposed else kept.box

    def _record(self, record: np.void, copies_in: bool, copies_out: bool) -> DeviceBox:
        array = np.asarray(record)  # a view of the same record
        spare = _spare.get(array.dtype)
        try:
            kept = spare.pop() if spare else None
        except IndexError:  # another thread took it
            kept = None
        if kept is None or not kept.fits(array, self._device):
            kept = Kept(array, self._stream)
        self._records.append(kept)
        self._copy(array, kept, copies_in, copies_out and array.flags.writeable)
        return kept.box

    def _copy(self, array: np.ndarray[Any, Any], kept: Kept, copies_in: bool, copies_out: bool) -> None:
        if array.size:
            if copies_in:
                kept.fill(array, self._stream)
            if copies_out:
                self._out.append((array, kept))

    def finish(self) -> None:
        """Waits for the launch and copies the arrays back. Raises the kernels' error."""
        stream = self._stream
        # The copies are complete once the stream is synchronised.
        found: list[Any] = [
            oxide.d2h(kept.box).async_on(stream) if kept.view is None else kept.view for _, kept in self._out
        ]
        stream.synchronize()
        for (array, _), elements in zip(self._out, found, strict=True):
            np.copyto(array, elements)
        for kept in self._records:
            if len(_spare) > _MOST_TYPES:
                _spare.clear()
            _spare.setdefault(kept.box._dtype, []).append(kept)
        raise_errors(self._device)


NUMBERS = {int, float, bool, complex, *(np.dtype(code).type for code in "?bhilqBHILQefdFD")}


class Kept:
    """Device memory for a host array."""

    __slots__ = ("array", "box", "runtime", "view")

    def __init__(self, plain: np.ndarray[Any, Any], stream: oxide.Stream) -> None:
        kind, each = plain.dtype.kind, plain.dtype.itemsize
        if plain.dtype.hasobject or not plain.dtype.isnative or (kind in "fc" and each > {"f": 8, "c": 16}[kind]):
            raise TypeError(
                f"kernels take arrays of records and of numbers of up to 64 bits in the machine's byte order, and the "
                f"array is of {plain.dtype}; convert it with astype"
            )
        self.array: weakref.ref[Any] | None = None
        """The host array; None if the memory is for records."""
        self.runtime = stream.device.runtime
        self.box = oxide.empty(plain.shape, plain.dtype).async_on(stream)
        # On the CPU device, a host array on the box's memory. It is used only while no launch is in flight: see
        # ``finish``. The sanitizer would take memory with such an array for written, also that of an ``Out``.
        in_place = stream.device.kind == "cpu" and plain.size and not Tracking.wanted
        self.view = self.box.host_view() if in_place else None

    def fits(self, plain: np.ndarray[Any, Any], device: oxide.Device) -> bool:
        """Returns whether this memory can hold the array with its current shape and dtype, on ``device``."""
        box = self.box
        return (
            box._shape == plain.shape
            and box._dtype == plain.dtype
            and box.device is device
            and self.runtime is device.runtime
        )

    def fill(self, plain: np.ndarray[Any, Any], stream: oxide.Stream) -> None:
        """Copies a host array to the device. The array may be read until the stream is synchronised."""
        if self.view is not None:
            np.copyto(self.view, plain)
        else:
            oxide.memcpy(self.box, np.array(plain, order="C", copy=None)).async_on(stream)


_kept: dict[int, Kept] = {}
"""Maps the ids of host arrays to their device memory. When an array is dropped, a weak reference removes its entry."""

_spare: dict[np.dtype[Any], list[Kept]] = {}
"""Device memory for records, by their dtype. Earlier launches used it; no launch in flight does."""

_MOST_TYPES = 64
