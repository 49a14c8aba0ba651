"""Draws a picture as a self-contained SVG.

Text has a light background of its own, and lines are medium grey. So the drawing is readable on light and dark pages,
as part of the page or as an image, and needs no style of the page.
"""

from __future__ import annotations

import re
import unicodedata
from html import escape
from itertools import pairwise

from oxide.pictures.layout import Place, arrange
from oxide.pictures.picture import Drawable, Edge, Node, Picture

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
