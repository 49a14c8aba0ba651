"""Lines of PTX: the directives ``.file`` and ``.loc`` for profilers, with the calls through which an instruction was
inlined.

LLVM's printer writes ``.loc`` without the calls. But it writes columns. So the column of each inlined instruction's
location becomes a number, which this module replaces by the calls once the text is printed:

    .loc 1 7 0
    .loc 1 2 0, function_name $L__oxide_name0, inlined_at 1 7 0

ptxas expects the location of a call in an earlier directive, so each call gets a directive of its own, even if no
instruction follows it.
"""

from __future__ import annotations

import re

Calls = list[list[tuple[str, str, int]]]

_LOC = re.compile(r"^\t\.loc\t(\d+) (\d+) (\d+)[^\n]*\n(\n)?", re.MULTILINE)
_FILE = re.compile(r'^\t\.file\t(\d+) "((?:[^"\\]|\\.)*)"\n', re.MULTILINE)
_LEFT_OUT = re.compile(
    r"^(?:\$L__(?:tmp|func_begin|func_end)\d+:\n|\t\.section\t\.debug_macinfo\t\{\t\}\n)", re.MULTILINE
)
"""Matches text to leave out: labels that only LLVM's own sections would refer to, and an empty section."""


def with_calls(assembly: str, calls: Calls) -> str:
    """Returns PTX in which the calls replace the numbered columns. Apart from the ``.loc`` and ``.file`` directives and
    the section of names, the result is the PTX of the same kernel without line tables."""
    files = {path: int(number) for number, path in _FILE.findall(assembly)}
    added: list[str] = []
    names: dict[str, str] = {}

    def file(path: str) -> int:
        if path not in files:
            files[path] = max(files.values(), default=0) + 1
            added.append(f'\t.file\t{files[path]} "{path}"\n')
        return files[path]

    def located(match: re.Match[str]) -> str:
        number, line, column = match[1], match[2], int(match[3])
        place = f"\t.loc\t{number} {line} 0"
        if not column:
            return f"{place}\n"
        directives = []
        for function, path, called_at in calls[column - 1]:
            label = names.setdefault(function, f"$L__oxide_name{len(names)}")
            call = f"{file(path)} {called_at} 0"
            directives.append(f"{place}, function_name {label}, inlined_at {call}\n")
            place = f"\t.loc\t{call}"
        directives.append(f"{place}\n")
        return "".join(reversed(directives))

    assembly = _LOC.sub(located, _LEFT_OUT.sub("", assembly))
    assembly = f"{assembly.rstrip()}\n{''.join(added)}"
    if names:
        listed = [f"{label}:\n.b8 {', '.join(map(str, name.encode() + bytes(1)))}\n" for name, label in names.items()]
        assembly += f"\t.section\t.debug_str\n\t{{\n{''.join(listed)}\t}}\n"
    return assembly
