"""The fast path of a launch: arguments that are plain numbers and boxes become words and uses in one pass.

Nearly every launch gets such arguments, and the time of a launch is Python's: on an H100 the driver's own part is
2.7 µs, so each 0.1 µs here is seen. What is done, and why it is allowed:

- **Once, when the launch is built.** A box's address, size and dtype never change, so what the check looks at is also
  what the execution needs; running a recipe again looks at no argument again.
- **Exact types only.** Boxes and arcs have no subclasses, so one compare tells. Whatever else an argument is (an
  operation, a mistake), ``bind`` returns None, and the way that judges and explains everything (``launch.py``) is
  taken; so no message is written twice. A kernel with an ``AtomicSlice`` takes that way too.
- **Bytes, put together once.** A box keeps its address and length as a kernel's parameters hold them, so the parameters
  are a join of what is there; the fault record's address is added at each launch, since it belongs to the submission.
- **A plan for each specialization** says what is to be done with each argument, so that nothing is asked of the
  parameters again.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from oxide.compiler.arguments import NumberType, of_box
from oxide.compiler.signature import Parameter
from oxide.errors import ArgumentError
from oxide.runtime.arc import Arc
from oxide.runtime.context import Device
from oxide.runtime.memory import Allocation, DeviceBox

if TYPE_CHECKING:
    from oxide.compiler.kernel import Specialization
    from oxide.compiler.signature import Closed

_NUMBERS = (int, float, bool)

# What a slot does with its argument.
_SLICE: Final = 0
_DISJOINT: Final = 1
_TILES: Final = 2
_SCALAR: Final = 3
_LIFTED: Final = 4
_ARGUMENT: Final = 5
_OTHER: Final = 6
_KINDS = {"slice": _SLICE, "disjoint": _DISJOINT, "tiles": _TILES, "scalar": _SCALAR, "argument": _ARGUMENT}


@final
class Slot:
    """What becomes of one argument."""

    __slots__ = ("alignment", "before", "dtype", "kind", "pack", "parameter", "rest")

    def __init__(self, parameter: Closed, offset: int) -> None:
        """``offset`` is where the parameters before it end, in bytes."""
        kind = _LIFTED if parameter.lifted is not None else _KINDS.get(parameter.kind, _OTHER)
        self.kind: int = kind
        self.parameter: Any = parameter
        self.dtype: Any = parameter.dtype if kind <= _TILES and isinstance(parameter, Parameter) else None
        self.alignment: int = parameter.alignment if kind == _TILES and isinstance(parameter, Parameter) else 1
        self.before = bytes(-offset % 8)  # up to a box's address
        # Of anything else, ``pack`` gives the bytes behind the ``rest`` since the last multiple of 8: with those in
        # front, everything in it is aligned as it is in the whole.
        self.rest = offset % 8
        self.pack = struct.Struct(f"@{self.rest}x{parameter.struct_format}").pack


@final
class Plan:
    """What a specialization's launches do with their arguments."""

    __slots__ = ("end", "judged", "outputs", "slots", "uses_index_1d", "uses_index_2d")

    def __init__(self, special: Specialization) -> None:
        formats = "@"
        self.slots: list[Slot] = []
        for parameter in special.parameters:
            self.slots.append(Slot(parameter, struct.calcsize(formats)))
            formats += parameter.struct_format
        self.end = bytes(-struct.calcsize(formats) % 8)  # up to the fault record's address
        self.outputs = [place for place, slot in enumerate(self.slots) if slot.kind in (_DISJOINT, _TILES)]
        named: set[str] = set().union(*[contract.names for contract in special.kernel.contracts])
        integers = [
            (parameter.name if slot.kind == _SCALAR else f"len({parameter.name})", place)
            for place, (parameter, slot) in enumerate(zip(special.parameters, self.slots, strict=True))
        ]
        self.judged = [(name, place) for name, place in integers if name in named]
        """The arguments that the kernel's contracts speak of."""
        if len(self.judged) < len(named):  # of a tuple's numbers
            self.judged = []
        self.uses_index_1d: bool = special.uses_index_1d
        self.uses_index_2d: bool = special.uses_index_2d


@final
class Binding:
    """A launch's arguments as its execution needs them: the parameters, all but the fault record's address, the buffers
    read and written, and the device that all of them are on (None for a kernel of scalars)."""

    __slots__ = ("device", "params", "reads", "writes")

    def __init__(self, params: bytes, reads: list[Allocation], writes: list[Allocation], device: Device | None) -> None:
        self.params = params
        self.reads = reads
        self.writes = writes
        self.device = device


def bind(plan: Plan, arguments: tuple[Any, ...]) -> Binding | None:
    """The arguments' binding; None where one of them is not plainly right, or the boxes are on several devices."""
    slots = plan.slots
    if len(slots) != len(arguments):
        return None
    pieces: list[bytes] = []
    reads: list[Allocation] = []
    writes: list[Allocation] = []
    device: Device | None = None
    for place, slot in enumerate(slots):
        argument: object = arguments[place]
        kind = slot.kind
        if kind == _SCALAR:
            if type(argument) not in _NUMBERS and not isinstance(argument, np.generic):
                return None
            try:
                pieces.append(slot.pack(slot.parameter.convert(argument))[slot.rest :])
            except ArgumentError:
                return None
            continue
        if kind == _LIFTED:
            try:
                pieces.append(slot.pack(*slot.parameter.lifted.words(argument))[slot.rest :])
            except ArgumentError:
                return None
            continue
        box: object = argument.value if isinstance(argument, Arc) else argument
        if kind == _ARGUMENT:
            found = slot.parameter.type
            if type(found) is NumberType and (type(box) in _NUMBERS or isinstance(box, np.generic)):
                pieces.append(slot.pack(*found.flatten(box))[slot.rest :])
                continue
            if not isinstance(box, DeviceBox) or found != of_box(box.dtype, len(box.shape)):
                return None
        elif kind == _OTHER or not isinstance(box, DeviceBox) or box._dtype is not slot.dtype:
            return None
        allocation = box._allocation
        if device is None:
            device = allocation.device
        elif allocation.device is not device:
            return None
        if kind == _ARGUMENT:
            writes.append(allocation)
            pieces.append(slot.pack(*slot.parameter.type.flatten(box))[slot.rest :])
            continue
        if kind == _SLICE:
            reads.append(allocation)
        elif kind == _DISJOINT or box._ptr % slot.alignment == 0:
            writes.append(allocation)
        else:
            return None
        if slot.before:
            pieces.append(slot.before)
        pieces.append(box.words())
    if len(plan.outputs) > 1 and _overlap(plan, arguments):
        return None
    if plan.end:
        pieces.append(plan.end)
    return Binding(b"".join(pieces), reads, writes, device)


def judged(plan: Plan, arguments: tuple[Any, ...]) -> dict[str, int]:
    """What contracts speak of, of arguments that ``bind`` took; nothing where they speak of tuples."""
    known: dict[str, int] = {}
    for name, place in plan.judged:
        argument: object = arguments[place]
        if plan.slots[place].kind == _SCALAR:
            known[name] = int(plan.slots[place].parameter.convert(argument))
        else:
            box: Any = argument.value if isinstance(argument, Arc) else argument
            known[name] = box._size
    return known


def _overlap(plan: Plan, arguments: tuple[Any, ...]) -> bool:
    """Whether two outputs share memory, which ``aliasing.py`` judges."""
    ends = 0
    given = [arguments[place] for place in plan.outputs]
    boxes: list[DeviceBox] = [argument.value if isinstance(argument, Arc) else argument for argument in given]
    for start, nbytes in sorted([(box.ptr, box.nbytes) for box in boxes]):
        if nbytes and start < ends:
            return True
        ends = max(ends, start + nbytes)
    return False
