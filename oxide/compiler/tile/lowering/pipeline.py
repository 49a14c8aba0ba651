"""Loops whose loads run ahead of the iterations that use them: a ring of buffers in shared memory for each load, filled
by asynchronous copies.

At the beginning of an iteration, each thread waits for its copies. Then all threads meet at a barrier. After the
barrier all threads see the copies, and no thread still reads the buffers of the previous iteration. Then the copies for
a later iteration begin, into the buffers of the previous iteration. With ``wgmma`` the products of the previous
iteration may still run. The copies then go into the buffers of the iteration before the previous one, and run ahead by
one iteration less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from oxide.compiler.tile import producers
from oxide.compiler.tile.ir import Node

from . import tensor_cores
from .state import Held, Lowering
from .tensor_cores import Operand

GoesOn = Callable[[Lowering, str, str, str], str]


@final
@dataclass(eq=False, slots=True)
class Ring:
    """The state of a pipelined loop: its loads and their buffers, the variables that number the stage in use and the
    stage to fill next, and the number of iterations by which the copies run ahead."""

    low: Lowering
    loop: Node
    operands: dict[Node, Operand]
    stages: int
    ahead: int
    present: str
    filled: str
    stop: str
    step: str
    goes_on: GoesOn
    product: Node | None
    """The product that may still run when the next iteration begins."""

    def begin_turn(self, counter: str) -> None:
        """Waits for the copies of an iteration, and begins the copies of a later iteration."""
        low, code = self.low, self.low.code
        code.call("void", f"oxide.tensor.wait.{self.ahead - 1}", low.barrier_site)
        tensor_cores.fence(low)
        low.barrier()
        filled = code.new(f"load i64, ptr {self.filled}")
        later = code.add(counter, code.new(f"mul i64 {self.step}, {self.ahead}"))
        _fill(low, self, later, filled)
        present = code.new(f"load i64, ptr {self.present}")
        use_stage(low, self.operands, present)
        for variable, number in ((self.present, present), (self.filled, filled)):
            code.emit(f"store i64 {next_stage(low, number, self.stages)[0]}, ptr {variable}")
        if self.product is not None:
            low.running.add(self.product)

    def end_turn(self) -> None:
        """Does nothing, because each iteration waits for its copies at its beginning."""

    def end(self) -> None:
        """Waits for the product and the copies that may still run after the last iteration."""
        low = self.low
        if self.product is not None:
            wait_for_last(low, self.product)
        low.code.call("void", "oxide.tensor.wait.0", low.barrier_site)
        low.free += [(operand.address, operand.bytes * self.stages) for operand in self.operands.values()]


def wait_for_last(low: Lowering, product: Node) -> None:
    """Waits, after a loop, for the product of the loop's last iteration."""
    low.running.discard(product)
    held = low.cells[product.inputs[2].detail]
    assert isinstance(held, Held)
    tensor_cores.wait_for_sums(low, held, 0)


def begin(low: Lowering, loop: Node, start: str, stop: str, step: str, goes_on: GoesOn) -> Ring | None:
    """Begins the copies of the first iterations. Returns None for a loop without a pipeline."""
    plan = low.plan.pipelines.get(loop)
    if plan is None or plan.engine or low.threads == 1:
        return None
    code = low.code
    operands = {
        load: tensor_cores.new_operand(low, load.dtype, (load.shape[0], load.shape[1]), plan.stages)
        for load in plan.loads
    }
    product = producers.running(low.plan, loop)
    ahead = plan.stages - (2 if product is not None else 1)
    ring = Ring(
        low, loop, operands, plan.stages, ahead, code.variable("i64", "present"), code.variable("i64", "filled"), stop,
        step, goes_on, product,
    )  # fmt: skip
    low.barrier()  # waits for earlier reads of the buffers
    low.free.clear()
    counter = start
    for number in range(ring.ahead):
        _fill(low, ring, counter, str(number))
        counter = code.add(counter, step)
    code.emit(f"store i64 0, ptr {ring.present}")
    code.emit(f"store i64 {ring.ahead}, ptr {ring.filled}")
    return ring


def next_stage(low: Lowering, stage: str, stages: int) -> tuple[str, str]:
    """Returns the number of the next stage, and whether the next stage is the first one again."""
    more = low.code.new(f"add i64 {stage}, 1")
    first = low.code.new(f"icmp eq i64 {more}, {stages}")
    return low.code.new(f"select i1 {first}, i64 0, i64 {more}"), first


def use_stage(low: Lowering, operands: dict[Node, Operand], stage: str) -> None:
    """Lets the iteration's products read the loads of a stage."""
    for load, operand in operands.items():
        low.staged[load] = Operand(stage_of(low, operand, stage), operand.scalar, operand.rows, operand.columns)


def stage_of(low: Lowering, operand: Operand, number: str) -> str:
    return low.code.new(f"getelementptr i8, ptr {operand.address}, i64 {low.code.times(number, operand.bytes)}")


def _fill(low: Lowering, ring: Ring, counter: str, number: str) -> None:
    """Begins the copies for an iteration into a stage, if the loop reaches the iteration. The copies form one group,
    which may be empty."""
    code = low.code
    with code.when(ring.goes_on(low, counter, ring.stop, ring.step)):
        known: dict[Node, str] = {ring.loop.detail[2]: counter}
        for load, operand in ring.operands.items():
            with code.at_line(load.line):
                indices = [scalar_for(low, ring.loop, each, known) for each in load.inputs[:-1]]
                tensor_cores.copy(low, load.detail, operand, stage_of(low, operand, number), indices)
    code.call("void", "oxide.tensor.commit", low.barrier_site)


def scalar_for(low: Lowering, loop: Node, node: Node, known: dict[Node, str]) -> str:
    """Emits a scalar of the loop's body again, computed for another value of the loop's counter. ``known`` has the
    counter's value and the scalars computed so far."""
    found = known.get(node)
    if found is None:
        if node.region is not loop.detail[0]:
            return low.scalar(node)
        values = {each: scalar_for(low, loop, each, known) for each in node.inputs}
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
