"""What it takes to add one thing to the project: each patch here adds one, with its test.

A patch is applied to a copy of the tree, its test is run there, and it is taken back. ``FILES`` is how many files a
patch may touch, its test's included: what an addition touches is a promise of the design. If a patch no longer applies,
because the code around it has changed, apply it by hand (``git apply --3way``) and write it again (``git diff``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = {"dtype": 5, "kernel_option": 5, "operation": 4, "scalar_function": 3, "tile_word": 4, "warp_primitive": 3}
"""The most files that a recipe touches."""

COPIED = ("oxide", "oxide_kernels", "docs", "tests", "examples", "pyproject.toml")


def touched(patch: Path) -> list[str]:
    """Returns the files that a patch changes or adds."""
    lines = patch.read_text().splitlines()
    return [line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")]


def run(command: list[str], tree: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(tree), "OXIDE_CACHE_DIR": str(tree / "cache")}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def contents(tree: Path, files: list[str]) -> dict[str, str | None]:
    return {each: (tree / each).read_text() if (tree / each).exists() else None for each in files}


def test_each_recipe_says_how_many_files_it_touches() -> None:
    assert {each.stem for each in HERE.glob("*.patch")} == FILES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_recipe_is_applied_works_and_is_taken_back(name: str, tmp_path: Path) -> None:
    patch = HERE / f"{name}.patch"
    files = touched(patch)
    assert len(files) <= FILES[name], files
    tests = [each for each in files if Path(each).name.startswith("test_")]
    assert tests, "a recipe brings its test"
    tree = tmp_path / "tree"
    for each in COPIED:
        if (ROOT / each).is_dir():
            shutil.copytree(ROOT / each, tree / each, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(ROOT / each, tree / each)
    before = contents(tree, files)
    run(["git", "apply", str(patch)], tree)
    run([sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *tests], tree)
    run(["git", "apply", "--reverse", str(patch)], tree)
    assert contents(tree, files) == before
