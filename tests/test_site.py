"""The book as a site: every block of a page is a block of the built page. Needs the packages of the docs extra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "reference"]
FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>[^`\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


class Blocks(HTMLParser):
    """The blocks of code in a page: the text of each, and whether its words are coloured. ``prose`` is the text outside
    of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.coloured: list[bool] = []
        self.prose = ""
        self._is_inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "pre":
            self._is_inside = True
            self.texts.append("")
            self.coloured.append(False)
        elif tag == "span" and self._is_inside and dict(attrs).get("class"):
            self.coloured[-1] = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            self._is_inside = False

    def handle_data(self, data: str) -> None:
        if self._is_inside:
            self.texts[-1] += data
        else:
            self.prose += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(module, reason="the book is built with the packages of the docs extra (make docs)")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_are_blocks_of_the_site(page: Path, site: Path) -> None:
    written = list(FENCE.finditer(page.read_text(encoding="utf-8")))
    found = Blocks()
    found.feed((site / page.relative_to(ROOT / "docs").with_suffix(".html")).read_text(encoding="utf-8"))
    assert [text.rstrip() for text in found.texts] == [shown(block) for block in written]
    assert "```" not in found.prose
    for block, is_coloured in zip(written, found.coloured, strict=True):
        assert is_coloured or "python" not in block["kind"], block["text"]


def shown(block: re.Match[str]) -> str:
    """Returns a block's text as Markdown shows it: without the indent of its fence, and with blanks for tabs."""
    return re.sub(f"^{block['indent']}", "", block["text"], flags=re.MULTILINE).expandtabs(4).rstrip()
