"""The vocabulary of tile kernels, such as ``tile.sum``: maps a call to the function that makes its nodes.

The functions compute result types and shapes, and check arguments. The methods of tensors are here too.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

from oxide.compiler.tile.ir import BOOL, F32, F64, I64, SCATTERS, U64, Node
from oxide.host.messages import written
from oxide.language import promotion
from oxide.language import tile as language
from oxide.language.types import SCALARS

from .node_maker import Nodes, TensorParameter

__all__ = [
    "COMPARISONS", "Method", "attribute", "compare", "load", "matmul", "own_index", "power", "store", "taken",
    "transpose", "where", "word",
]  # fmt: skip

_MOST_FACTORS = 8
"""The greatest exponent of ``**`` that is computed by multiplications."""

COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
_FAMILIES = {"atomic_add": "add", "atomic_max": "order", "atomic_min": "order"}
"""The families of atomic  The operations that are not listed are of the family ``bits``."""


def taken(
    build: Nodes, name: str, arguments: list[Any], named: dict[str, Any], names: tuple[str, ...], **defaults: Any
) -> list[Any]:
    """Returns a call's arguments in the order of the parameters. Raises ``CompileError`` for a missing or surplus
    argument."""
    every = (*names, *defaults)
    takes = f"it takes {', '.join(every)}" if every else "it takes none"
    if len(arguments) > len(every):
        build.refuse(f"{name} has {len(arguments)} arguments, which are too many; {takes}")
    found = dict(zip(every, arguments, strict=False))
    for key, value in named.items():
        if key not in every:
            build.refuse(f"{name} has no argument {key}; {takes}")
        if key in found:
            build.refuse(f"{name}: {key} is given twice")
        found[key] = value
    missing = [key for key in names if key not in found]
    if missing:
        build.refuse(f"{name} needs {' and '.join(missing)}; {takes}")
    return [found.get(key, defaults.get(key)) for key in every]


def word(build: Nodes, name: str, arguments: list[Any], named: dict[str, Any]) -> Any:
    """Evaluates a call of a function of the vocabulary."""
    function = _WORDS.get(name)
    if function is None:
        raise build.error(f"tile.{name} cannot be called here; it is what a for loop goes over")
    names, defaults, takes_name = _parameters_of(function)
    found = taken(build, name, arguments, named, names, **defaults)
    return function(build, name, *found) if takes_name else function(build, *found)


@functools.cache
def _parameters_of(function: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any], bool]:
    """Returns the parameters of a word's function that have no default value, the default values of the others, and
    whether the function also takes the word's name."""
    _, *parameters = inspect.signature(function).parameters.values()
    takes_name = parameters[0].name == "name"
    own = parameters[takes_name:]
    names = tuple(each.name for each in own if each.default is each.empty)
    return names, {each.name: each.default for each in own if each.default is not each.empty}, takes_name


# Tiles


def _unary(build: Nodes, name: str, x: Any) -> Any:
    found = build.lifted(x, name)
    if found.weak is not None and name in language.FLOATING:
        found = build.cast(found, F32)
    if (name in ("floor", "ceil") and found.dtype.kind in "iub") or (name == "abs" and found.dtype.kind == "u"):
        return found
    return build.elementwise(name, (found,))


def _extreme(build: Nodes, name: str, a: Any, b: Any) -> Any:
    return build.elementwise(name, (a, b))


def _zeros_or_ones(build: Nodes, name: str, shape: Any, dtype: Any = F32) -> Any:
    return filled(build, name, shape, int(name == "ones"), dtype)


def _arange(build: Nodes, name: str, n: Any, dtype: Any = I64) -> Any:
    if isinstance(n, tuple | list):
        build.refuse("arange takes one length; reshape gives its tile another shape")
    return build.node(name, (), build.dtype(dtype), build.sizes(n, name))


def _of_grid(build: Nodes, name: str, axis: Any = 0) -> Any:
    if isinstance(axis, bool) or not isinstance(axis, int) or axis not in (0, 1, 2):
        build.refuse(f"{name} takes an axis, 0 to 2, that is known when the kernel is compiled")
    return build.node(name, (), I64, (), axis)


def _cdiv(build: Nodes, a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b) if b else build.refuse("cdiv by 0")
    one, two = build.lifted(a, "cdiv"), build.lifted(b, "cdiv")
    if "f" in (one.dtype.kind, two.dtype.kind):
        build.refuse(f"cdiv takes integers, not {build.shown(one)} and {build.shown(two)}")
    if one.weak is not None and two.weak is not None:  # the negative of a place does not wrap, and is faster
        return build.elementwise("neg", (build.elementwise("floordiv", (build.elementwise("neg", (one,)), two)),))
    down, rest = (build.elementwise(op, (one, two), what="cdiv") for op in ("floordiv", "mod"))
    return where(build, compare(build, "ne", (rest, 0), "cdiv"), build.elementwise("add", (down, 1)), down)


def compare(build: Nodes, op: str, sides: tuple[Any, Any], what: str) -> Node:
    """Makes the node of a comparison. Integers are compared as numbers, whichever types they have, as in NumPy: a
    literal need not fit the type that it meets, and neither does a place or a counter."""
    for this, other in (sides, sides[::-1]):
        number = this.operand.value if isinstance(this, Node) else this
        if type(number) is int and isinstance(other, Node) and other.dtype.kind in "iu":
            low, high = other.dtype.limits
            if not low <= number <= high:  # all elements are on one side of it
                holds = COMPARISONS[op](number, 0) if this is sides[0] else COMPARISONS[op](0, number)
                return build.broadcast(build.constant(holds, BOOL), other.shape)
    one, two = (build.lifted(each, what) for each in sides)
    if one.operand.is_whole and two.operand.is_whole:
        kinds = promotion.compared(one.operand, two.operand)
        one, two = (build.cast(each, kind) for each, kind in zip((one, two), kinds, strict=True))
        if one.dtype is not two.dtype:
            return _compare_with_u64(build, op, one, two, what)
    elif any(each.operand.is_typed and each.dtype.kind in "iu" for each in (one, two)):
        one, two = (build.cast(each, F32) if each.dtype.precision else each for each in (one, two))
    return build.elementwise(op, (one, two), BOOL, what=what)


def _compare_with_u64(build: Nodes, op: str, one: Node, two: Node, what: str) -> Node:
    """Makes the nodes of a comparison of an u64 and a signed integer. A negative number is below each u64."""
    below = build.elementwise("lt", (two if one.dtype is U64 else one, 0), BOOL)
    same = build.elementwise(op, (build.cast(one, U64), build.cast(two, U64)), BOOL, what=what)
    if COMPARISONS[op](0, -1) if one.dtype is U64 else COMPARISONS[op](-1, 0):
        return build.elementwise("or", (below, same))
    return build.elementwise("and", (build.elementwise("invert", (below,)), same))


def filled(build: Nodes, name: str, shape: Any, value: Any, dtype: Any = F32) -> Node:
    kind = build.dtype(dtype)
    found = build.lifted(value, name)
    if found.shape:
        build.refuse(f"{name} takes one number, not {build.shown(found)}; broadcast_to repeats a tile")
    return build.broadcast(build.fitted(found, kind), build.sizes(shape, name))


def where(build: Nodes, condition: Any, a: Any, b: Any) -> Node:
    test = build.lifted(condition, "where")
    if test.dtype is not BOOL:
        build.refuse(f"where takes a condition of bools, not {build.shown(test)}")
    one, two = build.lifted(a, "where"), build.lifted(b, "where")
    common = build.common_type((one, two), "where")
    shape = build.common_shape((test, one, two))
    sides = [build.cast(each, common.scalar) for each in (one, two)]
    inputs = [build.broadcast(each, shape) for each in (test, *sides)]
    return build.node("where", inputs, common.scalar, shape, weak=common.weak)


def reduce(build: Nodes, name: str, x: Any, axis: Any = None, keepdims: Any = False) -> Node:
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
    return build.node(name, (found,), I64, found.shape[:place] + found.shape[place + 1 :], (place,))


def sort(build: Nodes, x: Any, axis: Any = -1, descending: Any = False) -> Node:
    found = build.lifted(x, "sort")
    place = build.axis(axis, len(found.shape), "sort")
    down = build.flag(descending, "sort: descending")
    return build.node("sort", (found,), found.dtype, found.shape, (place, down, False))


def topk(build: Nodes, x: Any, k: Any, axis: Any = -1) -> tuple[Node, Node]:
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
    key, numbers = build.lifted(seed, "rand"), build.lifted(counters, "rand")
    if key.shape or key.dtype.kind not in "iu":
        build.refuse(f"rand takes an integer as seed, not {build.shown(key)}")
    if numbers.dtype.kind not in "iu":
        build.refuse(f"rand takes a tile of integers as counters, as tile.arange(n), not {build.shown(numbers)}")
    both = [build.broadcast(build.cast(key, I64), numbers.shape), build.cast(numbers, I64)]
    return build.node("rand", both, F32, numbers.shape)


def reshape(build: Nodes, x: Any, shape: Any) -> Node:
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
    found, sizes = build.lifted(x, "broadcast_to"), build.sizes(shape, "broadcast_to")
    if not build.broadcasts(found.shape, sizes):
        build.refuse(f"a tile of shape {found.shape} cannot be broadcast to {sizes}")
    return build.broadcast(found, sizes)


def cat(build: Nodes, tiles: Any, axis: Any = 0) -> Node:
    if not isinstance(tiles, tuple | list) or not tiles:
        build.refuse("cat takes a tuple of tiles, as in cat((a, b))")
    found = [build.lifted(each, "cat") for each in tiles]
    kind = build.common_type(found, "cat").scalar
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
    kind = build.common_type((one, two), "mma").scalar
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


def power(build: Nodes, base: Any, exponent: Any) -> Node:
    """Makes the nodes of ``base ** exponent`` for an exponent that is known when the kernel is compiled, or for
    floats. A small exponent becomes multiplications."""
    one, two = build.lifted(base, "**"), build.lifted(exponent, "**")
    known = two.operand.value
    if known is not None and one.operand.is_whole:
        one = build.cast(one, build.result("**", (one, two)).scalar)
        return _repeated(build, one, known) if known >= 0 else build.filled(0, one.dtype, one.shape)
    if known is not None and 0 <= known <= _MOST_FACTORS:
        return _repeated(build, one, known)
    return build.elementwise("pow", (one, two), what="**")


def _repeated(build: Nodes, base: Node, exponent: int) -> Node:
    """Makes the nodes of a power by multiplications."""
    if exponent == 0:
        return build.filled(1, base.dtype, base.shape)
    if exponent <= _MOST_FACTORS:
        result = base
        for _ in range(exponent - 1):
            result = build.elementwise("mul", (result, base), what="**")
        return result
    half = _repeated(build, base, exponent // 2)
    square = build.elementwise("mul", (half, half), what="**")
    return build.elementwise("mul", (square, base), what="**") if exponent % 2 else square


# Tensors


@final
@dataclass(frozen=True, slots=True)
class Method:
    """A method of a tile or a tensor that has not been called yet."""

    this: Any
    name: str


def attribute(build: Nodes, this: TensorParameter, name: str) -> Any:
    """Returns the value of a tensor's attribute. Raises ``CompileError`` for an attribute that the tensor does not
    have."""
    if name == "shape":
        return tuple(build.node("length", (), I64, (), (this.name, axis)) for axis in range(this.ndim))
    if name == "dtype":
        return this.scalar
    if name == "ndim":
        return this.ndim
    if this.is_target:
        build.refuse(f"a target has no .{name}; it has .shape .dtype .ndim, and gather, scatter and the atomic "
                     "operations reach its elements")  # fmt: skip
    if name == "load":
        return Method(this, name)
    if this.tile is None:
        if name == "store":
            build.refuse(f"{this.name} is a tile.Tensor, which a kernel only reads; declare it as tile.Partition")
        build.refuse(f"a tensor has no .{name}; it has .shape .dtype .ndim and .load(index, shape)")
    if name == "tile_shape":
        return this.tile
    if name == "index":
        return own_index(build, this)
    if name == "store":
        return Method(this, name)
    raise build.error(
        f"a partition has no .{name}; it has .index .tile_shape .shape .dtype .ndim .load() and .store(tile)"
    )


def own_index(build: Nodes, this: TensorParameter) -> tuple[Node, ...]:
    """Returns the index of the program's own tile in a partition."""
    return tuple(build.node("program_id", (), I64, (), axis) for axis in range(this.ndim))


def load(build: Nodes, tensor: TensorParameter, index: Any, shape: Any, padding: Any) -> Node:
    """Makes the node of ``x.load(index, shape, padding)``: loads a tile. The index counts in tiles."""
    places = tuple(index) if isinstance(index, tuple | list) else (index,)
    sizes = build.sizes(shape, f"{tensor.name}.load")
    if len(places) != tensor.ndim or len(sizes) != tensor.ndim:
        build.refuse(f"{tensor.name} has {tensor.ndim} axes: load takes as many indices and lengths, not "
                     f"{len(places)} and {len(sizes)}")  # fmt: skip
    found = [build.lifted(each, "load") for each in places]
    for each in found:
        if each.shape or each.dtype.kind not in "iu":
            build.refuse(f"{tensor.name}.load takes integers that count in tiles, not {build.shown(each)}")
    inputs = [*[build.cast(each, I64) for each in found], _padding(build, tensor, padding, "load")]
    return build.node("load", inputs, tensor.scalar, sizes, tensor)


def _padding(build: Nodes, tensor: TensorParameter, padding: Any, what: str) -> Node:
    found = build.lifted(padding, "padding")
    if found.shape or found.op != "constant":
        build.refuse(f"the padding of a {what} is a number that is known when the kernel is compiled")
    return build.fitted(found, tensor.scalar)


def load_like(build: Nodes, x: Any, like: Any, padding: Any = 0) -> Node:
    """Makes the node of ``load_like(x, z)``: loads the tile of ``x`` at the index of the program's own tile in
    ``z``."""
    if not isinstance(like, TensorParameter) or like.tile is None:
        build.refuse(f"load_like takes a tensor and a partition, not {build.shown(like)}")
    if not isinstance(x, TensorParameter) or x.is_target or x.ndim != like.ndim:
        build.refuse(f"load_like takes a tensor with {like.ndim} axes, as {like.name} has, not {build.shown(x)}")
    return load(build, x, own_index(build, like), like.tile, padding)


def _elements(build: Nodes, tensor: TensorParameter, values: Any, what: str) -> Node:
    """Returns the node of values to write to a tensor, in its type. Raises ``CompileError`` if they may not be stored
    in it."""
    return build.accepted(
        values, tensor.scalar, f"an element of {tensor.name}", f"{what}: {tensor.name} has elements of"
    )


def store(build: Nodes, tensor: TensorParameter, value: Any) -> None:
    assert tensor.tile is not None
    found = _elements(build, tensor, value, "store")
    if not build.broadcasts(found.shape, tensor.tile):
        build.refuse(f"the tiles of {tensor.name} have shape {tensor.tile}, and this one has {found.shape}")
    build.node("store", (build.broadcast(found, tensor.tile),), found.dtype, (), tensor)


def _places(build: Nodes, name: str, tensor: Any, indices: Any, mask: Any) -> tuple[list[Node], Node, tuple[int, ...]]:
    """Returns the elements' indices along each axis, the mask, and their common shape."""
    each = tuple(indices) if isinstance(indices, tuple | list) else (indices,)
    if len(each) != tensor.ndim:
        build.refuse(
            f"{name}: {tensor.name} has {tensor.ndim} axes and takes as many tiles of indices, not {len(each)}"
        )
    found = [build.lifted(one, name) for one in each]
    for one in found:
        if one.dtype.kind not in "iu":
            build.refuse(f"{name} takes integers as indices, not {build.shown(one)}")
    test = build.lifted(True if mask is None else mask, f"{name}: mask")
    if test.dtype is not BOOL:
        build.refuse(f"{name}: the mask is of bools, not {build.shown(test)}")
    shape = build.common_shape([*found, test])
    return [build.broadcast(build.cast(one, I64), shape) for one in found], build.broadcast(test, shape), shape


def _sites(build: Nodes, tensor: TensorParameter) -> tuple[int, ...]:
    """Adds a fault site for each axis of a tensor. Returns the sites' numbers."""
    return tuple(build.site(tensor.name, tensor.name, axis) for axis in range(tensor.ndim))


def gather(build: Nodes, tensor: Any, indices: Any, mask: Any = None, padding: Any = 0) -> Node:
    """Makes the node of ``gather(x, indices)``: ``x[indices]``, or ``x[i, j]`` for a tuple of indices."""
    if not isinstance(tensor, TensorParameter):
        build.refuse(f"gather takes a tensor, not {build.shown(tensor)}")
    places, test, shape = _places(build, "gather", tensor, indices, mask)
    inputs = [*places, test, _padding(build, tensor, padding, "gather")]
    return build.node("gather", inputs, tensor.scalar, shape, (tensor, _sites(build, tensor)))


def scatter(build: Nodes, name: str, tensor: Any, indices: Any, values: Any, mask: Any = None) -> None:
    """Makes the node of ``scatter`` or of an atomic operation, on elements of a target or a partition."""
    if not isinstance(tensor, TensorParameter):
        build.refuse(f"{name} takes a target or a partition, not {build.shown(tensor)}")
    if tensor.tile is None and not tensor.is_target:
        build.refuse(f"{tensor.name} is a tile.Tensor, which a kernel only reads; declare it as tile.Target")
    kinds = [each.name for each in SCALARS.values() if _FAMILIES.get(name, "bits") in each.atomics]
    if name != "scatter" and tensor.scalar.name not in kinds:
        build.refuse(f"{name} changes elements of {' '.join(kinds)}, and {tensor.name} has {tensor.scalar.name}")
    places, test, shape = _places(build, name, tensor, indices, mask)
    found = _elements(build, tensor, values, name)
    if not build.broadcasts(found.shape, shape):
        build.refuse(f"{name}: the indices have shape {shape}, and the values {found.shape}")
    inputs = [*places, test, build.broadcast(found, shape)]
    build.node(name, inputs, found.dtype, (), (tensor, _sites(build, tensor)))


_WORDS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys((*language.FLOATING, "abs", "floor", "ceil"), _unary),
    **dict.fromkeys(("maximum", "minimum"), _extreme),
    **dict.fromkeys(("zeros", "ones"), _zeros_or_ones),
    **dict.fromkeys(("sum", "max", "min"), reduce),
    **dict.fromkeys(("argmax", "argmin", "cumsum"), along),
    **dict.fromkeys(SCATTERS, scatter),
    **dict.fromkeys(("program_id", "num_programs"), _of_grid),
    "where": where, "full": filled, "arange": _arange, "sort": sort,
    "topk": topk, "rand": rand, "reshape": reshape,
    "transpose": transpose, "broadcast_to": broadcast_to, "cat": cat,
    "mma": matmul, "load_like": load_like, "gather": gather, "cdiv": _cdiv,
}  # fmt: skip
"""The functions that make the nodes of each word. The parameters after ``build``, and after the word's own name if the
function takes it, are the parameters of the word."""
