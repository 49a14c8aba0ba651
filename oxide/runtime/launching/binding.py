"""Binds the arguments of a launch: one pass checks them and collects all that an execution needs.

Python dominates a launch's time: on an H100 the driver's part is 2.7 µs, so each 0.1 µs here counts. The work is done
in C (``_core/binding.c``). The measures, and why they are valid:

- **Bind once, when the launch is built.** A box's address, size and dtype never change. Running the operation again
  does not inspect its arguments again.
- **Exact types only.** Boxes and arcs have no subclasses, so one compare decides. ``Launch.bind`` answers False for
  anything else, and ``refusals.py`` explains what is wrong. So each error message exists in one place only. The rare
  arguments that it finds in order after all, such as an ``AtomicSlice`` or a 0-d array, are bound by the plan's
  ``lenient`` form.
- **Bytes, computed once.** The parameters are packed when the launch is built. The fault record's address is appended
  at each launch, since it belongs to the submission.
- **A plan for each specialization** says how to bind each argument, so that a launch does not inspect the parameters.

A launch with operations among its arguments is bound at each run, with their results.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from oxide.compiler.signature.signature import ROWS, SAFE_FLOAT, NumbaParameter, Parameter
from oxide.compiler.signature.untyped_arguments import ArrayType, NoneType, NumberType, TupleType, arrays_in
from oxide.errors import ArgumentError, LaunchError
from oxide.host import core
from oxide.runtime.launching.launch_config import threads_of
from oxide.runtime.launching.specializing import argument_type_of, converts
from oxide.runtime.memory.memory import Arc, DeviceBox, sharing
from oxide.runtime.operations.operation import BoxSpec, DeviceOperation

if TYPE_CHECKING:
    from oxide.compiler.declaration.description import LaunchNeeds
    from oxide.compiler.kernel.specialization import Specialization
    from oxide.compiler.signature.signature import Closed
    from oxide.driver.base import Dim3
    from oxide.runtime.launching.launch_config import LaunchConfig

_ANY: Final = sys.maxsize
_KINDS = {"slice": core.SLICE, "disjoint": core.DISJOINT, "tiles": core.TILES, "scalar": core.SCALAR}
_KINDS["argument"] = core.ARGUMENT
_PLAIN: Final = {"i": core.SIGNED, "u": core.UNSIGNED, "f": core.FLOAT}  # the numbers that C packs, by NumPy's kinds


@final
class Held:
    """Stands for a number, a tuple or a function in a launch that is bound when its operations have run: the words that
    were passed for it when the launch was built. The numbers that a function captures may have changed since."""

    __slots__ = ("words",)

    def __init__(self, words: tuple[Any, ...]) -> None:
        self.words = words


_NUMBERS: Final = (int, float, np.generic, Held)


def words_for(parameter: Parameter, argument: Any) -> tuple[Any, ...]:
    """Returns the words to pass for a number, a tuple or a function. Raises ``ArgumentError``."""
    if type(argument) is Held:
        return argument.words
    if parameter.lifted is not None:
        words: tuple[Any, ...] = parameter.lifted.words(argument)
        return words
    return (parameter.convert(argument),)


def held(parameter: Closed, argument: Any) -> Any:
    """Returns the argument to keep for the later binding of a launch."""
    if isinstance(parameter, NumbaParameter) or isinstance(argument, DeviceOperation):
        return argument
    if parameter.lifted is None and parameter.kind != "scalar":
        return argument  # a box
    return Held(words_for(parameter, argument))


@final
class ParameterSlot(core.ParameterSlot):
    """The rules that bind an argument to one parameter. ``last`` is the last number: a program's constants are the same
    objects at each launch. ``last_piece`` are its parameter bytes, and ``last_words`` what is passed for it."""

    __slots__ = ("_integers", "_lenient", "_pack", "_rest", "parameter", "tile")

    def __init__(self, parameter: Closed, offset: int, named: set[str], lenient: bool) -> None:
        """Makes a slot. ``offset`` is the end of the preceding parameters in bytes. ``named`` has the names that the
        contracts mention."""
        kind = core.LIFTED if parameter.lifted is not None else _KINDS.get(parameter.kind, core.OTHER)
        if lenient and kind == core.OTHER:
            kind = core.DISJOINT  # an ``AtomicSlice``
        self._lenient = lenient
        self.kind = kind
        self.last: Any = None
        self.last_piece: Any = None
        self.last_words: Any = None
        self.parameter: Any = parameter
        self.dtype = parameter.dtype if kind <= core.TILES and isinstance(parameter, Parameter) else None
        # For a type of ``ml_dtypes``, the unsigned integer dtype of the same size, which a box may have instead. For
        # other types, ``dtype``.
        self.bits = self.dtype
        if self.dtype is not None and isinstance(parameter, Parameter) and parameter.scalar.numpys is None:
            self.bits = parameter.scalar.bits_dtype
        self.alignment = parameter.alignment if kind <= core.TILES and isinstance(parameter, Parameter) else 1
        self.components = parameter.components if isinstance(parameter, Parameter) else 1
        self.ndim = parameter.ndim if isinstance(parameter, Parameter) else 1
        scalar = parameter if kind == core.SCALAR and isinstance(parameter, Parameter) else None
        self._integers: Any = None if scalar is None else scalar.integers
        self.number = 0
        if scalar is not None and scalar.dtype.kind in _PLAIN and (self._integers is not None or scalar.is_float):
            size = scalar.dtype.itemsize
            if scalar.dtype.kind != "f" or size in (4, 8):
                self.number = _PLAIN[scalar.dtype.kind] | size
        self.type = parameter.type if isinstance(parameter, NumbaParameter) else None
        self.converted = None  # another array type that an explicit signature accepts for ``type``
        self.tile: int = math.prod(parameter.tile) if isinstance(parameter, Parameter) else 1
        """The number of elements that one thread accesses."""
        # The largest number of elements of an output that the threads of the plan's ``fitting`` configuration are sure
        # to reach in full; and the last shape of an output with more elements that they were found to reach in full:
        # see ``reach``.
        self.most, self.fits = _ANY, None
        self.before = -offset % 8  # bytes of padding before a box's address
        # For an argument that is no box, ``_pack`` begins with ``_rest`` bytes of padding, which are then cut off: the
        # bytes since the last multiple of 8. So the fields are aligned as they are in the complete parameters.
        self._rest = offset % 8
        self._pack = struct.Struct(f"@{self._rest}x{parameter.struct_format}").pack
        self.parts: list[int] = []
        """The indices of a tuple's numbers, or of a slice's axes, that the contracts name."""
        self.judged: list[str] = []
        """The names in the contracts that belong to this argument: those of its lengths, of its value, or of its
        numbers."""
        if kind == core.LIFTED and parameter.kind == "tuple" and parameter.lifted is not None:
            self.parts = [place for place, part in enumerate(parameter.lifted.parts) if part.name in named]
            self.judged = [parameter.lifted.parts[place].name for place in self.parts]
        elif kind != core.LIFTED:
            lengths = parameter.lengths if isinstance(parameter, Parameter) else ()
            self.judged = [name for name in (parameter.name, *lengths) if name in named]
            self.parts = [axis for axis, name in enumerate(lengths) if name in named]

    def packed(self, argument: object) -> tuple[bytes, tuple[Any, ...], tuple[DeviceBox, ...]] | None:
        """Packs a number, a tuple or a function as parameter bytes. Returns them, the words passed for it, and the
        boxes in it. Returns None if the argument needs a closer check."""
        if self.kind == core.ARGUMENT:
            found, plain = self.type, argument.value if isinstance(argument, Arc) else argument
            if not self._lenient and not _is_plain(found, plain):
                return None
            piece = self._pack(*found.flatten(plain))[self._rest :]
            boxes = () if type(found) is NumberType else tuple(arrays_in(found, plain))
            if type(found) is not NumberType and not boxes:
                self.last, self.last_piece, self.last_words = argument, piece, ()
            return piece, (), boxes
        words = self._words(argument)
        if words is None:
            return None
        piece = self._pack(*words)[self._rest :]
        if type(argument) is int or type(argument) is float:
            self.last, self.last_piece, self.last_words = argument, piece, words
        return piece, words, ()

    def takes(self, given: Any) -> bool:
        """Returns whether an array of the type ``given`` can be passed, which is not the identical type."""
        found = self.type
        if given == found:
            self.type = given  # so that the next launch finds the identical object
            return True
        if type(found) is ArrayType and converts(given, found) and given.strided is found.strided:
            self.converted = given
            return True
        return False

    def _words(self, argument: object) -> tuple[Any, ...] | None:
        """Returns the words passed for a number, a tuple or a function. Returns None if it needs a closer check."""
        # The two common cases first, each with one or two compares.
        if type(argument) is int and self._integers is not None and argument in self._integers:
            return (argument,)
        if type(argument) is float and self.number >= core.FLOAT and -SAFE_FLOAT <= argument <= SAFE_FLOAT:
            return (argument,)
        try:
            if self._lenient or self.kind == core.LIFTED or isinstance(argument, _NUMBERS):
                return words_for(self.parameter, argument)
        except ArgumentError:
            pass
        return None


@final
class Plan(core.Plan):
    """The rules that bind the parameters of a specialization, shared by its launches.

    ``captured`` are the boxes of the device arrays from outside that the kernel names. ``end`` are the bytes between
    the last parameter and the fault record's address: padding, then ``captured``'s words. ``outputs`` are the places of
    the outputs. ``fitting`` is the last configuration whose axes passed the check: most launches have it again.
    ``inferred`` is the last configuration that followed from an output, of the shape ``inferred_shape``. ``short`` is
    True if a bound output has more elements than its slot's ``most`` and another shape than its ``fits``: the launch
    must then check whether its threads reach the whole output. ``holds`` returns whether the contracts hold: it takes
    the integers that the contracts name, in the order of the parameters; None if there are no contracts."""

    __slots__ = (
        "_lenient", "axes", "binds_alone", "interpreted", "judged", "matrices", "needs", "reached", "strided",
        "tiled", "warns",
    )  # fmt: skip

    def __init__(self, special: Specialization) -> None:
        self.special = special
        self._lenient: core.Plan | None = None
        self.fitting: LaunchConfig | None = None
        self.inferred: LaunchConfig | None = None
        self.inferred_shape: tuple[int, ...] | None = None
        self.holds: Any = None
        self.short = False
        self.interpreted: bool = special.description.interpreted
        self.reference = special.reference
        self.strided: Plan | None = None
        """The plan of the last launch that had strided views where this plan takes contiguous ones."""
        slots, end = _slots(special, lenient=False)
        contracts = special.description.contracts
        captured = captured_boxes(special)
        outputs = tuple([place for place, slot in enumerate(slots) if slot.kind in (core.DISJOINT, core.TILES)])
        if contracts:
            from oxide.compiler.signature.contracts import compiled

            self.holds = compiled(contracts, [name for slot in slots for name in slot.judged])
        self.needs: LaunchNeeds = special.needs
        self.tiled: tuple[int, ...] = special.needs.tiled
        self.axes: int = 1 if self.needs.index_1d else 3 if self.needs.index_3d else 2 if self.needs.index_2d else 1
        """The number of axes that the threads' indices have. With several, the threads along x reach columns, those
        along y rows, and those along z planes."""
        self.reached = [slots[place] for place in outputs]
        self.warns = self.needs.own_elements and not special.description.partial
        """True if a launch whose threads reach only a part of an output causes a warning."""
        matrices = {
            place: parameter.lengths[1]
            for place, parameter in enumerate(special.parameters)
            if place in outputs and isinstance(parameter, Parameter) and parameter.is_matrix
        }
        own = list(matrices.values()) == [self.needs.width]
        self.matrices: list[int] = list(matrices) if self.warns and self.axes > 1 and not own else []
        """The places of the outputs of two axes whose columns each launch compares with the width of ``index_2d``."""
        self.binds_alone = all(slot.bits is slot.dtype for slot in slots)
        """True if the plan takes boxes of its own dtypes alone."""
        self.judged = bool(self.tiled) or special.description.tile is not None
        """True if ``refusals.refuse_layouts`` has a say about boxes that bind."""
        # C makes the launches of tile kernels, whose boxes ``tile_kernel.py`` has compared.
        self.compile(slots, outputs, captured, end, not self.matrices and not self.tiled)

    def lenient(self) -> core.Plan:
        """Returns a plan that also binds what ``Launch.bind`` leaves to ``refusals.refuse``, once that has raised no
        error. It does not compare the outputs' memory."""
        if self._lenient is None:
            slots, end = _slots(self.special, lenient=True)
            plan = core.Plan()
            plan.holds = self.holds
            plan.compile(slots, (), self.captured, end, False)
            self._lenient = plan
        return self._lenient

    def warn_no_more(self) -> None:
        """Turns off the warning that a launch's threads reach only a part of an output, for all later launches."""
        self.warns = False
        for slot in self.reached:
            slot.most = _ANY

    def fit(self, config: LaunchConfig) -> None:
        """Records a configuration whose axes passed the check. If a launch that reaches only a part of an output causes
        a warning, also records for each output the number of elements up to which the configuration's threads surely
        reach all of it. If x counts columns and y rows, this is the smaller of the numbers of threads along x and y,
        because all elements of a matrix may be in one row or one column. With three axes, it is the least of three."""
        self.fitting = config
        if self.warns:
            threads = threads_of(config)
            for slot in self.reached:
                slot.most = min(threads[: self.axes]) if self.axes > 1 else math.prod(threads) * slot.tile
                slot.fits = None


def _slots(special: Specialization, *, lenient: bool) -> tuple[tuple[ParameterSlot, ...], bytes]:
    """Returns the slots of a specialization's parameters, and the bytes that follow the last one."""
    formats = "@"
    slots: list[ParameterSlot] = []
    named: set[str] = set().union(*[contract.names for contract in special.description.contracts])
    for parameter in special.parameters:
        slots.append(ParameterSlot(parameter, struct.calcsize(formats), named, lenient))
        formats += parameter.struct_format
    words = [box.as_argument().words for box in captured_boxes(special)]
    return tuple(slots), b"".join([bytes(-struct.calcsize(formats) % 8), *words])


def captured_boxes(special: Specialization) -> tuple[DeviceBox, ...]:
    """Returns a box for each device array that the kernel names from outside, in the order of its hidden parameters;
    see ``Captured`` in ``compiler/signature``."""
    found: tuple[DeviceBox, ...] | None = special.captured_boxes
    if found is None:
        found = tuple([_captured_box(special, captured) for captured in special.captured])
        special.captured_words = tuple(
            [word for box, each in zip(found, special.captured, strict=True) for word in each.type.flatten(box)]
        )
        special.captured_boxes = found  # last: another thread may read it
    return found


def _captured_box(special: Specialization, captured: Any) -> DeviceBox:
    value: Any = captured.value
    if hasattr(type(value), "as_argument"):
        box: DeviceBox = value if isinstance(value, DeviceBox) else value.box
    else:
        shares, has_interface = sharing.load(), hasattr(value, "__cuda_array_interface__")
        box = (shares.from_cuda_array_interface if has_interface else shares.from_dlpack)(value)
    if box.as_argument().type != captured.type:
        raise LaunchError(
            f"kernel {special.description.name}: {captured.name}, an array from outside of the kernel, was "
            f"{captured.type} when the kernel was compiled and is {box.as_argument().type}"
        )
    return box


def _is_plain(wanted: Any, value: object) -> bool:
    """Returns whether a value that is not a box can be passed as the type ``wanted`` without a closer check."""
    kind = type(wanted)
    if kind is NumberType:
        if type(value) is complex:
            return bool(wanted.dtype.kind == "c")
        return type(value) in (int, float, bool) or isinstance(value, np.generic)
    if kind is TupleType:
        return isinstance(value, tuple) and argument_type_of(value) == wanted
    return kind is NoneType and value is None


# The reach of a launch: the elements of an output that its threads access


def shape_of(argument: object) -> tuple[int, ...] | None:
    """Returns the shape of a box, or of the box that an operation announces; None for anything else."""
    plain = argument.value if isinstance(argument, Arc) else argument
    return plain.shape if isinstance(plain, (DeviceBox, BoxSpec)) else None


def width_of(plan: Plan, arguments: Sequence[object]) -> int | None:
    """Returns the width that a launch's ``index_2d`` is called with; None if it is not known yet. ``arguments`` are the
    launch's arguments, or specs in place of boxes."""
    width = plan.needs.width
    if not isinstance(width, str):
        return width
    for parameter, argument in zip(plan.special.parameters, arguments, strict=True):
        if isinstance(parameter, NumbaParameter) or isinstance(argument, DeviceOperation):
            continue
        shape = shape_of(argument)
        if shape is not None:
            if width in parameter.lengths:
                return shape[parameter.lengths.index(width)] if parameter.ndim > 1 else math.prod(shape)
        elif parameter.lifted is not None:
            names = [part.name for part in parameter.lifted.parts]
            if width in names:
                return int(words_for(parameter, argument)[names.index(width)])
        elif parameter.kind == "scalar" and parameter.name == width:
            return int(words_for(parameter, argument)[0])
    return None


def reach(plan: Plan, slot: ParameterSlot, shape: tuple[int, ...], width: int | None) -> tuple[int, str]:
    """Returns the number of elements of an output that the threads of the plan's ``fitting`` configuration reach, and
    the configuration, as text, that reaches all elements; "" if no such configuration is known."""
    config = plan.fitting
    assert config is not None
    size, tile = math.prod(shape), slot.parameter.tile
    threads = threads_of(config)
    block = config.block
    by_places = len(shape) == slot.ndim in (2, 3) and len(tile) != 1
    if tile == ROWS:
        rows, columns = shape
        return min(rows, threads[0]) * columns, f"LaunchConfig.for_num_elems({rows}, {block[0]})"
    if plan.axes == 1 or (width is None and not by_places):
        own = "" if plan.axes > 1 else f"LaunchConfig.for_num_elems({-(-size // slot.tile)}, {block[0]})"
        return min(size, math.prod(threads) * slot.tile), own
    if by_places:
        sides = tile or (1,) * len(shape)
        along = threads[: len(shape)][::-1]
        found = math.prod(min(length, most * side) for length, most, side in zip(shape, along, sides, strict=True))
        return found, _for_shape(tuple(-(-length // side) for length, side in zip(shape, sides, strict=True)), block)
    assert width is not None
    if width <= 0:
        return 0, ""
    x, y, _ = threads
    if len(tile) == 2:
        rows, columns = size // width, width
        found = min(rows, y * tile[0]) * min(columns, x * tile[1])
        wanted = -(-rows // tile[0]), -(-columns // tile[1])
    else:
        each = slot.tile
        total = -(-size // each)
        across = min(x, width)
        whole = min(y, total // width)
        rest = min(total - whole * width, across) if whole < y else 0
        found = min(size, (whole * across + rest) * each)
        wanted = -(-total // width), width
    return found, _for_shape(wanted, block)


def _for_shape(wanted: tuple[int, ...], block: Dim3) -> str:
    """Returns the configuration of so many threads along each axis, as it is written."""
    shown = f"{wanted}" if block[1] == block[2] == 1 else f"{wanted}, {block[: len(wanted)]}"
    return f"LaunchConfig.for_shape({shown})"


# Without the extension


def _bind(launch: Any, plan: Any, arguments: tuple[Any, ...]) -> bool:
    """Does what ``Launch.bind`` does in C: binds the arguments of a launch, or returns False."""
    if len(plan.slots) != len(arguments):
        return False
    pieces: list[bytes] = []
    integers: list[Any] = []  # the integers that the contracts name
    reads: list[Any] = []
    writes: list[Any] = []
    device = None
    box: Any  # only a ``DeviceBox`` has words
    words: Any
    packed: Any
    inside: Any
    for slot, argument in zip(plan.slots, arguments, strict=True):
        box = argument.value if type(argument) is Arc else argument
        kind = slot.kind
        if type(box) is DeviceBox and kind != _OTHER:
            if kind == _ARGUMENT:  # an array of numba-cuda's
                array = box._argument or box.as_argument()
                if array.type is not slot.type and array.type is not slot.converted and not slot.takes(array.type):
                    return False
                words = array.words
            elif (
                kind > _TILES
                or (box._dtype is not slot.dtype and box._dtype is not slot.bits and box._dtype != slot.dtype)
                or box._strides is not None
            ):
                return False
            elif slot.components > 1:
                words = _vector_words(slot, box)
                if words is None:
                    return False
            elif slot.ndim == 1:
                words = box._words or _words(box)
            elif slot.ndim == len(box._shape):
                words = box._shaped_words or _shaped_words(box)
            else:
                return False
            allocation = box._allocation
            if allocation.device is not device:
                if device is not None:
                    return False
                device = allocation.device
            if kind != _ARGUMENT and box._ptr % slot.alignment:
                return False
            if kind == _SLICE:
                reads.append(allocation)
            else:
                writes.append(allocation)
                if kind != _ARGUMENT and box._size // slot.components > slot.most and box._shape != slot.fits:
                    plan.short = True
            if slot.before:
                pieces.append(bytes(slot.before))
            pieces.append(words)
            if slot.judged and kind != _ARGUMENT:
                integers += (
                    [box._shape[axis] for axis in slot.parts] if slot.ndim > 1 else (box._size // slot.components,)
                )
        else:
            if argument is slot.last and slot.last_piece is not None:
                packed = slot.last_piece, slot.last_words, ()
            else:
                packed = None if kind == _OTHER or kind <= _TILES else slot.packed(argument)
            if packed is None:
                return False
            pieces.append(packed[0])
            if slot.judged and kind != _ARGUMENT:
                integers += [packed[1][part] for part in slot.parts] if kind == _LIFTED else packed[1]
            for inside in packed[2]:
                if inside._allocation.device is not (device or inside._allocation.device):
                    return False
                device = inside._allocation.device
                writes.append(inside._allocation)
    for outside in plan.captured:
        if outside._allocation.device is not (device or outside._allocation.device):
            return False
        device = outside._allocation.device
        writes.append(outside._allocation)
    if len(plan.outputs) > 1 and _overlap([arguments[place] for place in plan.outputs]):
        return False
    if plan.holds is not None:
        try:
            if not plan.holds(*integers):
                return False
        except ZeroDivisionError:
            return False
    if plan.end:
        pieces.append(plan.end)
    launch._params, launch._reads, launch._writes, launch._bound_device = b"".join(pieces), reads, writes, device
    launch._bound = True
    return True


def _words(box: Any) -> bytes:
    words: bytes = _TWO_WORDS.pack(box._ptr, box._size)
    box._words = words
    return words


def _shaped_words(box: Any) -> bytes:
    words = struct.pack(f"@{1 + len(box._shape)}Q", box._ptr, *box._shape)
    box._shaped_words = words
    return words


def _vector_words(slot: Any, box: Any) -> bytes | None:
    """Returns the words of a box of vectors, or None if its last axis is not that of their components."""
    *shape, components = box._shape or (0,)
    if components != slot.components or slot.ndim not in (1, len(shape)):
        return None
    return struct.pack(f"@{1 + slot.ndim}Q", box._ptr, *([math.prod(shape)] if slot.ndim == 1 else shape))


def _overlap(outputs: list[Any]) -> bool:
    """Returns whether two outputs share memory, in which case ``refusals.py`` decides."""
    boxes = [output.value if type(output) is Arc else output for output in outputs]
    ends = 0
    for start, nbytes in sorted([(box._ptr, box._nbytes) for box in boxes]):
        if nbytes and start < ends:
            return True
        ends = max(ends, start + nbytes)
    return False


_SLICE, _TILES, _LIFTED, _ARGUMENT, _OTHER = core.SLICE, core.TILES, core.LIFTED, core.ARGUMENT, core.OTHER
_TWO_WORDS: Final = struct.Struct("@QQ")

if core.FORM == "Python":
    core.Launch.bind = _bind  # type: ignore[assignment, method-assign]
