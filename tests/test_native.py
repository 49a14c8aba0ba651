"""The compiled form of the package: when it runs, that an edited source is never hidden by it, and what it promises."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oxide import DeviceOperation, ExecutionContext, native
from oxide.__main__ import main

ROOT = Path(__file__).parent.parent
SHOW = "import oxide.runtime, oxide.native; print(oxide.native.form())"

needs_compiled = pytest.mark.skipif(not native.is_compiled(), reason="runs interpreted; make test-native compiles it")


def run_python(program: str, path: Path, oxide_native: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path)}
    environment.pop("OXIDE_NATIVE", None)
    if oxide_native is not None:
        environment["OXIDE_NATIVE"] = oxide_native
    return subprocess.run(
        [sys.executable, "-c", program], cwd=path, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package like oxide, of two modules, one of which was compiled, and the folder that it is in."""
    folder = tmp_path / "oxide"
    (folder / "runtime/loop").mkdir(parents=True)
    (folder / "__init__.py").touch()
    shutil.copy(ROOT / "oxide/native.py", folder)
    for place in ("runtime", "runtime/loop"):
        shutil.copy(ROOT / f"oxide/{place}/__init__.py", folder / place)
    (folder / "runtime/loop/turns.py").write_text("NUMBER = 1\n")
    listing = Path(native.fingerprints_path(str(folder)))
    listing.parent.mkdir()
    listing.write_text(native.fingerprints(str(folder), ["runtime/loop/turns.py"]))
    return folder


def test_a_source_that_was_edited_since_runs_and_a_warning_names_it(package: Path) -> None:
    (package / "runtime/loop/turns.py").write_text("NUMBER = 2\n")
    run = run_python(f"{SHOW}\nimport oxide.runtime.loop.turns as t; print(t.NUMBER)", package.parent)
    assert run.stdout.split() == ["interpreted", "2"]
    assert "oxide/runtime/loop/turns.py changed since" in run.stderr
    assert "make native" in run.stderr


def test_an_edited_source_is_an_error_where_the_compiled_form_is_asked_for(package: Path) -> None:
    (package / "runtime/loop/turns.py").write_text("NUMBER = 2\n")
    run = run_python(SHOW, package.parent, "1")
    assert "ImportError: OXIDE_NATIVE=1" in run.stderr
    assert "oxide/runtime/loop/turns.py changed since" in run.stderr


def test_an_edited_source_is_no_news_where_the_interpreted_form_is_asked_for(package: Path) -> None:
    (package / "runtime/loop/turns.py").write_text("NUMBER = 2\n")
    run = run_python(SHOW, package.parent, "0")
    assert (run.stdout.strip(), run.stderr) == ("interpreted", "")


def test_a_form_that_there_is_not_is_refused_by_name(package: Path) -> None:
    run = run_python(SHOW, package.parent, "yes")
    assert "ImportError: OXIDE_NATIVE='yes': 0 or 1 is needed" in run.stderr


def test_without_compiled_modules_the_package_is_interpreted_and_says_nothing(package: Path) -> None:
    shutil.rmtree(package / "compiled")
    run = run_python(SHOW, package.parent)
    assert (run.stdout.strip(), run.stderr) == ("interpreted", "")
    run = run_python(SHOW, package.parent, "1")
    assert "ImportError: OXIDE_NATIVE=1 asks for compiled modules, and this Python has none" in run.stderr
    assert (
        "make native compiles them in a checkout, OXIDE_NATIVE=1 pip install . makes and installs a wheel" in run.stderr
    )


def test_a_compiled_module_beside_its_source_would_have_hidden_the_edit() -> None:
    """Why they lie elsewhere: none may be where Python looks before the sources."""
    beside = [path for path in (ROOT / "oxide").rglob("*.so") if "compiled" not in path.parts]
    assert not beside


@needs_compiled
def test_a_copy_of_the_package_runs_compiled_until_a_source_of_it_is_edited(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "oxide", tmp_path / "oxide", ignore=shutil.ignore_patterns("__pycache__"))
    where = "import oxide.runtime.launching.launch as launch; print(launch.__file__)"
    run = run_python(f"{SHOW}\n{where}", tmp_path)
    assert run.stdout.split()[0] == "compiled"
    assert run.stdout.split()[1].startswith(str(tmp_path / "oxide/compiled"))
    with (tmp_path / "oxide/runtime/launching/launch.py").open("a") as file:
        file.write("# edited\n")
    run = run_python(f"{SHOW}\n{where}", tmp_path)
    assert run.stdout.split() == ["interpreted", str(tmp_path / "oxide/runtime/launching/launch.py")]
    assert "oxide/runtime/launching/launch.py changed since" in run.stderr


def test_a_build_that_cannot_be_had_says_so_and_leaves_the_package_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    (tmp_path / "mypyc").mkdir()
    (tmp_path / "mypyc/__init__.py").write_text("raise ImportError('none here')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OXIDE_NATIVE": "1"}
    run = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(tmp_path / "out")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "oxide: the compiled form is made by mypyc, which is not there (none here)" in run.stderr
    assert "runs interpreted" in run.stderr
    assert not (tmp_path / "out").exists()


@needs_compiled
@pytest.mark.parametrize("arguments", [["--inplace"], ["--build-lib", "."]])
def test_what_was_built_in_a_checkout_runs_compiled(tmp_path: Path, arguments: list[str]) -> None:
    """``--inplace`` is what an editable installation asks for."""
    pytest.importorskip("setuptools", minversion="77")
    pytest.importorskip("mypyc")
    shutil.copytree(ROOT / "oxide", tmp_path / "oxide", ignore=shutil.ignore_patterns("__pycache__", "compiled"))
    for name in ("native.ini", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    text, few = re.subn(
        r"(?s)\nMODULES = \[.*?\n\]", "\nMODULES = ['runtime/loop/turns.py']", (ROOT / "setup.py").read_text()
    )
    assert few == 1
    (tmp_path / "setup.py").write_text(text)
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", *arguments, "--build-temp", "temporary"],
        cwd=tmp_path,
        env={**os.environ, "OXIDE_NATIVE": "1"},
        check=True,
        capture_output=True,
    )
    run = run_python(f"{SHOW}\nimport oxide.runtime.loop.turns as t; print(t.__file__)", tmp_path, "1")
    assert run.stdout.split()[0] == "compiled", run.stderr
    assert run.stdout.split()[1].startswith(str(tmp_path / "oxide/compiled"))


def test_info_says_which_form_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    assert f"host path: {native.form()}" in capsys.readouterr().out


class Mine(DeviceOperation[int]):
    """An operation of a user's, which inherits its finaliser."""

    def execute(self, context: ExecutionContext) -> int:
        return 7


class Heir(Mine):
    """Another, of that class's."""


@pytest.mark.parametrize("kind", [Mine, Heir])
def test_dropping_a_users_operation_keeps_the_exception_that_is_being_raised(kind: type[Mine]) -> None:
    def fail() -> None:
        raise KeyError("the program's own")

    # The operation is on the stack of the frame that the exception leaves, and dropped while it is on its way.
    with pytest.warns(RuntimeWarning, match="was never run"), pytest.raises(KeyError, match="the program's own"):
        print(kind(), fail())
    assert kind().sync() == 7


def test_a_cause_is_kept_in_both_forms() -> None:
    first, then = ValueError(), KeyError()
    assert native.caused(then, first) is then
    assert then.__cause__ is first
    assert native.caused(then, None).__suppress_context__
