"""Decides which programs have a producer: a warpgroup that only makes the copies of all pipelines on Hopper.

The blocks of such a program are persistent. There are as many blocks as the GPU holds at once, and each block computes
one program after another. The producer runs ahead of the other warps: it begins the copies for the next program while
the other warps still store their tiles.
"""

from __future__ import annotations

from oxide.compiler.tile.ir import EFFECTS, SCATTERS, Node
from oxide.compiler.tile.layouts import Pipeline, Plan, nodes_of, source_of

from .frontend import Program

__all__ = ["PRODUCER_THREADS", "reason_against", "running"]

PRODUCER_THREADS = 128
"""The threads of a producer. One thread makes the copies, but only a whole warpgroup can release registers to other
warps."""
_MOST_WARPS = 8
"""The most computing warps of a program with a producer: with more, a thread has too few registers for its sums."""
_COMPUTED = frozenset(("cell", "gather", "load", "sum", "max", "min", "argmax", "argmin", "mma", "order"))
"""The operations whose scalar results a producer cannot compute, because they read memory or results of other warps."""


def running(plan: Plan, loop: Node) -> Node | None:
    """Returns the only product of a loop if it may still run when the next iteration begins, or else None. The next
    iteration must not write the product's inputs before it has waited for the product."""
    pipeline = plan.pipelines[loop]
    products = [node for node in nodes_of(loop.detail[0]) if node in plan.products]
    if len(products) != 1 or pipeline.stages < 3:
        return None
    product = plan.products[products[0]]
    operands = [source_of(each)[1] for each in products[0].inputs[:2]]
    body = loop.detail[0]
    ahead = all(each in pipeline.loads or each.region is not body for each in operands)
    return products[0] if ahead and product.wgmma and product.in_place and not product.left_in_registers else None


def reason_against(program: Program, plan: Plan, warps: int) -> str:
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
        reason = _against(program, plan, loop, pipeline)
        if reason:
            return f"{reason} in the loop at line {loop.line}"
    return ""


def _against(program: Program, plan: Plan, loop: Node, pipeline: Pipeline) -> str:
    if not pipeline.engine:
        return pipeline.reason
    if loop.region is not program.body:
        return "tiles are loaded again and again"
    if running(plan, loop) is None:
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
