"""Loops whose loads run ahead of the iterations that use them, on Hopper: a ring of buffers, which the copy engine
(TMA) fills.

Loads that the same products read share a ring. A buffer has two barriers: ``full`` is passed when the buffer's copies
have arrived, ``empty`` when all warps have read the buffer. One lane of each warp arrives at ``empty`` when the last
product that reads the buffer has ended. One thread waits at ``empty`` and begins the next copies while the next product
runs. So the loop has no block-wide barrier, and one warpgroup may multiply while another computes.

Elements of a tile outside of its tensor become zeros. The engine cannot read a matrix whose rows do not begin at
multiples of 16 bytes. All threads copy such a matrix, between two barriers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from oxide.compiler.tile import producers
from oxide.compiler.tile.ir import Node
from oxide.compiler.tile.layouts import Pipeline, source_of

from . import pipeline, tensor_cores, tensors
from .pipeline import GoesOn
from .state import Lowering
from .tensor_cores import PANEL, Operand

BARRIER_BYTES = 16
LANES = 32


@final
@dataclass(eq=False, slots=True)
class Place:
    """The place of a buffer in a ring, as two variables: the number of a stage, and the number of times that all stages
    have been passed. If the loop runs again, the variables continue from their last values."""

    stage: str
    round: str

    @classmethod
    def new(cls, low: Lowering) -> Place:
        code = low.code
        found = cls(code.variable("i64", "stage"), code.variable("i32", "round"))
        code.entry += [f"  store i64 0, ptr {found.stage}", f"  store i32 0, ptr {found.round}"]
        return found

    def read(self, low: Lowering) -> tuple[str, str]:
        return low.code.new(f"load i64, ptr {self.stage}"), low.code.new(f"load i32, ptr {self.round}")

    def before(self, low: Lowering, stages: int) -> str:
        """Returns the number of the previous stage in the ring."""
        code = low.code
        stage, _ = self.read(low)
        none = code.new(f"icmp eq i64 {stage}, 0")
        return code.new(f"select i1 {none}, i64 {stages - 1}, i64 {code.new(f'add i64 {stage}, -1')}")

    def advance(self, low: Lowering, stages: int) -> None:
        code = low.code
        stage, turn = self.read(low)
        following, first = pipeline.next_stage(low, stage, stages)
        code.emit(f"store i64 {following}, ptr {self.stage}")
        over = code.new(f"zext i1 {first} to i32")
        code.emit(f"store i32 {code.new(f'add i32 {turn}, {over}')}, ptr {self.round}")


@final
@dataclass(eq=False, slots=True)
class _Copied:
    """Loads that are copied together: their buffers and barriers, the next buffer to fill, the counter of the iteration
    that will read this buffer, and the first and the last product that read the loads."""

    operands: dict[Node, Operand]
    full: str
    empty: str
    filled: Place
    counter: str
    first: Node
    last: Node


@final
class EngineRing:
    """The state of a pipelined loop."""

    def __init__(self, low: Lowering, loop: Node, plan: Pipeline) -> None:
        self.low = low
        self.loop = loop
        self.stages = plan.stages
        self.present = Place.new(low)
        self.first_turn = low.code.variable("i1", "first")
        self.bounds = ("", "")
        body = loop.detail[0]
        readers = {
            load: [node for node in body.nodes if node in low.plan.products and load in _sources(node)]
            for load in plan.loads
        }
        self.products = [node for node in body.nodes if any(node in each for each in readers.values())]
        together: dict[tuple[Node, Node], list[Node]] = {}
        for load in plan.loads:
            together.setdefault((readers[load][0], readers[load][-1]), []).append(load)
        self.copied: list[_Copied] = []
        for (first, last), loads in together.items():
            operands = {load: Operand("", load.dtype, load.shape[0], load.shape[1]) for load in loads}
            full, empty = (low.room(BARRIER_BYTES * plan.stages) for _ in range(2))
            counter = low.code.variable("i64", "ahead")
            self.copied.append(_Copied(operands, full, empty, Place.new(low), counter, first, last))
        self.running = producers.running(low.plan, loop)
        self._goes_on: GoesOn | None = None

    # The loop

    def start(self, start: str, stop: str, step: str, goes_on: GoesOn) -> None:
        """Begins the copies of the first iterations, as many as there are stages."""
        low, code = self.low, self.low.code
        self.bounds, self._goes_on = (stop, step), goes_on
        for copied in self.copied:
            for load, operand in copied.operands.items():
                operand.address = tensor_cores.new_operand(low, load.dtype, load.shape, self.stages).address
        # The buffers may have been read or written before, by instructions that the engine does not wait for.
        low.code.call("void", "oxide.tensor.fence_stores", low.barrier_site)
        low.barrier()
        low.free.clear()
        for copied in self.copied:
            code.emit(f"store i64 {start}, ptr {copied.counter}")
        with code.counted(self.stages, rolled=True), low.forgetting():
            for copied in self.copied:
                self._fill(copied)
        code.emit(f"store i1 true, ptr {self.first_turn}")

    def begin_turn(self, _counter: str) -> None:
        """Sets the buffers that the iteration's products read."""
        low = self.low
        stage, _ = self.present.read(low)
        for copied in self.copied:
            pipeline.use_stage(low, copied.operands, stage)
        low.rings.update(dict.fromkeys(self.products, self))
        if self.running is not None:
            low.running.add(self.running)

    def end_turn(self) -> None:
        """Advances to the next buffers."""
        self.present.advance(self.low, self.stages)
        self.low.code.emit(f"store i1 false, ptr {self.first_turn}")

    def end(self) -> None:
        """Waits for the product that may still run after the last iteration."""
        low = self.low
        if self.running is not None:
            pipeline.wait_for_last(low, self.running)
            for copied in self.copied:
                self._release(copied, self.present.before(low, self.stages))
        for copied in self.copied:
            low.free += [(operand.address, operand.bytes * self.stages) for operand in copied.operands.values()]

    # A product

    def begin_product(self, product: Node) -> None:
        """Waits for the copies that ``product`` reads and no earlier product of the iteration has read."""
        low = self.low
        for copied in self.copied:
            if copied.first is product:
                stage, turn = self.present.read(low)
                call(low, "wait", barrier_of(low, copied.full, stage), ("i32", turn))

    def has_begun(self, product: Node) -> None:
        """Begins copies while ``product`` runs. They fill the buffers that the product before it has read."""
        number = self.products.index(product)
        for copied in self.copied:
            place = self.products.index(copied.last)
            if copied.last is self.running or (place + 1) % len(self.products) != number:
                continue
            if number <= place:  # the previous product was in the previous iteration
                with self._after_the_first():
                    self._fill(copied)
            else:
                self._fill(copied)

    def has_ended(self, product: Node) -> None:
        """Releases the buffers that no later product of the iteration reads. If the product is still running, releases
        and fills the buffers of the previous iteration instead."""
        low = self.low
        for copied in self.copied:
            if copied.last is not product:
                continue
            if product is self.running:
                with self._after_the_first():
                    self._release(copied, self.present.before(low, self.stages))
                    self._fill(copied)
            else:
                self._release(copied, self.present.read(low)[0])

    @contextmanager
    def _after_the_first(self) -> Iterator[None]:
        """Opens a block of code that the first iteration skips."""
        code = self.low.code
        later = code.new(f"xor i1 {code.new(f'load i1, ptr {self.first_turn}')}, true")
        with code.when(later), self.low.forgetting():
            yield

    def _release(self, copied: _Copied, stage: str) -> None:
        """Arrives, for this warp, at the ``empty`` barrier of a buffer."""
        low, code = self.low, self.low.code
        lane = code.new(f"and i64 {low.tid}, {LANES - 1}")
        with code.when(code.new(f"icmp eq i64 {lane}, 0")):
            call(low, "arrive", barrier_of(low, copied.empty, stage))

    # Copies

    def _fill(self, copied: _Copied) -> None:
        """Begins the copies into the next buffers, unless the loop has no iteration left for them."""
        low, code = self.low, self.low.code
        stop, step = self.bounds
        assert self._goes_on is not None
        counter = code.new(f"load i64, ptr {copied.counter}")
        with code.when(self._goes_on(low, counter, stop, step)):
            stage, turn = copied.filled.read(low)
            full, empty = barrier_of(low, copied.full, stage), barrier_of(low, copied.empty, stage)
            places = places_of(low, self.loop, copied.operands, counter, stage)
            fast, slow, after = code.labels("fast", "slow", "begun")
            test = code.all_of([tensors.is_copied_by_engine(low, load.detail) for load in places])
            code.branch(test, fast, slow)
            code.label(fast)
            with code.when(code.new(f"icmp ult i64 {low.tid}, {LANES}")):
                elected = code.call("i1", "oxide.warp.elect", ("i32", "-1"), low.barrier_site)
                with code.when(elected):
                    begin_copies(low, places, empty, full, turn)
            code.jump(after)
            code.label(slow)
            # The block waits below, but there must also be a wait for each phase of the barrier that arrivals complete.
            with code.when(code.new(f"icmp eq i64 {low.tid}, 0")):
                call(low, "wait", empty, ("i32", code.new(f"add i32 {turn}, -1")))
            low.barrier()
            for load, (operand, target, bases) in places.items():
                with code.at_line(load.line):
                    tensor_cores.move(low, load.detail, operand, target, bases)
            code.call("void", "oxide.tensor.fence_stores", low.barrier_site)
            low.barrier()
            with code.when(code.new(f"icmp eq i64 {low.tid}, 0")):
                call(low, "arrive", full)
            code.jump(after)
            code.label(after)
            copied.filled.advance(low, self.stages)
            code.emit(f"store i64 {code.new(f'add i64 {counter}, {step}')}, ptr {copied.counter}")


Places = dict[Node, tuple[Operand, str, list[str]]]
"""For each load, its operand, the address of the stage to fill, and the place of the tile's first element."""


def places_of(low: Lowering, loop: Node, operands: dict[Node, Operand], counter: str, stage: str) -> Places:
    """Computes where the copies for the iteration with the given counter begin and end."""
    known: dict[Node, str] = {loop.detail[2]: counter}
    places: Places = {}
    for load, operand in operands.items():
        indices = [pipeline.scalar_for(low, loop, each, known) for each in load.inputs[:-1]]
        bases = tensors.bases_of(low, load.detail, indices, load.shape)
        places[load] = operand, pipeline.stage_of(low, operand, stage), bases
    return places


def begin_copies(low: Lowering, places: Places, empty: str, full: str, turn: str) -> None:
    """Waits until a stage has been read, and lets the engine fill it. One thread calls this."""
    nbytes = sum(operand.rows * operand.columns * operand.size for operand, _, _ in places.values())
    call(low, "wait", empty, ("i32", low.code.new(f"add i32 {turn}, -1")))
    call(low, "expect", full, ("i32", str(nbytes)))
    for load, (operand, target, bases) in places.items():
        with low.code.at_line(load.line):
            _copy(low, load, operand, target, bases, full)


def _copy(low: Lowering, load: Node, operand: Operand, target: str, bases: list[str], full: str) -> None:
    """Lets the engine copy a tile, in panels of 128 bytes of each row."""
    code, tensor = low.code, load.detail
    width = PANEL // operand.size
    lengths = [("i64", each) for each in tensors.lengths_of(tensor)]
    name = f"oxide.tensor.load_tile.{tensor.ndim}.{tensor.scalar.name}.{operand.rows}x{width}.swizzled.optional"
    for panel in range(operand.columns // width):
        at = code.new(f"getelementptr i8, ptr {target}, i64 {panel * operand.rows * PANEL}")
        place = (("i64", bases[0]), ("i64", code.add(bases[1], panel * width)))
        code.call(
            "void", name, ("ptr", at), ("ptr", f"%{tensor.name}.0"), *lengths, *place, ("ptr", full), low.barrier_site
        )


def barrier_of(low: Lowering, barriers: str, stage: str) -> str:
    """Returns the address of a stage's barrier."""
    return low.code.new(f"getelementptr i8, ptr {barriers}, i64 {low.code.times(stage, BARRIER_BYTES)}")


def call(low: Lowering, what: str, barrier: str, *more: tuple[str, str]) -> None:
    """Calls an operation of a barrier: "wait", "arrive" or "expect"."""
    low.code.call("void", f"oxide.tensor.barrier.{what}", ("ptr", barrier), *more, low.barrier_site)


def make_barrier(low: Lowering, barriers: str, count: int, arrivals: int) -> None:
    """Makes ``count`` barriers, whose phases each take ``arrivals`` arrivals."""
    counts = (("i32", str(count)), ("i32", str(arrivals)))
    low.code.call("void", "oxide.tensor.barrier.init", ("ptr", barriers), *counts, low.barrier_site)


def _sources(product: Node) -> tuple[Node, ...]:
    """Returns the operands of a product without their transposes."""
    return tuple(source_of(each)[1] for each in product.inputs[:2])


def make_barriers(low: Lowering) -> None:
    """Makes the barriers of all pipelines at the kernel's beginning, so that they are made only once for a loop in a
    loop."""
    if low.threads == 1:
        return
    for loop, plan in low.plan.pipelines.items():
        if not plan.engine:
            continue
        ring = low.rings[loop] = EngineRing(low, loop, plan)
        for copied in ring.copied:
            for barriers, arrivals in ((copied.full, 1), (copied.empty, low.threads // LANES)):
                make_barrier(low, barriers, plan.stages, arrivals)
    if low.rings:
        low.barrier()


def begin(low: Lowering, loop: Node, start: str, stop: str, step: str, goes_on: GoesOn) -> EngineRing | None:
    """Begins the copies of the first iterations. Returns None for a loop without a pipeline that the engine fills."""
    ring: EngineRing | None = low.rings.get(loop)
    if ring is not None:
        ring.start(start, stop, step, goes_on)
    return ring
