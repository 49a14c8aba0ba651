"""``unroll``: replaces the front end's marks of loops by LLVM's metadata for full unrolling.

The front end calls ``oxide.unroll`` before a loop. Control then reaches the loop's header through blocks that numba
adds to count the iterations. The header is the first block on this path whose name is that of a bytecode block. A
branch to the header from a block that is not on the path is a back edge and gets LLVM's unrolling metadata. The call is
removed.
"""

from __future__ import annotations

from .module import Function, Module
from .values import Block


def unroll_marked_loops(module: Module, function: Function) -> None:
    """Adds metadata that unrolls a function's marked loops in full."""
    for mark in [call for call in function.calls if call.called == "oxide.unroll"]:
        header, before = _header(mark.block)
        mark.block.instructions.remove(mark)
        loop = module.add_metadata(lambda place: f"distinct !{{!{place}, !{place + 1}}}")
        module.add_metadata('!{!"llvm.loop.unroll.full"}')
        for block in function.blocks.values():
            if block not in before and block.successors == [header]:
                block.terminator.metadata["!llvm.loop"] = loop


def _header(mark: Block) -> tuple[Block, set[Block]]:
    """Returns the header of the loop after a mark, and the blocks from the mark's block up to the header."""
    before = {mark}
    pending = [mark]
    while pending:
        for target in pending.pop().successors:
            if target.name[1] == "B" and target.name[2:].isdigit():
                return target, before
            if target not in before:
                before.add(target)
                pending.append(target)
    raise AssertionError("no loop follows a mark")
