"""Calls of the operators that ``oxide.torch.op`` defined: tensors become boxes, an operation runs, and its boxes become
tensors.

A call of a kernel's operator with the shapes, dtypes, devices and integers of an earlier call needs the same grid and
passes the same checks: only addresses and floats differ. So its parameters are packed and passed to the driver
directly, without boxes and without an operation. Torch keeps the memory of such a call, and orders it by the stream. A
call of 1,024 elements takes a third of the time that it takes with the checks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import torch

from oxide.compiler.signature.signature import SAFE_FLOAT, Parameter
from oxide.errors import DeviceError, GraphError, OxideError
from oxide.host.core import run_blocking
from oxide.host.messages import written
from oxide.interop.sharing import from_dlpack
from oxide.language.types import SCALARS
from oxide.runtime.devices.fault_records import StandingReport
from oxide.runtime.devices.runtime import Device, Runtime, current_runtime
from oxide.runtime.devices.scheduling import picked_stream
from oxide.runtime.launching.launch import KernelLaunch
from oxide.runtime.memory.allocation import Allocation
from oxide.runtime.memory.memory import DeviceBox
from oxide.runtime.operations.operation import DeviceOperation
from oxide.runtime.ordering.stream import Stream, current_capture
from oxide.runtime.submission.lending import Lender, submit_lent
from oxide.runtime.tracepoints import points

_LEGACY_DEFAULT_STREAM = 1
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""Returns the address of a device's current stream, in a tenth of the time of ``torch.cuda.current_stream``. Inductor's
code calls it, too. It is None in a torch that was built without CUDA."""
_MOST_REPEATED = 256  # the number of combinations of shapes that one operator remembers
_TO_NUMPY: dict[Any, np.dtype[Any]] = {
    getattr(torch, scalar.dtype_name): scalar.dtype for scalar in SCALARS.values() if hasattr(torch, scalar.dtype_name)
}
_TO_TORCH = {numpys: dtype for dtype, numpys in _TO_NUMPY.items()}


def memory_of(dtype: np.dtype[Any]) -> Any:
    """Returns torch's dtype for a NumPy dtype; ``torch.uint8`` for a dtype that torch does not have."""
    return _TO_TORCH.get(dtype, torch.uint8)


@final
class _Place:
    """The place where a call runs: one of torch's streams on a GPU, or the CPU device."""

    __slots__ = ("_torch_device", "device", "stream")

    def __init__(self, device: Device, torch_device: Any, stream: Stream | None) -> None:
        self.device = device
        self._torch_device = torch_device
        self.stream = stream  # None on the CPU device

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, object]:
        """Allocates a new tensor. Returns its address and the tensor."""
        found = _TO_TORCH.get(dtype)
        if found is None:
            shape, found = (*shape, dtype.itemsize), torch.uint8
        tensor = torch.empty(shape, dtype=found, device=self._torch_device)
        return tensor.data_ptr(), tensor

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Returns a new, uninitialised tensor."""
        return torch.empty(shape, dtype=dtype, device=self._torch_device)


@final
class _State:
    """The state that all operators share while one runtime is current."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.is_cuda = runtime.driver.name == "cuda"
        self.report = StandingReport(runtime.fault_records) if self.is_cuda else None
        self.functions: dict[int, object] = {}
        self.places: dict[tuple[int, int], _Place] = {}
        self.warm: set[tuple[str, int]] = set()  # each operator that has run, with the number of the GPU

    def place(self, index: int, address: int) -> _Place:
        """Returns the place for one of torch's streams: ``index`` is the number of the stream's GPU, ``address`` is the
        stream's ``cudaStream_t``. The place of the CPU device has -1 and 0."""
        found = self.places.get((index, address))
        if found is None:
            if not self.is_cuda:
                found = _Place(self.runtime.devices[0], torch.device("cpu"), None)
            else:
                device = self.runtime.device(index)
                timeline = device.foreign_timeline(address or _LEGACY_DEFAULT_STREAM)
                found = _Place(device, torch.device("cuda", index), Stream(device, timeline=timeline))
            found = self.places.setdefault((index, address), found)
        return found


_state: _State | None = None


def _current_state() -> _State:
    global _state
    runtime, found = current_runtime(), _state
    if found is None or found.runtime is not runtime:
        found = _state = _State(runtime)
    return found


def synchronize() -> None:
    """Waits for all work of torch and of its operators on every GPU. Raises the first fault of an operator's kernel
    since the last report."""
    if torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)
    state = _state
    if state is not None and state.report is not None and state.runtime is current_runtime():
        for place in list(state.places.values()):
            if place.stream is not None:
                place.stream.synchronize()
        state.report.raise_fault()


@final
class RepeatedLaunch:
    """A launch that can be repeated with other addresses and floats."""

    __slots__ = ("_arguments", "_dtypes", "_float_places", "_pack", "_places", "_special", "_values")

    def __init__(self, launch: KernelLaunch, function: Any, report: StandingReport, made: Sequence[Any]) -> None:
        """Takes over the grid and the parameters of ``launch``, its loaded kernel ``function`` and outputs ``made``."""
        self._dtypes = [each.dtype for each in made]
        config = launch._config
        assert config is not None
        special = self._special = launch.specialization
        formats = "@"
        values: list[Any] = []
        inputs: list[int] = []
        outputs: list[int] = []
        self._float_places: list[int] = []
        for parameter, argument in zip(special.parameters, launch._arguments, strict=True):
            assert isinstance(parameter, Parameter)
            formats += parameter.struct_format
            if isinstance(argument, DeviceBox):
                (inputs if parameter.kind == "slice" else outputs).append(len(values))
                values += [argument.ptr, *(argument.shape if parameter.ndim > 1 else (argument.size,))]
            else:
                if parameter.is_float:
                    self._float_places.append(len(values))
                values.append(parameter.convert(argument))
        values.append(int.from_bytes(report.word(special), "little") if function.reports else 0)
        self._pack = struct.Struct(f"{formats}Q").pack
        self._values = values
        self._places = [*inputs, *outputs]
        self._arguments = (function, config._grid, config._block, config._shared_mem_bytes)

    def outputs_like(self, first: Any, pointers: list[int]) -> tuple[Any, ...]:
        """Returns new tensors of the outputs' dtypes and of the shape of ``first``, which is contiguous. Appends their
        addresses to ``pointers``."""
        shape = first.shape
        made = tuple([first.new_empty(shape, dtype=dtype) for dtype in self._dtypes])
        pointers += [each.data_ptr() for each in made]
        return made

    def submit(self, device: Device, stream: Stream, pointers: Sequence[int], floats: Sequence[float]) -> bool:
        """Launches the kernel with other floats and other addresses: those of the inputs, then those of the outputs.
        Returns False, and launches nothing, if a float needs a check. Raises ``LaunchError`` if the driver refuses the
        launch."""
        values = self._values.copy()
        for place, pointer in zip(self._places, pointers, strict=True):
            values[place] = pointer
        for place, number in zip(self._float_places, floats, strict=True):
            if not -SAFE_FLOAT <= number <= SAFE_FLOAT:
                return False
            values[place] = number
        params = self._pack(*values)
        with device.runtime.submission:
            device.driver.launch(*self._arguments, params, stream._timeline.handle)
        return True


def repeated(launch: Any, device: Device, report: StandingReport, outputs: Sequence[Any]) -> RepeatedLaunch | None:
    """Makes a ``RepeatedLaunch`` of a launch that has run on ``device``. Returns None if each call must be checked."""
    if type(launch) is not KernelLaunch or not launch._bound or launch._config is None:
        return None
    plan = launch._plan
    function = device.loaded.get(plan.reference)
    if function is None or plan.interpreted or plan.tiled:
        return None
    for slot in plan.slots:
        parameter = slot.parameter
        plain = isinstance(parameter, Parameter) and parameter.lifted is None
        if not plain or parameter.kind not in ("slice", "disjoint", "scalar"):
            return None
        # A call with other integers does not repeat this launch. Floats other than f32 and f64 are passed as bits.
        if parameter.kind == "scalar" and parameter.scalar.kind == "f" and (not parameter.is_float or slot.judged):
            return None
    return RepeatedLaunch(launch, function, report, outputs)


@final
class Run:
    """The implementation of one operator. If the operator is a kernel, ``build`` returns the kernel's launch for the
    boxes of its inputs and outputs. If it is a function, whose operation yields the outputs, ``build`` is None."""

    def __init__(
        self,
        name: str,
        schema: Any,
        outputs: Callable[..., tuple[Any, ...]],
        function: Callable[..., DeviceOperation[Any]],
        build: Callable[[Sequence[Any], Sequence[Any]], DeviceOperation[Any]] | None,
        like_inputs: bool = False,
    ) -> None:
        self._name = name
        self._names = [each.name for each in schema.arguments]
        self._defaults = [each.default_value for each in schema.arguments]
        self._count = len(schema.returns)
        self._outputs = outputs
        self._function = function
        self._build = build
        self._like_inputs = like_inputs  # whether outputs have the first tensor's shape, as a kernel's do by default
        self._again: dict[tuple[Any, ...], RepeatedLaunch | None] = {}  # a kernel's earlier launches, by their ``_key``
        self._again_in: _State | None = None  # the state in which the launches of ``_again`` ran
        self._compared = build is not None  # whether a function's results were compared with ``outputs``, once
        self.__name__ = name.replace("::", "_")

    def complete(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the arguments with defaults appended: torch leaves out trailing arguments that have them."""
        missing = len(self._names) - len(arguments)
        return (*arguments, *self._defaults[-missing:]) if missing else arguments

    def __call__(self, *arguments: Any) -> Any:
        if len(arguments) < len(self._names):
            arguments = self.complete(arguments)
        state = _current_state()
        if state.is_cuda and self._build is not None:
            tensors = self._repeat(state, arguments)
            if tensors is not None:
                return tensors[0] if self._count == 1 else tensors
        index = self._device_index(arguments)
        if index < 0 or not state.is_cuda:
            return self._on_cpu(state, index, arguments)
        report = state.report
        captures: bool = torch.cuda.is_current_stream_capturing()
        place = state.place(index, _raw_stream(index))
        if not captures:
            assert report is not None
            if report.claimed():
                synchronize()
        elif (self._name, index) not in state.warm:
            raise GraphError(
                f"{self._name}: call it once before torch captures it, so that its kernels are compiled and loaded: "
                f"torch.cuda.graph's page shows how to warm up"
            )
        lender = Lender(place.allocate, report, state.functions)
        stream = place.stream
        assert stream is not None
        try:
            found = self._run(place, stream, lender, arguments, captures)
        except OxideError as error:
            self._explain(error, arguments)
            raise
        if not captures:
            state.warm.add((self._name, index))
        return found

    def _repeat(self, state: _State, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Launches a kernel as an earlier call did, and returns the outputs; None if the call must be checked."""
        report, ranges = state.report, state.runtime.shared_ranges
        assert report is not None
        if self._again_in is not state or report.claimed():
            return None
        if points.tracer is not None or current_capture.get() is not None:
            return None
        pointers: list[int] = []
        key, floats = self._key(arguments, pointers)
        if key is None:
            return None
        if self._like_inputs:  # the inputs decide the outputs, which are new memory: nothing to compare
            launch = self._again.get(tuple(key))
            if launch is None:
                return None
            first = next(each for each in arguments if isinstance(each, torch.Tensor))
            outputs = launch.outputs_like(first, pointers)
        else:
            outputs = self._outputs(*arguments)
            written_key, _ = self._key(outputs, pointers)
            launch = self._again.get((*key, *written_key)) if written_key is not None else None
            if launch is None:
                return None
            self._refuse_own_inputs(pointers)
        if ranges._starts and any(
            ranges.overlapping(each.data_ptr(), each.nbytes)
            for each in (*arguments, *outputs)
            if isinstance(each, torch.Tensor) and each.nbytes
        ):
            return None
        index: int = outputs[0].get_device()
        place = state.place(index, _raw_stream(index))
        if place.device.lost is not None or place.stream is None:
            return None
        try:
            return outputs if launch.submit(place.device, place.stream, pointers, floats) else None
        except OxideError as error:
            self._explain(error, arguments)
            raise

    def _key(self, values: tuple[Any, ...], pointers: list[int]) -> tuple[list[Any] | None, list[float]]:
        """Returns a key and the floats among ``values``. Calls of equal keys need the same launch, with other addresses
        and floats. The key is None if a tensor must be copied first. Appends the tensors' addresses to ``pointers``."""
        key: list[Any] = []
        floats: list[float] = []
        for each in values:
            kind = type(each)  # for an object that is no tensor, isinstance calls a Python function of torch's
            if kind is float:
                floats.append(each)
            elif kind is torch.Tensor or isinstance(each, torch.Tensor):
                if not each.is_contiguous():
                    return None, floats
                key += (each.shape, each.dtype, each.get_device())
                pointers.append(each.data_ptr())
            else:
                key.append(each)
        return key, floats

    def _remember(
        self, place: _Place, launch: Any, arguments: tuple[Any, ...], outputs: tuple[Any, ...], report: StandingReport
    ) -> None:
        """Keeps a launch that has been submitted, so that ``_repeat`` can repeat it."""
        state = _current_state()
        if self._again_in is not state:
            self._again.clear()
            self._again_in = state
        key, _ = self._key(arguments if self._like_inputs else (*arguments, *outputs), [])
        if key is not None and len(self._again) < _MOST_REPEATED:
            self._again[tuple(key)] = repeated(launch, place.device, report, outputs)

    def _refuse_own_inputs(self, pointers: list[int]) -> None:
        """Raises ``ValueError`` if an output has the address of an input or of another output. The outputs' addresses
        are the last of ``pointers``."""
        count = self._count
        written_to = pointers[-count:]
        if any(each and (each in pointers[:-count] or written_to.count(each) > 1) for each in written_to):
            raise ValueError(
                f"{self._name}: outputs returned an input, or one tensor twice; it must return new tensors, as "
                f"torch.empty_like(x)"
            )

    def _on_cpu(self, state: _State, index: int, arguments: tuple[Any, ...]) -> Any:
        if state.is_cuda or index >= 0:
            where, ours = ("cpu", "cuda") if index < 0 else (f"cuda:{index}", "cpu")
            raise DeviceError(
                f"{self._name}: the tensors are on {where}, and oxide's devices are {ours} devices: "
                + ("move them with tensor.cuda()" if index < 0 else "set OXIDE_DEVICE=cuda")
                + ", or set OXIDE_DEVICE=cpu and pass CPU tensors"
            )
        place = state.place(-1, 0)
        stream = picked_stream(state.runtime.policy, place.device)
        try:
            found = self._run(place, stream, Lender(place.allocate, None, state.functions), arguments, None)
        except OxideError as error:
            self._explain(error, arguments)
            raise
        return found

    def _run(
        self, place: _Place, stream: Stream, lender: Lender, arguments: tuple[Any, ...], captures: bool | None
    ) -> Any:
        """Runs the operator and returns its output, or the tuple of its outputs. ``captures`` says whether torch
        captures the stream. It is None on the CPU device, where this waits for the run."""
        inputs: list[Allocation] = []
        boxes = [self._given(place, stream, lender, each, inputs) for each in arguments]
        if self._build is not None:
            tensors = self._outputs(*arguments)
            found = [each for each in arguments if isinstance(each, torch.Tensor)]
            self._refuse_own_inputs([each.data_ptr() for each in (*found, *tensors)])
            written_boxes = [self._box(place, stream, lender, each) for each in tensors]
            operation = self._build(boxes, written_boxes)
        else:
            operation = self._function(*boxes)
            if not isinstance(operation, DeviceOperation):
                raise TypeError(
                    f"{self._name}: the function returned {written(operation)}; it must return an operation that "
                    f"yields the outputs"
                )
        if captures is None:
            result = run_blocking(operation, stream, lender)
        else:
            result = submit_lent(operation, stream, lender, captures)
        if self._build is None:
            self._refuse_written(inputs)
            tensors = self._results(place, lender, result)
            if not self._compared:
                self._compare(tensors, arguments)
        else:
            if lender.report is not None:
                self._remember(place, operation, arguments, tensors, lender.report)
            written_boxes.clear()
        boxes.clear()
        inputs.clear()
        del operation, result
        lender.give_back()
        return tensors[0] if self._count == 1 else tensors

    # Tensors as boxes

    def _device_index(self, arguments: tuple[Any, ...]) -> int:
        """Returns the number of the GPU that the tensors are on, -1 for the CPU. Raises ``DeviceError`` if they are on
        several devices."""
        found: int | None = None
        for each in arguments:
            for tensor in each if isinstance(each, (list, tuple)) else (each,):
                if isinstance(tensor, torch.Tensor):
                    index: int = tensor.get_device()
                    if found is None:
                        found = index
                    elif index != found:
                        raise DeviceError(
                            f"{self._name}: the tensors are on several devices: {self._described(arguments)}"
                        )
        if found is None:
            raise TypeError(f"{self._name}: no argument is a tensor")
        return found

    def _given(self, place: _Place, stream: Stream, lender: Lender, given: Any, inputs: list[Allocation]) -> Any:
        """Converts an argument of the operator for the function or the kernel: a tensor to a box. Appends the box's
        memory to ``inputs``."""
        if isinstance(given, torch.Tensor):
            box = self._box(place, stream, lender, given if given.is_contiguous() else given.contiguous())
            inputs.append(box._allocation)
            return box
        if isinstance(given, (list, tuple)):
            return [self._given(place, stream, lender, each, inputs) for each in given]
        return given

    def _box(self, place: _Place, stream: Stream, lender: Lender, tensor: Any) -> DeviceBox:
        """Returns a box on the memory of a contiguous tensor."""
        dtype = _TO_NUMPY.get(tensor.dtype)
        if dtype is None:
            raise TypeError(f"{self._name}: a tensor is of {tensor.dtype}, which is no dtype of boxes; convert it")
        shape = tuple(tensor.shape)
        nbytes: int = tensor.nbytes
        address: int = tensor.data_ptr() if nbytes else 0
        ranges = place.device.runtime.shared_ranges
        if ranges._starts and nbytes and ranges.overlapping(address, nbytes):
            # Other boxes exist on this memory. A box from from_dlpack shares their history, so its uses are ordered
            # with theirs.
            return from_dlpack(tensor.detach())
        return DeviceBox(lender.lent(stream._timeline, address, nbytes, shape, dtype, tensor), shape, dtype)

    # Boxes as tensors

    def _results(self, place: _Place, lender: Lender, result: Any) -> tuple[Any, ...]:
        results = (result,) if isinstance(result, DeviceBox) else result
        if not isinstance(results, (tuple, list)) or not all(isinstance(each, DeviceBox) for each in results):
            raise TypeError(
                f"{self._name}: the operation yielded {written(result)}; it must yield "
                + ("a box, for the output" if self._count == 1 else f"a tuple of {self._count} boxes, for the outputs")
            )
        if len(results) != self._count:
            hint = "; pick the outputs with first() or last()" if self._count == 1 else ""
            raise TypeError(
                f"{self._name}: the operation yielded {len(results)} boxes, and the schema says {self._count}{hint}"
            )
        taken: list[Allocation] = []
        return tuple([self._tensor(place, lender, box, taken) for box in results])

    def _tensor(self, place: _Place, lender: Lender, box: DeviceBox, taken: list[Allocation]) -> Any:
        """Returns the tensor for a box that the operation yielded. ``taken`` lists the memory of the outputs so far."""
        allocation, dtype = box._allocation, _TO_TORCH.get(box.dtype)
        if dtype is None:
            raise TypeError(f"{self._name}: the operation yielded a box of {box.dtype}, which is no dtype of torch's")
        if not box.is_contiguous:
            raise ValueError(
                f"{self._name}: the operation yielded a strided view, of shape {box.shape}; yield dup(view)"
            )
        if not box.nbytes:
            return place.empty(box.shape, dtype)
        if not any(each is allocation for each in lender.made):
            raise ValueError(
                f"{self._name}: the operation yielded a box that the call did not make, an input or a box from "
                f"outside; outputs of torch's operators are new memory, so yield dup(box)"
            )
        tensor: Any = allocation.owners[0][2]
        shared = any(each is allocation for each in taken)
        taken.append(allocation)
        if box.nbytes == allocation.nbytes and not shared:
            if tensor.dtype is not dtype or tuple(tensor.shape) != box.shape:
                tensor = tensor.reshape(-1).view(dtype).view(box.shape)
            return tensor
        flat = tensor.reshape(-1).view(torch.uint8)
        return flat[box._offset : box._offset + box.nbytes].clone().view(dtype).view(box.shape)

    def _refuse_written(self, inputs: list[Allocation]) -> None:
        for allocation in inputs:
            if allocation.known is None and allocation.written_by is not None:
                raise ValueError(
                    f"{self._name}: the function wrote to an input, {allocation.label}, and torch does not know; "
                    f"write to a box of empty(…) or dup(…) and yield that"
                )

    def _compare(self, tensors: tuple[Any, ...], arguments: tuple[Any, ...]) -> None:
        """Compares the shapes and dtypes of the results with those of the tensors that ``outputs`` returns. Raises
        ``ValueError`` if they differ. After the first success, the operator skips this comparison."""
        promised = self._outputs(*arguments)
        found = [(tuple(each.shape), each.dtype) for each in tensors]
        wanted = [(tuple(each.shape), each.dtype) for each in promised]
        if found != wanted:
            raise ValueError(
                f"{self._name}: the operation yielded {_shapes(found)}, and outputs says {_shapes(wanted)}: the fake "
                f"implementation must agree with the function"
            )
        self._compared = True

    def _explain(self, error: OxideError, arguments: tuple[Any, ...]) -> None:
        error.add_note(f"in torch's operator {self._name}, of {self._described(arguments)}")

    def _described(self, arguments: tuple[Any, ...]) -> str:
        parts = []
        for name, each in zip(self._names, arguments, strict=True):
            if isinstance(each, torch.Tensor):
                parts.append(f"{name} {each.dtype} {tuple(each.shape)} on {each.device}")
            else:
                parts.append(f"{name}={written(each)}")
        return ", ".join(parts)


def _shapes(found: list[tuple[tuple[int, ...], Any]]) -> str:
    return ", ".join(f"{dtype} {shape}" for shape, dtype in found)
