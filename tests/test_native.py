"""The two forms of the package: what a wheel compiles, what a checkout runs, and what both promise."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import oxide.distributed
import oxide.driver.cuda
import oxide.runtime
import oxide.tracing.recording
from oxide import DeviceOperation, ExecutionContext, native
from oxide.__main__ import main

ROOT = Path(__file__).parent.parent
CHECKOUT = Path(native.__file__).parent.parent == ROOT

needs_checkout = pytest.mark.skipif(not CHECKOUT, reason="the tests of an installed wheel")


def test_the_form_is_the_one_that_was_asked_for() -> None:
    """``make test-wheel`` sets the variable for its tests."""
    assert native.is_compiled() or CHECKOUT or os.environ.get("OXIDE_NATIVE") != "1"


def test_every_module_of_the_host_path_is_compiled_in_a_wheel_but_the_exceptions() -> None:
    build = pytest.importorskip("build_backend")  # needs setuptools
    package = Path(native.__file__).parent.parent
    for folder in (oxide.runtime, oxide.driver.cuda, oxide.tracing.recording, oxide.distributed):
        for module in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}."):
            if module.ispkg or module.name == "oxide.driver.cuda.call":
                continue
            file = Path(module.module_finder.find_spec(module.name, None).origin)  # type: ignore
            source = file.with_name(f"{module.name.rpartition('.')[2]}.py").relative_to(package).as_posix()
            compiled = file.name.endswith(tuple(EXTENSION_SUFFIXES))
            assert compiled == (native.is_compiled() and source not in build.INTERPRETED), source


def test_the_compiled_form_is_what_is_imported() -> None:
    """``is_compiled`` looks for one module's file. The operations' modules must be of that form too."""
    file = importlib.import_module("oxide.runtime.operations.operation").__file__
    assert file is not None
    assert file.endswith(tuple(EXTENSION_SUFFIXES)) == native.is_compiled()


@needs_checkout
def test_a_checkout_has_no_extension_module_that_would_hide_an_edit() -> None:
    found = {
        path.name.partition(".")[0] for suffix in EXTENSION_SUFFIXES for path in (ROOT / "oxide").rglob(f"*{suffix}")
    }
    assert found <= {"_core"}  # of C, which no edit of Python's changes


@needs_checkout
def test_every_exception_is_a_module() -> None:
    build = pytest.importorskip("build_backend")
    assert [path for path in build.INTERPRETED if not (ROOT / path).exists()] == []


@needs_checkout
def test_a_module_that_reads_its_callers_variables_stays_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    build = pytest.importorskip("build_backend")
    monkeypatch.chdir(ROOT)
    assert len(build.modules()) > 50
    assert [path for path in build.modules() if "f_locals" in Path(path).read_text(encoding="utf-8")] == []


@pytest.fixture
def small_package(tmp_path: Path) -> Path:
    """The checkout, with one module of ``runtime`` besides what tells the form, so that it builds in seconds."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path / "checkout"
    for file in (
        *("build_backend.py", "setup.py", "native.ini", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"),
        *(
            "oxide_command.py",
            "oxide/__main__.py",
            "oxide/native.py",
            "oxide/errors.py",
            "oxide/runtime/__init__.py",
            "oxide/locks.py",
        ),
        *("oxide/driver/cuda/__init__.py", "oxide/driver/cuda/call.c"),
    ):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file)
    (folder / "oxide/__init__.py").touch()
    return folder


def build_wheel(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--verbose", "--no-deps"]
    variables = {name: value for name, value in os.environ.items() if name not in ("OXIDE_NATIVE", "PYTHONPATH")}
    return subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", "made", "."],
        cwd=folder,
        env=variables | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def form_of(wheel: Path, folder: Path) -> str:
    """What the runtime's module of an unpacked wheel runs as."""
    zipfile.ZipFile(wheel).extractall(folder)
    program = "import oxide.native, oxide.locks as locks; print(oxide.native.form(), locks.new_lock())"
    run = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.nightly
@needs_checkout
def test_a_wheel_has_compiled_modules_next_to_their_sources(small_package: Path, tmp_path: Path) -> None:
    build = pytest.importorskip("build_backend")
    pytest.importorskip("mypyc")
    if reason := build.without_c_compiler():
        pytest.skip(reason)
    (small_package / "build/lib/oxide").mkdir(parents=True)
    done = build_wheel(small_package, OXIDE_NATIVE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (small_package / "made").iterdir()
    names = set(zipfile.ZipFile(wheel).namelist())
    suffix = EXTENSION_SUFFIXES[0]
    assert {"oxide/locks.py", f"oxide/locks{suffix}", f"oxide/driver/cuda/call{suffix}"} <= names
    assert form_of(wheel, tmp_path / "unpacked").startswith("compiled <oxide.locks.Lock object")
    assert not list((small_package / "oxide").rglob(f"*{suffix}"))


@pytest.mark.slow
@needs_checkout
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"CC": "/bin/false"}, "no C compiler with Python's headers was found"),
        ({"PYTHONPATH": "without"}, "mypyc is missing (none here)"),
        ({"OXIDE_NATIVE": "0"}, "OXIDE_NATIVE=0"),
    ],
)
def test_a_build_that_cannot_compile_says_why_and_makes_an_interpreted_wheel(
    small_package: Path, tmp_path: Path, environment: dict[str, str], reason: str
) -> None:
    if "PYTHONPATH" in environment:
        (small_package / "without/mypyc").mkdir(parents=True)
        (small_package / "without/mypyc/__init__.py").write_text("raise ImportError('none here')\n")
        environment = {"PYTHONPATH": str(small_package / "without")}
    done = build_wheel(small_package, **environment)
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "oxide: this wheel" in line]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(said) == 1
    assert said[0].startswith(f"oxide: this wheel runs interpreted: {reason}")
    (wheel,) = (small_package / "made").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert form_of(wheel, tmp_path / "unpacked").startswith("interpreted <unlocked _thread.RLock")


@needs_checkout
def test_a_compiled_wheel_that_was_asked_for_and_cannot_be_had_is_an_error(small_package: Path) -> None:
    done = build_wheel(small_package, OXIDE_NATIVE="1", CC="/bin/false")
    assert done.returncode != 0
    assert "oxide: OXIDE_NATIVE=1, and nothing is compiled: no C compiler" in done.stdout + done.stderr


@needs_checkout
def test_a_checkout_in_which_nothing_was_built_runs_the_twin(tmp_path: Path) -> None:
    """Its folder of C is no extension."""
    package = tmp_path / "oxide"
    shutil.copytree(ROOT / "oxide/_core", package / "_core")
    (package / "__init__.py").touch()
    for name in ("core.py", "_core_twin.py"):
        shutil.copy(ROOT / "oxide" / name, package)
    program = "import oxide.core as core; print(core.FORM, core.NOTIFY > 0, core.start_helpers)"
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout == "Python True None\n"


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
