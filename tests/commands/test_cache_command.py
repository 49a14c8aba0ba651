"""``oxide cache``: what is there, is it intact, and away with it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oxide import DisjointSlice, f32, kernel, thread
from oxide.commands.program import main
from oxide.host import disk
from tests.commands.command_line import oxide


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with the types, the IR and the PTX of one kernel, and a file of the runtime."""
    monkeypatch.setenv("OXIDE_CACHE_DIR", str(tmp_path / "cache"))

    @kernel
    def halved(x: DisjointSlice[f32]) -> None:
        element = x.get_mut(thread.index_1d())
        if element is not None:
            element.value *= f32(0.5)

    halved.ptx()
    disk.write("a", b"some content")
    return tmp_path / "cache"


def test_the_cache_is_listed_measured_and_cleared(cache: Path, tmp_path: Path) -> None:
    where = {"OXIDE_CACHE_DIR": str(cache)}
    listed = oxide("cache", "list", cwd=tmp_path, **where)
    assert (listed.status, listed.err) == (0, "")
    headings, *rows = listed.out.splitlines()
    assert headings.split() == ["kernel", "what", "size", "last", "used", "file"]
    assert len(rows) == 3
    assert sum("halved" in row and "types and IR" in row for row in rows) == 1
    assert sum("halved" in row and "sm_90" in row for row in rows) == 1
    assert sum("of the runtime" in row for row in rows) == 1
    assert all(row == row.rstrip() for row in rows)

    files = json.loads(oxide("cache", "list", "--json", cwd=tmp_path, **where).out)
    total = sum(path.stat().st_size for path in cache.iterdir())
    assert sum(each["bytes"] for each in files) == total
    sized = oxide("cache", "size", cwd=tmp_path, **where)
    assert sized.out.startswith(f"{cache}: 3 files, {total} bytes (")

    asked = oxide("cache", "clear", cwd=tmp_path, **where)
    assert (asked.status, asked.out) == (2, "")
    assert f"this removes 3 files from {cache}; confirm with --yes" in asked.err
    (cache / "notes.txt").write_text("not ours")
    cleared = oxide("cache", "clear", "--yes", cwd=tmp_path, **where)
    assert (cleared.status, cleared.out) == (0, f"3 files removed from {cache}\n")
    assert [path.name for path in cache.iterdir()] == ["notes.txt"]
    assert oxide("cache", "list", cwd=tmp_path, **where).out == "the cache is empty\n"


def test_damaged_files_are_found_and_removed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "verify"]) == 0
    assert capsys.readouterr().out == "3 of 3 files are intact\n"
    damaged = next(path for path in cache.iterdir() if path.name.endswith(".code.oxide"))
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    name = damaged.name.removesuffix(".oxide")
    assert main(["cache", "verify"]) == 1
    shown = capsys.readouterr()
    assert shown.out == f"damaged: {name}\n2 of 3 files are intact\n"
    assert "`oxide cache verify --remove`" in shown.err
    assert main(["cache", "list"]) == 0
    assert f"{name}" in next(line for line in capsys.readouterr().out.splitlines() if " damaged " in line)
    assert main(["cache", "verify", "--remove"]) == 0
    assert capsys.readouterr().out == f"damaged: {name}\n1 of 3 files removed\n"
    assert not damaged.exists()
    assert main(["cache", "verify"]) == 0


def test_looking_is_no_use_of_a_file(cache: Path) -> None:
    long_ago = 1_600_000_000
    for path in cache.iterdir():
        os.utime(path, (long_ago, long_ago))
    for command in ("list", "verify", "size"):
        assert main(["cache", command]) == 0
    assert {each.used for each in disk.stored()} == {long_ago}
    assert disk.read("a") == b"some content"
    assert disk.stored()[0].used > long_ago


def test_a_cache_that_is_off_or_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OXIDE_CACHE_DIR", str(tmp_path / "none"))
    assert main(["cache", "list"]) == 0
    assert capsys.readouterr().out == "the cache is empty\n"
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").touch()
    monkeypatch.setenv("OXIDE_CACHE_DIR", str(tmp_path / "file"))
    assert main(["cache", "size"]) == 2
    assert "which is no directory; OXIDE_CACHE_DIR names another place" in capsys.readouterr().err
    monkeypatch.setenv("OXIDE_CACHE", "0")
    assert main(["cache", "clear", "--yes"]) == 2
    assert "the cache is off (OXIDE_CACHE=0); unset OXIDE_CACHE" in capsys.readouterr().err
