"""``range`` and ``unroll`` in oxide's kernels. A ``range`` has as many iterations as Python's, for all arguments.

numba subtracts the start from the stop in the counter's own type. The difference may wrap, and then the loop has too
many iterations or none. Here, the iterations are counted before the loop, in 64 bits and without wrapping. An i32 is
widened. For 64-bit arguments, the ends are compared, and their distance is computed as an unsigned number. A count of
2**63 or more becomes 2**63 - 1, because no loop ever completes so many iterations. The loop then counts down to 0, a
form that loop analyses recognise. Kernels with numba's semantics keep numba's ``range``.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.core.imputils import RefType as Ownership
from numba.cuda.core.imputils import iternext_impl
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.language.unroll import unroll

from .common import structure
from .primitives import call
from .registry import lowering_registry, note, proxy, typing_registry

_WORD = ir.IntType(64)
_ZERO, _ONE, _LARGEST = ir.Constant(_WORD, 0), ir.Constant(_WORD, 1), ir.Constant(_WORD, 2**63 - 1)


class CountedRangeType(types.RangeType):  # type: ignore[misc]
    """The type of the result of ``range``: numba's start, stop and step, but iterated by oxide's own loop."""

    def __init__(self, dtype: Any) -> None:
        super().__init__(dtype)
        self.name = f"counted_range_{dtype}"
        self._iterator_type = CountedRangeIteratorType(dtype)

    def unify(self, typingctx: Any, other: Any) -> Any:
        if not isinstance(other, CountedRangeType):
            return None
        dtype = typingctx.unify_pairs(self.dtype, other.dtype)
        return None if dtype is None else CountedRangeType(dtype)


class CountedRangeIteratorType(types.SimpleIteratorType):  # type: ignore[misc]
    """The type of the iterator of a ``CountedRangeType``."""

    def __init__(self, dtype: Any) -> None:
        super().__init__(f"counted_range_iterator_{dtype}", dtype)

    def unify(self, typingctx: Any, other: Any) -> Any:
        if not isinstance(other, CountedRangeIteratorType):
            return None
        dtype = typingctx.unify_pairs(self.yield_type, other.yield_type)
        return None if dtype is None else CountedRangeIteratorType(dtype)


structure(CountedRangeType, members=lambda kind: [(name, kind.dtype) for name in ("start", "stop", "step")])
structure(
    CountedRangeIteratorType,
    members=lambda kind: [
        ("number", types.CPointer(kind.yield_type)),
        ("left", types.CPointer(types.int64)),
        ("step", kind.yield_type),
    ],
)


def range_arguments(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the types that the arguments of a ``range`` are converted to if one of them is a ``u64``. Returns other
    arguments unchanged.

    All arguments become ``u64`` if each is unsigned or a literal that is not negative. Otherwise they become ``i64``,
    as in all arithmetic on ``u64`` and signed integers.
    """
    if types.uint64 not in (types.unliteral(argument) for argument in args):
        return args
    return (types.uint64 if all(_never_negative(argument) for argument in args) else types.int64,) * len(args)


def counted(found: Any) -> Any:
    """Returns the signature of a call of ``range`` with ``CountedRangeType`` as the result in place of numba's type."""
    return found and signature(CountedRangeType(found.return_type.dtype), *found.args)


def _never_negative(kind: Any) -> bool:
    if isinstance(kind, types.IntegerLiteral):
        return int(kind.literal_value) >= 0
    return isinstance(kind, types.Integer) and not kind.signed


@lowering_registry.lower(len, CountedRangeType)
def _lower_length(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    count = _iterations(context, builder, sig.args[0], proxy(context, builder, sig.args[0], args[0]))
    return context.cast(builder, count, types.int64, sig.return_type)


@lowering_registry.lower("getiter", CountedRangeType)
def _lower_iterate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    state = proxy(context, builder, sig.args[0], args[0])
    iterator = proxy(context, builder, sig.return_type)
    iterator.number = cgutils.alloca_once_value(builder, state.start)
    iterator.left = cgutils.alloca_once_value(builder, _iterations(context, builder, sig.args[0], state))
    iterator.step = state.step
    return iterator._getvalue()


@lowering_registry.lower("iternext", CountedRangeIteratorType)
@iternext_impl(Ownership.BORROWED)
def _lower_next(context: Any, builder: Any, sig: Any, args: Any, result: Any) -> Any:
    iterator = proxy(context, builder, sig.args[0], args[0])
    left = builder.load(iterator.left)
    more = builder.icmp_signed(">", left, _ZERO)
    result.set_valid(more)
    with builder.if_then(more):
        number = builder.load(iterator.number)
        result.yield_(number)
        builder.store(builder.sub(left, _ONE, flags=["nsw"]), iterator.left)
        builder.store(builder.add(number, iterator.step), iterator.number)


def _iterations(context: Any, builder: Any, kind: Any, state: Any) -> Any:
    """Returns the number of iterations, a non-negative i64."""
    with cgutils.if_unlikely(builder, builder.icmp_unsigned("==", state.step, ir.Constant(state.step.type, 0))):
        context.fndesc.call_conv.return_user_exc(builder, ValueError, ("range() arg 3 must not be zero",))
    # For a constant step of 1, LLVM folds all of this to a subtraction.
    if kind.dtype.signed:
        start, stop, step = (
            number if kind.dtype.bitwidth == 64 else builder.sext(number, _WORD)
            for number in (state.start, state.stop, state.step)
        )
        up = builder.icmp_signed(">", step, _ZERO)
        by_one = _call(builder, "smax", _call(builder, "ssub.sat", stop, start), _ZERO)
        by_minus_one = _call(builder, "smax", _call(builder, "ssub.sat", start, stop), _ZERO)
        low, high = builder.select(up, start, stop), builder.select(up, stop, start)
        several = _several(builder, builder.icmp_signed("<", low, high), low, high, _magnitude(builder, up, step))
        otherwise = builder.select(builder.icmp_signed("==", step, ir.Constant(_WORD, -1)), by_minus_one, several)
    else:
        start, stop, step = state.start, state.stop, state.step
        by_one = _call(builder, "umin", _call(builder, "usub.sat", stop, start), _LARGEST)
        otherwise = _several(builder, builder.icmp_unsigned("<", start, stop), start, stop, step)
    return builder.select(builder.icmp_signed("==", step, _ONE), by_one, otherwise)


def _several(builder: Any, some: Any, low: Any, high: Any, size: Any) -> Any:
    """Returns the number of iterations from ``low`` up to ``high`` in steps of ``size``, which is unsigned. Returns 0
    if ``some`` is false."""
    last = builder.udiv(builder.sub(builder.sub(high, low), _ONE), size)
    return builder.select(some, _call(builder, "umin", builder.add(last, _ONE), _LARGEST), _ZERO)


def _magnitude(builder: Any, positive: Any, number: Any) -> Any:
    return builder.select(positive, number, builder.sub(_ZERO, number))


def _call(builder: Any, operation: str, left: Any, right: Any) -> Any:
    return call(builder, f"llvm.{operation}.i64", _WORD, left, right)


# ``unroll(range(…))`` is the range


@typing_registry.register_global(unroll)
class Unroll(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        if len(args) != 1 or kws or not isinstance(args[0], types.RangeType):
            note("unroll takes a range, as in: for i in unroll(range(8))")
            return None
        return signature(args[0], args[0])


@lowering_registry.lower(unroll, types.RangeType)
def _lower_unroll(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    call(builder, "oxide.unroll", ir.VoidType())  # marks the loop for ``compiler/ir/portable.py``
    return args[0]
