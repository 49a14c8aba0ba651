"""Patches that add one thing of its kind, such as a dtype, with its own test: how many files that touches, and that no
other place has to know of it.

Each patch is applied to a copy of the tree, its test runs there, and it is reverted. To renew a patch that no longer
applies, make its change by hand and write it with ``git diff -U1``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reach import ROOT

HERE = Path(__file__).parent
MOST_FILES = {"dtype": 5, "scalar_function": 3, "warp_primitive": 3}
"""The most files that a recipe may touch, its test included."""
PARTS = ("oxide", "oxide_kernels", "docs", "tests", "pyproject.toml")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy of what the tests need of the tree."""
    copy = tmp_path_factory.mktemp("tree")
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    return copy


def touched_by(patch: Path) -> list[str]:
    return re.findall(r"^diff --git a/\S+ b/(\S+)$", patch.read_text(), re.MULTILINE)


def apply(patch: Path, tree: Path, *options: str) -> None:
    # A tree below another repository would be taken for a part of that one.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.parent)}
    subprocess.run(["git", "apply", *options, str(patch)], cwd=tree, env=environment, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("patch", sorted(HERE.glob("*.patch")), ids=lambda patch: patch.stem)
def test_a_recipe_touches_few_files_and_works(patch: Path, tree: Path) -> None:
    touched = touched_by(patch)
    assert len(touched) <= MOST_FILES[patch.stem], touched
    before = {path: (tree / path).read_bytes() for path in touched if (tree / path).exists()}
    apply(patch, tree)
    try:
        tests = [path for path in touched if path.startswith("tests/")]
        assert tests, "a recipe has a test"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        environment = os.environ | {"PYTHONPATH": str(tree), "OXIDE_DEVICE": "cpu"}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        apply(patch, tree, "--reverse")
    assert before == {path: (tree / path).read_bytes() for path in touched if (tree / path).exists()}
