"""The code of a kernel as text: each form by itself, or below each line of the source what the line is compiled to.

The places in the source come from the line tables of PTX (``.file`` and ``.loc``), of assembly, and of nvdisasm's
listing. A kernel has line tables with ``@kernel(lineinfo=True)`` or ``OXIDE_LINEINFO=1``. For SASS, a GPU's own
instructions, ptxas assembles the PTX, and a tool of the CUDA Toolkit disassembles the result. That needs no GPU.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from oxide.commands.machine import find_tool
from oxide.compiler.source.source import line_in
from oxide.compiler.source.source import text_of as source_of

if TYPE_CHECKING:
    from oxide.compiler.kernel.specialization import Specialization

Place = tuple[str, int]
"""A file and a line."""

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+(?:"((?:[^"\\]|\\.)*)"\s+)?"((?:[^"\\]|\\.)*)"')
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
_SASS_PLACE = re.compile(r'^\s*//## File "([^"]+)", line (\d+)')
_NO_CODE = re.compile(r"^\s*(?://|#|\.|$)|^\s*[$.\w]+:|^\s*[{}()]\s*$")
"""Matches a line of code that is no instruction: a directive, a comment, a label or a brace."""

_WHERE = "neither on PATH nor in CUDA_HOME; the CUDA Toolkit has it, and so does the package triton"


def listing(special: Specialization, form: str, cc: tuple[int, int]) -> str:
    """Returns the source of a kernel, and of the functions inlined into it. Below each line stand the lines of ``form``
    that it becomes. Raises ``LookupError`` if the code has no line tables or a tool is missing."""
    notes = _notes(special, form, cc)
    function = special.description.function
    own = function.__code__.co_filename
    source = source_of(function).split("\n")[:-1]
    lines = {(own, number): text for number, text in enumerate(source, function.__code__.co_firstlineno)}
    for place in notes:
        lines.setdefault(place, line_in(*place))
    shown: list[str] = []
    for file in dict.fromkeys([own, *[file for file, _ in sorted(notes)]]):
        shown.append(file)
        for (_, number), text in sorted([each for each in lines.items() if each[0][0] == file]):
            shown.append(f"{number:5}  {text}".rstrip())
            shown += [f"{'':7}  | {note}" for note in notes.get((file, number), ())]
    return "\n".join(shown)


def text_of(special: Specialization, form: str, cc: tuple[int, int]) -> str:
    """Returns one form of a kernel, such as ``"ptx"``, as text. Raises ``LookupError`` if a tool for it is missing."""
    if form == "ptx":
        return special.ptx(cc)
    if form == "sass":
        return disassembly(special.ptx(cc))
    if form == "llvm":
        return special.llvm_ir()
    if form == "asm":
        return special.native_asm()
    kernel = special.description
    if kernel.tile is not None:
        return kernel.tile.explained(10 * cc[0] + cc[1])
    lines = [f"{kernel.name}, {kernel.function.__code__.co_filename}"]
    if kernel.unchecked:
        lines.append("  unchecked: no access is checked")
    return "\n".join([*lines, *(f"  {check}" for check in special.checks())])


def _notes(special: Specialization, form: str, cc: tuple[int, int]) -> dict[Place, list[str]]:
    """Maps each place in the source to the lines of ``form`` that come from it. Raises ``LookupError`` without any."""
    if form not in ("checks", "ptx", "sass", "asm"):
        raise LookupError(f"--source goes with --checks, --ptx, --sass and --asm, not with --{form}")
    if form != "checks":
        notes = by_place(text_of(special, form, cc))
        if not notes:
            raise LookupError(
                f"--source --{form}: the code of kernel {special.description.name} has no line tables; compile it with "
                "@kernel(lineinfo=True), or set OXIDE_LINEINFO=1"
            )
        return notes
    if special.description.tile is None:
        placed = [(check.file, check.line, re.sub(r"^line \d+: ", "", str(check))) for check in special.checks()]
    else:
        file = special.description.function.__code__.co_filename
        plan = re.findall(r"^line (\d+): (.*)", text_of(special, form, cc), re.MULTILINE)
        placed = [(file, int(line), text) for line, text in plan]
    found: dict[Place, list[str]] = {}
    for file, line, text in placed:
        found.setdefault((file, line), []).append(text)
    return found


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


def disassembly(ptx: str) -> str:
    """Assembles PTX for the architecture that it names, and returns the disassembled instructions. If the PTX has line
    tables, comments name the line of the source before its instructions. Raises ``LookupError`` if a tool is missing or
    fails."""
    ptxas, nvdisasm, cuobjdump = map(find_tool, ("ptxas", "nvdisasm", "cuobjdump"))
    if ptxas is None:
        raise LookupError(f"--sass needs ptxas, the assembler, which is {_WHERE}")
    if nvdisasm is None and cuobjdump is None:
        raise LookupError(f"--sass needs nvdisasm or cuobjdump, a disassembler, which is {_WHERE}")
    target = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE)
    assert target is not None, "PTX names its target"
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx, encoding="utf-8")
        _run([ptxas, f"-arch={target[1]}", "--generate-line-info", "-o", str(binary), str(source)])
        if nvdisasm is not None:
            return _run([nvdisasm, "--print-line-info-inline", "--print-code", str(binary)])
        return _run([str(cuobjdump), "-sass", str(binary)])


def _run(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        said = (ran.stderr or ran.stdout).strip() or f"exit status {ran.returncode}"
        raise LookupError(f"{command[0]} failed: {said}")
    return ran.stdout
