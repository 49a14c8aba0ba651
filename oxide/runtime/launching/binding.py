"""The fast path of a launch: binds arguments that are plain numbers and boxes in one pass.

Nearly all launches have such arguments, and Python dominates a launch's time: on an H100 the driver's part is 2.7 µs,
so each 0.1 µs here counts. The measures, and why they are valid:

- **Bind once, when the launch is built.** A box's address, size and dtype never change, so the check also collects all
  that an execution needs. Running the operation again does not inspect its arguments again.
- **Exact types only.** Boxes and arcs have no subclasses, so one compare decides. For any other argument (an operation,
  a mistake, a violated contract) ``bind`` returns None, and ``launch.py`` checks everything and raises the errors. So
  each error message exists in one place only. A kernel with an ``AtomicSlice`` takes the slow path too.
- **Bytes, computed once.** A box keeps its address and length as parameter bytes, so packing the parameters is one join
  of bytes. The fault record's address is appended at each launch, since it belongs to the submission.
- **A plan for each specialization** says how to bind each argument, so that a launch does not inspect the parameters.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from oxide.compiler.signature.signature import SAFE_FLOAT, NumbaParameter, Parameter
from oxide.compiler.signature.untyped_arguments import ArrayType, NoneType, NumberType, TupleType, arrays_in
from oxide.errors import ArgumentError
from oxide.native import mypyc_attr
from oxide.runtime.device.arc import Arc
from oxide.runtime.device.memory import Allocation, DeviceBox
from oxide.runtime.device.runtime import Device
from oxide.runtime.launching.captured import captured_boxes
from oxide.runtime.launching.reach import threads_of
from oxide.runtime.launching.tiled import even_rows
from oxide.runtime.launching.untyped import argument_type_of, converts

if TYPE_CHECKING:
    from oxide.compiler.description import LaunchNeeds
    from oxide.compiler.signature.signature import Closed
    from oxide.compiler.specialization import Specialization
    from oxide.runtime.launching.launch_config import LaunchConfig

_ANY: Final = sys.maxsize
_NUMBERS: Final = (int, float, bool)

# The kinds of slots.
_SLICE: Final = 0
_DISJOINT: Final = 1
_TILES: Final = 2
_SCALAR: Final = 3
_LIFTED: Final = 4
_ARGUMENT: Final = 5
_OTHER: Final = 6
_KINDS = {"slice": _SLICE, "disjoint": _DISJOINT, "tiles": _TILES, "scalar": _SCALAR, "argument": _ARGUMENT}


@final
class Packed:
    """An argument that passed its check: a number, a tuple or a function. ``number`` is the argument itself, ``words``
    has the numbers that are passed for it, and ``piece`` has the same numbers as parameter bytes."""

    __slots__ = ("number", "piece", "words")

    def __init__(self, number: object, piece: bytes, words: tuple[Any, ...]) -> None:
        self.number = number
        self.piece = piece
        self.words = words


_NOTHING: Final = Packed(object(), b"", ())


@final
class ParameterSlot:
    """The rules that bind an argument to one parameter."""

    __slots__ = (
        "alignment", "before", "bits", "converted", "dtype", "fits", "floats", "integers", "judged", "kind", "last",
        "most", "ndim", "pack", "parameter", "parts", "rest", "tile", "type",
    )  # fmt: skip

    def __init__(self, parameter: Closed, offset: int, named: set[str]) -> None:
        """Makes a slot. ``offset`` is the end of the preceding parameters in bytes. ``named`` has the names that the
        contracts mention."""
        kind = _LIFTED if parameter.lifted is not None else _KINDS.get(parameter.kind, _OTHER)
        self.kind: int = kind
        self.parameter: Any = parameter
        self.dtype: Any = parameter.dtype if kind <= _TILES and isinstance(parameter, Parameter) else None
        self.bits: Any = self.dtype
        """For a type of ``ml_dtypes``, the unsigned integer dtype of the same size, which a box may have instead. For
        other types, ``dtype``."""
        if self.dtype is not None and isinstance(parameter, Parameter) and parameter.scalar.numpys is None:
            self.bits = parameter.scalar.bits
        self.alignment: int = parameter.alignment if kind == _TILES and isinstance(parameter, Parameter) else 1
        self.ndim: int = parameter.ndim if isinstance(parameter, Parameter) else 1
        scalar = parameter if kind == _SCALAR and isinstance(parameter, Parameter) else None
        self.integers: Any = None if scalar is None else scalar.integers
        self.floats: bool = scalar is not None and scalar.is_float
        self.type: Any = parameter.type if isinstance(parameter, NumbaParameter) else None
        self.converted: Any = None  # another array type that an explicit signature accepts for ``type``
        self.tile: int = math.prod(parameter.tile) if isinstance(parameter, Parameter) else 1
        """The number of elements that one thread accesses."""
        self.most = _ANY
        """The largest number of elements of an output that the threads of the plan's ``fitting`` configuration are sure
        to reach in full."""
        self.fits: Any = None
        """The last shape of an output with more than ``most`` elements that these threads were found to reach in full:
        see ``reach.py``."""
        self.before = bytes(-offset % 8)  # padding before a box's address
        # For an argument that is no box, ``pack`` begins with ``rest`` bytes of padding, which are then cut off: the
        # bytes since the last multiple of 8. So the fields are aligned as they are in the complete parameters.
        self.rest = offset % 8
        self.pack = struct.Struct(f"@{self.rest}x{parameter.struct_format}").pack
        self.last = _NOTHING  # the last number: a program's constants are the same objects at each launch
        self.parts: list[int] = []
        """The indices of a tuple's numbers, or of a slice's axes, that the contracts name."""
        self.judged: list[str] = []
        """The names in the contracts that belong to this argument: those of its lengths, of its value, or of its
        numbers."""
        if kind == _LIFTED and parameter.kind == "tuple" and parameter.lifted is not None:
            self.parts = [place for place, part in enumerate(parameter.lifted.parts) if part.name in named]
            self.judged = [parameter.lifted.parts[place].name for place in self.parts]
        elif kind != _LIFTED:
            lengths = parameter.lengths if isinstance(parameter, Parameter) else ()
            self.judged = [name for name in (parameter.name, *lengths) if name in named]
            self.parts = [axis for axis, name in enumerate(lengths) if name in named]


@final
class Plan:
    """The rules that bind the parameters of a specialization, shared by its launches."""

    __slots__ = (
        "captured", "end", "fitting", "holds", "interpreted", "matrices", "needs", "outputs", "reached", "reference",
        "short", "slots", "special", "strided", "tiled", "two_axes", "warns",
    )  # fmt: skip

    def __init__(self, special: Specialization) -> None:
        self.special: Any = special
        self.interpreted: bool = special.description.interpreted
        self.reference: Any = special.reference
        self.strided: Any = None
        """The plan of the last launch that had strided views where this plan takes contiguous ones."""
        formats = "@"
        self.slots: list[ParameterSlot] = []
        contracts = special.description.contracts
        named: set[str] = set().union(*[contract.names for contract in contracts])
        for parameter in special.parameters:
            self.slots.append(ParameterSlot(parameter, struct.calcsize(formats), named))
            formats += parameter.struct_format
        self.captured = captured_boxes(special)
        """The boxes of the device arrays from outside that the kernel names."""
        self.end = bytes(-struct.calcsize(formats) % 8)
        """The bytes between the last parameter and the fault record's address: padding, then ``captured``'s words."""
        for box in self.captured:
            self.end += box.as_argument().words
        self.outputs = [place for place, slot in enumerate(self.slots) if slot.kind in (_DISJOINT, _TILES)]
        self.holds: Callable[..., bool] | None = None
        """Returns whether the contracts hold. Takes the integers that the contracts name, in the order of the
        parameters. None if there are no contracts."""
        if contracts:
            from oxide.compiler.signature.contracts import compiled

            self.holds = compiled(contracts, [name for slot in self.slots for name in slot.judged])
        self.fitting: LaunchConfig | None = (
            None  # the last configuration whose axes passed the check: most launches have it again
        )
        self.needs: LaunchNeeds = special.needs
        self.tiled: tuple[int, ...] = special.needs.tiled
        self.two_axes: bool = self.needs.index_2d and not self.needs.index_1d
        """True if the threads along x reach columns and those along y reach rows."""
        self.short = False
        """True if a bound output has more elements than its slot's ``most`` and another shape than its ``fits``: the
        launch must then check whether its threads reach the whole output."""
        self.reached = [self.slots[place] for place in self.outputs]
        self.warns = self.needs.own_elements and not special.description.partial
        """True if a launch whose threads reach only a part of an output causes a warning."""
        matrices = {
            place: parameter.lengths[1]
            for place, parameter in enumerate(special.parameters)
            if place in self.outputs and isinstance(parameter, Parameter) and parameter.is_matrix
        }
        own = list(matrices.values()) == [self.needs.width]
        self.matrices: list[int] = list(matrices) if self.warns and self.two_axes and not own else []
        """The places of the outputs of two axes whose columns each launch compares with the width of ``index_2d``."""

    def warn_no_more(self) -> None:
        """Turns off the warning that a launch's threads reach only a part of an output, for all later launches."""
        self.warns = False
        for slot in self.reached:
            slot.most = _ANY

    def fit(self, config: LaunchConfig) -> None:
        """Records a configuration whose axes passed the check. If a launch that reaches only a part of an output causes
        a warning, also records for each output the number of elements up to which the configuration's threads surely
        reach all of it. If x counts columns and y rows, this is the smaller of the numbers of threads along x and y,
        because all elements of a matrix may be in one row or one column."""
        self.fitting = config
        if self.warns:
            x, y = threads_of(config)
            for slot in self.reached:
                slot.most = min(x, y) if self.two_axes else x * y * slot.tile
                slot.fits = None


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Binding:
    """A launch's bound arguments: the parameter bytes without the fault record's address, the buffers read and written,
    and the device of all of them (None for a kernel of scalars)."""

    __slots__ = ("device", "params", "reads", "writes")

    def __init__(self, params: bytes, reads: list[Allocation], writes: list[Allocation], device: Device | None) -> None:
        self.params = params
        self.reads = reads
        self.writes = writes
        self.device = device


def bind(plan: Plan, arguments: tuple[Any, ...]) -> Binding | None:
    """Returns the binding of the arguments. Returns None if an argument needs a closer check, if the number of
    arguments is wrong, or if the boxes are on several devices."""
    slots = plan.slots
    if len(slots) != len(arguments):
        return None
    pieces: list[bytes] = []
    integers: list[Any] = []  # the integers that the contracts name
    reads: list[Allocation] = []
    writes: list[Allocation] = []
    device: Device | None = None
    for place, slot in enumerate(slots):
        argument: object = arguments[place]
        kind = slot.kind
        if kind in (_SCALAR, _LIFTED):
            last = slot.last
            packed = last if argument is last.number else _pack(slot, argument)
            if packed is None:
                return None
            pieces.append(packed.piece)
            if slot.judged:
                numbers = packed.words
                integers += [numbers[part] for part in slot.parts] if kind == _LIFTED else numbers
            continue
        box: object = argument.value if isinstance(argument, Arc) else argument
        if kind == _ARGUMENT:
            found = slot.type
            if not isinstance(box, DeviceBox):
                last = slot.last
                if argument is last.number:
                    pieces.append(last.piece)
                    continue
                if not _is_plain(found, box):
                    return None
                piece = slot.pack(*found.flatten(box))[slot.rest :]
                pieces.append(piece)
                if type(found) is not NumberType:
                    arrays = arrays_in(found, box)
                    if not arrays:
                        slot.last = Packed(argument, piece, ())
                    for array in arrays:
                        if device is None:
                            device = array._allocation.device
                        elif array._allocation.device is not device:
                            return None
                        writes.append(array._allocation)
                continue
            given = box._argument or box.as_argument()
            if given.type is not found and given.type is not slot.converted:
                if given.type == found:
                    slot.type = given.type  # so that the next launch finds the identical object
                elif type(found) is ArrayType and converts(given.type, found) and given.type.strided is found.strided:
                    slot.converted = given.type
                else:
                    return None
            words = given.words
        elif (
            kind == _OTHER
            or not isinstance(box, DeviceBox)
            or (box._dtype is not slot.dtype and box._dtype is not slot.bits)
            or box._strides is not None
        ):
            return None
        elif slot.ndim == 1:
            words = box._words or box.words()
        elif slot.ndim == len(box._shape):
            words = box._shaped_words or box.shaped_words()
        else:
            return None
        allocation = box._allocation
        if device is None:
            device = allocation.device
        elif allocation.device is not device:
            return None
        if kind == _SLICE:
            reads.append(allocation)
        elif kind in (_ARGUMENT, _DISJOINT) or box._ptr % slot.alignment == 0:
            writes.append(allocation)
            if box._size > slot.most and box._shape != slot.fits:
                plan.short = True
        else:
            return None
        if slot.before:
            pieces.append(slot.before)
        pieces.append(words)
        if slot.judged:
            integers += [box._shape[axis] for axis in slot.parts] if slot.ndim > 1 else (box._size,)
    for outside in plan.captured:
        allocation = outside._allocation
        if device is None:
            device = allocation.device
        elif allocation.device is not device:
            return None
        writes.append(allocation)
    if len(plan.outputs) > 1 and _overlap(plan, arguments):
        return None
    if plan.tiled and not _rows_are_even(plan, arguments):
        return None
    if plan.holds is not None and not _hold(plan.holds, integers):
        return None
    if plan.end:
        pieces.append(plan.end)
    return Binding(b"".join(pieces), reads, writes, device)


def _is_plain(wanted: Any, value: object) -> bool:
    """Returns whether a value that is not a box can be passed as the type ``wanted`` without a closer check."""
    kind = type(wanted)
    if kind is NumberType:
        if type(value) is complex:
            return bool(wanted.dtype.kind == "c")
        return type(value) in _NUMBERS or isinstance(value, np.generic)
    if kind is TupleType:
        return isinstance(value, tuple) and argument_type_of(value) == wanted
    return kind is NoneType and value is None


def _pack(slot: ParameterSlot, argument: object) -> Packed | None:
    """Packs a number, a tuple or a function as parameter bytes. Returns None if it needs a closer check."""
    words = _words(slot, argument)
    if words is None:
        return None
    packed = Packed(argument, slot.pack(*words)[slot.rest :], words)
    if type(argument) is int or type(argument) is float:
        slot.last = packed
    return packed


def _words(slot: ParameterSlot, argument: object) -> tuple[Any, ...] | None:
    """Returns the words passed for a number, a tuple or a function. Returns None if it needs a closer check."""
    # The two common cases first, each with one or two compares.
    if type(argument) is int and slot.integers is not None and argument in slot.integers:
        return (argument,)
    if type(argument) is float and slot.floats and -SAFE_FLOAT <= argument <= SAFE_FLOAT:
        return (argument,)
    try:
        if slot.kind == _LIFTED:
            words: tuple[Any, ...] = slot.parameter.lifted.words(argument)
            return words
        if type(argument) in _NUMBERS or isinstance(argument, np.generic):
            return (slot.parameter.convert(argument),)
    except ArgumentError:
        pass
    return None


def _hold(holds: Callable[..., bool], integers: list[Any]) -> bool:
    try:
        return holds(*integers)
    except ZeroDivisionError:
        return False


def _rows_are_even(plan: Plan, arguments: tuple[Any, ...]) -> bool:
    """Returns whether the rows of all matrices that the kernel copies tiles from or to begin at multiples of 16
    bytes."""
    given = [arguments[place] for place in plan.tiled]
    boxes: list[DeviceBox] = [argument.value if isinstance(argument, Arc) else argument for argument in given]
    return all(map(even_rows, boxes))


def _overlap(plan: Plan, arguments: tuple[Any, ...]) -> bool:
    """Returns whether two outputs share memory, in which case ``aliasing.py`` decides."""
    ends = 0
    given = [arguments[place] for place in plan.outputs]
    boxes: list[DeviceBox] = [argument.value if isinstance(argument, Arc) else argument for argument in given]
    for start, nbytes in sorted([(box.ptr, box.nbytes) for box in boxes]):
        if nbytes and start < ends:
            return True
        ends = max(ends, start + nbytes)
    return False
