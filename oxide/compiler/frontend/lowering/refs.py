"""``get_mut`` and ``Ref``: the element of an output that belongs to a thread.

A ``Ref`` is a pointer, an index and a length, or for an output of two axes that is reached by row and column, an index
and a length for each. The test of a ``Ref`` for None and its bounds check are the same comparison, so LLVM drops the
check where the program has tested the ``Ref``.
"""

from __future__ import annotations

from typing import Any

from numba.cuda import cgutils, types
from numba.cuda.core import errors
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature

from .common import attribute, axes_in_bounds, axis_sites, in_bounds, load_inside, optional, structure
from .primitives import site
from .registry import lowering_registry, note, proxy, typing_registry
from .slices import SliceType, count_of
from .thread import GridIndexType, ThreadIndexType, global_index, index_number
from .types import conversion_problem, display


class RefType(types.Type):  # type: ignore[misc]
    """The type of a value that is a ``Ref`` to an element of an output, or None. With ``axes``, the ``Ref`` gives the
    element by row and column."""

    def __init__(self, dtype: Any, *, axes: bool = False) -> None:
        self.dtype = dtype
        self.axes = axes
        super().__init__(f"Ref[{display(dtype)}]{' by row and column' if axes else ''}")


def _members(kind: Any) -> list[tuple[str, Any]]:
    words, sites = (
        (["row", "rows", "col", "cols"], ["row_site", "col_site"]) if kind.axes else (["index", "length"], ["site"])
    )
    data = "data", types.CPointer(kind.dtype)
    return [data, *((name, types.int64) for name in words), *((name, types.int32) for name in sites)]


structure(RefType, members=_members)


@typing_registry.register_attr
class GetMutAttribute(AttributeTemplate):  # type: ignore[misc]
    key = SliceType

    def resolve_get_mut(self, kind: Any) -> Any:
        if kind.kind == "slice":
            note(
                f"{kind.parameter} is a {kind.shown}, which is read-only; declare an output as "
                f"DisjointSlice{kind.axes}[…]"
            )
        if not kind.mutable:
            return None
        return types.BoundFunction(GET_MUT[bool(kind.tile)], kind)


class GetMut(AbstractTemplate):  # type: ignore[misc]
    key = "oxide.slice.get_mut"

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        output = self.this
        if not takes_thread_index(f"{output.parameter}.get_mut", args, kws):
            return None
        by_row = output.ndim > 1 and isinstance(args[0], GridIndexType)
        if by_row and output.ndim != 2:
            note(f"{output.parameter} is a {output.shown}: take its ThreadIndex from thread.index_1d()")
            return None
        return signature(RefType(output.dtype, axes=by_row), *args, recvr=output)


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
    kind, index_type = sig.args
    view = proxy(context, builder, kind, args[0])
    ref = proxy(context, builder, sig.return_type)
    ref.data = view.data
    if not sig.return_type.axes:
        ref.index = index_number(context, builder, index_type, args[1])
        ref.length = count_of(builder, kind, view)
        ref.site = site(builder, kind.parameter)
        return ref._getvalue()
    # The launch has two axes, so no two threads have the same row and column. The width of the index does not matter.
    ref.row, ref.col = global_index(builder, "y"), global_index(builder, "x")
    ref.rows, ref.cols = cgutils.unpack_tuple(builder, view.shape)
    ref.row_site, ref.col_site = axis_sites(builder, kind.parameter, kind.ndim)
    return ref._getvalue()


@optional(RefType)
def _lower_is_there(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    ref = proxy(context, builder, sig.args[0], args[0])
    if not sig.args[0].axes:
        return builder.icmp_unsigned("<", ref.index, ref.length)
    rows = builder.icmp_unsigned("<", ref.row, ref.rows)
    return builder.and_(rows, builder.icmp_unsigned("<", ref.col, ref.cols))


def _place(builder: Any, kind: Any, ref: Any) -> tuple[Any, Any]:
    """Returns whether a Ref's element is in bounds, and the element's offset. For an element out of bounds, the emitted
    code records a fault."""
    if not kind.axes:
        return in_bounds(builder, ref.index, ref.length, ref.site), ref.index
    places = [(ref.row, ref.rows), (ref.col, ref.cols)]
    inside = axes_in_bounds(builder, places, [ref.row_site, ref.col_site])
    return inside, builder.add(builder.mul(ref.row, ref.cols), ref.col)


@attribute(RefType, "value", lambda kind: kind.dtype)
def _lower_ref_get(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    ref = proxy(context, builder, kind, value)
    inside, offset = _place(builder, kind, ref)
    return load_inside(context, builder, kind.dtype, ref.data, offset, inside)


@lowering_registry.lower_setattr(RefType, "value")
def _lower_ref_set(context: Any, builder: Any, sig: Any, args: Any) -> None:
    kind, value_type = sig.args
    ref = proxy(context, builder, kind, args[0])
    value = context.cast(builder, args[1], value_type, kind.dtype)
    inside, offset = _place(builder, kind, ref)
    with builder.if_then(inside, likely=True):
        context.pack_value(builder, kind.dtype, value, builder.gep(ref.data, [offset]))


def check_store(ref: Any, value: Any) -> None:
    """Refuses a value that cannot be assigned to ``ref.value``, such as a float if the element is an integer.

    Adds a note and raises ``TypingError``.
    """
    why = conversion_problem(ref.dtype, value)
    if why is not None:
        note(f"the element is {display(ref.dtype)} and {why}")
        raise errors.TypingError(why)
