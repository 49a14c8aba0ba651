"""Tiles in registers: the places of a thread's elements, loops over the elements, and copies to memory.

A loop over the elements of a layout is unrolled. An element's place has the same name in all loops (``places``), by
which the element's register is found. If a tile is wholly inside its tensor and its rows begin at multiples of 16
bytes, a thread's neighbouring elements are loaded and stored as vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from oxide.compiler.tile.frontend import TensorParameter
from oxide.compiler.tile.ir import Node
from oxide.compiler.tile.layouts import LANES, Layout

from . import arithmetic
from .state import VIEWS, Buffer, Held, Index, Lowering, viewed_place
from .tensors import address, address_of, is_aligned, store_element

_ROWS_OF_LANES = 8
"""The rows of a product that the lanes of a warp have at once."""
_KEPT_PLACES = 32
"""The most places, counted for each tensor, that a thread keeps in registers. A thread with more elements keeps only
its first place, and computes the others from it where they are used.

On an H100, ``layer_norm`` of rows of 8192 by 16 warps then takes 51 registers instead of 89, and runs at 1.003 of
Triton's speed instead of 0.76. With few places, spare registers would let more blocks read at the same time, which
makes the memory slower: ``softmax`` of rows of 1024 and 8192 would run at 0.998 and 0.999 of Triton's speed instead of
1.004 and 1.005.
"""


def places(low: Lowering, layout: Layout) -> tuple[list[str], list[str]]:
    """Returns two lists of names, for the rows and for the columns of a thread's elements. The rows and columns are
    computed at the kernel's beginning. Two layouts with equal rows share the rows' names, and two with equal columns
    the columns' names."""
    lanes_down = LANES // layout.lanes_across
    warp, lane = prelude(low, f"lshr i64 {low.tid}, 5"), prelude(low, f"and i64 {low.tid}, 31")
    down, across = (prelude(low, f"{op} i64 {warp}, {layout.warps_across}") for op in ("udiv", "urem"))
    lane_down, lane_across = (prelude(low, f"{op} i64 {lane}, {layout.lanes_across}") for op in ("udiv", "urem"))

    def summed(*terms: tuple[str, int], more: Sequence[int]) -> list[str]:
        first = "0"
        for name, factor in terms:
            first = prelude(low, f"add i64 {first}, {prelude(low, f'mul i64 {name}, {factor}')}")
        found = [prelude(low, f"add i64 {first}, {step}") for step in more]
        if not layout.is_mma and layout.slots * len(low.program.tensors) > _KEPT_PLACES:
            low.steps.update({name: (first, step) for name, step in zip(found, more, strict=True)})
        return found

    if layout.rows == 1:
        rows = ["0"]
    elif layout.is_mma:
        offsets = [16 * layout.warps_down * (i // 2) + 8 * (i % 2) for i in range(layout.row_slots)]
        rows = summed((down, 16), (lane_down, 1), more=offsets)
    else:
        step = layout.warps_down * lanes_down
        rows = summed((down, lanes_down), (lane_down, 1), more=[i * step for i in range(layout.row_slots)])
    if layout.is_mma:
        terms = (across, layout.columns // layout.warps_across), (lane_across, 2)
        columns = summed(*terms, more=[8 * (j // 2) + j % 2 for j in range(layout.column_slots)])
    else:
        vector = layout.vector
        wide = layout.lanes_across * vector
        terms = (across, wide), (lane_across, vector)
        steps = [j // vector * wide * layout.warps_across + j % vector for j in range(layout.column_slots)]
        columns = summed(*terms, more=steps)
    for other, (known_rows, known_columns) in low.grids.items():
        same = other.is_mma == layout.is_mma and other.lanes_across == layout.lanes_across
        same = same and other.warps_across == layout.warps_across
        if same and (other.rows, other.warps_down) == (layout.rows, layout.warps_down):
            rows = known_rows
        if same and (other.columns, other.vector) == (layout.columns, layout.vector):
            columns = known_columns
    return rows, columns


def prelude(low: Lowering, text: str) -> str:
    """Adds an instruction at the program's beginning and returns its result."""
    name = low.code.name_of("place")
    low.code.prelude.append(f"  {name} = {text}")
    return name


# Which values a loop reads


def _walk(low: Lowering, root: Node, start: Index) -> Iterator[tuple[Node, Index]]:
    """Iterates over the loads and the values in registers that an element of a lazy value reads, each with its place.
    In a place, "R" stands for the element's row, "C" for its column, and "?" for any other row or column."""
    seen: set[tuple[Node, Index]] = set()
    pending = [(root, start)]
    while pending:
        node, index = pending.pop()
        if (node, index) in seen or node in low.values:
            continue
        seen.add((node, index))
        if node in low.registers:
            yield node, index
        elif node in low.buffers:
            continue
        elif node.op in VIEWS:
            place = viewed_place(node, index)
            pending.append((node.inputs[0], ("?",) * len(node.inputs[0].shape) if place is None else place))
        elif node.op == "load":
            yield node, index
        else:
            pending += [(each, index if each.shape else ()) for each in node.inputs]


def _is_at_its_place(low: Lowering, held: Held, index: Index, layout: Layout) -> bool:
    """Returns whether a thread has an element of a held value in its own registers. The thread reads the element, which
    has the place ``index``, to compute an element of ``layout``."""
    rows, columns = low.grid(layout)
    own_rows, own_columns = low.grid(held.layout)
    if held.rows:
        return index == ("R",) and rows == own_rows
    if len(index) == 1:
        return index == ("C",) and held.layout.rows == 1 and columns == own_columns
    return (
        columns == own_columns
        and (index == ("R", "C") or (index == ("0", "C") and own_rows == ["0"]))
        and (rows == own_rows)
    )


def _prepare(low: Lowering, roots: Sequence[Node], layout: Layout, start: Index) -> list[tuple[Node, Index]]:
    """Copies into buffers the values in registers that other threads need. Returns the loads that a loop over a layout
    reads, with their places."""
    found: list[tuple[Node, Index]] = []
    for root in roots:
        for node, index in list(_walk(low, root, start)):
            held = low.registers.get(node)
            if held is None:
                found.append((node, index))
            elif node not in low.buffers and not _is_at_its_place(low, held, index, layout):
                low.keep(node)
    return found


# Loops


def sweep(
    low: Lowering,
    layout: Layout,
    shape: tuple[int, ...],
    roots: Sequence[Node],
    body: Callable[[Index, int, int], None],
    whole: str = "",
    stored: TensorParameter | None = None,
    finish_row: Callable[[int], None] | None = None,
) -> None:
    """Emits a loop over this thread's elements of a tile. ``body`` gets an element's place and the numbers of its row
    and column in this thread. If the loop stores a tile, ``stored`` is the tile's tensor, and ``whole`` the test
    whether the tile is wholly inside this tensor. In the code for whole tiles, ``finish_row`` is called after each of
    this thread's rows, with the row's number."""
    low.grid(layout)
    start = ("C",) if len(shape) == 1 else ("R", "C")
    loads = _prepare(low, roots, layout, start)
    rows, columns = low.grid(layout)
    vectors = [(node, index) for node, index in loads if index[-1:] == ("C",) and index[:-1] in ((), ("R",), ("0",))]
    guards = [low.tiles[node][1] for node, _ in loads] + ([whole] if whole else [])

    def emit(together: bool) -> None:
        with low.forgetting():
            for i, row in enumerate(rows):
                for j in range(0, len(columns), layout.vector):
                    if together:
                        for node, index in vectors:
                            names = {"R": row, "0": "0"}
                            with low.code.at_line(node.line):
                                _load_vector(low, node, tuple(names[each] for each in index[:-1]),
                                             columns[j : j + layout.vector])  # fmt: skip
                    for v in range(layout.vector):
                        column = columns[j + v]
                        body((column,) if len(shape) == 1 else (row, column), i, j + v)
                if together and finish_row is not None:
                    finish_row(i)

    if not guards:
        emit(False)
        return
    tensors = [node.detail for node, _ in vectors] + ([stored] if stored is not None else [])
    test = low.code.all_of([*guards, *(is_aligned(low, each) for each in tensors)])
    low.whole_or_edge(test, lambda: emit(low.whole))


def _load_vector(low: Lowering, node: Node, outer: Index, columns: list[str]) -> None:
    """Loads neighbouring elements of a row as vectors, and remembers each element by its place."""
    count = len(columns)
    if count == 1 or (node, (*outer, columns[0])) in low.memo:
        return
    tensor: TensorParameter = node.detail
    bases, _ = low.tiles[node]
    code = low.code
    at = address_of(low, tensor, bases, (*outer, columns[0]))
    kind, size = tensor.scalar.memory_type, tensor.scalar.dtype.itemsize
    most = max(1, min(count, 16 // size))
    for first in range(0, count, most):
        at_first = at if first == 0 else code.at(kind, at, str(first))
        loaded = code.new(f"load <{most} x {kind}>, ptr {at_first}, align {most * size}")
        for v in range(most):
            bits = code.new(f"extractelement <{most} x {kind}> {loaded}, i32 {v}")
            low.memo[node, (*outer, columns[first + v])] = arithmetic.widened(code, bits, tensor.scalar)


def hold(low: Lowering, node: Node, layout: Layout, *, rows: bool) -> Held:
    """Computes a value into registers. With ``rows`` the value is a tile that has one element for each row of the
    layout."""
    held = low.held(node.dtype, layout, rows=rows)
    if rows:
        sweep_rows(low, layout, [node], lambda index, i: low.store_register(held, i, low.element(node, index)))
    else:

        def keep(index: Index, i: int, j: int) -> None:
            low.store_register(held, layout.slot(i, j), low.element(node, index))

        sweep(low, layout, node.shape, [node], keep)
    return held


def sweep_rows(low: Lowering, layout: Layout, roots: Sequence[Node], body: Callable[[Index, int], None]) -> None:
    """Emits a loop over the rows in which this thread has elements."""
    _prepare(low, roots, layout, ("R",))
    rows, _ = low.grid(layout)

    def emit() -> None:
        with low.forgetting():
            for i, row in enumerate(rows):
                body((row,), i)

    low.versions(roots, emit)


def copy(low: Lowering, source: Held, target: Held) -> None:
    """Copies the registers of one tile to the registers of another tile."""
    count = source.layout.row_slots if source.rows else source.layout.slots
    for slot in range(count):
        low.store_register(target, slot, low.load_register(source, slot))


def spill(low: Lowering, held: Held, buffer: Buffer) -> None:
    """Writes this thread's registers to a buffer. If the tile has one element for each row, all threads that share a
    row hold its element, and the first of these threads writes it."""
    rows, columns = low.grid(held.layout)
    if held.rows:
        with low.code.when(is_first(low, held.layout)):
            for i, row in enumerate(rows):
                low.store(buffer, (row,), low.load_register(held, i))
        return
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            index = (column,) if len(buffer.shape) == 1 else (row, column)
            low.store(buffer, index, low.load_register(held, held.layout.slot(i, j)))


def is_first(low: Lowering, layout: Layout) -> str:
    """Returns whether this thread is the first of the threads that share its rows."""
    warp = low.code.new(f"lshr i64 {low.tid}, 5")
    across = low.code.new(f"urem i64 {warp}, {layout.warps_across}")
    lane = low.code.new(f"urem i64 {low.tid}, {layout.lanes_across}")
    both = low.code.new(f"or i64 {across}, {lane}")
    return low.code.new(f"icmp eq i64 {both}, 0")


# Stores


def store(low: Lowering, tensor: TensorParameter, value: Node, layout: Layout, bases: list[str], whole: str) -> None:
    """Stores a tile from registers. Neighbouring elements of a thread are stored as one vector."""
    code, scalar = low.code, tensor.scalar
    kind, size = scalar.memory_type, scalar.dtype.itemsize
    lines = _lines(low, tensor, layout, value.shape, bases)
    count = max(1, min(layout.vector, 16 // size))
    pending: list[str] = []
    first: list[Index] = []

    def put(index: Index, i: int, j: int) -> None:
        found = low.element(value, index)
        if not low.whole or count == 1:
            store_element(low, tensor, bases, index, found)
            return
        if not pending:
            first.append(index)
        pending.append(arithmetic.stored(code, found, scalar))
        if len(pending) == count:
            vector = "poison"
            for v, bits in enumerate(pending):
                vector = code.new(f"insertelement <{count} x {kind}> {vector}, {kind} {bits}, i32 {v}")
            place = first.pop()
            at = lines.place(place) if lines is not None else address_of(low, tensor, bases, place)
            code.emit(f"store <{count} x {kind}> {vector}, ptr {at}, align {count * size}")
            pending.clear()

    sweep(low, layout, value.shape, [value], put, whole, tensor, lines.write if lines is not None else None)


def _lines(
    low: Lowering, tensor: TensorParameter, layout: Layout, shape: tuple[int, ...], bases: list[str]
) -> _Lines | _WarpLines | None:
    """Returns what stores a tile by way of shared memory, or None if that gains nothing or shared memory has no
    room."""
    size = tensor.scalar.dtype.itemsize
    if not layout.is_mma or len(shape) != 2 or size > 2 or shape[1] * size % 64:
        return None
    by_warps = low.meeting is not None
    if by_warps and layout.warps_across > 1:
        return None
    rows = layout.warps * _ROWS_OF_LANES if by_warps else shape[0]
    room = low.borrowed(rows * (shape[1] * size + 16))
    if room is None:
        return None
    return (_WarpLines if by_warps else _Lines)(low, tensor, layout, shape[1], bases, room)


class _Lines:
    """Stores a product's narrow elements from registers to global memory by way of shared memory, so that neighbouring
    threads write whole cache lines. Rows in shared memory are padded by 16 bytes, so that eight rows are in different
    banks."""

    def __init__(
        self, low: Lowering, tensor: TensorParameter, layout: Layout, columns: int, bases: list[str], room: str
    ) -> None:
        self.low, self.tensor, self.layout, self.columns, self.bases, self.room = (
            low,
            tensor,
            layout,
            columns,
            bases,
            room,
        )
        self.size = tensor.scalar.dtype.itemsize
        self.pitch = columns * self.size + 16
        low.barrier()

    def place(self, index: Index) -> str:
        """Returns the address of an element in shared memory."""
        code, (row, column) = self.low.code, index
        offset = code.add(code.times(row, self.pitch), code.times(column, self.size))
        return code.new(f"getelementptr i8, ptr {self.room}, i64 {offset}")

    def write(self, i: int) -> None:
        """Writes the tile after its last row, 16 bytes at a time."""
        low, code, rows = self.low, self.low.code, self.layout.rows
        if i + 1 < self.layout.row_slots:
            return
        each = 16 // self.size
        low.barrier()
        with code.counted(rows * self.columns // each, low.tid, low.threads) as part, low.forgetting():
            row, place = low.unflattened(part, (rows, self.columns // each))
            column = code.times(place, each)
            loaded = code.new(f"load <4 x i32>, ptr {self.place((row, column))}, align 16")
            at = address(low, self.tensor, [code.add(self.bases[0], row), code.add(self.bases[1], column)])
            code.emit(f"store <4 x i32> {loaded}, ptr {at}, align 16")


class _WarpLines:
    """Stores a product's narrow elements like ``_Lines``, but each warp writes its own rows, eight at a time, and waits
    for no other warp. This takes less shared memory, which a producer meanwhile needs for the buffers that it fills."""

    def __init__(
        self, low: Lowering, tensor: TensorParameter, layout: Layout, columns: int, bases: list[str], room: str
    ) -> None:
        self.low, self.tensor, self.layout, self.bases = low, tensor, layout, bases
        self.size = tensor.scalar.dtype.itemsize
        self.pitch = columns * self.size + 16
        self.parts = columns * self.size // 16
        code = low.code
        self.warp, self.lane = code.new(f"lshr i64 {low.tid}, 5"), code.new(f"and i64 {low.tid}, {LANES - 1}")
        self.room = code.new(f"getelementptr i8, ptr {room}, i64 {code.times(self.warp, _ROWS_OF_LANES * self.pitch)}")
        own = code.times(code.new(f"lshr i64 {self.lane}, 2"), self.pitch)
        self.row = code.new(f"getelementptr i8, ptr {self.room}, i64 {own}")

    def place(self, index: Index) -> str:
        """Returns the address in shared memory of an element of this thread's row."""
        code = self.low.code
        return code.new(f"getelementptr i8, ptr {self.row}, i64 {code.times(index[1], self.size)}")

    def write(self, i: int) -> None:
        """Writes eight rows of the warp, 16 bytes at a time: row number ``i`` of each thread's own rows."""
        low, code = self.low, self.low.code
        top = code.add(self.bases[0], code.times(self.warp, 16))
        top = code.add(top, 16 * self.layout.warps_down * (i // 2) + 8 * (i % 2))
        low.sync_warp()
        for turn in range(_ROWS_OF_LANES * self.parts // LANES):
            row, part = low.unflattened(code.add(self.lane, turn * LANES), (_ROWS_OF_LANES, self.parts))
            offset = code.add(code.times(row, self.pitch), code.times(part, 16))
            at = code.new(f"getelementptr i8, ptr {self.room}, i64 {offset}")
            loaded = code.new(f"load <4 x i32>, ptr {at}, align 16")
            column = code.add(self.bases[1], code.times(part, 16 // self.size))
            at = address(low, self.tensor, [code.add(top, row), column])
            code.emit(f"store <4 x i32> {loaded}, ptr {at}, align 16")
        low.sync_warp()


def reads_rows(low: Lowering, node: Node) -> bool:
    """Returns whether a one-dimensional tile is computed from values that registers hold, one for each row."""
    return any(each in low.registers and low.registers[each].rows for each, _ in _walk(low, node, ("R",)))
