"""``oxide run``, ``sanitize`` and ``profile``: programs as a user runs them."""

from __future__ import annotations

import json
import re
import shutil
import stat
import sys
from pathlib import Path

import pytest

from oxide.commands import machine
from oxide.commands.program import main
from oxide.commands.sanitize import tool_findings
from tests.commands.command_line import oxide
from tests.commands.fake_driver import fake_driver

RACE = """
import sys

import numpy as np

from oxide import DisjointSlice, SanitizerError, SharedArray, Slice, f32, h2d, kernel, thread, zeros


@kernel
def reverse(x: Slice[f32], y: DisjointSlice[f32]):
    tile = SharedArray(64, f32)
    i = thread.index_1d()
    tile[i.get()] = x[i.get()]
    out = y.get_mut(i)  # thread.sync_threads() is missing before this line
    if out is not None:
        out.value = tile[63 - i.get()]


if __name__ == "__main__":
    for _ in range(2):
        try:
            reverse[1, 64](h2d(np.zeros(64, np.float32)), zeros(64)).sync()
        except SanitizerError:
            print("handled")
    sys.exit(int(sys.argv[1]))
"""

LOOK = """
import os
import sys

path = os.path.abspath(sys.argv[0])
print(__name__, sys.argv, __file__ == path, sys.path[0] == os.path.dirname(path))
print({name: value for name, value in os.environ.items() if name in LOOKED})
print(sys.stdin.read(), file=sys.stderr)
sys.exit("a message")
"""

NUMBAS = """
import sys

import numpy as np
from numba import cuda


@cuda.jit("void(f8[:])")
def fill(x):
    x[cuda.grid(1)] = 3


x = np.zeros(3)
fill[1, 3](x)
print(x, sys.argv, __name__)
sys.argv[1]
sys.exit(7 if len(sys.argv) > 2 else 0)
"""

LOOKED = ("OXIDE_DEVICE", "OXIDE_SANITIZE", "OXIDE_SEED", "OXIDE_INTERPRET", "OXIDE_TRACE", "CUDA_VISIBLE_DEVICES")
UNSET = dict.fromkeys(LOOKED, "")


@pytest.fixture
def race(tmp_path: Path) -> Path:
    (tmp_path / "race.py").write_text(RACE)
    return tmp_path


@pytest.fixture
def look(tmp_path: Path) -> Path:
    (tmp_path / "look.py").write_text(LOOK.replace("LOOKED", repr(LOOKED)))
    return tmp_path


def seen(out: str) -> dict[str, str]:
    """The variables that the program printed."""
    found: dict[str, str] = eval(out.splitlines()[1])
    return found


def test_a_program_runs_as_python_runs_it(look: Path) -> None:
    ran = oxide("run", "look.py", "--seed", "a b", cwd=look, stdin="typed", **UNSET)
    assert ran.status == 1  # of sys.exit with a message
    assert ran.err == "typed\na message\n"
    assert ran.out.splitlines()[0] == "__main__ ['look.py', '--seed', 'a b'] True True"
    assert seen(ran.out) == {}


def test_options_become_the_programs_environment(look: Path) -> None:
    ran = oxide(
        "run", "--sanitize=race,memory", "--seed", "7", "--interpret", "--trace", "t.json", "look.py", cwd=look, **UNSET
    )
    assert seen(ran.out) == {
        "OXIDE_DEVICE": "cpu",  # as the others are of the CPU device
        "OXIDE_SANITIZE": "memory,race",
        "OXIDE_SEED": "7",
        "OXIDE_INTERPRET": "1",
        "OXIDE_TRACE": "t.json",
    }
    ran = oxide("run", "--device", "cuda", "look.py", cwd=look, **(UNSET | fake_driver(look / "driver")))
    assert seen(ran.out) == {"OXIDE_DEVICE": "cuda"}


@pytest.mark.nightly
def test_numba_cuda_is_oxides_in_the_program(look: Path) -> None:
    (look / "numbas.py").write_text(NUMBAS)
    ran = oxide("run", "--device", "cpu", "--numba-cuda", "numbas.py", "one", cwd=look, **UNSET)
    assert (ran.status, ran.out) == (0, "[3. 3. 3.] ['numbas.py', 'one'] __main__\n")
    ran = oxide("run", "--device", "cpu", "--numba-cuda", "-m", "numbas", "one", "two", cwd=look, **UNSET)
    assert ran.status == 7
    ran = oxide("run", "--device", "cpu", "--numba-cuda", "numbas.py", cwd=look, **UNSET)
    assert ran.status == 1
    lines = ran.err.splitlines()
    assert "numbas.py" in lines[1]  # the first frame is the program's
    assert lines[-1] == "IndexError: list index out of range"


@pytest.mark.parametrize("command", ["run", "profile"])
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_without_a_gpu_the_device_is_refused_before_the_program_runs(
    look: Path, command: str, device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sees_none = machine.CudaDriver((13, 0), "580.1", (), "the NVIDIA driver sees no device")
    none = machine.CudaDriver(None, "", (), "libcuda.so.1 cannot be loaded")
    for driver, message in (
        (none, "no NVIDIA driver: libcuda.so.1 cannot be loaded"),
        (none, "install the NVIDIA driver, release 580 or later"),
        (sees_none, "no GPU can be used: the NVIDIA driver sees no device; look for the GPU with nvidia-smi"),
        (sees_none, "or run with --device cpu"),
    ):
        monkeypatch.setattr(machine, "cuda_driver", lambda driver=driver: driver)
        assert main([command, "--device", device, str(look / "look.py")]) == 2
        written = capsys.readouterr()
        assert written.out == ""
        assert f"oxide {command}: --device {device}: " in written.err
        assert message in written.err


def test_one_gpu_is_the_only_one_that_the_program_sees(look: Path) -> None:
    driver = fake_driver(look / "driver")
    one = oxide("run", "--device", "cuda:0", "look.py", cwd=look, **(UNSET | driver))
    assert seen(one.out) == {"OXIDE_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": "0"}
    of_some = oxide(
        "run", "--device", "cuda:0", "look.py", cwd=look, **(UNSET | driver | {"CUDA_VISIBLE_DEVICES": "3,1"})
    )
    assert seen(of_some.out)["CUDA_VISIBLE_DEVICES"] == "3"
    none = oxide("run", "--device", "cuda:1", "look.py", cwd=look, **(UNSET | driver))
    assert (none.status, none.out) == (2, "")
    assert "--device cuda:1: there is no such GPU; there is 1, numbered from 0" in none.err


@pytest.mark.nightly
def test_a_module_runs_and_the_sanitizer_is_on(race: Path) -> None:
    ran = oxide("run", "--sanitize", "race", "-m", "race", "5", cwd=race, **UNSET)
    assert (ran.status, ran.out, ran.err) == (5, "handled\nhandled\n", "")
    ran = oxide("run", "-m", "no_such_module", cwd=race)
    assert ran.status == 1
    assert "No module named no_such_module" in ran.err


@pytest.mark.nightly
def test_findings_that_the_program_handles_are_in_the_report(race: Path) -> None:
    ran = oxide("sanitize", "--device", "cpu", "race.py", "0", cwd=race)
    assert ran.status == 1, ran.err
    lines = ran.out.splitlines()
    assert lines[:3] == ["handled", "handled", "CPU device, memory and race: 3 findings"]
    assert len(lines) == 6
    assert re.match(
        r"  kernel reverse: race: a write to a SharedArray by .* at .*race\.py:13 .* at .*race\.py:16 \(2 launches\)$",
        lines[3],
    )


@pytest.mark.nightly
def test_a_program_without_findings_and_one_that_fails(tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text(RACE.replace("    out = y", "    thread.sync_threads()\n    out = y"))
    fine = oxide("sanitize", "--device", "cpu", "fine.py", "0", cwd=tmp_path)
    assert (fine.status, fine.out) == (0, "CPU device, memory and race: no findings\n")
    failed = oxide("sanitize", "--device", "cpu", "--kinds", "race", "-m", "fine", "4", cwd=tmp_path)
    assert failed.status == 1
    assert failed.out == "CPU device, race: no findings, but the program failed with exit status 4\n"


LOG = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at scatter+0x1a0 in /work/program.py:12
=========     by thread (3,0,0) in block (0,0,0)
=========
========= Invalid __global__ read of size 4 bytes
=========     at scatter+0x1b0 in /work/program.py:13
=========
========= ERROR SUMMARY: 2 errors
"""

TOOL = f"""#!{sys.executable}
import os, subprocess, sys
arguments = sys.argv[1:]
log = arguments[arguments.index("--log-file") + 1]
tool = arguments[arguments.index("--tool") + 1]
assert os.environ["OXIDE_DEVICE"] == "cuda"
status = subprocess.call(arguments[arguments.index("--error-exitcode") + 2 :])
if tool == "memcheck":
    open(log, "w").write({LOG!r})
    status = int(arguments[arguments.index("--error-exitcode") + 1])
else:
    open(log, "w").write("========= COMPUTE-SANITIZER\\n========= RACECHECK SUMMARY: 0 hazards displayed\\n")
sys.exit(status)
"""


def test_the_gpus_tool_is_part_of_the_report(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print('ran')\n")
    tool = tmp_path / "tools" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text(TOOL)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    variables = fake_driver(tmp_path / "driver") | {"CUDA_HOME": "", "PATH": f"{tool.parent}:/usr/bin:/bin"}
    ran = oxide("sanitize", "program.py", cwd=tmp_path, **variables)
    assert ran.status == 1, ran.err
    assert ran.out == (
        "ran\nran\nran\n"
        "CPU device, memory and race: no findings\n"
        "GPU, memcheck: 2 findings\n"
        "  Invalid __global__ write of size 4 bytes\n"
        "    at scatter+0x1a0 in /work/program.py:12\n"
        "    by thread (3,0,0) in block (0,0,0)\n"
        "  Invalid __global__ read of size 4 bytes\n"
        "    at scatter+0x1b0 in /work/program.py:13\n"
        "GPU, racecheck: no findings\n"
    )


def test_what_is_missing_for_the_gpu_is_said(race: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("compute-sanitizer"):
        pytest.skip("compute-sanitizer is here")
    ran = oxide("sanitize", "--device", "cuda", "race.py", "0", cwd=race, **fake_driver(race / "driver"))
    assert ran.status == 2
    assert "compute-sanitizer: not run: compute-sanitizer is not on PATH, nor in CUDA_HOME" in ran.out
    assert "nothing ran: compute-sanitizer is not on PATH" in ran.err


def test_a_log_without_findings_has_none() -> None:
    assert tool_findings("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == []
    assert tool_findings("") == []


def test_the_table_of_a_program(race: Path) -> None:
    ran = oxide("profile", "--device", "cpu", "--trace", "t.json", "--json", "p.json", "race.py", "6", cwd=race)
    assert ran.status == 6, ran.err
    assert "reverse" in ran.out
    assert "reverse" in (race / "p.json").read_text()
    assert json.loads((race / "t.json").read_text())
    ran = oxide("trace", "t.json", cwd=race)
    assert ran.status == 0, ran.err
    counts = {row.split()[0]: row.split("cpu:0")[1].split()[0] for row in ran.out.splitlines() if "cpu:0" in row}
    assert counts == {
        row["name"].split()[0]: str(row["count"]) for row in json.loads((race / "p.json").read_text())["rows"]
    }


def test_a_file_that_is_no_timeline_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in (("none.json", None), ("other.json", "[1, 2"), ("numbers.json", "[1, 2]")):
        if content is not None:
            (tmp_path / name).write_text(content)
        assert main(["trace", str(tmp_path / name)]) == 2
        assert name in capsys.readouterr().err


def test_a_program_that_raises_has_a_table_and_its_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("def f():\n    raise ValueError('no')\n\n\nf()\n")
    ran = oxide("profile", "raises.py", cwd=tmp_path, OXIDE_DEVICE="cpu")
    assert ran.status == 1
    assert ran.err.startswith("Traceback (most recent call last):\n")
    assert re.findall(r'File ".*?([^/"\n]+)", line (\d+)', ran.err) == [("raises.py", "5"), ("raises.py", "2")]
    assert ran.err.endswith("ValueError: no\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("def f(:\n", "SyntaxError"),
        ("raise KeyError('of the program')", "KeyError: 'of the program'"),
        ("import sys\nsys.exit(3)", "it called sys.exit(3)"),
        ("import missing_package", "No module named 'missing_package'"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "graph"])
def test_a_module_that_cannot_be_imported_shows_its_own_error(
    tmp_path: Path, command: str, text: str, shown: str
) -> None:
    (tmp_path / "kernels.py").write_text(text)
    ran = oxide(command, "kernels.py:f", cwd=tmp_path)
    assert ran.status == 2
    assert shown in ran.err
    assert "finding.py" not in ran.err
    assert "typer" not in ran.err


def test_a_name_without_a_module_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", ":saxpy"]) == 2
    assert "name the module or the file before the colon" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("run", "--trace"), ("profile", "--trace"), ("profile", "--json")])
def test_a_folder_is_no_file_for_results(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('ran')")
    assert main([*words, str(tmp_path), str(program)]) == 2
    written = capsys.readouterr()
    assert f"{words[1]} {tmp_path} is a folder; name a file" in written.err
    assert "ran" not in written.out


def test_an_unwritable_trace_of_the_program_names_its_variable(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import oxide")
    ran = oxide("run", "program.py", cwd=tmp_path, OXIDE_TRACE=str(tmp_path))
    assert ran.status == 1
    assert f"TraceError: OXIDE_TRACE={tmp_path}: " in ran.err
    assert "During handling" not in ran.err


def test_a_folder_with_a_main_program_and_a_name_that_looks_like_an_option_run(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text("print('of the folder')")
    (tmp_path / "-k.py").write_text("print('of -k')")
    assert oxide("run", "folder", cwd=tmp_path).out == "of the folder\n"
    assert "of the folder\n" in oxide("profile", "--device", "cpu", "folder", cwd=tmp_path).out
    assert oxide("run", "--", "-k.py", cwd=tmp_path).out == "of -k\n"
    refused = oxide("run", ".", cwd=tmp_path)
    assert refused.status == 2
    assert "is a folder without __main__.py" in refused.err


@pytest.mark.nightly
def test_the_traceback_of_a_sanitized_or_profiled_program_begins_in_the_program(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text("import oxide\nraise ValueError('of the program')")
    (tmp_path / "syntax.py").write_text("def f(:\n")
    for words in (("sanitize", "--device", "cpu"), ("profile", "--device", "cpu")):
        for name, error in (("raises.py", "ValueError: of the program"), ("syntax.py", "SyntaxError")):
            ran = oxide(*words, name, cwd=tmp_path)
            assert ran.status == 1
            assert error in ran.err
            assert "runpy" not in ran.err
            assert "commands" not in ran.err


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents":[{"a":1}]}',
        '{"traceEvents":5}',
        "[1]",
        '{"other":1}',
        "nothing",
        pytest.param('{"traceEvents":' + "[" * 200_000, id="deep"),
    ],
)
def test_what_is_no_timeline_is_refused_by_name(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    assert main(["trace", str(file)]) == 2
    assert re.search(rf"{re.escape(str(file))} is no trace of oxide", capsys.readouterr().err)


def test_a_folder_is_no_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (str(tmp_path), "."):
        assert main(["trace", folder]) == 2
        assert f"{folder} is a folder" in capsys.readouterr().err
