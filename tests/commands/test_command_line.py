"""The program as a whole: help, usage errors, plain output, what it imports, and who may import it."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oxide import __version__
from oxide.commands.program import main
from oxide.host import core
from tests.commands.command_line import ROOT, oxide
from tests.reach import imports_of, module_name
from tests.test_project import is_within

COMMANDS = ("doctor", "new", "run", "profile", "trace", "sanitize", "inspect", "graph", "info")
HEAVY = {"numba", "numba_cuda", "llvmlite", "trio", "cuda"}


def test_the_program_and_its_help_in_a_process_of_its_own(tmp_path: Path) -> None:
    ran = oxide("--help", cwd=tmp_path, FORCE_COLOR="1", TERM="xterm-256color")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith("Usage: oxide ")
    assert "Exit status:" in ran.out
    assert "\x1b" not in ran.out
    assert all(f"\n  {name} " in ran.out for name in (*COMMANDS, "cache"))
    assert "..." not in ran.out.partition("Commands:")[2]
    ran = oxide("inspekt", cwd=tmp_path)
    assert (ran.status, ran.out) == (2, "")
    assert "No such command 'inspekt'" in ran.err


@pytest.mark.parametrize("command", [(name,) for name in COMMANDS] + [("cache", name) for name in ("list", "clear")])
def test_the_help_of_each_command_has_an_example(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: oxide {' '.join(command)}" in shown
    assert re.search(rf"Examples?:\n(.*\n)*    oxide {' '.join(command)}", shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "Missing argument 'FILE'"),
        (["run", "no_such.py"], "oxide run: no_such.py: there is no such file"),
        (["run", "--device", "gpu", __file__], "--device gpu: name cpu, cuda or one GPU, as cuda:1"),
        (["run", "--device", "cuda:99", __file__], "oxide run: --device cuda:99: "),
        (["run", "--device", "cpu:1", __file__], "--device cpu:1: name cpu, cuda or one GPU"),
        (["run", "--sanitize", "leaks", __file__], "the sanitizer looks for memory and race, and 'leaks' is neither"),
        (["run", "--sanitize", ",", __file__], "name memory, race or memory,race"),
        (["run", "--seed", "-1", __file__], "--seed -1: give a whole number of 0 or more"),
        (["run", "--seed", "1", "--device", "cuda", __file__], "--seed is of the CPU device, and --device is cuda"),
        (["run", "--interpret", "--device", "cuda", __file__], "--interpret is of the CPU device"),
        (["run", "--trace", "no/such/out.json", __file__], "--trace no/such/out.json: there is no folder"),
        (["run", "--trace", "-", __file__], "--trace -: standard output is the program's; name a file"),
        (["profile", "--json", "-", __file__], "--json -: standard output is the program's; name a file"),
        (["sanitize", "no_such.py"], "oxide sanitize: no_such.py: there is no such file"),
        (["sanitize", "--device", "tpu", __file__], "--device tpu: name all, cpu or cuda"),
        (["sanitize", "--kinds", "leaks", __file__], "and 'leaks' is neither"),
        (["profile", "no_such.py"], "oxide profile: no_such.py: there is no such file"),
        (["profile", "--json", "no/such/out.json", __file__], "--json no/such/out.json: there is no folder"),
        (["inspect", "oxide_kernels:relu", "--ptx", "--asm"], "choose one of --ptx and --asm"),
        (["inspect", "oxide_kernels:relu", "--ptx", "--cc", "nine"], "--cc nine: give a compute capability, as 9.0"),
        (["inspect", "oxide_kernels:relu", "--ptx", "--cc", "9.7"], "there is no PTX for compute capability 9.7"),
        (
            ["inspect", "oxide_kernels:relu", "--llvm", "--source"],
            "--source goes with --checks, --ptx, --sass and --asm",
        ),
        (["inspect", "no_such.py:relu"], "there is no file no_such.py"),
        (["graph", "no_such.py:operation"], "there is no file no_such.py"),
        (["graph", "oxide_kernels:no_such"], "oxide_kernels has no no_such; nothing there can be drawn"),
        (["graph", "oxide_kernels"], "oxide_kernels has no object without a name"),
        (["graph", "oxide_kernels:relu"], "relu is a kernel; an operation is its launch with arguments"),
        (["graph", "oxide_kernels:relu"], "such as `recipe = relu[grid, block](...)`"),
        (["graph", "examples.tiles.softmax:softmax"], "such as `recipe = softmax(...)`"),
        (["new", "two words"], "'two words': a package is named by letters, digits and _"),
        (["new", "2d"], "begins with no digit"),
        (["new", "naïve"], "a package is named by letters"),
        (["new", "class"], "this is a word of Python's grammar"),
        (["new", "json"], "there is a module of this name"),
        (["new", "numpy"], "there is a module of this name"),
        (["new", "tests"], "the project has a file or folder of this name"),
        (["new", "_x"], "is private"),
    ],
)
def test_wrong_usage_is_said_on_standard_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert "\x1b" not in shown.err


def test_the_version_is_that_of_the_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = Path(core.__file__).parents[1]
    ran = oxide("--version", cwd=tmp_path)
    assert (ran.status, ran.out, ran.err) == (0, f"oxide {__version__}\n", "")
    assert main(["info"]) == 0
    assert capsys.readouterr().out.startswith(f"oxide {__version__} in {package}, Python ")
    assert main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "version": __version__,
        "package": str(package),
        "python": platform.python_version(),
        "core": core.FORM,
    }


def test_a_terminal_gets_colours_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["run", "no_such.py"]) == 2
    assert "\x1b[1;31moxide run: " in capsys.readouterr().err
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["run", "no_such.py"]) == 2
    assert "\x1b[" not in capsys.readouterr().err.replace("\x1b[1m", "").replace("\x1b[0m", "")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["doctor", "--help"], ["cache", "size"], ["new", "class"]])
def test_commands_that_compile_nothing_import_no_compiler(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom oxide.commands.program import main\n"
        f"main({arguments})\n"
        "print('loaded:', *{name.partition('.')[0] for name in sys.modules})\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(ran.stdout.rpartition("loaded:")[2].split()).isdisjoint(HEAVY)


def test_only_the_program_imports_the_commands() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {imported}"
        for path in sorted((ROOT / "oxide").rglob("*.py"))
        if not is_within(module_name(path.relative_to(ROOT)), "oxide.commands") and path.name != "__main__.py"
        for line, imported in imports_of(path, types=True)
        if is_within(imported, "oxide.commands") or imported.partition(".")[0] in {"typer", "rich"}
    ]
    assert not wrong


def test_the_shell_can_complete_commands(tmp_path: Path) -> None:
    ran = oxide(cwd=tmp_path, _OXIDE_COMPLETE="complete_bash", COMP_WORDS="oxide sa", COMP_CWORD="1")
    assert "sanitize" in ran.out
