"""``oxide graph``: a picture of a recipe or of a captured graph."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from oxide.commands.finding import module_of
from oxide.commands.output import refuse, say


def graph(
    what: Annotated[str, typer.Argument(metavar="FILE:OPERATION", help="file.py:name or module:name")],
    svg: Annotated[bool, typer.Option("--svg", help="as SVG (the default, and the only form)")] = True,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="the file; else standard output")
    ] = None,
) -> None:
    """Draws an operation before it runs, or a captured graph: its nodes, boxes, streams and waits.

    OPERATION names an operation, a graph, or a function without parameters that returns one. The file is imported, not
    run as __main__.

    \b
    Examples:
      oxide graph pipeline.py:recipe --svg -o recipe.svg
      oxide graph examples.async_mlp.pipeline:build > recipe.svg
    """
    found = _named(what)
    pictures = importlib.import_module("oxide.pictures")
    try:
        picture = pictures.svg(found)
    except TypeError as error:
        refuse("graph", f"{what}: {error}")
    if output is None:
        sys.stdout.write(f"{picture.rstrip()}\n")
        return
    try:
        output.write_text(picture, encoding="utf-8")
    except OSError as error:
        refuse("graph", f"{output} cannot be written: {error.strerror}")
    say(str(output))


def _named(what: str) -> Any:
    """Returns the object that is named, or what it returns. Ends the command if there is none that can be drawn."""
    try:
        module, name = module_of(what)
    except LookupError as error:
        refuse("graph", str(error.args[0]))
    if not name or not hasattr(module, name):
        drawable = [
            key for key, value in vars(module).items() if hasattr(value, "picture") and not isinstance(value, type)
        ]
        there = f"what can be drawn there is {', '.join(drawable)}" if drawable else "nothing there can be drawn"
        refuse("graph", f"{what}: {module.__name__} has no {name or 'object without a name'}; {there}")
    found = getattr(module, name)
    if hasattr(found, "picture") or not callable(found):
        return found
    try:
        return found()
    except TypeError as error:
        refuse("graph", f"{what}: {name} is a function that cannot be called without arguments: {error}")
