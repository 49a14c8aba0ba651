"""``tensor.Barrier``: an array of barriers in shared memory, and calls of primitives that each back end defines.

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
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, signature

from oxide.compiler.frontend.lowering.common import primitive
from oxide.language.tensor.barriers import Barrier

from ..common import element_index, in_bounds
from ..primitives import call_primitive, site
from ..registry import bound, lowering_registry, note, note_first, parameters, typing_registry
from ..shared import static_memory
from ..types import display
from .cluster import checked_rank

_BYTE_POINTER = ir.IntType(8).as_pointer()
_INT = ir.IntType(32)
_WORD = ir.IntType(64)
_VOID = ir.VoidType()

BARRIER_BYTES = 16
"""The size of a barrier in bytes. A GPU uses 8 of these bytes. The CPU device uses all of them, as four 32-bit
numbers."""
_MOST_BARRIERS = 256
_MOST_ARRIVALS = 2**20 - 1
_METHODS = {"arrive": (), "expect": ("nbytes",), "wait": ("phase",)}
_OPTIONAL = {"arrive": ("rank",)}


class BarrierType(types.Type):  # type: ignore[misc]
    """The type of an array of ``count`` barriers in shared memory."""

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__(f"Barrier({count})")


primitive(BarrierType, lambda kind: _BYTE_POINTER)


@typing_registry.register_global(Barrier)
class MakeBarrier(AbstractTemplate):  # type: ignore[misc]
    prefer_literal = True

    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        given = bound(("count", "arrivals"), args, kws)
        if given is None:
            note_first(
                "tensor.Barrier takes the number of barriers and that of a phase's arrivals, as in Barrier(4, 1)"
            )
            return None
        for name, most in (("count", _MOST_BARRIERS), ("arrivals", _MOST_ARRIVALS)):
            kind = given[name]
            if not isinstance(kind, types.IntegerLiteral) or not 1 <= kind.literal_value <= most:
                note_first(f"tensor.Barrier: {name} is a constant from 1 to {most}; it is {shown(kind)}")
                return None
        found = signature(BarrierType(given["count"].literal_value), given["count"], given["arrivals"])
        return found.replace(pysig=parameters("count", "arrivals"))


def shown(kind: Any) -> str:
    return str(kind.literal_value) if isinstance(kind, types.Literal) else display(kind)


@lowering_registry.lower(Barrier, types.Any, types.Any)
def _lower_make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    count, arrivals = (_INT(kind.literal_value) for kind in sig.args)
    memory = static_memory(builder, BARRIER_BYTES * sig.return_type.count, BARRIER_BYTES)
    place = site(builder, "tensor.Barrier()")
    call_primitive(builder, _VOID, "oxide.tensor.barrier.init", (memory, count, arrivals), place)
    call_primitive(builder, _VOID, "oxide.block.barrier", (), place)
    return memory


@typing_registry.register_attr
class BarrierMethods(AttributeTemplate):  # type: ignore[misc]
    key = BarrierType

    def generic_resolve(self, kind: Any, name: str) -> Any:
        return types.BoundFunction(_TEMPLATES[name], kind) if name in _METHODS else None


def _make_template(name: str) -> Any:
    class Method(AbstractTemplate):  # type: ignore[misc]
        key = f"oxide.tensor.barrier.{name}"

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            more = _OPTIONAL.get(name, ())
            names: tuple[str, ...] = ("index", *_METHODS[name], *more)
            given = bound(names, args, kws, optional=len(more))
            if given is None:
                last = ", the last optional" if more else ""
                note(f"tensor.Barrier.{name} takes ({', '.join(names)}){last}")
                return None
            names = tuple(each for each in names if each in given)
            for each in names:
                if not isinstance(types.unliteral(given[each]), types.Integer):
                    note(f"tensor.Barrier.{name}: {each} is an integer, not {display(given[each])}")
                    return None
            kinds = [types.unliteral(given["index"]), *[types.int32] * len(_METHODS[name])]
            kinds += [types.unliteral(given[each]) for each in names[len(kinds) :]]
            return signature(types.none, *kinds, recvr=self.this).replace(pysig=parameters(*names))

    return Method


_TEMPLATES = {name: _make_template(name) for name in _METHODS}


def barrier_at(builder: Any, kind: Any, memory: Any, index_type: Any, index: Any) -> tuple[Any, Any]:
    """Returns whether an index into an array of barriers is in bounds, and the address of the barrier at this index."""
    number = element_index(builder, index_type, index)
    inside = in_bounds(builder, number, _WORD(kind.count), site(builder, str(kind.name)))
    return inside, builder.gep(memory, [builder.mul(number, _WORD(BARRIER_BYTES))])


def _lower_method(name: str) -> Any:
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        inside, address = barrier_at(builder, sig.args[0], args[0], sig.args[1], args[1])
        place = site(builder, f"tensor.Barrier.{name}()")
        with builder.if_then(inside, likely=True):
            call_primitive(builder, _VOID, f"oxide.tensor.barrier.{name}", (address, *args[2:]), place)
        return context.get_dummy_value()

    return lower


@lowering_registry.lower("oxide.tensor.barrier.arrive", BarrierType, types.Any, types.Any)
def _lower_remote_arrive(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    what = "tensor.Barrier.arrive()"
    inside, address = barrier_at(builder, sig.args[0], args[0], sig.args[1], args[1])
    there, rank = checked_rank(builder, sig.args[2], args[2], what)
    with builder.if_then(builder.and_(inside, there), likely=True):
        call_primitive(builder, _VOID, "oxide.cluster.arrive", (address, rank), site(builder, what))
    return context.get_dummy_value()


for _name, _values in _METHODS.items():
    lowering_registry.lower(f"oxide.tensor.barrier.{_name}", BarrierType, *[types.Any] * (1 + len(_values)))(
        _lower_method(_name)
    )
