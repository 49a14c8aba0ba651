"""``Lowering``: the state while a program's nodes are lowered: values, buffers, registers and tensors.

Elementwise operations are fused. Their values are lazy: they have no memory of their own, and their elements are
computed where they are used, inside the loop of a store, a reduction or a buffer (``element``). A value gets a buffer
or registers of its own in three cases: it is used more than once, a loop would compute it again, or it is not an
elementwise operation.

Buffers are in a block's shared memory on a GPU. A buffer is complete at the barrier after the loop that fills it. The
registers of a thread hold the elements of a tile that a ``Layout`` assigns to the thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from oxide.compiler.tile.frontend import Program
from oxide.compiler.tile.ir import BOOL, I64, Cell, Node
from oxide.compiler.tile.layouts import Layout, Plan
from oxide.driver.base import MAX_SHARED_BYTES
from oxide.language.types import ScalarType

from . import arithmetic
from .ir_text import Code

__all__ = ["FREE", "VIEWS", "Buffer", "Held", "Index", "Lowering", "held_type"]

Index = tuple[str, ...]
"""The place of an element in a tile: a name or a number for each axis."""


def viewed_place(node: Node, index: Index) -> Index | None:
    """Returns the place that an element of a view has in the value under the view, or None if computing this place
    takes arithmetic."""
    source = node.inputs[0].shape
    if node.op == "broadcast":
        own = index[len(index) - len(source) :]
        return tuple("0" if size == 1 else i for size, i in zip(source, own, strict=True))
    if node.op == "transpose":
        found = [""] * len(index)
        for place, axis in enumerate(node.detail):
            found[axis] = index[place]
        return tuple(found)
    kept = [i for i, size in zip(index, node.shape, strict=True) if size > 1]
    if [size for size in node.shape if size > 1] == [size for size in source if size > 1]:
        places = iter(kept)
        return tuple("0" if size == 1 else next(places) for size in source)
    return None


FREE = ("constant", "arange", "parameter", "cell", "length", "program_id", "num_programs", "counter")
"""The operations whose elements cost no more than a load of a buffer."""
VIEWS = ("broadcast", "reshape", "transpose")
"""The operations that only move elements: their results are views of the value under them."""
_ALIGNMENT = 128
_MOST_STACK = 2**18
"""The most bytes of a program's buffers on the CPU's stack."""


@final
@dataclass(eq=False, slots=True)
class Buffer:
    """A tile in shared memory, row by row."""

    address: str
    scalar: ScalarType
    shape: tuple[int, ...]


@final
@dataclass(eq=False, slots=True)
class Held:
    """A tile in registers. ``address`` has this thread's elements, in the order of the layout. With ``rows`` the tile
    has one element for each row of the layout."""

    address: str
    scalar: ScalarType
    layout: Layout
    rows: bool


class Parts(NamedTuple):
    """What a lowering calls of the modules above this one: ``tensors.py`` and ``registers.py``."""

    loaded: Callable[[Lowering, Node, Index], str]
    gathered: Callable[[Lowering, Node, Index], str]
    spill: Callable[[Lowering, Held, Buffer], None]
    places: Callable[[Lowering, Layout], tuple[list[str], list[str]]]


@final
class Lowering:
    """The state of a lowering: for a GPU's block of ``threads`` threads, or for the CPU if ``threads`` is 1."""

    def __init__(
        self,
        program: Program,
        scalars: Mapping[str, str],
        threads: int,
        flags: str,
        plan: Plan,
        parts: Parts,
        *,
        located: bool = False,
    ) -> None:
        self.program = program
        self.scalars = scalars
        """The LLVM types of the parameters that are scalars."""
        self.threads = threads
        self.flags = flags
        self.plan = plan
        self.parts = parts
        self.code = Code(located=located)
        self.buffers: dict[Node, Buffer] = {}
        self.registers: dict[Node, Held] = {}
        self.values: dict[Node, str] = {}
        self.tiles: dict[Node, tuple[list[str], str]] = {}
        """For each load, the place of its first element, and whether its tile is wholly inside the tensor."""
        self.cells: dict[Cell, Buffer | Held | str] = {}
        self.memo: dict[tuple[Node, Index], str] = {}
        self.orders: dict[Node, Buffer] = {}
        """The indices of elements that a ``sort`` has put in order."""
        self.staged: dict[Node, Any] = {}
        """The operands of products that a pipeline has put in shared memory."""
        self.transposes: dict[Node, Node] = {}
        self.running: set[Node] = set()
        """The products that may still run when the next iteration of their loop begins."""
        self.rings: dict[Node, Any] = {}
        """The pipelines of the copy engine, by their loops and by the products that read them."""
        self.meeting: tuple[str, str] | None = None
        """In a program with a producer, the barrier of the computing warps, and the variable that counts its phases.
        Otherwise None."""
        self.has_met = False
        """True if values of a program pass between the computing warps through shared memory."""
        self.whole = False
        """True in code for tiles that are wholly inside their tensors."""
        self.pending: list[Node] = []
        self.last_use: dict[Node, int] = {}
        self.tid = "0"
        self.programs: list[str] = []
        self.counts: list[str] = []
        self.bytes = 0
        self.stack = 0
        self.free: list[tuple[str, int]] = []
        """Shared memory of pipelines that have ended: addresses and sizes."""
        self.arrays = 0
        self.grids: dict[Layout, tuple[list[str], list[str]]] = {}
        """The rows and the columns of each layout's elements in this thread."""
        self.steps: dict[str, tuple[str, int]] = {}
        """For each row or column that a thread does not keep: the thread's first row or column, and the constant
        distance from it."""
        self.aligned: dict[str, str] = {}
        """The tests that have been emitted for tensors: that all rows begin at multiples of 16 bytes, and that the copy
        engine can read the tensor."""

    def site(self, number: int) -> tuple[str, str]:
        """Returns the argument that stands for a place at which a launch can fail."""
        return "i32", self.code.call("i32", f"oxide.site.{number}")

    @property
    def barrier_site(self) -> tuple[str, str]:
        """Returns the fault site argument of barriers and shuffles, which never fail."""
        return self.site(len(self.program.sites))

    def barrier(self) -> None:
        """Emits a barrier for all threads that compute the program."""
        if self.meeting is not None:
            self.has_met = True
            self.meet()
        elif self.threads > 1:
            self.code.call("void", "oxide.block.barrier", self.barrier_site)

    def meet(self) -> None:
        """Emits a barrier for the computing warps of a program with a producer."""
        code, site = self.code, self.barrier_site
        assert self.meeting is not None
        barrier, count = self.meeting
        self.sync_warp()
        lane = code.new(f"and i64 {self.tid}, 31")
        with code.when(code.new(f"icmp eq i64 {lane}, 0")):
            code.call("void", "oxide.tensor.barrier.arrive", ("ptr", barrier), site)
        phase = code.new(f"load i32, ptr {count}")
        code.call("void", "oxide.tensor.barrier.wait", ("ptr", barrier), ("i32", phase), site)
        code.emit(f"store i32 {code.new(f'add i32 {phase}, 1')}, ptr {count}")

    def sync_warp(self) -> None:
        """Emits a barrier for the threads of a warp."""
        self.code.call("void", "oxide.warp.sync", ("i32", "-1"), self.barrier_site)

    # Elements

    def scalar(self, node: Node) -> str:
        """Returns the value of a scalar, which is computed only once."""
        found = self.values.get(node)
        if found is None:
            found = self.values[node] = self.compute(node, ())
        return found

    def element(self, node: Node, index: Index) -> str:
        """Returns one element of a value. Emits code that computes the element, unless the current scope has it
        already."""
        if not node.shape and node in self.values:
            return self.values[node]
        key = (node, index)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self._element(node, index)
        return found

    def _element(self, node: Node, index: Index) -> str:
        held = self.registers.get(node)
        if held is not None:
            slot = self.slot_of(held, index)
            if slot is not None:
                return self.load_register(held, slot)
        buffer = self.buffers.get(node)
        return self.compute(node, index) if buffer is None else self.load(buffer, index)

    def compute(self, node: Node, index: Index) -> str:
        """Computes one element of a lazy value. Its instructions have the value's line."""
        with self.code.at_line(node.line):
            return self._compute(node, index)

    def _compute(self, node: Node, index: Index) -> str:
        op, inputs, code = node.op, node.inputs, self.code
        if op == "constant":
            return arithmetic.constant(node.detail, node.dtype)
        if op == "parameter":
            name, kind = f"%{node.detail}", self.scalars[node.detail]
            return name if kind == node.dtype.register_type else arithmetic.widened(code, name, node.dtype)
        if op == "length":
            return f"%{node.detail[0]}.{node.detail[1] + 1}"
        if op in ("program_id", "num_programs"):
            found = self.programs if op == "program_id" else self.counts
            return found[node.detail] if node.detail < len(found) else ("0" if op == "program_id" else "1")
        if op == "arange":
            return arithmetic.cast(code, index[0], I64, node.dtype)
        if op in VIEWS:
            source = inputs[0]
            return self.element(source, self.viewed(node, index))
        if op == "load":
            return self.parts.loaded(self, node, index)
        if op == "gather":
            return self.parts.gathered(self, node, index)
        if op == "order":
            place = self.load(self.orders[inputs[0]], index)
            return code.new(f"sext i32 {place} to i64")
        values = [self.element(each, index) for each in inputs]
        if op == "cast":
            return arithmetic.cast(code, values[0], inputs[0].dtype, node.dtype)
        if op == "exp" and self.threads == 1 and node.dtype.name != "f64":
            op = "fast_exp"  # under 1 ulp, in half the time
        return arithmetic.apply(code, op, inputs[-1].dtype, values, self.flags)

    # Places

    def viewed(self, node: Node, index: Index) -> Index:
        """Returns the place that an element of a view has in the value under the view."""
        place = viewed_place(node, index)
        return self.unflattened(self.flattened(index, node.shape), node.inputs[0].shape) if place is None else place

    def flattened(self, index: Sequence[str], shape: Sequence[int]) -> str:
        """Returns the number of an element, counted row by row."""
        linear = "0"
        for i, size in zip(index, shape, strict=True):
            if size > 1:
                linear = self.code.add(self.code.times(linear, size), i)
        return linear

    def unflattened(self, linear: str, shape: Sequence[int]) -> Index:
        """Returns the place of the element with the number ``linear``, counted row by row."""
        found: list[str] = []
        left = math.prod(shape)
        for size in shape:
            left //= size
            if size == 1:
                found.append("0")
                continue
            part = linear if left == 1 else self.code.new(f"udiv i64 {linear}, {left}")
            if left * size != math.prod(shape):
                part = self.code.new(f"urem i64 {part}, {size}")
            found.append(part)
        return tuple(found)

    # Buffers

    def room(self, size: int, alignment: int = _ALIGNMENT) -> str:
        """Returns the address of ``size`` bytes of shared memory. On the CPU small memory is on the stack: LLVM then
        knows that no two pieces overlap, and vectorises the loops over them."""
        if self.threads == 1 and self.stack + size <= _MOST_STACK:
            self.stack += size
            return self.code.variable(f"[{size} x i8], align {_ALIGNMENT}", "buffer")
        self.bytes += -(-size // alignment) * alignment
        name = f"oxide.shared.static.{self.arrays}.{size}.{alignment}"
        self.arrays += 1
        self.code.declare("ptr", name, ())
        at = self.code.name_of("buffer")
        self.code.entry.append(f"  {at} = call ptr @{name}()")
        return at

    def borrowed(self, size: int) -> str | None:
        """Returns the address of ``size`` bytes of shared memory that an ended pipeline no longer uses, or else of new
        memory. Returns None if neither fits. All threads must pass a barrier before they write to it."""
        found = next((address for address, free in self.free if free >= size), None)
        most = MAX_SHARED_BYTES // 2 if self.meeting is None else MAX_SHARED_BYTES
        if found is None and self.bytes + size <= most:
            found = self.room(size)
        return found

    def buffer(self, scalar: ScalarType, shape: tuple[int, ...]) -> Buffer:
        """Returns a new buffer."""
        return Buffer(self.room(math.prod(shape) * size_of(held_type(scalar))), scalar, shape)

    def load(self, buffer: Buffer, index: Index) -> str:
        """Reads an element of a buffer."""
        kind = held_type(buffer.scalar)
        value = self.code.new(f"load {kind}, ptr {self._slot(buffer, index)}")
        return self.code.new(f"icmp ne i8 {value}, 0") if buffer.scalar is BOOL else value

    def store(self, buffer: Buffer, index: Index, value: str) -> None:
        """Writes an element of a buffer."""
        if buffer.scalar is BOOL:
            value = self.code.new(f"zext i1 {value} to i8")
        self.code.emit(f"store {held_type(buffer.scalar)} {value}, ptr {self._slot(buffer, index)}")

    def _slot(self, buffer: Buffer, index: Index) -> str:
        return self.code.at(held_type(buffer.scalar), buffer.address, self.flattened(index, buffer.shape))

    def keep(self, node: Node) -> Buffer:
        """Returns a value's buffer. If the value has none, makes one and fills it."""
        found = self.buffers.get(node)
        if found is None:
            buffer = self.buffer(node.dtype, node.shape)
            self.fill(buffer, node)
            found = self.buffers[node] = buffer
        return found

    def fill(self, buffer: Buffer, node: Node) -> None:
        """Computes a value into a buffer."""
        held = self.registers.get(node)
        self.barrier()
        if held is not None:
            self.parts.spill(self, held, buffer)
        else:
            self.over(node.shape, [node], lambda index: self.store(buffer, index, self.element(node, index)))
        self.barrier()

    # Registers

    def grid(self, layout: Layout) -> tuple[list[str], list[str]]:
        """Returns two lists of names: for the rows and for the columns of this thread's elements."""
        found = self.grids.get(layout)
        if found is None:
            found = self.grids[layout] = self.parts.places(self, layout)
        return found

    def slot_of(self, held: Held, index: Index) -> int | None:
        """Returns the number of the register that has an element, or None if this thread does not hold the element."""
        rows, columns = self.grid(held.layout)
        if held.rows:
            return rows.index(index[0]) if len(index) == 1 and index[0] in rows else None
        row, column = (rows[0], index[0]) if len(index) == 1 else index
        if len(index) == 1 and held.layout.rows != 1:
            return None
        if row not in rows or column not in columns:
            return None
        return held.layout.slot(rows.index(row), columns.index(column))

    def load_register(self, held: Held, slot: int) -> str:
        """Reads a register."""
        kind = held.scalar.register_type
        return self.code.new(f"load {kind}, ptr {self.code.at(kind, held.address, str(slot))}")

    def store_register(self, held: Held, slot: int, value: str) -> None:
        """Writes a register."""
        kind = held.scalar.register_type
        self.code.emit(f"store {kind} {value}, ptr {self.code.at(kind, held.address, str(slot))}")

    def held(self, scalar: ScalarType, layout: Layout, *, rows: bool) -> Held:
        """Returns new registers for a tile, or, with ``rows``, for one element of each row of the layout."""
        count = layout.row_slots if rows else layout.row_slots * layout.column_slots
        return Held(self.code.variable(f"[{count} x {scalar.register_type}]", "held"), scalar, layout, rows)

    # Loops

    def loads(self, roots: Sequence[Node]) -> Iterator[Node]:
        """Iterates over the loads and gathers that the elements of lazy values read."""
        found = self._read(roots)
        return (node for node in found if node.op in ("load", "gather") and node not in self.registers)

    def put_in_buffers(self, roots: Sequence[Node]) -> None:
        """Copies into buffers the values in registers that lazy values read, so that every thread reaches them."""
        for node in self._read(roots):
            if node in self.registers:
                self.keep(node)

    def _read(self, roots: Sequence[Node]) -> Iterator[Node]:
        """Iterates over the values that the elements of lazy values are computed from, down to those in registers, but
        without those in buffers."""
        seen: set[Node] = set()
        pending = list(roots)
        while pending:
            node = pending.pop()
            if node in seen or node in self.buffers or node in self.values:
                continue
            seen.add(node)
            yield node
            if node not in self.registers:
                pending += node.inputs

    def over(
        self, shape: tuple[int, ...], roots: Sequence[Node], body: Callable[[Index], None], whole: str = ""
    ) -> None:
        """Emits a loop over the elements of a shape. ``roots`` are the values whose elements the body reads."""
        self.put_in_buffers(roots)
        self.versions(roots, lambda: self.nest(shape, body), whole)

    def versions(self, roots: Sequence[Node], emit: Callable[[], None], whole: str = "") -> None:
        """Emits code that accesses tensors in two versions: one for tiles wholly inside their tensors, and one for
        tiles at an edge. Code that accesses no tensor is emitted once."""
        guards = [self.tiles[each][1] for each in self.loads(roots) if each.op == "load"]
        guards += [whole] if whole else []
        if not guards or self.whole:
            emit()
            return
        self.whole_or_edge(self.code.all_of(guards), emit)

    def whole_or_edge(self, test: str, emit: Callable[[], None]) -> None:
        """Emits code twice: with ``whole`` set for where the test holds, and with ``whole`` clear for elsewhere."""
        inner, edge, after = self.code.labels("whole", "edge", "joined")
        self.code.branch(test, inner, edge)
        outer = self.whole
        for label, self.whole in ((inner, True), (edge, False)):
            self.code.label(label)
            with self.forgetting():
                emit()
            self.code.jump(after)
        self.whole = outer
        self.code.label(after)

    def nest(self, shape: tuple[int, ...], body: Callable[[Index], None]) -> None:
        """Emits a loop over the elements of a shape. The threads of a block share the iterations."""
        if self.threads > 1:
            with self.code.counted(math.prod(shape), self.tid, self.threads) as linear, self.forgetting():
                body(self.unflattened(linear, shape))
        else:
            self.serial(shape, body)

    def serial(self, shape: tuple[int, ...], body: Callable[[Index], None], index: Index = ()) -> None:
        """Emits loops over the elements of a shape. Each thread runs all iterations."""
        if not shape:
            with self.forgetting():
                body(index)
        elif shape[0] == 1:
            self.serial(shape[1:], body, (*index, "0"))
        else:
            with self.code.counted(shape[0]) as i:
                self.serial(shape[1:], body, (*index, i))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Opens the body of a loop or a branch. Values that are computed in the body are not reused after its end."""
        known = [
            dict(each) for each in (self.buffers, self.registers, self.values, self.staged, self.orders, self.tiles)
        ]
        outer, self.pending = self.pending, []
        with self.forgetting():
            yield
        self.pending = outer
        self.buffers, self.registers, self.values, self.staged, self.orders, self.tiles = known

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Opens a scope. The elements computed in it are not reused after its end."""
        outer, self.memo = self.memo, {}
        yield
        self.memo = outer


def held_type(scalar: ScalarType) -> str:
    """Returns the type of an element in a buffer: i8 for a bool, else the type of a value in registers."""
    return "i8" if scalar is BOOL else scalar.register_type


def size_of(kind: str) -> int:
    """Returns the bytes of a number of an LLVM type in memory: 1 for ``i1``."""
    return {"float": 4, "double": 8}.get(kind) or max(1, int(kind[1:]) // 8)
