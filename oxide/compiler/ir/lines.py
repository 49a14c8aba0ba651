"""Line tables, for profilers and debuggers: LLVM's debug information, reduced to files, functions and lines.

The front ends attach a place to each instruction: file, line, function and the function's first line. ``attach_lines``
turns the places into LLVM's metadata, ``!DILocation`` and ``!DISubprogram``. LLVM's passes maintain this metadata. When
they inline a call, they add the call's place to the inlined instructions.

Each back end adds an entry function, into which the kernel's function is inlined. The entry takes over the
``DISubprogram`` of the kernel's function. The inlined instructions then count as the kernel's own, and not as those of
an inlined function.
"""

from __future__ import annotations

from collections.abc import Iterator

from .module import Function, Module
from .parser import debug_node
from .recognise import PLACE, Place, place_of
from .values import Call, Phi

_UNITS = "!llvm.dbg.cu"
_FLAGS = (
    # The behaviour 2: LLVM warns if the modules that it links have different values.
    '!{i32 2, !"Debug Info Version", i32 3}',
    '!{i32 2, !"Dwarf Version", i32 4}',
)
_EMITTED, _NATIVE = "emissionKind: DebugDirectivesOnly", "emissionKind: LineTablesOnly"


def has_lines(module: Module) -> bool:
    """Returns whether a module has line tables."""
    return any(line.startswith(_UNITS) for line in module.named_metadata)


def attach_lines(module: Module) -> None:
    """Replaces the instructions' places by LLVM's metadata. A function without places gets no metadata. Where it is
    inlined, its instructions get the place of the call."""
    tables = _Tables(module)
    for function in module.defined:
        places = [place_of(module, each) for each in function.instructions]
        first = next((place for place in places if place is not None), None)
        if first is not None:
            tables.describe(function, first)
    for instruction in module.instructions:
        instruction.metadata.pop(PLACE, None)
    tables.finish()


class _Tables:
    """Adds the metadata of line tables to one module, each node once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.known: dict[str, str] = {}
        self.unit = ""

    def node(self, text: str) -> str:
        """Returns the reference to a node, given as its text."""
        if text not in self.known:
            self.known[text] = self.module.add_metadata(text)
        return self.known[text]

    def file(self, path: str) -> str:
        # The file name is the whole path, so that the line table needs no directory.
        return self.node(f'!DIFile(filename: "{_escaped(path)}", directory: "")')

    def describe(self, function: Function, first: Place) -> None:
        """Attaches a subprogram to a function, and a location to each of its instructions."""
        file = self.file(first.file)
        if not self.unit:
            self.unit = self.module.add_metadata(
                f'distinct !DICompileUnit(language: DW_LANG_Python, file: {file}, producer: "oxide", '
                f"isOptimized: true, runtimeVersion: 0, {_EMITTED})"
            )
        kind = self.node(f"!DISubroutineType(types: {self.node('!{}')})")
        subprogram = self.module.add_metadata(
            f'distinct !DISubprogram(name: "{_escaped(first.function)}", scope: {file}, file: {file}, '
            f"line: {first.first_line}, type: {kind}, scopeLine: {first.first_line}, "
            f"spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: {self.unit})"
        )
        function.metadata["!dbg"] = subprogram
        start = self.node(f"!DILocation(line: {first.first_line}, scope: {subprogram})")
        for block in function.blocks.values():
            previous = ""
            for instruction in block.instructions:
                place = place_of(self.module, instruction)
                if place is not None:
                    scope = subprogram
                    if place.file != first.file:  # numba inlines functions before it lowers
                        scope = self.node(
                            f"!DILexicalBlockFile(scope: {subprogram}, file: {self.file(place.file)}, discriminator: 0)"
                        )
                    # A tile kernel has no line for the instructions that precede its first statement.
                    previous = self.node(f"!DILocation(line: {place.line or place.first_line}, scope: {scope})")
                # An instruction without a place comes from a pass, which put it next to the instruction that it
                # replaced: it gets the location of the instruction before it. LLVM requires a location of each call of
                # a function that has a subprogram.
                location = previous or (start if isinstance(instruction, Call) else "")
                if location and not isinstance(instruction, Phi):
                    instruction.metadata["!dbg"] = location

    def finish(self) -> None:
        if self.unit:
            self.module.named_metadata.append(f"{_UNITS} = !{{{self.unit}}}")
            flags = ", ".join(map(self.node, _FLAGS))
            self.module.named_metadata.append(f"!llvm.module.flags = !{{{flags}}}")


def _escaped(text: str) -> str:
    data = text.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in (34, 92) else f"\\{byte:02x}" for byte in data)


# A back end's entry


def move_lines(module: Module, kernel: str, entry: str) -> None:
    """Moves the subprogram of the function ``kernel``, if it has one, to the function ``entry``."""
    subprogram = module.functions[kernel].metadata.pop("!dbg", None)
    if subprogram is not None:
        found = module.functions[entry]
        assert not found.is_declaration, entry
        assert "!dbg" not in found.metadata, entry
        found.metadata["!dbg"] = subprogram


def for_object_file(text: str) -> str:
    """Returns a printed module whose line tables are emitted as DWARF sections, and not as directives of PTX."""
    return text.replace(_EMITTED, _NATIVE) if _EMITTED in text else text


# Places of optimised code

_LAST_COLUMN = 0xFFFF


def number_calls(module: Module) -> list[list[tuple[str, str, int]]]:
    """Numbers from 1 the chains of calls through which instructions were inlined: the column of an inlined
    instruction's location becomes the number of its chain. Returns the chains. A chain lists its calls, the innermost
    first. A call is the name of the called function, and the file and the line of the call.

    LLVM's PTX printer prints no calls, but it prints columns. Locations past the last possible column get column 0.
    """
    nodes = {number: debug_node(text) for number, text in module.metadata.items()}

    def node(reference: str) -> tuple[str, dict[str, str]]:
        return nodes[int(reference[1:])]

    def function_of(scope: str) -> str:
        kind, found = node(scope)
        return found["name"][1:-1] if kind == "DISubprogram" else function_of(found["scope"])

    def file_of(scope: str) -> str:
        _, file = node(node(scope)[1]["file"])
        folder, name = file.get("directory", '""')[1:-1], file["filename"][1:-1]
        return f"{folder.removesuffix('/')}/{name}" if folder else name

    def calls(location: dict[str, str]) -> Iterator[tuple[str, str, int]]:
        while "inlinedAt" in location:
            _, outer = node(location["inlinedAt"])
            yield function_of(location["scope"]), file_of(outer["scope"]), int(outer.get("line", 0))
            location = outer

    columns: dict[tuple[tuple[str, str, int], ...], int] = {}
    for number, (kind, location) in nodes.items():
        found = tuple(calls(location)) if kind == "DILocation" else ()
        if found:
            if found not in columns and len(columns) < _LAST_COLUMN:
                columns[found] = len(columns) + 1
            fields = {"line": location.get("line", "0"), **location, "column": str(columns.get(found, 0))}
            listed = ", ".join(f"{name}: {value}" for name, value in fields.items())
            distinct = "distinct " * module.metadata[number].startswith("distinct ")
            module.metadata[number] = f"{distinct}!DILocation({listed})"
    return [list(found) for found in columns]
