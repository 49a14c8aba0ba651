"""Implements ``explain()``: describes the plan of a tile kernel in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from oxide.compiler.source.source import Remark, listing

from .frontend import Program
from .ir import EFFECTS, Cell, Node
from .layouts import Plan, nodes_of
from .producers import PRODUCER_THREADS
from .tile_source import TileSource

__all__ = ["explained"]


def explained(source: TileSource, capability: int) -> str:
    """Returns a description of a kernel's plan for a GPU of a compute capability, such as 90."""
    program, plan = source.program, source.plan(capability)
    lowered = source.lowered(capability)
    text = lowered.modules[0]
    shared = sum(int(line.split(".")[-2]) for line in text.split("\n") if line.startswith("declare ptr @oxide.shared"))
    lines = [
        f"{source.function.__name__}: {source.threads} threads a program, {shared} bytes of shared memory",
        *_products(plan, program),
        *_pipelines(plan),
        *_producer(plan),
        *_values(plan, program),
    ]
    return Explanation("\n".join(lines), source.function.__code__.co_filename)


@final
class Explanation(str):
    """The text that ``explain()`` returns. A notebook shows it as the kernel's source with the remarks."""

    file: str

    def __new__(cls, text: str, file: str) -> Explanation:
        found = super().__new__(cls, text)
        found.file = file
        return found

    def _repr_html_(self) -> str:
        """Returns the kernel's source as HTML, with a remark after each line that the explanation is about. Products
        that do not run on tensor cores are orange."""
        general: list[str] = []
        remarks: list[Remark] = []
        for text in self.splitlines():
            place, _, remark = text.partition(": ")
            if not place.startswith("line "):
                general.append(text)
                continue
            mark = "bad" if ": by threads, because" in remark else "good" if "mma" in remark else "note"
            remarks.append((self.file, int(place.removeprefix("line ")), mark, remark))
        return listing(remarks, "; ".join(general))


def _products(plan: Plan, program: Program) -> Iterator[str]:
    for node in nodes_of(program.body):
        if node.op != "mma":
            continue
        left, right, _ = node.inputs
        what = f"line {node.line}: mma of {left.shape} and {right.shape} of {left.dtype.name} in {node.dtype.name}"
        product = plan.products.get(node)
        if product is None:
            yield f"{what}: by threads, because {plan.reasons.get(node, 'the GPU has no tensor cores that take it')}"
            continue
        how = "wgmma" if product.wgmma else f"mma.sync m16n8k{product.depth}"
        where = "left operand in registers" if product.left_in_registers else "operands in shared memory"
        place = ", added to the loop's variable in place" if product.in_place else ""
        yield f"{what}: {how}, {where}{place}"


def _pipelines(plan: Plan) -> Iterator[str]:
    for loop, pipeline in plan.pipelines.items():
        loads = " and ".join(f"{load.detail.name}.load at line {load.line}" for load in pipeline.loads)
        how = "TMA copies" if pipeline.engine else f"cp.async copies, because {pipeline.reason}"
        yield f"line {loop.line}: a pipeline of {pipeline.stages} stages: {loads}: {how}"


def _producer(plan: Plan) -> Iterator[str]:
    if plan.producer:
        yield f"{PRODUCER_THREADS} more threads make the copies, and blocks compute one program after another"
    elif plan.no_producer:
        yield f"the warps that compute also make the copies, because {plan.no_producer}"


def _values(plan: Plan, program: Program) -> Iterator[str]:
    staged = {load for pipeline in plan.pipelines.values() for load in pipeline.loads}
    for node in nodes_of(program.body):
        if node.op in EFFECTS or node.op in ("constant", "parameter", "counter") or not node.shape or not node.users:
            continue
        kind = f"{node.dtype.name}{list(node.shape)}"
        name = f"{node.detail.name} = " if isinstance(node.detail, Cell) else ""
        op = "variable" if node.op == "cell" else node.op
        yield f"line {node.line}: {name}{op}: {kind}: {_place(plan, node, node in staged)}"


def _place(plan: Plan, node: Node, staged: bool) -> str:
    if staged:
        return "shared memory, by asynchronous copies"
    rows = plan.row_layout(node.shape[0]) if len(node.shape) == 1 else None
    if node.op in ("sum", "max", "min", "argmax", "argmin"):
        source = plan.tile(node.inputs[0].shape)
        last = len(node.inputs[0].shape) - 1
        if source is not None and node.detail in (last, (last,)):
            return "registers, one for each row, by shuffles"
    if rows is not None and node.op == "cell":
        return "registers, one for each row"
    layout = plan.tile(node.shape)
    kept = node.op in ("cell", "mma") or len(node.users) > 1
    if node.op in ("sum", "max", "min", "argmax", "argmin", "cumsum", "cat", "sort"):
        return "shared memory"
    if not kept:
        return "computed where it is used"
    if rows is not None:
        return "registers, one for each row"
    return str(layout) if layout is not None else "shared memory"
