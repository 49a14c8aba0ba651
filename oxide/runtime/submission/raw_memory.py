"""Raw memory for functions of ``with_context``: allocating, copying and setting bytes on the stream of a run.

The calls check everything before they submit anything. Their work goes through the same functions as that of ``h2d``,
``d2h`` and ``zeros``, so it is ordered, kept alive and captured in the same way. A plain address is refused as an
operand, because the runtime could neither order the uses of its memory nor keep it allocated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from oxide.driver.base import provided
from oxide.errors import GraphError, OrderingError
from oxide.host.core import copy_host
from oxide.host.host_arrays import refuse_masked
from oxide.host.messages import byte_count, written
from oxide.runtime.memory.addresses import DevicePointer
from oxide.runtime.memory.memory import Arc, DeviceBox, require_device, require_runtime
from oxide.runtime.memory.pinned import pinned_buffer_of
from oxide.runtime.submission.staging import upload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxide.runtime.submission.staging import ContextState

_BYTE: Final[np.dtype[Any]] = np.dtype(np.uint8)


def allocate(context: ContextState, nbytes: object) -> DevicePointer:
    """Does the work of ``ExecutionContext.malloc_async``."""
    size = _size(context, "ctx.malloc_async", nbytes)
    if context.recording is not None:
        context.recording.require_allocation(f"ctx.malloc_async of {byte_count(size)}")
    return DevicePointer(context.allocated(size, (size,), _BYTE))


def fill(context: ContextState, destination: object, byte: object, nbytes: object) -> None:
    """Does the work of ``ExecutionContext.memset_async``."""
    what = "ctx.memset_async"
    size = _size(context, what, nbytes)
    if isinstance(byte, bool) or not isinstance(byte, (int, np.integer)):
        raise TypeError(f"{what}: byte is {written(byte)}; it must be an int of 0 to 255")
    if not 0 <= byte <= 255:
        raise ValueError(f"{what}: byte is {written(byte)}; a byte is 0 to 255")
    box = _device_bytes(destination, size, what, "dst")
    require_device(box, context.device, what)
    if size:
        with context.submission_lock, context.ordered([], [box._allocation]):
            context.driver.fill(box.ptr, bytes([int(byte)]), size, context.timeline.handle)


def copy(context: ContextState, destination: object, source: object, nbytes: object) -> None:
    """Does the work of ``ExecutionContext.memcpy_async``."""
    what = "ctx.memcpy_async"
    size = _size(context, what, nbytes)
    if isinstance(destination, np.ndarray):
        if isinstance(source, np.ndarray):
            raise TypeError(f"{what}: dst and src are both host arrays; np.copyto copies between them")
        to = _host_destination(context, destination, size, what)
        origin = _device_bytes(source, size, what, "src")
        require_device(origin, context.device, what)
        if size:
            _download(context, to, origin)
        return
    box = _device_bytes(destination, size, what, "dst")
    if isinstance(source, np.ndarray):
        array = _host_bytes(source, size, what, "src")
        require_device(box, context.device, what)
        if size:
            _upload(context, box, array)
        return
    origin = _device_bytes(source, size, what, "src")
    for operand in (box, origin):
        require_runtime(operand, context.device, what)
    if context.device not in (box.device, origin.device):
        require_device(box, context.device, what)
    if size and box.device is origin.device and abs(box.ptr - origin.ptr) < size:
        raise ValueError(
            f"{what}: dst and src overlap, at {box.ptr:#x} and {origin.ptr:#x} with {byte_count(size)} each; copy "
            f"through memory of ctx.malloc_async, or use memcpy, which may overlap"
        )
    if size:
        copy_bytes(context, box, origin)


def copy_bytes(context: ContextState, destination: DeviceBox, source: DeviceBox) -> None:
    """Copies a contiguous box into another of the same size. The boxes may be on different devices."""
    to, origin, stream = destination.device, source.device, context.timeline.handle
    with context.submission_lock, context.ordered([source._allocation], [destination._allocation]):
        if to is origin:
            context.driver.copy_on_device(destination.ptr, source.ptr, source.nbytes, stream)
        else:
            peers = provided(context.driver.peers, "peers")
            peers.copy_peer(destination.ptr, to.id, source.ptr, origin.id, source.nbytes, stream)


def _upload(context: ContextState, destination: DeviceBox, array: NDArray[Any]) -> None:
    """Copies host bytes to the device. In a capture, each launch of the graph reads the bytes again, before the graph's
    other work. So the launch uploads the bytes to an extra box, and the graph copies from that box to ``destination``
    at the place of this call. Raises ``GraphError`` if the graph may not own memory for the extra box."""
    recording = context.recording
    if recording is None:
        upload(context, destination, array)
        return
    recording.require_allocation("memory for the bytes of a host array, which ctx.memcpy_async copies at each launch")
    arrived = DeviceBox(context.allocated(array.nbytes, array.shape, _BYTE), array.shape, _BYTE)
    context.at_launch(arrived, lambda now, to: upload(now, to, array))
    copy_bytes(context, destination, arrived)


def _download(context: ContextState, array: NDArray[Any], source: DeviceBox) -> None:
    """Copies to page-locked memory that the program holds. The program can always observe its contents, so the run is
    marked as one that must not be dropped (``memory/reclaim.py``)."""
    context.keep(array)
    outer = context.recording.outer if context.recording is not None else None
    for each in (context, outer):
        if each is not None and each.visible is not None:
            each.visible.run.used_by_others = True
    copy_host(context, source, array.ctypes.data, False)
    context.note_host_copy()


def _size(context: ContextState, what: str, nbytes: object) -> int:
    """Returns ``nbytes`` as an int. Raises ``TypeError`` or ``ValueError`` if it is no number of bytes, and
    ``GraphError`` or ``OrderingError`` if the context takes no more work."""
    if context.recording is not None:
        if not context.recording.is_open:
            raise GraphError(
                f"{what} came too late: the graph that this context recorded has been made. Call it inside the "
                f"function of with_context"
            )
    elif context.is_over:
        raise OrderingError(
            f"{what} came too late: the run that this context belongs to has been submitted. Call it inside the "
            f"function of with_context, before that function returns"
        )
    if isinstance(nbytes, bool) or not isinstance(nbytes, (int, np.integer)):
        raise TypeError(f"{what}: nbytes is {written(nbytes)}; it must be an int, a number of bytes")
    if nbytes < 0:
        raise ValueError(f"{what}: nbytes is {written(nbytes)}; a number of bytes is 0 or more")
    if nbytes > 2**63 - 1:
        raise ValueError(f"{what}: nbytes is {written(nbytes)}, and no memory has more than 2**63 - 1 bytes")
    return int(nbytes)


def _device_bytes(thing: object, nbytes: int, what: str, name: str) -> DeviceBox:
    """Returns the first ``nbytes`` of a pointer's or a contiguous box's memory as a box of bytes. Raises ``TypeError``
    for other objects, and ``ValueError`` for a strided view and for memory of fewer bytes."""
    inner = thing.value if isinstance(thing, Arc) else thing
    if not isinstance(inner, (DevicePointer, DeviceBox)):
        hint = ""
        if isinstance(inner, (int, np.integer)) and not isinstance(inner, bool):
            hint = "; an address alone neither keeps nor orders its memory: DeviceBox.from_raw_parts(…, owner=…) does"
        elif isinstance(inner, (bytes, bytearray, memoryview)):
            hint = "; np.frombuffer makes an array of bytes"
        raise TypeError(
            f"{what}: {name} is {written(inner)}; it must be a DevicePointer or a DeviceBox"
            f"{' or a NumPy array' if what.endswith('memcpy_async') else ''}{hint}"
        )
    if isinstance(inner, DeviceBox) and not inner.is_contiguous:
        raise ValueError(
            f"{what}: {name} is a strided view, of shape {inner.shape} and strides {inner.strides} bytes, and its "
            f"bytes do not follow each other; memcpy and dup copy its elements"
        )
    if nbytes > inner.nbytes:
        raise ValueError(f"{what}: {byte_count(nbytes)} overrun {name}, which has {byte_count(inner.nbytes)}")
    box = DeviceBox(inner._allocation, (nbytes,), _BYTE, inner._offset)
    box._known = inner._known
    return box


def _host_bytes(array: NDArray[Any], nbytes: int, what: str, name: str) -> NDArray[Any]:
    """Returns the first ``nbytes`` of an array's memory, as an array of bytes on this memory. Raises ``TypeError`` for
    an array of Python objects. Raises ``ValueError`` for an array that has masked elements, is not C-contiguous or is
    too small."""
    refuse_masked(array, what)
    if array.dtype.hasobject:
        raise TypeError(f"{what}: {name} is an array of {array.dtype}, which holds Python objects")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{what}: {name} is an array of shape {array.shape} whose elements do not follow each other in C order; "
            f"pass np.ascontiguousarray({name})"
        )
    if nbytes > array.nbytes:
        raise ValueError(f"{what}: {byte_count(nbytes)} overrun {name}, an array of {byte_count(array.nbytes)}")
    plain: NDArray[Any] = np.asarray(array)
    return plain.reshape(-1).view(_BYTE)[:nbytes] if nbytes else np.empty(0, _BYTE)


def _host_destination(context: ContextState, array: NDArray[Any], nbytes: int, what: str) -> NDArray[Any]:
    result = _host_bytes(array, nbytes, what, "dst")
    if not array.flags.writeable:
        raise ValueError(f"{what}: dst is a read-only array; pass one that can be written")
    if nbytes and pinned_buffer_of(result, context.runtime.pinned) is None:
        raise ValueError(
            f"{what}: dst is an array in pageable memory, and a copy to it would block the submitting thread; make it "
            f"with pinned_empty, after init_device_contexts"
        )
    return result
