"""Tuples and NamedTuples of scalars as kernel parameters: ``size: tuple[i32, i32]``, ``settings: Settings``.

A tuple is passed as its numbers, one after the other, as if each number were a parameter. So the prover, the contracts
and the rule for widths treat ``size.rows`` like a scalar parameter. The length is part of the type. A tuple inside a
tuple is passed the same way.

Kept out of ``signature.py``, because few programs need it and each module adds to the time of ``import oxide``.
"""

from __future__ import annotations

import ast
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final, get_args, get_origin

import numpy as np

from oxide.errors import CompileError
from oxide.host.messages import written
from oxide.language.structures import field_type, is_named_tuple
from oxide.language.types import SCALAR_NAMES, ScalarType
from oxide.language.vectors import Vector, VectorType

from .signature import Parameter, leaves, refused_argument

_NO_SCALAR = ScalarType("tuple", numpys=np.dtype(np.void))


@final
@dataclass(frozen=True, slots=True)
class Fields:
    """The elements of a tuple parameter: a parameter for each element, named as a kernel writes it.

    ``made_of`` is ``tuple`` or the NamedTuple class. ``names`` are its fields, empty for a plain tuple.
    """

    kernel: str
    name: str
    made_of: type
    names: tuple[str, ...]
    elements: tuple[Parameter, ...]

    @property
    def is_vector(self) -> bool:
        """Returns whether the tuple is a vector."""
        return issubclass(self.made_of, Vector)

    @property
    def parts(self) -> tuple[Parameter, ...]:
        """Returns the scalars in the order in which they are passed, those of inner tuples included."""
        return tuple(leaves(self.elements))

    @property
    def annotation(self) -> str:
        """Returns the annotation as it is written."""
        if self.is_vector:
            return f"{self.made_of.__name__}[{self.elements[0].annotation}]"
        if self.names:
            return self.made_of.__name__
        return f"tuple[{', '.join(element.annotation for element in self.elements)}]"

    @property
    def identity(self) -> str:
        """Returns the class, the fields and their types as a text that is the same in every process."""
        inside = ", ".join(element.identity for element in self.elements)
        return f"{self.made_of.__module__}.{self.made_of.__qualname__}{self.names}({inside})"

    def element(self, node: ast.Attribute | ast.Subscript) -> Parameter | None:
        """Returns the element for ``node``, a field or an index of this tuple, or None if there is none."""
        if isinstance(node, ast.Attribute):
            return self.elements[self.names.index(node.attr)] if node.attr in self.names else None
        try:
            index = ast.literal_eval(node.slice)
        except ValueError:
            return None
        inside = type(index) is int and -len(self.elements) <= index < len(self.elements)
        return self.elements[index] if inside else None

    def problem(self, node: ast.Attribute | ast.Subscript) -> str | None:
        """Returns the reason why a kernel's source cannot contain ``node``, a use of this tuple. None if the source can
        contain it, or if only the typing can decide."""
        if isinstance(node.ctx, ast.Store):
            return f"{self.name} is a parameter, and its elements do not change; assign to a name of your own"
        if self.is_vector or (isinstance(node, ast.Attribute) and node.attr == "_replace"):
            return None  # typing knows the methods, too
        constant = isinstance(node, ast.Attribute) or isinstance(node.slice, ast.Constant)
        if constant and self.element(node) is None:
            listed = self.names if isinstance(node, ast.Attribute) else [f"[{n}]" for n in range(len(self.elements))]
            return f"{self.name} is a {self.annotation}, which has {', '.join(listed) or 'no fields'}"
        return None

    def words(self, argument: Any) -> tuple[Any, ...]:
        """Returns the numbers of a tuple, converted for the kernel.

        Raises ``ArgumentError`` for an argument that is not a tuple of this type and length, or has an element that
        does not fit its type.
        """
        if type(argument) is not self.made_of and not self._takes(argument):
            fields = ", ".join("…" if self.is_vector else f"{name}=…" for name in self.names)
            advice = f"pass {self.annotation}({fields})" if self.names else "pass a tuple"
            raise refused_argument(self, f"{written(argument):.80} ({type(argument).__name__})", advice)
        if len(argument) != len(self.elements):
            found = f"{written(argument):.80}, of length {len(argument)}"
            raise refused_argument(self, found, f"pass {len(self.elements)} elements")
        words: list[Any] = []
        for element, value in zip(self.elements, argument, strict=True):
            words += element.words(value)
        return tuple(words)

    def _takes(self, argument: Any) -> bool:
        """Returns whether an argument of another class is accepted.

        A NamedTuple parameter takes a plain tuple, and a plain one takes any tuple. A NamedTuple does not take another
        NamedTuple, whose fields may be in another order.
        """
        return isinstance(argument, tuple) and (self.made_of is tuple or type(argument) is tuple)


def tuple_parameter(
    kernel: str,
    name: str,
    annotation: Any,
    evaluate: Callable[[str], Any],
    refuse: Callable[[str], CompileError],
) -> Parameter:
    """Returns the parameter for ``tuple[f32, i32]`` or a NamedTuple class. ``evaluate`` evaluates string annotations.
    ``refuse`` makes the error for elements that are no scalars, or for a tuple without a fixed length."""
    names: tuple[str, ...] = ()
    if is_named_tuple(annotation):
        made_of, names = annotation, annotation._fields
        kinds = [field_type(annotation, field, evaluate) for field in names]
    else:
        made_of, kinds = tuple, list(get_args(annotation))
        if ... in kinds or annotation is tuple or annotation is typing.Tuple:  # noqa: UP006 - the annotation's own name
            raise refuse(
                f"{name} is a tuple of any length; the length is part of a kernel's code: write each element, as in "
                "tuple[f32, f32], or pass a Slice"
            )
    if not kinds:
        raise refuse(f"{name} is an empty tuple; a kernel takes one with elements")
    elements: list[Parameter] = []
    for number, kind in enumerate(kinds):
        inner = f"{name}.{names[number]}" if names else f"{name}[{number}]"
        if isinstance(kind, ScalarType):
            elements.append(Parameter(kernel, inner, "scalar", kind))
        elif isinstance(kind, VectorType):
            elements.append(vector_parameter(kernel, inner, kind, refuse))
        elif kind is tuple or get_origin(kind) is tuple or is_named_tuple(kind):
            elements.append(tuple_parameter(kernel, inner, kind, evaluate, refuse))
        else:
            shown = getattr(kind, "__name__", None) or repr(kind)
            what = "has no annotation" if kind is None else f"is annotated {shown}"
            raise refuse(f"{inner} {what}; the elements of a tuple are scalars ({SCALAR_NAMES}), or tuples of these")
    fields = Fields(kernel, name, made_of, names, tuple(elements))
    return Parameter(kernel, name, "tuple", _NO_SCALAR, lifted=fields)


def vector_parameter(
    kernel: str, name: str, annotation: VectorType, refuse: Callable[[str], CompileError]
) -> Parameter:
    """Returns the parameter for ``Vec3[f32]``."""
    scalar, names = annotation.scalar, annotation.made_of._fields
    if not isinstance(scalar, ScalarType):
        raise refuse(f"{name} is {annotation}, and a vector that is passed has components of one known type, as f32")
    elements = tuple(Parameter(kernel, f"{name}.{field}", "scalar", scalar) for field in names)
    return Parameter(
        kernel, name, "tuple", _NO_SCALAR, lifted=Fields(kernel, name, annotation.made_of, names, elements)
    )
