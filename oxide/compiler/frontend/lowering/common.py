"""What the types of the kernel language have in common, for numba: their form, length and test for None, and the
accesses of their elements."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import core_models, register_model
from numba.cuda.typeconv import Conversion
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature

from oxide.compiler.ir.recognise import bounds_check

from .composites import leaves, load_element, of_leaves, store_element
from .primitives import call_primitive, site
from .registry import lowering_registry, note, typing_registry, values_if
from .types import PLACE, OfElements, conversion_problem, display
from .whole_numbers import whole

_WORD = ir.IntType(64)


def structure(*kinds: Any, members: Callable[[Any], list[tuple[str, Any]]]) -> None:
    """Gives types the form of a structure. ``members(kind)`` returns the names and the types of its members."""

    class Model(core_models.StructModel):  # type: ignore[misc]
        def __init__(self, manager: Any, kind: Any) -> None:
            super().__init__(manager, kind, members(kind))

    for kind in kinds:
        register_model(kind)(Model)


class Named(OfElements):
    """The base of the types that carry the name of a parameter, for faults. A value is converted as it is to a type
    that
    differs in the name alone. The type of what is one of two parameters has both names."""

    parameter: str

    def renamed(self, parameter: str) -> Any:
        """Returns the type with another name."""
        raise NotImplementedError

    def is_like(self, other: Any) -> bool:
        """Returns whether two types are equal except for the names of their parameters."""
        return isinstance(other, Named) and bool(self.renamed("") == other.renamed(""))

    def unify(self, context: Any, other: Any) -> Any:
        if not self.is_like(other):
            return None
        return self.renamed("|".join(sorted({*self.parameter.split("|"), *other.parameter.split("|")})))

    def can_convert_to(self, context: Any, other: Any) -> Any:
        return Conversion.safe if self.is_like(other) else None


def primitive(kind: Any, form: Callable[[Any], Any]) -> None:
    """Gives a type the form of one value of LLVM's type ``form(kind)``."""

    class Model(core_models.PrimitiveModel):  # type: ignore[misc]
        def __init__(self, manager: Any, kind: Any) -> None:
            super().__init__(manager, kind, form(kind))

    register_model(kind)(Model)


def address(kind: Any) -> None:
    """Gives a type the form of a pointer to its first element."""

    class Model(core_models.PrimitiveModel):  # type: ignore[misc]
        def __init__(self, manager: Any, kind: Any) -> None:
            super().__init__(manager, kind, manager.lookup(kind.dtype).get_data_type().as_pointer())

    register_model(kind)(Model)


def same_form(*kinds: Any) -> None:
    """Lets a value be converted to another type of the same class as it is."""
    for kind in kinds:

        @lowering_registry.lower_cast(kind, kind)
        def cast(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
            return value


def has_length(*kinds: Any) -> Callable[[Any], Any]:
    """Makes ``len(x)`` a place, which the decorated function lowers."""

    def register(lower: Any) -> Any:
        @typing_registry.register_global(len)
        class Length(AbstractTemplate):  # type: ignore[misc]
            def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
                return signature(PLACE, *args) if len(args) == 1 and isinstance(args[0], kinds) else None

        for kind in kinds:
            lowering_registry.lower(len, kind)(lower)
        return lower

    return register


def check_value(dtype: Any, value: Any) -> bool:
    """Returns whether a value may be stored as ``dtype``. A float may not be stored as an integer, because it would
    lose its fraction. If the value may not be stored, adds a note with the reason."""
    why = conversion_problem(dtype, value)
    if why is not None:
        note(f"the element is {display(dtype)} and {why}")
    return why is None


def optional(*kinds: Any) -> Callable[[Any], Any]:
    """Allows ``x is None`` and ``x is not None``. The decorated function lowers the latter."""

    def register(is_there: Any) -> Any:
        class NoneTest(AbstractTemplate):  # type: ignore[misc]
            def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
                if len(args) == 2 and isinstance(args[0], kinds) and isinstance(args[1], types.NoneType):
                    return signature(types.boolean, *args)
                return None

        def is_none(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.not_(is_there(context, builder, sig, args))

        for test, lower in ((operator.is_, is_none), (operator.is_not, is_there)):
            typing_registry.register_global(test)(NoneTest)
            for kind in kinds:
                lowering_registry.lower(test, kind, types.NoneType)(lower)
        return is_there

    return register


def attribute(kind: Any, name: str, type_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Gives a type an attribute of the type ``type_of(kind)``. The decorated function lowers the reads of it."""

    def register(lower: Any) -> Any:
        @typing_registry.register_attr
        class Attribute(AttributeTemplate):  # type: ignore[misc]
            key = kind

            def generic_resolve(self, kind: Any, attribute: str) -> Any:
                return type_of(kind) if attribute == name else None

        return lowering_registry.lower_getattr(kind, name)(lower)

    return register


def methods(*kinds: Any, has: Callable[[Any, str], bool] | None = None, **templates: Any) -> None:
    """Gives types methods. ``templates`` maps the name of each to the template that types its calls. ``has(kind,
    name)``
    returns whether a type has the method; if not, it may add a note."""
    for kind in kinds:

        @typing_registry.register_attr
        class Methods(AttributeTemplate):  # type: ignore[misc]
            key = kind

            def generic_resolve(self, kind: Any, name: str) -> Any:
                if name not in templates or (has is not None and not has(kind, name)):
                    return None
                return types.BoundFunction(templates[name], kind)


# Elements, and the checks of their indices


def are_integers(what: str, kinds: Iterable[Any]) -> bool:
    """Returns whether all types are integers. If not, adds a note that names the first type that is not an integer."""
    for kind in kinds:
        if not isinstance(types.unliteral(kind), types.Integer):
            note(f"{what} is an integer, not {display(kind)}; convert it, as in i64(…)")
            return False
    return True


def check_axes(what: str, axes: int, index: Any) -> bool:
    """Returns whether the type of an index has an integer for each axis of an array. If not, adds a note with the
    reason."""
    parts = list(index) if isinstance(index, types.BaseTuple) else [index]
    if len(parts) != axes:
        note(f"{what} has {axes} {'axis' if axes == 1 else 'axes'}, and the index {len(parts)}")
        return False
    return are_integers(f"an index of {what}", parts)


def element_index(builder: Any, kind: Any, value: Any) -> Any:
    """Returns an index as a signed 64-bit number. A ``u64`` of 2**63 or more becomes negative, so that it is outside of
    every slice. Sums and products of narrower integers are computed anew in 64 bits: an index that wrapped on its way
    is outside, too."""
    return whole(builder, value, signed=kind.signed)


def index_parts(builder: Any, kind: Any, index: Any) -> list[Any]:
    """Returns the numbers of an index, one for each axis, as signed 64-bit numbers."""
    if not isinstance(kind, types.BaseTuple):
        return [element_index(builder, kind, index)]
    return [
        element_index(builder, part_type, part)
        for part_type, part in zip(kind, cgutils.unpack_tuple(builder, index), strict=True)
    ]


def in_bounds(builder: Any, index: Any, length: Any, place: Any) -> Any:
    """Returns whether an index is in [0, length). If it is not, the emitted code records a fault of the site
    ``place``."""
    return call_primitive(builder, ir.IntType(1), bounds_check(1), (index, length, place))


def axes_in_bounds(builder: Any, axes: Sequence[tuple[Any, Any]], places: Sequence[Any]) -> Any:
    """Returns whether the index of each axis is in [0, length). If not, the emitted code records a fault of the first
    axis whose index is outside, with the indices and lengths of all axes. ``axes`` has the index and the length of each
    axis, and ``places`` the site of each axis."""
    inside = None
    for axis, place in enumerate(places):
        others = [word for other, pair in enumerate(axes) if other != axis for word in pair]
        good = call_primitive(builder, ir.IntType(1), bounds_check(len(axes)), (*axes[axis], place, *others))
        inside = good if inside is None else builder.and_(inside, good)
    return inside


def axis_sites(builder: Any, what: str, axes: int) -> list[Any]:
    """Returns the fault sites of an access, one for each axis."""
    if axes == 1:
        return [site(builder, what)]
    return [site(builder, what, axis=axis, axes=axes) for axis in range(axes)]


def load_inside(context: Any, builder: Any, dtype: Any, data: Any, index: Any, inside: Any) -> Any:
    """Returns the element at ``index``, or zero if ``inside`` is false."""

    def load() -> list[Any]:
        return leaves(builder, dtype, load_element(context, builder, dtype, builder.gep(data, [index])))

    zeros = leaves(builder, dtype, context.get_constant_null(dtype))
    return of_leaves(context, builder, dtype, iter(values_if(builder, inside, load, zeros)))


def load_unchecked(context: Any, builder: Any, dtype: Any, address: Any) -> Any:
    """Returns the element at an address. The load is marked as having no bounds check of its own."""
    return load_element(context, builder, dtype, address, lambda loaded: mark_unchecked(builder, loaded))


def mark_unchecked(builder: Any, access: Any) -> None:
    """Marks a load or store as having no bounds check of its own. Only the verifier of the IR reads this mark."""
    access.set_metadata("oxide.unchecked", builder.module.add_metadata([ir.Constant(ir.IntType(1), 1)]))


Locate: TypeAlias = Callable[[Any, Any, Any, Any, Any, Any], tuple[Any, Any, Any]]
"""Emits the check of an index. It takes the context, the builder, the array's type and value, and the index's type and
value. It returns whether the index is in bounds, the address of the first element, and the offset of the element."""


def readable(kind: Any, accepts: Callable[[Any, Any], bool], locate: Locate) -> None:
    """Makes ``x[index]`` an element, if ``accepts(kind, index)`` accepts the index's type. Out of bounds it is 0."""

    @typing_registry.register_global(operator.getitem)
    class GetItem(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], kind) and accepts(*args):
                return signature(args[0].dtype, args[0], types.unliteral(args[1]))
            return None

    @lowering_registry.lower(operator.getitem, kind, types.Any)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, index = sig.args
        inside, data, offset = locate(context, builder, array, args[0], index, args[1])
        return load_inside(context, builder, array.dtype, data, offset, inside)


def writable(kind: Any, accepts: Callable[[Any, Any], bool], locate: Locate) -> None:
    """Allows ``x[index] = value`` for a value that an element can hold, if ``accepts(kind, index)`` accepts the index's
    type. Out of bounds nothing is written."""

    @typing_registry.register_global(operator.setitem)
    class SetItem(AbstractTemplate):  # type: ignore[misc]
        prefer_literal = True

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            if not (len(args) == 3 and isinstance(args[0], kind) and accepts(*args[:2])):
                return None
            if not check_value(args[0].dtype, args[2]):
                return None
            return signature(types.none, *map(types.unliteral, args[:2]), args[0].dtype)

    @lowering_registry.lower(operator.setitem, kind, types.Any, types.Any)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        array, index, value_type = sig.args
        value = context.cast(builder, args[2], value_type, array.dtype)
        inside, data, offset = locate(context, builder, array, args[0], index, args[1])
        with builder.if_then(inside, likely=True):
            store_element(context, builder, array.dtype, value, builder.gep(data, [offset]))
        return context.get_dummy_value()
