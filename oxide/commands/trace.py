"""``oxide trace``: draws a recorded timeline as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from oxide.commands.output import refuse, write
from oxide.errors import OxideError


def trace(
    file: Annotated[Path, typer.Argument(metavar="FILE.json", help="written by oxide.trace or `oxide run --trace`")],
    svg: Annotated[bool, typer.Option("--svg", help="as an SVG picture")] = False,
    html: Annotated[bool, typer.Option("--html", help="as an HTML page that can be zoomed (the default)")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="the file, or - for standard output; else FILE.svg or FILE.html"
        ),
    ] = None,
) -> None:
    """Draws a timeline as one self-contained file. ui.perfetto.dev opens FILE.json itself.

    \b
    Examples:
      oxide run --trace out.json main.py
      oxide trace out.json --html
      oxide trace out.json --svg -o timeline.svg
      oxide trace out.json -o - | gzip > timeline.html.gz
    """
    from oxide.tracing.pages import page_text  # imported here, as the other commands do not need it

    if svg and html:
        refuse("trace", "choose one of --svg and --html")
    form: Literal["svg", "html"] = (
        "svg" if svg or (output is not None and output.suffix == ".svg" and not html) else "html"
    )
    if file.is_dir():
        refuse("trace", f"{file} is a folder; name a timeline that oxide.trace wrote")
    written = output or file.with_suffix(f".{form}")
    if written == file:
        refuse("trace", f"{written} is the timeline itself; name another file with -o")
    try:
        text = page_text(file, form)
    except OxideError as error:
        refuse("trace", str(error))
    write("trace", text, written)
