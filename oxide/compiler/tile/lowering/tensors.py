"""Lowers accesses of tensors in global memory. Places outside of a tensor are never accessed."""

from __future__ import annotations

from collections.abc import Callable

from oxide.compiler.tile.frontend import TensorParameter
from oxide.compiler.tile.ir import Node
from oxide.language.types import ScalarType

from . import arithmetic
from .state import Index, Lowering

_VECTOR_BYTES = 16
_MOST_LENGTH = 2**31
_MOST_DISTANCE = 2**40
"""``_MOST_LENGTH`` is the copy engine's limit for coordinates, and ``_MOST_DISTANCE`` its limit for the bytes from one
row to the next."""


def lengths_of(tensor: TensorParameter) -> list[str]:
    """Returns the names of a tensor's lengths."""
    return [f"%{tensor.name}.{axis + 1}" for axis in range(tensor.ndim)]


def place(low: Lowering, node: Node) -> None:
    """Computes the place of a load's first element, and whether the load's tile is wholly inside the tensor."""
    tensor: TensorParameter = node.detail
    indices = [low.scalar(node.inputs[axis]) for axis in range(tensor.ndim)]
    low.tiles[node] = placed(low, tensor, indices, node.shape)


def placed(low: Lowering, tensor: TensorParameter, indices: list[str], shape: tuple[int, ...]) -> tuple[list[str], str]:
    """Returns the place of a tile's first element, and whether the tile is wholly inside the tensor. The indices count
    in tiles."""
    code, bases = low.code, bases_of(low, tensor, indices, shape)
    tests = []
    for base, size, length in zip(bases, shape, lengths_of(tensor), strict=True):
        room = code.new(f"sub i64 {length}, {size}")
        tests.append(code.new(f"icmp sle i64 {base}, {room}"))
    return bases, code.all_of(tests)


def bases_of(low: Lowering, tensor: TensorParameter, indices: list[str], shape: tuple[int, ...]) -> list[str]:
    """Returns the place of a tile's first element. Along an axis on which the index is not below the tensor's length,
    the tile is outside, and its place is that length: no place is negative, and no product wraps around."""
    code, bases = low.code, []
    for index, size, length in zip(indices, shape, lengths_of(tensor), strict=True):
        below = code.new(f"icmp ult i64 {index}, {length}")
        bases.append(code.new(f"select i1 {below}, i64 {code.times(index, size)}, i64 {length}"))
    return bases


def loaded(low: Lowering, node: Node, index: Index) -> str:
    """Returns one element of a load."""
    tensor: TensorParameter = node.detail
    bases, _ = low.tiles[node]
    return masked(low, tensor, bases, index, lambda address: read(low, tensor.scalar, address),
                  lambda: low.element(node.inputs[-1], ()))  # fmt: skip


def masked(
    low: Lowering, tensor: TensorParameter, bases: list[str], index: Index,
    inside: Callable[[str], str], outside: Callable[[], str] | None,
) -> str:  # fmt: skip
    """Emits an access of a tensor, with a check of each axis unless the code is for tiles that are wholly inside.
    ``inside`` emits the access at an address. ``outside`` emits the value of an element outside of the tensor. It is
    None for a store, which skips such elements."""
    code = low.code
    if low.whole:
        return inside(address_of(low, tensor, bases, index))
    tests = []
    for base, i, length in zip(bases, index, lengths_of(tensor), strict=True):
        first, step = low.steps.get(i, (i, 0))
        # A place without its step is compared with the length minus the step, which is the same for all threads: no
        # thread has to keep a place for each of its elements.
        room = code.new(f"sub i64 {length}, {step}") if step else length
        tests.append(code.new(f"icmp slt i64 {code.add(base, first)}, {room}"))
    test = code.all_of(tests)
    if outside is None:
        with code.when(test):
            inside(address_of(low, tensor, bases, index))
        return ""
    other = outside()
    return code.either(tensor.scalar.register_type, test, lambda: inside(address_of(low, tensor, bases, index)), other)


def store_element(low: Lowering, tensor: TensorParameter, bases: list[str], index: Index, value: str) -> None:
    """Writes an element of a tile, if its place is inside the tensor."""

    def written(at: str) -> str:
        write(low, tensor.scalar, at, value)
        return ""

    masked(low, tensor, bases, index, written, None)


def address_of(low: Lowering, tensor: TensorParameter, bases: list[str], index: Index) -> str:
    """Returns the address of an element of a tile. If the column is one of this thread's own, the address is computed
    from the address of the thread's first column, which is a constant distance away."""
    code = low.code
    first, step = low.steps.get(index[-1], (index[-1], 0))
    places = [code.add(base, i) for base, i in zip(bases, (*index[:-1], first), strict=True)]
    at = address(low, tensor, places)
    return code.at(tensor.scalar.memory_type, at, str(step)) if step else at


def address(low: Lowering, tensor: TensorParameter, places: list[str]) -> str:
    """Returns the address of an element."""
    code, linear = low.code, places[0]
    for place, length in zip(places[1:], lengths_of(tensor)[1:], strict=True):
        linear = code.add(code.times(linear, length), place)
    return code.at(tensor.scalar.memory_type, f"%{tensor.name}.0", linear)


def read(low: Lowering, scalar: ScalarType, address: str) -> str:
    """Reads an element of global memory."""
    bits = low.code.new(f"load {scalar.memory_type}, ptr {address}, align {scalar.dtype.itemsize}")
    return arithmetic.widened(low.code, bits, scalar)


def write(low: Lowering, scalar: ScalarType, address: str, value: str) -> None:
    """Writes an element of global memory."""
    bits = arithmetic.stored(low.code, value, scalar)
    low.code.emit(f"store {scalar.memory_type} {bits}, ptr {address}, align {scalar.dtype.itemsize}")


def is_aligned(low: Lowering, tensor: TensorParameter) -> str:
    """Returns whether all rows of a tensor begin at multiples of 16 bytes. The test is emitted at the kernel's
    beginning."""
    found = low.aligned.get(tensor.name)
    if found is None:
        code, size = low.code, tensor.scalar.dtype.itemsize
        number, low_bits, row, both, found = (code.name_of("aligned") for _ in range(5))
        code.entry += [
            f"  {number} = ptrtoint ptr %{tensor.name}.0 to i64",
            f"  {row} = mul i64 {lengths_of(tensor)[-1] if tensor.ndim > 1 else '0'}, {size}",
            f"  {both} = or i64 {number}, {row}",
            f"  {low_bits} = and i64 {both}, {_VECTOR_BYTES - 1}",
            f"  {found} = icmp eq i64 {low_bits}, 0",
        ]
        low.aligned[tensor.name] = found
    return found


def is_copied_by_engine(low: Lowering, tensor: TensorParameter) -> str:
    """Returns whether the copy engine can read a matrix. The matrix must have elements, its rows must begin at
    multiples of 16 bytes, and its lengths and the distance of its rows must be within the engine's limits. The test is
    emitted at the kernel's beginning."""
    key = f"{tensor.name} by engine"
    found = low.aligned.get(key)
    if found is None:
        found = is_aligned(low, tensor)
        code, size = low.code, tensor.scalar.dtype.itemsize
        rows, columns = lengths_of(tensor)
        for length, most in ((rows, _MOST_LENGTH), (columns, min(_MOST_LENGTH, _MOST_DISTANCE // size))):
            less, fits, both = (code.name_of("engine") for _ in range(3))
            code.entry += [
                f"  {less} = add i64 {length}, -1",
                f"  {fits} = icmp ult i64 {less}, {most - 1}",
                f"  {both} = and i1 {found}, {fits}",
            ]
            found = both
        low.aligned[key] = found
    return found


# Elements that a kernel picks


def _checked(low: Lowering, node: Node, index: Index) -> tuple[str, list[str]]:
    """Returns whether a gather or a scatter accesses an element, and the element's place in the tensor. An element
    outside of the tensor is not accessed, and is recorded as a fault. An element whose mask is false is not accessed
    either, without a fault."""
    tensor, sites = node.detail
    code, axes = low.code, tensor.ndim
    places = [low.element(each, index) for each in node.inputs[:axes]]
    mask = low.element(node.inputs[axes], index)
    lengths = lengths_of(tensor)

    def check() -> str:
        name = "oxide.in_bounds" + (f".{axes}" if axes > 1 else "")
        results = []
        for axis in range(axes):
            others = [("i64", each[other]) for other in range(axes) if other != axis for each in (places, lengths)]
            results.append(
                code.call("i1", name, ("i64", places[axis]), ("i64", lengths[axis]), low.site(sites[axis]), *others)
            )
        return code.all_of(results)

    return (check() if mask == "true" else code.either("i1", mask, check, "false")), places


def gathered(low: Lowering, node: Node, index: Index) -> str:
    """Returns one element of a gather, or the padding if the element is not accessed."""
    tensor, _ = node.detail
    there, places = _checked(low, node, index)
    padding = low.element(node.inputs[-1], ())
    return low.code.either(
        tensor.scalar.register_type, there, lambda: read(low, tensor.scalar, address(low, tensor, places)), padding
    )


def scatter(low: Lowering, node: Node) -> None:
    """Lowers ``scatter`` and the atomic operations: each value is written by one thread."""
    tensor, _ = node.detail
    value = node.inputs[-1]

    def one(index: Index) -> None:
        there, places = _checked(low, node, index)
        found = low.element(value, index)
        with low.code.when(there):
            at = address(low, tensor, places)
            if node.op == "scatter":
                write(low, tensor.scalar, at, found)
            else:
                scalar, kind = tensor.scalar, tensor.scalar.memory_type
                letter = scalar.name if scalar.kind == "f" else f"i{8 * scalar.dtype.itemsize}"
                how = node.op.removeprefix("atomic_")
                if scalar.kind == "f" or (scalar.kind == "u" and how in ("max", "min")):
                    how = scalar.kind + how
                bits = arithmetic.stored(low.code, found, scalar)
                low.code.call(kind, f"oxide.atomic.{how}.{letter}.device.0", ("ptr", at), (kind, bits))

    low.barrier()
    low.over(value.shape, [*node.inputs], one)
    low.barrier()
