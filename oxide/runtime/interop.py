"""Memory shared with other libraries without a copy: DLPack, ``__cuda_array_interface__``, ``__array_interface__``.

Out: the consumer's stream is made to wait for the box's uses so far (on the CPU device, the calling thread). In: the
producer makes one of oxide's streams wait for its own, and from there every use of the box is ordered as usual. What
either side does with the memory afterwards the other cannot see: oxide's own side is declared with ``ctx.reads`` and
``ctx.writes``. Two boxes on one memory, however it came, have one history (``address_ranges.py``). The capsule is built
with ctypes on the structures of DLPack 1.0, or on those before it for a consumer that does not say it takes them.
"""

from __future__ import annotations

import ctypes
import math
import threading
from functools import cache, partial
from typing import TYPE_CHECKING, Any, final

import numpy as np

from oxide.dropping import calls_drop, nothing
from oxide.errors import DeviceError
from oxide.host_arrays import refuse_masked
from oxide.messages import written
from oxide.runtime import reclaim
from oxide.runtime.context import current_runtime
from oxide.runtime.memory import Allocation, DeviceBox
from oxide.runtime.operation import picked_stream

if TYPE_CHECKING:
    from oxide.runtime.address_ranges import Known
    from oxide.runtime.context import Device, Runtime
    from oxide.runtime.timeline import Timeline

_CPU, _CUDA = 1, 2  # DLDeviceType
_NO_SYNCHRONISATION = -1
_LEGACY_DEFAULT_STREAM = 1

# DLDataTypeCode and NumPy's kinds. bfloat16 comes in as uint16, the type of its storage.
_CODE_OF_KIND = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_KIND_OF_CODE = {0: "i", 1: "u", 2: "f", 4: "u", 5: "c", 6: "b"}


def from_dlpack(x: Any) -> DeviceBox:
    """A box on the memory of another library's array, without a copy; ``x`` has ``__dlpack__``.

    The array must be C-contiguous, on a device of the runtime's: a CUDA array with CUDA, a host array (NumPy's, say)
    on the CPU device. Its memory is kept until the box is dropped and no longer in use. Uses of the array by its own
    library after this call are that library's to order. Raises ``TypeError`` for what has no ``__dlpack__``,
    ``BufferError`` for memory of another layout, ``DeviceError`` for another kind of device, ``ValueError`` for a
    masked array in which something is masked.
    """
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise TypeError(f"from_dlpack takes an array with __dlpack__, not {type(x).__name__}")
    refuse_masked(x, "from_dlpack")
    runtime = current_runtime()
    kind, number = (int(part) for part in x.__dlpack_device__())
    wanted = _CUDA if runtime.driver.name == "cuda" else _CPU
    if kind != wanted:
        raise DeviceError(
            f"from_dlpack: the array is on DLPack device type {kind}, and the runtime's devices are "
            f"{runtime.driver.name} devices (type {wanted}); copy it to the host and use h2d"
        )
    if kind == _CPU:
        tensor = _Imported(_ask(x))
        return tensor.box(runtime, None)
    timeline = picked_stream(runtime.policy, runtime.device(number))._timeline
    tensor = _Imported(_ask(x, stream=timeline.name()))
    return tensor.box(runtime, timeline)


def from_cuda_array_interface(x: Any) -> DeviceBox:
    """A box on the memory of an object with ``__cuda_array_interface__``, without a copy; as ``from_dlpack``.

    Where the interface names a stream, uses of the box wait for what that stream holds now.
    """
    interface = getattr(x, "__cuda_array_interface__", None)
    if not isinstance(interface, dict):
        raise TypeError(f"from_cuda_array_interface takes an object with the interface, not {type(x).__name__}")
    runtime = current_runtime()
    if runtime.driver.name != "cuda":
        raise DeviceError("from_cuda_array_interface: the runtime's devices are no CUDA devices; set OXIDE_DEVICE=cuda")
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    address, read_only = interface["data"]
    _require_contiguous(shape, interface.get("strides"), dtype.itemsize)
    if read_only or interface.get("mask") is not None:
        raise BufferError("from_cuda_array_interface: a box can be written and has no mask, the array cannot or has")
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    address = address if nbytes else 0
    known = _known(runtime, address, nbytes)
    device = _device_of(runtime, address, nbytes, known)
    timeline = picked_stream(runtime.policy, device)._timeline
    if interface.get("stream") is not None:
        theirs = device.foreign_timeline(int(interface["stream"]))
        timeline.wait_for(theirs, theirs.mark().position)
        theirs.forget_marks()
    return _box_on(known, timeline, address, shape, dtype, x, written=True)


def _known(runtime: Runtime, address: int, nbytes: int) -> Known | None:
    """The allocation that other boxes on this memory have. Raises ``BufferError`` where they have several."""
    known = runtime.shared_ranges.overlapping(address, nbytes) if nbytes else []
    if len(known) > 1:
        raise BufferError(
            f"the array's memory, {nbytes} bytes at {address:#x}, overlaps boxes that were imported one by one "
            f"({', '.join(each.allocation.label for each in known)}), whose uses are not ordered as one: import the "
            f"whole array first and then its pieces, or drop those boxes before"
        )
    return known[0] if known else None


def _device_of(runtime: Runtime, address: int, nbytes: int, known: Known | None) -> Device:
    """The device of an array's memory, which its driver has adopted then unless a box is on it."""
    if not nbytes:
        return runtime.default_device
    if known is not None and runtime.shared_ranges.covers(known, address, nbytes):
        return known.allocation.device
    return runtime.device(runtime.driver.adopt(address, nbytes))


def _box_on(
    known: Known | None,
    timeline: Timeline,
    address: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    owner: object,
    *,
    written: bool,
) -> DeviceBox:
    """A box on another library's memory, ordered as one with other boxes on it. ``written``: the library has made
    ``timeline`` wait for its work."""
    runtime = timeline.device.runtime
    if known is None:
        use = (timeline, timeline.advance()) if written else None
        box = DeviceBox(Allocation.of_another_library(timeline, address, shape, dtype, owner, use), shape, dtype)
        box._become_known()
        return box
    allocation, nbytes = known.allocation, math.prod(shape) * dtype.itemsize
    if not runtime.shared_ranges.covers(known, address, nbytes):
        allocation.extend(address, nbytes, owner)
        runtime.shared_ranges.add(allocation, address, nbytes)
    if written:
        with runtime.submission:
            allocation.note_foreign_write(timeline)
    box = DeviceBox(allocation, shape, dtype, address - allocation.address)
    box._known = known
    return box


def _ask(x: Any, **stream: int) -> Any:
    try:
        return x.__dlpack__(max_version=_VERSION, **stream)
    except TypeError:  # from before version 1, which brought the argument
        return x.__dlpack__(**stream)


# What DeviceBox offers


def dlpack_device(device: Device) -> tuple[int, int]:
    """DLPack's name for a device. All memory of CPU devices is host memory."""
    return (_CUDA, device.id) if device.kind == "cuda" else (_CPU, 0)


def to_dlpack(
    box: DeviceBox,
    stream: int | None,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> object:
    """The capsule. See ``DeviceBox.__dlpack__``."""
    _require_pair("max_version", max_version)
    _require_pair("dl_device", dl_device)
    if copy:
        raise BufferError("a box is exported without a copy only; dup(box) copies it")
    if dl_device is not None and tuple(dl_device) != dlpack_device(box.device):
        raise BufferError(f"the box is on {box.device.label}, not on DLPack device {dl_device}; d2h copies it")
    if box.dtype.kind not in _CODE_OF_KIND:
        raise BufferError(f"DLPack has no type for {box.dtype}")
    if box.device.kind == "cuda":
        if stream == 0:
            raise BufferError("stream 0 is ambiguous: pass 1 for the legacy default stream, 2 for the thread's own")
        if stream != _NO_SYNCHRONISATION:
            theirs = box.device.foreign_timeline(_LEGACY_DEFAULT_STREAM if stream is None else stream)
            _order_after_uses(box, theirs)
        box._become_known().exported = True
    elif stream is not None:
        raise BufferError(f"a box on {box.device.label} is host memory, which has no stream; pass stream=None")
    else:
        box._become_known()
        _wait_for_uses(box)
    versioned = max_version is not None and max_version[0] >= _VERSION[0]
    return _export(box, b"dltensor_versioned" if versioned else b"dltensor")


def _require_pair(name: str, given: object) -> None:
    if given is not None and not (
        isinstance(given, (tuple, list)) and len(given) == 2 and all(isinstance(part, int) for part in given)
    ):
        raise TypeError(f"__dlpack__: {name} is {written(given)}; it must be a tuple of two ints, or None")


def cuda_array_interface(box: DeviceBox) -> dict[str, Any]:
    """Version 3: its stream is the one to wait for, None where nothing is pending."""
    if box.device.kind != "cuda":
        raise AttributeError(f"a box on {box.device.label} has __array_interface__")
    pending = [use for use in _uses(box) if not use[0].passed(use[1])]
    stream = None
    if pending:
        timeline = pending[0][0]
        for other, position in pending[1:]:
            timeline.wait_for(other, position)
        stream = timeline.name()
    box._become_known().exported = True
    return {**_description(box), "stream": stream, "version": 3}


def array_interface(box: DeviceBox) -> dict[str, Any]:
    """Version 3; waits for the box's uses."""
    if box.device.kind != "cpu":
        raise AttributeError(f"a box on {box.device.label} has __cuda_array_interface__; d2h copies it to the host")
    box._become_known()
    _wait_for_uses(box)
    return {**_description(box), "version": 3}


def _description(box: DeviceBox) -> dict[str, Any]:
    return {"shape": box.shape, "typestr": box.dtype.str, "data": (box.ptr, False), "strides": None}


def _uses(box: DeviceBox) -> tuple[tuple[Timeline, int], ...]:
    with box.device.runtime.submission:
        return box._allocation.uses()


def _order_after_uses(box: DeviceBox, timeline: Timeline) -> None:
    for other, position in _uses(box):
        timeline.wait_for(other, position)


def _wait_for_uses(box: DeviceBox) -> None:
    for timeline, position in _uses(box):
        if not timeline.passed(position):
            (timeline.covering(position) or timeline.mark()).synchronize()


# The capsule


class _Tensor(ctypes.Structure):
    """``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """``DLManagedTensor``, of DLPack before 1.0."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedVersioned(ctypes.Structure):
    """``DLManagedTensorVersioned``, of DLPack 1.x. Consumers take it for memory that they may write."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_READ_ONLY = 1  # in flags
_VERSION = (1, 0)

_KINDS: dict[bytes, tuple[type[_Managed] | type[_ManagedVersioned], bytes]] = {
    b"dltensor": (_Managed, b"used_dltensor"),
    b"dltensor_versioned": (_ManagedVersioned, b"used_dltensor_versioned"),
}
_python = ctypes.pythonapi
# A capsule keeps the pointer to its name: these are never freed.
_USED = {entry[1]: ctypes.create_string_buffer(entry[1]) for entry in _KINDS.values()}
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_New", _python)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _python))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _python))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(("PyCapsule_SetName", _python))

_HEADER_BYTES = 32

_exported: dict[int, tuple[Any, Any, DeviceBox]] = {}  # by the address of the tensor


def _export(box: DeviceBox, name: bytes) -> object:
    kind = _KINDS[name][0]
    collect_exported()
    # The capsule's name, a word for the list of those that are done, and the tensor.
    memory = ctypes.create_string_buffer(name, _HEADER_BYTES + ctypes.sizeof(kind))
    ctypes.c_int64.from_buffer(memory, _HEADER_BYTES - 8).value = -1
    managed: Any = kind.from_buffer(memory, _HEADER_BYTES)
    if name != b"dltensor":
        managed.major, managed.minor = _VERSION
    tensor = managed.tensor
    # Strides too: consumers were slow to take the null pointer that means C-contiguous.
    strides = [1] * len(box.shape)
    for axis in range(len(box.shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * box.shape[axis + 1]
    numbers = (ctypes.c_int64 * (2 * len(box.shape)))(*box.shape, *strides)
    tensor.data = box.ptr
    tensor.device_type, tensor.device_id = dlpack_device(box.device)
    tensor.ndim = len(box.shape)
    tensor.code, tensor.bits, tensor.lanes = _CODE_OF_KIND[box.dtype.kind], 8 * box.dtype.itemsize, 1
    start = ctypes.addressof(numbers)
    tensor.shape = ctypes.cast(start, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(start + 8 * len(box.shape), ctypes.POINTER(ctypes.c_int64))
    managed.deleter, drop_capsule = _functions()
    address = ctypes.addressof(managed)
    _exported[address] = (memory, numbers, box)
    return _new_capsule(address, address - _HEADER_BYTES, drop_capsule)


_done = ctypes.c_int64(0)
"""The tensor that was done last, 0 for none; the word before it has the one before. Those up to ``_collected`` have
been collected, and the memory of that one is kept, so that no other tensor gets its address."""
_collected: tuple[int, Any] = (0, None)
_graves: dict[int, Any] = {}
_collecting = threading.Lock()


def collect_exported() -> None:
    """Lets go of the boxes that consumers are done with. May be interrupted at any place."""
    global _collected
    if _collecting.locked():  # by another thread, or by this one, in which the garbage collector runs
        return
    with _collecting:
        last = _done.value
        tensor = last
        while tensor != _collected[0]:
            _graves[tensor] = _exported.get(tensor)
            tensor = ctypes.c_int64.from_address(tensor - 8).value
        if last != _collected[0]:
            _collected = last, _graves[last][0]
        for tensor in list(_graves):
            _exported.pop(tensor, None)
        _graves.clear()


reclaim.collectors.append(collect_exported)

_IR = """
define void @oxide_done(ptr %tensor) {{
  %word = getelementptr i8, ptr %tensor, i64 -8
  %own = ptrtoint ptr %tensor to i64
  %state = load i64, ptr %word
  %alive = icmp eq i64 %state, -1
  br i1 %alive, label %again, label %end
again:
  %before = load atomic i64, ptr inttoptr (i64 {done} to ptr) monotonic, align 8
  store i64 %before, ptr %word
  %pair = cmpxchg ptr inttoptr (i64 {done} to ptr), i64 %before, i64 %own seq_cst monotonic
  %taken = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %taken, label %end, label %again
end:
  ret void
}}
define void @oxide_drop_capsule(ptr %capsule) {{
  %name = call ptr inttoptr (i64 {get_name} to ptr)(ptr %capsule)
  %tensor = call ptr inttoptr (i64 {get_pointer} to ptr)(ptr %capsule, ptr %name)
  %own_name = getelementptr i8, ptr %tensor, i64 -{header}
  %unused = icmp eq ptr %name, %own_name
  br i1 %unused, label %done, label %end
done:
  call void @oxide_done(ptr %tensor)
  br label %end
end:
  ret void
}}
"""


@cache
def _functions() -> tuple[int, int]:
    """The addresses of the tensor's deleter and the capsule's destructor: the consumer is done, from any thread and at
    any moment; and the capsule dies, which a consumer that took the tensor has renamed.

    They are native. A function of Python's would not do, however it is called: an interrupt in it would be lost, and so
    would the exception on whose way an array is dropped.
    """
    from oxide.compiler.native import compile_host_function

    get_name, get_pointer = (
        ctypes.cast(function, ctypes.c_void_p).value
        for function in (_python.PyCapsule_GetName, _python.PyCapsule_GetPointer)
    )
    done = ctypes.addressof(_done)
    ir = _IR.format(done=done, get_name=get_name, get_pointer=get_pointer, header=_HEADER_BYTES)
    made = [compile_host_function(ir, name) for name in ("oxide_done", "oxide_drop_capsule")]
    _kept.extend(made)
    return made[0][0], made[1][0]


_kept: list[Any] = []


@final
class _Imported:
    """Another library's tensor, which is let go when this is dropped."""

    def __init__(self, capsule: Any) -> None:
        self._drop: Any = nothing
        name = next((name for name in _KINDS if _is_valid(id(capsule), name)), None)
        if name is None:
            raise BufferError("from_dlpack: __dlpack__ gave no DLPack capsule that nobody has used yet")
        kind, used = _KINDS[name]
        address = _pointer(id(capsule), name)
        self._managed: Any = kind.from_address(address)
        if self._managed.deleter:
            self._drop = partial(_Deleter(self._managed.deleter), address)
        _rename(capsule, ctypes.addressof(_USED[used]))
        if isinstance(self._managed, _ManagedVersioned):
            if self._managed.major != _VERSION[0]:
                raise BufferError(f"from_dlpack: a tensor of DLPack version {self._managed.major}; 1 is understood")
            if self._managed.flags & _READ_ONLY:
                raise BufferError("from_dlpack: the array is read-only, and a box can be written; use h2d")

    def box(self, runtime: Runtime, timeline: Timeline | None) -> DeviceBox:
        """A box on it. The producer has made ``timeline`` wait for its work; None on the CPU device."""
        tensor = self._managed.tensor
        shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
        if tensor.lanes != 1 or tensor.code not in _KIND_OF_CODE or tensor.bits % 8:
            raise BufferError(f"from_dlpack: no dtype for code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes")
        dtype = np.dtype(f"{_KIND_OF_CODE[tensor.code]}{tensor.bits // 8}")
        strides = [tensor.strides[axis] for axis in range(tensor.ndim)] if tensor.strides else None
        _require_contiguous(shape, strides, 1)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        address = (tensor.data or 0) + tensor.byte_offset if nbytes else 0
        known = _known(runtime, address, nbytes)
        device = _device_of(runtime, address, nbytes, known)
        home = picked_stream(runtime.policy, device)._timeline if timeline is None else timeline
        return _box_on(known, home, address, shape, dtype, self, written=timeline is not None)

    def __del__(self) -> None:
        self._drop()


calls_drop(_Imported)


def _require_contiguous(shape: tuple[int, ...], strides: Any, unit: int) -> None:
    """Raises ``BufferError`` unless strides, in ``unit`` per element, are those of a C-contiguous array."""
    if strides is None or 0 in shape:
        return
    expected = unit
    for size, stride in zip(reversed(shape), reversed(list(strides)), strict=True):
        if size > 1 and stride != expected:
            raise BufferError(f"an array of shape {shape} and strides {tuple(strides)} is not C-contiguous; copy it")
        expected *= size
