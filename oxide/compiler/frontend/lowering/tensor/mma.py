"""``mma`` and ``tf32``.

A fragment may have several tiles. ``mma`` then calls a primitive for each tile of the accumulator and each step along
k. All calls of one step come before all calls of the next step, so that consecutive instructions add to different
accumulators.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.typing.templates import AbstractTemplate, signature

from oxide.compiler.frontend.lowering.primitives import call_primitive, register, site
from oxide.compiler.frontend.lowering.registry import bound, lowering_registry, note, typing_registry
from oxide.compiler.frontend.lowering.types import display
from oxide.compiler.ir.half import TF32
from oxide.compiler.primitives.table import OPEN, Primitive, shown
from oxide.compiler.source.fragment_layouts import PRODUCTS, Layout, instruction
from oxide.compiler.source.typings import Signature
from oxide.language.tensor.mma import mma, tf32

from .fragments import BYTES, FragmentType, element_at

_VOID = ir.VoidType()


@typing_registry.register_global(mma)
class Product(AbstractTemplate):  # type: ignore[misc]
    def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
        given = bound("cab", args, kws)
        if given is None:
            note("tensor.mma takes an Accumulator, a FragmentA and a FragmentB, as in tensor.mma(c, a, b)")
            return None
        for name, kind in (("c", "Accumulator"), ("a", "FragmentA"), ("b", "FragmentB")):
            found = given[name]
            if not isinstance(found, FragmentType) or found.layout.kind != kind:
                note(f"{name} of tensor.mma(c, a, b) is a{'n' * (kind[0] == 'A')} {kind}, not {display(found)}")
                return None
        problem = _problem(*(given[name].layout for name in ("c", "a", "b")))
        if problem is not None:
            shown = ", ".join(given[name].shown for name in ("c", "a", "b"))
            note(f"tensor.mma({shown}): {problem}")
            return None
        return signature(types.none, *(given[name] for name in ("c", "a", "b")))


def _problem(c: Layout, a: Layout, b: Layout) -> str | None:
    """Returns the reason why fragments cannot be multiplied. Returns None if they can be."""
    allowed = PRODUCTS.get((a.dtype, b.dtype))
    if allowed is None:
        return f"the operands are of one type, or of two of 8 bits of one kind; they are of {a.dtype} and {b.dtype}"
    if c.dtype not in allowed:
        return f"operands of {a.dtype} add to an Accumulator of {' or '.join(allowed)}; it is of {c.dtype}"
    if a.columns != b.rows:
        return f"a has {a.columns} columns and b {b.rows} rows; the two are the same"
    if (c.rows, c.columns) != (a.rows, b.columns):
        return f"the product has shape ({a.rows}, {b.columns}), and c ({c.rows}, {c.columns})"
    return None


def whole_warp(name: str) -> str:
    """Returns the message of the fault that is recorded if only some lanes of the warp call a function."""
    return (
        f"tensor.{name}(…) needs all 32 lanes of the warp at this call, and some have returned, do not exist, or make "
        "another call"
    )


@lowering_registry.lower(mma, FragmentType, FragmentType, FragmentType)
def _lower_mma(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    c, a, b = (kind.layout for kind in sig.args)
    symbol = f"oxide.tensor.mma.{instruction(a, b, c)}"
    place = site(builder, "tensor.mma()", whole_warp("mma"))
    (rows, depth), columns = a.tiles, b.tiles[1]
    for k in range(depth):
        for row in range(rows):
            for column in range(columns):
                tiles = (row * columns + column, row * depth + k, k * columns + column)
                addresses = [
                    builder.bitcast(element_at(builder, fragment, tile * layout.tile_length), BYTES)
                    for fragment, tile, layout in zip(args, tiles, (c, a, b), strict=True)
                ]
                call_primitive(builder, _VOID, symbol, tuple(addresses), place)
    return context.get_dummy_value()


def _typed_tf32(name: str, kinds: tuple[str, ...]) -> Signature | str:
    if kinds[0] in ("f32", OPEN):
        return Signature(("f32",), "f32")
    return f"{name} takes an f32, not {shown(kinds)}; convert it, as in f32(x)"


register(Primitive(tf32, _typed_tf32, TF32))
