"""``unroll``: replaces the front end's mark by LLVM's metadata for full unrolling.

The front end calls ``oxide.unroll`` before a loop. Control then reaches the loop's header through blocks that numba
adds to count the iterations; the header is a block of the bytecode, with a bytecode block's name. Every other branch to
the header is a back edge and gets LLVM's unrolling metadata. The call is removed."""

from __future__ import annotations

import re

# The call carries its source place if the sanitizer asked for places.
_MARK = re.compile(r"^\s*call void @\"?oxide\.unroll\"?\(\)(?:, !oxide\.place !\d+)?$")
_DECLARATION = re.compile(r"^declare void @\"?oxide\.unroll\"?\(\)$")
_LABEL = re.compile(r'^"?(?P<name>[-\w$.]+)"?:')
_TARGET = re.compile(r'label %"?(?P<name>[-\w$.]+)"?')
_OF_THE_BYTECODE = re.compile(r"B\d+$")
_FIRST_METADATA = 1_000_000


def unroll_marked_loops(text: str) -> str:
    """Returns a module of the front end with metadata that unrolls its marked loops in full."""
    if "oxide.unroll" not in text:
        return text
    lines: list[str] = []
    function: list[str] = []
    metadata: list[str] = []
    for line in text.split("\n"):
        if _DECLARATION.match(line):
            continue
        (function if function or line.startswith("define ") else lines).append(line)
        if function and line == "}":
            lines += _in_function(function, metadata)
            function = []
    return "\n".join([*lines, *metadata, ""])


def _in_function(lines: list[str], metadata: list[str]) -> list[str]:
    block_of: list[str] = []
    targets: dict[str, list[str]] = {"": []}
    block = ""
    for line in lines:
        if match := _LABEL.match(line):
            block = match["name"]
            targets[block] = []
        block_of.append(block)
        if line.lstrip().startswith("br "):
            targets[block] += [match["name"] for match in _TARGET.finditer(line)]
    for place, line in enumerate(lines):
        if not _MARK.match(line):
            continue
        header, before = _header(block_of[place], targets)
        number = _FIRST_METADATA + 2 * len(metadata)
        metadata.append(
            f'!{number} = distinct !{{!{number}, !{number + 1}}}\n!{number + 1} = !{{!"llvm.loop.unroll.full"}}'
        )
        for other, closing in enumerate(lines):
            if (
                closing.lstrip().startswith("br label ")
                and block_of[other] not in before
                and _TARGET.findall(closing) == [header]
            ):
                lines[other] = f"{closing}, !llvm.loop !{number}"
    return [line for line in lines if not _MARK.match(line)]


def _header(mark: str, targets: dict[str, list[str]]) -> tuple[str, set[str]]:
    """Returns the header of the loop after a mark, and the blocks from the mark's block up to the header."""
    before = {mark}
    pending = [mark]
    while pending:
        for target in targets[pending.pop()]:
            if _OF_THE_BYTECODE.match(target):
                return target, before
            if target not in before:
                before.add(target)
                pending.append(target)
    raise AssertionError("no loop follows a mark")
