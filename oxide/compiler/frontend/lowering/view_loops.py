"""Loops over views, and ``zip_exact``.

A loop over a view counts down to 0, as a loop over a ``range`` does, so that the loop analyses recognise it. The loop
needs no checks, because a view that is None has the count 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core.imputils import RefType as Ownership
from numba.cuda.core.imputils import iternext_impl
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.language.views import zip_exact

from .common import load_unchecked, structure
from .debug import lower_failure
from .registry import lowering_registry, note, proxy, typing_registry
from .types import display
from .views import TileIteratorType, TileViewType, VectorIteratorType, VectorViewType, offset_of, report_none, vector

_WORD = ir.IntType(64)


_COUNTERS = [("index", types.CPointer(types.int64)), ("left", types.CPointer(types.int64))]


structure(
    VectorIteratorType,
    members=lambda kind: [*_COUNTERS, *((f"view{number}", vector) for number, vector in enumerate(kind.vectors))],
)
structure(TileIteratorType, members=lambda kind: [*_COUNTERS, ("tile", kind.tile)])


@lowering_registry.lower("getiter", VectorViewType)
def _lower_iterate_vector(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    view = proxy(context, builder, sig.args[0], args[0])
    report_none(builder, view)
    return _iterator(context, builder, sig.return_type, view.count, view0=args[0])


@lowering_registry.lower("getiter", TileViewType)
def _lower_iterate_tile(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    view = proxy(context, builder, sig.args[0], args[0])
    report_none(builder, view)
    return _iterator(context, builder, sig.return_type, view.rows, tile=args[0])


@lowering_registry.lower("getiter", VectorIteratorType)
@lowering_registry.lower("getiter", TileIteratorType)
def _lower_iterate_iterator(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return args[0]


@typing_registry.register_global(zip_exact)
class ZipExact(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if not 2 <= len(args) <= 4 or kws:
            note("zip_exact takes two to four views, by position")
            return None
        wrong = [argument for argument in args if not isinstance(argument, VectorViewType)]
        if wrong:
            note(f"zip_exact takes rows and columns, as a.row(i) of a Slice2 or a MatrixView, not {display(wrong[0])}")
            return None
        return signature(VectorIteratorType(tuple(args), zipped=True), *args)


@lowering_registry.lower(zip_exact, types.VarArg(types.Any))
def _lower_zip(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    views = [proxy(context, builder, kind, value) for kind, value in zip(sig.args, args, strict=True)]
    valid = equal = ir.Constant(ir.IntType(1), 1)
    for view in views:
        report_none(builder, view)
        valid = builder.and_(valid, view.valid)
        equal = builder.and_(equal, builder.icmp_signed("==", view.count, views[0].count))
    with builder.if_then(builder.and_(valid, builder.not_(equal)), likely=False):
        lower_failure(builder, ("zip_exact got views of different lengths",))
    count = builder.select(equal, views[0].count, ir.Constant(_WORD, 0))
    members = {f"view{number}": value for number, value in enumerate(args)}
    return _iterator(context, builder, sig.return_type, count, **members)


def _iterator(context: Any, builder: Any, kind: Any, count: Any, **members: Any) -> Any:
    iterator = proxy(context, builder, kind)
    iterator.index = cgutils.alloca_once(builder, _WORD)
    iterator.left = cgutils.alloca_once(builder, _WORD)
    builder.store(ir.Constant(_WORD, 0), iterator.index)
    builder.store(count, iterator.left)
    for name, value in members.items():
        setattr(iterator, name, value)
    return iterator._getvalue()


@lowering_registry.lower("iternext", VectorIteratorType)
@iternext_impl(Ownership.BORROWED)
def _lower_next_element(context: Any, builder: Any, sig: Any, args: Any, result: Any) -> Any:
    kind = sig.args[0]
    iterator = proxy(context, builder, kind, args[0])
    with _next(builder, iterator, result) as index:
        elements = []
        for number, vector in enumerate(kind.vectors):
            view = proxy(context, builder, vector, getattr(iterator, f"view{number}"))
            place = builder.gep(view.data, [offset_of(builder, vector, view, index)])
            # The load needs no check, because the view's length bounds the loop.
            elements.append(load_unchecked(context, builder, vector.dtype, place))
        result.yield_(context.make_tuple(builder, kind.yield_type, elements) if kind.zipped else elements[0])


@lowering_registry.lower("iternext", TileIteratorType)
@iternext_impl(Ownership.BORROWED)
def _lower_next_row(context: Any, builder: Any, sig: Any, args: Any, result: Any) -> Any:
    kind = sig.args[0]
    iterator = proxy(context, builder, kind, args[0])
    tile = proxy(context, builder, kind.tile, iterator.tile)
    with _next(builder, iterator, result) as index:
        data = builder.gep(tile.data, [builder.mul(index, tile.stride)])
        result.yield_(vector(context, builder, kind.yield_type, data, tile.cols, None, tile))


@contextmanager
def _next(builder: Any, iterator: Any, result: Any) -> Iterator[Any]:
    """Emits the code that advances an iterator if an element is left. Yields the element's index, for the code that
    produces the element."""
    one = ir.Constant(_WORD, 1)
    left = builder.load(iterator.left)
    more = builder.icmp_signed(">", left, ir.Constant(_WORD, 0))
    result.set_valid(more)
    with builder.if_then(more):
        index = builder.load(iterator.index)
        yield index
        builder.store(builder.sub(left, one), iterator.left)
        builder.store(builder.add(index, one), iterator.index)
