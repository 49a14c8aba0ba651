"""``tensor.cluster``: calls of primitives that each back end defines (``compiler.ir.primitives``)."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.frontend.lowering.common import address
from oxide.compiler.primitives.table import NONE, Primitive, returning
from oxide.language.tensor import cluster

from ..common import element_index, in_bounds
from ..primitives import call_primitive, register, site
from ..registry import bound, lowering_registry, note_first, parameters, typing_registry
from ..shared import BlockArrayType
from ..types import display

_BYTE_POINTER = ir.IntType(8).as_pointer()
_INT = ir.IntType(32)
_WORD = ir.IntType(64)


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


@typing_registry.register_global(cluster.remote)
class Remote(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        given = bound(("array", "rank"), args, kws)
        if given is None or not isinstance(types.unliteral(given["rank"]), types.Integer):
            note_first("tensor.cluster.remote takes a shared array and a block's rank in the cluster, an integer")
            return None
        array = given["array"]
        if not isinstance(array, BlockArrayType) or array.kind not in ("SharedArray", "DynamicSharedArray"):
            note_first(
                "tensor.cluster.remote takes a SharedArray or DynamicSharedArray of this block, not "
                f"{getattr(array, 'shown', None) or display(array)}"
            )
            return None
        found = signature(RemoteArrayType(array), array, types.unliteral(given["rank"]))
        return found.replace(pysig=parameters("array", "rank"))


@lowering_registry.lower(cluster.remote, BlockArrayType, types.Integer)
def _lower_remote(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    what = "tensor.cluster.remote()"
    inside, rank = checked_rank(builder, sig.args[1], args[1], what)
    known = builder.select(inside, rank, _read(builder, "rank"))
    local = builder.bitcast(args[0], _BYTE_POINTER)
    found = call_primitive(builder, _BYTE_POINTER, "oxide.cluster.map", (local, known), site(builder, what))
    return builder.bitcast(found, args[0].type)


def checked_rank(builder: Any, rank_type: Any, rank: Any, what: str) -> tuple[Any, Any]:
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
