"""Arguments of launches: device arrays become boxes, host arrays are copied to the device and back.

On the CPU device a kernel uses a contiguous host array in place, as a box on its memory. The box is kept until the
array is dropped, so a launch with the same arrays makes none. On a GPU the device memory is kept likewise, and each
launch copies into it.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import numpy as np

import oxide
from oxide.interop.numba_cuda import arrays
from oxide.interop.numba_cuda.host_memory import MappedNDArray
from oxide.runtime.device.memory import DeviceBox
from oxide.runtime.device.runtime import current_runtime


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

    __slots__ = ("_device", "_in_place", "_out", "_seen", "_stream")

    def __init__(self, arguments: tuple[Any, ...], stream: oxide.Stream) -> None:
        self._stream = stream
        self._device = stream.device
        self._out: list[tuple[np.ndarray[Any, Any], DeviceBox]] = []
        self._seen: list[np.ndarray[Any, Any]] = []
        # Arrays that share memory are copied, each by itself, as numba-cuda does.
        self._in_place = self._device.kind == "cpu" and not _share_memory(arguments)

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
            return tuple(parts) if kind is tuple else kind(*parts)
        if not isinstance(value, np.generic) and hasattr(value, "__cuda_array_interface__"):
            return arrays.as_cuda_array(value).box
        return value

    def _host(self, array: np.ndarray[Any, Any], copies_in: bool, copies_out: bool) -> DeviceBox:
        self._seen.append(array)
        flags = array.flags
        transposed = flags.f_contiguous and not flags.c_contiguous
        plain = array.T if transposed else array
        if self._in_place and flags.writeable and copies_in and copies_out and array.size and plain.flags.c_contiguous:
            box = _box_in_place(plain if not transposed else array, transposed)
            if box is not None:
                return box
        box = _kept(array, self._device)
        source = np.ascontiguousarray(plain) if array.ndim else np.array(array)
        if box is None:
            box = oxide.h2d(source).sync_on(self._stream) if copies_in else oxide.empty(
                source.shape, source.dtype
            ).sync_on(self._stream)  # fmt: skip
            _keep(array, box)
        elif copies_in and array.size:
            oxide.memcpy(box, source).sync_on(self._stream)
        if copies_out and flags.writeable:
            self._out.append((plain, box))
        return box.T if transposed else box

    def finish(self) -> None:
        """Waits for the launch and copies the arrays back. Raises the kernels' error."""
        try:
            self._stream.synchronize()
        except BaseException:
            _interrupted.append(self._seen)  # the device may still use their memory
            raise
        for array, box in self._out:
            array[...] = oxide.d2h(box).sync_on(self._stream)


_NUMBERS = {int, float, bool, complex, np.float32, np.float64, np.int32, np.int64, np.bool_}
_interrupted: list[list[np.ndarray[Any, Any]]] = []

# Boxes by the id of an array; a weak reference to the array removes its entry.
_boxes: dict[tuple[int, bool], tuple[Any, Any, DeviceBox]] = {}


def _entry(array: np.ndarray[Any, Any], in_place: bool) -> tuple[Any, Any]:
    """Returns the key of an array and the description that a box of it was made for."""
    address = array.__array_interface__["data"][0] if in_place else 0
    return (id(array), in_place), (address, array.shape, array.strides, array.dtype, current_runtime())


def _box_in_place(array: np.ndarray[Any, Any], transposed: bool) -> DeviceBox | None:
    """Returns the box on the array's own memory, or None if it cannot be one."""
    key, description = _entry(array, True)
    found = _boxes.get(key)
    if found is not None and found[1] == description and found[0]() is array:
        return found[2]
    # A second view that does not keep the array: the entry goes when the array does.
    plain = array.T if transposed else array
    interface = {"shape": (plain.nbytes,), "typestr": "|u1", "data": (description[0], False), "version": 3}
    raw = oxide.from_dlpack(np.asarray(_HostInterface(interface)))
    box = arrays._retyped(raw, plain.dtype, plain.shape, plain.strides, 0)
    return _keep(array, box.T if transposed else box, in_place=True)


class _HostInterface:
    def __init__(self, description: dict[str, Any]) -> None:
        self.__array_interface__ = description


def _kept(array: np.ndarray[Any, Any], device: oxide.Device) -> DeviceBox | None:
    """Returns the device memory of an earlier launch with this array."""
    key, description = _entry(array, False)
    found = _boxes.get(key)
    if found is None or found[1] != description or found[0]() is not array or found[2].device is not device:
        return None
    return found[2]


def _keep(array: np.ndarray[Any, Any], box: DeviceBox, *, in_place: bool = False) -> DeviceBox:
    key, description = _entry(array, in_place)

    def forget(dead: Any, key: tuple[int, bool] = key) -> None:
        found = _boxes.get(key)
        if found is not None and found[0] is dead:
            del _boxes[key]

    _boxes[key] = weakref.ref(array, forget), description, box
    return box


def _share_memory(arguments: tuple[Any, ...]) -> bool:
    """Returns whether two host arrays among the arguments may share memory."""
    ranges = []
    for argument in arguments:
        value = argument.value if isinstance(argument, ArgHint) else argument
        if isinstance(value, tuple):
            return True  # rare: copied, so not looked into
        if isinstance(value, np.ndarray) and value.size:
            low, high = np.lib.array_utils.byte_bounds(value)
            ranges.append((low, high))
    if len(ranges) < 2:
        return False
    ranges.sort()
    return any(after[0] < before[1] for before, after in itertools.pairwise(ranges))
