"""Kernels and operations as torch's custom operators: ``oxide.torch.op``.

A call runs on torch's current stream, in memory of torch's allocator. The inputs are read in place if they are
contiguous, and copied first if not. The outputs and temporaries of the operations are allocated by torch
(``runtime/submission/lending.py``). So torch's rules for streams hold, and torch can capture the call in its CUDA
graphs.

The operator is defined by the lowest level of ``torch.library``, ``Library.impl``. With ``torch.library.custom_op``,
each call would take longer: it adds checks, which an operator made here always passes.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, final

from oxide.compiler.kernel.kernel import Kernel
from oxide.compiler.signature.signature import OpenParameter
from oxide.host.messages import written
from oxide.runtime.launching.launch import ConfiguredKernel
from oxide.runtime.memory.memory import DeviceBox
from oxide.runtime.operations.operation import DeviceOperation

try:
    import torch
except ImportError as error:
    raise ImportError("oxide.torch needs torch, which is not installed: pip install 'oxide-gpu[torch]'") from error

from oxide.interop.torch_runs import Run, memory_of, synchronize

__all__ = ["op", "synchronize"]

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
_PLAIN = ("Tensor", "Optional[Tensor]", "List[Tensor]", "int", "float", "bool", "str")
_NUMBERS = {"b": "bool", "i": "SymInt", "u": "SymInt", "f": "float"}
_libraries: dict[str, Any] = {}  # by operator, to keep them: torch forgets an operator whose library was dropped


def op(
    name: str,
    function: Kernel | ConfiguredKernel | Callable[..., DeviceOperation[Any]],
    *,
    outputs: Callable[..., Any] | None = None,
    schema: str | None = None,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
) -> Any:
    """Defines a custom operator of torch, ``"namespace::name"``, and returns it. ``torch.ops.namespace.name`` is the
    same operator. Defining a name again replaces it.

    ``function`` is a kernel, or ``kernel[grid, block]``: its ``DisjointSlice`` parameters are the outputs, and the
    operator takes the other parameters in order. Or it is a function of ``DeviceBox``es and numbers that returns an
    operation. The operation yields the box of the output, or the tuple of the boxes of several outputs. The function
    must not write to its inputs.

    ``outputs(*arguments)`` returns uninitialised tensors of the outputs' shapes and dtypes, such as
    ``torch.empty_like(x)``. It is the operator's fake implementation, and it allocates a kernel's outputs. A kernel
    whose outputs have the shape of its inputs does not need it. ``schema``, such as ``"(Tensor x, float s) ->
    Tensor"``, is needed if the function's annotations do not give the types. ``backward(ctx, *grads)`` and
    ``setup_context(ctx, inputs, output)`` are passed to ``torch.library.register_autograd``.

    Raises ``TypeError`` or ``ValueError`` for a kernel or function that cannot be an operator. On the CPU device, a
    call raises the fault of its kernel. On a GPU, the next call of an operator or of ``oxide.torch.synchronize()``
    raises it.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"oxide.torch.op: the name is {written(name)}; it must be of the form 'namespace::name'")
    if setup_context is not None and backward is None:
        raise TypeError(f"oxide.torch.op {name}: setup_context is for backward, which was not given")
    kernel = function._kernel if isinstance(function, ConfiguredKernel) else function
    if isinstance(kernel, Kernel):
        kernel_plan = _KernelArguments(name, kernel, function, outputs)
        schema = kernel_plan.schema if schema is None else schema
        made, build = kernel_plan.outputs, kernel_plan.build
        like_inputs = outputs is None
    else:
        if not callable(function):
            raise TypeError(
                f"oxide.torch.op {name}: {written(function)} is neither a kernel nor a function that makes an operation"
            )
        if outputs is None:
            raise TypeError(
                f"oxide.torch.op {name}: the shapes and dtypes of the outputs are not known before the function runs: "
                f"pass outputs=, a function of the same arguments, as outputs=lambda x: torch.empty_like(x)"
            )
        schema = _schema_of(name, function) if schema is None else schema
        made, build, like_inputs = outputs, None, False
    parsed = torch._C.parse_schema(name + schema)
    _check_schema(name, parsed)
    namespace, short = name.split("::")
    before = _libraries.pop(name, None)
    if before is not None:
        before._destroy()
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(short + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _libraries[name] = library
    contiguous = _contiguous(name, made, len(parsed.returns))
    run = Run(name, parsed, contiguous, function, build, like_inputs)
    for key in ("CPU", "CUDA"):
        library.impl(short, run, key)

    def fake(*arguments: Any) -> Any:
        tensors = contiguous(*run.complete(arguments))
        return tensors[0] if len(tensors) == 1 else tensors

    torch.library.register_fake(name, fake, lib=library)
    if backward is None:
        backward, setup_context = _no_backward(name), None
    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=library)
    return getattr(getattr(torch.ops, namespace), short).default


def _no_backward(name: str) -> Callable[..., Any]:
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            f"the operator {name} has no gradient: define it with oxide.torch.op({name!r}, …, backward=…, "
            f"setup_context=…), or call it under torch.no_grad()"
        )

    return backward


def _contiguous(name: str, outputs: Callable[..., Any], count: int) -> Callable[..., tuple[Any, ...]]:
    """Wraps ``outputs``: the returned function returns ``count`` contiguous tensors. ``torch.empty_like`` keeps the
    strides of a transposed tensor, but kernels write outputs in row-major order."""

    def made(*arguments: Any) -> tuple[Any, ...]:
        found = outputs(*arguments)
        tensors = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        for each in tensors:
            if not isinstance(each, torch.Tensor):
                raise TypeError(
                    f"{name}: outputs gave {written(each)}; it must return a tensor of each output's shape and dtype, "
                    f"such as torch.empty_like(x)"
                )
        if len(tensors) != count:
            raise TypeError(f"{name}: outputs gave {len(tensors)} tensors, and the schema says {count}")
        return tuple([each if each.is_contiguous() else each.new_empty(each.shape) for each in tensors])

    return made


def _check_schema(name: str, schema: Any) -> None:
    """Raises ``ValueError`` for a schema that an operator cannot have."""
    wrong = [f"{each.name}: {each.type}" for each in schema.arguments if str(each.type) not in _PLAIN]
    if wrong:
        raise ValueError(
            f"oxide.torch.op {name}: the schema has {', '.join(wrong)}; arguments are Tensor, Tensor?, Tensor[], int, "
            f"float, bool and str"
        )
    if any(each.alias_info is not None for each in (*schema.arguments, *schema.returns)):
        raise ValueError(f"oxide.torch.op {name}: an operator writes to new tensors only; its schema has no aliases")
    if any(each.kwarg_only for each in schema.arguments):
        raise ValueError(f"oxide.torch.op {name}: arguments that are given by keyword only are not supported")
    if not any("Tensor" in str(each.type) for each in schema.arguments):
        raise ValueError(f"oxide.torch.op {name}: the schema has no tensor, whose device says where the operator runs")
    if not schema.returns or any(str(each.type) != "Tensor" for each in schema.returns):
        raise ValueError(f"oxide.torch.op {name}: the schema must return one Tensor or several")


# Functions


def _schema_of(name: str, function: Any) -> str:
    """Returns the operator's schema, from the function's annotations. Raises ``TypeError`` if they do not give it."""
    hint = "pass schema=, as schema='(Tensor x, float s) -> Tensor'"
    try:
        hints = typing.get_type_hints(function)
        signature = inspect.signature(function)
    except Exception as error:
        raise TypeError(f"oxide.torch.op {name}: the annotations cannot be read ({error}); {hint}") from None
    missing = [parameter for parameter in signature.parameters if parameter not in hints]
    if missing:
        raise TypeError(f"oxide.torch.op {name}: {', '.join(missing)} has no annotation; {hint}")
    parameters = [each.replace(annotation=_torch_type(hints[each.name])) for each in signature.parameters.values()]

    def prototype() -> None:
        pass

    returned = _torch_type(hints.get("return", DeviceBox))
    shown: Any = prototype
    shown.__signature__ = signature.replace(parameters=parameters, return_annotation=returned)
    try:
        found: str = torch.library.infer_schema(shown, mutates_args=())
    except ValueError as error:
        raise TypeError(f"oxide.torch.op {name}: {str(error).splitlines()[0]}; {hint}") from None
    return found


def _torch_type(hint: Any) -> Any:
    """Returns an annotation with ``torch.Tensor`` in place of boxes, and with the yielded type in place of an
    operation."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is DeviceBox or hint is Any or hint is DeviceOperation:
        return torch.Tensor
    if isinstance(origin, type) and issubclass(origin, DeviceOperation):
        return _torch_type(arguments[0])
    if origin is None:
        return hint
    changed = tuple(each if each is Ellipsis else _torch_type(each) for each in arguments)
    if origin is types.UnionType:
        return typing.Union[changed]  # noqa: UP007 (torch reads this form alone)
    return typing.Tuple[changed] if origin is tuple else origin[changed]  # noqa: UP006


# Kernels


def _number_type(parameter: Any) -> str | None:
    """Returns the schema's type for a scalar parameter of a kernel, None if no single type of a schema fits."""
    scalars = parameter.choices if isinstance(parameter, OpenParameter) else (getattr(parameter, "scalar", None),)
    found = {None if scalar is None else _NUMBERS.get(scalar.kind) for scalar in scalars}
    return found.pop() if len(found) == 1 else None


@final
class _KernelArguments:
    """Maps an operator's arguments to a kernel's parameters, and lists the outputs."""

    def __init__(self, name: str, kernel: Any, launches: Any, outputs: Callable[..., Any] | None) -> None:
        self._name = name
        self._kernel = kernel
        self._launches = launches
        written_parts: list[Any] = []
        inputs: list[tuple[Any, str]] = []
        # For each parameter of the kernel: whether it is an output, and its number among the outputs or the inputs.
        self._order: list[tuple[bool, int]] = []
        for each in kernel.parameters:
            is_output = each.kind in ("disjoint", "tiles")
            self._order.append((is_output, len(written_parts if is_output else inputs)))
            if is_output:
                written_parts.append(each)
            elif each.kind == "slice":
                inputs.append((each, f"Tensor {each.name}"))
            elif each.kind == "scalar" and (number := _number_type(each)) is not None:
                default = f"={kernel.defaults[each.name]}" if each.name in kernel.defaults else ""
                inputs.append((each, f"{number} {each.name}{default}"))
            else:
                shown = getattr(each, "annotation", each.kind)
                raise TypeError(
                    f"oxide.torch.op {name}: parameter {each.name} of kernel {kernel.name} is {shown}, and a kernel "
                    f"that is an operator has Slice, DisjointSlice and real numbers: pass a function "
                    f"that makes the launch and yields its outputs"
                )
        if not written_parts:
            raise TypeError(
                f"oxide.torch.op {name}: kernel {kernel.name} has no DisjointSlice, and so no outputs: pass a function "
                f"that makes the launch and yields its outputs"
            )
        self._outputs = written_parts
        self._inputs = [each for each, _ in inputs]
        returns = ", ".join(["Tensor"] * len(written_parts))
        self.schema = f"({', '.join(text for _, text in inputs)}) -> " + (
            returns if len(written_parts) == 1 else f"({returns})"
        )
        if outputs is None:
            self._sources = [self._dtype_source(each) for each in written_parts]
        self.outputs: Callable[..., Any] = self._like_inputs if outputs is None else outputs

    def _dtype_source(self, output: Any) -> Any:
        """Returns an output's dtype. For a generic output, returns the number of the input that has the same dtype."""
        variable = getattr(output, "variable", None)
        if variable is None:
            return memory_of(output.dtype)
        for number, each in enumerate(self._inputs):
            if each.kind == "slice" and getattr(each, "variable", None) == variable:
                return number
        raise TypeError(
            f"oxide.torch.op {self._name}: no input has the type of {output.name}: pass outputs=, as "
            f"outputs=lambda x: torch.empty_like(x)"
        )

    def _like_inputs(self, *arguments: Any) -> tuple[Any, ...]:
        """Returns uninitialised outputs of the inputs' common shape. Raises ``ValueError`` if the shapes differ."""
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        first = tensors[0]
        for each in tensors[1:]:
            if each.shape != first.shape:
                raise ValueError(
                    f"{self._name}: the tensors have the shapes {', '.join(str(tuple(t.shape)) for t in tensors)}, and "
                    f"outputs have the inputs' shape unless the operator is defined with outputs="
                )
        made = []
        for source in self._sources:
            dtype = arguments[source].dtype if isinstance(source, int) else source
            made.append(torch.empty(first.shape, dtype=dtype, device=first.device))
        return tuple(made)

    def build(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> DeviceOperation[Any]:
        """Returns the kernel's launch for the boxes of the inputs and outputs."""
        arguments = [outputs[number] if is_output else inputs[number] for is_output, number in self._order]
        operation: DeviceOperation[Any] = self._kernel.called(self._launches, tuple(arguments))
        return operation
