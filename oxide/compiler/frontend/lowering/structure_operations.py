"""Structures in kernels: construction, ``_replace``, constants and refusals. Memory is in ``composites.py``.

Fields are read as those of numba's named tuples. A structure is made of values that its fields can hold, by the rule of
stores: a literal takes the field's type, and nothing becomes narrower without a written conversion.
"""

from __future__ import annotations

from typing import Any

from numba.cuda import types
from numba.cuda.extending import core_models, register_model
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature

from oxide.language.types import ScalarType

from .composites import components, packed
from .registry import bound, lowering_registry, note, parameters, typing_registry
from .types import OfElements, StructuredType, conversion_problem, display, structured


class StructureClass(OfElements, types.Callable):  # type: ignore[misc]
    """The type of a structure's class."""

    def __init__(self, instance_type: StructuredType) -> None:
        self.dtype = instance_type
        super().__init__(f"class({instance_type.name})")

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        kind = self.dtype
        given = bound(kind.fields, args, kws, optional=len(_defaults(kind)))
        shown = display(kind)
        if given is None:
            unknown = [name for name in kws if name not in kind.fields]
            found = f"it has no {unknown[0]}" if unknown else f"and got {len(args) + len(kws)}"
            note(f"{shown}(…) takes {', '.join(kind.fields)}{': ' if unknown else ', '}{found}")
            return None
        if any(isinstance(each, types.Optional) for each in given.values()) or not _fit(kind, f"{shown}(…)", given):
            return None
        taken = [types.unliteral(given[name]) if name in given else types.none for name in kind.fields]
        return signature(kind, *taken).replace(pysig=_signature(kind))

    def get_call_signatures(self) -> Any:
        return [], False

    def get_impl_key(self, sig: Any) -> Any:
        return StructureClass


register_model(StructureClass)(core_models.OpaqueModel)


def _defaults(kind: StructuredType) -> dict[str, Any]:
    """Returns the values of the fields that may be left out."""
    found: dict[str, Any] = kind.instance_class._field_defaults
    return found


def _signature(kind: StructuredType) -> Any:
    optional = dict.fromkeys(_defaults(kind))
    return parameters(*[name for name in kind.fields if name not in optional], **optional)


def _fit(kind: StructuredType, shown: str, given: dict[str, Any]) -> bool:
    """Returns whether the fields can hold values of the given types. If not, adds a note with the reason."""
    for name, found in given.items():
        wanted = kind.types[kind.fields.index(name)]
        problem = conversion_problem(wanted, found)
        if problem is not None:
            note(f"{shown}: {name} is {display(wanted)}, and {problem}")
            return False
    return True


@lowering_registry.lower_constant(StructureClass)
def _lower_class_constant(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


@lowering_registry.lower(StructureClass, types.VarArg(types.Any))
def _construct(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, parts = sig.return_type, []
    for place, (value, given) in enumerate(zip(args, sig.args, strict=True)):
        if given == types.none:
            parts.append(_constant(context, builder, kind, place, _defaults(kind)[kind.fields[place]]))
        else:
            parts.append(context.cast(builder, value, given, kind.types[place]))
    return packed(builder, kind, parts, context)


# Constants of a module or a closure


def type_of_constant(value: Any) -> Any:
    """Returns the type of a structure or of a structure's class. Returns None for any other object."""
    if isinstance(value, tuple):
        return structured(type(value))
    kind = structured(value)
    return None if kind is None else StructureClass(kind)


@lowering_registry.lower_constant(StructuredType)
def _lower_constant(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    parts = [_constant(context, builder, kind, place, part) for place, part in enumerate(value)]
    return packed(builder, kind, parts, context)


def _constant(context: Any, builder: Any, kind: Any, place: int, value: Any) -> Any:
    declared = kind.structure.kinds[place]
    if isinstance(declared, ScalarType):
        value = declared(value)
    return context.get_constant_generic(builder, kind.types[place], value)


# Methods


class Replace(AbstractTemplate):  # type: ignore[misc]
    """Types ``a._replace(mass=m)``. The fields that stay have the type of None in the signature."""

    key = "oxide.structure._replace"
    prefer_literal = True

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        kind = self.this
        shown = f"._replace of a {display(kind)}"
        unknown = [name for name in kws if name not in kind.fields]
        if args or unknown:
            note(f"{shown} takes fields by name ({', '.join(kind.fields)})" + f", not {unknown[0]}" * bool(unknown))
            return None
        if any(isinstance(each, types.Optional) for each in kws.values()) or not _fit(kind, shown, kws):
            return None
        taken = [types.unliteral(kws[name]) if name in kws else types.none for name in kind.fields]
        return signature(kind, *taken, recvr=kind).replace(pysig=parameters(**dict.fromkeys(kind.fields)))


@lowering_registry.lower(Replace.key, StructuredType, types.VarArg(types.Any))
def _lower_replace(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.return_type
    parts = components(builder, kind, args[0])
    for place, (value, given) in enumerate(zip(args[1:], sig.args[1:], strict=True)):
        if given != types.none:
            parts[place] = context.cast(builder, value, given, kind.types[place])
    return packed(builder, kind, parts, context)


@typing_registry.register_attr
class StructureAttributes(AttributeTemplate):  # type: ignore[misc]
    key = StructuredType

    def generic_resolve(self, kind: Any, name: str) -> Any:
        if name == "_replace":
            return types.BoundFunction(Replace, kind)
        if name in kind.fields:
            return kind.types[kind.fields.index(name)]
        note(f"a {display(kind)} has {', '.join(kind.fields)}, and no {name}")
        return None


def is_structures(function: Any) -> bool:
    """Returns whether a function makes a structure: a structure's class or its ``_replace``."""
    if isinstance(function, types.BoundFunction):
        return function.template is Replace
    return isinstance(function, StructureClass)
