"""HTML for notebooks: pictures, tables, and source text with marked lines.

Colours are translucent and text has the page's own colour, so both light and dark themes can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from oxide.pictures.drawing import svg
from oxide.pictures.picture import Drawable, Picture

_PRE = "margin:0.4em 0;padding:0.5em;overflow-x:auto;line-height:1.45;background:transparent"
_MARKS = {
    "good": "rgba(70,170,70,.22)",
    "fair": "rgba(60,130,220,.22)",
    "bad": "rgba(235,140,0,.30)",
    "note": "rgba(128,128,128,.20)",
}


def drawn(thing: Picture | Drawable) -> str:
    """Returns the drawing of an object, in an element that scrolls."""
    return f'<div style="overflow-x:auto">{svg(thing)}</div>'


def preformatted(text: str) -> str:
    """Returns HTML that shows a text unchanged, with its line breaks."""
    return f'<pre style="{_PRE}">{escape(text)}</pre>'


def table(rows: Iterable[tuple[str, str]], caption: str = "") -> str:
    """Returns a table of names and values."""
    body = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows
    )
    head = f'<caption style="text-align:left;white-space:nowrap">{escape(caption)}</caption>' if caption else ""
    return f'<table style="color:inherit">{head}{body}</table>'


def listing(lines: Sequence[str], first: int, marks: Mapping[int, Sequence[tuple[str, str]]], caption: str = "") -> str:
    """Returns source lines with their numbers, which begin with ``first``. ``marks`` maps the number of a line to pairs
    of a mark ("good", "fair", "bad" or "note") and a text, which is shown after the line. The line has the colour of
    its worst mark."""
    ranking = list(_MARKS)
    width = len(str(first + len(lines)))
    longest = max((len(line) for line in lines), default=0)
    rows = []
    for number, line in enumerate(lines, first):
        found = marks.get(number, ())
        text = f"{number:>{width}}  {line}"
        if found:
            worst = max((mark for mark, _ in found if mark != "note"), key=ranking.index, default="note")
            remarks = "; ".join(remark for _, remark in found)
            row = (
                f'<span style="background:{_MARKS[worst]}" title="{escape(remarks)}">{escape(text)}</span>'
                f'{" " * (longest - len(line))}  <span style="opacity:.75"># {escape(remarks)}</span>'
            )
        else:
            row = escape(text)
        rows.append(row)
    head = f"<b>{escape(caption)}</b>\n" if caption else ""
    return f'<pre style="{_PRE}">{head}{chr(10).join(rows)}</pre>'
