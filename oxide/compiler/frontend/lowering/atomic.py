"""``AtomicSlice``, the atomic methods of shared arrays, and fences."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import core_models, register_model
from numba.cuda.typing.templates import AbstractTemplate, signature
from numba.cuda.typing.typeof import typeof_impl

from oxide.language import atomic
from oxide.language.types import ATOMIC

from .common import check_value, methods
from .primitives import call_primitive
from .registry import bound, lowering_registry, note, parameters, typing_registry, value_if
from .shared import BlockArrayType, check_index, locate
from .slices import SliceType, axes_inside, element_of
from .types import HalfType, display

_HALF_METHODS = ("fetch_add", "exchange", "compare_exchange", "load", "store")
_INTEGER_ONLY = {"fetch_and": "and", "fetch_or": "or", "fetch_xor": "xor"}
# The number of values that each method takes after the index.
_METHODS = {
    **dict.fromkeys(("fetch_add", "fetch_sub", "fetch_min", "fetch_max", *_INTEGER_ONLY, "exchange", "store"), 1),
    "compare_exchange": 2,
    "load": 0,
}


class SettingType(types.Type):  # type: ignore[misc]
    """The type of a memory ordering or a scope. Orderings and scopes are constants, and each has a type of its own."""

    def __init__(self, value: Any) -> None:
        self.value = value
        super().__init__(f"atomic.{value.name.upper()}")


register_model(SettingType)(core_models.OpaqueModel)


@typeof_impl.register(atomic.Ordering)
@typeof_impl.register(atomic.Scope)
def _type_of_setting(value: Any, context: Any) -> Any:
    return SettingType(value)


@lowering_registry.lower_constant(SettingType)
def _lower_setting(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


def _setting(args: dict[str, Any], name: str, default: Any) -> Any:
    """Returns the type of the argument ``name`` of a call, which must be an ordering or a scope of the same kind as
    ``default``. If the argument is missing, returns the type of ``default``. If it is anything else, adds a note and
    returns None."""
    given = args.get(name)
    if given is None or isinstance(given, types.Omitted):
        return SettingType(default)
    if isinstance(given, SettingType) and type(given.value) is type(default):
        return given
    note(f"{name} is a constant of oxide.atomic, as {'atomic.ACQUIRE' if name == 'ordering' else 'atomic.BLOCK'}")
    return None


def _make_template(name: str) -> Any:
    required = ["index", *([], ["value"], ["expected", "value"])[_METHODS[name]]]

    class Method(AbstractTemplate):  # type: ignore[misc]
        key = f"oxide.atomic.{name}"

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            kind = self.this
            given = bound((*required, "ordering", "scope"), args, kws, optional=2)
            if given is None:
                note(f".{name} takes ({', '.join(required)}, ordering, scope), the last two optional")
                return None
            if display(kind.dtype) not in ATOMIC:
                note(f"atomics take {' '.join(ATOMIC)}, and {_shown(kind)} has elements of {display(kind.dtype)}")
                return None
            if isinstance(kind.dtype, HalfType) and name not in _HALF_METHODS:
                allowed = ", ".join(f".{method}" for method in _HALF_METHODS)
                note(f"{_shown(kind)} has elements of {display(kind.dtype)}, which have only {allowed}")
                return None
            if name in _INTEGER_ONLY and isinstance(kind.dtype, types.Float):
                note(f".{name} takes integers, and the elements of {_shown(kind)} are {display(kind.dtype)}")
                return None
            index = given["index"]
            if isinstance(kind, SliceType) and kind.ndim == 1 and not isinstance(index, types.Integer):
                note(f"the index of {_shown(kind)}.{name} is an integer, not {display(index)}")
                return None
            if not check_index(kind, index):
                return None
            values = [given[each] for each in required[1:]]
            if not all(check_value(kind.dtype, value) for value in values):
                return None
            settings = _setting(given, "ordering", atomic.RELAXED), _setting(given, "scope", atomic.DEVICE)
            if None in settings:
                return None
            result = types.none if name == "store" else kind.dtype
            found = signature(result, types.unliteral(index), *[kind.dtype] * len(values), *settings, recvr=kind)
            return found.replace(pysig=parameters(*required, ordering=atomic.RELAXED, scope=atomic.DEVICE))

    return Method


def _has_atomics(kind: Any, name: str) -> bool:
    if kind.kind == "LocalArray":
        note(f"a LocalArray belongs to one thread and has no .{name}; read and write it with [...]")
        return False
    return isinstance(kind, BlockArrayType) or kind.kind == "atomic"


methods(SliceType, BlockArrayType, has=_has_atomics, **{name: _make_template(name) for name in _METHODS})


def _shown(kind: Any) -> str:
    return str(kind.parameter if isinstance(kind, SliceType) else kind.name)


def _lower_method(name: str) -> Any:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = sig.args[0]
        ordering, scope = sig.args[-2].value.number, sig.args[-1].value.name
        if isinstance(kind, SliceType):
            data, offset, places = element_of(context, builder, kind, args[0], sig.args[1], args[1])
            inside = axes_inside(builder, kind, places)
        else:
            data = args[0]
            inside, offset = locate(context, builder, kind, sig.args[1], args[1])
        element = context.get_value_type(kind.dtype)
        symbol = f"oxide.atomic.{_operation(name, kind.dtype)}.{_letter(kind.dtype)}.{scope}.{ordering}"
        returned = ir.VoidType() if name == "store" else element

        def call() -> Any:
            return call_primitive(builder, returned, symbol, (builder.gep(data, [offset]), *args[2:-2]))

        if name != "store":
            return value_if(builder, inside, call, context.get_constant_null(kind.dtype))
        with builder.if_then(inside, likely=True):
            call()
        return context.get_dummy_value()

    return lower


for _name, _values in _METHODS.items():
    for _receiver in (SliceType, BlockArrayType):
        lowering_registry.lower(f"oxide.atomic.{_name}", _receiver, *[types.Any] * (_values + 3))(_lower_method(_name))


def _letter(dtype: Any) -> str:
    if isinstance(dtype, HalfType):
        return str(dtype.name)
    return f"{'f' if isinstance(dtype, types.Float) else 'i'}{dtype.bitwidth}"


def _operation(name: str, dtype: Any) -> str:
    operation = name.removeprefix("fetch_")
    if not name.startswith("fetch_"):
        return operation
    if isinstance(dtype, types.Float | HalfType):
        return f"f{operation}"
    return f"u{operation}" if operation in ("min", "max") and not dtype.signed else operation


@typing_registry.register_global(atomic.fence)
class Fence(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        given = bound(("ordering", "scope"), args, kws, optional=2)
        if given is None:
            return None
        settings = _setting(given, "ordering", atomic.SEQUENTIAL), _setting(given, "scope", atomic.DEVICE)
        if None in settings:
            return None
        return signature(types.none, *settings).replace(
            pysig=parameters(ordering=atomic.SEQUENTIAL, scope=atomic.DEVICE)
        )


@lowering_registry.lower(atomic.fence, types.Any, types.Any)
def _lower_fence(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    ordering, scope = sig.args[0].value.number, sig.args[1].value.name
    call_primitive(builder, ir.VoidType(), f"oxide.fence.{scope}.{ordering}", ())
    return context.get_dummy_value()
