"""Vectors in kernels: operators, construction, components by their index, methods.

An operator on vectors is the scalar one for each component: its types and its code are looked up as if the components
were written out. Methods are device functions (``oxide/language/vectors.py``).
"""

from __future__ import annotations

import itertools
import operator
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba.cuda import types
from numba.cuda.core import errors
from numba.cuda.extending import core_models, register_model
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature
from numba.cuda.typing.typeof import typeof_impl

from oxide.compiler.signature.device_function import DeviceFunction, device
from oxide.language import intrinsics
from oxide.language.types import of_dtype
from oxide.language.vectors import METHODS, VECTORS, Vector, VectorType

from .common import element_index, has_length, in_bounds
from .composites import components, packed
from .integers import SYMBOLS
from .mathematics import call_device_function
from .primitives import site
from .registry import bound, lowering_registry, note, parameters, typing_registry
from .types import (
    NUMBA_TYPES,
    OPEN,
    OPEN_INTEGER,
    ComponentsType,
    OpenFloat,
    WeakInteger,
    composite_of,
    display,
    forms_of,
    operation_of,
)

_ORDERS: Final = (operator.lt, operator.le, operator.gt, operator.ge)
_EQUALITIES: Final = (operator.eq, operator.ne)
_OPERATORS: Final = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow),
    *(operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift),
    *(operator.neg, operator.pos, operator.invert, abs, min, max, intrinsics.fma),
    *_ORDERS,
)
"""The operators and functions that a vector has for each component."""


def _is_number(kind: Any) -> bool:
    return isinstance(types.unliteral(kind), types.Number | types.Boolean)


def _component(kind: Any) -> Any:
    return kind.dtype if isinstance(kind, ComponentsType) else kind


def refused(problem: str) -> Exception:
    """Returns the error for an operation that vectors do not have, after a note."""
    note(problem)
    return errors.TypingError(problem)  # type: ignore[no-any-return]


def _is_constant_power(base: Any, exponent: Any) -> bool:
    """Returns whether a power has a constant exponent, and so becomes products, as for numbers."""
    if not isinstance(exponent, types.IntegerLiteral):
        return False
    whole = isinstance(base, types.Integer) and not isinstance(base, WeakInteger) and int(exponent.literal_value) >= 0
    return whole or base in (types.float32, types.float64)


def vector_signature(context: Any, function: Any, args: tuple[Any, ...]) -> Any:
    """Returns the signature of an operation on vectors. Returns None if no operand is a vector. Raises ``TypingError``
    for an operation that vectors do not have."""
    vectors = [kind for kind in args if isinstance(kind, ComponentsType)]
    if not vectors:
        return None
    key = operation_of(function)
    if key not in _OPERATORS and key not in _EQUALITIES:
        if key in (bool, operator.truth, operator.not_):
            raise refused(f"a {display(vectors[0])} is neither true nor false: write any() or all() of a comparison")
        if isinstance(function, types.NumberClass):
            raise refused(f"{display(function.instance_type)}(…) takes one number, not a {display(vectors[0])}")
        return None
    shown = " and ".join(map(display, args))
    symbol = SYMBOLS.get(key) or getattr(key, "__name__", "")
    if any(isinstance(kind, types.Optional) for kind in args):
        return None  # numba tries again with the type without None
    if len({kind.count for kind in vectors}) > 1:
        raise refused(f"{symbol} of {shown}: vectors of different lengths do not meet")
    if not all(isinstance(kind, ComponentsType) or _is_number(kind) for kind in args):
        raise refused(f"{symbol} of {shown}: a vector meets vectors and numbers")
    if key in _EQUALITIES and len(vectors) < 2:
        raise refused(f"{symbol} of {shown}: it compares two vectors; compare a component, as in v.x {symbol} 0")
    parts = tuple(map(_component, args))
    inner = context.resolve_function_type(function, parts, {})
    if key is operator.pow and _is_constant_power(*parts):
        inner = signature(parts[0], *parts)
    if inner is None:
        return None
    wanted = [
        kind.of(part) if isinstance(kind, ComponentsType) else part for kind, part in zip(args, inner.args, strict=True)
    ]
    result = types.boolean if key in _EQUALITIES else vectors[0].of(inner.return_type)
    return signature(result, *wanted)


def _lower_operator(function: Any) -> Any:
    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        inner = tuple(map(_component, sig.args))
        if isinstance(inner[-1], types.IntegerLiteral) and isinstance(inner[0], types.Float):
            inner = inner[0], types.int64  # numba expands such a power
            args = args[0], ir.Constant(ir.IntType(64), int(sig.args[1].literal_value))
        result = sig.return_type.dtype if isinstance(sig.return_type, ComponentsType) else types.boolean
        code = context.get_function(function, signature(result, *inner))
        count = next(kind.count for kind in sig.args if isinstance(kind, ComponentsType))
        columns = [
            components(builder, kind, value) if isinstance(kind, ComponentsType) else [value] * count
            for kind, value in zip(sig.args, args, strict=True)
        ]
        found = [code(builder, each) for each in zip(*columns, strict=True)]
        if isinstance(sig.return_type, ComponentsType):
            return packed(builder, sig.return_type, found, context)
        joined = found[0]
        for each in found[1:]:
            joined = builder.or_(joined, each) if function is operator.ne else builder.and_(joined, each)
        return joined

    return lowered


for _function in (*_OPERATORS, *_EQUALITIES):
    for _form in forms_of(_function):
        for _kinds in (
            (ComponentsType,),
            (ComponentsType, types.Any),
            (types.Any, ComponentsType),
            (ComponentsType, ComponentsType),
        ):
            lowering_registry.lower(_form, *_kinds)(_lower_operator(_function))
for _function, _count in ((intrinsics.fma, 3), (min, 3), (max, 3), (min, 4), (max, 4)):
    for _kinds in itertools.product((types.Any, ComponentsType), repeat=_count):
        if ComponentsType in _kinds:
            lowering_registry.lower(_function, *_kinds)(_lower_operator(_function))


# Construction: ``Vec3(x, y, z)``, and ``Vec3[f32](x, y, z)``


class VectorClass(types.Callable):  # type: ignore[misc]
    """The type of ``Vec3[f32]`` itself."""

    def __init__(self, instance_type: ComponentsType) -> None:
        self.dtype = instance_type
        super().__init__(f"class({instance_type.name})")

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        kind = self.dtype
        given = _given(kind.instance_class, args, kws)
        if given is None:
            return None
        if not isinstance(kind.dtype, types.Complex) and any(isinstance(each, types.Complex) for each in given):
            raise refused(f"{kind.name}(…) takes real numbers, not {' and '.join(map(display, given))}")
        return signature(kind, *map(types.unliteral, given)).replace(pysig=_parameters(kind.instance_class))

    def get_call_signatures(self) -> Any:
        return [], False

    def get_impl_key(self, sig: Any) -> Any:
        return VectorClass


register_model(VectorClass)(core_models.OpaqueModel)


@lowering_registry.lower_constant(VectorClass)
def _lower_class_constant(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


@typeof_impl.register(VectorType)
def _type_of_vector_type(value: VectorType, context: Any) -> Any:
    return VectorClass(composite_of(value))


@typeof_impl.register(Vector)
def _type_of_vector(value: Vector[Any], context: Any) -> Any:
    (first, *_) = value
    if isinstance(first, np.generic):
        scalar = of_dtype(first.dtype)
        return None if scalar is None else ComponentsType(NUMBA_TYPES[scalar.name], type(value))
    kinds = {bool: types.boolean, int: OPEN_INTEGER, float: OPEN, complex: types.complex128}
    return ComponentsType(kinds[type(first)], type(value))


@lowering_registry.lower_constant(ComponentsType)
def _lower_constant(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return packed(builder, kind, [context.get_constant_generic(builder, kind.dtype, part) for part in value], context)


def _parameters(made_of: type[Vector[Any]]) -> Any:
    return parameters(*made_of._fields)


def _given(made_of: type[Vector[Any]], args: Any, kws: Any) -> list[Any] | None:
    """Returns the types of a constructor's arguments in order. If they do not fit, adds a note and returns None."""
    fields = made_of._fields
    found = bound(fields, args, kws)
    if found is None:
        note(f"{made_of.__name__}(…) takes {len(fields)} numbers, {', '.join(fields)}, and got {len(args) + len(kws)}")
        return None
    given = [found[name] for name in fields]
    if any(isinstance(kind, types.Optional) for kind in given):
        return None
    for name, kind in zip(fields, given, strict=True):
        if not _is_number(kind):
            note(f"{made_of.__name__}(…) takes numbers, and {name} is {display(kind)}")
            return None
    return given


def _common(context: Any, given: list[Any]) -> Any:
    """Returns the type of a vector's components: that of their sum, or bool_ if all are bools."""
    plain = [types.unliteral(kind) for kind in given]
    if all(isinstance(kind, types.Boolean) for kind in plain):
        return types.boolean
    order = sorted(given, key=lambda kind: isinstance(kind, types.Literal | OpenFloat | WeakInteger))
    add = context.resolve_value_type(operator.add)
    found = order[0]
    for kind in order[1:]:
        if kind != found or isinstance(kind, types.Literal):
            found = context.resolve_function_type(add, (found, kind), {}).return_type
    return found


def _register_constructor(made_of: Any) -> None:
    @typing_registry.register_global(made_of)
    class Construction(AbstractTemplate):  # type: ignore[misc]
        prefer_literal = True

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            given = _given(made_of, args, kws)
            if given is None:
                return None
            kind = ComponentsType(_common(self.context, given), made_of)
            return signature(kind, *map(types.unliteral, given)).replace(pysig=_parameters(made_of))

    lowering_registry.lower(made_of, types.VarArg(types.Any))(_construct)


def _construct(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.return_type
    parts = [context.cast(builder, part, given, kind.dtype) for part, given in zip(args, sig.args, strict=True)]
    return packed(builder, kind, parts, context)


lowering_registry.lower(VectorClass, types.VarArg(types.Any))(_construct)
for _made_of in VECTORS.values():
    _register_constructor(_made_of)


@typing_registry.register_global(operator.getitem)
class TypedClass(AbstractTemplate):  # type: ignore[misc]
    """Types ``Vec3[f32]``."""

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) != 2 or not isinstance(args[0], types.Function):
            return None
        made_of = getattr(args[0], "typing_key", None)
        if not (isinstance(made_of, type) and issubclass(made_of, Vector)):
            return None
        if isinstance(args[1], types.Function) and args[1].typing_key is bool:
            return signature(VectorClass(ComponentsType(types.boolean, made_of)), *args)
        if not isinstance(args[1], types.NumberClass):
            note(f"{made_of.__name__}[…] takes one of oxide's scalar types, as f32")
            return None
        return signature(VectorClass(ComponentsType(args[1].dtype, made_of)), *args)


@lowering_registry.lower(operator.getitem, types.Function, types.Any)
def _lower_class(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return context.get_dummy_value()


# Components by their index


@typing_registry.register_global(operator.getitem)
class ByIndex(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) != 2 or not isinstance(args[0], ComponentsType):
            return None
        index = types.unliteral(args[1])
        if not isinstance(index, types.Integer):
            note(f"the index of a {display(args[0])} is an integer, not {display(index)}")
            return None
        return signature(args[0].dtype, args[0], index)


@lowering_registry.lower(operator.getitem, ComponentsType, types.Integer)
def _lower_by_index(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    index = element_index(builder, sig.args[1], args[1])
    inside = in_bounds(builder, index, ir.Constant(index.type, kind.count), site(builder, display(kind)))
    found = context.get_constant_null(kind.dtype)
    for place, part in enumerate(components(builder, kind, args[0])):
        here = builder.icmp_signed("==", index, ir.Constant(index.type, place))
        found = builder.select(builder.and_(inside, here), part, found)
    return found


def check_place(kind: ComponentsType, index: Any) -> None:
    """Refuses a constant index that a vector does not have."""
    if isinstance(index, float):
        raise refused(f"the index of a {display(kind)} is an integer, not {index}")
    if not isinstance(index, int):
        raise refused(f"a {display(kind)} has no parts: write its components, as in Vec2(v.x, v.y)")
    if not 0 <= index < kind.count:
        last = f"write {kind.count + index}" if -kind.count <= index < 0 else f"it has 0 to {kind.count - 1}"
        counts = "does not count from the end in a kernel" if index < 0 else "is outside"
        raise refused(f"the index {index} of a {display(kind)} {counts}: {last}")


@has_length(ComponentsType)
def _lower_length(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return ir.Constant(ir.IntType(64), sig.args[0].count)


# Methods

_DEVICE: Final[dict[Any, DeviceFunction[..., Any]]] = {
    function: device(function) for functions in METHODS.values() for function in functions.values()
}
AS_FUNCTIONS: Final = {"min": (min, 2), "max": (max, 2), "abs": (abs, 1), "fma": (intrinsics.fma, 3)}
"""The methods that are functions of each component, and the number of their operands."""


def method_of(kind: ComponentsType, name: str) -> DeviceFunction[..., Any]:
    """Returns the device function of a method."""
    return _DEVICE[METHODS[name][kind.count]]


def _register_method(name: str) -> Any:
    class Method(AbstractTemplate):  # type: ignore[misc]
        key = f"oxide.composite.{name}"

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            kind = self.this
            function = method_of(kind, name)
            takes = function.function.__code__.co_argcount - 1
            if len(args) != takes or kws:
                note(f".{name} of a {display(kind)} takes {('no arguments', 'one vector')[takes]}")
                return None
            if takes and not (isinstance(args[0], ComponentsType) and args[0].count == kind.count):
                note(f".{name} of a {display(kind)} takes a {kind.instance_class.__name__}, not {display(args[0])}")
                return None
            if name in ("any", "all") and kind.dtype != types.boolean:
                note(f".{name}() is of a vector of bools, as (a < b) is, not of a {display(kind)}")
                return None
            dispatcher = self.context.resolve_value_type(function).dispatcher
            result = dispatcher.compile_device((kind, *args)).signature.return_type
            return signature(result, *args, recvr=kind)

    @lowering_registry.lower(f"oxide.composite.{name}", ComponentsType)
    @lowering_registry.lower(f"oxide.composite.{name}", ComponentsType, types.Any)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        function = method_of(sig.args[0], name)
        return call_device_function(context, builder, function, tuple(sig.args), args)

    return Method


def _register_function(name: str, function: Any, count: int) -> Any:
    class Method(AbstractTemplate):  # type: ignore[misc]
        key = f"oxide.composite.{name}"
        prefer_literal = True

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            if len(args) != count - 1 or kws:
                note(f".{name} of a {display(self.this)} takes {('no arguments', 'one operand', 'two')[count - 1]}")
                return None
            typed = self.context.resolve_value_type(function)
            found = self.context.resolve_function_type(typed, (self.this, *args), {})
            return None if found is None else signature(found.return_type, *found.args[1:], recvr=found.args[0])

    lowering_registry.lower(f"oxide.composite.{name}", ComponentsType, *[types.Any] * (count - 1))(
        _lower_operator(function)
    )
    return Method


_TEMPLATES: Final = {name: _register_method(name) for name in METHODS} | {
    name: _register_function(name, *of) for name, of in AS_FUNCTIONS.items()
}


@typing_registry.register_attr
class Methods(AttributeTemplate):  # type: ignore[misc]
    key = ComponentsType

    def generic_resolve(self, kind: Any, name: str) -> Any:
        if name in _TEMPLATES and (name not in METHODS or kind.count in METHODS[name]):
            return types.BoundFunction(_TEMPLATES[name], kind)
        if name not in kind.fields:
            others = sorted(each for each in _TEMPLATES if each not in METHODS or kind.count in METHODS[each])
            note(f"a {display(kind)} has {', '.join(kind.fields)} and the methods {', '.join(others)}, and no {name}")
        return None
