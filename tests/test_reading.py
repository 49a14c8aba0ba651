"""The way in: what ``docs/reading.md`` and the table of ``CONTRIBUTING.md`` name is there, and the reading is short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
READING = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TABLE = CONTRIBUTING.partition("## To change X, open Y, run Z\n")[2].partition("\n## ")[0]
MOST_LINES = 3000

_HEADING = re.compile(r"^### (\d+)\. `([^`]+)`(?:, from `(\w+)`)?(?:,? up to `(\w+)`)?$", re.MULTILINE)
_LOOK_FOR = re.compile(r"[Ll]ook for ((?:[^.`]|`[^`]+`)*)\.")
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:oxide|oxide_kernels|examples|tests|docs|benchmarks)(?:/[\w.]+)+/?")


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop of the reading: a file, or the part of it between the definitions of two names, and the text about it."""

    path: str
    begin: str | None
    end: str | None
    text: str

    def lines(self) -> list[str]:
        """Returns the lines to read."""
        lines = (ROOT / self.path).read_text(encoding="utf-8").splitlines()
        last = defined(lines, self.end) if self.end else len(lines)
        return lines[defined(lines, self.begin) if self.begin else 0 : last]

    def names(self) -> list[str]:
        """Returns the names to look for."""
        sentences = _LOOK_FOR.findall(self.text.replace("\n", " "))
        return [name for sentence in sentences for name in _CODE.findall(sentence)]


def defined(lines: list[str], name: str) -> int:
    """Returns the index of the line that defines a function or a class."""
    found = [number for number, line in enumerate(lines) if re.match(rf"\s*(?:async def|def|class) {name}\b", line)]
    assert found, f"nothing defines {name}"
    return found[0]


def stops(page: str) -> Iterator[Stop]:
    found = list(_HEADING.finditer(page))
    for heading, following in zip(found, [*found[1:], None], strict=True):
        text = page[heading.end() : following.start() if following else len(page)].partition("\n## ")[0]
        yield Stop(heading[2], heading[3], heading[4], text)


STOPS = list(stops(READING))


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: stop.path)
def test_a_stop_has_names_that_are_in_its_file_and_a_question(stop: Stop) -> None:
    text = "\n".join(stop.lines())
    assert len(stop.names()) >= 2
    assert not [name for name in stop.names() if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)]
    assert re.search(r"\*[^*]+\?\*", stop.text.replace("\n", " "))


def test_the_reading_is_of_three_thousand_lines_at_most_and_has_an_answer_for_each_question() -> None:
    assert len(STOPS) == len(re.findall("^### ", READING, re.MULTILINE)) > 12
    assert sum(len(stop.lines()) for stop in STOPS) <= MOST_LINES
    answers = READING.partition("## The answers\n")[2]
    numbers = [str(place) for place in range(1, len(STOPS) + 1)]
    assert (
        re.findall(r"^(\d+)\. ", answers, re.MULTILINE) == numbers == [found[1] for found in _HEADING.finditer(READING)]
    )


def rows() -> list[list[str]]:
    """Returns the cells of the table's rows: what to change, what to open, what to run."""
    lines = [line for line in TABLE.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| to "))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0].partition(":")[0])
def test_a_row_of_the_table_opens_files_and_runs_commands(row: list[str]) -> None:
    what, opened, run = row
    assert _CODE.findall(opened)
    assert not [path for path in _CODE.findall(opened) if not (ROOT / path).exists()]
    assert not [path for path in _CODE.findall(what) if not (ROOT / path).exists()]
    assert _CODE.findall(run)
    assert all(command.startswith(("pytest ", "make ")) for command in _CODE.findall(run))


def test_the_table_names_every_recipe() -> None:
    recipes = {f"tests/recipes/{each.name}" for each in (ROOT / "tests" / "recipes").glob("*.patch")}
    assert len(rows()) >= 20
    assert recipes <= set(_CODE.findall(TABLE))


@pytest.mark.parametrize("page", [READING, CONTRIBUTING], ids=["reading", "contributing"])
def test_the_paths_and_commands_of_a_page_are_there(page: str) -> None:
    assert not missing(page)


def missing(page: str) -> list[str]:
    """Returns the paths, the paths of ``pytest`` and the targets of ``make`` that a page names and that are not
    there."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    code = [*_CODE.findall(re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL))]
    code += re.findall(r"^\$ ([^#\n]+)", page, re.MULTILINE)
    paths = {path for text in code for path in _PATH.findall(text) if "*" not in text}
    made = {target for text in code for target in re.findall(r"^make ([\w-]+)", text)}
    return sorted({path for path in paths if not (ROOT / path).exists()} | (made - targets))


def test_what_was_moved_is_noticed() -> None:
    assert missing("`oxide/compiler/compiler.py`, `pytest -q tests/language -k a`, `make tests`, `make test`") == [
        "oxide/compiler/compiler.py",
        "tests",
    ]
    (stop,) = stops(
        "### 1. `oxide/errors.py`, from `OxideError` up to `DeviceError`\n\nLook for `nothing_there`. *Why?*\n"
    )
    assert stop.lines()[0].startswith("class OxideError")
    assert stop.names() == ["nothing_there"]
    with pytest.raises(AssertionError):
        test_a_stop_has_names_that_are_in_its_file_and_a_question(stop)
