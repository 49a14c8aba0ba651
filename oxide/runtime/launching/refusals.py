"""Says what is wrong with the arguments of a launch that does not bind.

Binding (``binding.py``) only answers whether all arguments are in order. If they are not, ``refuse`` looks at them one
by one, and each error message is in this file. An argument that is an operation is checked as far as its spec is known;
the launch is bound when the operation has run, and then checked like any other.

Outputs of one launch that share memory: a ``DisjointSlice`` gives each thread its own elements. This holds for one
slice only: if two slices overlap, thread 0's element of one may be thread 4's element of the other, and both threads
write this element::

    a, b = whole.split(8)[0], whole.reshape(-1)
    kernel(a, b)     # allowed: both begin together and have the same layout, so a thread's elements are its own in both

So two outputs must not overlap, or they must begin at the same address with the same sizes of elements and tiles. If an
output has several axes, the rows of both outputs must have equal lengths too. Two ``AtomicSlice`` may overlap freely.
An input may share an output's memory: a thread that reads another thread's element may or may not see that thread's
write.

An input of a tile kernel may be the box of an output, as in ``scale(x.partition(shape), x)``. Each block then reads the
old elements of its own tile. An input must not overlap an output in any other way, because the compiler orders a
block's loads and stores by their tiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.signature.device_function import is_function
from oxide.compiler.signature.signature import Closed, Declared, NumbaParameter, Parameter, UntypedParameter
from oxide.errors import ArgumentError
from oxide.host.host_arrays import upload_of
from oxide.host.messages import written
from oxide.language.structures import StructureType
from oxide.runtime.launching.binding import Held, words_for
from oxide.runtime.launching.specializing import argument_type_of, converts
from oxide.runtime.memory.memory import Arc, DeviceBox, Partition
from oxide.runtime.operations.operation import BoxSpec, DeviceOperation, Spec, spec_of

if TYPE_CHECKING:
    from oxide.compiler.signature.signature import OpenFunction, OpenParameter
    from oxide.runtime.launching.binding import Plan

_ROW_ALIGNMENT: Final = 16
"""A GPU's copy engine takes only matrices whose rows begin at multiples of 16 bytes. All devices refuse other matrices,
so that a launch that works on one device works on all."""


def refuse(kernel: Kernel, plan: Plan, arguments: tuple[Any, ...]) -> tuple[Spec, ...]:
    """Returns the specs of the arguments of a launch that does not bind. Raises ``ArgumentError`` or ``LaunchError`` if
    they are wrong, as far as that is known before the operations among them have run."""
    parameters = plan.special.parameters
    if len(arguments) != len(parameters):
        raise wrong_count(kernel, arguments)
    specs = tuple([check(kernel, *pair) for pair in zip(parameters, arguments, strict=True)])
    boxes = _boxes(parameters, arguments)
    _refuse_shared_outputs(kernel.name, [pair for pair in boxes if pair[0].kind != "slice"])
    refuse_layouts(kernel.name, plan, arguments)
    if kernel.description.contracts:
        _check_contracts(kernel, parameters, arguments, specs)
    return specs


def _boxes(parameters: Sequence[Declared], arguments: Sequence[Any]) -> list[tuple[Parameter, DeviceBox]]:
    """Returns the boxes that are passed for slices of any kind, each with its parameter."""
    plain = [argument.value if isinstance(argument, Arc) else argument for argument in arguments]
    pairs = zip(parameters, plain, strict=True)
    return [(each, box) for each, box in pairs if isinstance(box, DeviceBox) and isinstance(each, Parameter)]


def _check_contracts(
    kernel: Kernel, parameters: Sequence[Closed], arguments: Sequence[Any], specs: Sequence[Spec]
) -> None:
    """Checks the contracts whose names are all known."""
    known: dict[str, int] = {}
    for parameter, argument, spec in zip(parameters, arguments, specs, strict=True):
        if isinstance(parameter, NumbaParameter):
            continue
        if isinstance(spec, BoxSpec) and parameter.lifted is None:
            names = (parameter.name,) if parameter.kind == "scalar" else parameter.lengths
            shape = parameter.elements(spec.shape)
            known |= zip(names, shape if parameter.ndim > 1 else (math.prod(shape),), strict=True)
        elif isinstance(argument, DeviceOperation):
            continue
        elif parameter.kind == "tuple" and parameter.lifted is not None:
            words = zip(parameter.lifted.parts, words_for(parameter, argument), strict=True)
            known |= {part.name: int(word) for part, word in words if part.dtype.kind in "iu"}
        elif parameter.kind == "scalar" and parameter.dtype.kind in "iu":
            (known[parameter.name],) = map(int, words_for(parameter, argument))
    for contract in kernel.description.contracts:
        if contract.names <= known.keys():
            contract.check(kernel.name, known)


def check(kernel: Kernel, parameter: Declared, argument: object) -> Spec:
    """Checks one argument as far as it is known, and returns its spec. Raises ``ArgumentError``."""
    if type(argument) is Held:
        return None
    if isinstance(parameter, NumbaParameter | UntypedParameter):
        _check_untyped(parameter, argument)
        return spec_of(argument)
    if parameter.kind == "function":
        if is_function(argument):
            if isinstance(parameter, Parameter) and parameter.lifted is not None:
                parameter.lifted.words(argument)
            return None
        raise ArgumentError(
            f"kernel {kernel.name}: parameter {parameter.name} is {parameter.annotation}, the argument is "
            f"{type(argument).__name__} {written(argument):.80}; pass a function: a lambda, a def or a @device function"
        )
    if TYPE_CHECKING:
        assert not isinstance(parameter, OpenFunction)
    if isinstance(parameter, Parameter) and parameter.lifted is not None:
        if not isinstance(argument, DeviceOperation):
            parameter.lifted.words(argument)
            return None
        spec: Spec = argument.spec()
        if isinstance(spec, BoxSpec):
            raise ArgumentError(
                f"kernel {kernel.name}, parameter {parameter.name}: expected {parameter.annotation}, got an operation "
                f"that yields {_found(spec)}"
            )
        return None
    if isinstance(argument, DeviceOperation):
        spec = argument.spec()
        if parameter.kind == "scalar":
            if isinstance(spec, (BoxSpec, tuple)):
                raise _refusal(kernel, parameter, "an operation that yields " + _found(spec))
            return spec
        if isinstance(spec, BoxSpec):
            _check_dtype(kernel, parameter, spec.dtype)
            _check_axes(kernel, parameter, spec.shape)
        elif isinstance(spec, tuple):
            raise _refusal(
                kernel, parameter, "an operation that yields a tuple; pick one with first(), last() or unzip()"
            )
        return spec
    if parameter.kind == "scalar":
        parameter.convert(argument)
        return None
    box = argument.value if isinstance(argument, Arc) else argument
    if isinstance(box, DeviceBox):
        _check_dtype(kernel, parameter, box.dtype)
        _check_axes(kernel, parameter, box.shape)
        if not box.is_contiguous:
            element = parameter.scalar.name if isinstance(parameter, Parameter) else parameter.variable
            strided = f", and Array[{element}, {box.ndim}] takes strides"
            if isinstance(parameter, Parameter) and parameter.of_tiles:
                strided = ""
            raise _refusal(
                kernel,
                parameter,
                f"a strided view, of shape {box.shape} and strides {box.strides} bytes: {parameter.annotation} takes "
                f"contiguous memory; dup(view) makes a contiguous box{strided}",
            )
        # A generic parameter is checked again when its type is known.
        if isinstance(parameter, Parameter) and not parameter.tile and box.ptr % parameter.alignment:
            elements = "vectors" if parameter.structure is None else "structures"
            raise _refusal(
                kernel,
                parameter,
                f"one at an address that is no multiple of {parameter.alignment}, where the {elements} of "
                f"{parameter.annotation} begin; dup(box) copies it to such an address",
            )
        if isinstance(parameter, Parameter) and parameter.kind == "tiles" and box.ptr % parameter.alignment:
            raise _refusal(
                kernel,
                parameter,
                f"one at an address that is no multiple of {parameter.alignment}, where the tiles of "
                f"{parameter.annotation} begin; partition a box at multiples of a tile, or write this piece by a "
                "DisjointSlice without a layout",
            )
        return BoxSpec(box.shape, box.dtype)
    if isinstance(box, np.ndarray):
        raise _refusal(
            kernel, parameter, "a NumPy array, which is in host memory; copy it to the device with h2d(array)"
        )
    if isinstance(box, Partition):
        raise _refusal(kernel, parameter, "a Partition, which is for tile kernels; pass partition.unpartition()")
    upload = upload_of(box, parameter.dtype if isinstance(parameter, Parameter) else None)
    if upload is not None:
        raise _refusal(
            kernel, parameter, f"a {type(box).__name__} x in host memory; copy it to the device with {upload}"
        )
    if isinstance(box, tuple):
        raise _refusal(kernel, parameter, "a tuple, as a launch yields all its arguments; pick one of them")
    raise _refusal(kernel, parameter, f"{type(argument).__name__} {written(argument):.80}")


def _check_untyped(parameter: UntypedParameter | NumbaParameter, argument: Any) -> None:
    """Raises ``ArgumentError`` for an argument of another type than the parameter's, or of a type that no kernel
    takes."""
    found = argument_type_of(argument)
    if isinstance(parameter, NumbaParameter):
        if isinstance(argument, DeviceOperation) and argument.spec() is None:
            return  # its result is checked after the run
        if found is not None:
            if not converts(found, parameter.type):
                raise ArgumentError(
                    f"kernel {parameter.kernel}, parameter {parameter.name}: expected {parameter.type}, got {found}"
                )
            return
    if found is None:
        raise _untyped_refusal(parameter.kernel, parameter.name, argument)


def _untyped_refusal(kernel: str, name: str, argument: Any) -> ArgumentError:
    """Returns the error for an argument that no kernel takes."""
    what = f"kernel {kernel}, parameter {name}: "
    if isinstance(argument, DeviceOperation):
        spec = argument.spec()
        if isinstance(spec, tuple):
            return ArgumentError(f"{what}an operation that yields a tuple; pick one with first(), last() or unzip()")
        return ArgumentError(
            f"{what}the parameter has no annotation and the operation does not say beforehand what it yields; annotate "
            f"the parameters, or launch on the result: operation.and_then(lambda x: {kernel}[...](x, ...))"
        )
    if isinstance(argument, np.ndarray):
        return ArgumentError(
            f"{what}a NumPy array, which is in host memory; copy it to the device with h2d(array), and the result back "
            "with d2h(box)"
        )
    if isinstance(argument, np.void):
        return ArgumentError(f"{what}a record, which is in host memory; copy it to the device with h2d(record)")
    if type(argument) is int:
        return ArgumentError(
            f"{what}{written(argument)} does not fit in 64 bits, and an int is passed as an i64 or a u64; annotate the "
            "parameter f32 or f64, or pass a float"
        )
    upload = upload_of(argument)
    if upload is not None and not isinstance(argument, tuple):
        return ArgumentError(f"{what}a {type(argument).__name__} x in host memory; copy it to the device with {upload}")
    return ArgumentError(
        f"{what}{type(argument).__name__} {written(argument):.80}; kernels take numbers, members of enumerations, "
        "None, device buffers, and tuples of these"
    )


def _check_dtype(kernel: Kernel, parameter: Parameter | OpenParameter, dtype: np.dtype[Any]) -> None:
    if isinstance(parameter, Parameter) and dtype != parameter.dtype and not parameter.scalar.takes(dtype):
        if parameter.structure is not None:
            raise _refusal(kernel, parameter, _other_structure(parameter.structure, dtype))
        raise _refusal(
            kernel,
            parameter,
            f"a box of {dtype}; convert the data before the upload: array.astype({str(parameter.dtype)!r})",
        )


def _other_structure(structure: StructureType, dtype: np.dtype[Any]) -> str:
    """Returns the text for a box of another dtype than a structure's, with the cure."""
    wanted = f"oxide.dtype_of({structure.name})"
    if dtype.names is None:
        return f"a box of {dtype}; make the array of structures as np.zeros(n, {wanted})"
    if set(dtype.names) != set(structure.fields):
        fields = ", ".join(structure.fields)
        return f"a box with the fields {', '.join(dtype.names)}; {structure.name} has {fields}: see {wanted}"
    if dtype.names != structure.fields:
        return (
            f"a box with the fields in the order {', '.join(dtype.names)}; convert the data before the upload: "
            f"array[{[*structure.fields]}].astype({wanted})"
        )
    for field in structure.fields:
        found, expected = dtype[field], structure.dtype[field]
        if found != expected and found.names is None:
            return (
                f"a box whose field {field} is {found}, not {expected}; convert the data before the upload: "
                f"array.astype({wanted})"
            )
    return (
        f"a box whose fields lie at other bytes, as in a packed dtype; convert the data before the upload: "
        f"array.astype({wanted})"
    )


def _check_axes(kernel: Kernel, parameter: Parameter | OpenParameter, shape: tuple[int, ...]) -> None:
    """Checks the number of axes. A slice of one axis takes any box, in row-major order; a slice of several axes takes
    only a box with that number of axes."""
    if parameter.components > 1:
        if shape[-1:] != (parameter.components,):
            raise _refusal(
                kernel,
                parameter,
                f"a box of shape {shape}: the last axis of {parameter.annotation} is that of the vectors, and has "
                f"{parameter.components}; box.reshape(…) gives the same memory other axes",
            )
        if parameter.ndim not in (1, len(shape) - 1):
            raise _refusal(
                kernel,
                parameter,
                f"a box of shape {shape}: {parameter.annotation} takes one of {parameter.ndim + 1} axes, of which the "
                "last is that of the vectors; box.reshape(…) gives the same memory other axes",
            )
        return
    if parameter.ndim not in (1, len(shape)):
        axes = "one axis" if len(shape) == 1 else f"{len(shape)} axes"
        raise _refusal(
            kernel,
            parameter,
            f"a box of {axes}, of shape {shape}: {parameter.annotation} takes one of {parameter.ndim} axes; "
            "box.reshape(…) gives the same memory other axes",
        )


def _refusal(kernel: Kernel, parameter: Parameter | OpenParameter, found: str) -> ArgumentError:
    kind = "a scalar" if parameter.kind == "scalar" else "a device buffer"
    of = parameter.dtype if isinstance(parameter, Parameter) else parameter.variable
    if isinstance(parameter, Parameter) and parameter.structure is not None:
        of = parameter.structure.name
    return ArgumentError(f"kernel {kernel.name}, parameter {parameter.name}: expected {kind} of {of}, got {found}")


def _found(spec: Spec) -> str:
    return f"a box of {spec.dtype}" if isinstance(spec, BoxSpec) else "a tuple"


def wrong_count(kernel: Kernel, arguments: tuple[Any, ...]) -> ArgumentError:
    count = len(kernel.parameters)
    return ArgumentError(
        f"kernel {kernel.name} takes {count} argument{'s' * (count != 1)} "
        f"({', '.join(parameter.name for parameter in kernel.parameters)}), got {len(arguments)}"
    )


def _refuse_shared_outputs(kernel: str, outputs: Sequence[tuple[Parameter, DeviceBox]]) -> None:
    """Raises ``ArgumentError`` for two outputs of a launch through which two threads could write the same element.

    ``outputs`` are the parameters of kinds ``disjoint``, ``tiles`` and ``atomic``, each with its box.
    """
    for number, (second, box) in enumerate(outputs):
        for first, other in outputs[:number]:
            apart = other.ptr + other.nbytes <= box.ptr or box.ptr + box.nbytes <= other.ptr
            if not apart and _conflict(first, other, second, box):
                raise ArgumentError(
                    f"kernel {kernel}: the outputs {first.name} ({first.annotation}, bytes {other.ptr:#x} to "
                    f"{other.ptr + other.nbytes:#x}) and {second.name} ({second.annotation}, bytes {box.ptr:#x} to "
                    f"{box.ptr + box.nbytes:#x}) share memory, and two threads could write the same element; give each "
                    "output memory of its own"
                )


def refuse_layouts(kernel: str, plan: Plan, arguments: tuple[Any, ...]) -> None:
    """Raises ``ArgumentError`` for boxes of the right types that a kernel which copies tiles does not take."""
    parameters = plan.special.parameters
    _refuse_uneven_rows(kernel, parameters, plan.tiled, arguments)
    if plan.special.description.tile is not None:
        refuse_shared_tensors(kernel, parameters, arguments)


def refuse_shared_tensors(kernel: str, parameters: Sequence[Declared], arguments: Sequence[Any]) -> None:
    """Raises ``ArgumentError`` for an input of a tile kernel that overlaps an output and is not the same box."""
    boxes = _boxes(parameters, arguments)
    outputs = [pair for pair in boxes if pair[0].kind != "slice"]
    for one, box in boxes:
        for output, other in outputs:
            apart = other.ptr + other.nbytes <= box.ptr or box.ptr + box.nbytes <= other.ptr
            same = other.ptr == box.ptr and other.shape == box.shape and other.dtype == box.dtype
            if one.kind == "slice" and not apart and not same:
                raise ArgumentError(
                    f"kernel {kernel}: the input {one.name} (shape {box.shape}) and the output {output.name} (shape "
                    f"{other.shape}) overlap in memory and are not one box; give the output memory of its own"
                )


def _conflict(first: Parameter, other: DeviceBox, second: Parameter, box: DeviceBox) -> bool:
    """Returns whether two overlapping outputs give the same element to two threads."""
    if first.kind == second.kind == "atomic":
        return False
    same = first.kind == second.kind and first.tile == second.tile and other.ptr == box.ptr
    if first.ndim > 1 or second.ndim > 1:
        same = same and first.ndim == second.ndim and other.shape[1:] == box.shape[1:]
    sizes = [each.components * each.dtype.itemsize for each in (first, second)]
    return not (same and sizes[0] == sizes[1])


def _refuse_uneven_rows(
    kernel: str, parameters: tuple[Closed, ...], tiled: tuple[int, ...], arguments: tuple[Any, ...]
) -> None:
    """Raises ``ArgumentError`` for a box whose rows cannot be copied. ``tiled`` has the places of the parameters to
    check. Arguments that are not boxes are accepted."""
    for number in tiled:
        given = arguments[number]
        box = given.value if isinstance(given, Arc) else given
        declared = parameters[number]
        flat = isinstance(declared, Parameter) and declared.ndim == 1
        if flat and isinstance(box, DeviceBox):
            if box.size == 0 or box.ptr % _ROW_ALIGNMENT:
                raise ArgumentError(
                    f"kernel {kernel}, parameter {declared.name}: expected elements that begin at a multiple of "
                    f"{_ROW_ALIGNMENT} bytes, as the kernel copies tiles of it, got a box of {box.dtype} of shape "
                    f"{box.shape} at address {box.ptr:#x}"
                )
        elif isinstance(box, DeviceBox) and not _even_rows(box):
            way = "tensor.load_tile copies from it" if declared.kind == "slice" else "tensor.store_tile copies to it"
            raise ArgumentError(
                f"kernel {kernel}, parameter {parameters[number].name}: expected a matrix whose rows begin at "
                f"multiples of {_ROW_ALIGNMENT} bytes, as {way}, got a box of {box.dtype} of "
                f"shape {box.shape} at address {box.ptr:#x}; make the rows longer, to a multiple of "
                f"{_ROW_ALIGNMENT // box.dtype.itemsize} columns"
            )


def _even_rows(box: DeviceBox) -> bool:
    """Returns whether a box has elements and each row of it begins at a multiple of 16 bytes."""
    pitch = box.shape[-1] * box.dtype.itemsize
    return box.size > 0 and box.ptr % _ROW_ALIGNMENT == 0 and pitch % _ROW_ALIGNMENT == 0
