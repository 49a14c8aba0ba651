"""Device memory that records its uses.

An allocation remembers its last write and the reads since then, each with its stream and its place on that stream. That
is enough to order any two operations on any two streams, and to free the memory only after its last use.
"""

from __future__ import annotations

import math
import operator
import struct
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn, SupportsIndex, final

import numpy as np

from oxide import core
from oxide.compiler.signature.untyped_arguments import of_box
from oxide.errors import DeviceError, OrderingError, OutOfMemoryError
from oxide.language.types import of_dtype
from oxide.locks import refuse_inside
from oxide.messages import byte_count, dtype_name, written
from oxide.runtime.device.out_of_memory import allocate_when_free
from oxide.runtime.device.reclaim import dropped
from oxide.runtime.device.strides import Geometry, contiguous_strides, indexed, is_contiguous, span
from oxide.runtime.tracepoints import points

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxide.language.types import ScalarType
    from oxide.runtime.device.address_ranges import Known
    from oxide.runtime.device.partition import Partition
    from oxide.runtime.device.pointer import DevicePointer
    from oxide.runtime.device.runtime import Device
    from oxide.runtime.device.timeline import Timeline

_NUMBERS: Final = "biufc"  # the kinds of NumPy's numbers
_BYTE: Final[np.dtype[Any]] = np.dtype(np.uint8)


@final
class Allocation(core.Allocation):
    """A piece of device memory and its uses. Methods that order or record uses must be called with the runtime's
    submission lock held.

    ``address`` is 0 while there is no memory, ``adopted`` is True for another library's. ``owners`` has the address,
    the size and the owner of each range of such memory. ``known`` is a weak reference to the allocation's entry in
    ``address_ranges``. ``reads`` are the reads since the last write, by stream. ``claims`` are declared uses whose work
    is being submitted. ``visible`` is the token of the run that made it, if that run may be dropped."""

    __slots__ = ()

    def __init__(
        self, timeline: Timeline, nbytes: int, shape: tuple[int, ...] = (), dtype: np.dtype[Any] | None = None
    ) -> None:
        """Creates an allocation without memory: see ``obtain``. Messages name it by ``shape`` and ``dtype``."""
        if nbytes > sys.maxsize:
            raise OutOfMemoryError(f"{timeline.device.label} has no room for {nbytes} bytes: no memory is as large")
        self.device = timeline.device
        self.home = timeline
        self.nbytes = nbytes
        self.shape = shape
        self.dtype = dtype
        self.owners = ()
        self.claims = ()

    def obtain(self) -> None:
        """Allocates the memory on the stream of ``home``. This counts as the first write, so other streams wait for it.

        If the device is out of memory, frees dropped memory, waits for the work that uses it, and tries again
        (``out_of_memory``). Raises ``OutOfMemoryError`` with a list of the boxes that take the memory. Call it without
        the submission lock.
        """
        timeline, nbytes = self.home, self.nbytes
        if nbytes:
            try:  # assigned in the same statement, so that an interrupt cannot leak the address
                self.address = timeline.driver.allocate(nbytes, timeline.handle)
            except OutOfMemoryError:
                self.obtain_when_free()
            else:
                self._obtained()

    def obtain_when_free(self) -> None:
        """Does what ``obtain`` does after the driver has found no memory."""
        self.address = allocate_when_free(self.home, self.nbytes)
        self._obtained()

    def _obtained(self) -> None:
        self.note_write(self.home, self.home.advance())
        self.device.live[self.address] = (self.nbytes, self.shape, self.dtype)

    @staticmethod
    def of_another_library(
        timeline: Timeline,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        owner: object,
        written: tuple[Timeline, int] | None,
        nbytes: int,
    ) -> Allocation:
        """Returns an allocation for memory that ``owner`` keeps alive, None if the allocation's entry in
        ``address_ranges`` keeps the owner. ``written`` is the timeline and position of the last write, or None if the
        device is past that write. The driver must have adopted the memory."""
        allocation = Allocation(timeline, nbytes, shape, dtype)
        allocation.adopted = True
        allocation.owners = ((address, allocation.nbytes, owner),)
        allocation.address = address
        if written is not None:
            allocation.note_write(*written)
        return allocation

    def known_to_others(self) -> Known | None:
        """Returns the allocation's entry in ``address_ranges``, or None. The entry stays there as long as the returned
        object is referenced."""
        return self.known() if self.known is not None else None

    def extend(self, address: int, nbytes: int) -> None:
        """Adds another library's memory that overlaps this allocation. Its uses are ordered with this allocation's uses
        from now on."""
        self.owners += ((address, nbytes, None),)

    def note_foreign_write(self, timeline: Timeline) -> None:
        """Records that another library made ``timeline`` wait for its work on this memory. Later uses run after that
        work."""
        for other, position in self.uses():
            timeline.wait_for(other, position)
        self.note_write(timeline, timeline.advance())

    def order_read(self, timeline: Timeline) -> None:
        """Makes a stream wait for the last write. Raises ``OrderingError`` if strict ordering forbids the wait, or if
        another stream has claimed the memory for writing."""
        if self.claims:
            self._refuse_claimed(timeline, writes=False)
        self._after_write(timeline, "read")

    def order_write(self, timeline: Timeline) -> None:
        """Makes a stream wait for the last write and for the reads since. Raises ``OrderingError`` if strict ordering
        forbids the wait, or if another stream has claimed the memory."""
        if self.claims:
            self._refuse_claimed(timeline, writes=True)
        if self.written_by is not timeline:
            self._after_write(timeline, "written")
        for reader, position in self.reads.items():
            if reader is not timeline:
                self._wait(timeline, reader, position, "written", "read")

    def claim(self, timeline: Timeline, *, writes: bool) -> None:
        """Declares that from now until ``settle`` the memory is used on ``timeline`` by work unknown to oxide.
        ``writes`` tells whether this work may write."""
        self.claims += ((timeline, writes),)

    def settle(self, timeline: Timeline, position: int, *, writes: bool) -> None:
        """Ends a claim and records the claimed use. All work of the claim must precede ``position``."""
        self._end_claim(timeline, writes)
        (self.note_write if writes else self.note_read)(timeline, position)

    def _end_claim(self, timeline: Timeline, writes: bool) -> None:
        claims = list(self.claims)
        claims.remove((timeline, writes))
        self.claims = tuple(claims)

    def uses(self) -> tuple[tuple[Timeline, int], ...]:
        """Returns the last write and the reads since, each as a timeline and a position."""
        written = () if self.written_by is None else ((self.written_by, self._written_at),)
        return (*written, *self.reads.items()) if self.reads else written

    def is_held(self) -> bool:
        """Returns whether there is memory to free."""
        return self.address != 0

    def uses_away(self) -> tuple[tuple[Timeline, int], ...]:
        """Returns ``uses``, or an empty tuple if every use was on the allocation's own stream and the memory was never
        exported: a free that is submitted to this stream then runs after all uses."""
        home = self.home
        at_home = self.written_by is home and (not self.reads or (len(self.reads) == 1 and home in self.reads))
        return () if at_home and not self.exported else self.uses()

    def _after_write(self, timeline: Timeline, use: str) -> None:
        other = self.written_by
        if other is None or other is timeline:
            return
        if self._written_at <= other.seen:  # as ``wait_for`` checks, without the call: most uses are over
            self.device.runtime.counters.waits_avoided.add()
        else:
            self._wait(timeline, other, self._written_at, use, "written")

    def _wait(self, timeline: Timeline, other: Timeline, position: int, use: str, earlier: str) -> None:
        if self.device.runtime.ordering == "strict" and not timeline.is_after(other, position):
            raise OrderingError(
                f"{self.label} is {use} on {timeline.label} and was {earlier} on {other.label}, and nothing orders the "
                f"two: run both on one stream, await or synchronise the earlier one, or join the streams; "
                f"OXIDE_ORDERING=wait makes the later one wait by itself"
            )
        if timeline.wait_for(other, position):
            tracer = points.tracer
            if tracer is not None:
                tracer.caused(f"memory is {use} that was {earlier} on the other stream")

    def _refuse_claimed(self, timeline: Timeline, *, writes: bool) -> None:
        for claimant, claims_write in self.claims:
            if claimant is not timeline and (writes or claims_write):
                raise OrderingError(
                    f"{self.label} would be {'written' if writes else 'read'} on {timeline.label} while an operation "
                    f"that declared {'ctx.writes' if claims_write else 'ctx.reads'} of it is still being submitted to "
                    f"{claimant.label}: start one after the other has been submitted, or give each its own box"
                )

    @property
    def label(self) -> str:
        """Returns the allocation's name for messages."""
        shape = "x".join(map(str, self.shape)) or "scalar"
        what = f"{shape} {dtype_name(self.dtype)}" if self.dtype else f"{self.nbytes} bytes"
        return f"box {what} at {self.address:#x}"


def number_of_elements(shape: tuple[int, ...]) -> int:
    """Returns ``math.prod(shape)``, in less time for the few axes of a box."""
    number = 1
    for size in shape:
        number *= size
    return number


@final
class BoxArgument:
    """A box as an argument of a kernel without annotations, in numba-cuda's form: its type, its parameter bytes, and
    its part of a specialization's key, ``kind``."""

    __slots__ = ("kind", "type", "words")

    def __init__(self, box: DeviceBox) -> None:
        strided = box._strides is not None
        self.kind: Any = (box._dtype, len(box._shape), strided)
        self.type: Any = of_box(box._dtype, len(box._shape), strided)
        self.words: bytes = struct.pack(f"@{self.type.format}", *self.type.flatten(box))


@final
class DeviceBox(core.DeviceBox):
    """An array in device memory, of one dtype. Its memory is freed when the box was dropped and the device no longer
    uses the memory.

    ``h2d``, ``zeros`` and similar functions make a box in C order. Several boxes may share memory: ``box[1:3]``,
    ``box[:, 2]``, ``box[::-1]``, ``box.T`` and ``reshape`` are views. A view keeps the memory alive, and uses of the
    view are ordered with uses of the box. Each index of a view is an integer, a slice or ``...``, as in NumPy.
    """

    __slots__ = ()

    @staticmethod
    def from_raw_parts(
        pointer: DevicePointer | int,
        shape: int | tuple[int, ...],
        dtype: ScalarType | np.dtype[Any] | type | str,
        owner: object = None,
    ) -> DeviceBox:
        """Returns a box on raw memory, without a copy.

        ``pointer`` is an int, the address, or a ``DevicePointer`` of ``ctx.malloc_async``. The box shares the
        allocation of a ``DevicePointer``, which takes no ``owner``. An address needs ``owner``, the object that keeps
        the memory alive: the owner is kept until the box was dropped and the device is past the last use of the box on
        any stream. If the owner is itself a box or a ``DevicePointer``, the new box shares the owner's allocation.
        Other libraries must order their earlier work on the memory themselves.

        Raises ``TypeError`` for an address without an owner, and for a ``DevicePointer`` with one. Raises
        ``ValueError`` if the box is not aligned in its allocation, or would overrun the allocation or an array that
        owns the memory, or if this array is read-only. Raises ``BufferError`` for an impossible address, and
        ``DeviceError`` for an address in oxide's own memory that neither the owner nor another library shares.
        """
        from oxide.runtime.device.pointer import box_of

        return box_of(pointer, shape, dtype, owner)

    # ``shape``, ``dtype``, ``size``, ``nbytes`` and ``ptr`` are read-only, as they determine the memory that a kernel
    # may access.

    @property
    def ndim(self) -> int:
        """Returns the number of axes."""
        return len(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Returns the distance between neighbours along each axis, in bytes."""
        return self._strides or contiguous_strides(self._shape, self._dtype.itemsize)

    @property
    def is_contiguous(self) -> bool:
        """Returns whether the elements are contiguous in C order, as slice parameters of a kernel require."""
        return self._strides is None

    @property
    def T(self) -> DeviceBox:
        """Returns a view with the axes in reverse order."""
        return self._view_of((self._shape[::-1], self.strides[::-1], 0))

    @property
    def mT(self) -> DeviceBox:
        """Returns a view with the last two axes exchanged: each matrix of a stack transposed. Raises ``ValueError`` for
        a box of fewer axes."""
        if len(self._shape) < 2:
            raise ValueError(f"mT exchanges the last two axes, and this box has shape {self._shape}")
        (*shape, rows, columns), (*strides, down, across) = self._shape, self.strides
        return self._view_of(((*shape, columns, rows), (*strides, across, down), 0))

    def __getitem__(self, key: Any) -> DeviceBox:
        """Returns a view of the elements that integers, slices and ``...`` select. A single element gives a box without
        axes.

        Raises ``IndexError`` for an index outside its axis or too many indices, ``TypeError`` for other keys, such as
        arrays.
        """
        return self._view_of(indexed(self._shape, self.strides, key))

    def __iter__(self) -> Iterator[DeviceBox]:
        """Iterates over ``box[0]``, ``box[1]`` and so on. Raises ``TypeError`` for a box without axes."""
        if not self._shape:
            raise TypeError("a box without axes has no parts; d2h(box) brings its element to the host")
        return map(self.__getitem__, range(self._shape[0]))

    def host_view(self) -> NDArray[Any]:
        """Returns a NumPy array on the box's memory, after waiting for the box's uses so far. Available only on the CPU
        device.

        Later uses of the array are not ordered with uses of the box. Raises ``DeviceError`` on a GPU.
        """
        if self.device.kind != "cpu":
            raise DeviceError(f"host_view: the box is on {self.device.label}; d2h copies it to the host")
        from oxide.runtime.device.interop import host_array

        refuse_inside()
        return host_array(self)

    def _span(self) -> tuple[int, int]:
        """Returns the addresses where the elements begin and end."""
        if self._strides is None:
            return self._ptr, self._ptr + self._nbytes
        low, high = span(self._shape, self._strides, self._dtype.itemsize)
        return self._ptr + low, self._ptr + high

    def as_argument(self) -> BoxArgument:
        """Returns the box as an argument of a kernel in numba-cuda's form. The first call makes the argument."""
        argument = self._argument
        if argument is None:
            argument = self._argument = BoxArgument(self)
        return argument

    def partition(self, tile_shape: int | tuple[int, ...]) -> Partition:
        """Returns the box divided into tiles of one shape, for a ``Partition`` parameter of a tile kernel. The last
        tiles along an axis may reach past its end.

        Raises ``TypeError`` for a shape that is not of integers, and ``ValueError`` for another number of axes than the
        box has, or for a length below 1.
        """
        from oxide.runtime.device.partition import Partition  # imported here, as that module imports this one

        return Partition(self, tile_shape)

    def split(self, rows: int) -> tuple[DeviceBox, ...]:
        """Returns views that each have ``rows`` rows, taken along the first axis; the last view may have fewer rows.

        Uses of different pieces are ordered like uses of one box, because the pieces share an allocation. Raises
        ``TypeError`` if ``rows`` is not an int, and ``ValueError`` if it is below 1 or the box has no axes.
        """
        if isinstance(rows, bool) or not isinstance(rows, (int, np.integer)):
            raise TypeError(f"split({written(rows)}): the number of rows is an int")
        if rows < 1 or not self.shape:
            raise ValueError(
                f"a box of shape {self.shape} has no pieces of {written(rows)} rows: ask for 1 or more, of an axis"
            )
        pieces = int(rows)
        return tuple(self[first : first + pieces] for first in range(0, self._shape[0], pieces))

    def reshape(self, *shape: SupportsIndex | tuple[SupportsIndex, ...]) -> DeviceBox:
        """Returns a view with another shape of the same size; one axis may be -1. Raises ``ValueError`` for another
        size or a strided view, and ``TypeError`` for a shape that is not of integers."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        try:
            asked = [operator.index(size) for size in sizes]  # type: ignore[arg-type]
        except TypeError:
            raise TypeError(f"reshape: a shape is ints or a tuple of ints, not {written(sizes)}") from None
        given = list(asked)
        if given.count(-1) == 1:
            rest = math.prod(size for size in given if size != -1)
            given[given.index(-1)] = self.size // rest if rest else 0
        if any(size < 0 for size in given) or math.prod(given) != self.size:
            raise ValueError(f"a box of shape {self.shape} cannot be reshaped to {written(tuple(asked))}")
        if self._strides is not None:
            raise ValueError(
                f"reshape: the box of shape {self._shape} is a strided view (strides {self._strides} bytes), and a "
                "reshape copies nothing; dup(view) makes a contiguous box, which can be reshaped"
            )
        result = tuple(given)
        return self._view_of((result, contiguous_strides(result, self._dtype.itemsize), 0))

    def _view_of(self, geometry: Geometry) -> DeviceBox:
        """Returns a box on the same memory."""
        shape, strides, offset = geometry
        contiguous = is_contiguous(shape, strides, self._dtype.itemsize)
        view = DeviceBox(self._allocation, shape, self._dtype, self._offset + offset, None if contiguous else strides)
        view._known = self._known
        return view

    def _bytes(self) -> DeviceBox:
        """Returns one box of bytes that covers all elements and the gaps between them."""
        low, high = self._span()
        whole = DeviceBox(self._allocation, (high - low,), _BYTE, self._offset + low - self._ptr)
        whole._known = self._known
        return whole

    def _become_known(self) -> Allocation:
        """Registers the memory as known to another library, so that an import of the memory finds this allocation.
        Returns the allocation."""
        allocation = self._allocation
        if allocation.nbytes:
            ranges = allocation.device.runtime.shared_ranges
            self._known = ranges.add(allocation, allocation.address, allocation.nbytes)
        return allocation

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        from oxide.runtime.device.interop import cuda_array_interface

        return cuda_array_interface(self)

    def copy_to_host(self) -> NoReturn:
        """Raises an ``AttributeError`` that names ``d2h``. Arrays of numba-cuda have a method ``copy_to_host``."""
        raise AttributeError("a DeviceBox has no copy_to_host; d2h(box).sync() or await d2h(box) is a new host array")

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        raise self._no_host_array("NumPy")

    def __array_ufunc__(self, function: Any, method: str, *inputs: object, **options: object) -> NoReturn:
        raise self._no_host_array(f"np.{function.__name__}")

    def __array_function__(self, function: Any, types: object, args: object, options: object) -> NoReturn:
        raise self._no_host_array(f"np.{function.__name__}")

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} is neither true nor false: copy it with d2h(box).sync(), or compare it with None")

    def __contains__(self, item: object) -> NoReturn:
        raise TypeError(f"{self!r} is not searched for an item: copy it with d2h(box).sync(), and search the array")

    def _no_host_array(self, what: str) -> TypeError:
        here = ", and box.host_view() is an array on its memory" if self.device.kind == "cpu" else ""
        return TypeError(f"{what} takes host arrays, not {self!r}; d2h(box) copies it to the host{here}")

    def __dlpack_device__(self) -> tuple[int, int]:
        """Returns the box's device as DLPack's type and number."""
        from oxide.runtime.device.interop import dlpack_device

        return dlpack_device(self.device)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Returns the memory as a DLPack capsule, without a copy. The consumer's ``stream`` waits for the box's uses so
        far, unless it is -1. On the CPU device the calling thread waits instead.

        oxide does not order the consumer's later work on the memory. The program must submit this work to the
        ``ctx.stream`` of a ``with_context``, and declare it there. Raises ``BufferError`` for another ``dl_device``, if
        ``copy`` is True, for a dtype that DLPack has no type for and for a ``stream`` that the device cannot have;
        ``TypeError`` for arguments of other types.
        """
        from oxide.runtime.device.interop import to_dlpack

        refuse_inside()
        return to_dlpack(self, stream, max_version, dl_device, copy)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a DeviceBox cannot be pickled or copied by copy; d2h brings it to the host, dup copies it")

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"<oxide.DeviceBox {shape} {dtype_name(self.dtype)} on {self.device.label}>"

    def _repr_html_(self) -> str:
        """Returns the box's shape, dtype, size and device, which notebooks show. Waits for nothing and copies
        nothing."""
        from oxide.pictures.html import table

        rows = [
            ("shape", str(self.shape)),
            ("dtype", dtype_name(self.dtype)),
            ("size", byte_count(self.nbytes)),
            ("device", self.device.label),
        ]
        return table(rows + ([] if self.is_contiguous else [("strides", str(self.strides))]), "oxide.DeviceBox")


_LARGEST = 2**63 - 1
"""The largest length of an axis: no address space has more bytes."""

_PLAIN: Final = 2**48
"""Sizes below this bound are checked by two compares of machine words."""


def parse_shape(shape: object, what: str) -> tuple[int, ...]:
    """Returns a user's shape, an int or a tuple, as a tuple. Raises ``TypeError`` for a size that is not an int, and
    ``ValueError`` for a size that is negative or too large."""
    sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
    result: list[int] = []
    for size in sizes:
        if type(size) is int and 0 <= size < _PLAIN:
            result.append(size)
            continue
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)):
            raise TypeError(f"{what}: a shape is an int or a tuple of ints, not {written(shape)}")
        if not 0 <= size <= _LARGEST:
            problem = "a negative size" if size < 0 else "a size beyond 2**63 - 1, and no memory is as large"
            raise ValueError(f"{what}: shape {written(shape)} has {problem}")
        result.append(int(size))
    return tuple(result)


def require_runtime(box: DeviceBox, device: Device, what: str) -> None:
    """Raises ``DeviceError`` if the box belongs to another runtime than ``device``, where the operation runs."""
    runtime = box._allocation.device.runtime
    if runtime is not device.runtime:
        from oxide.runtime.device.runtime import current_runtime, not_in_force

        if runtime is current_runtime():
            raise not_in_force(f"{what}: the stream that the operation runs on", "make one with device.new_stream()")
        raise not_in_force(f"{what}: the box", "make a new one, with h2d from the host's data")


def require_device(box: DeviceBox, device: Device, what: str) -> None:
    """Raises ``DeviceError`` if the box lives on another device."""
    if box._allocation.device is not device:
        require_runtime(box, device, what)
        raise DeviceError(
            f"{what}: the box is on {box.device.label}, but the operation runs on {device.label}; "
            f"run it on {box.device.label}, or copy the box with memcpy"
        )


def require_number(dtype: np.dtype[Any], what: str) -> None:
    """Raises ``TypeError`` unless the dtype is a number type in the machine's byte order."""
    if (dtype.kind not in _NUMBERS or not dtype.isnative) and of_dtype(dtype) is None:
        raise TypeError(f"{what}: dtype {dtype} is not supported; numbers in the machine's byte order are")


def require_data(dtype: np.dtype[Any], what: str) -> None:
    """Raises ``TypeError`` unless device memory may hold the dtype: numbers, dates, strings of a fixed length, and
    structures of these."""
    if dtype.isbuiltin == 1 and dtype.kind in _NUMBERS:  # the common case: every upload calls this
        return
    if dtype.fields is not None:
        for field, *_ in dtype.fields.values():
            require_data(field.base, what)
    elif dtype.kind not in "mMSU" or not dtype.isnative:
        require_number(dtype, what)


core.setup(Allocation=Allocation, DeviceBox=DeviceBox, OutOfMemoryError=OutOfMemoryError, dropped=dropped)
