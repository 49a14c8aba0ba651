"""The picture in the book is the one that the page's program writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_readme import ROOT, programs

PAGE = ROOT / "docs" / "notebooks.md"


def test_the_books_picture_is_what_its_program_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = (program for program in programs(PAGE) if "svg(recipe)" in program.code)
    written = tmp_path / "program.py"  # a kernel's source is read from its file
    written.write_text(program.code)
    monkeypatch.chdir(tmp_path)
    exec(compile(program.code, str(written), "exec"), {"__name__": "program"})
    drawn = (tmp_path / "recipe.svg").read_text(encoding="utf-8")
    assert drawn == (ROOT / "docs" / "pictures" / "recipe.svg").read_text(encoding="utf-8")
