"""Decides where each value is computed: either at its definition, into a buffer or registers, or later, at its uses."""

from __future__ import annotations

from oxide.compiler.tile.ir import Node
from oxide.compiler.tile.layouts import source_of

from . import products, reductions, registers, sorting, tensor_cores, tensors
from .state import FREE, VIEWS, Buffer, Held, Lowering

_COMPUTED = {
    "sum": reductions.reduce, "max": reductions.reduce, "min": reductions.reduce, "argmax": reductions.arg,
    "argmin": reductions.arg, "cumsum": reductions.cumsum, "cat": reductions.cat, "mma": products.mma,
    "sort": sorting.sort,
}  # fmt: skip
"""The operations that are computed where they are defined."""


def define(low: Lowering, node: Node) -> None:
    """Computes a value at its definition, or leaves its computation to its uses."""
    if node in low.staged:
        return
    if node.op == "load":
        tensors.place(low, node)
    if node.op == "cell":
        _read_variable(low, node)
        return
    computed = _COMPUTED.get(node.op)
    if computed is not None:
        computed(low, node)
        return
    if not node.shape:
        if node.op != "counter":
            with low.forgetting():
                low.values[node] = low.compute(node, ())
        return
    if node.op in FREE or node.op == "order":
        return
    if _feeds_tensor_cores(low, node):
        if any(user.region is not node.region for user in readers(node)):
            tensor_cores.stage(low, node)
            return
    elif _is_kept(low, node):
        save(low, node)
        return
    if any(True for _ in low.loads([node])):
        low.pending.append(node)


def save(low: Lowering, node: Node) -> None:
    """Computes a lazy value into registers, if it has a layout, or into a buffer."""
    layout = low.plan.tile(node.shape)
    if low.threads > 1 and layout is not None:
        low.registers[node] = registers.hold(low, node, layout, rows=False)
        return
    rows = low.plan.row_layout(node.shape[0]) if len(node.shape) == 1 else None
    if low.threads > 1 and rows is not None and registers.reads_rows(low, node):
        low.registers[node] = registers.hold(low, node, rows, rows=True)
        return
    low.keep(node)


def _read_variable(low: Lowering, node: Node) -> None:
    place = low.cells[node.detail]
    if isinstance(place, Buffer):
        low.buffers[node] = place
    elif isinstance(place, Held):
        low.registers[node] = place
    else:
        low.values[node] = low.code.new(f"load {node.dtype.register_type}, ptr {place}")


def _is_kept(low: Lowering, node: Node) -> bool:
    """Returns whether a lazy value needs memory of its own."""
    if node.op in VIEWS and not _computes(low, node):
        return False
    return len(node.users) > 1 or any(each.region is not node.region for each in node.users)


def _computes(low: Lowering, node: Node) -> bool:
    """Returns whether an element of a lazy value takes more than a load of a buffer or of a register."""
    if node in low.buffers or node in low.registers or node.op in FREE or not node.shape:
        return False
    return node.op not in VIEWS or _computes(low, node.inputs[0])


def readers(node: Node) -> list[Node]:
    """Returns the nodes that use a value. A user that is a transpose of the value is replaced by its own users."""
    return [
        user for each in node.users for user in (each.users if source_of(each)[1] is node and each.users else [each])
    ]


def _feeds_tensor_cores(low: Lowering, node: Node) -> bool:
    """Returns whether all users of a value are products on tensor cores that read it from shared memory as an
    operand."""
    users = readers(node)
    if not users or node.op in VIEWS:
        return False
    for user in users:
        product = low.plan.products.get(user)
        if product is None or source_of(user.inputs[2])[1] is node:
            return False
        if product.left_in_registers and source_of(user.inputs[0])[1] is node:
            return False
    return True
