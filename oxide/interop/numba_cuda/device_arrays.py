"""numba.cuda's device arrays, on the memory of oxide's boxes, and its host memory: page-locked, mapped and managed
arrays."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import oxide
from oxide.interop.numba_cuda.streams import current, raise_errors, resolved, run
from oxide.interop.sharing import dlpack_device, host_array
from oxide.runtime.memory.memory import BoxArgument, DeviceBox
from oxide.runtime.memory.strides import contiguous_strides, span


class DeviceNDArray:
    """An array in device memory. ``.box`` is its ``oxide.DeviceBox``, which oxide's operations take."""

    __cuda_ndarray__ = True  # numba-cuda's mark of its own arrays
    __array_priority__ = 1000

    def __init__(
        self,
        shape: Any,
        strides: Any,
        dtype: Any,
        stream: Any = 0,
        gpu_data: DeviceBox | None = None,
    ) -> None:
        """Makes an array on the memory of ``gpu_data``; if that is None, on new memory."""
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        steps = (strides,) if isinstance(strides, int) else strides
        if gpu_data is None:
            self.box = _empty(sizes, np.dtype(dtype), steps, stream)
        else:
            steps = contiguous_strides(sizes, gpu_data.dtype.itemsize) if steps is None else tuple(steps)
            self.box = gpu_data._view_of((sizes, steps, 0))

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the length of each axis."""
        return self.box._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the elements' type."""
        return self.box._dtype

    @property
    def size(self) -> int:
        """Returns the number of elements."""
        return self.box._size

    @property
    def nbytes(self) -> int:
        """Returns the size in bytes."""
        return self.box._nbytes

    alloc_size = nbytes

    @property
    def ndim(self) -> int:
        """Returns the number of axes."""
        return len(self.box._shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Returns the distance between neighbouring elements along each axis, in bytes."""
        return self.box.strides

    @property
    def gpu_data(self) -> DeviceBox:
        """Returns the array's box, which ``DeviceNDArray(..., gpu_data=)`` takes."""
        return self.box

    @property
    def stream(self) -> int:
        """Returns 0, the default stream: uses of the array are ordered whatever streams they are on."""
        return 0

    @property
    def device_ctypes_pointer(self) -> Any:
        """Returns the address of the first element as a ctypes pointer."""
        import ctypes

        return ctypes.c_void_p(self.box.ptr)

    @property
    def flags(self) -> dict[str, bool]:
        """Returns the layout by NumPy's names."""
        return {"C_CONTIGUOUS": self.is_c_contiguous(), "F_CONTIGUOUS": self.is_f_contiguous()}

    @property
    def T(self) -> DeviceNDArray:
        """Returns the same memory with the axes in reverse order."""
        return on_box(self.box.T)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.box.__cuda_array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        return self.box.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.box.__dlpack_device__()

    @property
    def _numba_type_(self) -> Any:
        from oxide.compiler.frontend.lowering.types import numba_type

        return numba_type(self.box.as_argument().type)

    def as_argument(self) -> BoxArgument:
        """Returns the array as an argument of a kernel; see ``DeviceBox.as_argument``."""
        return self.box.as_argument()

    def is_c_contiguous(self) -> bool:
        """Returns whether the elements are contiguous in C order."""
        return self.box.is_contiguous

    def is_f_contiguous(self) -> bool:
        """Returns whether the elements are contiguous in Fortran's order."""
        return self.box.T.is_contiguous

    def bind(self, stream: Any = 0) -> DeviceNDArray:
        """Returns the array itself: its uses are ordered whatever streams they are on."""
        resolved(stream)
        return self

    def transpose(self, axes: Sequence[int] | None = None) -> DeviceNDArray:
        """Returns the same memory with the axes in another order."""
        order = list(range(self.ndim))[::-1] if axes is None else [operator.index(axis) for axis in axes]
        if sorted(order) != list(range(self.ndim)):
            raise ValueError(f"transpose: invalid axes list {axes!r} for an array of {self.ndim} axes")
        shape, strides = self.shape, self.strides
        return on_box(self.box._view_of((tuple(shape[a] for a in order), tuple(strides[a] for a in order), 0)))

    def reshape(self, *newshape: Any, order: str = "C") -> DeviceNDArray:
        """Returns the same memory with another shape. Raises ``NotImplementedError`` if that needs a copy, as
        numba-cuda does, and ``ValueError`` for a shape of another size."""
        sizes = newshape[0] if len(newshape) == 1 and isinstance(newshape[0], tuple | list) else newshape
        plain = tuple(operator.index(size) for size in sizes)
        if order == "F":
            return on_box(self.T.reshape(plain[::-1]).box.T)
        if plain == self.shape:
            return on_box(self.box)
        if not self.box.is_contiguous:
            if self.is_f_contiguous() and order == "A":
                return self.reshape(plain, order="F")
            raise NotImplementedError("reshape would require copy")
        return on_box(self.box.reshape(plain))

    def ravel(self, order: str = "C", stream: Any = 0) -> DeviceNDArray:
        """Returns the same memory with one axis. Raises ``NotImplementedError`` if that needs a copy."""
        if order == "F":
            return on_box(self.T.ravel().box)
        if not self.box.is_contiguous and self.ndim != 1:
            raise NotImplementedError("ravel would require copy")
        return on_box(self.box if self.ndim == 1 else self.box.reshape(-1))

    def squeeze(self, axis: Any = None, stream: Any = 0) -> DeviceNDArray:
        """Returns the same memory without axes of length one."""
        view = np.lib.stride_tricks.as_strided(np.empty((), self.dtype), self.shape, self.strides).squeeze(axis)
        return on_box(self.box._view_of((view.shape, view.strides, 0)))

    def view(self, dtype: Any) -> DeviceNDArray:
        """Returns the same memory with elements of another type. Raises ``ValueError`` for a type that does not fit."""
        box, wanted = self.box, np.dtype(dtype)
        shape, strides = self.shape, self.strides
        if wanted.itemsize != self.dtype.itemsize:
            if not shape or strides[-1] != self.dtype.itemsize:
                raise ValueError("To change to a dtype of a different size, the last axis must be contiguous")
            length, rest = divmod(shape[-1] * self.dtype.itemsize, wanted.itemsize)
            if rest:
                raise ValueError(
                    "When changing to a larger dtype, its size must be a divisor of the total size in bytes of the "
                    "last axis of the array."
                )
            shape, strides = (*shape[:-1], length), (*strides[:-1], wanted.itemsize)
        return on_box(_retyped(box, wanted, shape, strides, 0))

    def split(self, section: int, stream: Any = 0) -> tuple[DeviceNDArray, ...]:
        """Returns views of ``section`` elements each; the last may be shorter. Raises ``ValueError`` unless the array
        has one axis."""
        resolved(stream)
        if self.ndim != 1:
            raise ValueError("only support 1d array")
        if self.strides[0] != self.dtype.itemsize:
            raise ValueError("only support unit stride")
        return tuple(map(on_box, self.box.split(section)))

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> Any:
        """Returns the elements in a new host array, or in ``ary``. Waits for the copy, whichever stream is given.

        Raises the error of a kernel that has run, as every copy of this module does. Raises ``TypeError`` or
        ``ValueError`` if ``ary`` has another dtype, shape or layout.
        """
        box, found = self.box, resolved(stream).oxide_stream
        if ary is None:
            if not box.is_contiguous and box.T.is_contiguous:
                return run(oxide.d2h(box.T), found).T
            return run(oxide.d2h(box), found)
        if isinstance(ary, np.ndarray):
            _check_compatible(self, ary)
        _into(box, ary, found)
        return ary

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Copies ``ary``, a host array or a device array, into this array, and waits for the copy. Raises ``TypeError``
        or ``ValueError`` if ``ary`` has another dtype or shape."""
        found = resolved(stream).oxide_stream
        if ary is self or ary.size == self.size == 0:
            return
        if isinstance(ary, np.ndarray):
            host = np.asarray(ary, order="F" if self.is_f_contiguous() and not self.is_c_contiguous() else "C")
            _check_compatible(self, host)
            run(oxide.memcpy(self.box, np.ascontiguousarray(host).reshape(self.shape)), found)
            return
        source = as_cuda_array(ary) if is_cuda_array(ary) else np.ascontiguousarray(ary)
        _check_compatible(self, source)
        run(oxide.memcpy(self.box, source.box if isinstance(source, DeviceNDArray) else source), found)

    def getitem(self, item: Any, stream: Any = 0) -> Any:
        """Returns ``self[item]``. If ``item`` is an integer for each axis, this is the element, copied to the host on
        ``stream``; else it is a view. The name of a field gives a view of that field."""
        if isinstance(item, str):
            kind, offset = self.dtype.fields[item][:2]  # type: ignore[index]
            sub, inner = kind.subdtype or (kind, ())
            strides = (*self.strides, *contiguous_strides(inner, sub.itemsize))
            return on_box(_retyped(self.box, sub, (*self.shape, *inner), strides, offset))
        view = self.box[item]
        keys = item if isinstance(item, tuple) else (item,)
        if view._shape or any(isinstance(key, slice) or key is Ellipsis for key in keys):
            return on_box(view)
        return run(oxide.d2h(view), resolved(stream).oxide_stream)[()]

    def __getitem__(self, item: Any) -> Any:
        return self.getitem(item)

    def setitem(self, key: Any, value: Any, stream: Any = 0) -> None:
        """Does ``self[key] = value`` on a stream. Raises ``ValueError`` if the value cannot be broadcast."""
        if isinstance(key, str):
            self.getitem(key).setitem(Ellipsis, value, stream)
            return
        target, found = self.box[key], resolved(stream).oxide_stream
        if isinstance(value, DeviceNDArray) or (not isinstance(value, np.ndarray) and is_cuda_array(value)):
            source = as_cuda_array(value).box
            if source.dtype != target.dtype:
                source = run(oxide.h2d(run(oxide.d2h(source), found).astype(target.dtype)), found)
            if source.shape != target.shape:
                if len(source.shape) > len(target.shape):
                    raise ValueError(f"Can't assign {len(source.shape)}-D array to {len(target.shape)}-D self")
                like = np.lib.stride_tricks.as_strided(np.empty((), source.dtype), source.shape, source.strides)
                like = np.broadcast_to(like, target.shape)
                source = source._view_of((like.shape, like.strides, 0))
        else:
            source = np.array(np.broadcast_to(np.asarray(value).astype(target.dtype), target.shape), order="C")
        copy = oxide.memcpy(target, source)
        run(copy, found) if is_hosts(target) else copy.async_on(found)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.setitem(key, value)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        found = self.copy_to_host()
        return found if dtype is None else found.astype(dtype)

    def get_ipc_handle(self) -> Any:
        """Raises ``NotImplementedError``: memory is not shared between processes."""
        raise NotImplementedError("get_ipc_handle: oxide does not share device memory between processes")

    def __repr__(self) -> str:
        return f"<numba_cuda device array {self.shape} {self.dtype} on {self.box.device.label}>"


def on_box(box: DeviceBox) -> DeviceNDArray:
    """Returns an array that uses the memory of ``box``. Copies nothing."""
    found = object.__new__(DeviceNDArray)
    found.box = box
    return found


def _retyped(
    box: DeviceBox, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> DeviceBox:
    """Returns a box on the same memory with elements of another type."""
    plain = DeviceBox(box._allocation, (), dtype, box._offset + offset)
    plain._known = box._known
    return plain._view_of((shape, strides, 0))


def _check_compatible(one: DeviceNDArray, other: Any) -> None:
    if one.dtype != other.dtype:
        raise TypeError(f"incompatible dtype: {one.dtype} vs. {other.dtype}")
    if one.size == other.size == 0:
        return
    if one.shape != other.shape:
        raise ValueError(f"incompatible shape: {one.shape} vs. {other.shape}")


def _into(box: DeviceBox, ary: Any, stream: oxide.Stream) -> None:
    """Copies a box into a host array, or into another object with a writable buffer."""
    if box.device.kind == "cpu" and isinstance(ary, np.ndarray):
        np.copyto(ary, host_array(box, readonly=True), casting="no")
        raise_errors(stream.device)
        return
    found = run(oxide.d2h(box), stream)
    if isinstance(ary, np.ndarray):
        ary[...] = found
    else:
        np.frombuffer(ary, box.dtype).reshape(box.shape)[...] = found


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any], strides: Any, stream: Any) -> DeviceBox:
    found = resolved(stream).oxide_stream
    if strides is None or tuple(strides) == contiguous_strides(shape, dtype.itemsize):
        return oxide.empty(shape, dtype).async_on(found)
    wanted = tuple(map(int, strides))
    if wanted[::-1] == contiguous_strides(shape[::-1], dtype.itemsize):
        return oxide.empty(shape[::-1], dtype).async_on(found).T
    low, high = span(shape, wanted, dtype.itemsize)
    bytes_ = oxide.empty(high - low, np.dtype(np.uint8)).async_on(found)
    return _retyped(bytes_, dtype, shape, wanted, -low)


def _plain_shape(shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    for size in sizes:
        if isinstance(size, float | str) or not hasattr(size, "__index__"):
            raise TypeError(f"shape {shape!r}: the number of elements is an integer or a tuple of integers")
    return tuple(operator.index(size) for size in sizes)


def device_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", stream: Any = 0) -> Any:
    """Returns an array of uninitialised device memory."""
    sizes, kind = _plain_shape(shape), np.dtype(dtype)
    return on_box(_empty(sizes, kind, _steps_of(sizes, kind, strides, order), stream))


def _steps_of(shape: tuple[int, ...], dtype: np.dtype[Any], strides: Any, order: str) -> Any:
    """Returns the strides of an array: those that are given, if any, else those of its order."""
    if strides is not None:
        return strides
    return (
        contiguous_strides(shape[::-1], dtype.itemsize)[::-1]
        if order == "F"
        else contiguous_strides(shape, dtype.itemsize)
    )


def device_array_like(ary: Any, stream: Any = 0) -> Any:
    """Returns uninitialised device memory of the shape, dtype and order of an array."""
    return device_array(ary.shape, ary.dtype, strides=_strides_like(ary), stream=stream)


def _strides_like(ary: Any) -> tuple[int, ...]:
    """Returns the strides of contiguous memory with the shape of ``ary`` and with its order of axes in memory."""
    shape, itemsize = ary.shape, ary.dtype.itemsize
    given = ary.strides or contiguous_strides(shape, itemsize)
    order = sorted(range(len(shape)), key=lambda axis: (abs(given[axis]), -axis))
    strides = [0] * len(shape)
    step = itemsize
    for axis in order:
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: Any = None) -> Any:
    """Copies a host array to the device and returns the device array. If ``to`` is given, copies ``obj`` to ``to`` and
    returns ``to``. Otherwise, if ``obj`` is a device array already, copies nothing: returns ``obj``, or an array on the
    memory of another library's array.

    Without ``to``, raises ``ValueError`` for a host array that is contiguous in neither order, as numba-cuda does,
    unless a contiguous array was broadcast to it.
    """
    if to is not None:
        to.copy_to_device(obj, stream=stream)
        return to
    if isinstance(obj, DeviceNDArray):
        return obj
    if not isinstance(obj, np.ndarray) and is_cuda_array(obj):
        return as_cuda_array(obj)
    if isinstance(obj, np.void):
        obj = np.asarray(obj)
    found = resolved(stream).oxide_stream
    array = np.asarray(obj)
    if array.flags.c_contiguous:
        return on_box(run(oxide.h2d(array), found))
    if array.flags.f_contiguous:
        return on_box(run(oxide.h2d(array.T), found).T)
    if 0 in array.strides:  # a broadcast array: numba-cuda copies the elements that exist in memory
        core = array[tuple(slice(1) if not stride else slice(None) for stride in array.strides)]
        if core.flags.forc:
            box = run(oxide.h2d(np.ascontiguousarray(core.T if core.flags.f_contiguous else core)), found)
            return on_box(box._view_of((array.shape, array.strides, 0)))
    raise ValueError(
        "Array contains non-contiguous buffer and cannot be transferred as a single memory region. Please ensure "
        "contiguous buffer with numpy .ascontiguousarray()"
    )


def is_cuda_array(obj: Any) -> bool:
    """Returns whether an object is a device array of this module or of another library."""
    return isinstance(obj, DeviceNDArray) or hasattr(obj, "__cuda_array_interface__")


def is_cuda_ndarray(obj: Any) -> bool:
    """Returns whether an object is a device array of this module."""
    return bool(getattr(obj, "__cuda_ndarray__", False))


def as_cuda_array(obj: Any, sync: bool = True) -> Any:
    """Returns a device array on the memory of another library's array, without a copy: an array with
    ``__cuda_array_interface__``, or with ``__dlpack__`` in the devices' kind of memory, which is the host's for the CPU
    device. Raises ``TypeError`` for any other object, and for a NumPy array, which is a host array to numba.cuda."""
    if isinstance(obj, DeviceNDArray):
        return obj
    if isinstance(obj, DeviceBox):
        return on_box(obj)
    if is_cuda_array(obj):
        return on_box(oxide.from_cuda_array_interface(obj))
    theirs = hasattr(obj, "__dlpack__") and not isinstance(obj, np.ndarray)
    if theirs and obj.__dlpack_device__()[0] == dlpack_device(current())[0]:
        return on_box(oxide.from_dlpack(obj))
    raise TypeError("*obj* doesn't implement the cuda array interface.")


def is_hosts(box: DeviceBox) -> bool:
    """Returns whether a box is on another library's memory that the host uses too."""
    return box._allocation.adopted and box.device.kind == "cpu"


class Interface:
    """An object whose ``__cuda_array_interface__`` is ``description``. It keeps ``owner`` alive."""

    def __init__(self, description: dict[str, Any], owner: Any = None) -> None:
        self.__cuda_array_interface__ = description
        self.owner = owner


def from_cuda_array_interface(desc: dict[str, Any], owner: Any = None, sync: bool = True) -> Any:
    """Returns a device array on the memory that ``desc`` describes, a dict of the CUDA array interface. The array keeps
    ``owner`` alive."""
    return on_box(oxide.from_cuda_array_interface(Interface(desc, owner)))


# Host memory


def pinned_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C") -> Any:
    """Returns an uninitialised host array in page-locked memory. Raises ``ValueError`` for negative strides."""
    sizes, kind = _plain_shape(shape), np.dtype(dtype)
    steps = _steps_of(sizes, kind, strides, order)
    low, high = span(sizes, steps, kind.itemsize)
    if low < 0:
        raise ValueError(f"pinned_array: strides {strides} are negative; take a view of the array instead")
    return np.ndarray(sizes, kind, oxide.pinned_empty(high, np.dtype(np.uint8)), 0, steps)


def pinned_array_like(ary: Any) -> Any:
    """Returns page-locked memory of the shape, dtype and order of an array."""
    return pinned_array(ary.shape, ary.dtype, _strides_like(ary))


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
    return mapped_array(ary.shape, ary.dtype, _strides_like(ary), stream=stream)


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
