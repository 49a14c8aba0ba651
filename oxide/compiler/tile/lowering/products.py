"""Lowers ``mma`` without tensor cores: for the threads of a block on a GPU, and as vector code on the CPU.

On the CPU both the right operand and the result are in row-major order. A block of the result, ``_ROWS`` rows by a few
vectors, stays in registers while products are added to it, as in BLIS's micro-kernel. Each step reads one row of the
right operand, and one number from each row of the left operand.
"""

from __future__ import annotations

from oxide.compiler.tile.ir import Node
from oxide.compiler.tile.layouts import is_in_place

from . import arithmetic, tensor_cores
from .state import Buffer, Index, Lowering, size_of

_ROWS = 6
"""The rows of the result in registers at once: with 4 vectors of 64 bytes each, they take 24 of a processor's 32 vector
registers."""
_VECTOR_BYTES = 64
_VECTORS = 4


def mma(low: Lowering, node: Node) -> None:
    """Adds a product of tiles to a tile."""
    product = low.plan.products.get(node)
    if product is not None:
        tensor_cores.mma(low, node, product)
        return
    a, b, acc = node.inputs
    low.put_in_buffers([a, b, acc])
    left, right = _operand(low, a, node), _operand(low, b, node)
    if acc in low.buffers and is_in_place(node):
        total = low.buffers[acc]
        low.buffers[node] = total
    else:
        total = low.buffer(node.dtype, node.shape)
        low.fill(total, acc)
        low.buffers[node] = total
    if low.threads > 1:
        _by_threads(low, node, left, right, total)
    else:
        _by_vectors(low, node, left, right, total)


def _operand(low: Lowering, operand: Node, node: Node) -> Buffer:
    """Returns a buffer with an operand, converted to the accumulator's type."""
    if operand.dtype is node.dtype or operand.dtype.register_type == node.dtype.register_type:
        kept = low.keep(operand)
        if kept.shape == operand.shape:  # a sorted tile's buffer has a power of two in each row
            return kept
    buffer = low.buffer(node.dtype, operand.shape)

    def copy(index: Index) -> None:
        value = arithmetic.cast(low.code, low.element(operand, index), operand.dtype, node.dtype)
        low.store(buffer, index, value)

    low.barrier()
    low.over(operand.shape, [operand], copy)
    low.barrier()
    return buffer


def _multiplied(low: Lowering, node: Node, one: str, two: str, so_far: str, kind: str) -> str:
    """Adds the product of two numbers, or of two vectors element by element, to a sum. Returns the new sum."""
    if node.dtype.kind == "f":
        width = kind.strip("<>").split(" x ")
        suffix = ("v" + width[0] if len(width) > 1 else "") + {"float": "f32", "double": "f64"}[width[-1]]
        return low.code.call(kind, f"llvm.fma.{suffix}", (kind, one), (kind, two), (kind, so_far))
    return low.code.new(f"add {kind} {so_far}, {low.code.new(f'mul {kind} {one}, {two}')}")


def _by_threads(low: Lowering, node: Node, left: Buffer, right: Buffer, total: Buffer) -> None:
    """Emits a loop in which each thread computes one element at a time."""
    code, depth = low.code, node.inputs[0].shape[1]
    kind = node.dtype.register_type
    variable = code.variable(kind, "total")

    def element(index: Index) -> None:
        i, j = index
        code.emit(f"store {kind} {low.load(total, index)}, ptr {variable}")
        with code.counted(depth) as k:
            so_far = code.new(f"load {kind}, ptr {variable}")
            found = _multiplied(low, node, low.load(left, (i, k)), low.load(right, (k, j)), so_far, kind)
            code.emit(f"store {kind} {found}, ptr {variable}")
        low.store(total, index, code.new(f"load {kind}, ptr {variable}"))

    low.barrier()
    low.nest(node.shape, element)
    low.barrier()


def _by_vectors(low: Lowering, node: Node, left: Buffer, right: Buffer, total: Buffer) -> None:
    """Emits the CPU's micro-kernel for the part of the result that divides into whole blocks. The remainder gets
    smaller blocks."""
    rows, columns = node.shape
    kind = node.dtype.register_type
    wide = _VECTOR_BYTES // size_of(kind)
    done = 0
    for width, count in ((wide, _VECTORS), (wide, 1), (1, 1)):
        block = width * count
        some = (columns - done) // block
        if some:
            for height, first, many in ((_ROWS, 0, rows // _ROWS), (1, rows // _ROWS * _ROWS, rows % _ROWS)):
                if many:
                    _blocks(low, node, left, right, total, (first, height, many), (done, width, count, some))
        done += some * block


def _blocks(
    low: Lowering, node: Node, left: Buffer, right: Buffer, total: Buffer, down: tuple[int, int, int],
    across: tuple[int, int, int, int],
) -> None:  # fmt: skip
    """Emits the loops over blocks of the result. ``down`` has the first row, the rows of a block, and the number of
    blocks one below the other. ``across`` has the first column, the columns of a vector, the vectors of a block, and
    the number of blocks side by side."""
    code, depth = low.code, node.inputs[0].shape[1]
    first_row, height, many = down
    first_column, width, count, some = across
    plain = node.dtype.register_type
    kind = plain if width == 1 else f"<{width} x {plain}>"
    columns = node.shape[1]
    align = {"float": 4, "double": 8}.get(plain) or int(plain[1:]) // 8
    sums = [[code.variable(kind, "sum") for _ in range(count)] for _ in range(height)]

    def at(buffer: Buffer, row: str, column: str, length: int) -> str:
        return code.at(plain, buffer.address, code.add(code.times(row, length), column))

    with code.counted(some) as part, code.counted(many) as block:
        column = code.add(code.times(part, width * count), first_column)
        row = code.add(code.times(block, height), first_row)
        lines = [code.add(row, i) for i in range(height)]
        places = [code.add(column, v * width) for v in range(count)]
        for line, own in zip(lines, sums, strict=True):
            for place, variable in zip(places, own, strict=True):
                value = code.new(f"load {kind}, ptr {at(total, line, place, columns)}, align {align}")
                code.emit(f"store {kind} {value}, ptr {variable}")
        starts = [at(left, line, "0", depth) for line in lines]
        with code.counted(depth) as k:
            rights = [code.new(f"load {kind}, ptr {at(right, k, place, columns)}, align {align}") for place in places]
            for start, own in zip(starts, sums, strict=True):
                number = code.new(f"load {plain}, ptr {code.at(plain, start, k)}")
                if width > 1:
                    single = code.new(f"insertelement {kind} poison, {plain} {number}, i32 0")
                    mask = f"<{width} x i32> zeroinitializer"
                    number = code.new(f"shufflevector {kind} {single}, {kind} poison, {mask}")
                for value, variable in zip(rights, own, strict=True):
                    so_far = code.new(f"load {kind}, ptr {variable}")
                    found = _multiplied(low, node, number, value, so_far, kind)
                    code.emit(f"store {kind} {found}, ptr {variable}")
        for line, own in zip(lines, sums, strict=True):
            for place, variable in zip(places, own, strict=True):
                value = code.new(f"load {kind}, ptr {variable}")
                code.emit(f"store {kind} {value}, ptr {at(total, line, place, columns)}, align {align}")
