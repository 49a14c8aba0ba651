"""Draws a trace file as one page: plain SVG, or HTML in which the same drawing can be zoomed and moved.

A page is self-contained: it loads no other file. If a trace has very many slices, only the longest are drawn, and the
page says how many are left out.
"""

from __future__ import annotations

import html
import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

from oxide.errors import TraceError
from oxide.tracing.trace_file import HOST

_MOST = 20_000  # slices that are drawn
_WIDTH = 1280
_LEFT = 230  # the part of the width for the names of the tracks
_RIGHT = 20
_ROW = 18
_GAP = 6
_GRAPH = 34  # the height of a curve of memory
_TOP = 46
_LETTER = 6.1  # the approximate width of a letter of 10.5 px, in pixels

_COLOURS = {
    "kernel": "#3b7dd8",
    "node": "#7fb0ee",
    "graph": "#2a5a9c",
    "copy to device": "#2e9e6b",
    "copy to host": "#d98a2b",
    "copy on device": "#7a9a2e",
    "copy between devices": "#7a9a2e",
    "fill": "#8e7cc3",
    "report": "#8e7cc3",
    "host function": "#b08d57",
    "collective": "#b0577d",
    "host copy or wake-up": "#b08d57",
    "wait": "#c9c9c9",
    "submit": "#a64d79",
    "capture": "#c27ba0",
    "await": "#dbe4f0",
    "sync": "#e8dcc8",
}
_DARK = {"kernel", "graph", "copy to device", "fill", "report", "submit"}  # colours that take white letters

Format: TypeAlias = Literal["html", "svg"]


@final
@dataclass(slots=True)
class _Slice:
    """A slice of a track. ``depth`` is the number of slices that contain it. Times are µs."""

    kind: str
    name: str
    begun: float
    lasts: float
    arguments: dict[str, Any]
    depth: int = 0


@final
@dataclass(slots=True)
class _Row:
    """The track of a task or of a stream."""

    name: str
    order: tuple[int, int]
    slices: list[_Slice] = field(default_factory=list)
    depth: int = 1


def page(path_json: str | os.PathLike[str], path_out: str | os.PathLike[str], format: Format | None = None) -> None:
    """Draws the trace file ``path_json`` and writes the page to ``path_out``.

    ``format`` is ``"html"`` or ``"svg"``, by default the extension of ``path_out``. Raises ``TraceError`` if the file
    is not a trace or cannot be read, or if the page cannot be written, and ``ValueError`` for another format.
    """
    out = os.fspath(path_out)
    drawn = page_text(path_json, format or os.path.splitext(out)[1][1:].lower())
    try:
        with open(out, "w", encoding="utf-8") as file:
            file.write(drawn)
    except OSError as error:
        raise TraceError(f"the page cannot be written to {out}: {error.strerror}") from error


def page_text(path: str | os.PathLike[str], format: str) -> str:
    """Returns the text that ``page`` writes. Raises the same errors as ``page``."""
    if format not in ("html", "svg"):
        raise ValueError(f"the format of a page is {format!r}; it must be 'html' or 'svg', or follow from a name")
    drawn = picture(path)
    return drawn if format == "svg" else _html(os.path.basename(os.fspath(path)), drawn)


def picture(path: str | os.PathLike[str]) -> str:
    """Returns the trace file at ``path`` drawn as SVG. Raises ``TraceError`` if it cannot be read or is not a trace."""
    path = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            return _svg(*_rows(json.load(file)["traceEvents"]))
    except OSError as error:
        raise TraceError(f"the trace {path} cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise TraceError(
            f"{path} is no trace of oxide's, or only the beginning of one, as a program leaves it that a signal ends: "
            f"{error}"
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise TraceError(f"{path} is no trace of oxide's: it has not the events that oxide.trace writes") from error


def _rows(events: Any) -> tuple[list[_Row], dict[str, list[tuple[float, float]]], int]:
    processes: dict[int, str] = {}
    names: dict[tuple[int, int], str] = {}
    slices: dict[tuple[int, int], list[_Slice]] = defaultdict(list)
    counters: dict[str, list[tuple[float, float]]] = defaultdict(list)
    count = 0
    for event in events:
        key = event["pid"], event["tid"]
        match event["ph"]:
            case "M" if event["name"] == "process_name":
                processes[event["pid"]] = event["args"]["name"]
            case "M" if event["name"] == "thread_name":
                names[key] = event["args"]["name"]
            case "X":
                count += 1
                slices[key].append(
                    _Slice(event.get("cat", ""), event["name"], event["ts"], event["dur"], event["args"])
                )
            case "C":
                counters[processes.get(event["pid"], "")].append((event["ts"], event["args"]["bytes"]))
    least = 0.0
    if count > _MOST:
        least = sorted((each.lasts for track in slices.values() for each in track), reverse=True)[_MOST]
    rows = []
    kept = 0
    for key, track in slices.items():
        shown = [each for each in track if each.lasts > least] if count > _MOST else track
        kept += len(shown)
        name = names.get(key, f"track {key[1]}")
        if key[0] != HOST:
            name = f"{processes.get(key[0], '')}, {name}".removeprefix("device ")
        row = _Row(name, key, shown)
        _nest(row)
        if shown:
            rows.append(row)
    rows.sort(key=lambda row: row.order)
    return rows, counters, count - kept


def _nest(row: _Row) -> None:
    """Sorts the slices by time, and sets the depth of each slice and of the row."""
    row.slices.sort(key=lambda each: (each.begun, -each.lasts))
    ends: list[float] = []
    for each in row.slices:
        while ends and ends[-1] <= each.begun + 1e-6 and not (each.lasts == 0 and ends[-1] > each.begun):
            ends.pop()
        each.depth = len(ends)
        ends.append(each.begun + each.lasts)
        row.depth = max(row.depth, each.depth + 1)


def _svg(rows: list[_Row], counters: dict[str, list[tuple[float, float]]], left_out: int) -> str:
    first = min((row.slices[0].begun for row in rows), default=0.0)
    last = max((each.begun + each.lasts for row in rows for each in row.slices), default=1.0)
    span = max(last - first, 1e-3)
    scale = (_WIDTH - _LEFT - _RIGHT) / span
    body: list[str] = []
    y = _TOP
    for row in rows:
        height = row.depth * _ROW
        body.append(f'<g class="track"><text class="name" x="8" y="{y + 13}">{_short(row.name, 34)}')
        body.append(f"<title>{html.escape(row.name)}</title></text>")
        body.append(f'<line class="rule" x1="0" x2="{_WIDTH}" y1="{y + height + 3}" y2="{y + height + 3}"/>')
        body += [_drawn(each, y, first, scale) for each in row.slices]
        body.append("</g>")
        y += height + _GAP
    for process, points in counters.items():
        body.append(_curve(process, points, y, first, last, scale))
        y += _GRAPH + _GAP
    kinds = {each.kind for row in rows for each in row.slices}
    legend, x = [], 8.0
    for kind in [kind for kind in _COLOURS if kind in kinds]:
        legend.append(f'<rect x="{x:.0f}" y="8" width="10" height="10" fill="{_COLOURS[kind]}"/>')
        legend.append(f'<text x="{x + 14:.0f}" y="17">{kind}</text>')
        x += 26 + _LETTER * len(kind)
    if left_out:
        legend.append(f'<text x="{x:.0f}" y="17">({left_out} shorter slices are not drawn)</text>')
    ticks = []
    for number in range(6):
        at = first + span * number / 5
        place = _LEFT + (at - first) * scale
        anchor = "end" if number == 5 else "start" if number == 0 else "middle"
        ticks.append(
            f'<g class="tick"><line class="rule" x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP - 6}" y2="{y}"/>'
            f'<text x="{place:.1f}" y="{_TOP - 10}" text-anchor="{anchor}">{_duration(at)}</text></g>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 4}" width="{_WIDTH}" height="{y + 4}" '
        f'data-first="{first}" data-span="{span}" data-left="{_LEFT}" data-right="{_RIGHT}">'
        f"<style>{_STYLE}</style>"
        f'<rect width="{_WIDTH}" height="{y + 4}" fill="#fff"/>{"".join(legend)}{"".join(ticks)}{"".join(body)}</svg>'
    )


def _drawn(each: _Slice, y: int, first: float, scale: float) -> str:
    x, width = _LEFT + (each.begun - first) * scale, max(each.lasts * scale, 0.6)
    top = y + each.depth * _ROW
    colour = _COLOURS.get(each.kind, "#999")
    letters = int((width - 6) / _LETTER)
    ink = "#fff" if each.kind in _DARK else "#222"
    label = _short(each.name, letters) if letters >= 3 else ""
    run = each.arguments.get("run", "")
    lines = [each.name, f"{_duration(each.lasts)} from {_duration(each.begun)}"]
    lines += [f"{key}: {value}" for key, value in each.arguments.items()]
    return (
        f'<g class="slice" data-b="{each.begun:.3f}" data-d="{each.lasts:.3f}" data-run="{run}" '
        f'data-n="{html.escape(each.name)}"><title>{html.escape(chr(10).join(lines))}</title>'
        f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="{_ROW - 2}" fill="{colour}"/>'
        f'<text x="{x + 3:.2f}" y="{top + 12}" style="fill:{ink}">{label}</text></g>'
    )


def _curve(process: str, points: list[tuple[float, float]], y: int, first: float, last: float, scale: float) -> str:
    most = max((nbytes for _, nbytes in points), default=0) or 1
    steps, before = [], points[0][1]
    for at, nbytes in [*points, (last, points[-1][1])]:
        x = _LEFT + (min(max(at, first), last) - first) * scale
        steps += [f"{x:.1f},{y + _GRAPH - (_GRAPH - 4) * height / most:.1f}" for height in (before, nbytes)]
        before = nbytes
    name = f"{process.removeprefix('device ')}, memory (up to {_bytes(most)})"
    return (
        f'<g class="track"><text class="name" x="8" y="{y + 13}">{_short(name, 36)}</text>'
        f'<polyline class="curve" points="{" ".join(steps)}"/></g>'
    )


def _short(text: str, letters: int) -> str:
    return html.escape(text if len(text) <= letters else text[: max(letters - 1, 1)] + "…")


def _duration(us: float) -> str:
    if us >= 1e6:
        return f"{us / 1e6:.3f} s"
    return f"{us / 1e3:.3f} ms" if us >= 1e3 else f"{us:.2f} µs"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


_STYLE = (
    "text{font:10.5px sans-serif;fill:#222}.slice text{pointer-events:none}"
    ".rule{stroke:#e6e6e6;stroke-width:1}.curve{fill:none;stroke:#888;stroke-width:1.2}"
    ".lit rect{stroke:#d0021b;stroke-width:1.6}"
)

_SCRIPT = """
const svg = document.querySelector('svg'), D = svg.dataset, W = svg.viewBox.baseVal.width;
const left = +D.left, right = W - D.right, first = +D.first, span = +D.span;
let begin = first, shown = span;
const slices = [...document.querySelectorAll('.slice')].map(g => ({g, r: g.children[1], t: g.children[2],
  b: +g.dataset.b, d: +g.dataset.d, n: g.dataset.n}));
const us = x => x >= 1e6 ? (x / 1e6).toFixed(3) + ' s' : x >= 1e3 ? (x / 1e3).toFixed(3) + ' ms' : x.toFixed(2) + ' µs';
function draw() {
  const k = (right - left) / shown;
  for (const s of slices) {
    const a = left + (s.b - begin) * k, x = Math.max(a, left), e = Math.min(a + Math.max(s.d * k, .6), right);
    if (e < left || a > right) { s.g.style.display = 'none'; continue; }
    s.g.style.display = '';
    const w = Math.max(e - x, .6), letters = Math.floor((w - 6) / 6.1);
    s.r.setAttribute('x', x); s.r.setAttribute('width', w); s.t.setAttribute('x', x + 3);
    s.t.textContent = letters < 3 ? '' : s.n.length <= letters ? s.n : s.n.slice(0, letters - 1) + '…';
  }
  document.querySelectorAll('.tick text').forEach((t, i) => t.textContent = us(begin + shown * i / 5));
  document.querySelectorAll('.curve').forEach(c => c.style.visibility = shown < span ? 'hidden' : '');
}
const at = e => (e.clientX - svg.getBoundingClientRect().left) * W / svg.getBoundingClientRect().width;
svg.addEventListener('wheel', e => {
  e.preventDefault();
  const f = Math.exp(e.deltaY / 400), here = begin + shown * (at(e) - left) / (right - left);
  const next = Math.min(span, Math.max(shown * f, .01));
  begin = Math.min(Math.max(here - (here - begin) * next / shown, first), first + span - next); shown = next; draw();
}, {passive: false});
let grip = null;
svg.addEventListener('pointerdown', e => { grip = [at(e), begin]; });
addEventListener('pointerup', () => { grip = null; });
addEventListener('pointermove', e => {
  if (!grip) return;
  begin = Math.min(Math.max(grip[1] - (at(e) - grip[0]) * shown / (right - left), first), first + span - shown); draw();
});
svg.addEventListener('dblclick', () => { begin = first; shown = span; draw(); });
const box = document.getElementById('box');
for (const s of slices) {
  const title = s.g.querySelector('title'), text = title.textContent; title.remove();
  s.r = s.g.querySelector('rect'); s.t = s.g.querySelector('text');
  s.g.addEventListener('mousemove', e => {
    box.textContent = text; box.style.display = 'block';
    box.style.left = Math.min(e.pageX + 12, innerWidth - 340) + 'px'; box.style.top = e.pageY + 14 + 'px';
  });
  s.g.addEventListener('mouseenter', () => light(s.g.dataset.run, true));
  s.g.addEventListener('mouseleave', () => { box.style.display = 'none'; light(s.g.dataset.run, false); });
}
function light(run, on) {
  if (run) for (const s of slices) if (s.g.dataset.run === run) s.g.classList.toggle('lit', on);
}
"""


def _html(title: str, drawing: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>'
        "body{margin:12px;font:13px sans-serif;color:#222;background:#fff}svg{width:100%;height:auto;cursor:grab;"
        "user-select:none}#box{display:none;position:absolute;white-space:pre-wrap;max-width:320px;background:#fffbe8;"
        "border:1px solid #bbb;padding:6px;font-size:12px;pointer-events:none;overflow-wrap:anywhere}</style></head>"
        f"<body><p><b>{html.escape(title)}</b>: the wheel zooms, dragging moves, a double click shows all; a slice "
        f'under the pointer lights up what its operation did.</p>{drawing}<div id="box"></div>'
        f"<script>{_SCRIPT}</script></body></html>"
    )
