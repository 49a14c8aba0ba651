"""The source of a tile kernel for certain types, tile shapes and constants, and the description of its plan in words. A
``Kernel`` compiles this source where it would compile the function of a thread kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from oxide.compiler.signature.signature import Parameter
from oxide.compiler.source.source import Remark, listing
from oxide.driver.base import MAX_SHARED_BYTES
from oxide.language.types import ScalarType

from .frontend import Program, TensorParameter, parse
from .ir import EFFECTS, REDUCTIONS, Cell, Node
from .layouts import LANES, PRODUCER_THREADS, Plan, TooLarge, nodes_of, plan_of

if TYPE_CHECKING:
    from oxide.compiler.ir.portable import LoweredKernel, PortableKernel

__all__ = ["TileSource"]

MOST_STAGES = 3
"""The number of buffers of a load that runs ahead, if the kernel sets none."""

simulated: int = 0
"""A compute capability for tests. The CPU device then runs the code for this GPU thread by thread, so that results can
be compared. 0 selects the CPU's own code."""


@final
@dataclass(frozen=True)
class TileSource:
    """The source of a tile kernel. ``given`` maps each parameter's name to a ``TensorParameter``, to a scalar type, or,
    for a constant, to a tuple that has only its value. ``threads`` is the size of a block on a GPU. ``stages`` is the
    number of buffers of each load that runs ahead in a loop, or None for as many as fit, up to ``MOST_STAGES``."""

    function: Callable[..., Any]
    given: Mapping[str, Any]
    threads: int
    stages: int | None
    fastmath: bool = False

    @cached_property
    def program(self) -> Program:
        """Returns the kernel as tile IR. Raises ``CompileError`` for code that a tile kernel cannot contain."""
        return parse(self.function, self.given)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Returns the parameters that a launch passes: all but the constants."""
        name = self.function.__name__
        found: list[Parameter] = []
        for key, given in self.given.items():
            if isinstance(given, TensorParameter):
                kind: Any = "slice" if given.tile is None and not given.is_target else "disjoint"
                shown = given.kind.capitalize()
                found.append(Parameter(name, key, kind, given.scalar, ndim=given.ndim, of_tiles=shown))
            elif isinstance(given, ScalarType):
                found.append(Parameter(name, key, "scalar", given))
        return tuple(found)

    def planned(self, capability: int, *, located: bool = False) -> tuple[Plan, LoweredKernel]:
        """Returns the layouts of the kernel's tiles, and its IR. ``capability`` is the compute capability of a GPU,
        such as 90, or 0 for the CPU. The plan is empty below 80. With ``located``, instructions carry their lines.
        Raises ``CompileError`` for code that a tile kernel cannot contain, and for tiles that do not fit a block's
        memory."""
        if capability < 80:
            return (plan := Plan()), self._lowered(capability, plan, located=located)
        choices = (self.stages,) if self.stages is not None else range(MOST_STAGES, 0, -1)
        for stages in choices:
            plan = plan_of(self.program, self.threads // LANES, stages, hopper=capability == 90)
            try:
                return plan, self._lowered(capability, plan, located=located)
            except TooLarge:
                if stages == choices[-1] or not plan.pipelines:
                    raise
        raise AssertionError("the last choice returns or raises")

    def _lowered(self, capability: int, plan: Plan, *, located: bool) -> LoweredKernel:
        from .lowering import lower  # imported here, because it loads LLVM, which a cached kernel does not need

        threads, most = self.threads if capability else 1, _MOST_BYTES.get(capability, MAX_SHARED_BYTES)
        program, parameters = self.program, self.parameters
        return lower(program, self.function, parameters, threads, plan, most, fastmath=self.fastmath, located=located)

    def portable(self, capability: int, *, located: bool = False, lines: bool = False) -> PortableKernel:
        """Returns the kernel's IR in the form that the back ends take. With ``lines`` it has line tables. The other
        arguments are as in ``planned``."""
        from oxide.compiler.ir.portable import translate

        from .lowering import keep_rolled

        _, lowered = self.planned(capability, located=located or lines)
        found = translate(self.function, replace(lowered, lines=lines))
        keep_rolled(found.module, found.function)
        return found

    def explained(self, capability: int) -> Explanation:
        """Returns a description of the kernel's plan for a GPU of a compute capability, such as 90."""
        program, (plan, lowered) = self.program, self.planned(capability)
        text = lowered.modules[0]
        shared = sum(
            int(line.split(".")[-2]) for line in text.split("\n") if line.startswith("declare ptr @oxide.shared")
        )
        lines = [
            f"{self.function.__name__}: {self.threads} threads a program, {shared} bytes of shared memory",
            *_products(plan, program),
            *_pipelines(plan),
            *_producer(plan),
            *_values(plan, program),
            *map(str, program.narrowings),
        ]
        return Explanation("\n".join(lines), self.function.__code__.co_filename)


_MOST_BYTES = {0: 2**25} | {
    capability: 1024 * kib
    for capability, kib in {75: 64, 80: 163, 86: 99, 87: 163, 88: 99, 89: 99, 120: 99, 121: 99}.items()
}
"""The bytes that a program's buffers may take, on the CPU for the capability 0, and on GPUs whose blocks may have less
shared memory than Hopper's."""


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
    rows = plan.rows(node.shape)
    if node.op in REDUCTIONS:
        source = node.inputs[0].shape
        if plan.tile(source) is not None and node.detail == (len(source) - 1,):
            return "registers, one for each row, by shuffles"
    if rows is not None and node.op == "cell":
        return "registers, one for each row"
    layout = plan.tile(node.shape)
    kept = node.op in ("cell", "mma") or len(node.users) > 1
    if node.op in (*REDUCTIONS, "cumsum", "cat", "sort"):
        return "shared memory"
    if not kept:
        return "computed where it is used"
    if rows is not None:
        return "registers, one for each row"
    return str(layout) if layout is not None else "shared memory"
