"""Finds kernels without loops, recursion or ``print``: their threads end soon, whatever the arguments and the contents
of memory. A ``print`` may wait for the reader of standard output.

The CPU device runs such a kernel on the thread that waits for it, where Ctrl-C cannot end the kernel. The analysis sees
the kernel's IR without the loop around its threads. A loop with a constant number of iterations counts as a loop,
unless the front end has unrolled it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from oxide.compiler.ir.module import Module

_MAY_BLOCK = "oxide.print."  # standard output may be a pipe that is never read


def is_loop_free(module: Module) -> bool:
    """Returns whether no function of a module loops, recurses or prints."""
    if any(symbol.startswith(_MAY_BLOCK) for symbol in module.functions):
        return False
    if any(_has_cycle({block: block.successors for block in each.blocks.values()}) for each in module.defined):
        return False
    return not _has_cycle(
        {
            function.symbol: {operand.symbol for each in function.instructions for operand in each.operands}
            for function in module.defined
        }
    )


def _has_cycle(graph: Mapping[Any, Iterable[Any]]) -> bool:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return True
    return False
