"""Splits a thread's vector loads and stores into scalars, since LLVM's loop vectoriser accepts no vectors.

A thread that handles four elements loads them as ``<4 x float>``. If the loop over threads is to be vectorised, those
loads are split, and LLVM combines the elements that are contiguous.
"""

from __future__ import annotations

import itertools
import re

from oxide.compiler.ir.ssa import NAME

_LOAD = re.compile(
    rf"^  (?P<name>{NAME}) = load <(?P<count>\d+) x (?P<type>\w+)>, ptr (?P<at>{NAME}), align \d+(?P<more>.*)$"
)
_STORE = re.compile(
    rf"^  store <(?P<count>\d+) x (?P<type>\w+)> (?P<name>{NAME}), ptr (?P<at>{NAME}), align \d+(?P<more>.*)$"
)
_TAKE = re.compile(
    rf"^  (?P<name>{NAME}) = extractelement <\d+ x (?P<type>\w+)> (?P<from>{NAME}), i\d+ (?P<place>\d+)$"
)
_PUT = re.compile(
    rf"^  (?P<name>{NAME}) = insertelement <(?P<count>\d+) x \w+> (?P<into>poison|{NAME}), \w+ (?P<value>[^,]+), "
    r"i\d+ (?P<place>\d+)$"
)
_SAME = re.compile(rf"^  (?P<name>{NAME}) = phi <\d+ x \w+> \[ (?P<from>{NAME}), {NAME} \]$")
_BYTES = {"float": 4, "double": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2}


def scalarised(blocks: dict[str, list[str]]) -> dict[str, list[str]]:
    """Returns the blocks without vectors, or unchanged if they use a vector in any other way. Their order must define
    each value before its use."""
    elements: dict[str, list[str]] = {}
    result: dict[str, list[str]] = {}
    places = itertools.count()
    for block, body in blocks.items():
        result[block] = []
        for line in body:
            lines = _line(line, elements, next(places))
            if lines is None:
                return blocks
            result[block] += lines
    return result


def _line(line: str, elements: dict[str, list[str]], place: int) -> list[str] | None:
    """Returns a line's scalar form, or None. ``place`` is the line's number, which names its new values."""
    if (match := _LOAD.match(line)) and match["type"] in _BYTES:
        kind, lines = match["type"], []
        names = elements[match["name"]] = [f"%oxide.part.{place}.{number}" for number in range(int(match["count"]))]
        for number, name in enumerate(names):
            lines.append(f"  {name}.at = getelementptr {kind}, ptr {match['at']}, i64 {number}")
            lines.append(f"  {name} = load {kind}, ptr {name}.at, align {_BYTES[kind]}{match['more']}")
        return lines
    if (match := _STORE.match(line)) and match["type"] in _BYTES and match["name"] in elements:
        kind, lines = match["type"], []
        for number, value in enumerate(elements[match["name"]]):
            at = f"%oxide.part.{place}.{number}.at"
            lines.append(f"  {at} = getelementptr {kind}, ptr {match['at']}, i64 {number}")
            lines.append(f"  store {kind} {value}, ptr {at}, align {_BYTES[kind]}{match['more']}")
        return lines
    if (match := _TAKE.match(line)) and match["from"] in elements:
        value = elements[match["from"]][int(match["place"])]
        return [f"  {match['name']} = select i1 true, {match['type']} {value}, {match['type']} {value}"]
    if (match := _PUT.match(line)) and (match["into"] == "poison" or match["into"] in elements):
        values = list(elements.get(match["into"], ["poison"] * int(match["count"])))
        values[int(match["place"])] = match["value"]
        elements[match["name"]] = values
        return []
    if (match := _SAME.match(line)) and match["from"] in elements:
        elements[match["name"]] = elements[match["from"]]
        return []
    return None if re.search(r"<\d+ x ", line) else [line]
