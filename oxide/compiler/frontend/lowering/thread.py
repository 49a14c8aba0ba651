"""``ThreadIndex`` and the thread's coordinates.

A ``ThreadIndex`` is an ``i64``. An index of ``index_2d(width)`` also carries the width. ``index_2d(width)`` may return
None. This is represented by -1, because a negative index is outside of every slice. An index of ``index_2d()`` or of
``index_3d()`` holds nothing: its place along each axis is that of the hardware. The coordinates come from numba-cuda's
special register intrinsics, which each back end defines.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import core_models, register_model
from numba.cuda.typeconv import Conversion
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature
from numba.cuda.typing.typeof import typeof_impl

from oxide.compiler.primitives.table import PLACE as PLACE_KIND
from oxide.compiler.primitives.table import Primitive, returning
from oxide.language import thread, warp

from .common import methods, optional, primitive, structure
from .primitives import call, register
from .registry import lowering_registry, note, proxy, typing_registry
from .types import PLACE, display

_WORD = ir.IntType(64)
_NONE = ir.Constant(_WORD, -1)
_MAX_WIDTH = 2**36
_MAX_ROWS = 2**26


class ThreadIndexType(types.Type):  # type: ignore[misc]
    """The type of a ``ThreadIndex`` or None."""

    def __init__(self) -> None:
        super().__init__("ThreadIndex")


class GridIndexType(ThreadIndexType):
    """The type of a value that is a ``ThreadIndex`` from ``index_2d``, or None. The value carries the width, which
    outputs with ``RowMajorTiles`` need."""

    def __init__(self) -> None:
        types.Type.__init__(self, "ThreadIndex of index_2d")

    def unify(self, context: Any, other: Any) -> Any:
        return thread_index if isinstance(other, ThreadIndexType) else None

    def can_convert_to(self, context: Any, other: Any) -> Any:
        return Conversion.safe if other == thread_index else None


class PlaceIndexType(ThreadIndexType):
    """The type of the ``ThreadIndex`` of ``index_2d()``, without a width, or of ``index_3d()``. It has a place along
    each of its ``axes`` but no number, and is never None."""

    def __init__(self, axes: int) -> None:
        self.axes = axes
        types.Type.__init__(self, f"ThreadIndex of index_{axes}d()")

    def unify(self, context: Any, other: Any) -> Any:
        return None

    def can_convert_to(self, context: Any, other: Any) -> Any:
        return None


class CoordinatesType(types.Type):  # type: ignore[misc]
    """The type of ``thread_idx``, ``block_idx``, ``block_dim`` or ``grid_dim``. ``register`` is the name of the
    hardware's special register."""

    def __init__(self, name: str, register: str) -> None:
        self.register = register
        super().__init__(name)


thread_index = ThreadIndexType()
grid_index = GridIndexType()
place_index = {axes: PlaceIndexType(axes) for axes in (2, 3)}
_AXES = {"column": "x", "row": "y", "plane": "z"}
"""The hardware's axis for each place of a ``ThreadIndex``. The last axis of an array is along x."""

_COORDINATES: dict[str, Any] = {
    "thread_idx": CoordinatesType("thread_idx", "tid"),
    "block_idx": CoordinatesType("block_idx", "ctaid"),
    "block_dim": CoordinatesType("block_dim", "ntid"),
    "grid_dim": CoordinatesType("grid_dim", "nctaid"),
}


primitive(ThreadIndexType, lambda kind: _WORD)
primitive(PlaceIndexType, lambda kind: _WORD)
structure(GridIndexType, members=lambda kind: [("number", types.int64), ("width", types.int64)])


@lowering_registry.lower_cast(GridIndexType, ThreadIndexType)
def _cast_index(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return index_number(context, builder, source, value)


def index_number(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Returns the number of a ``ThreadIndex``; it is -1 for None."""
    if isinstance(kind, GridIndexType):
        return proxy(context, builder, kind, value).number
    return value


def axes_of(kind: Any) -> int:
    """Returns the number of axes along which a ``ThreadIndex`` has a place."""
    return kind.axes if isinstance(kind, PlaceIndexType) else 2 if isinstance(kind, GridIndexType) else 1


def places(builder: Any, axes: int) -> list[Any]:
    """Returns this thread's place along each of two or three axes, in the order of an array's index."""
    return [global_index(builder, axis) for axis in "zyx"[-axes:]]


register_model(CoordinatesType)(core_models.OpaqueModel)


@typeof_impl.register(thread.Coordinates)
def _type_of_coordinates(value: thread.Coordinates, context: Any) -> Any:
    return _COORDINATES[value.name]


@typing_registry.register_attr
class CoordinatesAttributes(AttributeTemplate):  # type: ignore[misc]
    key = CoordinatesType

    def generic_resolve(self, coordinates: Any, name: str) -> Any:
        return PLACE if name in ("x", "y", "z") else None


@lowering_registry.lower_getattr_generic(CoordinatesType)
def _lower_coordinate(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    return _register(builder, f"{kind.register}.{name}")


@lowering_registry.lower_constant(CoordinatesType)
def _lower_coordinates(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return context.get_dummy_value()


@typing_registry.register_global(thread.index_1d)
class Index1d(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        return signature(thread_index) if not args and not kws else None


@typing_registry.register_global(thread.index_2d)
class Index2d(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if not args and not kws:
            return signature(place_index[2])
        if len(args) != 1 or kws:
            return None
        if not isinstance(args[0], types.Integer):
            note(f"the width of thread.index_2d must be an integer; it is {display(args[0])}")
            return None
        return signature(grid_index, types.unliteral(args[0]))


@typing_registry.register_global(thread.index_3d)
class Index3d(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        return signature(place_index[3]) if not args and not kws else None


@lowering_registry.lower(thread.index_2d)
@lowering_registry.lower(thread.index_3d)
def _lower_places(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return ir.Constant(_WORD, 0)


@lowering_registry.lower(thread.index_1d)
def _column(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return global_index(builder, "x")


def _row(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return global_index(builder, "y")


@lowering_registry.lower(thread.index_2d, types.Integer)
def _lower_index_2d(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Lowers ``index_2d(width)``: row * width + column, or -1 if the column is not below the width or the result could
    wrap.

    A negative width is above the limit, because it is compared as an unsigned number. The row is below 2**26; CUDA's
    65535 blocks of 1024 threads stay within this limit. The width is below 2**36. So the result is under 2**62, and
    different threads get different numbers.
    """
    width = context.cast(builder, args[0], sig.args[0], types.int64)
    row, column = global_index(builder, "y"), global_index(builder, "x")
    valid = builder.and_(
        builder.icmp_unsigned("<", column, width),
        builder.and_(
            builder.icmp_unsigned("<", width, ir.Constant(_WORD, _MAX_WIDTH)),
            builder.icmp_unsigned("<", row, ir.Constant(_WORD, _MAX_ROWS)),
        ),
    )
    index = proxy(context, builder, grid_index)
    index.number = builder.select(valid, builder.add(builder.mul(row, width), column), _NONE)
    index.width = width
    return index._getvalue()


class ThreadIndexGet(AbstractTemplate):  # type: ignore[misc]
    key = "oxide.thread_index.get"

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        return signature(PLACE, recvr=self.this) if not args and not kws else None


def _has_number(kind: Any, name: str) -> bool:
    """Returns whether a ``ThreadIndex`` has a number. If not, adds a note that says what it has instead."""
    if isinstance(kind, PlaceIndexType):
        names = ", ".join(f"index.{each}" for each in [*_AXES][: kind.axes][::-1])
        width = ", or give index_2d a width" if kind.axes == 2 else ""
        note(f"an index of thread.index_{kind.axes}d() has no number for .get(): use {names}{width}")
    return not isinstance(kind, PlaceIndexType)


methods(ThreadIndexType, get=ThreadIndexGet, has=_has_number)


@typing_registry.register_attr
class ThreadIndexAttributes(AttributeTemplate):  # type: ignore[misc]
    key = ThreadIndexType

    def generic_resolve(self, kind: Any, name: str) -> Any:
        if name not in _AXES:
            return None
        axes = axes_of(kind)
        if axes == 1:
            note(
                f"an index of thread.index_1d() has no .{name}, but a number, index.get(): thread.index_2d() and "
                "thread.index_3d() give an index with rows and columns"
            )
        elif axes == 2 and name == "plane":
            note("an index of thread.index_2d() has no .plane: thread.index_3d() gives an index of three axes")
        return PLACE if "xyz".index(_AXES[name]) < axes > 1 else None


@lowering_registry.lower_getattr_generic(ThreadIndexType)
def _lower_place(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    return global_index(builder, _AXES[name])


@lowering_registry.lower("oxide.thread_index.get", ThreadIndexType)
def _lower_get(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return index_number(context, builder, sig.args[0], args[0])


@optional(ThreadIndexType)
def _lower_is_not_none(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    if isinstance(sig.args[0], PlaceIndexType):
        return ir.Constant(ir.IntType(1), 1)
    return builder.icmp_signed(">=", index_number(context, builder, sig.args[0], args[0]), ir.Constant(_WORD, 0))


def _special(builder: Any, name: str) -> Any:
    return call(builder, f"llvm.nvvm.read.ptx.sreg.{name}", ir.IntType(32))


def _register(builder: Any, name: str) -> Any:
    return builder.zext(_special(builder, name), _WORD)


def global_index(builder: Any, axis: str) -> Any:
    first = builder.mul(_register(builder, f"ctaid.{axis}"), _register(builder, f"ntid.{axis}"))
    return builder.add(first, _register(builder, f"tid.{axis}"))


def _lane_id(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _register(builder, "laneid")


def _warp_id(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    # The hardware's %warpid is not used: it is the warp's current slot, which may change while the warp runs.
    rows = builder.add(builder.mul(_special(builder, "tid.z"), _special(builder, "ntid.y")), _special(builder, "tid.y"))
    linear = builder.add(builder.mul(rows, _special(builder, "ntid.x")), _special(builder, "tid.x"))
    return builder.zext(builder.lshr(linear, ir.Constant(ir.IntType(32), 5)), _WORD)


register(Primitive(thread.index_2d_row, returning(PLACE_KIND)), lowered=_row)
register(Primitive(thread.index_2d_col, returning(PLACE_KIND)), lowered=_column)
register(Primitive(warp.lane_id, returning(PLACE_KIND)), lowered=_lane_id)
register(Primitive(warp.warp_id, returning(PLACE_KIND)), lowered=_warp_id)
