"""``oxide new``: the project runs and tests at once, offline, with what is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from oxide.commands.new import FILES
from tests.commands.command_line import ROOT, oxide


def make(target: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", target], cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


@pytest.mark.nightly
def test_a_new_project_tests_runs_and_is_sanitized(tmp_path: Path) -> None:
    made = oxide("new", "waves", cwd=tmp_path)
    assert (made.status, made.err) == (0, "")
    assert made.out == "waves: made. Next: cd waves && make test && make run\n"
    folder = tmp_path / "waves"
    tested = make("test", folder)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "Ran 2 tests" in tested.stderr
    ran = make("run", folder)
    assert ran.returncode == 0, ran.stderr
    assert "signal 3: standard deviation" in ran.stdout
    assert "RuntimeWarning" not in tested.stderr + ran.stderr
    sanitized = make("sanitize", folder)
    assert sanitized.returncode == 0, sanitized.stdout + sanitized.stderr
    assert "CPU device, memory and race: no findings" in sanitized.stdout
    inspected = oxide("inspect", "waves.kernels:smooth", cwd=folder)
    assert inspected.status == 0, inspected.err
    assert "y: proved" in inspected.out


def test_its_tests_find_a_wrong_kernel(tmp_path: Path) -> None:
    assert oxide("new", "waves", cwd=tmp_path).status == 0
    kernels = tmp_path / "waves" / "waves" / "kernels.py"
    kernels.write_text(kernels.read_text().replace("x[at - 1] + x[at]", "x[at] + x[at]"))
    tested = make("test", tmp_path / "waves")
    assert tested.returncode != 0
    assert "FAILED (" in tested.stderr


def test_its_files_are_well_formed_and_fit_this_version(tmp_path: Path) -> None:
    assert oxide("new", "waves", cwd=tmp_path).status == 0
    folder = tmp_path / "waves"
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select=E,F,I,UP,B,SIM,RET"], ["format", "--check"]):
        ran = subprocess.run(
            [*ruff, *command, "--isolated", "--line-length=120", "."],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name, _, version = project["project"]["dependencies"][0].partition(">=")
    assert name == ours["name"]
    assert version.partition(",")[0] == ".".join(ours["version"].split(".")[:2])
    assert {"numpy>=2.0,<2.5", "trio>=0.27"} <= {*project["project"]["dependencies"]} & {*ours["dependencies"]}
    assert "local.mk" in (folder / ".gitignore").read_text().splitlines()
    made = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    texts = {path: (folder / path).read_text() for path in made if "cache" not in path}
    assert set(texts) == {path.replace("NAME", "waves") for path in FILES} | {"local.mk"}
    assert not [path for path, text in texts.items() if "NAME" in text]


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "waves").mkdir()
    ran = oxide("new", "waves", cwd=tmp_path)
    assert (ran.status, ran.out) == (2, "")
    assert "'waves': there is a file or folder of this name here already" in ran.err
    assert not list((tmp_path / "waves").iterdir())


def test_a_name_that_the_system_refuses_is_said(tmp_path: Path) -> None:
    ran = oxide("new", "a" * 300, cwd=tmp_path)
    assert ran.status == 2
    assert "cannot be written: File name too long" in ran.err
