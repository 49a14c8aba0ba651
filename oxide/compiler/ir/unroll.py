"""``unroll``: from the front end's mark to LLVM's metadata.

The front end calls ``oxide.unroll`` before a loop. From there control comes to the loop's header, past blocks that
numba adds to count the rounds; a header is a block of the bytecode's, and named so. Every other branch to it closes the
loop, and gets the metadata that LLVM unrolls by. The call goes."""

from __future__ import annotations

import re

# With its place in the source, where the sanitizer asked for that.
_MARK = re.compile(r"^\s*call void @\"?oxide\.unroll\"?\(\)(?:, !oxide\.place !\d+)?$")
_DECLARATION = re.compile(r"^declare void @\"?oxide\.unroll\"?\(\)$")
_LABEL = re.compile(r'^"?(?P<name>[-\w$.]+)"?:')
_TARGET = re.compile(r'label %"?(?P<name>[-\w$.]+)"?')
_OF_THE_BYTECODE = re.compile(r"B\d+$")
_FIRST_METADATA = 1_000_000


def unroll_marked_loops(text: str) -> str:
    """A module of the front end's with its marked loops to be unrolled in full."""
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
    """The header of the loop behind a mark, and the blocks from the mark's up to it."""
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
