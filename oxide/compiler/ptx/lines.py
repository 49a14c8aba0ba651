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

from itertools import pairwise

Calls = list[list[tuple[str, str, int]]]

_FILE, _LOC = "\t.file\t", "\t.loc\t"
_LEFT_OUT = ("$L__tmp", "$L__func_begin", "$L__func_end", "\t.section\t.debug_macinfo\t")
"""The beginnings of lines to leave out: labels that only LLVM's own sections would refer to, and an empty section."""


def with_calls(assembly: str, calls: Calls) -> str:
    """Returns PTX in which the calls replace the numbered columns. Apart from the ``.loc`` and ``.file`` directives and
    the section of names, the result is the PTX of the same kernel without line tables."""
    read = [line for line in assembly.split("\n") if not line.startswith(_LEFT_OUT)]
    numbered = [line.removeprefix(_FILE).partition(" ") for line in read if line.startswith(_FILE)]
    files = {path[1:-1]: int(number) for number, _, path in numbered}
    added: list[str] = []
    names: dict[str, str] = {}

    def file(path: str) -> int:
        if path not in files:
            files[path] = max(files.values(), default=0) + 1
            added.append(f'{_FILE}{files[path]} "{path}"')
        return files[path]

    def located(number: str, line: str, column: str) -> list[str]:
        place = f"{_LOC}{number} {line} 0"
        if column == "0":
            return [place]
        directives = []
        for function, path, called_at in calls[int(column) - 1]:
            label = names.setdefault(function, f"$L__oxide_name{len(names)}")
            call = f"{file(path)} {called_at} 0"
            directives.append(f"{place}, function_name {label}, inlined_at {call}")
            place = f"{_LOC}{call}"
        return [place, *reversed(directives)]

    printed: list[str] = []
    for before, line in pairwise(["", *read]):
        if line.startswith(_LOC):
            printed += located(*line.removeprefix(_LOC).split()[:3])
        elif line or not before.startswith(_LOC):  # LLVM separates some directives from the code by an empty line
            printed.append(line)
    assembly = "\n".join(["\n".join(printed).rstrip(), *added, ""])
    if names:
        listed = [f"{label}:\n.b8 {', '.join(map(str, name.encode() + bytes(1)))}\n" for name, label in names.items()]
        assembly += f"\t.section\t.debug_str\n\t{{\n{''.join(listed)}\t}}\n"
    return assembly
