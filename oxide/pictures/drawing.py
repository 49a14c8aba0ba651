"""Pictures: their data, which are nodes and edges without positions and colours, and how they are drawn.

A picture is drawn as a self-contained SVG. Text has a light background of its own, and lines are medium grey. So the
drawing is readable on light and dark pages, as part of the page or as an image, and needs no style of the page. HTML
for notebooks shows it, and tables and source text with marked lines. There, colours are translucent and text has the
page's own colour.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Literal, Protocol, final

from oxide.pictures.layout import Place, arrange

_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_CHARACTER = 7.3  # the width of a character of 12 px, in pixels
_SMALL = 6.7  # the width of a character of 11 px
_LINE = 16.0
_PADDING = 9.0
_MARGIN = 14.0
_LONGEST = 64  # characters of a line; the tooltip has the whole
_INK, _GREY = "#1c1c1c", "#808080"

_FILLS = {
    "launch": "#cbe8b4",
    "copy": "#bfdcf7",
    "memory": "#e3dcf5",
    "host": "#f8e6b8",
    "join": "#e6e6e6",
    "graph": "#f6d3c4",
    "unknown": "#ffffff",
}
_STREAMS = ("#4f8a10", "#1f6fb2", "#b2561f", "#7a3fb0", "#a31f5b", "#0f8a80", "#8a7a0f", "#555555")
_DASHES = {"data": "", "order": ' stroke-dasharray="2 4"', "wait": ' stroke-dasharray="7 4"'}
_PRE = "margin:0.4em 0;padding:0.5em;overflow-x:auto;line-height:1.45;background:transparent"
_MARKS = {
    "good": "rgba(70,170,70,.22)",
    "fair": "rgba(60,130,220,.22)",
    "bad": "rgba(235,140,0,.30)",
    "note": "rgba(128,128,128,.20)",
}

NodeKind = Literal["launch", "copy", "memory", "host", "join", "graph", "unknown"]
"""The kind of a node, in the order above: a kernel's launch; a copy or a collective; device memory, given or filled; a
host function or host data; an operation that only combines others; the launch of a graph, or a conditional in a graph;
an operation of which nothing more is known before it runs."""

EdgeKind = Literal["data", "order", "wait"]
"""The kind of an edge. ``"data"``: the target uses a result of the source. ``"order"``: the target runs after the
source. ``"wait"``: as ``"data"``, and the target's stream waits for the source's stream."""


@final
@dataclass(frozen=True, slots=True)
class Node:
    """A node: ``title`` names it, and ``details`` are lines below the title. ``stream`` names the stream or the device
    that the node runs on, and is empty if the picture has only one."""

    key: int
    kind: NodeKind
    title: str
    details: tuple[str, ...] = ()
    stream: str = ""


@final
@dataclass(frozen=True, slots=True)
class Edge:
    """An edge between two nodes, given by their keys. ``label`` describes the data that flows along the edge."""

    source: int
    target: int
    label: str = ""
    kind: EdgeKind = "data"


@final
@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes and edges, with a title and with notes that are written below the drawing."""

    title: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    notes: tuple[str, ...] = ()


class Drawable(Protocol):
    """An object that has a picture."""

    def picture(self) -> Picture:
        """Returns the object's picture."""


@final
class Sketch:
    """Collects the nodes and edges of a picture."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._edges: dict[Edge, None] = {}  # in order; two equal edges are one

    def node(self, kind: NodeKind, title: str, details: tuple[str, ...] = (), stream: str = "") -> int:
        """Adds a node and returns its key."""
        self._nodes.append(Node(len(self._nodes), kind, title, details, stream))
        return len(self._nodes) - 1

    def edge(self, source: int, target: int, label: str = "", kind: EdgeKind = "data") -> None:
        """Adds an edge between two nodes that were added before, given by their keys. Raises ``ValueError`` if no node
        has such a key."""
        if not (0 <= source < len(self._nodes) and 0 <= target < len(self._nodes)):
            raise ValueError(f"an edge from {source} to {target}: the picture has {len(self._nodes)} nodes")
        self._edges[Edge(source, target, label, kind)] = None

    def __len__(self) -> int:
        return len(self._nodes)

    def picture(self, title: str, notes: tuple[str, ...] = ()) -> Picture:
        """Returns the picture of all that was added."""
        return Picture(title, tuple(self._nodes), tuple(self._edges), notes)


def svg(thing: Picture | Drawable) -> str:
    """Returns the drawing of an operation before it runs, of a captured graph, or of any other object with a picture.

    The result is a whole SVG document, which can be written to a file or put into a page. Raises ``TypeError`` for an
    object that has no picture.
    """
    if isinstance(thing, Picture):
        return _draw(thing)
    make = getattr(thing, "picture", None)
    found = make() if callable(make) and not isinstance(thing, type) else None
    if not isinstance(found, Picture):
        raise TypeError(f"svg draws an operation, a CudaGraph or a Picture, not {type(thing).__name__}")
    return _draw(found)


def _draw(picture: Picture) -> str:
    streams = list(dict.fromkeys(node.stream for node in picture.nodes if node.stream))
    position = {node.key: index for index, node in enumerate(picture.nodes)}
    layout = arrange(
        [_size(node) for node in picture.nodes],
        [(position[edge.source], position[edge.target]) for edge in picture.edges],
        [(_width(_shortened(edge.label), _SMALL) + 10, 17.0) if edge.label else None for edge in picture.edges],
    )
    title = _shortened(picture.title)
    notes = [line for note in picture.notes for line in _wrapped(note)]
    width = max([layout.width, _width(title, _CHARACTER) + 8, *(_width(note, _SMALL) for note in notes)]) + 2 * _MARGIN
    top = _MARGIN + 28
    height = top + layout.height + _MARGIN + (_LINE * len(notes) + 6 if notes else 0)
    left = (width - layout.width) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{_FONT}" font-size="12" fill="{_INK}">',
        f"<title>{_text(picture.title)}</title>",
        f'<text x="{_MARGIN}" y="{_MARGIN + 10}" font-size="13" font-weight="bold" fill="{_GREY}">'
        f"{_text(title)}</text>",
        f'<g transform="translate({left:.1f} {top:.1f})">',
    ]
    for edge, route in zip(picture.edges, layout.routes, strict=True):
        parts.append(_line(edge, route))
    for edge, label in zip(picture.edges, layout.labels, strict=True):
        if label is not None:
            parts.append(_label(edge.label, label))
    for node, place in zip(picture.nodes, layout.nodes, strict=True):
        parts.append(_box(node, place, _STREAMS[streams.index(node.stream) % len(_STREAMS)] if node.stream else ""))
    parts.append("</g>")
    for number, note in enumerate(notes, 1):
        y = top + layout.height + _MARGIN + number * _LINE
        parts.append(f'<text x="{_MARGIN}" y="{y:.1f}" font-size="11" fill="{_GREY}">{_text(note)}</text>')
    parts.append("</svg>")
    return "\n".join(parts)


def _lines(node: Node) -> list[str]:
    return [_shortened(line) for line in (*node.details, *([node.stream] if node.stream else []))]


def _size(node: Node) -> tuple[float, float]:
    lines = _lines(node)
    widths = [_width(_shortened(node.title), 1.07 * _CHARACTER), *(_width(line, _SMALL) for line in lines)]
    return max(widths) + 2 * _PADDING + 4, _LINE * (1 + len(lines)) + 1.4 * _PADDING


def _box(node: Node, place: Place, colour: str) -> str:
    x, y = place.x - place.width / 2, place.y - place.height / 2
    radius = {"memory": 2, "host": 10}.get(node.kind, 5)
    dashed = ' stroke-dasharray="5 3"' if node.kind == "unknown" else ""
    parts = [
        f'<g class="node {node.kind}"><title>{_text(chr(10).join((node.title, *node.details, node.stream)).strip())}'
        f"</title>",
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{place.width:.1f}" height="{place.height:.1f}" rx="{radius}" '
        f'fill="{_FILLS[node.kind]}" stroke="{_GREY}"{dashed}/>',
    ]
    if colour:
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 3:.1f}" width="4" height="{place.height - 6:.1f}" rx="2" fill="{colour}"/>'
        )
    row = y + _PADDING * 0.7 + 11
    parts.append(
        f'<text x="{place.x:.1f}" y="{row:.1f}" text-anchor="middle" font-weight="bold">'
        f"{_text(_shortened(node.title))}</text>"
    )
    for line in _lines(node):
        row += _LINE
        parts.append(f'<text x="{place.x:.1f}" y="{row:.1f}" text-anchor="middle" font-size="11">{_text(line)}</text>')
    return "".join([*parts, "</g>"])


def _label(label: str, place: Place) -> str:
    x, y = place.x - place.width / 2, place.y - place.height / 2
    return (
        f'<g class="label"><title>{_text(label)}</title>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{place.width:.1f}" height="{place.height:.1f}" rx="8" fill="#f4f4f4"/>'
        f'<text x="{place.x:.1f}" y="{place.y + 4:.1f}" text-anchor="middle" font-size="11">'
        f"{_text(_shortened(label))}</text></g>"
    )


def _line(edge: Edge, route: tuple[Place, ...]) -> str:
    """Returns the curve of an edge, with its arrow. The curve meets a box at the x of the neighbouring place of the
    route, or as near to it as the width of the box allows."""
    points = []
    for number, place in enumerate(route):
        if number == 0:
            points.append((_port(place, route[1]), place.y + place.height / 2))
        elif number == len(route) - 1:
            points.append((_port(place, route[-2]), place.y - place.height / 2 - 7))
        else:
            points += [(place.x, place.y - place.height / 2), (place.x, place.y + place.height / 2)]
    path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (from_x, from_y), (x, y) in pairwise(points):
        middle = (from_y + y) / 2
        path.append(f"C{from_x:.1f} {middle:.1f} {x:.1f} {middle:.1f} {x:.1f} {y:.1f}")
    x, y = points[-1]
    return (
        f'<g class="edge {edge.kind}"><path d="{" ".join(path)}" fill="none" stroke="{_GREY}" stroke-width="1.4"'
        f'{_DASHES[edge.kind]}/><path d="M{x - 4:.1f} {y:.1f}h8l-4 7z" fill="{_GREY}"/></g>'
    )


def _port(place: Place, towards: Place) -> float:
    """Returns the x at which an edge between the box ``place`` and ``towards`` meets the box."""
    reach = max(place.width / 2 - 12, 0.0)
    return min(max(towards.x, place.x - reach), place.x + reach)


def _width(text: str, character: float) -> float:
    return character * sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def _shortened(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else f"{flat[: _LONGEST - 1]}…"


def _wrapped(note: str) -> list[str]:
    lines: list[str] = []
    for word in note.split():
        if lines and len(lines[-1]) + len(word) < 100:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _text(text: str) -> str:
    """Escapes text for XML. Replaces characters that XML does not allow, control characters and lone surrogates, by
    �."""
    return escape(re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "�", text))


# HTML for notebooks


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
