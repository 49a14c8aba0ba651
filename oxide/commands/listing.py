"""Shows a kernel's source with the code that each line is compiled to.

The places in the source come from the line tables of PTX (``.file`` and ``.loc``), of assembly, and of nvdisasm's
listing. A kernel has line tables with ``@kernel(lineinfo=True)`` or ``OXIDE_LINEINFO=1``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from oxide.compiler.source.text import line_in
from oxide.compiler.source.text import text_of as source_of

if TYPE_CHECKING:
    from oxide.compiler.specialization import Specialization

Place = tuple[str, int]
"""A file and a line."""

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+(?:"((?:[^"\\]|\\.)*)"\s+)?"((?:[^"\\]|\\.)*)"')
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
_SASS_PLACE = re.compile(r'^\s*//## File "([^"]+)", line (\d+)')
_NO_CODE = re.compile(r"^\s*(?://|#|\.|$)|^\s*[$.\w]+:|^\s*[{}()]\s*$")
"""Matches a line of code that is no instruction: a directive, a comment, a label or a brace."""


def listing(special: Specialization, form: str, cc: tuple[int, int]) -> str:
    """Returns the source of a kernel, and of the functions inlined into it. Below each line stand the lines of ``form``
    that it becomes. Raises ``LookupError`` if the code has no line tables or a tool is missing."""
    notes = notes_of(special, form, cc)
    shown: list[str] = []
    for file, lines in source_lines(special, notes).items():
        shown.append(file)
        for number, text in lines:
            shown.append(f"{number:5}  {text}".rstrip())
            shown += [f"{'':7}  | {note}" for note in notes.get((file, number), ())]
    return "\n".join(shown)


def text_of(special: Specialization, form: str, cc: tuple[int, int]) -> str:
    """Returns one form of a kernel, such as ``"ptx"``, as text. Raises ``LookupError`` if a tool for it is missing."""
    if form == "ptx":
        return special.ptx(cc)
    if form == "sass":
        from oxide.commands.sass import disassembly

        return disassembly(special.ptx(cc))
    if form == "llvm":
        return special.llvm_ir()
    if form == "asm":
        return special.native_asm()
    kernel = special.description
    if kernel.tile is not None:
        from oxide.compiler.tile.explanation import explained

        return explained(kernel.tile, 10 * cc[0] + cc[1])
    lines = [f"{kernel.name}, {kernel.function.__code__.co_filename}"]
    if kernel.unchecked:
        lines.append("  unchecked: no access is checked")
    return "\n".join([*lines, *(f"  {check}" for check in special.checks())])


def notes_of(special: Specialization, form: str, cc: tuple[int, int]) -> dict[Place, list[str]]:
    """Maps each place in the source to the lines of ``form`` that come from it. Raises ``LookupError`` if the form has
    no places, or the code has no line tables."""
    if form == "checks" and special.description.tile is None:
        found: dict[Place, list[str]] = {}
        for check in special.checks():
            found.setdefault((check.file, check.line), []).append(re.sub(r"^line \d+: ", "", str(check)))
        return found
    if form == "checks":
        return _plan(special, text_of(special, form, cc))
    if form not in ("ptx", "sass", "asm"):
        raise LookupError(f"--source goes with --checks, --ptx, --sass and --asm, not with --{form}")
    notes = by_place(text_of(special, form, cc))
    if not notes:
        raise LookupError(
            f"--source --{form}: the code of kernel {special.description.name} has no line tables; compile it with "
            "@kernel(lineinfo=True), or set OXIDE_LINEINFO=1"
        )
    return notes


def by_place(code: str) -> dict[Place, list[str]]:
    """Maps each place in the source to the instructions of ``code`` that come from it. ``code`` is PTX, assembly or
    nvdisasm's listing. An instruction of an inlined function belongs to the innermost place."""
    # Collected first: PTX has its .file directives at its end.
    files = {file[1]: _path(file) for file in map(_FILE.match, code.splitlines()) if file}
    found: dict[Place, list[str]] = {}
    at: Place | None = None
    inner = False
    for line in code.splitlines():
        if place := _SASS_PLACE.match(line):
            if not inner:  # the places of the calls that it was inlined through follow
                at = place[1], int(place[2])
            inner = True
            continue
        inner = False
        if loc := _LOC.match(line):
            at = (files.get(loc[1], ""), int(loc[2])) if loc[2] != "0" else None
        elif at is not None and not _NO_CODE.match(line):
            found.setdefault(at, []).append(" ".join(line.split()))
    return {place: lines for place, lines in found.items() if place[0]}


def _path(file: re.Match[str]) -> str:
    return f"{file[2]}/{file[3]}" if file[2] and not file[3].startswith("/") else file[3]


def source_lines(special: Specialization, notes: Mapping[Place, object]) -> dict[str, list[tuple[int, str]]]:
    """Returns numbered lines of source, by file: all lines of the kernel's function, and every other line that has
    notes."""
    function = special.description.function
    own = function.__code__.co_filename
    found: dict[str, list[tuple[int, str]]] = {own: list(_function_lines(function))}
    numbers = {number for number, _ in found[own]}
    for file, number in sorted(notes):
        if file != own or number not in numbers:
            found.setdefault(file, []).append((number, line_in(file, number)))
    found[own].sort()
    return found


def _function_lines(function: Callable[..., Any]) -> Iterator[tuple[int, str]]:
    lines = source_of(function).split("\n")[:-1]
    return enumerate(lines, function.__code__.co_firstlineno)


def _plan(special: Specialization, plan: str) -> dict[Place, list[str]]:
    """Maps places in the source to the lines of a tile kernel's plan that begin with ``line N:``, without this
    beginning."""
    file = special.description.function.__code__.co_filename
    found: dict[Place, list[str]] = {}
    for line in plan.splitlines():
        if placed := re.match(r"line (\d+): (.*)", line):
            found.setdefault((file, int(placed[1])), []).append(placed[2])
    return found
