"""What programs hold of device memory: ``DeviceBox``, an array with its views, its division into tiles, and owners that
are counted."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, SupportsIndex, TypeVar, final

import numpy as np

from oxide.compiler.signature.untyped_arguments import of_box
from oxide.errors import DeviceError
from oxide.host import core
from oxide.host.core import Dropping
from oxide.host.locks import refuse_inside
from oxide.host.messages import byte_count, dtype_name, written
from oxide.language.types import of_dtype
from oxide.runtime.memory.allocation import Allocation
from oxide.runtime.memory.strides import (
    Geometry,
    contiguous_strides,
    grid_of,
    indexed,
    is_contiguous,
    parse_tile_shape,
    span,
)
from oxide.runtime.ordering.timeline import not_in_force

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from oxide.language.types import ScalarType
    from oxide.runtime.memory.addresses import DevicePointer
    from oxide.runtime.ordering.timeline import DeviceState

_NUMBERS: Final = "biufc"  # the kinds of NumPy's numbers
_BYTE: Final[np.dtype[Any]] = np.dtype(np.uint8)


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
        return sharing.load().box_of(pointer, shape, dtype, owner)

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
        axes. For a box of structures, ``box["mass"]`` is a view of one field, with the axis of a vector's components
        last.

        Raises ``IndexError`` for an index outside its axis or too many indices, ``ValueError`` for a field that the
        dtype does not have, ``TypeError`` for other keys, such as arrays.
        """
        if isinstance(key, str) and self._dtype.fields is not None:
            return self._field(key)
        return self._view_of(indexed(self._shape, self.strides, key))

    def _field(self, name: str) -> DeviceBox:
        fields: Any = self._dtype.fields
        if name not in fields:
            raise ValueError(f"a box of {', '.join(fields)} has no field {name!r}")
        dtype, offset = fields[name][:2]
        shape = (*self._shape, *dtype.shape)
        strides = (*self.strides, *contiguous_strides(dtype.shape, dtype.base.itemsize))
        contiguous = is_contiguous(shape, strides, dtype.base.itemsize)
        place = self._offset + offset
        view = DeviceBox(self._allocation, shape, dtype.base, place, None if contiguous else strides)
        view._known = self._known
        return view

    def __len__(self) -> int:
        """Returns the length of the first axis. Raises ``TypeError`` for a box without axes."""
        if not self._shape:
            raise TypeError(f"{self!r} has no axes, and so no length: it is one element")
        return self._shape[0]

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
        refuse_inside()
        return sharing.load().host_array(self)

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
        return sharing.load().cuda_array_interface(self)

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
        return sharing.load().dlpack_device(self.device)

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
        refuse_inside()
        return sharing.load().to_dlpack(self, stream, max_version, dl_device, copy)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a DeviceBox cannot be pickled or copied by copy; d2h brings it to the host, dup copies it")

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"<oxide.DeviceBox {shape} {dtype_name(self.dtype)} on {self.device.label}>"

    def _repr_html_(self) -> str:
        """Returns the box's shape, dtype, size and device, which notebooks show. Waits for nothing and copies
        nothing."""
        from oxide.pictures.drawing import table

        rows = [
            ("shape", str(self.shape)),
            ("dtype", dtype_name(self.dtype)),
            ("size", byte_count(self.nbytes)),
            ("device", self.device.label),
        ]
        return table(rows + ([] if self.is_contiguous else [("strides", str(self.strides))]), "oxide.DeviceBox")


@final
class Partition:
    """A box divided into tiles of one shape. ``box.partition(shape)`` makes it, and ``unpartition()`` returns the
    box."""

    __slots__ = ("_box", "_tile_shape")

    def __init__(self, box: DeviceBox, tile_shape: int | tuple[int, ...]) -> None:
        self._tile_shape: tuple[int, ...] = parse_tile_shape(tile_shape, box.shape)
        self._box = box

    @property
    def box(self) -> DeviceBox:
        """Returns the box."""
        return self._box

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """Returns the shape of each tile."""
        return self._tile_shape

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape of the box."""
        return self._box.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the elements' type."""
        return self._box.dtype

    @property
    def grid(self) -> tuple[int, ...]:
        """Returns the number of tiles along each axis."""
        return grid_of(self._box.shape, self._tile_shape)

    def unpartition(self) -> DeviceBox:
        """Returns the box, as ``box`` does."""
        return self._box

    def __repr__(self) -> str:
        return f"<oxide.Partition of {self._box!r} in tiles of {self._tile_shape}>"


class Sharing(Protocol):
    """Memory that is shared with other libraries: what boxes and launches need of ``sharing.py``."""

    def box_of(
        self, pointer: Any, shape: object, dtype: ScalarType | np.dtype[Any] | type | str, owner: object
    ) -> DeviceBox: ...

    def cuda_array_interface(self, box: DeviceBox) -> dict[str, Any]: ...

    def dlpack_device(self, device: Any) -> tuple[int, int]: ...

    def from_cuda_array_interface(self, x: Any) -> DeviceBox: ...

    def from_dlpack(self, x: Any) -> DeviceBox: ...

    def host_array(self, box: DeviceBox) -> NDArray[Any]: ...

    def to_dlpack(
        self,
        box: DeviceBox,
        stream: int | None,
        max_version: tuple[int, int] | None,
        dl_device: tuple[int, int] | None,
        copy: bool | None,
    ) -> object: ...


class _Loader:
    load: Callable[[], Sharing]


sharing: Final = _Loader()
"""Loads the implementation, which few programs need: ``oxide/__init__.py`` says where it is."""


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


def require_runtime(box: DeviceBox, device: DeviceState, what: str) -> None:
    """Raises ``DeviceError`` if the box belongs to another runtime than ``device``, where the operation runs."""
    runtime = box._allocation.device.runtime
    if runtime is not device.runtime:
        if runtime.is_in_force:
            raise not_in_force(f"{what}: the stream that the operation runs on", "make one with device.new_stream()")
        raise not_in_force(f"{what}: the box", "make a new one, with h2d from the host's data")


def require_device(box: DeviceBox, device: DeviceState, what: str) -> None:
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


T = TypeVar("T")

_serials = count()


@final
class Arc(Dropping, Generic[T]):
    """An owner of ``value``. ``clone()`` makes another owner. The value lives until its last owner is dropped.

    Python counts references anyway. An ``Arc`` makes the number of *owners* a part of the program, as in Rust and the
    examples of cuda-async: they upload weights once and clone the owner for each batch.
    """

    __slots__ = ("_owners", "value")

    def __init__(self, value: T, owners: set[int] | None = None) -> None:
        self.value = value
        serial = next(_serials)
        # Adding to and discarding from a set are atomic under the GIL, so no finaliser needs a lock.
        self._owners: set[int] = set() if owners is None else owners
        self._drop = partial(self._owners.discard, serial)
        self._owners.add(serial)

    def clone(self) -> Arc[T]:
        """Returns another owner of the same value."""
        return Arc(self.value, self._owners)

    def partition(self, tile_shape: int | tuple[int, ...]) -> Arc[Any]:
        """Returns another owner, whose value is the box divided into tiles of one shape, for a ``Partition`` parameter
        of a tile kernel. Raises ``TypeError`` if the value is no box."""
        return Arc(self._method("partition", "a box")(tile_shape), self._owners)

    def unpartition(self) -> Arc[Any]:
        """Returns another owner, whose value is the box of the partition. Raises ``TypeError`` if the value is no
        partition."""
        return Arc(self._method("unpartition", "a partition")(), self._owners)

    def _method(self, name: str, kind: str) -> Any:
        found = getattr(self.value, name, None)
        if found is None:
            raise TypeError(f"{name} takes an Arc of {kind}, not one of {type(self.value).__name__}")
        return found

    @staticmethod
    def strong_count(arc: Arc[T]) -> int:
        """Returns the number of owners that the value has now."""
        return len(arc._owners)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Arc cannot be pickled or copied; clone() makes another owner")

    def __repr__(self) -> str:
        return f"Arc({self.value!r})"


core.setup(Arc=Arc, DeviceBox=DeviceBox)
