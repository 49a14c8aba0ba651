"""Operations that allocate device memory and move data: h2d, d2h, empty, zeros, ones, full, dup, memcpy.

Host data goes through page-locked buffers in both directions, so that submitting a copy never blocks.
``memory/pinned.py`` has measurements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import numpy as np

from oxide.host import core
from oxide.host.core import new_box
from oxide.host.host_arrays import host_array
from oxide.host.messages import byte_count, dtype_name, written
from oxide.language.types import as_dtype, f32, is_float, of_dtype, of_narrow_scalar
from oxide.runtime.awaiting.loading import announce_large_copy, large_copy_was_run
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.memory.memory import (
    Arc,
    DeviceBox,
    Partition,
    number_of_elements,
    parse_shape,
    require_data,
    require_device,
    require_number,
    require_runtime,
)
from oxide.runtime.memory.pinned import AT_ONCE_BYTES, is_pinned
from oxide.runtime.operations.combinators import DOWNLOADS, HANDLES, ROLES, UPLOADS
from oxide.runtime.operations.operation import BoxSpec, Depiction, DeviceOperation, OfArguments, Spec
from oxide.runtime.submission import staging
from oxide.runtime.submission.capture import NotRecordable
from oxide.runtime.submission.raw_memory import copy_bytes
from oxide.runtime.submission.staging import download, upload
from oxide.runtime.submission.submission import ExecutionContext

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from oxide.language.types import ScalarType

    DType = ScalarType | np.dtype[Any] | type | str
    Shape = int | tuple[int, ...]

T_co = TypeVar("T_co", covariant=True)

_F32: Final = f32
_FLOAT32: Final = np.dtype(np.float32)


def _new_box(context: ExecutionContext, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceBox:
    """Does what ``new_box`` does, in a recording or with memory that is lent, too."""
    if context.recording is not None:
        context.recording.require_allocation(f"a box of {describe(shape, dtype)}")
    return DeviceBox(context.allocated(number_of_elements(shape) * dtype.itemsize, shape, dtype), shape, dtype)


def _announce(array: NDArray[Any]) -> None:
    """Announces an upload of ``array``, which is large, to ``loading`` if the array is not in page-locked memory, so
    that the staging ring is made ahead of time."""
    if not is_pinned(array):
        announce_large_copy()


def _upload_at_launch(context: ExecutionContext, box: DeviceBox, array: NDArray[Any]) -> None:
    # Not in ``execute``, where the lambda would slow down all uploads.
    recording = context.recording
    if recording is not None and recording.outer is not None and recording.downloads:
        begin, end = array.ctypes.data, array.ctypes.data + array.nbytes
        if any(begin < last and first < end for first, last in recording.downloads):
            raise NotRecordable  # a plan uploads before everything else, and this array is not there yet
    context.at_launch(box, lambda now, to: upload(now, to, array))


class NewBox(DeviceOperation[DeviceBox]):
    """An operation that yields a new box, whose shape and dtype are known before the run."""

    _may_download = False
    _from_host = False  # whether a run copies from the host

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._shape = shape
        self._dtype = dtype
        super().__init__()

    def execute(self, context: ExecutionContext) -> DeviceBox:
        return new_box(context, self._shape, self._dtype)

    def spec(self) -> Spec:
        return BoxSpec(self._shape, self._dtype)

    def depict(self) -> Depiction:
        size = byte_count(number_of_elements(self._shape) * self._dtype.itemsize)
        if self._from_host:
            return "copy", self._called, ("host to device", size), ()
        return "memory", self._called, (size,), ()

    def __repr__(self) -> str:
        return f"<oxide operation {self._called} of {describe(self._shape, self._dtype)}>"


@final
class HostToDevice(NewBox):
    _from_host = True
    _called = "h2d"

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self._shape, self._dtype = array.shape, array.dtype
        if array.nbytes > staging.SMALL_BYTES:
            _announce(array)
        DeviceOperation.__init__(self)  # by way of NewBox it would take a twentieth of a short copy

    def execute(self, context: ExecutionContext) -> DeviceBox:
        array = self._array
        box = new_box(context, array.shape, array.dtype)
        if box.nbytes:
            if context.recording is None:
                upload(context, box, array)
            else:
                _upload_at_launch(context, box, array)
            if box.nbytes > staging.SMALL_BYTES:
                large_copy_was_run()
        return box


def h2d(array: ArrayLike) -> DeviceOperation[DeviceBox]:
    """Copies an array to the device. Yields a box of the array's shape and dtype, in C order whatever the strides.

    Each run reads the array. The array must not change until the run has completed: a large array is copied to staging
    memory while the device works, and the device itself reads an array that ``pinned_empty`` made. Raises ``TypeError``
    unless the dtype is a number, a date, a string of a fixed length or a structure of these. Raises ``ValueError`` for
    a masked array with masked elements.
    """
    host = array if type(array) is np.ndarray else _host_array(array)
    require_data(host.dtype, "h2d")
    return HostToDevice(host)


def _host_array(array: ArrayLike) -> NDArray[Any]:
    """Returns what ``h2d`` was given as an array of NumPy's. Raises ``TypeError`` and ``ValueError``."""
    if isinstance(array, DeviceBox) or (isinstance(array, Arc) and isinstance(array.value, DeviceBox)):
        raise TypeError("h2d takes a host array, and this is in device memory already; dup copies a box")
    if isinstance(array, Partition):
        raise TypeError("h2d takes a host array, and a Partition is in device memory; its box is its unpartition()")
    if isinstance(array, DeviceOperation):
        raise TypeError("h2d takes a host array, not an operation; use and_then")
    return host_array(array, "h2d")


class OfBox(OfArguments[T_co]):
    """An operation on a box, or on the box that another operation yields. It runs where that one is placed."""

    def __init__(self, box: DeviceBox | Arc[DeviceBox] | DeviceOperation[Any]) -> None:
        self._box = box
        if isinstance(box, DeviceOperation):
            self.place_as(box)
        super().__init__(box)


@final
class DeviceToHost(OfBox["NDArray[Any]"]):
    _called = "d2h"

    def __init__(self, box: DeviceBox | Arc[DeviceBox] | DeviceOperation[Any]) -> None:
        if isinstance(box, DeviceOperation):
            super().__init__(box)
            return
        if require_box(box, "d2h").nbytes > AT_ONCE_BYTES:
            announce_large_copy()
        self._box = box
        DeviceOperation.__init__(self)  # nothing else of OfBox is needed

    def execute(self, context: ExecutionContext) -> NDArray[Any]:
        box = self._box.value if isinstance(self._box, Arc) else self._box
        if isinstance(box, DeviceBox) and box.device is context.device and box.is_contiguous and box.nbytes:
            if box.nbytes > AT_ONCE_BYTES:
                large_copy_was_run()
            return download(context, box)
        return self.submit(context, box)

    def submit(self, context: ExecutionContext, *arguments: Any) -> NDArray[Any]:
        box = require_box(arguments[0], "d2h")
        require_device(box, context.device, "d2h")
        if not box.nbytes:
            return np.empty(box.shape, box.dtype)
        if box.nbytes > AT_ONCE_BYTES:
            large_copy_was_run()
        return download(context, contiguous(context, box))

    def copies_to_host(self) -> bool:
        return True

    def depict(self) -> Depiction:
        return depicted_download(self._box)


def depicted_download(box: object) -> Depiction:
    """Returns a picture's node for ``d2h`` of a box or of an operation."""
    known = box.spec() if isinstance(box, DeviceOperation) else box.value if isinstance(box, Arc) else box
    if not isinstance(known, (BoxSpec, DeviceBox)):
        return "copy", "d2h", ("device to host",), (("", box),)
    nbytes = number_of_elements(known.shape) * known.dtype.itemsize
    return "copy", "d2h", ("device to host", byte_count(nbytes)), (("", box),)


def d2h(box: DeviceBox | Arc[DeviceBox] | DeviceOperation[Any]) -> DeviceOperation[NDArray[Any]]:
    """Copies a box to the host. Yields a new NumPy array of its shape and dtype, filled once the run has completed.
    The elements of a strided view are copied in C order.

    The array is in page-locked memory, which goes back to a pool when the array is dropped. Beyond
    ``OXIDE_PINNED_LIMIT`` it is in ordinary memory, filled through a small ring of page-locked memory.
    Takes a box, an ``Arc`` of a box, or an operation that yields either. Raises ``TypeError`` for anything else.
    """
    return DeviceToHost(box)


@final
class Full(NewBox):
    _called = "full"

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], element: bytes) -> None:
        # Every driver fills bytes fastest, and zero is all zero bytes in every dtype.
        self._pattern = element if any(element) else b"\0"
        super().__init__(shape, dtype)

    def execute(self, context: ExecutionContext) -> DeviceBox:
        box = new_box(context, self._shape, self._dtype)
        if box.nbytes:
            count = box.nbytes // len(self._pattern)
            with context.submission_lock, context.ordered([], [box._allocation]):
                context.driver.fill(box.ptr, self._pattern, count, context.timeline.handle)
        return box

    def depict(self) -> Depiction:
        kind, title, lines, inputs = super().depict()
        return kind, title if any(self._pattern) else "zeros", lines, inputs


@final
class Empty(NewBox):
    _called = "empty"


def pinned_empty(shape: Shape, dtype: DType = f32) -> NDArray[Any]:
    """Returns an uninitialised NumPy array in page-locked memory, which ``h2d`` copies from without staging.

    Its memory returns to the pool when the last array on it is dropped and no copy in flight needs it.
    Raises ``OutOfMemoryError`` beyond ``OXIDE_PINNED_LIMIT``, ``TypeError`` or ``ValueError`` for a bad shape or dtype.
    """
    sizes, resolved = parse_shape(shape, "pinned_empty"), as_dtype(dtype, "pinned_empty")
    if resolved.hasobject:
        raise TypeError(f"pinned_empty: dtype {resolved} holds Python objects; numbers are supported")
    nbytes = number_of_elements(sizes) * resolved.itemsize
    if not nbytes:
        return np.empty(sizes, resolved)
    return current_runtime().pinned.acquire(nbytes).array(sizes, resolved)


def empty(shape: Shape, dtype: DType = f32) -> DeviceOperation[DeviceBox]:
    """Makes a box with uninitialised elements, for an output that a kernel writes in full."""
    return Empty(parse_shape(shape, "empty"), data_dtype(dtype, "empty"))


def full(shape: Shape, x: complex, dtype: DType = f32) -> DeviceOperation[DeviceBox]:
    """Makes a box of ``shape`` with every element ``x``. Raises ``OverflowError`` or ``TypeError`` if ``x`` does not
    fit."""
    resolved = as_dtype(dtype, "full")
    require_number(resolved, "full")
    if of_narrow_scalar(x) is not None:
        x = float(x.real)
    if not isinstance(x, (int, float, complex, np.number, np.bool_)):
        raise TypeError(f"full: one number fills the box, not {type(x).__name__}; h2d copies an array")
    if resolved.itemsize > 16:
        raise TypeError(f"full: {resolved} elements are wider than 16 bytes; use h2d(numpy.full(…))")
    return Full(parse_shape(shape, "full"), resolved, _element(x, resolved))


def _element(x: Any, dtype: np.dtype[Any]) -> bytes:
    """Returns the bytes of a number as an element of ``dtype``. Raises ``OverflowError`` or ``TypeError``."""
    real = dtype.kind in "iu" or is_float(dtype)
    if real and x.imag != 0:
        raise TypeError(f"full: {x!r} is no {dtype}; give a real number, or a complex dtype")
    number: Any = x.real if real else x
    finite = not isinstance(number, (float, complex, np.inexact)) or bool(np.isfinite(number))
    if dtype.kind in "iu":
        if number != number or (finite and int(number) != number):
            raise TypeError(f"full: {x!r} is no {dtype}; give a whole number, or a dtype of floating point")
        limits = np.iinfo(dtype)
        if not finite or not limits.min <= int(number) <= limits.max:
            raise OverflowError(
                f"full: {written(x)} does not fit {dtype}, which holds {limits.min} to {limits.max}; give one of "
                "these, or another dtype"
            )
        return np.array(int(number), dtype).tobytes()
    try:
        if dtype.isbuiltin != 1 and (scalar := of_dtype(dtype)) is not None:
            return _narrow_element(scalar, float(number))
        with np.errstate(over="ignore"):
            element = np.array(number, dtype)
        held = not finite or bool(np.isfinite(element))
    except OverflowError:  # an integer beyond every float
        held = False
    if not held:
        raise OverflowError(f"full: {written(x)} is too large for {dtype}; give a smaller one, or a wider dtype")
    return element.tobytes()


def _narrow_element(scalar: ScalarType, number: float) -> bytes:
    """Returns the bytes of a number as a type of ``ml_dtypes``. Raises ``OverflowError``."""
    from oxide.language import narrow  # imported here: few programs need it

    bits = narrow.encoded(scalar.name, number)
    if bits is None:
        raise OverflowError
    return bits.to_bytes(scalar.bits // 8, "little")


def zeros(shape: Shape, dtype: DType = f32) -> DeviceOperation[DeviceBox]:
    """Makes a box of zeros; ``shape`` is an int or a tuple."""
    return Full(parse_shape(shape, "zeros"), data_dtype(dtype, "zeros"), b"\0")


def ones(shape: Shape, dtype: DType = f32) -> DeviceOperation[DeviceBox]:
    """Makes a box of ones; ``shape`` is an int or a tuple."""
    return full(parse_shape(shape, "ones"), 1, as_dtype(dtype, "ones"))


@final
class Duplicate(OfBox[DeviceBox]):
    _called = "dup"

    def submit(self, context: ExecutionContext, *arguments: Any) -> DeviceBox:
        source = require_box(arguments[0], "dup")
        require_device(source, context.device, "dup")
        copy = new_box(context, source.shape, source.dtype)
        copy_box(context, copy, source)
        return copy

    def depict(self) -> Depiction:
        return "copy", "dup", ("on the device",), (("", self._box),)


def dup(box: DeviceBox | Arc[DeviceBox] | DeviceOperation[Any]) -> DeviceOperation[DeviceBox]:
    """Copies a box on its device. The copy is in C order, also if the box is a strided view. Takes a box, an ``Arc`` of
    a box, or an operation that yields either."""
    if not isinstance(box, DeviceOperation):
        require_box(box, "dup")
    return Duplicate(box)


@final
class Memcpy(DeviceOperation[DeviceBox]):
    _called = "memcpy"

    def __init__(self, destination: DeviceBox, source: DeviceBox | NDArray[Any]) -> None:
        self._destination = destination
        self._source = source
        if isinstance(source, np.ndarray) and source.nbytes > staging.SMALL_BYTES:
            _announce(source)
        super().__init__()

    def execute(self, context: ExecutionContext) -> DeviceBox:
        destination, source = self._destination, self._source
        if isinstance(source, DeviceBox):
            require_runtime(destination, context.device, "memcpy")
            require_runtime(source, context.device, "memcpy")
            if context.device not in (destination.device, source.device):
                require_device(destination, context.device, "memcpy")
            copy_box(context, destination, source)
        else:
            require_device(destination, context.device, "memcpy")
            if context.recording is not None:
                context.recording.refuse(
                    "memcpy from a host array cannot be captured: a graph cannot tell when to read the array. Copy it "
                    "between launches, with graph.update(memcpy(box, array))"
                )
            if source.nbytes:
                whole = destination if destination.is_contiguous else new_box(context, source.shape, source.dtype)
                upload(context, whole, source)
                if source.nbytes > staging.SMALL_BYTES:
                    large_copy_was_run()
                copy_box(context, destination, whole)
        return destination

    def depict(self) -> Depiction:
        source = self._source
        where = "on the device" if isinstance(source, DeviceBox) else "host to device"
        return "copy", "memcpy", (where, byte_count(source.nbytes)), (("from", source), ("to", self._destination))


def memcpy(
    dst: DeviceBox | Arc[DeviceBox], src: DeviceBox | Arc[DeviceBox] | NDArray[Any]
) -> DeviceOperation[DeviceBox]:
    """Copies ``src`` into ``dst``, which must have the same dtype and number of elements, and yields ``dst``. Allocates
    no device memory, unless a box is a strided view or the two overlap.

    The shapes may differ: the elements are copied in C order, and ``dst`` keeps its shape. Both may be strided views.
    They may overlap: the result is as if all of ``src`` were read first. ``src`` is a box or a NumPy array. An array is
    read until the operation has completed; do not change it before. The two boxes may be on different devices if the
    operation runs on one of them. If ``dst`` is a strided view, the operation must run on the device of ``dst``. Raises
    ``TypeError`` if the dtypes differ, ``ValueError`` if the numbers of elements differ or ``src`` has masked elements,
    and ``DeviceError`` when the operation is run on another device.
    """
    if isinstance(dst, np.ndarray):
        raise TypeError("memcpy writes into a DeviceBox, not into an ndarray; d2h(box) copies to a new host array")
    destination = require_box(dst, "memcpy")
    source: DeviceBox | NDArray[Any]
    if isinstance(src, np.ndarray):
        source = src if type(src) is np.ndarray else host_array(src, "memcpy")
    else:
        if not isinstance(src, DeviceBox | Arc):
            raise TypeError(f"memcpy copies from a DeviceBox or a NumPy array, not from {type(src).__name__}")
        source = require_box(src, "memcpy")
    if destination.dtype != source.dtype:
        raise TypeError(f"memcpy: dst is {destination.dtype}, src is {source.dtype}")
    if destination.size != source.size:
        raise ValueError(
            f"memcpy: dst has {destination.size} elements, src has {source.size}; it takes as many, of any shape"
        )
    return Memcpy(destination, source)


def require_box(thing: object, what: str) -> DeviceBox:
    """Returns the box, taken out of its ``Arc`` if it is in one. Raises ``TypeError`` for anything else."""
    box = thing.value if isinstance(thing, Arc) else thing
    if isinstance(box, DeviceBox):
        return box
    hint = "; h2d copies a host array to the device" if isinstance(box, np.ndarray) else ""
    if isinstance(box, Partition):
        hint = "; its box is its unpartition()"
    hint = hint or ("; pick one with first(), last() or unzip()" if isinstance(box, tuple) else "")
    if isinstance(box, int | float | complex | np.generic):
        hint = "; a launch yields all its arguments: take the box's with first() or unzip()"
    raise TypeError(f"{what} takes a DeviceBox, not {type(box).__name__}{hint}")


def copy_box(context: ExecutionContext, destination: DeviceBox, source: DeviceBox) -> None:
    """Copies the elements of a box into another box of as many elements, in C order. The boxes may be on different
    devices."""
    if not source.nbytes or _is_same(destination, source):
        return
    if not (destination.is_contiguous and source.is_contiguous) or _overlap(destination, source):
        _copy_views(context, destination, source)
        return
    copy_bytes(context, destination, source)


def _copy_views(context: ExecutionContext, destination: DeviceBox, source: DeviceBox) -> None:
    """Does the work of ``copy_box`` if a box is a strided view, or if the two boxes overlap."""
    if source.device is not destination.device:
        if destination.is_contiguous and source.device is context.device:
            source = contiguous(context, source)
        else:  # copy all bytes that the view spans; read the view on this device
            require_device(destination, context.device, "a copy into a strided view of another device's box")
            source = _arrived(context, source)
    elif _overlap(destination, source):
        source = contiguous(context, source, copied=True)
    if source.shape != destination.shape:
        if destination.is_contiguous:
            destination = destination.reshape(source.shape)
        else:
            source = contiguous(context, source).reshape(destination.shape)
    if destination.is_contiguous and source.is_contiguous:
        copy_bytes(context, destination, source)
        return
    from oxide.runtime.operations.strided_copy import copy_with_strides

    copy_with_strides(context, destination, source)


def _arrived(context: ExecutionContext, source: DeviceBox) -> DeviceBox:
    """Copies another device's box to this device, with its shape and strides."""
    low, high = source._span()
    there = source._bytes()
    here = new_box(context, (high - low,), there.dtype)
    copy_bytes(context, here, there)
    strides = None if source.is_contiguous else source.strides
    return DeviceBox(here._allocation, source.shape, source.dtype, source.ptr - low, strides)


def contiguous(context: ExecutionContext, box: DeviceBox, *, copied: bool = False) -> DeviceBox:
    """Returns the elements in C order: the box itself if it is contiguous, otherwise a copy. With ``copied``, always
    returns a copy."""
    if box.is_contiguous and not copied:
        return box
    copy = new_box(context, box.shape, box.dtype)
    copy_box(context, copy, box)
    return copy


def _is_same(destination: DeviceBox, source: DeviceBox) -> bool:
    """Returns whether two boxes of equal size are the same elements in the same order."""
    return source.ptr == destination.ptr and (
        (source.is_contiguous and destination.is_contiguous)
        or (source.shape == destination.shape and source.strides == destination.strides)
    )


def _overlap(destination: DeviceBox, source: DeviceBox) -> bool:
    (low, high), (begin, end) = destination._span(), source._span()
    return destination.device is source.device and low < end and begin < high


def describe(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    """Returns a text with the shape and dtype of an array, for messages."""
    return f"{'x'.join(map(written, shape)) or 'a scalar'} {dtype_name(dtype)}"


def data_dtype(dtype: DType, what: str) -> np.dtype[Any]:
    """Returns the NumPy dtype of a box. Raises ``TypeError`` for a dtype that a box cannot have."""
    resolved = _FLOAT32 if dtype is _F32 else as_dtype(dtype, what)
    require_data(resolved, what)
    return resolved


core.setup(downloads=d2h, new_box=_new_box)
ROLES.update({id(d2h): DOWNLOADS, id(h2d): UPLOADS, id(memcpy): UPLOADS, id(dup): HANDLES})
