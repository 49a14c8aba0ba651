"""Declared inputs of graphs: boxes that each launch fills."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import numpy as np

from oxide.errors import DeviceError, GraphError
from oxide.host.core import new_box
from oxide.host.host_arrays import host_array
from oxide.host.messages import dtype_name, written
from oxide.language.types import f32
from oxide.runtime.memory.arc import Arc
from oxide.runtime.memory.memory import DeviceBox, parse_shape, require_runtime
from oxide.runtime.operations.new_boxes import NewBox, data_dtype, describe
from oxide.runtime.operations.operation import BoxSpec, Depiction, DeviceOperation, consume
from oxide.runtime.operations.transfers import contiguous, copy_box
from oxide.runtime.submission.staging import upload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from oxide.runtime.devices.runtime import Device
    from oxide.runtime.operations.new_boxes import DType, Shape
    from oxide.runtime.submission.submission import ExecutionContext

Source: TypeAlias = "DeviceBox | NDArray[Any] | DeviceOperation[Any]"
"""The source that a launch fills an input from. If it is an operation, this yields a box or an ``Arc`` of a box."""

_numbers: Final = count(1)


@final
class Input(NewBox):
    """The operation that ``input`` returns. ``number`` tells the order of declaration."""

    _called = "input"

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.number = next(_numbers)
        super().__init__(shape, dtype)

    def execute(self, context: ExecutionContext) -> DeviceBox:
        recording = context.recording
        if recording is None or recording.is_of_run:
            raise GraphError(
                f"{self!r} has no value outside a graph: capture the operation with op.graph(), and give the graph's "
                f"launch(…) an array or a box for it; h2d(array) is an operation that runs by itself"
            )
        box: DeviceBox | None = recording.inputs.get(self.number)
        if box is None:
            box = recording.inputs[self.number] = new_box(context, self._shape, self._dtype)
        return box

    def depict(self) -> Depiction:
        kind, title, lines, inputs = super().depict()
        return kind, title, (describe(self._shape, self._dtype), *lines), inputs

    def __repr__(self) -> str:
        return f"<oxide input {describe(self._shape, self._dtype)}>"


def input(shape: Shape, dtype: DType = f32) -> DeviceOperation[DeviceBox]:
    """Declares an input of a graph: an operation that yields a box of this shape and dtype, which each launch of the
    graph fills.

    ``graph.launch(x, y)`` takes an array or a box for each input that the captured operation uses, in the order in
    which the inputs were declared. Running the operation outside a graph raises ``GraphError``. Raises ``TypeError`` or
    ``ValueError`` for a shape or dtype that a box cannot have.
    """
    return Input(parse_shape(shape, "input"), data_dtype(dtype, "input"))


def accepted(inputs: Sequence[DeviceBox], arguments: tuple[object, ...], device: Device) -> tuple[Source, ...]:
    """Checks the arguments of a launch, and returns the box, array or operation that fills each input. Raises
    ``TypeError`` for a wrong number of arguments and for an argument of a wrong type or dtype, ``ValueError`` for a
    wrong shape, and ``DeviceError`` for a box of another device."""
    consume(arguments)
    if len(arguments) != len(inputs):
        declared = ", ".join([describe(box.shape, box.dtype) for box in inputs])
        raise TypeError(
            f"graph.launch takes {len(inputs)} argument{'s' * (len(inputs) != 1)}, one for each of its inputs"
            f"{f' ({declared})' if inputs else ''}, got {len(arguments)}"
        )
    return tuple([_source(number, box, arguments[number], device) for number, box in enumerate(inputs)])


def fill_inputs(context: ExecutionContext, inputs: Sequence[DeviceBox], sources: Sequence[Source]) -> None:
    """Submits the copies that fill the inputs from arrays and boxes. Arrays are read until the run has completed, as
    ``h2d`` reads them. A box that lies in an input that is filled before it is copied first."""
    sources = list(sources)
    for number, source in enumerate(sources):
        if isinstance(source, DeviceBox) and any(source._allocation is each._allocation for each in inputs[:number]):
            sources[number] = contiguous(context, source, copied=True)
    for box, source in zip(inputs, sources, strict=True):
        if isinstance(source, DeviceBox):
            copy_box(context, box, source)
        elif box.nbytes:
            assert isinstance(source, np.ndarray)
            upload(context, box, source)


def arrived(number: int, box: DeviceBox, given: object, device: Device) -> DeviceBox:
    """Checks ``given``, which an operation yielded for the input ``box``, and returns it as a box. Raises the errors
    that ``accepted`` raises for a wrong argument."""
    found = _source(number, box, given, device)
    if isinstance(found, DeviceBox):
        return found
    raise TypeError(f"{_named(number, box)}, takes an operation that yields a box, not {type(given).__name__}")


def _source(number: int, box: DeviceBox, given: object, device: Device) -> Source:
    if isinstance(given, DeviceOperation):
        spec = given.spec()
        if isinstance(spec, BoxSpec):
            _check(number, box, spec.shape, spec.dtype)
        return given
    plain = given.value if isinstance(given, Arc) else given
    if isinstance(plain, DeviceBox):
        name = _named(number, box)
        if plain.device is not device:
            require_runtime(plain, device, name)
            raise DeviceError(
                f"{name}: the box is on {plain.device.label}, and the graph runs on "
                f"{device.label}: give a box of that device, or an array"
            )
        _check(number, box, plain.shape, plain.dtype)
        return plain
    if not isinstance(plain, np.ndarray):
        raise TypeError(f"{_named(number, box)}, takes an array or a box, not {type(given).__name__} {written(given)}")
    array: NDArray[Any] = plain if type(plain) is np.ndarray else host_array(plain, "graph.launch")
    _check(number, box, array.shape, array.dtype)
    return array


def _check(number: int, box: DeviceBox, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if dtype != box.dtype:
        raise TypeError(
            f"{_named(number, box)}, takes {dtype_name(box.dtype)}, not {dtype_name(dtype)}: convert the data before, "
            f"with array.astype(…)"
        )
    if shape != box.shape:
        raise ValueError(f"{_named(number, box)}, has shape {box.shape}, and was given one of {shape}")


def _named(number: int, box: DeviceBox) -> str:
    return f"graph.launch: input {number}, {describe(box.shape, box.dtype)}"
