"""Lowers ``sort`` and ``topk``: a bitonic network over a buffer. The threads of a block share each step.

For ``topk`` with a small k, the CPU keeps a sorted list of the first k of the elements seen so far. Most of the other
elements are compared only with the last element of the list.

The length along the axis is rounded up to a power of two. Elements beyond the end have indices of at least the tile's
length. The comparison therefore puts them last, whatever their values.
"""

from __future__ import annotations

from oxide.compiler.tile.ir import I32, Node

from . import arithmetic
from .state import Buffer, Index, Lowering

_MOST_KEPT = 32
"""The most elements that are kept in order. An element that joins them is compared with each of them."""


def sort(low: Lowering, node: Node) -> None:
    """Sorts along an axis, with the elements' indices. Equal elements keep their order."""
    (source,) = node.inputs
    axis, descending, _ = node.detail
    length, kept = source.shape[axis], node.shape[axis]
    if low.threads == 1 and kept < length and kept <= _MOST_KEPT:
        _keep_the_first(low, node, axis, descending)
        return
    padded = 1 << (length - 1).bit_length()
    shape = (*source.shape[:axis], padded, *source.shape[axis + 1 :])
    low.put_in_buffers([source])
    values = low.buffer(node.dtype, shape)
    order = low.buffer(I32, shape)
    zero = arithmetic.constant(0, node.dtype)
    low.barrier()

    def copy(index: Index) -> None:
        place = index[axis]
        low.store(order, index, low.code.new(f"trunc i64 {place} to i32"))
        low.store(values, index, low.element(source, index))

    low.over(source.shape, [source], copy)
    if padded > length:
        rest = (*source.shape[:axis], padded - length, *source.shape[axis + 1 :])

        def pad(index: Index) -> None:
            place = low.code.add(index[axis], length)
            at = (*index[:axis], place, *index[axis + 1 :])
            low.store(order, at, low.code.new(f"trunc i64 {place} to i32"))
            low.store(values, at, zero)

        low.nest(rest, pad)
    low.barrier()
    if padded > 1:
        _merge(low, node, values, order, axis, length, descending)
    low.buffers[node] = values
    low.orders[node] = order


def _keep_the_first(low: Lowering, node: Node, axis: int, descending: bool) -> None:
    """Finds the elements that come first in the order, without sorting the others."""
    code, (source,) = low.code, node.inputs
    length, kept = source.shape[axis], node.shape[axis]
    kind, zero = node.dtype.register_type, arithmetic.constant(0, node.dtype)
    values, order = low.buffer(node.dtype, node.shape), low.buffer(I32, node.shape)
    passing = code.variable(kind, "passing"), code.variable("i32", "place")

    def clear(index: Index) -> None:
        # Elements beyond the end come after all others.
        low.store(order, index, code.new(f"trunc i64 {code.add(index[axis], length)} to i32"))
        low.store(values, index, zero)

    low.serial(node.shape, clear)

    def insert(index: Index) -> None:
        value, place = low.element(source, index), code.new(f"trunc i64 {index[axis]} to i32")
        last = (*index[:axis], str(kept - 1), *index[axis + 1 :])
        # Of equal elements the earlier one comes first, and the kept elements are earlier than this one.
        before, _ = _order(low, node, value, low.load(values, last), descending)
        beyond = code.new(f"icmp uge i32 {low.load(order, last)}, {length}")
        comes = code.new(f"or i1 {before}, {beyond}")
        with code.when(comes), low.forgetting():
            code.emit(f"store {kind} {value}, ptr {passing[0]}")
            code.emit(f"store i32 {place}, ptr {passing[1]}")
            with code.counted(kept) as slot:
                at = (*index[:axis], slot, *index[axis + 1 :])
                mine = code.new(f"load {kind}, ptr {passing[0]}"), code.new(f"load i32, ptr {passing[1]}")
                theirs = low.load(values, at), low.load(order, at)
                before = _comes_before(low, node, *mine, *theirs, length, descending)
                low.store(values, at, code.new(f"select i1 {before}, {kind} {mine[0]}, {kind} {theirs[0]}"))
                low.store(order, at, code.new(f"select i1 {before}, i32 {mine[1]}, i32 {theirs[1]}"))
                left = code.new(f"select i1 {before}, {kind} {theirs[0]}, {kind} {mine[0]}")
                code.emit(f"store {kind} {left}, ptr {passing[0]}")
                left = code.new(f"select i1 {before}, i32 {theirs[1]}, i32 {mine[1]}")
                code.emit(f"store i32 {left}, ptr {passing[1]}")

    low.over(source.shape, [source], insert)
    low.buffers[node] = values
    low.orders[node] = order


def _merge(low: Lowering, node: Node, values: Buffer, order: Buffer, axis: int, length: int, descending: bool) -> None:
    """Emits the network. In round r, pairs of sorted runs of 2**r elements become sorted runs of twice the length."""
    shape = values.shape
    padded = shape[axis]
    half = (*shape[:axis], padded // 2, *shape[axis + 1 :])
    with low.code.counted((padded - 1).bit_length()) as number:
        size = low.code.call("i64", "oxide.shl.i64", ("i64", "2"), ("i64", number))
        with low.code.counted(low.code.add(number, 1)) as passed:
            amount = low.code.add(passed, 1)
            step = low.code.call("i64", "oxide.lshr.i64", ("i64", size), ("i64", amount))

            def exchange(index: Index) -> None:
                _exchange(low, node, values, order, index, axis, length, size, step, descending)

            low.nest(half, exchange)
            low.barrier()


def _exchange(
    low: Lowering, node: Node, values: Buffer, order: Buffer, index: Index, axis: int, length: int, size: str,
    step: str, descending: bool,
) -> None:  # fmt: skip
    """Exchanges two elements if they are out of order. The place of the pair decides between ascending and descending
    order."""
    code = low.code
    pair = index[axis]
    # The two elements of a pair have numbers that differ only in the bit ``step``, which is 0 in the first.
    below_step = code.add(step, -1)
    low_bits = code.new(f"and i64 {pair}, {below_step}")
    high_bits = code.new(f"sub i64 {pair}, {low_bits}")
    first = code.add(code.times(high_bits, 2), low_bits)
    second = code.add(first, step)
    one, two = ((*index[:axis], each, *index[axis + 1 :]) for each in (first, second))
    a, b = low.load(values, one), low.load(values, two)
    i, j = low.load(order, one), low.load(order, two)
    swap_up = _comes_before(low, node, b, j, a, i, length, descending)
    swap_down = _comes_before(low, node, a, i, b, j, length, descending)
    bit = code.new(f"and i64 {first}, {size}")
    upward = code.new(f"icmp eq i64 {bit}, 0")
    swap = code.new(f"select i1 {upward}, i1 {swap_up}, i1 {swap_down}")
    kind = node.dtype.register_type
    for place, mine, other in ((one, (a, i), (b, j)), (two, (b, j), (a, i))):
        low.store(values, place, code.new(f"select i1 {swap}, {kind} {other[0]}, {kind} {mine[0]}"))
        low.store(order, place, code.new(f"select i1 {swap}, i32 {other[1]}, i32 {mine[1]}"))


def _order(low: Lowering, node: Node, a: str, b: str, descending: bool) -> tuple[str, str]:
    """Returns whether ``a`` comes before ``b``, and whether they are equal. A NaN is greater than any number, and equal
    to another NaN."""
    left, right = (b, a) if descending else (a, b)
    less = arithmetic.apply(low.code, "lt", node.dtype, [left, right])
    return arithmetic.with_nans(low.code, node.dtype, less, left, right)


def _comes_before(low: Lowering, node: Node, a: str, i: str, b: str, j: str, length: int, descending: bool) -> str:
    """Returns whether element a with index i comes before b with index j."""
    code = low.code
    less, equal = _order(low, node, a, b, descending)
    earlier = code.new(f"icmp ult i32 {i}, {j}")
    tie = code.new(f"and i1 {equal}, {earlier}")
    found = code.new(f"or i1 {less}, {tie}")
    # Elements beyond the end have greater indices than those of the tile.
    i_there, j_there = (code.new(f"icmp ult i32 {each}, {length}") for each in (i, j))
    both = code.new(f"and i1 {i_there}, {j_there}")
    return code.new(f"select i1 {both}, i1 {found}, i1 {earlier}")
