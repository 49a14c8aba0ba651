"""How the package is built and what an installed one has: the core in C or its twin, the tags of wheels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from oxide.__main__ import main
from oxide.host import core

ROOT = Path(__file__).parent.parent
TWIN = ("oxide/_core_twin.py", "oxide/host/_device_twin.py")
CHECKOUT = Path(core.__file__).parents[2] == ROOT

needs_checkout = pytest.mark.skipif(not CHECKOUT, reason="the tests of an installed wheel")


def test_the_core_is_in_the_form_that_was_asked_for() -> None:
    """``make test-wheel`` sets the variable for its tests."""
    asked = os.environ.get("OXIDE_CORE")
    assert {"0": "Python", "require": "C"}.get(asked or "", core.FORM) == core.FORM


def test_info_says_which_core_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    assert f"core: {core.FORM}\n" in capsys.readouterr().out


@pytest.fixture
def small_package(tmp_path: Path) -> Path:
    """The checkout, with the core alone, so that it builds in a second."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path / "checkout"
    files = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "oxide_command.py", "oxide/host/core.py")
    for file in (*files, *TWIN, *(path.relative_to(ROOT) for path in (ROOT / "oxide/_core").iterdir())):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file)
    (folder / "oxide/__init__.py").touch()
    return folder


def build(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name not in ("OXIDE_CORE", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=variables | environment, capture_output=True, text=True, check=False
    )


def build_wheel(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ("-m", "pip", "--disable-pip-version-check", "wheel", "--verbose", "--no-deps", "--no-build-isolation")
    return build(folder, *command, "--wheel-dir", "made", ".", **environment)


def form_of(wheel: Path, folder: Path) -> str:
    """What the core of an unpacked wheel runs as."""
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(folder)
    program = "import oxide.host.core as core; print(core.FORM)"
    ran = build(folder, "-S", "-c", program)  # without the finder of an editable installation, which has a core
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.slow
@needs_checkout
def test_a_wheel_with_the_core_is_for_every_python(small_package: Path, tmp_path: Path) -> None:
    stale = small_package / "build/lib/oxide/stale.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    done = build_wheel(small_package)
    if "oxide: the core is not built" in done.stdout + done.stderr and core.FORM == "Python":
        pytest.skip("there is no C compiler with Python's headers")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (small_package / "made").iterdir()
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert {name for name in names if name.startswith("oxide/")} == {
        *("oxide/__init__.py", "oxide/host/core.py", *TWIN, "oxide/_core.abi3.so")
    }
    assert form_of(wheel, tmp_path / "unpacked") == "C"


@pytest.mark.slow
@needs_checkout
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"CC": "/bin/false"}, "/bin/false"),
        ({"CC": "/no/such/compiler"}, "/no/such/compiler"),
        ({"OXIDE_CORE": "0"}, "OXIDE_CORE=0"),
        ({"PYTHONPATH": "without"}, "a free-threaded Python has no limited API before 3.15"),
    ],
)
def test_a_build_without_the_core_says_why_and_makes_a_wheel_of_python(
    small_package: Path, tmp_path: Path, environment: dict[str, str], reason: str
) -> None:
    if "PYTHONPATH" in environment:
        environment = {"PYTHONPATH": free_threaded(tmp_path)}
    done = build_wheel(small_package, **environment)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "oxide: the core is not built" in line]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(said) == 1
    assert said[0].strip().startswith("oxide: the core is not built, and its twin in Python runs: ")
    assert reason in said[0]
    (wheel,) = (small_package / "made").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert form_of(wheel, tmp_path / "unpacked") == "Python"


@pytest.mark.slow
@needs_checkout
@pytest.mark.parametrize("reason", ["/bin/false", "free-threaded"])
def test_a_core_that_is_required_and_cannot_be_built_is_an_error(
    small_package: Path, tmp_path: Path, reason: str
) -> None:
    environment = {"CC": "/bin/false"} if reason == "/bin/false" else {"PYTHONPATH": free_threaded(tmp_path)}
    done = build_wheel(small_package, OXIDE_CORE="require", **environment)
    assert done.returncode != 0
    (said,) = (line for line in (done.stdout + done.stderr).splitlines() if "oxide: " in line)
    assert "oxide: OXIDE_CORE=require, and the core is not built: " in said
    assert reason in said


def free_threaded(folder: Path) -> str:
    """Returns a path for Python's modules with which it says that it has no GIL."""
    (folder / "without").mkdir()
    program = "import sysconfig\nsysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1\n"
    (folder / "without/sitecustomize.py").write_text(program)
    return str(folder / "without")


@pytest.mark.slow
@needs_checkout
def test_a_build_in_place_that_fails_leaves_no_core_of_an_earlier_one(small_package: Path) -> None:
    built = small_package / "oxide/_core.abi3.so"
    built.touch()
    assert build(small_package, "setup.py", "build_ext", "--inplace", CC="/bin/false").returncode == 0
    assert not built.exists()


@pytest.mark.slow
@needs_checkout
def test_the_source_distribution_has_all_that_the_core_is_built_of(small_package: Path) -> None:
    done = build(small_package, "setup.py", "sdist", OXIDE_CORE="0")
    assert done.returncode == 0, done.stderr
    (archive,) = (small_package / "dist").iterdir()
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"setup.py", "oxide_command.py", *(f"oxide/_core/{path.name}" for path in sources())} <= names


@needs_checkout
def test_a_checkout_has_no_extension_module_that_would_hide_an_edit() -> None:
    assert {path.name.partition(".")[0] for path in (ROOT / "oxide").rglob("*.so")} <= {"_core"}
    assert len(sources()) > 3


@needs_checkout
def test_a_checkout_in_which_nothing_was_built_runs_the_twin(tmp_path: Path) -> None:
    """Its folder of C is no extension."""
    package = tmp_path / "oxide"
    shutil.copytree(ROOT / "oxide/_core", package / "_core")
    (package / "__init__.py").touch()
    for name in ("oxide/host/core.py", *TWIN):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    program = "import oxide.host.core as core; print(core.FORM, core.NOTIFY > 0, core.start_helpers)"
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout == "Python True None\n"


def sources() -> list[Path]:
    return [path for path in (ROOT / "oxide/_core").iterdir() if path.suffix in (".c", ".h")]
