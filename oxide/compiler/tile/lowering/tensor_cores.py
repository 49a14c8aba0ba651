"""Lowers ``mma`` on tensor cores: operands in shared memory, accumulators in registers.

An operand is stored as rows of 16-byte parts. Rows of a multiple of 128 bytes are cut into panels of 128 bytes, and
part p of row r is stored as part p ^ (r % 8). The parts p of eight consecutive rows are then in different banks, and
``wgmma`` reads this order directly. Other rows are padded by 16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from oxide.compiler.source.fragment_layouts import BITS, DEPTHS
from oxide.compiler.tile.frontend import TensorParameter
from oxide.compiler.tile.ir import Node
from oxide.compiler.tile.layouts import Layout, Product, source_of
from oxide.language.types import ScalarType

from . import arithmetic, registers
from .state import Held, Index, Lowering
from .tensors import address, is_aligned, lengths_of, placed

PART = 16
"""The size of a part: the bytes that are copied together and stay together in a row."""
PANEL = 128
_MOST_UNROLLED = 16


@final
@dataclass(eq=False, slots=True)
class Operand:
    """An operand of a product, in shared memory. As loaded, before any transpose, the operand has ``rows`` rows of
    ``columns`` elements each. ``address`` is the address of its first element in the present stage."""

    address: str
    scalar: ScalarType
    rows: int
    columns: int

    @property
    def size(self) -> int:
        """Returns the bytes of an element."""
        return self.scalar.dtype.itemsize

    @property
    def in_panels(self) -> bool:
        """Returns whether rows are cut into panels."""
        return self.columns * self.size % PANEL == 0

    @property
    def pitch(self) -> int:
        """Returns the bytes from one row to the next."""
        return PANEL if self.in_panels else self.columns * self.size + PART

    @property
    def bytes(self) -> int:
        """Returns the bytes of the operand."""
        panels = self.columns * self.size // PANEL if self.in_panels else 1
        return -(-panels * self.rows * self.pitch // 1024) * 1024

    def part(self, low: Lowering, row: str, part: str, base: str = "") -> str:
        """Returns the address of a row's 16-byte part."""
        code = low.code
        base = base or self.address
        if not self.in_panels:
            offset = code.add(code.times(row, self.pitch), code.times(part, PART))
            return code.new(f"getelementptr i8, ptr {base}, i64 {offset}")
        panel = code.new(f"lshr i64 {part}, 3")
        within = code.new(f"and i64 {part}, 7")
        mixed = code.new(f"xor i64 {within}, {code.new(f'and i64 {row}, 7')}")
        offset = code.add(code.times(row, PANEL), code.times(mixed, PART))
        offset = code.add(offset, code.times(panel, self.rows * PANEL))
        return code.new(f"getelementptr i8, ptr {base}, i64 {offset}")

    def element(self, low: Lowering, index: Index, base: str = "") -> str:
        """Returns the address of an element."""
        code, each = low.code, PART // self.size
        row, column = index
        part = code.new(f"udiv i64 {column}, {each}")
        within = code.new(f"urem i64 {column}, {each}")
        return code.at(self.scalar.memory_type, self.part(low, row, part, base), within)


def new_operand(low: Lowering, scalar: ScalarType, shape: tuple[int, ...], stages: int = 1) -> Operand:
    """Returns an operand with new shared memory, which has room for it in each of ``stages`` stages."""
    found = Operand("", scalar, *shape)
    found.address = low.room(found.bytes * stages, 1024)
    return found


# Filling


def stage(low: Lowering, node: Node) -> Operand:
    """Puts an operand in shared memory, if it is not there yet, and returns it. A load is copied there. Any other value
    is computed there."""
    found: Operand | None = low.staged.get(node)
    if found is not None:
        return found
    found = new_operand(low, node.dtype, node.shape)
    low.barrier()
    if node.op == "load" and node not in low.registers and node not in low.buffers and is_copied(node):
        indices = [low.scalar(each) for each in node.inputs[:-1]]
        copy(low, node.detail, found, found.address, indices)
        low.code.call("void", "oxide.tensor.commit", low.barrier_site)
        low.code.call("void", "oxide.tensor.wait.0", low.barrier_site)
    else:
        _compute(low, node, found)
    fence(low)
    low.barrier()
    low.staged[node] = found
    return found


def is_copied(load: Node) -> bool:
    """Returns whether asynchronous copies can perform a load."""
    padding, tensor = load.inputs[-1], load.detail
    zero = padding.op == "constant" and padding.detail == 0
    return zero and tensor.ndim == 2 and load.shape[1] * load.dtype.dtype.itemsize % PART == 0


def _compute(low: Lowering, node: Node, operand: Operand) -> None:
    scalar, kind = operand.scalar, operand.scalar.memory_type

    def put(index: Index) -> None:
        bits = arithmetic.stored(low.code, low.element(node, index), scalar)
        low.code.emit(f"store {kind} {bits}, ptr {operand.element(low, index)}")

    layout = low.plan.tile(node.shape)
    if layout is not None:
        registers.sweep(low, layout, node.shape, [node], lambda index, i, j: put(index))
    else:
        low.over(node.shape, [node], put)


def fence(low: Lowering) -> None:
    """Makes this thread's writes to shared memory visible to ``wgmma``."""
    if any(product.wgmma for product in low.plan.products.values()):
        low.code.call("void", "oxide.tensor.fence_stores", low.barrier_site)


def copy(low: Lowering, tensor: TensorParameter, operand: Operand, base: str, indices: list[str]) -> None:
    """Begins this thread's copies of a tile into an operand. Elements outside of the tensor become zeros. Where rows do
    not begin at multiples of 16 bytes, the elements are moved one by one instead."""
    code = low.code
    bases, _ = placed(low, tensor, indices, (operand.rows, operand.columns))
    per_part = PART // operand.size
    in_row = operand.columns // per_part
    parts = operand.rows * in_row
    fast, slow, after = code.labels("fast", "slow", "begun")
    code.branch(is_aligned(low, tensor), fast, slow)

    code.label(fast)
    turns = -(-parts // low.threads)
    if turns <= _MOST_UNROLLED and parts % low.threads == 0:
        for number in range(turns):
            _copy_part(low, tensor, operand, base, bases, code.add(low.tid, number * low.threads), in_row)
    else:
        with code.counted(parts, low.tid, low.threads) as part:
            _copy_part(low, tensor, operand, base, bases, part, in_row)
    code.jump(after)
    code.label(slow)
    move(low, tensor, operand, base, bases)
    code.jump(after)
    code.label(after)


def move(low: Lowering, tensor: TensorParameter, operand: Operand, base: str, bases: list[str]) -> None:
    """Moves a tile whose first element is at ``bases`` into an operand, element by element."""
    code, lengths = low.code, lengths_of(tensor)
    kind = tensor.scalar.memory_type
    count = operand.rows * operand.columns
    with code.counted(count, low.tid, low.threads, rolled=True) as linear, low.forgetting():
        row, column = low.unflattened(linear, (operand.rows, operand.columns))
        places = [code.add(first, each) for first, each in zip(bases, (row, column), strict=True)]
        tests = [code.new(f"icmp ult i64 {each}, {length}") for each, length in zip(places, lengths, strict=True)]

        def read() -> str:
            return code.new(f"load {kind}, ptr {address(low, tensor, places)}, align {operand.size}")

        bits = code.either(kind, code.all_of(tests), read, "0.0" if kind in ("float", "double") else "0")
        code.emit(f"store {kind} {bits}, ptr {operand.element(low, (row, column), base)}")


def _copy_part(
    low: Lowering, tensor: TensorParameter, operand: Operand, base: str, bases: list[str], part: str, in_row: int
) -> None:
    """Begins the copy of a part of 16 bytes, which is wholly inside the tensor or wholly outside."""
    code, lengths = low.code, lengths_of(tensor)
    row, place = low.unflattened(part, (operand.rows, in_row))
    target = operand.part(low, row, place, base)
    global_row = code.add(bases[0], row)
    first = code.add(bases[1], code.times(place, PART // operand.size))
    in_rows = code.new(f"icmp ult i64 {global_row}, {lengths[0]}")
    inside = code.new(f"and i1 {in_rows}, {code.new(f'icmp ult i64 {first}, {lengths[1]}')}")
    source = address(low, tensor, [global_row, first])
    source = code.new(f"select i1 {inside}, ptr {source}, ptr %{tensor.name}.0")
    count = code.new(f"select i1 {inside}, i32 {PART}, i32 0")
    arguments = (("ptr", target), ("ptr", source), ("i32", count), low.barrier_site)
    code.call("void", f"oxide.tensor.copy_async.{PART}", *arguments)


# Products


def mma(low: Lowering, node: Node, product: Product) -> None:
    """Emits a product whose result is in registers. The result overwrites the accumulator if that is a loop's variable
    which nothing else reads in this iteration."""
    left, right, acc = node.inputs
    words = _left_in_registers(low, left, product) if product.left_in_registers else ""
    right_turned, right_source = source_of(right)
    transposes = BITS[product.operand] != 16  # only 16-bit elements are transposed on the way to registers
    if transposes and not right_turned:
        right_turned, right_source = True, _transposed(low, right)
    two = stage(low, right_source)
    one: Operand | None = None
    left_turned = False
    if not words:
        left_turned, left_source = source_of(left)
        if transposes and left_turned:
            left_turned, left_source = False, left
        one = stage(low, left_source)
    sets = product.wgmma and _is_zero(acc)
    if product.in_place and acc in low.registers:
        held = low.registers[acc]
    elif sets:
        held = low.held(acc.dtype, product.layout, rows=False)
    else:
        held = registers.hold(low, acc, product.layout, rows=False)
    low.registers[node] = held
    ring = low.rings.get(node)
    if ring is not None:
        ring.begin_product(node)
    if product.wgmma:
        calls = _by_warpgroups(low, node, product, held, one, words, two, right_turned, sets=sets)
        if ring is not None:
            ring.has_begun(node)
        wait_for_sums(low, held, calls if node in low.running else 0)
    else:
        if ring is not None:
            ring.has_begun(node)
        _by_warps(low, node, product, held, one, words, two, left_turned, right_turned)
    if ring is not None:
        ring.has_ended(node)


def wait_for_sums(low: Lowering, held: Held, pending: int) -> None:
    """Waits until at most ``pending`` groups of a warpgroup's ``wgmma`` instructions are still running. Then the sums
    of the others can be read."""
    name = f"oxide.tensor.wgmma_wait.{held.layout.slots}.f32.{pending}"
    low.code.call("void", name, ("ptr", held.address), low.barrier_site)


def _is_zero(node: Node) -> bool:
    """Returns whether all elements of a tile are 0."""
    while node.op == "broadcast":
        (node,) = node.inputs
    return node.op == "constant" and node.detail == 0


def _transposed(low: Lowering, node: Node) -> Node:
    """Returns the transpose of an operand as a node."""
    found = low.transposes.get(node)
    if found is None:
        shape = (node.shape[1], node.shape[0])
        found = Node("transpose", (node,), node.dtype, shape, node.index, node.line, node.region, (1, 0))
        low.transposes[node] = found
    return found


def _left_in_registers(low: Lowering, left: Node, product: Product) -> str:
    """Converts a left operand in registers to the words that ``mma`` takes, and returns the address of the words."""
    layout = low.plan.layouts[left.shape]
    code, steps = low.code, left.shape[1] // 16
    source = left.inputs[0] if left.op == "cast" and left.inputs[0].dtype.register_type == "float" else left
    words = code.variable(f"[{layout.row_slots // 2 * steps * 4} x i32]", "words")
    before: list[str] = []

    def take(index: Index, i: int, j: int) -> None:
        value = low.element(source, index)
        if j % 2 == 0:
            before[:] = [value]
            return
        tile, half, repeat = j // 2, i % 2, i // 2
        number = (repeat * steps + tile // 2) * 4 + tile % 2 * 2 + half
        word = code.call("i32", f"oxide.{product.operand}.narrow_pair", ("float", before[0]), ("float", value))
        code.emit(f"store i32 {word}, ptr {code.at('i32', words, str(number))}")

    registers.sweep(low, layout, left.shape, [source], take)
    return words


def _by_warpgroups(
    low: Lowering, node: Node, product: Product, held: Held, one: Operand | None, words: str, two: Operand,
    right_turned: bool, *, sets: bool,
) -> int:  # fmt: skip
    """Emits a product by ``wgmma``. With ``sets`` the products replace the accumulators instead of being added to them.
    Returns the number of ``wgmma`` groups that the product begins."""
    code, layout = low.code, product.layout
    columns, depth = node.shape[1], node.inputs[0].shape[1]
    per_panel = PANEL // two.size
    # A left operand in shared memory, and a right operand whose rows run along k, are cut into panels along k.
    whole = one is None and not right_turned
    pieces = 1 if whole else depth // per_panel
    steps = depth // 16 // pieces
    calls = 0
    warp = code.new(f"lshr i64 {low.tid}, 5")
    group_row = code.times(code.new(f"lshr i64 {warp}, 2"), 64)
    for repeat in range(layout.row_slots // 2):
        sums = code.at("float", held.address, str(repeat * layout.column_slots * 2))
        for piece in range(pieces):
            if one is None:
                number = (repeat * (depth // 16) + piece * steps) * 4
                left, order = code.at("i32", words, str(number)), "r"
            else:
                row = code.add(group_row, repeat * 16 * layout.warps)
                offset = code.add(code.times(row, PANEL), piece * one.rows * PANEL)
                left, order = code.new(f"getelementptr i8, ptr {one.address}, i64 {offset}"), "k"
            if right_turned:
                at, right_order, panel_bytes = piece * two.rows * PANEL, "k", two.rows * PANEL
            else:
                at, right_order, panel_bytes = piece * steps * 16 * PANEL, "mn", two.rows * PANEL
            right = code.new(f"getelementptr i8, ptr {two.address}, i64 {at}")
            kind = product.operand
            how = "set" if sets and piece == 0 else "add"
            symbol = f"oxide.tensor.wgmma.{columns}.{kind}.{kind}.{order}.{right_order}.{steps}.{panel_bytes}.{how}"
            code.call("void", symbol, ("ptr", sums), ("ptr", left), ("ptr", right), low.barrier_site)
            calls += 1
    return calls


def _by_warps(
    low: Lowering, node: Node, product: Product, held: Held, one: Operand | None, words: str, two: Operand,
    left_turned: bool, right_turned: bool,
) -> None:  # fmt: skip
    """Emits a product by ``mma.sync``. Each step along k loads the warp's part of both operands, then multiplies."""
    code, layout, kind = low.code, product.layout, product.operand
    depth, step = node.inputs[0].shape[1], DEPTHS[kind]
    repeats, tiles = layout.row_slots // 2, layout.column_slots // 2
    warp, lane = code.new(f"lshr i64 {low.tid}, 5"), code.new(f"and i64 {low.tid}, 31")
    down, across = (code.new(f"{op} i64 {warp}, {layout.warps_across}") for op in ("udiv", "urem"))
    first_row = code.times(down, 16)
    first_column = code.times(across, layout.columns // layout.warps_across)
    eighth, high, middle = (
        code.new(f"and i64 {lane}, 7"),
        code.new(f"lshr i64 {lane}, 4"),
        code.new(f"and i64 {code.new(f'lshr i64 {lane}, 3')}, 1"),
    )
    a_words = code.variable(f"[{4 * repeats} x i32]", "a")
    b_words = code.variable(f"[{2 * tiles} x i32]", "b")
    parts = step * two.size // PART  # the parts of a row that one instruction multiplies
    name = f"oxide.tensor.mma.m16n8k{step}.{node.dtype.name}.{kind}.{kind}.{node.dtype.name}"
    sum_kind = node.dtype.register_type
    for number in range(depth // step):
        part = number * parts
        for repeat in range(repeats if one is not None else 0):
            assert one is not None
            row = code.add(first_row, repeat * 16 * layout.warps_down)
            if left_turned:
                place = code.add(code.times(high, 8), code.add(eighth, number * 16))
                at = one.part(low, place, code.add(code.new(f"lshr i64 {row}, 3"), middle))
            else:
                at = one.part(low, code.add(row, code.new(f"and i64 {lane}, 15")), code.add(high, part))
            _load_blocks(low, at, code.at("i32", a_words, str(4 * repeat)), 4, left_turned)
        for tile in range(0, tiles, 2):
            count = 4 if tile + 1 < tiles else 2
            column = code.add(first_column, tile * 8)
            if right_turned:
                place = code.add(column, code.add(code.times(high if count == 4 else "0", 8), eighth))
                at = two.part(low, place, code.add(middle, part))
            else:
                place = code.add(code.add(code.times(middle, 8), eighth), number * 16)
                place_across = code.add(code.new(f"lshr i64 {column}, 3"), high if count == 4 else "0")
                at = two.part(low, place, place_across)
            _load_blocks(low, at, code.at("i32", b_words, str(2 * tile)), count, not right_turned)
        if product.operand == "f32":
            if one is not None:
                _round(low, a_words, 4 * repeats)
            _round(low, b_words, 2 * tiles)
        for repeat in range(repeats):
            a = code.at("i32", a_words, str(4 * repeat))
            if one is None:
                a = code.at("i32", words, str((repeat * (depth // step) + number) * 4))
            for tile in range(tiles):
                sums = code.at(sum_kind, held.address, str(repeat * layout.column_slots * 2 + tile * 4))
                b = code.at("i32", b_words, str(2 * tile))
                code.call("void", name, ("ptr", sums), ("ptr", a), ("ptr", b), low.barrier_site)


def _load_blocks(low: Lowering, row: str, words: str, count: int, transposed: bool) -> None:
    name = f"oxide.tensor.ldmatrix.x{count}{'.trans' if transposed else ''}"
    low.code.call("void", name, ("ptr", row), ("ptr", words), low.barrier_site)


def _round(low: Lowering, words: str, count: int) -> None:
    """Rounds f32 words to tf32."""
    code = low.code
    for number in range(count):
        at = code.at("float", words, str(number))
        rounded = code.call("float", "oxide.tf32.round", ("float", code.new(f"load float, ptr {at}")))
        code.emit(f"store float {rounded}, ptr {at}")


__all__ = ["Layout", "Operand", "copy", "fence", "is_copied", "mma", "new_operand", "stage"]
