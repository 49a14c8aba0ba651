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
from .layouts import Plan, TooLarge, plan_of
from .producers import reason_against

if TYPE_CHECKING:
    from oxide.compiler.ir.portable import LoweredKernel, PortableKernel

__all__ = ["TileSource"]

_WARP = 32
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

    def plan(self, capability: int) -> Plan:
        """Returns the layouts of the kernel's tiles. ``capability`` is the compute capability of a GPU, such as 90, or
        0 for the CPU. The plan is empty below 80."""
        return self._planned(capability, located=False)[0] if capability >= 80 else Plan()

    def _planned(self, capability: int, *, located: bool) -> tuple[Plan, LoweredKernel]:
        """Returns the layouts and the IR, with the requested number of stages, or with the most that fit if none is
        requested."""
        if capability < 80:
            return (plan := Plan()), self._lowered(capability, plan, located=located)
        choices = (self.stages,) if self.stages is not None else range(MOST_STAGES, 0, -1)
        for stages in choices:
            plan = plan_of(self.program, self.threads // _WARP, stages, hopper=capability == 90)
            if any(pipeline.engine for pipeline in plan.pipelines.values()):
                plan.no_producer = reason_against(self.program, plan, self.threads // _WARP)
                plan.producer = not plan.no_producer
            try:
                return plan, self._lowered(capability, plan, located=located)
            except TooLarge:
                if stages == choices[-1] or not plan.pipelines:
                    raise
        raise AssertionError("the last choice returns or raises")

    def lowered(self, capability: int, *, located: bool = False) -> LoweredKernel:
        """Returns the kernel's IR. ``capability`` is the compute capability of a GPU, or 0 for the CPU. With
        ``located``, instructions carry their lines. Raises ``CompileError`` for code that a tile kernel cannot contain,
        and for tiles that do not fit a block's memory."""
        return self._planned(capability, located=located)[1]

    def _lowered(self, capability: int, plan: Plan, *, located: bool) -> LoweredKernel:
        from oxide.compiler.ir import (
            parameters as words,
        )  # imported here, because it loads LLVM, which a cached kernel does not need

        from .lowering import lower

        scalars = []
        for parameter in self.parameters:
            if parameter.kind == "scalar":
                (kind,) = words.word_types((parameter,))
                scalars.append((parameter.name, parameter.scalar, "i1" if parameter.scalar.kind == "b" else kind))
        return lower(
            self.program,
            self.function.__name__,
            self.function.__code__.co_filename,
            self.function.__code__.co_firstlineno,
            scalars,
            [parameter.name for parameter in self.parameters],
            self.threads if capability else 1,
            plan,
            _most_shared(capability),
            fastmath=self.fastmath,
            located=located,
        )

    def portable(self, capability: int, *, located: bool = False, lines: bool = False) -> PortableKernel:
        """Returns the kernel's IR in the form that the back ends take. With ``lines`` it has line tables. The other
        arguments are as in ``lowered``."""
        from oxide.compiler.ir.portable import translate

        from .lowering import keep_rolled

        lowered = self.lowered(capability, located=located or lines)
        found = translate(self.function, replace(lowered, lines=lines))
        keep_rolled(found.module, found.function)
        return found


_MOST_ON_A_CPU = 2**25
_SHARED = {75: 64, 80: 163, 86: 99, 87: 163, 88: 99, 89: 99, 120: 99, 121: 99}
"""The KiB of shared memory that a block may have, by compute capability, for GPUs whose blocks may have less than
Hopper's."""


def _most_shared(capability: int) -> int:
    """Returns the bytes that a program's buffers may take on a GPU of a compute capability, or on the CPU for the
    capability 0."""
    if not capability:
        return _MOST_ON_A_CPU
    return 1024 * _SHARED[capability] if capability in _SHARED else MAX_SHARED_BYTES
