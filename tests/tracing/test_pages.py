"""``page``: a trace drawn as one page that needs nothing else."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest
import trio

import oxide
from oxide import StreamPoolRoundRobin, TraceError
from oxide.testing import seeded_driver, use_driver
from oxide.tracing import page, pages
from tests.tracing.programs import concurrent_sums
from tests.tracing.schema import read

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "out.json"
    with use_driver(seeded_driver(1), policy=StreamPoolRoundRobin(4)), oxide.trace(path):
        trio.run(concurrent_sums, 8)
    return path


def test_svg_has_every_slice_on_its_track_in_its_place(file: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "out.svg"
    page(file, drawn)
    root = ET.fromstring(drawn.read_text())
    slices = read(file).slices()
    groups = [each for each in root.iter(f"{SVG}g") if each.get("class") == "slice"]
    assert Counter(each.get("data-n") for each in groups) == Counter(each["name"] for each in slices)
    first, span = float(root.get("data-first", "")), float(root.get("data-span", ""))
    left, right = pages._LEFT, pages._WIDTH - pages._RIGHT
    for group in groups:
        begun, lasts = float(group.get("data-b", "")), float(group.get("data-d", ""))
        rectangle = group.find(f"{SVG}rect")
        assert rectangle is not None
        x, width = float(rectangle.get("x", "")), float(rectangle.get("width", ""))
        assert x == pytest.approx(left + (begun - first) / span * (right - left), abs=0.1)
        assert width == pytest.approx(max(lasts / span * (right - left), 0.6), abs=0.1)
        assert left - 0.1 <= x <= x + width <= right + 1
    names = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "name"]
    assert sorted(name or "" for name in names)[-8:] == [f"task sum {number}" for number in range(8)]
    assert sum("stream" in (name or "") for name in names) == 4


def test_slices_of_a_track_that_overlap_are_drawn_below_each_other(file: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "out.svg"
    page(file, drawn)
    boxes = []
    for group in ET.fromstring(drawn.read_text()).iter(f"{SVG}g"):
        if group.get("class") == "slice":
            rectangle = group.find(f"{SVG}rect")
            assert rectangle is not None
            begun, lasts = float(group.get("data-b", "")), float(group.get("data-d", ""))
            boxes.append((int(rectangle.get("y", "")), begun, begun + lasts))
    boxes.sort()
    for (row, _, ended), (other, begun, _) in itertools.pairwise(boxes):
        assert row != other or ended <= begun + 0.002


def test_html_needs_nothing_from_elsewhere(file: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "out.html"
    page(file, drawn)
    text = drawn.read_text()
    assert text.startswith("<!doctype html>")
    assert text.count("<svg") == 1
    assert "<script>" in text
    assert not re.findall(r"(?:src|href)=", text)
    assert [url for url in re.findall(r"https?://[^\"' ]+", text) if "www.w3.org" not in url] == []


def test_the_format_may_be_given(file: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "picture"
    page(file, drawn, format="svg")
    assert drawn.read_text().startswith("<svg")
    with pytest.raises(ValueError, match="must be 'html' or 'svg'"):
        page(file, drawn)


def test_names_are_escaped(tmp_path: Path) -> None:
    file, drawn = tmp_path / "t.json", tmp_path / "t.html"
    named = {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "<script>alert(1)</script>"}}
    each = {"ph": "X", "cat": "await", "name": "<b>&", "pid": 1, "tid": 1, "ts": 0, "dur": 5, "args": {"x": "<i>"}}
    file.write_text(json.dumps({"traceEvents": [named, each]}))
    page(file, drawn)
    text = drawn.read_text()
    assert "<script>alert" not in text
    assert "<b>&" not in text
    assert "<i>" not in text


def test_of_very_many_slices_the_longest_are_drawn(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_MOST", 10)
    drawn = tmp_path / "out.svg"
    page(file, drawn)
    count = len(read(file).slices())
    shown = drawn.read_text().count('class="slice"')
    assert 0 < shown <= 10
    assert f"{count - shown} shorter slices are not drawn" in drawn.read_text()


def test_a_trace_of_nothing_is_drawn(tmp_path: Path) -> None:
    file, drawn = tmp_path / "t.json", tmp_path / "t.svg"
    with use_driver(seeded_driver(1)), oxide.trace(file):
        pass
    page(file, drawn)
    ET.fromstring(drawn.read_text())


def test_a_trace_shows_itself_in_a_notebook(file: Path) -> None:
    assert oxide.trace(file)._repr_html_().startswith("<svg")


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    with pytest.raises(TraceError, match="cannot be read"):
        page(file, tmp_path / "out.svg")
    slices = '{"traceEvents": [{"ph": "X", "pid": 0, "tid": 0, "name": "a", "ts": %s, "dur": 1, "args": {"a": %s}}]}'
    deep = "[" * 200_000
    for text in ("", "[]", '{"other": 1}', deep, slices % ("NaN", 1), slices % ("1e999", 1), slices % ('"a"', 1)):
        file.write_text(text)
        with pytest.raises(TraceError, match="is no trace"):
            page(file, tmp_path / "out.svg")


def test_a_page_that_cannot_be_written_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be written"):
        page(file, tmp_path / "missing" / "out.svg")
