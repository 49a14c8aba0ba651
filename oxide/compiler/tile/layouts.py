"""Layouts: the assignment of each tile's elements to threads and registers on a GPU. ``plan_of`` chooses them by these
rules.

1. **Products.** A product is one ``mma``. It runs on tensor cores under three conditions. Both operands have one type:
   f16, bf16, i8, u8, f8e4m3, f8e5m2, or f32 with ``tf32=True``. The accumulator has the type that the instruction
   returns. The shape divides into the instruction's tiles for all warps. The result is then in registers, in an ``mma``
   layout. Otherwise each thread computes one element at a time, from buffers.
2. **The warps of a product** divide its result into parts that are as square as possible. If the result is reduced
   along its rows, or is the left operand of another product, the warps divide only the rows. Each row is then in one
   warp, and the result of one product becomes the operand of the next without leaving the registers.
3. **wgmma.** On Hopper, whole warpgroups compute a product with ``wgmma`` under four conditions. The operands are
   16-bit floats, the left one not transposed. The number of warps is a multiple of four. The result has a multiple of
   16 rows for each warp, and at most 256 columns. The operands' rows are multiples of 128 bytes. The warps then divide
   only the rows.
4. **The shape decides.** All tiles of one shape with two axes have one layout, so no elementwise operation needs a
   conversion. If the result of a product has this shape, the layout is the product's. In a program whose products all
   have other shapes, the layout is an ``mma`` layout of the same warps if by rule 2 the warps divide only the rows, and
   the shape divides into the warps' tiles. Otherwise tiles of this shape are in buffers. In a program without products
   the layout is ``rows``: a thread has 16 bytes of neighbouring elements, and a row occupies as many lanes as its
   elements fill. A tile with one axis is then a row.
5. **Reductions** along the last axis of a tile in registers use shuffles. They also use shared memory if several warps
   share a row. Their results are in registers, one for each row.
6. **Everything else is in a buffer** in shared memory: tiles that no layout fits, tiles that move between threads
   (transposes and other reshapes), and operands of products. A value in registers is copied to a buffer only if such an
   operation reads it.
7. **Pipelines.** A load in a loop is copied to shared memory asynchronously, up to ``stages`` iterations ahead, if only
   products read it and its index is computed from the loop's counter. On Hopper the copy engine (TMA) makes the copies
   if the tiles' rows are multiples of 128 bytes. The buffers then have barriers of their own, so the loop needs no
   block-wide barrier.
8. **Producers.** A warpgroup of its own may then make the copies of all pipelines. The blocks of such a program are
   persistent: there are as many as the GPU holds at once, and each computes one program after another. The producer
   runs ahead of the other warps, and begins the copies for the next program while they still store their tiles.

On the CPU there are no layouts: each value that needs memory has a buffer, and LLVM vectorises the loops over the
buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import final

from oxide.compiler.source.fragment_layouts import BITS, DEPTHS, PRODUCTS
from oxide.compiler.tile.frontend import Program, TensorParameter
from oxide.compiler.tile.ir import EFFECTS, REDUCTIONS, SCATTERS, Node, Region
from oxide.errors import CompileError

__all__ = ["PRODUCER_THREADS", "Layout", "Pipeline", "Plan", "Product", "TooLarge", "plan_of"]

PRODUCER_THREADS = 128
"""The threads of a producer. One thread makes the copies, but only a whole warpgroup can release registers to other
warps."""

LANES = 32
_MOST_HELD = 64
"""The most elements of a tile in a thread's registers. Accumulators of products are exempt."""
_MOST_SUMS = 256
_VECTOR_BYTES = 16
_PANEL_BYTES = 128
"""The bytes of each row that ``wgmma`` takes at once."""
_MOST_COPIED_ROWS = 256
"""The most rows of a tile that the copy engine copies at once."""
_MOST_WARPS = 8
"""The most computing warps of a program with a producer: with more, a thread has too few registers for its sums."""
_COMPUTED = frozenset((*REDUCTIONS, "cell", "gather", "load", "mma", "order"))
"""The operations whose scalar results a producer cannot compute, because they read memory or results of other warps."""


@final
class TooLarge(CompileError):
    """Raised for tiles that do not fit a block's memory."""


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """A tile in registers. ``rows`` by ``columns`` elements are spread over ``warps_down`` by ``warps_across`` warps;
    in a warp, ``lanes_across`` lanes share a row, and each lane has groups of ``vector`` neighbouring elements of the
    row.

    With ``is_mma`` the elements are placed as in the accumulators of the ``mma`` instruction.
    """

    rows: int
    columns: int
    warps_down: int
    warps_across: int
    lanes_across: int
    vector: int
    is_mma: bool

    @property
    def warps(self) -> int:
        """Returns the number of warps."""
        return self.warps_down * self.warps_across

    @property
    def row_slots(self) -> int:
        """Returns the number of rows in which a thread has elements."""
        return self.rows * self.lanes_across // (LANES * self.warps_down)

    @property
    def column_slots(self) -> int:
        """Returns the number of elements of a row that a thread has."""
        return self.columns // (self.lanes_across * self.warps_across)

    @property
    def slots(self) -> int:
        """Returns the number of elements that a thread has."""
        return self.row_slots * self.column_slots

    def slot(self, row: int, column: int) -> int:
        """Returns the number of the thread's register that holds an element. ``row`` and ``column`` count only the
        thread's own rows and columns."""
        if not self.is_mma:
            return row * self.column_slots + column
        (repeat, half), (tile, neighbour) = divmod(row, 2), divmod(column, 2)
        return repeat * self.column_slots * 2 + tile * 4 + half * 2 + neighbour

    def __str__(self) -> str:
        kind = "mma" if self.is_mma else "rows"
        return (
            f"registers ({kind}: {self.warps_down}x{self.warps_across} warps, {self.row_slots}x{self.column_slots} "
            "elements a thread)"
        )


@final
@dataclass(frozen=True, slots=True)
class Product:
    """An ``mma`` on tensor cores. ``operand`` is the type of the operands' elements. ``layout`` is the layout of the
    result."""

    layout: Layout
    operand: str
    depth: int
    """The extent of one instruction along k."""
    wgmma: bool
    in_place: bool
    """True if the result overwrites the loop's variable, which nothing else reads in the iteration."""
    left_in_registers: bool


@final
@dataclass(frozen=True, slots=True)
class Pipeline:
    """A loop whose loads run ahead of the iterations that use them. ``stages`` is the number of buffers of each load.
    With ``engine`` the copy engine (TMA) fills the buffers. Otherwise ``reason`` says why it does not."""

    loads: tuple[Node, ...]
    stages: int
    engine: bool
    reason: str
    running: Node | None
    """The product that may still run when the next iteration begins. It is the loop's only product."""


@final
@dataclass(slots=True)
class Plan:
    """The layouts of a program. ``reasons`` says why a product does not run on tensor cores."""

    layouts: dict[tuple[int, ...], Layout] = field(default_factory=dict)
    products: dict[Node, Product] = field(default_factory=dict)
    pipelines: dict[Node, Pipeline] = field(default_factory=dict)
    reasons: dict[Node, str] = field(default_factory=dict)
    producer: bool = False
    """True if a separate warpgroup makes the copies of all pipelines."""
    no_producer: str = ""
    """Why a program whose pipelines the copy engine fills has no producer, or "" for any other program."""
    row_lengths: frozenset[int] = frozenset()
    """The lengths of the one-dimensional tiles that have one element for each row of a layout."""

    def tile(self, shape: tuple[int, ...]) -> Layout | None:
        """Returns the layout of tiles of a shape, or None if they are in buffers."""
        return self.layouts.get(shape)

    def rows(self, shape: tuple[int, ...]) -> Layout | None:
        """Returns a layout whose rows have one element each in tiles of a shape, such as the results of reductions
        along the rows, or None for tiles of other shapes."""
        if len(shape) != 1 or shape[0] not in self.row_lengths:
            return None
        return next((each for own, each in self.layouts.items() if len(own) == 2 and each.rows == shape[0]), None)


def nodes_of(region: Region) -> Iterator[Node]:
    """Iterates over the nodes of a region, including those of nested regions."""
    for node in region.nodes:
        if node.op in ("for", "while"):
            yield from nodes_of(node.detail[0])
        elif node.op == "if":
            for part in node.detail[0]:
                yield from nodes_of(part)
        yield node


def written_by(nodes: Iterable[Node]) -> list[TensorParameter]:
    """Returns the tensors that nodes write, one for each node that writes."""
    return [tensor_of(node) for node in nodes if node.op == "store" or node.op in SCATTERS]


def tensor_of(node: Node) -> TensorParameter:
    """Returns the tensor that a load, a store, a gather or a scatter accesses."""
    tensor: TensorParameter = node.detail if node.op in ("load", "store") else node.detail[0]
    return tensor


def plan_of(program: Program, warps: int, stages: int, *, hopper: bool) -> Plan:
    """Returns the layouts of a program for blocks of ``warps`` warps."""
    plan = Plan()
    nodes = list(nodes_of(program.body))
    if warps & (warps - 1):
        for node in nodes:
            if node.op == "mma":
                plan.reasons[node] = f"{warps} warps are no power of two"
        return plan
    products = [node for node in nodes if node.op == "mma"]
    chained = any(_is_reduced_or_left(node) for node in products)
    for node in products:
        found = _product(node, warps, chained, hopper)
        if isinstance(found, str):
            plan.reasons[node] = found
            continue
        known = plan.layouts.get(node.shape)
        if known is not None and known != found.layout:
            plan.reasons[node] = f"another product of shape {node.shape} has the layout {known}"
            continue
        plan.products[node] = found
        plan.layouts[node.shape] = found.layout
    _spread(plan, nodes, program, warps, chained)
    _find_rows(plan, nodes)
    for node in nodes:
        if node.op == "for" and stages > 1:
            loads = tuple(_staged(plan, node))
            if loads:
                reason = _not_by_engine(loads, hopper)
                running = _running(plan, node, loads, stages)
                plan.pipelines[node] = Pipeline(loads, stages, not reason, reason, running)
    if any(pipeline.engine for pipeline in plan.pipelines.values()):
        plan.no_producer = _reason_against_producer(program, plan, warps)
        plan.producer = not plan.no_producer
    return plan


# Products


def _is_reduced_or_left(product: Node) -> bool:
    """Returns whether a product's result, perhaps after elementwise operations, is reduced along its rows or is the
    left operand of another product."""
    seen: set[Node] = set()
    pending = [product]
    while pending:
        node = pending.pop()
        if node in seen or node.shape != product.shape:
            continue
        seen.add(node)
        for user in node.users:
            if user.op in REDUCTIONS and 1 in user.detail:
                return True
            if user.op == "mma" and user.inputs[0] is node:
                return True
            if user.op not in EFFECTS:
                pending.append(user)
    return False


def _product(node: Node, warps: int, chained: bool, hopper: bool) -> Product | str:
    """Returns how tensor cores compute a product, or the reason why they cannot."""
    left, right, _ = node.inputs
    kind, sums = left.dtype.name, node.dtype.name
    (rows, depth), columns = left.shape, right.shape[1]
    if kind == "f32" and not node.detail:
        return "operands of f32 are multiplied exactly; tf32=True allows tensor cores"
    if sums not in PRODUCTS.get((kind, kind), ()):
        return f"tensor cores do not sum products of {kind} in {sums}"
    if kind == "f64":
        return "products of f64 are computed by threads"
    step = DEPTHS[kind]
    if depth % step:
        return f"{depth} products an element are no multiple of {step}"
    down, across = (warps, 1) if chained else _warps_of(rows, columns, warps)
    if rows % (16 * down) or columns % (8 * across):
        return f"a result of shape {node.shape} is no multiple of (16, 8) for {down}x{across} warps"
    wide = hopper and left.dtype.bits == 16 and _suits_wgmma(node, warps)
    if wide:
        down, across = warps, 1
    if rows * columns > _MOST_SUMS * LANES * warps:
        return f"a result of shape {node.shape} does not fit the registers of {warps} warps"
    layout = Layout(rows, columns, down, across, 4, 2, True)
    return Product(layout, kind, step, wide, is_in_place(node), _is_left_in_registers(left, layout))


def _warps_of(rows: int, columns: int, warps: int) -> tuple[int, int]:
    """Returns the numbers of warps along both axes that make each warp's part as square as possible."""
    best = (warps, 1)
    score = float("inf")
    down = 1
    while down <= warps:
        across = warps // down
        if rows % (16 * down) == 0 and columns % (8 * across) == 0:
            cost = rows / down + columns / across
            if cost < score:
                best, score = (down, across), cost
        down *= 2
    return best


def _suits_wgmma(node: Node, warps: int) -> bool:
    left, right, _ = node.inputs
    (rows, depth), columns = left.shape, right.shape[1]
    size = left.dtype.dtype.itemsize
    turned, _ = source_of(right)
    inner = depth if turned else columns
    fits = columns % 8 == 0 and columns <= 256 and inner * size % _PANEL_BYTES == 0
    left_turned, _ = source_of(left)
    return warps % 4 == 0 and rows % (16 * warps) == 0 and fits and depth * size % _PANEL_BYTES == 0 and not left_turned


def source_of(node: Node) -> tuple[bool, Node]:
    """Returns whether an operand is a transpose, and the operand's source: the transposed node, or the operand itself
    if it is no transpose."""
    if node.op == "transpose" and node.detail == (1, 0):
        return True, node.inputs[0]
    return False, node


def readers(node: Node) -> list[tuple[Node, bool]]:
    """Returns the nodes that use a value, each with whether it uses the value's transpose."""
    found: list[tuple[Node, bool]] = []
    for user in node.users:
        turned = source_of(user)[1] is node and bool(user.users)
        found += [(each, True) for each in user.users] if turned else [(user, False)]
    return found


def is_in_place(node: Node) -> bool:
    """Returns whether a product can overwrite its accumulator: the accumulator is a loop's variable that nothing else
    reads in this iteration."""
    acc = node.inputs[2]
    if acc.op != "cell" or acc.users != [node] or len(node.users) != 1:
        return False
    return node.users[0].op in ("for", "while") and acc.detail.ends == [node] and acc.region is node.region


def _is_left_in_registers(left: Node, layout: Layout) -> bool:
    """Returns whether a left operand is computed from tiles in registers, so that it needs no shared memory."""
    seen: set[Node] = set()
    pending = [left]
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "mma" and node.shape == left.shape:
            return layout.warps_across == 1 and left.dtype.dtype.itemsize == 2
        if node.op not in ("load", "gather", "transpose", "sum", "max", "min"):
            pending += [each for each in node.inputs if each.shape == left.shape]
    return False


# Other tiles


def _spread(plan: Plan, nodes: list[Node], program: Program, warps: int, chained: bool) -> None:
    """Chooses the layouts of the shapes that no product has."""
    sizes = [tensor.scalar.dtype.itemsize for tensor in program.tensors]
    vector = max(1, min(8, _VECTOR_BYTES // max(sizes, default=4)))
    shapes = {node.shape for node in nodes if len(node.shape) in (1, 2)}
    shapes |= {node.inputs[0].shape for node in nodes if node.op in (*REDUCTIONS, "store")}
    down = {layout.rows: layout.warps_down for shape, layout in plan.layouts.items()}
    for shape in sorted(shapes, key=lambda each: (-len(each), each)):
        if shape in plan.layouts or len(shape) not in (1, 2):
            continue
        rows, columns = (1, *shape) if len(shape) == 1 else shape
        if plan.products:
            if len(shape) == 2 and chained and rows % (16 * warps) == 0 and columns % 8 == 0:
                plan.layouts[shape] = Layout(rows, columns, warps, 1, 4, 2, True)
            continue
        found = _rows(rows, columns, warps, vector, down.get(rows))
        if found is not None and found.slots <= _MOST_HELD:
            plan.layouts[shape] = found
            if len(shape) == 2:
                down.setdefault(rows, found.warps_down)


def _rows(rows: int, columns: int, warps: int, vector: int, down: int | None) -> Layout | None:
    """Returns the ``rows`` layout of a shape, or None if the threads would not all have the same number of elements."""
    if columns & (columns - 1) or rows & (rows - 1):
        return None
    while vector > 1 and (rows * columns < vector * LANES * warps or columns < vector):
        vector //= 2
    lanes = min(LANES, columns // vector)
    most = rows * lanes // LANES
    if most < 1:
        return None
    if down is None:
        down = min(warps, most)
    across = warps // down
    while vector > 1 and columns % (across * lanes * vector):
        vector //= 2
    if rows * lanes % (LANES * down) or columns % (across * lanes * vector):
        return None
    return Layout(rows, columns, down, across, lanes, vector, False)


def _find_rows(plan: Plan, nodes: list[Node]) -> None:
    """Records the lengths of the one-dimensional tiles that have one number for each row of a layout: the results of
    reductions in registers."""
    lengths = set()
    for node in nodes:
        if node.op in REDUCTIONS and node.detail == (1,) and len(node.inputs[0].shape) == 2:
            layout = plan.layouts.get(node.inputs[0].shape)
            if layout is not None:
                lengths.add(layout.rows)
    plan.row_lengths = frozenset(lengths)
    for length in lengths:  # a tile of this length has one element for each row of a layout, and is not a row itself
        plan.layouts.pop((length,), None)


# Pipelines


def _not_by_engine(loads: tuple[Node, ...], hopper: bool) -> str:
    """Returns why the copy engine does not fill the buffers of a pipeline, or an empty string if it does."""
    if not hopper:
        return "tiles are copied by TMA on Hopper"
    for load in loads:
        row = load.shape[1] * load.dtype.dtype.itemsize
        if row % _PANEL_BYTES:
            return f"a row of {load.detail.name}'s tile has {row} bytes, no multiple of {_PANEL_BYTES}"
        if load.shape[0] > _MOST_COPIED_ROWS or load.shape[0] % 8:
            return f"a tile of {load.detail.name} has {load.shape[0]} rows, no multiple of 8 up to {_MOST_COPIED_ROWS}"
    return ""


def _staged(plan: Plan, loop: Node) -> Iterator[Node]:
    """Iterates over the loads in a loop's body that can run ahead of the iterations that use them."""
    body, cells, counter = loop.detail
    if any(cell.ends_loop for cell in cells):  # nothing would wait for the copies for later iterations
        return
    # Tensors that differ in type or number of axes do not overlap: the launch checks this.
    written = {(tensor.scalar, tensor.ndim) for tensor in written_by(nodes_of(body))}
    for node in body.nodes:
        if node.op != "load" or len(node.shape) != 2 or node.detail.ndim != 2:
            continue
        padding = node.inputs[-1]
        if not (padding.op == "constant" and padding.detail == 0) or node.detail.tile is not None:
            continue
        row_bytes = node.shape[1] * node.dtype.dtype.itemsize
        if (node.detail.scalar, node.detail.ndim) in written or row_bytes % _VECTOR_BYTES:
            continue
        if _feeds_products(plan, node, body) and all(_follows(each, body, counter) for each in node.inputs[:-1]):
            yield node


def _feeds_products(plan: Plan, load: Node, body: Region) -> bool:
    """Returns whether a load is used only by products on tensor cores that can read it in the order in which it is
    stored."""
    users = readers(load)
    return bool(users) and all(
        user in plan.products and user.region is body and _takes(plan.products[user], user, load, turned)
        for user, turned in users
    )


def _takes(product: Product, node: Node, load: Node, turned: bool) -> bool:
    """Returns whether a product can read a load, or the load's transpose, from shared memory in the order in which it
    was loaded. Only 16-bit elements can be transposed on the way to registers."""
    left, right, acc = (source_of(each)[1] is load for each in node.inputs)
    if acc or (left and product.left_in_registers):
        return False
    return BITS[product.operand] == 16 or not ((left and turned) or (right and not turned))


def _follows(node: Node, body: Region, counter: Node) -> bool:
    """Returns whether a scalar is computed only from a loop's counter and scalars that the loop does not change."""
    if node.shape:  # the threads share the work of a reduction: it cannot be computed again for another iteration
        return False
    if node is counter or node.region is not body:
        return True
    if node.op in EFFECTS or node.op in ("cell", "gather", "load"):
        return False
    return all(_follows(each, body, counter) for each in node.inputs)


def _running(plan: Plan, loop: Node, loads: tuple[Node, ...], stages: int) -> Node | None:
    """Returns the only product of a loop if it may still run when the next iteration begins, or else None. The next
    iteration must not write the product's inputs before it has waited for the product."""
    body = loop.detail[0]
    products = [node for node in nodes_of(body) if node in plan.products]
    if len(products) != 1 or stages < 3:
        return None
    product = plan.products[products[0]]
    operands = [source_of(each)[1] for each in products[0].inputs[:2]]
    ahead = all(each in loads or each.region is not body for each in operands)
    return products[0] if ahead and product.wgmma and product.in_place and not product.left_in_registers else None


# Producers


def _reason_against_producer(program: Program, plan: Plan, warps: int) -> str:
    """Returns why a program with pipelines has no producer, or an empty string if it has one."""
    if warps > _MOST_WARPS:
        return f"there are more than {_MOST_WARPS} warps"
    nodes = list(nodes_of(program.body))
    last = max(loop.index for loop in plan.pipelines)
    for node in nodes:
        if node.op in ("assert", "print"):
            return f"line {node.line} has {node.op}"
        if (node.op == "store" or node.op in SCATTERS) and node.index < last:
            return f"line {node.line} writes a tensor before the last pipeline's end"
    for loop, pipeline in plan.pipelines.items():
        reason = _against(program, loop, pipeline)
        if reason:
            return f"{reason} in the loop at line {loop.line}"
    return ""


def _against(program: Program, loop: Node, pipeline: Pipeline) -> str:
    if not pipeline.engine:
        return pipeline.reason
    if loop.region is not program.body:
        return "tiles are loaded again and again"
    if pipeline.running is None:
        return "no wgmma, in place and with both operands loaded in three or more stages, is alone"
    _, _, counter = loop.detail
    scalars = [*loop.inputs[:3], *(each for load in pipeline.loads for each in load.inputs[:-1])]
    if not all(_is_computed_from_the_place(each, counter) for each in scalars):
        return "a tile's place is computed from tensors or variables"
    return ""


def _is_computed_from_the_place(node: Node, counter: Node) -> bool:
    """Returns whether a scalar follows from the program's place, the parameters and a loop's counter."""
    if node is counter:
        return True
    if node.op == "counter" or node.op in EFFECTS or node.op in _COMPUTED or node.shape:
        return False
    return all(_is_computed_from_the_place(each, counter) for each in node.inputs)
