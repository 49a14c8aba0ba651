"""``tensor.Barrier``, an array of barriers in shared memory, and ``tensor.cluster``, as calls of primitives that each
back end defines.

- ``void oxide.tensor.barrier.init(ptr memory, i32 count, i32 arrivals, i32 site)``
- ``void oxide.tensor.barrier.arrive(ptr barrier, i32 site)``
- ``void oxide.tensor.barrier.expect(ptr barrier, i32 bytes, i32 site)``
- ``void oxide.tensor.barrier.wait(ptr barrier, i32 phase, i32 site)``
- ``void oxide.cluster.arrive(ptr barrier, i32 rank, i32 site)``, which arrives at the corresponding barrier of the
  block with this rank
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typing.templates import signature

from oxide.compiler.frontend.lowering.common import address, methods, primitive
from oxide.compiler.primitives.table import NONE, Primitive, returning
from oxide.language.tensor import cluster
from oxide.language.tensor.hopper import Barrier

from ..common import element_index, in_bounds
from ..primitives import call_primitive, register, site
from ..registry import lowering_registry
from ..shared import BlockArrayType, static_memory
from ..types import display
from .rules import BYTE_POINTER, VOID, emitted, is_integer, method, shown, typed

_INT = ir.IntType(32)
_WORD = ir.IntType(64)

_BARRIER_BYTES = 16
"""The size of a barrier in bytes. A GPU uses 8 of these bytes. The CPU device uses all of them, as four 32-bit
numbers."""
_MOST_BARRIERS = 256
_MOST_ARRIVALS = 2**20 - 1


class BarrierType(types.Type):  # type: ignore[misc]
    """The type of an array of ``count`` barriers in shared memory."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(f"Barrier({count})")


primitive(BarrierType, lambda kind: BYTE_POINTER)


@typed(Barrier, "tensor.Barrier takes the number of barriers and that of a phase's arrivals, as in Barrier(4, 1)")
def _make(count: Any, arrivals: Any) -> Any:
    for name, kind, most in (("count", count, _MOST_BARRIERS), ("arrivals", arrivals, _MOST_ARRIVALS)):
        if not isinstance(kind, types.IntegerLiteral) or not 1 <= kind.literal_value <= most:
            return f"tensor.Barrier: {name} is a constant from 1 to {most}; it is {shown(kind)}"
    return signature(BarrierType(count.literal_value), count, arrivals)


@lowering_registry.lower(Barrier, types.Any, types.Any)
def _lower_make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    count, arrivals = (_INT(kind.literal_value) for kind in sig.args)
    memory = static_memory(builder, _BARRIER_BYTES * sig.return_type.count, _BARRIER_BYTES)
    place = site(builder, "tensor.Barrier()")
    call_primitive(builder, VOID, "oxide.tensor.barrier.init", (memory, count, arrivals), place)
    call_primitive(builder, VOID, "oxide.block.barrier", (), place)
    return memory


def barrier_at(builder: Any, kind: Any, memory: Any, index_type: Any, index: Any) -> tuple[Any, Any]:
    """Returns whether an index into an array of barriers is in bounds, and the address of the barrier at this index."""
    number = element_index(builder, index_type, index)
    inside = in_bounds(builder, number, _WORD(kind.count), site(builder, str(kind.name)))
    return inside, builder.gep(memory, [builder.mul(number, _WORD(_BARRIER_BYTES))])


def _problem(name: str, **integers: Any) -> str | None:
    """Returns why the arguments of a method are wrong, or None."""
    for each, kind in integers.items():
        if not is_integer(kind):
            return f"{name}: {each} is an integer, not {display(kind)}"
    return None


def _arrive(barrier: Any, index: Any, rank: Any) -> Any:
    given = {} if isinstance(rank, types.NoneType) else {"rank": rank}
    return _problem(_ARRIVE, index=index, **given) or signature(
        types.none, types.unliteral(index), types.unliteral(rank)
    )


def _expect(barrier: Any, index: Any, nbytes: Any) -> Any:
    return _problem(_EXPECT, index=index, nbytes=nbytes) or signature(types.none, types.unliteral(index), types.int32)


def _wait(barrier: Any, index: Any, phase: Any) -> Any:
    return _problem(_WAIT, index=index, phase=phase) or signature(types.none, types.unliteral(index), types.int32)


_ARRIVE, _EXPECT, _WAIT = (f"tensor.Barrier.{name}" for name in ("arrive", "expect", "wait"))
methods(
    BarrierType,
    arrive=method(_ARRIVE, Barrier.arrive, _arrive),
    expect=method(_EXPECT, Barrier.expect, _expect),
    wait=method(_WAIT, Barrier.wait, _wait),
)


@lowering_registry.lower(_ARRIVE, BarrierType, types.Any, types.Any)
def _lower_arrive(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    what = f"{_ARRIVE}()"
    inside, at = barrier_at(builder, sig.args[0], args[0], sig.args[1], args[1])
    if isinstance(sig.args[2], types.NoneType):
        with builder.if_then(inside, likely=True):
            return emitted(context, builder, "oxide.tensor.barrier.arrive", what, at)
    there, rank = _checked_rank(builder, sig.args[2], args[2], what)
    with builder.if_then(builder.and_(inside, there), likely=True):
        return emitted(context, builder, "oxide.cluster.arrive", what, at, rank)


def _lower_with_number(name: str, symbol: str) -> None:
    @lowering_registry.lower(name, BarrierType, types.Any, types.Any)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        inside, at = barrier_at(builder, sig.args[0], args[0], sig.args[1], args[1])
        with builder.if_then(inside, likely=True):
            return emitted(context, builder, symbol, f"{name}()", at, args[2])


_lower_with_number(_EXPECT, "oxide.tensor.barrier.expect")
_lower_with_number(_WAIT, "oxide.tensor.barrier.wait")


# Clusters


class RemoteArrayType(BlockArrayType):
    """The type of an array in the shared memory of another block of the cluster."""

    def __init__(self, array: BlockArrayType) -> None:
        super().__init__("RemoteArray", array.shape, array.dtype)
        self.shown = f"{array.shown} of another block"


address(RemoteArrayType)


def _read(builder: Any, name: str) -> Any:
    return call_primitive(builder, _INT, f"oxide.cluster.{name}", (), site(builder, f"tensor.cluster.{name}()"))


def _number(function: Any) -> None:
    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.zext(_read(builder, function.__name__), _WORD)

    register(Primitive(function, returning("i64")), lowered=lowered)


_number(cluster.rank)
_number(cluster.size)
register(Primitive(cluster.sync, returning(NONE), "oxide.cluster.barrier", has_site=True))
register(Primitive(cluster.meet, returning(NONE), "oxide.cluster.meeting", has_site=True))

_REMOTE = "tensor.cluster.remote takes a shared array and a block's rank in the cluster, an integer"


@typed(cluster.remote, _REMOTE)
def _remote(array: Any, rank: Any) -> Any:
    if not is_integer(rank):
        return _REMOTE
    if not isinstance(array, BlockArrayType) or array.kind not in ("SharedArray", "DynamicSharedArray"):
        found = getattr(array, "shown", None) or display(array)
        return f"tensor.cluster.remote takes a SharedArray or DynamicSharedArray of this block, not {found}"
    return signature(RemoteArrayType(array), array, types.unliteral(rank))


@lowering_registry.lower(cluster.remote, BlockArrayType, types.Integer)
def _lower_remote(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    what = "tensor.cluster.remote()"
    inside, rank = _checked_rank(builder, sig.args[1], args[1], what)
    known = builder.select(inside, rank, _read(builder, "rank"))
    local = builder.bitcast(args[0], BYTE_POINTER)
    found = call_primitive(builder, BYTE_POINTER, "oxide.cluster.map", (local, known), site(builder, what))
    return builder.bitcast(found, args[0].type)


def _checked_rank(builder: Any, rank_type: Any, rank: Any, what: str) -> tuple[Any, Any]:
    """Returns whether a block with the given rank exists in the cluster, and the rank as a 32-bit number. If there is
    no such block, the emitted code records a fault of ``what``."""
    number = element_index(builder, rank_type, rank)
    inside = in_bounds(builder, number, builder.zext(_read(builder, "size"), _WORD), site(builder, what))
    return inside, builder.trunc(number, _INT)


def checked_mask(builder: Any, mask_type: Any, mask: Any, what: str) -> tuple[Any, Any]:
    """Returns whether a mask names only blocks of the cluster, and the mask as a 32-bit number. For any other mask, the
    emitted code records a fault of ``what``."""
    wide = element_index(builder, mask_type, mask)
    end = builder.shl(_WORD(1), builder.zext(_read(builder, "size"), _WORD))
    return in_bounds(builder, wide, end, site(builder, what)), builder.trunc(wide, _INT)
