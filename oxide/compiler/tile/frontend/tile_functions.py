"""The functions on tiles: computes result types and shapes, and checks arguments."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

from oxide.compiler.tile.ir import Node
from oxide.compiler.tile.number_types import BOOL, F32, F64, I64, U64
from oxide.host.messages import written

from .node_maker import Nodes

_MOST_FACTORS = 8
"""The greatest exponent of ``**`` that is computed by multiplications."""

COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip


def compare(build: Nodes, op: str, sides: tuple[Any, Any], what: str) -> Node:
    """Makes the node of a comparison. Integers are compared as numbers, whichever types they have, as in NumPy: a
    literal need not fit the type that it meets, and neither does a place or a counter."""
    for this, other in (sides, sides[::-1]):
        number = this.detail if isinstance(this, Node) and this.op == "constant" and this.weak is int else this
        if type(number) is int and isinstance(other, Node) and other.dtype.kind in "iu":
            low, high = other.dtype.limits
            if not low <= number <= high:  # all elements are on one side of it
                holds = COMPARISONS[op](number, 0) if this is sides[0] else COMPARISONS[op](0, number)
                return build.broadcast(build.constant(holds, BOOL), other.shape)
    one, two = (build.lifted(each, what) for each in sides)
    integers = one.dtype.kind in "iu" and two.dtype.kind in "iu" and "constant" not in (one.op, two.op)
    if integers and one.dtype is not two.dtype:
        if U64 in (one.dtype, two.dtype) and "i" in (one.dtype.kind, two.dtype.kind):
            return _compare_with_u64(build, op, one, two, what)
        if int in (one.weak, two.weak):
            one, two = build.cast(one, I64), build.cast(two, I64)
    return build.elementwise(op, (one, two), BOOL, what=what)


def _compare_with_u64(build: Nodes, op: str, one: Node, two: Node, what: str) -> Node:
    """Makes the nodes of a comparison of an u64 and a signed integer. A negative number is below each u64."""
    below = build.elementwise("lt", (two if one.dtype is U64 else one, 0), BOOL)
    same = build.elementwise(op, (build.cast(one, U64), build.cast(two, U64)), BOOL, what=what)
    if COMPARISONS[op](0, -1) if one.dtype is U64 else COMPARISONS[op](-1, 0):
        return build.elementwise("or", (below, same))
    return build.elementwise("and", (build.elementwise("invert", (below,)), same))


def filled(build: Nodes, name: str, shape: Any, value: Any, dtype: Any = F32) -> Node:
    """Makes the node of ``full``, ``zeros`` or ``ones``."""
    kind = build.dtype(dtype)
    found = build.lifted(value, name)
    if found.shape:
        build.refuse(f"{name} takes one number, not {build.shown(found)}; broadcast_to repeats a tile")
    return build.broadcast(build.convert(found, kind), build.sizes(shape, name))


def where(build: Nodes, condition: Any, a: Any, b: Any) -> Node:
    """Makes the node of ``where``, which takes three arguments as in NumPy."""
    test = build.lifted(condition, "where")
    if test.dtype is not BOOL:
        build.refuse(f"where takes a condition of bools, not {build.shown(test)}")
    one, two = build.lifted(a, "where"), build.lifted(b, "where")
    kind, weak = build.common_type((one, two))
    shape = build.common_shape((test, one, two))
    inputs = [build.broadcast(each, shape) for each in (test, build.cast(one, kind), build.cast(two, kind))]
    return build.node("where", inputs, kind, shape, weak=weak)


def reduce(build: Nodes, name: str, x: Any, axis: Any = None, keepdims: Any = False) -> Node:
    """Makes the node of ``sum``, ``max`` or ``min``."""
    found = build.lifted(x, name)
    ndim = len(found.shape)
    given = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(sorted({build.axis(each, ndim, name) for each in given}))
    if name == "sum" and found.dtype.kind in "iub":
        found = build.cast(found, U64 if found.dtype.kind == "u" else I64)
    if not axes:
        return found
    kept = tuple(1 if place in axes else size for place, size in enumerate(found.shape))
    shape = tuple(size for place, size in enumerate(found.shape) if place not in axes)
    made = build.node(name, (found,), found.dtype, shape, axes)
    keep = build.flag(keepdims, f"{name}: keepdims")
    return build.node("reshape", (made,), found.dtype, kept) if keep else made


def along(build: Nodes, name: str, x: Any, axis: Any = None) -> Node:
    """Makes the node of ``argmax``, ``argmin`` or ``cumsum``."""
    found = build.lifted(x, name)
    if axis is None:
        if len(found.shape) != 1:
            found = build.node("reshape", (found,), found.dtype, (found.size,))
        axis = 0
    place = build.axis(axis, len(found.shape), name)
    if name == "cumsum":
        if found.dtype.kind in "iub":
            found = build.cast(found, U64 if found.dtype.kind == "u" else I64)
        return build.node(name, (found,), found.dtype, found.shape, place)
    return build.node(name, (found,), I64, found.shape[:place] + found.shape[place + 1 :], place)


def sort(build: Nodes, x: Any, axis: Any = -1, descending: Any = False) -> Node:
    """Makes the node of ``sort``, which sorts along an axis."""
    found = build.lifted(x, "sort")
    place = build.axis(axis, len(found.shape), "sort")
    down = build.flag(descending, "sort: descending")
    return build.node("sort", (found,), found.dtype, found.shape, (place, down, False))


def topk(build: Nodes, x: Any, k: Any, axis: Any = -1) -> tuple[Node, Node]:
    """Makes the nodes of ``topk``: the largest elements along an axis, and their indices."""
    found = build.lifted(x, "topk")
    place = build.axis(axis, len(found.shape), "topk")
    length = found.shape[place]
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= length:
        build.refuse(
            f"topk: k is a number from 1 to {length}, the tile's length along axis {place}, that is known when the "
            f"kernel is compiled, not {build.shown(k)}"
        )
    shape = (*found.shape[:place], k, *found.shape[place + 1 :])
    made = build.node("sort", (found,), found.dtype, shape, (place, True, True))
    return made, build.node("order", (made,), I64, shape)


def rand(build: Nodes, seed: Any, counters: Any) -> Node:
    """Makes the node of ``rand``: numbers from 0 to 1, computed from a seed and counters."""
    key, numbers = build.lifted(seed, "rand"), build.lifted(counters, "rand")
    if key.shape or key.dtype.kind not in "iu":
        build.refuse(f"rand takes an integer as seed, not {build.shown(key)}")
    if numbers.dtype.kind not in "iu":
        build.refuse(f"rand takes a tile of integers as counters, as tile.arange(n), not {build.shown(numbers)}")
    both = [build.broadcast(build.cast(key, I64), numbers.shape), build.cast(numbers, I64)]
    return build.node("rand", both, F32, numbers.shape)


def reshape(build: Nodes, x: Any, shape: Any) -> Node:
    """Makes the node of ``reshape``. One length may be -1."""
    found = build.lifted(x, "reshape")
    sizes = list(shape) if isinstance(shape, tuple | list) else [shape]
    if sizes.count(-1) == 1 and all(isinstance(each, int) for each in sizes):
        rest = -math.prod(sizes)
        sizes[sizes.index(-1)] = found.size // rest if rest else 0
        if rest and found.size % rest:
            build.refuse(f"a tile of shape {found.shape} cannot be reshaped to {written(shape)}")
    result = build.sizes(tuple(sizes), "reshape") if sizes else ()
    if math.prod(result) != found.size:
        build.refuse(f"a tile of shape {found.shape} cannot be reshaped to {written(shape)}")
    return build.node("reshape", (found,), found.dtype, result)


def transpose(build: Nodes, x: Any, axes: Any = None) -> Node:
    """Makes the node of ``transpose``."""
    found = build.lifted(x, "transpose")
    ndim = len(found.shape)
    if axes is None:
        order = tuple(reversed(range(ndim)))
    elif isinstance(axes, tuple | list):
        order = tuple(build.axis(each, ndim, "transpose") for each in axes)
    else:
        build.refuse(f"transpose takes a tuple of axes, not {build.shown(axes)}")
    if sorted(order) != list(range(ndim)):
        build.refuse(f"transpose: {written(axes)} is no order of the {ndim} axes of a tile of shape {found.shape}")
    return build.node("transpose", (found,), found.dtype, tuple(found.shape[each] for each in order), order)


def broadcast_to(build: Nodes, x: Any, shape: Any) -> Node:
    """Makes the node of ``broadcast_to``."""
    found, sizes = build.lifted(x, "broadcast_to"), build.sizes(shape, "broadcast_to")
    if not build.broadcasts(found.shape, sizes):
        build.refuse(f"a tile of shape {found.shape} cannot be broadcast to {sizes}")
    return build.broadcast(found, sizes)


def cat(build: Nodes, tiles: Any, axis: Any = 0) -> Node:
    """Makes the node of ``cat``."""
    if not isinstance(tiles, tuple | list) or not tiles:
        build.refuse("cat takes a tuple of tiles, as in cat((a, b))")
    found = [build.lifted(each, "cat") for each in tiles]
    kind, _ = build.common_type(found, "cat: ")
    place = build.axis(axis, len(found[0].shape), "cat")
    rest = {(len(each.shape), each.shape[:place], each.shape[place + 1 :]) for each in found}
    if len(rest) > 1:
        build.refuse(f"cat: {' and '.join(str(each.shape) for each in found)} differ in another axis than {place}")
    shape = list(found[0].shape)
    shape[place] = sum(each.shape[place] for each in found)
    return build.node("cat", [build.cast(each, kind) for each in found], kind, tuple(shape), place)


def matmul(build: Nodes, a: Any, b: Any, acc: Any, tf32: Any = False) -> Node:
    """Makes the node of ``mma``, or of ``a @ b``, which has no ``acc``. Products of f16, bf16 and 8-bit floats are
    summed in f32."""
    one, two = build.lifted(a, "mma"), build.lifted(b, "mma")
    if len(one.shape) != 2 or len(two.shape) != 2 or one.shape[1] != two.shape[0]:
        hint = ""
        if len(one.shape) == len(two.shape) == 2 and one.shape[1] == two.shape[1]:
            hint = "; did you mean b.T?"
        build.refuse(f"mma takes tiles of shapes (m, k) and (k, n), not {one.shape} and {two.shape}{hint}")
    shape = (one.shape[0], two.shape[1])
    kind, _ = build.common_type((one, two), "mma: ")
    if kind.kind == "b":
        build.refuse(f"mma takes numbers, not {one.dtype.name} and {two.dtype.name}")
    if acc is None:
        result, sums = kind, F32 if kind.dtype.itemsize <= 2 and kind.kind == "f" else kind
        total = build.broadcast(build.constant(0, sums), shape)
    else:
        total = build.lifted(acc, "mma")
        result = sums = total.dtype
        if total.shape != shape:
            build.refuse(f"mma: {one.shape} times {two.shape} is {shape}, and the sum that it adds to is {total.shape}")
        if (sums.kind == "f") != (kind.kind == "f") or sums.dtype.itemsize < max(4, kind.dtype.itemsize):
            better = "i32 or i64" if kind.kind != "f" else "f64" if kind is F64 else "f32"
            build.refuse(f"mma: products of {kind.name} are not summed in {sums.name}; use {better}")
    rounds = build.flag(tf32, "mma: tf32")
    if rounds and kind is not F32:
        build.refuse(f"mma: tf32=True is for tiles of f32, not of {kind.name}")
    made = build.node("mma", (build.cast(one, kind), build.cast(two, kind), total), sums, shape, rounds)
    return build.cast(made, result)


def power(build: Nodes, base: Any, exponent: Any) -> Any:
    """Makes the nodes of ``base ** exponent``. A small integer exponent becomes multiplications."""
    if isinstance(exponent, int) and not isinstance(exponent, bool) and 0 <= exponent <= _MOST_FACTORS:
        found = build.lifted(base, "**")
        if exponent == 0:
            return build.broadcast(build.cast(build.lifted(1), found.dtype), found.shape)
        result = found
        for _ in range(exponent - 1):
            result = build.elementwise("mul", (result, found), what="**")
        return result
    one, two = build.lifted(base, "**"), build.lifted(exponent, "**")
    if one.dtype.kind != "f" and two.dtype.kind != "f":
        build.refuse(f"** of integers takes an exponent of 0 to {_MOST_FACTORS}; convert the base with .astype(f32)")
    return build.elementwise("pow", (one, two), what="**")
