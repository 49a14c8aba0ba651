"""Programs with a producer (``tile/producers.py``): one warpgroup makes all copies, and the others compute.

The block's last warpgroup is the producer. One of its threads computes the places of all tiles that the pipelines load,
for one program after another. It waits at a buffer's ``empty`` barrier and begins the copies. When the copies have
arrived, the ``full`` barrier lets the other warps pass. The buffers' numbers continue from program to program, so the
copies for the next program begin while the other warps store. The other warps, which compute, never wait at a barrier
together with the producer. They have a barrier of their own, only for values that pass between them through shared
memory. The sums of eight warps take most registers of a multiprocessor, so the producer releases most of its own
registers to them.

The engine cannot read a matrix whose rows do not begin at multiples of 16 bytes. The computing warps copy such a matrix
themselves, between two barriers in each iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from oxide.compiler.tile import producers
from oxide.compiler.tile.ir import Node
from oxide.compiler.tile.layouts import Pipeline

from . import pipeline, tensor_cores, tensors
from . import tile_effects as effects
from .engine_rings import BARRIER_BYTES, LANES, Place, barrier_of, begin_copies, call, make_barrier, places_of
from .pipeline import GoesOn
from .registers import prelude
from .state import Lowering

_MOST_THREADS = 256
"""If this many threads of a block compute, a multiprocessor holds only one block, because their sums fill its
registers."""
_PRODUCER_REGISTERS, _REGISTERS = 56, 224
"""The registers of a thread of the producer and of each of ``_MOST_THREADS`` threads."""


@final
class FedRing:
    """The state of a pipelined loop whose buffers the producer fills."""

    def __init__(self, low: Lowering, loop: Node, plan: Pipeline) -> None:
        self.low = low
        self.loop = loop
        self.stages = plan.stages
        product = producers.running(low.plan, loop)
        assert product is not None, "a producer's loops have one product each"
        self.product = product
        self.operands = {
            load: tensor_cores.new_operand(low, load.dtype, load.shape, plan.stages) for load in plan.loads
        }
        self.full, self.empty = (low.room(BARRIER_BYTES * plan.stages) for _ in range(2))
        make_barrier(low, self.full, plan.stages, 1)
        make_barrier(low, self.empty, plan.stages, low.threads // LANES)
        self.present, self.filled = Place.new(low), Place.new(low)
        self.first_turn = low.code.variable("i1", "first")
        self.by_engine = low.code.all_of([tensors.is_copied_by_engine(low, load.detail) for load in plan.loads])

    # The producer's side

    def feed(self) -> None:
        """Begins the copies of all iterations of the loop, each copy when its buffer has been read."""
        low, code = self.low, self.low.code
        start, stop, step = (low.scalar(each) for each in self.loop.inputs[:3])
        at = code.variable("i64", "ahead")
        code.emit(f"store i64 {start}, ptr {at}")
        turn, after = code.labels("feed", "fed")
        code.branch(effects.goes_on(low, start, stop, step), turn, after)
        code.label(turn)
        counter = code.new(f"load i64, ptr {at}")
        with effects.inside(low):
            self._fill(counter)
        following = code.new(f"add i64 {counter}, {step}")
        code.emit(f"store i64 {following}, ptr {at}")
        code.branch(effects.goes_on(low, following, stop, step), turn, after)
        code.label(after)

    def _fill(self, counter: str) -> None:
        low = self.low
        stage, turn = self.filled.read(low)
        places = places_of(low, self.loop, self.operands, counter, stage)
        empty, full = barrier_of(low, self.empty, stage), barrier_of(low, self.full, stage)
        begin_copies(low, places, empty, full, turn)
        self.filled.advance(low, self.stages)

    # The loop, in the computing warps

    def start(self, _start: str, _stop: str, _step: str, _goes_on: GoesOn) -> None:
        """Marks the next iteration as the first. The producer may have begun the loop's copies long before."""
        self.low.code.emit(f"store i1 true, ptr {self.first_turn}")

    def begin_turn(self, _counter: str) -> None:
        """Sets the buffers that the iteration's product reads."""
        low = self.low
        stage, _ = self.present.read(low)
        pipeline.use_stage(low, self.operands, stage)
        low.rings[self.product] = self
        low.running.add(self.product)

    def end_turn(self) -> None:
        """Advances to the next buffers."""
        self.present.advance(self.low, self.stages)
        self.low.code.emit(f"store i1 false, ptr {self.first_turn}")

    def end(self) -> None:
        """Waits for the product that still runs after the last iteration, and releases its buffers."""
        pipeline.wait_for_last(self.low, self.product)
        self._release()

    # The product

    def begin_product(self, _product: Node) -> None:
        """Waits for the copies of an iteration, or makes them if the engine cannot."""
        low, code = self.low, self.low.code
        fast, slow, after = code.labels("fast", "slow", "loaded")
        code.branch(self.by_engine, fast, slow)
        code.label(fast)
        stage, turn = self.present.read(low)
        call(low, "wait", barrier_of(low, self.full, stage), ("i32", turn))
        code.jump(after)
        code.label(slow)
        low.meet()
        for load, operand in self.operands.items():
            bases = tensors.bases_of(low, load.detail, [low.scalar(each) for each in load.inputs[:-1]], load.shape)
            tensor_cores.move(low, load.detail, operand, low.staged[load].address, bases)
        code.call("void", "oxide.tensor.fence_stores", low.barrier_site)
        low.meet()
        code.jump(after)
        code.label(after)

    def has_begun(self, _product: Node) -> None:
        """Does nothing, because the producer begins the copies."""

    def has_ended(self, _product: Node) -> None:
        """Releases the buffers of the previous iteration, whose product has ended."""
        code = self.low.code
        with code.when(code.new(f"xor i1 {code.new(f'load i1, ptr {self.first_turn}')}, true")):
            self._release()

    def _release(self) -> None:
        """Arrives, for this warp, at the ``empty`` barrier of the buffers of the previous iteration."""
        low, code = self.low, self.low.code
        lane = code.new(f"and i64 {low.tid}, {LANES - 1}")
        leads = code.new(f"and i1 {self.by_engine}, {code.new(f'icmp eq i64 {lane}, 0')}")
        with code.when(leads):
            call(low, "arrive", barrier_of(low, self.empty, self.present.before(low, self.stages)))


def run(low: Lowering, first: str, total: str, place: Callable[[str], None]) -> None:
    """Emits the code of a kernel with a producer. Each block computes the programs with the numbers ``first``,
    ``first`` plus the number of blocks, and so on, below ``total``, the number of programs. ``place`` emits code that
    computes a program's place in the grid."""
    code = low.code
    rings = [FedRing(low, loop, plan) for loop, plan in low.plan.pipelines.items()]
    low.rings.update({ring.loop: ring for ring in rings})
    barrier = low.room(BARRIER_BYTES)
    make_barrier(low, barrier, 1, low.threads // LANES)
    low.barrier()
    low.meeting = barrier, code.variable("i32", "meetings")
    code.entry.append(f"  store i32 0, ptr {low.meeting[1]}")
    code.declare("i32", "llvm.nvvm.read.ptx.sreg.nctaid.x", ())
    blocks = prelude(low, f"zext i32 {prelude(low, 'call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()')} to i64")

    produces, computes = code.labels("produces", "computes")
    code.branch(code.new(f"icmp uge i64 {low.tid}, {low.threads}"), produces, computes)
    code.label(produces)
    moves = low.threads == _MOST_THREADS
    if moves:
        code.call("void", f"oxide.tensor.registers.dec.{_PRODUCER_REGISTERS}", low.barrier_site)
    first_warp = code.new(f"icmp ult i64 {low.tid}, {low.threads + LANES}")
    with code.when(first_warp):
        elected = code.call("i1", "oxide.warp.elect", ("i32", "-1"), low.barrier_site)
        _produce(low, rings, elected, (first, total, blocks), place)
    code.jump("done")

    code.label(computes)
    if moves:
        code.call("void", f"oxide.tensor.registers.inc.{_REGISTERS}", low.barrier_site)
    beginning, code.prelude = len(code.lines), []
    with code.counted(total, first, blocks, rolled=True) as number, effects.inside(low):
        place(number)
        effects.run(low, low.program.body)
        if low.has_met:  # the next program writes to shared memory that other warps may still read
            low.barrier()
    code.lines[beginning:beginning] = code.prelude


def _produce(
    low: Lowering, rings: list[FedRing], elected: str, numbers: tuple[str, str, str], place: Callable[[str], None]
) -> None:
    """Emits the copies for all programs of a block, which one thread makes."""
    code, (first, total, blocks) = low.code, numbers
    with code.when(elected), code.counted(total, first, blocks, rolled=True) as number, effects.inside(low):
        place(number)
        for ring in rings:
            with code.when(ring.by_engine), effects.inside(low):
                ring.feed()
