"""Loops whose loads run ahead of the iterations that use them: a ring of buffers in shared memory for each load.

``Ring`` fills the buffers by asynchronous copies of all threads. At the beginning of an iteration, each thread waits
for its copies. Then all threads meet at a barrier. After the barrier all threads see the copies, and no thread still
reads the buffers of the previous iteration. Then the copies for a later iteration begin, into the buffers of the
previous iteration. With ``wgmma`` the products of the previous iteration may still run. The copies then go into the
buffers of the iteration before the previous one, and run ahead by one iteration less.

``EngineRing`` lets the copy engine (TMA) fill the buffers, on Hopper. Loads that the same products read share a ring. A
buffer has two barriers: ``full`` is passed when the buffer's copies have arrived, ``empty`` when all warps have read
the buffer. One lane of each warp arrives at ``empty`` when the last product that reads the buffer has ended. One thread
waits at ``empty`` and begins the next copies while the next product runs. So the loop has no block-wide barrier, and
one warpgroup may multiply while another computes.

In a program with a producer, that thread belongs to the block's last warpgroup, which makes all copies. The buffers'
numbers continue from program to program, so the copies for the next program begin while the other warps store. The
other warps, which compute, never wait at a barrier together with the producer. They have a barrier of their own, only
for values that pass between them through shared memory.

Elements of a tile outside of its tensor become zeros. The engine cannot read a matrix whose rows do not begin at
multiples of 16 bytes. All computing threads copy such a matrix, between two barriers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from oxide.compiler.tile.ir import Node
from oxide.compiler.tile.layouts import LANES, Pipeline, source_of

from . import tensor_cores, tensors
from .state import Held, Lowering
from .tensor_cores import PANEL, Operand

_BARRIER_BYTES = 16


def begin(low: Lowering, loop: Node, start: str, stop: str, step: str) -> Ring | EngineRing | None:
    """Begins the copies of a loop's first iterations. Returns None for a loop without a pipeline."""
    plan = low.plan.pipelines.get(loop)
    if plan is None:
        return None
    if not plan.engine:
        return Ring(low, loop, plan, start, stop, step)
    ring: EngineRing = low.rings[loop]
    ring.start(start, stop, step)
    return ring


@final
class Ring:
    """The state of a pipelined loop whose buffers the threads fill."""

    def __init__(self, low: Lowering, loop: Node, plan: Pipeline, start: str, stop: str, step: str) -> None:
        code = low.code
        self.low, self.loop, self.stages, self.product = low, loop, plan.stages, plan.running
        self.operands = {
            load: tensor_cores.new_operand(low, load.dtype, load.shape, plan.stages) for load in plan.loads
        }
        self.ahead = plan.stages - (2 if plan.running is not None else 1)
        self.present, self.filled = code.variable("i64", "present"), code.variable("i64", "filled")
        """The variables that number the stage in use and the stage to fill next."""
        self.stop, self.step = stop, step
        low.barrier()  # waits for earlier reads of the buffers
        low.free.clear()
        counter = start
        for number in range(self.ahead):
            self._fill(counter, str(number))
            counter = code.add(counter, step)
        code.emit(f"store i64 0, ptr {self.present}")
        code.emit(f"store i64 {self.ahead}, ptr {self.filled}")

    def begin_turn(self, counter: str) -> None:
        """Waits for the copies of an iteration, and begins the copies of a later iteration."""
        low, code = self.low, self.low.code
        code.call("void", f"oxide.tensor.wait.{self.ahead - 1}", low.barrier_site)
        tensor_cores.fence(low)
        low.barrier()
        filled = code.new(f"load i64, ptr {self.filled}")
        later = code.add(counter, code.new(f"mul i64 {self.step}, {self.ahead}"))
        self._fill(later, filled)
        present = code.new(f"load i64, ptr {self.present}")
        _use_stage(low, self.operands, present)
        for variable, number in ((self.present, present), (self.filled, filled)):
            code.emit(f"store i64 {_next_stage(low, number, self.stages)[0]}, ptr {variable}")
        if self.product is not None:
            low.running.add(self.product)

    def end_turn(self) -> None:
        """Does nothing, because each iteration waits for its copies at its beginning."""

    def end(self) -> None:
        """Waits for the product and the copies that may still run after the last iteration."""
        low = self.low
        if self.product is not None:
            _wait_for_last(low, self.product)
        low.code.call("void", "oxide.tensor.wait.0", low.barrier_site)
        low.free += [(operand.address, operand.bytes * self.stages) for operand in self.operands.values()]

    def _fill(self, counter: str, number: str) -> None:
        """Begins the copies for an iteration into a stage, if the loop reaches the iteration. The copies form one
        group, which may be empty."""
        low, code = self.low, self.low.code
        with code.when(code.goes_on(counter, self.stop, self.step)):
            known: dict[Node, str] = {self.loop.detail[2]: counter}
            for load, operand in self.operands.items():
                with code.at_line(load.line):
                    indices = [_scalar_for(low, self.loop, each, known) for each in load.inputs[:-1]]
                    tensor_cores.copy(low, load.detail, operand, _stage_of(low, operand, number), indices)
        code.call("void", "oxide.tensor.commit", low.barrier_site)


@final
@dataclass(eq=False, slots=True)
class _Place:
    """The place of a buffer in a ring, as two variables: the number of a stage, and the number of times that all stages
    have been passed. If the loop runs again, the variables continue from their last values."""

    stage: str
    round: str

    @classmethod
    def new(cls, low: Lowering) -> _Place:
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
        following, first = _next_stage(low, stage, stages)
        code.emit(f"store i64 {following}, ptr {self.stage}")
        over = code.new(f"zext i1 {first} to i32")
        code.emit(f"store i32 {code.new(f'add i32 {turn}, {over}')}, ptr {self.round}")


@final
@dataclass(eq=False, slots=True)
class _Copied:
    """Loads that are copied together: their buffers and barriers, the next buffer to fill, the counter of the iteration
    that will read this buffer, the first and the last product that read the loads, and the condition that the engine
    can read their tensors."""

    operands: dict[Node, Operand]
    full: str
    empty: str
    filled: _Place
    counter: str
    first: Node
    last: Node
    by_engine: str


@final
class EngineRing:
    """The state of a pipelined loop whose buffers the copy engine fills."""

    def __init__(self, low: Lowering, loop: Node, plan: Pipeline) -> None:
        self.low = low
        self.loop = loop
        self.stages = plan.stages
        self.running = plan.running
        self.fed = low.plan.producer
        """True if a producer makes the copies. The loop then has one product and one group of copies."""
        self.present = _Place.new(low)
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
            if self.fed:
                self._allocate(operands)
            full, empty = (low.room(_BARRIER_BYTES * plan.stages) for _ in range(2))
            _make_barriers(low, full, plan.stages, 1)
            _make_barriers(low, empty, plan.stages, low.threads // LANES)
            counter = low.code.variable("i64", "ahead")
            by_engine = low.code.all_of([tensors.is_copied_by_engine(low, load.detail) for load in loads])
            self.copied.append(_Copied(operands, full, empty, _Place.new(low), counter, first, last, by_engine))

    def _allocate(self, operands: dict[Node, Operand]) -> None:
        for load, operand in operands.items():
            operand.address = tensor_cores.new_operand(self.low, load.dtype, load.shape, self.stages).address

    # The producer

    def feed(self) -> None:
        """Begins a producer's copies for all iterations of the loop, each copy when its buffer has been read."""
        low, code, (copied,) = self.low, self.low.code, self.copied
        with code.when(copied.by_engine), low.inside():
            start, stop, step = (low.scalar(each) for each in self.loop.inputs[:3])
            code.emit(f"store i64 {start}, ptr {copied.counter}")
            again, after = code.labels("feed", "fed")
            code.branch(code.goes_on(start, stop, step), again, after)
            code.label(again)
            counter = code.new(f"load i64, ptr {copied.counter}")
            with low.inside():
                stage, turn = copied.filled.read(low)
                self._begin_copies(copied, self._places(copied, counter, stage), stage, turn)
                copied.filled.advance(low, self.stages)
            following = code.new(f"add i64 {counter}, {step}")
            code.emit(f"store i64 {following}, ptr {copied.counter}")
            code.branch(code.goes_on(following, stop, step), again, after)
            code.label(after)

    # The loop

    def start(self, start: str, stop: str, step: str) -> None:
        """Begins the copies of the first iterations, as many as there are stages. A producer may have begun them long
        before."""
        low, code = self.low, self.low.code
        if not self.fed:
            self.bounds = (stop, step)
            for copied in self.copied:
                self._allocate(copied.operands)
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
            _use_stage(low, copied.operands, stage)
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
            _wait_for_last(low, self.running)
            for copied in self.copied:
                self._release(copied, self.present.before(low, self.stages))
        if not self.fed:
            for copied in self.copied:
                low.free += [(operand.address, operand.bytes * self.stages) for operand in copied.operands.values()]

    # A product

    def begin_product(self, product: Node) -> None:
        """Waits for the copies that ``product`` reads and no earlier product of the iteration has read. Where a
        producer's engine cannot make them, makes them."""
        low, code = self.low, self.low.code
        if not self.fed:
            self._wait_for_copies(product)
            return
        (copied,) = self.copied
        fast, slow, after = code.labels("fast", "slow", "loaded")
        code.branch(copied.by_engine, fast, slow)
        code.label(fast)
        self._wait_for_copies(product)
        code.jump(after)
        code.label(slow)
        low.meet()
        for load, operand in copied.operands.items():
            bases = tensors.bases_of(low, load.detail, [low.scalar(each) for each in load.inputs[:-1]], load.shape)
            tensor_cores.move(low, load.detail, operand, low.staged[load].address, bases)
        code.call("void", "oxide.tensor.fence_stores", low.barrier_site)
        low.meet()
        code.jump(after)
        code.label(after)

    def _wait_for_copies(self, product: Node) -> None:
        low = self.low
        for copied in self.copied:
            if copied.first is product:
                stage, turn = self.present.read(low)
                call(low, "wait", _barrier_of(low, copied.full, stage), ("i32", turn))

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
        the buffers of the previous iteration instead, and fills them unless a producer does."""
        low = self.low
        for copied in self.copied:
            if copied.last is not product:
                continue
            if product is self.running:
                with self._after_the_first():
                    self._release(copied, self.present.before(low, self.stages))
                    if not self.fed:
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
        leads = code.new(f"icmp eq i64 {lane}, 0")
        if self.fed:
            leads = code.new(f"and i1 {copied.by_engine}, {leads}")
        with code.when(leads):
            call(low, "arrive", _barrier_of(low, copied.empty, stage))

    # Copies

    def _fill(self, copied: _Copied) -> None:
        """Begins the copies into the next buffers, unless the loop has no iteration left for them."""
        low, code, (stop, step) = self.low, self.low.code, self.bounds
        counter = code.new(f"load i64, ptr {copied.counter}")
        with code.when(code.goes_on(counter, stop, step)):
            stage, turn = copied.filled.read(low)
            places = self._places(copied, counter, stage)
            fast, slow, after = code.labels("fast", "slow", "begun")
            code.branch(copied.by_engine, fast, slow)
            code.label(fast)
            with code.when(code.new(f"icmp ult i64 {low.tid}, {LANES}")):
                elected = code.call("i1", "oxide.warp.elect", ("i32", "-1"), low.barrier_site)
                with code.when(elected):
                    self._begin_copies(copied, places, stage, turn)
            code.jump(after)
            code.label(slow)
            # The block waits below, but there must also be a wait for each phase of the barrier that arrivals complete.
            first = code.new(f"icmp eq i64 {low.tid}, 0")
            with code.when(first):
                self._wait_until_read(copied, stage, turn)
            low.barrier()
            for load, (operand, target, bases) in places.items():
                with code.at_line(load.line):
                    tensor_cores.move(low, load.detail, operand, target, bases)
            code.call("void", "oxide.tensor.fence_stores", low.barrier_site)
            low.barrier()
            with code.when(first):
                call(low, "arrive", _barrier_of(low, copied.full, stage))
            code.jump(after)
            code.label(after)
            copied.filled.advance(low, self.stages)
            code.emit(f"store i64 {code.new(f'add i64 {counter}, {step}')}, ptr {copied.counter}")

    def _places(self, copied: _Copied, counter: str, stage: str) -> _Places:
        """Computes where the copies for the iteration with the given counter begin and end."""
        low = self.low
        known: dict[Node, str] = {self.loop.detail[2]: counter}
        places: _Places = {}
        for load, operand in copied.operands.items():
            indices = [_scalar_for(low, self.loop, each, known) for each in load.inputs[:-1]]
            bases = tensors.bases_of(low, load.detail, indices, load.shape)
            places[load] = operand, _stage_of(low, operand, stage), bases
        return places

    def _begin_copies(self, copied: _Copied, places: _Places, stage: str, turn: str) -> None:
        """Waits until a stage has been read, and lets the engine fill it. One thread calls this."""
        low = self.low
        full = _barrier_of(low, copied.full, stage)
        self._wait_until_read(copied, stage, turn)
        nbytes = sum(operand.rows * operand.columns * operand.size for operand in copied.operands.values())
        call(low, "expect", full, ("i32", str(nbytes)))
        for load, (operand, target, bases) in places.items():
            with low.code.at_line(load.line):
                _copy(low, load, operand, target, bases, full)

    def _wait_until_read(self, copied: _Copied, stage: str, turn: str) -> None:
        empty = _barrier_of(self.low, copied.empty, stage)
        call(self.low, "wait", empty, ("i32", self.low.code.new(f"add i32 {turn}, -1")))


_Places = dict[Node, tuple[Operand, str, list[str]]]
"""For each load, its operand, the address of the stage to fill, and the place of the tile's first element."""


def make_rings(low: Lowering) -> None:
    """Makes the rings that the engine fills, and the barrier of the computing warps, at the kernel's beginning: the
    barriers are made only once for a loop in a loop."""
    for loop, plan in low.plan.pipelines.items():
        if plan.engine:
            low.rings[loop] = EngineRing(low, loop, plan)
    if not low.plan.producer:
        if low.rings:
            low.barrier()
        return
    barrier, meetings = low.room(_BARRIER_BYTES), low.code.variable("i32", "meetings")
    _make_barriers(low, barrier, 1, low.threads // LANES)
    low.code.entry.append(f"  store i32 0, ptr {meetings}")
    low.barrier()
    low.meeting = barrier, meetings


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


def _barrier_of(low: Lowering, barriers: str, stage: str) -> str:
    """Returns the address of a stage's barrier."""
    return low.code.new(f"getelementptr i8, ptr {barriers}, i64 {low.code.times(stage, _BARRIER_BYTES)}")


def call(low: Lowering, what: str, barrier: str, *more: tuple[str, str]) -> None:
    """Calls an operation of a barrier: "wait", "arrive" or "expect"."""
    low.code.call("void", f"oxide.tensor.barrier.{what}", ("ptr", barrier), *more, low.barrier_site)


def _make_barriers(low: Lowering, barriers: str, count: int, arrivals: int) -> None:
    """Makes ``count`` barriers, whose phases each take ``arrivals`` arrivals."""
    counts = (("i32", str(count)), ("i32", str(arrivals)))
    low.code.call("void", "oxide.tensor.barrier.init", ("ptr", barriers), *counts, low.barrier_site)


def _sources(product: Node) -> tuple[Node, ...]:
    """Returns the operands of a product without their transposes."""
    return tuple(source_of(each)[1] for each in product.inputs[:2])


def _wait_for_last(low: Lowering, product: Node) -> None:
    """Waits, after a loop, for the product of the loop's last iteration."""
    low.running.discard(product)
    held = low.cells[product.inputs[2].detail]
    assert isinstance(held, Held)
    tensor_cores.wait_for_sums(low, held, 0)


def _next_stage(low: Lowering, stage: str, stages: int) -> tuple[str, str]:
    """Returns the number of the next stage, and whether the next stage is the first one again."""
    more = low.code.new(f"add i64 {stage}, 1")
    first = low.code.new(f"icmp eq i64 {more}, {stages}")
    return low.code.new(f"select i1 {first}, i64 0, i64 {more}"), first


def _use_stage(low: Lowering, operands: dict[Node, Operand], stage: str) -> None:
    """Lets the iteration's products read the loads of a stage."""
    for load, operand in operands.items():
        low.staged[load] = Operand(_stage_of(low, operand, stage), operand.scalar, operand.rows, operand.columns)


def _stage_of(low: Lowering, operand: Operand, number: str) -> str:
    return low.code.new(f"getelementptr i8, ptr {operand.address}, i64 {low.code.times(number, operand.bytes)}")


def _scalar_for(low: Lowering, loop: Node, node: Node, known: dict[Node, str]) -> str:
    """Emits a scalar of the loop's body again, computed for another value of the loop's counter. ``known`` has the
    counter's value and the scalars computed so far."""
    found = known.get(node)
    if found is None:
        if node.region is not loop.detail[0]:
            return low.scalar(node)
        values = {each: _scalar_for(low, loop, each, known) for each in node.inputs}
        before = {each: low.values.get(each) for each in values}
        low.values.update(values)
        with low.forgetting():
            found = known[node] = low.compute(node, ())
        for each, old in before.items():
            if old is None:
                del low.values[each]
            else:
                low.values[each] = old
    return found
