"""``Slice``, ``DisjointSlice`` and ``Ref``.

A slice is a pointer and a length, also as a kernel parameter. The slice's type contains the parameter's name, so that a
fault can report this name anywhere, even in a device function. A ``Ref`` is a pointer, an index and a length. The test
of a ``Ref`` for None and its bounds check are the same comparison, so LLVM drops the check where the program has tested
the ``Ref``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core import errors
from numba.cuda.extending import core_models, register_model
from numba.cuda.typeconv import Conversion
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature

from oxide.compiler.ir.recognise import bounds_check
from oxide.compiler.signature.signature import layout_name

from .primitives import call_primitive, site
from .registry import lowering_registry, note, proxy, typing_registry, value_if
from .thread import ThreadIndexType, index_number
from .types import conversion_problem, display

_WORD = ir.IntType(64)
_SITE = ir.IntType(32)


class SliceType(types.Type):  # type: ignore[misc]
    """The type of the kernel parameter ``parameter``: a ``DisjointSlice`` if ``mutable``, else a ``Slice``.

    ``tile`` holds the sides of the tiles of the slice's layout. It is () if the slice has no layout."""

    def __init__(self, dtype: Any, mutable: bool, parameter: str, tile: tuple[int, ...] = ()) -> None:
        self.dtype = dtype
        self.mutable = mutable
        self.parameter = parameter
        self.tile = tile
        kind = "DisjointSlice" if mutable else "Slice"
        self.shown = f"{kind}[{display(dtype)}{', ' + layout_name(tile) if tile else ''}]"
        super().__init__(f"{self.shown} {parameter}")

    def is_like(self, other: SliceType) -> bool:
        """Returns whether the two types are equal except for the names of their parameters."""
        return (self.dtype, self.mutable, self.tile) == (other.dtype, other.mutable, other.tile)

    def unify(self, context: Any, other: Any) -> Any:
        if isinstance(other, SliceType) and self.is_like(other):
            names = sorted({*self.parameter.split("|"), *other.parameter.split("|")})
            return SliceType(self.dtype, self.mutable, "|".join(names), self.tile)
        return None

    def can_convert_to(self, context: Any, other: Any) -> Any:
        return Conversion.safe if isinstance(other, SliceType) and self.is_like(other) else None


class RefType(types.Type):  # type: ignore[misc]
    """The type of a ``Ref`` or None."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(f"Ref[{display(dtype)}]")


class ScatterType(types.Type):  # type: ignore[misc]
    """The type of the ``scatter`` form of the ``DisjointSlice`` parameter ``parameter``."""

    def __init__(self, dtype: Any, parameter: str) -> None:
        self.dtype = dtype
        self.parameter = parameter
        super().__init__(f"Scatter[{display(dtype)}] {parameter}")


@register_model(SliceType)
@register_model(ScatterType)
class SliceModel(core_models.StructModel):  # type: ignore[misc]
    """The layout of slices of all kinds: a pointer to the first element, and the length."""

    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, [("data", types.CPointer(numba_type.dtype)), ("length", types.int64)])


@register_model(RefType)
class RefModel(core_models.StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: Any) -> None:
        members = [
            ("data", types.CPointer(numba_type.dtype)),
            ("index", types.int64),
            ("length", types.int64),
            ("site", types.int32),
        ]
        super().__init__(manager, numba_type, members)


@lowering_registry.lower_cast(SliceType, SliceType)
def _cast_slice(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return value


@typing_registry.register_global(len)
class SliceLength(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], SliceType):
            return signature(types.int64, *args)
        return None


@lowering_registry.lower(len, SliceType)
def lower_length(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Returns the length of a slice of any kind."""
    return proxy(context, builder, sig.args[0], args[0]).length


@typing_registry.register_global(operator.getitem)
class SliceGetItem(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if not (len(args) == 2 and isinstance(args[0], SliceType)):
            return None
        kind, index = args
        if isinstance(index, types.Optional):
            return None  # numba tries again with the type without None
        if kind.mutable:
            note(_NO_INTEGER_INDEX.format(name=kind.parameter, kind=kind.shown))
            return None
        if isinstance(index, ThreadIndexType):
            note(f"{kind.parameter}[…] takes an integer, not a ThreadIndex: write {kind.parameter}[index.get()]")
            return None
        if isinstance(index, types.BaseTuple):
            name = kind.parameter
            note(
                f"{name} has one axis: declare a matrix as Slice{len(index)}[{display(kind.dtype)}], or write "
                f"{name}[row * width + column]"
            )
            return None
        if not isinstance(index, types.Integer):
            note(
                f"{kind.parameter}[…] takes an integer, not {display(index)}; convert the index, as in i64(…); "
                "note that / gives a float and // an integer"
            )
            return None
        return signature(kind.dtype, kind, types.unliteral(index))


def refuse_from_the_end(kind: Any, index: Any) -> None:
    """Refuses a constant negative index of an oxide array. In Python, such an index would count from the end; in a
    kernel, it is out of bounds."""
    if getattr(kind, "mutable", False):
        return  # an output is not indexed with integers
    array = getattr(kind, "parameter", None) or getattr(kind, "shown", None)
    parts = index if isinstance(index, tuple) else (index,)
    for axis, part in enumerate(parts):
        if array is None or not isinstance(part, int) or part >= 0:
            continue
        shape: tuple[int, ...] | None = getattr(kind, "shape", None)
        if shape is not None and axis < len(shape):
            instead = f"{shape[axis] + part} on axis {axis} of {array}" if len(shape) > 1 else str(shape[axis] + part)
        else:
            length = f"{array}.shape[{axis}]" if getattr(kind, "ndim", 1) > 1 else f"len({array})"
            instead = f"{length if hasattr(kind, 'parameter') else 'len(…)'} - {-part}"
        note(f"the index {part} of {array} does not count from the end in a kernel: write {instead}")
        raise errors.TypingError("negative index")


@lowering_registry.lower(operator.getitem, SliceType, types.Integer)
def _lower_getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    view = proxy(context, builder, kind, args[0])
    index = element_index(builder, sig.args[1], args[1])
    place = site(builder, kind.parameter)
    return load_inside(context, builder, kind.dtype, view.data, index, in_bounds(builder, index, view.length, place))


@typing_registry.register_global(operator.setitem)
class SliceSetItem(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) == 3 and isinstance(args[0], SliceType):
            kind = args[0]
            if kind.mutable:
                note(_NO_INTEGER_INDEX.format(name=kind.parameter, kind=kind.shown))
            else:
                note(f"{kind.parameter} is a {kind.shown}, which is read-only; declare an output as DisjointSlice[…]")
        return None


@typing_registry.register_attr
class SliceAttributes(AttributeTemplate):  # type: ignore[misc]
    key = SliceType

    def resolve_dtype(self, kind: Any) -> Any:
        return types.NumberClass(kind.dtype) if isinstance(kind.dtype, types.Number | types.Boolean) else None

    def resolve_get_mut(self, kind: Any) -> Any:
        if not kind.mutable:
            note(f"{kind.parameter} is a {kind.shown}, which is read-only; declare an output as DisjointSlice[…]")
            return None
        return types.BoundFunction(GET_MUT[bool(kind.tile)], kind)

    def resolve_scatter(self, kind: Any) -> Any:
        if not kind.mutable:
            note(f"{kind.parameter} is a {kind.shown}, which is read-only; declare an output as DisjointSlice[…]")
            return None
        return ScatterType(kind.dtype, kind.parameter)


@lowering_registry.lower_getattr(SliceType, "scatter")
def _lower_scatter(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return value


ONLY_WRITTEN = (
    "{name}.scatter[…] is only written: the element may be another thread's. Use an AtomicSlice to change an element "
    "that several threads reach, or keep the value in a variable"
)


@typing_registry.register_global(operator.getitem)
class ScatterGetItem(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) == 2 and isinstance(args[0], ScatterType):
            note(ONLY_WRITTEN.format(name=args[0].parameter))
        return None


@typing_registry.register_global(operator.setitem)
class ScatterSetItem(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if not (len(args) == 3 and isinstance(args[0], ScatterType)):
            return None
        kind, index, value = args
        if not isinstance(index, types.Integer):
            name = kind.parameter
            if isinstance(index, ThreadIndexType):
                note(f"{name}.scatter[…] takes an integer, not a ThreadIndex: {name}.get_mut(index) is its element")
            else:
                note(f"{name}.scatter[…] takes an integer, not {display(index)}; convert the index, as in i64(…)")
            return None
        why = conversion_problem(kind.dtype, value)
        if why is not None:
            note(f"the element is {display(kind.dtype)} and {why}")
            return None
        return signature(types.none, kind, types.unliteral(index), types.unliteral(value))


@lowering_registry.lower(operator.setitem, ScatterType, types.Integer, types.Any)
def _lower_scatter_set(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind, index_type, value_type = sig.args
    view = proxy(context, builder, kind, args[0])
    value = context.cast(builder, args[2], value_type, kind.dtype)
    index = element_index(builder, index_type, args[1])
    with builder.if_then(in_bounds(builder, index, view.length, site(builder, kind.parameter)), likely=True):
        context.pack_value(builder, kind.dtype, value, builder.gep(view.data, [index]))
    return context.get_dummy_value()


@lowering_registry.lower_getattr(SliceType, "dtype")
def _lower_dtype(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


class GetMut(AbstractTemplate):  # type: ignore[misc]
    key = "oxide.slice.get_mut"

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if not takes_thread_index(f"{self.this.parameter}.get_mut", args, kws):
            return None
        return signature(RefType(self.this.dtype), *args, recvr=self.this)


GET_MUT: dict[bool, Any] = {False: GetMut}
"""The types of ``get_mut``, by whether the slice has tiles: ``tiles.py`` adds that of tiles."""


def takes_thread_index(name: str, args: tuple[Any, ...], kws: Any) -> bool:
    """Returns whether a call has one argument, a ``ThreadIndex``. If not, adds a note with the reason."""
    if len(args) != 1 or kws:
        note(f"{name} takes one ThreadIndex")
        return False
    if isinstance(args[0], types.Optional):
        return False  # numba tries again with the type without None
    if not isinstance(args[0], ThreadIndexType):
        note(
            f"{name} takes a ThreadIndex, not {display(args[0])}: only thread.index_1d() "
            "and thread.index_2d(width) give numbers that no two threads share"
        )
        return False
    return True


@lowering_registry.lower("oxide.slice.get_mut", SliceType, ThreadIndexType)
def _lower_get_mut(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    view = proxy(context, builder, sig.args[0], args[0])
    ref = proxy(context, builder, sig.return_type)
    ref.data = view.data
    ref.index = index_number(context, builder, sig.args[1], args[1])
    ref.length = view.length
    ref.site = site(builder, sig.args[0].parameter)
    return ref._getvalue()


class _NoneTest(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) == 2 and isinstance(args[0], RefType) and isinstance(args[1], types.NoneType):
            return signature(types.boolean, *args)
        return None


typing_registry.register_global(operator.is_)(_NoneTest)
typing_registry.register_global(operator.is_not)(_NoneTest)


@lowering_registry.lower(operator.is_, RefType, types.NoneType)
def _lower_is_none(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    ref = proxy(context, builder, sig.args[0], args[0])
    return builder.icmp_unsigned(">=", ref.index, ref.length)


@lowering_registry.lower(operator.is_not, RefType, types.NoneType)
def _lower_is_not_none(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    ref = proxy(context, builder, sig.args[0], args[0])
    return builder.icmp_unsigned("<", ref.index, ref.length)


@typing_registry.register_attr
class RefAttributes(AttributeTemplate):  # type: ignore[misc]
    key = RefType

    def resolve_value(self, kind: Any) -> Any:
        return kind.dtype


@lowering_registry.lower_getattr(RefType, "value")
def _lower_ref_get(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    ref = proxy(context, builder, kind, value)
    inside = in_bounds(builder, ref.index, ref.length, ref.site)
    return load_inside(context, builder, kind.dtype, ref.data, ref.index, inside)


@lowering_registry.lower_setattr(RefType, "value")
def _lower_ref_set(context: Any, builder: Any, sig: Any, args: Any) -> None:
    kind, value_type = sig.args
    ref = proxy(context, builder, kind, args[0])
    value = context.cast(builder, args[1], value_type, kind.dtype)
    with builder.if_then(in_bounds(builder, ref.index, ref.length, ref.site), likely=True):
        context.pack_value(builder, kind.dtype, value, builder.gep(ref.data, [ref.index]))


def check_store(ref: Any, value: Any) -> None:
    """Refuses a value that cannot be assigned to ``ref.value``, such as a float if the element is an integer.

    Adds a note and raises ``TypingError``.
    """
    why = conversion_problem(ref.dtype, value)
    if why is not None:
        note(f"the element is {display(ref.dtype)} and {why}")
        raise errors.TypingError(why)


_NO_INTEGER_INDEX = (
    "{name} is a {kind}, which has no [...]: another thread could use the same index. "
    "Write c_elem = {name}.get_mut(thread.index_1d()), test that it is not None, and use c_elem.value; "
    "for a computed index that no other thread has, write {name}.scatter[i] = value"
)


def element_index(builder: Any, kind: Any, value: Any) -> Any:
    """Returns an index as a signed 64-bit number. A ``u64`` of 2**63 or more becomes negative, so that it is outside of
    every slice."""
    if kind.bitwidth == 64:
        return value
    return builder.sext(value, _WORD) if kind.signed else builder.zext(value, _WORD)


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

    def load() -> Any:
        return context.unpack_value(builder, dtype, builder.gep(data, [index]))

    return value_if(builder, inside, load, context.get_constant_null(dtype))
