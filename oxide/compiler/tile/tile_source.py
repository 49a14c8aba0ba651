"""The source of a tile kernel for certain types, tile shapes and constants. A ``Kernel`` compiles this source where it
would compile the function of a thread kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from oxide.compiler.signature.signature import Parameter
from oxide.driver.base import MAX_SHARED_BYTES
from oxide.language.types import ScalarType

from .frontend import Program, TensorParameter, parse
from .layouts import LANES, Plan, TooLarge, plan_of

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


_MOST_BYTES = {0: 2**25} | {
    capability: 1024 * kib
    for capability, kib in {75: 64, 80: 163, 86: 99, 87: 163, 88: 99, 89: 99, 120: 99, 121: 99}.items()
}
"""The bytes that a program's buffers may take, on the CPU for the capability 0, and on GPUs whose blocks may have less
shared memory than Hopper's."""
