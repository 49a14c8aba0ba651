"""``oxide graph``: draws an operation that has not run, or a captured graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from oxide.commands.finding import module_of
from oxide.commands.output import refuse, write


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
    from oxide.pictures import svg as drawn

    found = _named(what)
    try:
        picture = drawn(found)
    except TypeError as error:
        refuse("graph", f"{what}: {error}")
    write("graph", picture, output)


def _named(what: str) -> Any:
    """Returns the object that ``what`` names, or the result of calling it if it is a function. Ends the command if
    there is no such object, if it is a kernel, or if the function takes arguments."""
    from oxide.compiler.kernel.kernel import Kernel
    from oxide.runtime.launching.launch import ConfiguredKernel
    from oxide.runtime.launching.tile_kernel import TileKernel

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
    if isinstance(found, Kernel | TileKernel | ConfiguredKernel):
        refuse(
            "graph",
            f"{what}: {name} is a kernel; an operation is its launch with arguments, such as `recipe = "
            f"{name}{'[grid, block]' if isinstance(found, Kernel) else ''}(...)`; name that, or a function "
            f"that returns it, or see the kernel with `oxide inspect {what}`",
        )
    if hasattr(found, "picture") or not callable(found):
        return found
    try:
        return found()
    except TypeError as error:
        refuse("graph", f"{what}: {name} is a function that cannot be called without arguments: {error}")
