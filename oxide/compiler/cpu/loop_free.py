"""Finds kernels whose threads end soon, whatever arguments and memory hold: no loop, no recursion, no waiting.

The CPU device runs such a kernel on the thread that waits for it, where Ctrl-C cannot end a kernel. The analysis sees
the kernel's IR without the loop around its threads. A loop with a constant number of iterations counts as a loop,
unless the front end has unrolled it.
"""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter

from oxide.compiler.ir.ssa import LABEL, WORD

_DEFINITION = re.compile(rf"^define [^\n]*?@(?P<name>{WORD})\([^\n]*\{{\n(?P<body>.*?)^\}}", re.MULTILINE | re.DOTALL)
_TARGET = re.compile(rf"\blabel %({WORD})")
_SYMBOL = re.compile(rf"@({WORD})")
_MAY_BLOCK = "@oxide.print."  # standard output may be a pipe that is never read


def is_loop_free(text: str) -> bool:
    """Returns whether no function of a printed module loops, recurses or writes to standard output."""
    if _MAY_BLOCK in text:
        return False
    calls: dict[str, list[str]] = {}
    for function in _DEFINITION.finditer(text):
        block = ""  # the entry block may have no label
        successors: dict[str, list[str]] = {block: []}
        for line in function["body"].split("\n"):
            if label := LABEL.match(line):
                block = label["name"]
                successors[block] = []
            else:
                successors[block] += _TARGET.findall(line)
        if _has_cycle(successors):
            return False
        calls[function["name"]] = _SYMBOL.findall(function["body"])
    return not _has_cycle(calls)


def _has_cycle(graph: dict[str, list[str]]) -> bool:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return True
    return False
