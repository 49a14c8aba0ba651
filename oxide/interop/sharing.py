"""Memory shared with other libraries without a copy: DLPack, ``__cuda_array_interface__``, ``__array_interface__``.

Export: the consumer's stream waits for the box's uses so far. On the CPU device the calling thread waits instead.
Import: one of oxide's streams waits for the producer's work so far, and oxide orders every later use of the box as
usual. After an export or import, neither side sees the other's new work on the memory. ``ctx.reads`` and ``ctx.writes``
declare the other library's work to oxide. All boxes on the same memory share one history
(``memory/addresses.py``). A producer's description of its memory is validated before use (``dlpack.py``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from oxide.driver.base import provided
from oxide.errors import DeviceError, OxideError
from oxide.host.host_arrays import refuse_masked
from oxide.host.locks import refuse_inside
from oxide.host.messages import byte_count, dtype_name, written
from oxide.interop import dlpack
from oxide.interop.dlpack import CPU, CUDA, MOST_AXES, VERSION, ForeignLayout
from oxide.language.types import REGISTERED, ScalarType, as_dtype
from oxide.runtime.devices.runtime import Device, Runtime, current_runtime
from oxide.runtime.devices.scheduling import picked_stream
from oxide.runtime.memory.addresses import DevicePointer
from oxide.runtime.memory.allocation import Allocation, Known
from oxide.runtime.memory.memory import Arc, DeviceBox, number_of_elements, parse_shape, require_data
from oxide.runtime.ordering.timeline import Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RAW_PARTS = "DeviceBox.from_raw_parts"
_NO_SYNCHRONISATION = -1
_LEGACY_DEFAULT_STREAM = 1


def from_dlpack(x: Any) -> DeviceBox:
    """Returns a box on the memory of ``x``, another library's array with ``__dlpack__``, without a copy.

    The array must be on a device of the runtime: a CUDA array with CUDA, a host array such as NumPy's on the CPU
    device. An array that is not C-contiguous gives a strided view. The memory is kept until the box was dropped and the
    device no longer uses the memory. After this call the other library must itself order its new uses of the array.

    Raises ``TypeError`` for an object without ``__dlpack__``, ``DeviceError`` for another kind of device, and
    ``ValueError`` for a masked array with masked elements. Raises ``BufferError`` for an array that is read-only, whose
    elements share memory, or whose description is impossible.
    """
    refuse_inside()
    if type(x) is not np.ndarray:  # NumPy arrays have both methods, and no mask
        if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
            raise TypeError(f"from_dlpack takes an array with __dlpack__, not {type(x).__name__}")
        refuse_masked(x, "from_dlpack")
    runtime = current_runtime()
    announced = kind, number = _announced_device(x)
    wanted = CUDA if runtime.driver.name == "cuda" else CPU
    if kind != wanted:
        raise DeviceError(
            f"from_dlpack: the array is on DLPack device type {kind}, and the runtime's devices are "
            f"{runtime.driver.name} devices (type {wanted}); copy it to the host and use h2d"
        )
    timeline: Timeline | None = None
    if kind == CPU:
        capsule = _ask(x)
    else:
        timeline = picked_stream(runtime.policy, runtime.device(number))._timeline
        capsule = _ask(x, stream=timeline.name())
    tensor = dlpack.ImportedTensor(capsule, announced)
    return box_on(runtime, tensor.layout, timeline, tensor.take, "from_dlpack", written=timeline is not None)


def from_cuda_array_interface(x: Any) -> DeviceBox:
    """Returns a box on the memory of an object with ``__cuda_array_interface__``, without a copy. See ``from_dlpack``.

    If the interface names a stream, uses of the box wait for the stream's work so far. Raises ``TypeError`` for an
    object without the interface and for a dtype that no box can have, ``DeviceError`` on the CPU device, and
    ``BufferError`` as ``from_dlpack`` does.
    """
    return on_interface(x, None)


def on_interface(x: Any, first_use: Timeline | None) -> DeviceBox:
    """Does the work of ``from_cuda_array_interface``. ``first_use`` is the stream that uses the box first, if it is
    known. If this is a stream of the array's device, it waits for the other library's work, and the first use needs no
    further wait. Otherwise a stream that the policy picks waits."""
    what = "from_cuda_array_interface"
    interface = getattr(x, "__cuda_array_interface__", None)
    if not isinstance(interface, dict):
        raise TypeError(f"{what} takes an object with the interface, not {type(x).__name__}")
    runtime = current_runtime()
    if runtime.driver.name != "cuda":
        raise DeviceError(f"{what}: the runtime's devices are no CUDA devices; set OXIDE_DEVICE=cuda")
    layout, stream = _read_interface(interface, what)

    def ordered(timeline: Timeline) -> None:
        if stream is not None:
            theirs = timeline.device.foreign_timeline(stream)
            timeline.wait_for(theirs, theirs.mark().position, "the stream of another library")
            theirs.forget_marks()

    return box_on(runtime, layout, None, lambda: x, what, written=True, order=ordered, first_use=first_use)


def _read_interface(interface: dict[str, Any], what: str) -> tuple[ForeignLayout, int | None]:
    """Returns an array's layout, and its stream or None. Raises ``TypeError`` for a dtype that a box cannot have."""

    def refusal(name: str, expected: str) -> BufferError:
        return BufferError(f"{what}: {name} is {written(interface.get(name))}; the interface has {expected}")

    def is_integers(given: Any) -> bool:
        if not isinstance(given, (tuple, list)):
            return False
        for each in given:  # faster than all(): each launch with another library's array comes here
            if type(each) is not int and (isinstance(each, bool) or not isinstance(each, (int, np.integer))):
                return False
        return True

    shape: Any = interface.get("shape")
    strides: Any = interface.get("strides")
    data: Any = interface.get("data")
    if not is_integers(shape) or len(shape) > MOST_AXES:
        raise refusal("shape", f"a tuple of {MOST_AXES} ints at most")
    if strides is not None and not (is_integers(strides) and len(strides) == len(shape)):
        raise refusal("strides", f"None or a tuple of as many ints as the shape, {len(shape)}")
    if not isinstance(data, (tuple, list)) or len(data) != 2 or not is_integers(data[:1]) or data[0] < 0:
        raise refusal("data", "a pair of an address and whether it is read-only")
    try:
        dtype = np.dtype(interface.get("typestr"))
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or not dtype.itemsize or not isinstance(interface.get("typestr"), str):
        raise refusal("typestr", "a type as NumPy writes it, such as '<f4'")
    require_data(dtype, what)
    if data[1] or interface.get("mask") is not None:
        raise BufferError(f"{what}: a box can be written and has no mask, the array cannot or has")
    stream: Any = interface.get("stream")
    if stream is not None and not (is_integers((stream,)) and stream > 0):
        raise refusal("stream", "None or a stream's number, 1 for the default stream")
    sizes = tuple(map(int, shape))
    steps = None if strides is None else list(map(int, strides))
    return ForeignLayout(what, int(data[0]), sizes, steps, dtype), None if stream is None else int(stream)


def _known(runtime: Runtime, address: int, nbytes: int) -> Known | None:
    """Returns the allocation of the boxes that exist on this memory, or None. Raises ``BufferError`` for several."""
    known = runtime.shared_ranges.overlapping(address, nbytes) if nbytes else []
    if len(known) > 1:
        raise BufferError(
            f"the array's memory, {nbytes} bytes at {address:#x}, overlaps boxes that were imported one by one "
            f"({', '.join(each.allocation.label for each in known)}), whose uses are not ordered as one: import the "
            f"whole array first and then its pieces, or drop those boxes before"
        )
    return known[0] if known else None


def box_on(
    runtime: Runtime,
    layout: ForeignLayout,
    timeline: Timeline | None,
    take: Callable[[], object],
    what: str,
    *,
    written: bool,
    order: Callable[[Timeline], None] | None = None,
    first_use: Timeline | None = None,
) -> DeviceBox:
    """Returns a box on another library's memory. Its uses are ordered with those of other boxes on the same memory.
    ``take`` returns the object that keeps the memory alive.

    ``written`` is True if the box's uses must run after the library's work so far. Then either the library has made
    ``timeline`` wait for that work, or ``timeline`` is None and ``order`` makes a stream wait for that work. This
    stream is ``first_use``, if ``first_use`` is on the memory's device, and otherwise one that the policy picks.
    """
    if not runtime.reclaimer.idle:  # what is left of boxes that were dropped, as for a run
        runtime.reclaimer.sweep()
    known = _known(runtime, layout.low, layout.nbytes)
    covered = known is not None and runtime.shared_ranges.covers(known, layout.low, layout.nbytes)
    adopted = False
    device = runtime.default_device if timeline is None else timeline.device
    try:
        if layout.nbytes and not covered:
            ordinal = provided(runtime.driver.sharing, "sharing").adopt(layout.low, layout.nbytes)
            adopted = True
            found = device if ordinal == device.id else runtime.device(ordinal)
        else:
            found = known.allocation.device if known is not None else device
        if timeline is None:
            if first_use is not None and first_use.device is found:
                timeline = first_use
            else:
                timeline = picked_stream(runtime.policy, found)._timeline
        elif found is not device:
            raise BufferError(
                f"{what}: the array's memory is on {found.label}, and it says that it is on {device.label}"
            )
        if order is not None:
            order(timeline)
        owner = take()
    except BaseException:
        if adopted:
            provided(runtime.driver.sharing, "sharing").disown(layout.low, layout.nbytes)
        raise
    return _box(known, covered, timeline, layout, owner, written=written)


def _box(
    known: Known | None, covered: bool, timeline: Timeline, layout: ForeignLayout, owner: object, *, written: bool
) -> DeviceBox:
    shape, dtype, strides, offset = layout.shape, layout.dtype, layout.strides, layout.address - layout.low
    if known is None:
        use = (timeline, timeline.advance()) if written else None
        allocation = Allocation.of_another_library(timeline, layout.low, shape, dtype, None, use, layout.nbytes)
        box = DeviceBox(allocation, shape, dtype, offset, strides)
        box._become_known()
        if box._known is None:  # no range can be registered for no memory
            box._known = Known(allocation)
        box._known.owners = (owner,)
        return box
    runtime, allocation = timeline.device.runtime, known.allocation
    if not covered:
        known.owners += (owner,)
        allocation.extend(layout.low, layout.nbytes)
        runtime.shared_ranges.add(allocation, layout.low, layout.nbytes)
    if written:
        with runtime.submission:
            allocation.note_foreign_write(timeline)
    box = DeviceBox(allocation, shape, dtype, layout.address - allocation.address, strides)
    box._known = known
    return box


def _announced_device(x: Any) -> tuple[int, int]:
    """Returns the device that an array announces. Raises ``BufferError`` for an invalid answer."""
    try:
        found = x.__dlpack_device__()
    except (BufferError, OxideError):
        raise
    except Exception as error:
        raise BufferError(f"from_dlpack: __dlpack_device__ failed: {type(error).__name__}: {error}") from error
    if type(found) is tuple and len(found) == 2 and type(found[0]) is type(found[1]) is int:  # the common case
        return found
    if not _is_pair(found):
        raise BufferError(
            f"from_dlpack: __dlpack_device__ gave {written(found):.80}; it must be a pair of ints, a device's type "
            "and its number"
        )
    return int(found[0]), int(found[1])


def _is_pair(given: object) -> bool:
    """Returns whether an object is a pair of ints."""
    return (
        isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[0], int) and isinstance(given[1], int)
    )


def _ask(x: Any, **stream: int) -> Any:
    try:
        try:
            if not stream:  # a separate call: expanding an empty "**" takes as long as the array's method
                return x.__dlpack__(max_version=VERSION)
            return x.__dlpack__(max_version=VERSION, **stream)
        except TypeError:  # the library implements DLPack before version 1, which has no max_version
            return x.__dlpack__(**stream)
    except (BufferError, OxideError):
        raise
    except Exception as error:
        raise BufferError(f"from_dlpack: __dlpack__ failed: {type(error).__name__}: {error}") from error


def box_of(
    pointer: DevicePointer | int, shape: object, dtype: ScalarType | np.dtype[Any] | type | str, owner: object
) -> DeviceBox:
    """Returns a box on raw memory: see ``DeviceBox.from_raw_parts``."""
    sizes = parse_shape(shape, _RAW_PARTS)
    resolved = as_dtype(dtype, _RAW_PARTS)
    require_data(resolved, _RAW_PARTS)
    nbytes = number_of_elements(sizes) * resolved.itemsize
    if isinstance(pointer, DevicePointer):
        if owner is not None:
            raise TypeError(
                f"{_RAW_PARTS}: owner is {written(owner)}, and the pointer is a DevicePointer, which keeps its memory "
                f"itself; leave owner out"
            )
        return _part(pointer._allocation, pointer._offset, sizes, resolved, nbytes, pointer._known)
    if isinstance(pointer, bool) or not hasattr(pointer, "__index__"):
        raise TypeError(
            f"{_RAW_PARTS}: the pointer is {written(pointer)}; it must be a DevicePointer, of ctx.malloc_async, or an "
            f"address, an int with owner="
        )
    address = operator.index(pointer)
    if owner is None:
        raise TypeError(
            f"{_RAW_PARTS}: nothing would keep the memory at {written(address)}: pass owner=, the object that frees "
            f"the memory when it is dropped"
        )
    inner = owner.value if isinstance(owner, Arc) else owner
    if isinstance(inner, (DeviceBox, DevicePointer)):  # oxide's own memory
        allocation = inner._allocation
        return _part(allocation, address - allocation.address, sizes, resolved, nbytes, inner._known)
    if isinstance(inner, np.ndarray):
        _require_inside(inner, address, nbytes)
    return _foreign(address, sizes, resolved, nbytes, owner)


def _require_inside(array: np.ndarray[Any, Any], address: int, nbytes: int) -> None:
    """Checks the ``nbytes`` bytes at ``address`` if they begin inside of ``array``: raises ``ValueError`` if they end
    after the array, or if the array is read-only."""
    first, after = byte_bounds(array)
    if not first <= address < after:
        return  # an array may keep other memory alive
    if address + nbytes > after:
        raise ValueError(
            f"{_RAW_PARTS}: {byte_count(nbytes)} at byte {address - first} overrun the owner, an array of "
            f"{byte_count(after - first)}"
        )
    if not array.flags.writeable:
        raise ValueError(f"{_RAW_PARTS}: the owner is a read-only array, and boxes can be written: pass a copy")


def _part(
    allocation: Allocation,
    offset: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    nbytes: int,
    known: Known | None,
) -> DeviceBox:
    """Returns a box on a part of an allocation. Raises ``ValueError`` if the part does not lie inside the allocation or
    is not aligned."""
    what = f"{_RAW_PARTS}: {'x'.join(map(str, shape)) or 'a scalar'} {dtype_name(dtype)}, {byte_count(nbytes)}"
    if offset < 0 or offset + nbytes > allocation.nbytes:
        raise ValueError(
            f"{what}, at byte {offset} overruns the allocation of {byte_count(allocation.nbytes)} that the pointer "
            f"points into; allocate more, or give a smaller shape"
        )
    if nbytes and (allocation.address + offset) % dtype.alignment:
        raise ValueError(f"{what}, begins at byte {offset}, and its elements lie at multiples of {dtype.alignment}")
    box = DeviceBox(allocation, shape, dtype, offset)
    box._known = known
    return box


def _foreign(address: int, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int, owner: object) -> DeviceBox:
    """Returns a box on memory that ``owner`` keeps alive. Raises ``DeviceError`` for unregistered memory of oxide's
    own: two allocations on it would have two histories. On registered memory, the box shares the existing
    allocation."""
    runtime = current_runtime()
    layout = ForeignLayout(_RAW_PARTS, address, shape, None, dtype)
    if nbytes and not runtime.shared_ranges.overlapping(address, nbytes):
        for device in runtime.devices:
            for begin, (size, *_) in list(device.live.items()):
                if begin < address + nbytes and address < begin + size:
                    raise DeviceError(
                        f"{_RAW_PARTS}: {byte_count(nbytes)} at {address:#x} lie in a box of oxide's own, whose uses "
                        f"are ordered with the box: pass the DevicePointer, or the box as owner="
                    )
    return box_on(runtime, layout, None, lambda: owner, _RAW_PARTS, written=False)


# The methods of DeviceBox


def dlpack_device(device: Device) -> tuple[int, int]:
    """Returns DLPack's type and number of a device. All memory of CPU devices is host memory, of number 0."""
    return (CUDA, device.id) if device.kind == "cuda" else (CPU, 0)


def to_dlpack(
    box: DeviceBox,
    stream: int | None,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> object:
    """Returns a DLPack capsule of a box. See ``DeviceBox.__dlpack__``."""
    _require_pair("max_version", max_version)
    _require_pair("dl_device", dl_device)
    if copy:
        raise BufferError("a box is exported without a copy only; dup(box) copies it")
    if dl_device is not None and tuple(dl_device) != dlpack_device(box.device):
        raise BufferError(f"the box is on {box.device.label}, not on DLPack device {dl_device}; d2h copies it")
    dlpack.require_code(box.dtype)
    if stream is not None and (isinstance(stream, bool) or not isinstance(stream, int)):
        raise TypeError(f"__dlpack__: stream is {written(stream)}; it must be a stream's number, or None")
    if box.device.kind == "cuda":
        if stream == 0:
            raise BufferError("stream 0 is ambiguous: pass 1 for the legacy default stream, 2 for the thread's own")
        if stream is not None and stream < _NO_SYNCHRONISATION:
            raise BufferError(f"stream {written(stream)} is none; pass -1 for no synchronisation")
        if stream != _NO_SYNCHRONISATION:
            theirs = box.device.foreign_timeline(_LEGACY_DEFAULT_STREAM if stream is None else stream)
            _order_after_uses(box, theirs)
        box._become_known().exported = True
    elif stream is not None:
        raise BufferError(f"a box on {box.device.label} is host memory, which has no stream; pass stream=None")
    else:
        _give_to_host(box)
    versioned = max_version is not None and max_version[0] >= VERSION[0]
    return dlpack.export(box, dlpack_device(box.device), versioned=versioned)


def _require_pair(name: str, given: object) -> None:
    if given is not None and not _is_pair(given):
        raise TypeError(f"__dlpack__: {name} is {written(given)}; it must be a tuple of two ints, or None")


def cuda_array_interface(box: DeviceBox) -> dict[str, Any]:
    """Returns version 3 of the interface of a box. Its ``stream`` is the stream that the consumer must wait for, or
    None if no use of the box is pending. Raises ``AttributeError`` for a box on the CPU device, and for a dtype that
    the interface has no type for."""
    if box.device.kind != "cuda":
        raise AttributeError(f"a box on {box.device.label} has __dlpack__ and host_view()")
    if box.dtype.isbuiltin == REGISTERED:  # its typestr, <V2, is that of any two bytes
        raise AttributeError(f"__cuda_array_interface__ has no type for {box.dtype}; a box has __dlpack__ too")
    pending = [use for use in _uses(box) if not use[0].passed(use[1])]
    stream = None
    if pending:
        timeline = pending[0][0]
        for other, position in pending[1:]:
            timeline.wait_for(other, position, "memory is given to another library")
        stream = timeline.name()
    box._become_known().exported = True
    return {**_description(box), "stream": stream, "version": 3}


class _HostMemory:
    """A box's memory as NumPy reads it, by version 3 of ``__array_interface__``. The NumPy array keeps this object
    alive, and so the box."""

    def __init__(self, box: DeviceBox, readonly: bool) -> None:
        self._box = box
        self.__array_interface__ = {**_description(box, readonly), "version": 3}


def host_array(box: DeviceBox, *, readonly: bool = False) -> NDArray[Any]:
    """Returns an array on the memory of a box on the CPU device, once the box's uses have ended."""
    if readonly:
        box._become_known()
        _wait_for_uses(box)
    else:
        _give_to_host(box)
    array: NDArray[Any] = np.asarray(_HostMemory(box, readonly))
    return array.view(box.dtype)  # for a structured dtype, the interface gives only its size


def _give_to_host(box: DeviceBox) -> None:
    """Waits for the uses of a box on the CPU device, whose memory the host may write from now on."""
    box._become_known()
    _wait_for_uses(box)
    sanitizer = box.device.driver.sanitizer
    if box.nbytes and sanitizer is not None:
        low, high = box._span()
        sanitizer.expose(low, high - low)


def _description(box: DeviceBox, readonly: bool = False) -> dict[str, Any]:
    strides = None if box.is_contiguous else box.strides
    dtype = box.dtype
    typestr = f"|V{dtype.itemsize}" if dtype.isbuiltin == REGISTERED else dtype.str
    return {"shape": box.shape, "typestr": typestr, "data": (box.ptr, readonly), "strides": strides}


def _uses(box: DeviceBox) -> tuple[tuple[Timeline, int], ...]:
    with box.device.runtime.submission:
        return box._allocation.uses()


def _order_after_uses(box: DeviceBox, timeline: Timeline) -> None:
    for other, position in _uses(box):
        timeline.wait_for(other, position, "memory is given to another library")


def _wait_for_uses(box: DeviceBox) -> None:
    for timeline, position in _uses(box):
        if not timeline.passed(position):
            (timeline.covering(position) or timeline.mark()).synchronize()
