"""numba.cuda's host memory: page-locked, mapped and managed arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

import oxide
from oxide.interop.numba_cuda.device_arrays import Interface, _plain_shape, _retyped, steps_of, strides_like
from oxide.runtime.memory.memory import BoxArgument, DeviceBox
from oxide.runtime.memory.strides import span


def pinned_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C") -> Any:
    """Returns an uninitialised host array in page-locked memory. Raises ``ValueError`` for negative strides."""
    sizes, kind = _plain_shape(shape), np.dtype(dtype)
    steps = steps_of(sizes, kind, strides, order)
    low, high = span(sizes, steps, kind.itemsize)
    if low < 0:
        raise ValueError(f"pinned_array: strides {strides} are negative; take a view of the array instead")
    return np.ndarray(sizes, kind, oxide.pinned_empty(high, np.dtype(np.uint8)), 0, steps)


def pinned_array_like(ary: Any) -> Any:
    """Returns page-locked memory of the shape, dtype and order of an array."""
    return pinned_array(ary.shape, ary.dtype, strides_like(ary))


@contextlib.contextmanager
def pinned(*arylist: Any) -> Iterator[None]:
    """Does nothing: oxide copies ordinary host memory through page-locked memory of its own."""
    yield


class MappedNDArray(np.ndarray[Any, Any]):
    """A host array that kernels use in place. A view of it is an ordinary host array, which a launch copies."""

    box: DeviceBox | None = None

    def as_argument(self) -> BoxArgument | None:
        """Returns the array as an argument of a kernel, and None for a view; see ``DeviceBox.as_argument``."""
        return None if self.box is None else self.box.as_argument()


def mapped_array(
    shape: Any,
    dtype: Any = np.float64,
    strides: Any = None,
    order: str = "C",
    stream: Any = 0,
    portable: bool = False,
    wc: bool = False,
) -> Any:
    """Returns an uninitialised host array in page-locked memory that kernels use in place."""
    array = pinned_array(shape, dtype, strides, order)
    mapped = array.view(MappedNDArray)
    mapped.box = _box_on(array)
    return mapped


def mapped_array_like(ary: Any, stream: Any = 0, portable: bool = False, wc: bool = False) -> Any:
    """Returns a mapped array of the shape, dtype and order of an array."""
    return mapped_array(ary.shape, ary.dtype, strides_like(ary), stream=stream)


def managed_array(
    shape: Any,
    dtype: Any = np.float64,
    strides: Any = None,
    order: str = "C",
    stream: Any = 0,
    attach_global: bool = True,
) -> Any:
    """Returns a mapped array. Host and device both use its memory, which stays on the host: pages do not migrate as
    those of CUDA's managed memory do."""
    return mapped_array(shape, dtype, strides, order, stream)


def _box_on(array: np.ndarray[Any, Any]) -> DeviceBox:
    """Returns a box on the memory of a page-locked array. The memory has the same address on host and device."""
    if not array.size:
        return oxide.empty(array.shape, array.dtype).sync()
    plain = np.ndarray(span(array.shape, array.strides, array.dtype.itemsize)[1], np.uint8, array.base)
    if oxide.devices()[0].kind == "cpu":
        box = oxide.from_dlpack(plain)
    else:
        address = plain.__array_interface__["data"][0]
        description = {"shape": plain.shape, "typestr": "|u1", "data": (address, False), "version": 3}
        box = oxide.from_cuda_array_interface(Interface(description, plain))
    return _retyped(box, array.dtype, array.shape, array.strides, 0)
