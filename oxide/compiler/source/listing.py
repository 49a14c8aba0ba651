"""Renders source text as HTML with remarks after its lines, for the reports of a kernel in notebooks."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from html import escape

from oxide.compiler.source.source import tree_of
from oxide.errors import place_name

from .text import lines_in

Remark = tuple[str, int, str, str]
"""A file, a line in it, a mark that ``pictures.drawing.listing`` knows, and the text."""


def listing(remarks: Iterable[Remark], heading: str) -> str:
    """Returns the source of the functions that the remarks refer to, with the remarks. If the source of a file cannot
    be read, returns the remarks alone."""
    from oxide.pictures.drawing import listing as html_listing
    from oxide.pictures.drawing import preformatted

    by_file: dict[str, dict[int, list[tuple[str, str]]]] = {}
    for file, line, mark, text in remarks:
        found = by_file.setdefault(file, {}).setdefault(line, [])
        if (mark, text) not in found:
            found.append((mark, text))
    parts = [f"<div><b>{escape(heading)}</b></div>"]
    for file, marks in by_file.items():
        lines = [line.rstrip("\n") for line in lines_in(file)]
        if not lines:
            parts.append(preformatted("\n".join(f"line {n}: {text}" for n, each in marks.items() for _, text in each)))
            continue
        for first, last in _functions(file, set(marks), len(lines)):
            parts.append(html_listing(lines[first - 1 : last], first, marks, place_name(file, first)))
    return "".join(parts)


def _functions(file: str, lines: set[int], count: int) -> list[tuple[int, int]]:
    """Returns the first and the last line, decorators included, of each outermost function that contains one of the
    lines. A line outside of all functions is a range of its own."""
    tree = tree_of(file) or ast.Module([], [])
    spans = [
        (min([node.lineno, *(each.lineno for each in node.decorator_list)]), node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]
    found: dict[tuple[int, int], None] = {}
    for line in sorted(lines):
        around = [span for span in spans if span[0] <= line <= span[1]]
        if around or line <= count:
            found[min(around, default=(line, line))] = None
    return list(found)
