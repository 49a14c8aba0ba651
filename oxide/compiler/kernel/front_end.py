"""Types and lowers a thread kernel: the steps from its syntax tree to the facts that the cache keeps.

Importing this module imports numba.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from oxide.compiler.bounds.contiguous import version_contiguous_loops
from oxide.compiler.bounds.exits import threads_may_wait
from oxide.compiler.bounds.hoist import Placement, hoist_checks, leave_checks_out
from oxide.compiler.cache.entries import Facts
from oxide.compiler.check.check import Uses, check
from oxide.compiler.check.rewritten import debugged
from oxide.compiler.declaration.description import KernelDescription, LaunchNeeds
from oxide.compiler.elementwise import Elementwise
from oxide.compiler.elementwise.proof import elementwise
from oxide.compiler.frontend.frontend import lower
from oxide.compiler.ir.dependencies import check_dependencies
from oxide.compiler.ir.portable import LoweredKernel, PortableKernel, tiled_parameters, translate
from oxide.compiler.signature.signature import Closed, NumbaParameter, with_captured
from oxide.compiler.signature.untyped_arguments import Captured
from oxide.compiler.source.faults import Conversion
from oxide.errors import CompileError

if TYPE_CHECKING:
    from oxide.compiler.interpreter.run import TypedKernel


def facts_of(kernel: KernelDescription, parameters: tuple[Closed, ...]) -> Facts:
    """Types and lowers a kernel. Raises ``CompileError``."""
    uses = _checked(kernel, parameters)
    lowered, portable = _lowered(kernel, parameters, uses)
    captured = tuple(lowered.captured[number] for number in portable.captured)
    parameters = with_captured(kernel.name, parameters, captured)
    placements: tuple[Placement, ...] = ()
    if kernel.unchecked:
        portable = leave_checks_out(portable)
    else:
        portable, placements = hoist_checks(portable, parameters, kernel.contracts)
    portable = version_contiguous_loops(portable)
    return _facts(kernel, uses, portable, placements, lowered.conversions, parameters, captured)


def typed_facts_of(kernel: KernelDescription, parameters: tuple[Closed, ...]) -> tuple[TypedKernel, Facts] | None:
    """Types a kernel for the interpreter. Returns None if the kernel has numba-cuda's semantics. Raises
    ``CompileError``."""
    from oxide.compiler.interpreter.run import TypedKernel  # here, as few programs interpret

    with debugged():
        uses = _checked(kernel, parameters)
        if uses.numba_cuda:
            return None
        try:
            lowered, portable = _lowered(kernel, parameters, uses, keeps_types=True)
        except CompileError:
            facts_of(kernel, parameters)  # raises the error with the file's line, not a node's number
            raise
    assert lowered.typed is not None, "the front end was asked for the types"
    typed = TypedKernel(
        name=kernel.name,
        function=lowered.typed,
        parameters=parameters,
        fma=kernel.fma and not kernel.fastmath,
        goes_on=threads_may_wait(portable, portable.module.defined),
        suspends=portable.suspends,
        cooperative=portable.cooperative,
    )
    return typed, _facts(kernel, uses, portable, (), lowered.conversions, parameters)


def located_ir(kernel: KernelDescription, parameters: tuple[Closed, ...]) -> tuple[PortableKernel, frozenset[str]]:
    """Lowers a kernel for the sanitizer, with a source location and a check at every access. Returns its IR, and the
    outputs that a launch has to write in full. Raises ``CompileError``."""
    uses = _checked(kernel, parameters)
    _, portable = _lowered(kernel, parameters, uses, located=True)
    return portable, frozenset() if kernel.partial else frozenset(uses.scattered)


def _checked(kernel: KernelDescription, parameters: tuple[Closed, ...]) -> Uses:
    """Checks a kernel's source and returns the features that it uses. Raises ``CompileError``."""
    uses = check(kernel.function, kernel.name, parameters, numba_style=kernel.numba_style)
    if uses.unwritten is not None and not kernel.partial:
        raise uses.unwritten
    return uses


def _lowered(
    kernel: KernelDescription,
    parameters: tuple[Closed, ...],
    uses: Uses,
    *,
    located: bool = False,
    keeps_types: bool = False,
) -> tuple[LoweredKernel, PortableKernel]:
    """Types and lowers a checked kernel. Returns the front end's result, and its translation to portable IR.
    ``located`` and ``keeps_types`` are options of ``lower``. Raises ``CompileError``."""
    lowered = lower(
        kernel.name,
        kernel.function,
        parameters,
        kernel.fastmath,
        numba_style=kernel.numba_style,
        fma=kernel.fma,
        located=located or kernel.lineinfo,
        constants=uses.constants,
        keeps_types=keeps_types,
    )
    # The sanitizer compiles its checks without line tables: its reports have lines of their own.
    lowered = replace(lowered, lines=kernel.lineinfo and not located and not keeps_types)
    portable = translate(kernel.function, lowered, kernel.cluster)
    check_dependencies(portable)
    return lowered, portable


def _facts(
    kernel: KernelDescription,
    uses: Uses,
    portable: PortableKernel,
    placements: tuple[Placement, ...],
    conversions: tuple[Conversion, ...],
    parameters: tuple[Closed, ...],
    captured: tuple[Captured, ...] = (),
) -> Facts:
    _, width = uses.width or ("", None)
    needs = LaunchNeeds(
        index_1d=uses.index_1d,
        index_2d=uses.index_2d,
        index_3d=uses.index_3d,
        own_elements=(uses.index_1d or uses.index_2d or uses.index_3d) and not uses.other_elements,
        unchecked=kernel.unchecked or uses.numba_cuda or uses.unchecked,
        width=width if isinstance(width, int | str) else None,
        dynamic_shared=portable.shared.dynamic,
        tiled=() if kernel.interpreted else tiled_parameters(portable, parameters),
    )
    # Computed before the lambda is made: a lambda that refers to the kernel would keep it alive. The cache holds the
    # facts, and drops them only when the kernel's function is gone.
    accesses = _elementwise(kernel, needs, portable, parameters)
    return Facts(
        needs=needs,
        sites=portable.sites,
        conversions=conversions,
        elementwise=lambda: accesses,
        portable=lambda: portable,
        placements=lambda: placements,
        captured=captured,
    )


def _elementwise(
    kernel: KernelDescription, needs: LaunchNeeds, portable: PortableKernel, parameters: Sequence[Closed]
) -> Elementwise | str:
    """Returns the accesses of an elementwise kernel, or the reason why the kernel cannot be fused with others."""
    reasons = {
        "it has numba-cuda's semantics": any(isinstance(each, NumbaParameter) for each in parameters),
        "it has clusters of blocks": kernel.cluster is not None,
        "it uses shared memory": needs.dynamic_shared,
        "its threads have no index: it uses neither thread.index_1d() nor thread.index_2d()": not (
            needs.index_1d or needs.index_2d
        ),
        "it uses thread.index_3d()": needs.index_3d,
        "it uses both thread.index_1d() and thread.index_2d()": needs.index_1d and needs.index_2d,
        "its threads have several elements each": kernel.items_per_thread != (1, 1, 1),
        "it limits its registers": kernel.max_registers is not None,
        "it has line tables": kernel.lineinfo,
        "it is interpreted": kernel.interpreted,
    }
    return next((reason for reason, holds in reasons.items() if holds), "") or elementwise(
        portable, parameters, 2 if needs.index_2d else 1
    )
