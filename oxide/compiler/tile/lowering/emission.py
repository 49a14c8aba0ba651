"""Lowers a program's nodes in order: values, stores, prints, asserts, loops and branches.

A value is computed either at its definition, into a buffer or registers, or later, at its uses.
A variable that a loop or a branch assigns is in registers or in a buffer, as its layout says. It is written at the end
of each iteration, after all reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oxide.compiler.tile.frontend import TensorParameter
from oxide.compiler.tile.ir import I64, SCATTERS, U64, Cell, Node, Region
from oxide.compiler.tile.layouts import nodes_of, readers, source_of, tensor_of, written_by

from . import arithmetic, pipelines, products, reductions, registers, sorting, tensor_cores, tensors
from .state import FREE, VIEWS, Buffer, Held, Index, Lowering

_A_LINE = 8
"""The number of tile elements in a line of output."""
_COMPUTED = {
    "sum": reductions.reduce, "max": reductions.reduce, "min": reductions.reduce, "argmax": reductions.arg,
    "argmin": reductions.arg, "cumsum": reductions.cumsum, "cat": reductions.cat, "mma": products.mma,
    "sort": sorting.sort,
}  # fmt: skip
"""The operations that are computed where they are defined."""


def run(low: Lowering, region: Region) -> None:
    """Emits the nodes of a region, in order."""
    for node in region.nodes:
        low.code.line = node.line
        effect = _EFFECTS.get(node.op)
        if effect is not None:
            effect(low, node)
        elif node in low.last_use:
            define(low, node)


# Values


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
        if any(user.region is not node.region for user, _ in readers(node)):
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
    if layout is not None:
        low.registers[node] = registers.hold(low, node, layout, rows=False)
        return
    rows = low.plan.rows(node.shape)
    if rows is not None and registers.reads_rows(low, node):
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


def _feeds_tensor_cores(low: Lowering, node: Node) -> bool:
    """Returns whether all users of a value are products on tensor cores that read it from shared memory as an
    operand."""
    users = readers(node)
    if not users or node.op in VIEWS:
        return False
    for user, _ in users:
        product = low.plan.products.get(user)
        if product is None or source_of(user.inputs[2])[1] is node:
            return False
        if product.left_in_registers and source_of(user.inputs[0])[1] is node:
            return False
    return True


# Effects


def _settle(low: Lowering, node: Node, written: Sequence[TensorParameter]) -> None:
    """Computes the pending lazy values that read a tensor which ``node`` may write, so that later uses of these values
    do not see the writes. Tensors that differ in type or number of axes do not overlap: the launch checks this."""
    low.pending = [each for each in low.pending if low.last_use.get(each, -1) > node.index]
    for each in low.pending:
        if _reads(low, each, written):
            save(low, each)


def _reads(low: Lowering, node: Node, written: Sequence[TensorParameter]) -> bool:
    """Returns whether an element of a lazy value reads a tensor that may overlap one of the ``written`` tensors."""
    kinds = {(each.scalar, each.ndim) for each in written}
    return any((each.scalar, each.ndim) in kinds for each in map(tensor_of, low.loads([node])))


def _settle_for(low: Lowering, node: Node, regions: Sequence[Region]) -> None:
    """Computes the pending lazy values that read a tensor which a loop or a branch may write."""
    written = written_by(each for region in regions for each in nodes_of(region))
    if written:
        # The value that a variable has at the end of a body is read there, after the body's writes.
        ends = {end for cell in node.detail[1] for end in cell.ends}
        for each in low.pending:
            if each in ends and _reads(low, each, written):
                save(low, each)
        _settle(low, node, written)


def scatter(low: Lowering, node: Node) -> None:
    """Lowers ``scatter`` and the atomic operations. All elements are read before any element is written."""
    tensor: TensorParameter = node.detail[0]
    _settle(low, node, [tensor])
    for each in node.inputs:
        if each.shape and _reads(low, each, [tensor]):
            save(low, each)
    tensors.scatter(low, node)


def store(low: Lowering, node: Node) -> None:
    """Lowers ``z.store(tile)``."""
    tensor: TensorParameter = node.detail
    (value,) = node.inputs
    assert tensor.tile is not None
    _settle(low, node, [tensor])
    if value not in low.buffers and _moves(low, value, tensor):
        low.keep(value)
    if low.threads > 1 and _is_read_elsewhere(low, tensor):
        low.barrier()  # another thread may still read an element that this one overwrites
    bases, whole = tensors.placed(low, tensor, [low.programs[axis] for axis in range(tensor.ndim)], tensor.tile)
    layout = low.plan.tile(value.shape)
    if layout is not None:
        registers.store(low, tensor, value, layout, bases, whole)
    else:

        def write(index: Index) -> None:
            tensors.store_element(low, tensor, bases, index, low.element(value, index))

        low.over(tensor.tile, [value], write, whole)
    if low.meeting is None or node is not low.program.body.nodes[-1]:
        low.barrier()


def _is_read_elsewhere(low: Lowering, stored: TensorParameter) -> bool:
    """Returns whether a thread may read elements of the stored tensor that another thread of the program writes. A load
    of a tile of the stored shape has the same elements for each thread, or none of them: both count in tiles. The
    operands of products are read into shared memory, with barriers."""
    for node in nodes_of(low.program.body):
        if node.op not in ("load", "gather"):
            continue
        tensor = tensor_of(node)
        if (tensor.scalar, tensor.ndim) != (stored.scalar, stored.ndim):
            continue
        if node.op == "gather":
            return True
        same = node.shape == stored.tile and low.plan.rows(node.shape) is None
        if not same and any(user.op != "mma" for user, _ in readers(node)):
            return True
    return False


def _moves(low: Lowering, node: Node, stored: TensorParameter) -> bool:
    """Returns whether an element of a lazy value reads the stored tensor at a place other than the element's own. A
    store could then overwrite an element before it is read. Tensors that differ in type or number of axes do not
    overlap: the launch checks this."""
    if node in low.buffers or node in low.registers or not node.shape:
        return False
    if node.op in (*VIEWS, "gather"):
        return _reads(low, node, [stored])
    return any(_moves(low, each, stored) for each in node.inputs)


def assertion(low: Lowering, node: Node) -> None:
    """Lowers ``assert``."""
    failed = low.code.new(f"xor i1 {low.scalar(node.inputs[0])}, true")
    with low.code.when(failed):
        low.code.call("void", "oxide.assertion_failed", low.site(node.detail))


def show(low: Lowering, node: Node) -> None:
    """Lowers ``print``. One thread of each program writes."""
    code, parts, values = low.code, node.detail, iter(node.inputs)
    tile = next((each for each in node.inputs if each.shape), None)
    if tile is not None:
        low.keep(tile)
    texts: list[str] = []
    items: list[tuple[str, str, str]] = []
    for part in parts:
        if part is not None:
            texts.append(part.replace("%", "%%"))
            continue
        value = next(values)
        if value.shape:
            continue
        texts.append(_format(low, value, low.scalar(value), items))
    first = code.new(f"icmp eq i64 {low.tid}, 0")
    with code.when(first):
        if tile is None:
            _line(low, " ".join(texts), items)
        else:
            program = ", ".join(["%lld"] * len(low.programs))
            numbers = [("i", "i64", each) for each in low.programs]
            head = " ".join([*texts, f"{tile.shape} of {tile.dtype.name} in program ({program}):"])
            _line(low, head, [*items, *numbers])
            _rows(low, tile)
    low.barrier()


def _rows(low: Lowering, tile: Node) -> None:
    """Prints the elements of a tile, several in a line."""
    outer, last = tile.shape[:-1], tile.shape[-1]
    buffer = low.buffers[tile]

    def row(index: Index) -> None:
        for start in range(0, last, _A_LINE):
            items: list[tuple[str, str, str]] = []
            place = ", ".join([*["%lld"] * len(index), f"{start}:{min(last, start + _A_LINE)}"])
            columns = map(str, range(start, min(last, start + _A_LINE)))
            texts = [_format(low, tile, low.load(buffer, (*index, column)), items) for column in columns]
            numbers = [("i", "i64", each) for each in index]
            _line(low, f"  [{place}] {' '.join(texts)}", [*numbers, *items])

    low.serial(outer, row)


def _format(low: Lowering, node: Node, value: str, items: list[tuple[str, str, str]]) -> str:
    """Returns the format of a value for C's ``printf``, and adds the value to the items of a line."""
    if node.dtype.kind == "f":
        wide = value if node.dtype.name == "f64" else low.code.new(f"fpext float {value} to double")
        items.append(("d", "double", wide))
        return "%g"
    target = U64 if node.dtype.kind == "u" else I64
    items.append(("i", "i64", arithmetic.cast(low.code, value, node.dtype, target)))
    return "%llu" if target is U64 else "%lld"


def _line(low: Lowering, text: str, items: list[tuple[str, str, str]]) -> None:
    address = low.code.text(text + "\n")
    letters = "".join(letter for letter, _, _ in items) or "none"
    arguments = [(kind, value) for _, kind, value in items]
    low.code.call("i32", f"oxide.print.{letters}", ("ptr", address), *arguments)


# Variables


def _declare(low: Lowering, cell: Cell) -> None:
    if not cell.shape:
        low.cells[cell] = low.code.variable(cell.dtype.register_type, "cell")
        return
    rows = low.plan.rows(cell.shape)
    layout = rows or low.plan.tile(cell.shape)
    if layout is not None:
        low.cells[cell] = low.held(cell.dtype, layout, rows=rows is not None)
    else:
        low.cells[cell] = low.buffer(cell.dtype, cell.shape)


def _begin_variables(low: Lowering, cells: Sequence[Cell]) -> None:
    """Declares a loop's variables, with their values before the loop."""
    for cell in cells:
        _declare(low, cell)
    _write(low, cells, [cell.starts for cell in cells])


def _write(low: Lowering, cells: Sequence[Cell], values: Sequence[Node | None]) -> None:
    """Writes the new values of variables, after all old values have been read."""
    code = low.code
    pairs = [(cell, value) for cell, value in zip(cells, values, strict=True) if value is not None]
    copies: list[tuple[Held, Held]] = []
    for cell, value in pairs:
        target = low.cells[cell]
        if not isinstance(target, Held):
            continue
        source = low.registers.get(value)
        if source is target:
            continue
        if source is None or source.layout != target.layout or source.rows != target.rows or len(pairs) > 1:
            source = registers.hold(low, value, target.layout, rows=target.rows)
        copies.append((source, target))
    plain = [(cell, value) for cell, value in pairs if isinstance(low.cells[cell], Buffer)]
    for cell, value in plain:
        if value not in low.buffers and _moves_variables(low, value, cell, cells):
            low.keep(value)
    scalars = [(cell, low.scalar(value)) for cell, value in pairs if not cell.shape]
    for cell, found in scalars:
        code.emit(f"store {cell.dtype.register_type} {found}, ptr {low.cells[cell]}")
    copied = [(cell, value) for cell, value in plain if low.buffers.get(value) is not low.cells[cell]]
    # A value that lies in the buffer of a variable which is written before it is read is copied first.
    written: set[int] = set()
    for cell, value in copied:
        if id(low.buffers.get(value)) in written:
            again = low.buffer(value.dtype, value.shape)
            low.fill(again, value)
            low.buffers[value] = again
        written.add(id(low.cells[cell]))
    for cell, value in copied:
        buffer: Any = low.cells[cell]
        low.fill(buffer, value)
    for source, target in copies:
        registers.copy(low, source, target)


def _moves_variables(low: Lowering, node: Node, own: Cell, cells: Sequence[Cell]) -> bool:
    """Returns whether the next value of a loop's variable reads another variable of the loop, or other elements of its
    own variable."""

    def visit(each: Node, moved: bool) -> bool:
        if each.op == "cell" and each.shape:
            return each.detail in cells and (moved or each.detail is not own)
        if each in low.buffers or not each.shape:
            return False
        return any(visit(part, moved or each.op in (*VIEWS, "gather")) for part in each.inputs)

    return visit(node, False)


# Control flow


def loop(low: Lowering, node: Node) -> None:
    """Lowers ``for … in range(…)``."""
    code = low.code
    body, cells, counter = node.detail
    _settle_for(low, node, [body])
    start, stop, step = (low.scalar(each) for each in node.inputs[:3])
    _begin_variables(low, cells)
    at = code.variable("i64", "counter")
    code.emit(f"store i64 {start}, ptr {at}")
    ring = pipelines.begin(low, node, start, stop, step)
    turn, after = code.labels("turn", "after")
    code.branch(code.goes_on(start, stop, step), turn, after)
    code.label(turn)
    with low.inside():
        value = code.new(f"load i64, ptr {at}")
        low.values[counter] = value
        if ring is not None:
            ring.begin_turn(value)
        run(low, body)
        _write(low, cells, [cell.ends[0] for cell in cells])
        if ring is not None:
            ring.end_turn()
    following = code.new(f"add i64 {value}, {step}")
    code.emit(f"store i64 {following}, ptr {at}")
    ended = code.labels("ended")[0]
    again = code.goes_on(following, stop, step)
    left = _left(low, cells)
    if left:
        again = code.new(f"and i1 {again}, {code.new(f'xor i1 {left}, true')}")
    code.branch(again, turn, ended)
    code.label(ended)
    if ring is not None:
        ring.end()
    code.jump(after)
    code.label(after)


def _left(low: Lowering, cells: Sequence[Cell]) -> str:
    """Returns the flag that says whether the iteration has left its loop, or "" for a loop that no iteration can
    leave."""
    flag = next((cell for cell in cells if cell.ends_loop), None)
    return low.code.new(f"load i1, ptr {low.cells[flag]}") if flag is not None else ""


def while_loop(low: Lowering, node: Node) -> None:
    """Lowers ``while``."""
    code = low.code
    body, cells, condition = node.detail
    _settle_for(low, node, [body])
    _begin_variables(low, cells)
    test, turn, after = code.labels("test", "turn", "after")
    code.jump(test)
    code.label(test)
    place = body.nodes.index(condition) if condition.region is body else -1
    with low.inside():
        run(low, Region(body.outer, body.nodes[: place + 1]))
        code.branch(low.scalar(condition), turn, after)
        code.label(turn)
        run(low, Region(body.outer, body.nodes[place + 1 :]))
        _write(low, cells, [cell.ends[0] for cell in cells])
    left = _left(low, cells)
    if left:
        code.branch(left, after, test)
    else:
        code.jump(test)
    code.label(after)


def branch(low: Lowering, node: Node) -> None:
    """Lowers ``if``."""
    code = low.code
    regions, cells = node.detail
    _settle_for(low, node, regions)
    test = low.scalar(node.inputs[0])
    for cell in cells:
        _declare(low, cell)
    first, second, after = code.labels("then", "else", "after")
    code.branch(test, first, second)
    for number, (label, region) in enumerate(zip((first, second), regions, strict=True)):
        code.label(label)
        with low.inside():
            run(low, region)
            _write(low, cells, [cell.ends[number] for cell in cells])
        code.jump(after)
    code.label(after)


_EFFECTS = {
    "store": store, "assert": assertion, "print": show,
    "for": loop, "while": while_loop, "if": branch, **dict.fromkeys(SCATTERS, scatter),
}  # fmt: skip
