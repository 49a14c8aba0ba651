"""Quick runs take what they say: one case where the cases take long, the nearest tests of a change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import check, reach

ROOT = Path(__file__).parent.parent
CASES = """
import pytest

@pytest.mark.parametrize("n", range(9))
def test_of_many(n): pass

@pytest.mark.slow
@pytest.mark.parametrize("n", range(9))
def test_of_long_ones(n): pass

@pytest.mark.parametrize("n", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_of_which_some_are_long(n): pass

@pytest.mark.nightly
def test_of_the_night(): pass
"""


def names(folder: Path, *arguments: str) -> list[str]:
    """The cases that a run would take."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    nightly\n")
    (folder / "test_cases.py").write_text(CASES)
    options = ["-p", "tests.choosing", "-p", "no:cacheprovider", "--collect-only", "-q"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.partition("::")[2].partition("[")[0] for line in ran.stdout.splitlines() if "::" in line]


def test_a_sample_has_one_case_of_slow_tests_and_none_of_the_night(tmp_path: Path) -> None:
    assert len(names(tmp_path)) == 9 + 9 + 3 + 1
    sample = names(tmp_path, "--sample")
    assert sample == [*["test_of_many"] * 9, "test_of_long_ones", *["test_of_which_some_are_long"] * 2]


def test_tests_are_as_far_as_the_chain_of_imports() -> None:
    memory = reach.distances(Path("oxide/runtime/memory/memory.py"))
    assert memory[Path("tests/runtime/memory/test_dropped_boxes.py")] == 1  # the folder that mirrors it
    boards = reach.distances(Path("oxide/distributed/boards.py"))
    assert boards[Path("tests/distributed/test_boards.py")] == 1
    assert Path("tests/compiler/ir/test_verifier.py") not in boards
    hoist = reach.distances(Path("oxide/compiler/bounds/hoist.py"))
    assert hoist[Path("tests/fuzz/test_fuzz.py")] == 1  # a row of the architecture's table names both
    assert hoist[Path("tests/compiler/bounds/test_loop_checks.py")] < hoist[Path("tests/kernels/test_library.py")]


def test_a_test_is_nearest_to_itself_and_next_to_what_it_imports() -> None:
    assert reach.distances(Path("tests/test_limits.py"))[Path("tests/test_limits.py")] == 0
    assert reach.distances(Path("tests/programs.py"))[Path("tests/test_readme.py")] == 1


def test_a_budget_takes_the_nearest_and_of_these_the_quickest(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = "tests/distributed/test_boards.py", "tests/distributed/test_processes.py"
    monkeypatch.setattr(reach, "times", lambda: {f"{near}::slow": 5.0, f"{near}::mean": 2.0, f"{far}::far": 1.0})
    monkeypatch.setattr(reach, "distances", lambda path: {Path(near): 1, Path(far): 3})
    cases = {f"{far}::far": 3, f"{near}::slow": 1, f"{near}::mean": 1, "tests/test_limits.py::unreached": 1}
    changed = (Path("oxide/distributed/boards.py"),)
    assert reach.Budget(changed, 7).choose(cases) == {f"{near}::slow", f"{near}::mean"}
    assert reach.Budget(changed, 5).choose(cases) == {f"{near}::mean", f"{far}::far"}
    assert reach.Budget(changed, 100).choose(cases) == set(cases) - {"tests/test_limits.py::unreached"}


def test_a_page_is_checked_by_its_own_programs_and_the_tests_that_name_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert Path("tests/test_readme.py") in reach.files([Path("docs/cache.md")])
    assert check.run_tests([Path("tests/test_readme.py")], [Path("docs/cache.md")], 20, "--collect-only", "-n0") == 0
    collected = capfd.readouterr().out
    assert "cache.md:" in collected
    assert "tiles.md:" not in collected
    assert "left out: 0 of the tests that the change reaches" in collected


def test_what_was_changed_is_what_git_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "ROOT", tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    for number in range(2):
        (tmp_path / f"{number}.py").write_text(str(number))
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", "x"], check=True)
    assert check.changed_files(None) == ("the last commit", [Path("1.py")])
    (tmp_path / "0.py").write_text("changed")
    (tmp_path / "a new one.py").write_text("new")
    assert check.changed_files(None) == ("what differs from HEAD", [Path("0.py"), Path("a new one.py")])
    assert check.changed_files("HEAD~1")[1] == [Path("0.py"), Path("1.py"), Path("a new one.py")]


def test_the_times_are_of_tests_that_there_are() -> None:
    times = json.loads(reach.TIMES.read_text(encoding="utf-8"))
    gone = {name for name in times if not (ROOT / name.partition("::")[0]).exists()}
    assert len(gone) < len(times) / 10, "renew them: make times"
