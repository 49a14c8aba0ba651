"""``Slice`` and ``DisjointSlice``, with one to five axes, and the forms of them: ``AtomicSlice``, ``scatter``,
``unchecked`` and ``streaming``. ``refs.py`` has the element of a thread.

A slice is a pointer and the length of each axis, also as a kernel parameter. The slice's type contains the parameter's
name, so that a fault can report this name anywhere, even in a device function. ``a[row, col]`` is one check for each
axis, and one access at ``row * cols + col``. If the checks hold, this offset cannot wrap, because the number of
elements fits in 64 bits.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core import errors
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature

from oxide.compiler.signature.signature import shown

from .common import (
    Named,
    axes_in_bounds,
    axis_sites,
    check_value,
    has_length,
    index_parts,
    load_inside,
    load_unchecked,
    mark_unchecked,
    same_form,
    structure,
)
from .composites import store_element
from .registry import lowering_registry, note, proxy, typing_registry
from .thread import ThreadIndexType
from .types import PLACE, display

_WORD = ir.IntType(64)
_FORMS = {"scatter": "Scatter", "unchecked": "UncheckedSlice", "unchecked_mut": "UncheckedMutSlice"}
_FORMS |= {"streaming": "StreamingSlice", "streaming_mut": "StreamingMutSlice"}


class SliceType(Named, types.Type):  # type: ignore[misc]
    """The type of a slice with ``ndim`` axes that is the kernel parameter ``parameter``, or of a form of this slice.

    ``kind`` is ``"slice"``, ``"disjoint"``, ``"atomic"``, ``"scatter"``, ``"unchecked"``, ``"unchecked_mut"``,
    ``"streaming"`` or ``"streaming_mut"``. ``tile`` holds the sides of the tiles of the slice's layout. It is () if the
    slice has no layout.
    """

    def __init__(self, kind: str, dtype: Any, ndim: int, parameter: str, tile: tuple[int, ...] = ()) -> None:
        self.kind = kind
        self.dtype = dtype
        self.ndim = ndim
        self.parameter = parameter
        self.tile = tile
        if kind in _FORMS:
            self.shown = f"{_FORMS[kind]}{self.axes}[{display(dtype)}]"
        else:
            self.shown = shown("tiles" if tile else kind, display(dtype), tile, ndim)  # type: ignore[arg-type]
        super().__init__(f"{self.shown} {parameter}")

    @property
    def axes(self) -> str:
        """Returns the number of axes as it is written in names: ``Slice2``, and ``Slice`` for one."""
        return str(self.ndim) if self.ndim > 1 else ""

    @property
    def mutable(self) -> bool:
        return self.kind == "disjoint"

    @property
    def flat(self) -> SliceType:
        """Returns the type of the slice's ``flat``: a slice of one axis, with all elements in row-major order."""
        return SliceType(self.kind, self.dtype, 1, self.parameter, self.tile)

    def form(self, kind: str) -> SliceType:
        """Returns the type of a form of the slice."""
        return SliceType(kind, self.dtype, self.ndim, self.parameter)

    def renamed(self, parameter: str) -> SliceType:
        return SliceType(self.kind, self.dtype, self.ndim, parameter, self.tile)


def _members(kind: Any) -> list[tuple[str, Any]]:
    data = "data", types.CPointer(kind.dtype)
    if kind.ndim == 1:
        return [data, ("length", types.int64)]
    return [data, ("shape", types.UniTuple(PLACE, kind.ndim))]


structure(SliceType, members=_members)
same_form(SliceType)


def lengths_of(builder: Any, kind: Any, view: Any) -> list[Any]:
    """Returns the length of each axis of a slice."""
    return [view.length] if kind.ndim == 1 else list(cgutils.unpack_tuple(builder, view.shape))


def count_of(builder: Any, kind: Any, view: Any) -> Any:
    """Returns the number of a slice's elements."""
    return functools.reduce(builder.mul, lengths_of(builder, kind, view))


@has_length(SliceType)
def _lower_length(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return lengths_of(builder, sig.args[0], proxy(context, builder, sig.args[0], args[0]))[0]


# Elements by their indices


@typing_registry.register_global(operator.getitem)
class SliceGetItem(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if not (len(args) == 2 and isinstance(args[0], SliceType)) or isinstance(args[1], types.Optional):
            return None  # numba tries again with the type without None
        kind, index = args
        if kind.kind in ("disjoint", "atomic"):
            _note_without_brackets(kind)
            return None
        if kind.kind == "scatter":
            note(_ONLY_WRITTEN.format(name=kind.parameter))
            return None
        if kind.kind.startswith("streaming"):
            _note_vectors_only(kind)
            return None
        return signature(kind.dtype, kind, types.unliteral(index)) if check_indices(kind, index) else None


@typing_registry.register_global(operator.setitem)
class SliceSetItem(AbstractTemplate):  # type: ignore[misc]
    prefer_literal = True

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if not (len(args) == 3 and isinstance(args[0], SliceType)):
            return None
        kind, index, value = args
        if kind.kind in ("disjoint", "atomic"):
            _note_without_brackets(kind)
            return None
        if kind.kind.startswith("streaming"):
            _note_vectors_only(kind)
            return None
        if kind.kind not in ("unchecked_mut", "scatter"):
            note_read_only(kind)
            return None
        if not (check_value(kind.dtype, value) and check_indices(kind, index)):
            return None
        return signature(types.none, kind, types.unliteral(index), kind.dtype)


def note_read_only(kind: SliceType) -> None:
    note(f"{kind.parameter} is a {kind.shown}, which is read-only; declare an output as DisjointSlice{kind.axes}[…]")


def _note_without_brackets(kind: SliceType) -> None:
    name, indices = kind.parameter, ", ".join("ijk"[: kind.ndim])
    if kind.kind == "atomic":
        index = indices if kind.ndim == 1 else f"({indices})"
        note(
            f"{name} is an AtomicSlice{kind.axes}, which has no [...]: another thread could come between; use "
            f"{name}.load({index}), {name}.store({index}, x), {name}.fetch_add({index}, x) and their like"
        )
        return
    index = f"index_{kind.ndim}d()" if kind.ndim < 4 else "index_1d()"
    computed = "a computed index" if kind.ndim == 1 else "computed indices"
    note(
        f"{name} is a {kind.shown}, which has no [...]: another thread could use the same index. Write c_elem = "
        f"{name}.get_mut(thread.{index}), test that it is not None, and use c_elem.value; for {computed} that no "
        f"other thread has, write {name}.scatter[{indices}] = value"
    )


def _note_vectors_only(kind: SliceType) -> None:
    indices = ", ".join("ijk"[: kind.ndim])
    index = indices if kind.ndim == 1 else f"({indices})"
    note(f"{kind.parameter} is a {kind.shown} here, which has vectors only, as load4({index})")


_ONLY_WRITTEN = (
    "{name}.scatter[…] is only written: the element may be another thread's. Use an AtomicSlice to change an element "
    "that several threads reach, or keep the value in a variable"
)


def check_indices(kind: SliceType, index: Any) -> bool:
    """Returns whether the type of an index fits a slice: it must have an integer for each axis. If not, adds a note
    with the reason."""
    if isinstance(index, types.Optional):
        return False  # numba tries again with the type without None
    name = f"{kind.parameter}.{kind.kind}" if kind.kind in _FORMS else kind.parameter
    parts = list(index) if isinstance(index, types.BaseTuple) else [index]
    if kind.ndim > 3:
        what = "read by tensor.load_tile, and one by one" if kind.kind == "slice" else "written by tensor.store_tile"
        note(
            f"{name} is a {kind.shown}, which has too many axes for an index: its elements are {what}"
            + (f" through {name}.flat" if kind.kind == "slice" else "")
        )
        return False
    if isinstance(index, ThreadIndexType):
        taken = "an integer" if kind.ndim == 1 else "an integer for each axis"
        instead = f": write {name}[index.get()]" if kind.ndim == 1 else ""
        if kind.kind in ("scatter", "unchecked_mut") and kind.ndim == 1:
            instead = f": {kind.parameter}.get_mut(index) is its element"
        note(f"{name}[…] takes {taken}, not a ThreadIndex{instead}")
        return False
    if len(parts) != kind.ndim or (kind.ndim == 1 and isinstance(index, types.BaseTuple)):
        if kind.ndim == 1:
            declared = f"{'Slice' if kind.kind in ('slice', 'unchecked') else 'DisjointSlice'}{len(parts)}"
            note(
                f"{name} has one axis: declare a matrix as {declared}[{display(kind.dtype)}], or write "
                f"{name}[row * width + column]"
            )
            return False
        axes = ", ".join("ijk"[: kind.ndim])
        note(f"{name} is a {kind.shown}, which has {kind.ndim} axes, and the index {len(parts)}: write {name}[{axes}]")
        return False
    for part in parts:
        if not isinstance(types.unliteral(part), types.Integer):
            taken = "an integer" if kind.ndim == 1 else "integers"
            note(
                f"{name}[…] takes {taken}, not {display(part)}; convert the index, as in i64(…); note that / gives a "
                "float and // an integer"
            )
            return False
    return True


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


def element_of(
    context: Any, builder: Any, kind: Any, value: Any, index_type: Any, index: Any
) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """Returns a slice's pointer, an element's offset in row-major order, and a list with the index and the length of
    each axis."""
    view = proxy(context, builder, kind, value)
    parts = index_parts(builder, index_type, index)
    lengths = lengths_of(builder, kind, view)
    offset = None
    for part, length in zip(parts, lengths, strict=True):
        offset = part if offset is None else builder.add(builder.mul(offset, length), part)
    return view.data, offset, list(zip(parts, lengths, strict=True))


def axes_inside(builder: Any, kind: Any, places: list[tuple[Any, Any]]) -> Any:
    """Returns whether each index is within its axis. If not, the emitted code records a fault for the first axis whose
    index is outside."""
    return axes_in_bounds(builder, places, axis_sites(builder, kind.parameter, kind.ndim))


@lowering_registry.lower(operator.getitem, SliceType, types.Any)
def _lower_getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    data, offset, places = element_of(context, builder, kind, args[0], sig.args[1], args[1])
    if kind.kind != "slice":
        return load_unchecked(context, builder, kind.dtype, builder.gep(data, [offset]))
    return load_inside(context, builder, kind.dtype, data, offset, axes_inside(builder, kind, places))


@lowering_registry.lower(operator.setitem, SliceType, types.Any, types.Any)
def _lower_setitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    kind = sig.args[0]
    data, offset, places = element_of(context, builder, kind, args[0], sig.args[1], args[1])
    value = context.cast(builder, args[2], sig.args[2], kind.dtype)
    if kind.kind == "scatter":
        with builder.if_then(axes_inside(builder, kind, places), likely=True):
            store_element(context, builder, kind.dtype, value, builder.gep(data, [offset]))
        return context.get_dummy_value()
    address = builder.gep(data, [offset])
    store_element(context, builder, kind.dtype, value, address, lambda stored: mark_unchecked(builder, stored))
    return context.get_dummy_value()


# Attributes


@typing_registry.register_attr
class SliceAttributes(AttributeTemplate):  # type: ignore[misc]
    key = SliceType

    def resolve_shape(self, kind: Any) -> Any:
        return types.UniTuple(PLACE, kind.ndim) if kind.ndim > 1 else None

    def resolve_dtype(self, kind: Any) -> Any:
        return types.NumberClass(kind.dtype) if isinstance(kind.dtype, types.Number | types.Boolean) else None

    def resolve_flat(self, kind: Any) -> Any:
        if kind.kind != "slice" and kind.ndim > 1:
            note(f"{kind.parameter} is a {kind.shown}, which has no .flat: only a Slice{kind.ndim} to read has")
        return kind.flat if kind.kind == "slice" and kind.ndim > 1 else None

    def resolve_unchecked(self, kind: Any) -> Any:
        if kind.kind != "slice":
            instead = f": write through {kind.parameter}.get_mut" if kind.mutable else ""
            note(f"{kind.parameter} is a {kind.shown}, which has no .unchecked{instead}")
            return None
        return kind.form("unchecked")

    def resolve_unchecked_mut(self, kind: Any) -> Any:
        return self._of_output(kind, "unchecked_mut")

    def resolve_scatter(self, kind: Any) -> Any:
        return self._of_output(kind, "scatter")

    def _of_output(self, kind: Any, form: str) -> Any:
        if kind.kind == "slice":
            note_read_only(kind)
        elif not kind.mutable:
            note(f"{kind.parameter} is a {kind.shown}, which has no .{form}")
        return kind.form(form) if kind.mutable else None

    def resolve_streaming(self, kind: Any) -> Any:
        return kind.form(kind.kind.replace("unchecked", "streaming")) if kind.kind.startswith("unchecked") else None


@lowering_registry.lower_getattr(SliceType, "shape")
def _lower_shape(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return proxy(context, builder, kind, value).shape


@lowering_registry.lower_getattr(SliceType, "dtype")
def _lower_dtype(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


@lowering_registry.lower_getattr(SliceType, "unchecked")
@lowering_registry.lower_getattr(SliceType, "unchecked_mut")
@lowering_registry.lower_getattr(SliceType, "scatter")
@lowering_registry.lower_getattr(SliceType, "streaming")
def _lower_form(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return value


@lowering_registry.lower_getattr(SliceType, "flat")
def lower_flat(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Returns all elements of a slice as a slice of one axis."""
    view = proxy(context, builder, kind, value)
    flat = proxy(context, builder, kind.flat)
    flat.data, flat.length = view.data, count_of(builder, kind, view)
    return flat._getvalue()
