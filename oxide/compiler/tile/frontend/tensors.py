"""The operations on whole tensors: loads and stores of tiles, gathers and scatters of elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from oxide.compiler.tile.ir import Node
from oxide.compiler.tile.number_types import BOOL, I64
from oxide.language.types import SCALARS

from .node_maker import Nodes, TensorParameter

_FAMILIES = {"atomic_add": "add", "atomic_max": "order", "atomic_min": "order"}
"""The families of atomic operations. The operations that are not listed are of the family ``bits``."""


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
    return build.convert(found, tensor.scalar)


def load_like(build: Nodes, x: Any, like: Any, padding: Any = 0) -> Node:
    """Makes the node of ``load_like(x, z)``: loads the tile of ``x`` at the index of the program's own tile in
    ``z``."""
    if not isinstance(like, TensorParameter) or like.tile is None:
        build.refuse(f"load_like takes a tensor and a partition, not {build.shown(like)}")
    if not isinstance(x, TensorParameter) or x.is_target or x.ndim != like.ndim:
        build.refuse(f"load_like takes a tensor with {like.ndim} axes, as {like.name} has, not {build.shown(x)}")
    return load(build, x, own_index(build, like), like.tile, padding)


def _elements(build: Nodes, tensor: TensorParameter, values: Any, what: str) -> Node:
    """Returns the node of values to write to a tensor. Raises ``CompileError`` if they have another type."""
    found = build.lifted(values, what)
    if found.weak is not None:
        found = build.convert(found, tensor.scalar)
    if found.dtype is not tensor.scalar:
        build.refuse(f"{tensor.name} has elements of {tensor.scalar.name}, and this tile of {found.dtype.name}; "
                     f"convert it with .astype({tensor.scalar.name})")  # fmt: skip
    return found


def store(build: Nodes, tensor: TensorParameter, value: Any) -> None:
    """Makes the node of ``z.store(tile)``."""
    assert tensor.tile is not None
    found = _elements(build, tensor, value, f"{tensor.name}.store")
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
