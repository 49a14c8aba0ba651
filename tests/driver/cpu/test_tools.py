"""Other makers' tools on the CPU device's code: perf's map, and gdb."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oxide.driver.base import Code
from oxide.driver.cpu import CpuDriver
from oxide.errors import DeviceError

PROGRAM = """
import itertools
import os
import numpy as np
from oxide import DisjointSlice, SharedArray, Slice, device, f32, h2d, kernel, thread, zeros

@device
def scaled(x: f32) -> f32:
    return x * f32(3)  # scaled

@kernel(block=64)
def summed(x: Slice[f32], out: DisjointSlice[f32]):
    element = out.get_mut(thread.index_1d())
    if element is not None:
        s = f32(0)
        for j in range(len(x)):
            s = s * f32(0.5) + scaled(x[j])  # loop
        element.value = s

@kernel(block=64)
def reversed_blocks(x: Slice[f32], y: DisjointSlice[f32]):
    shared = SharedArray(64, f32)
    index = thread.index_1d()
    shared[thread.thread_idx.x] = x[index.get()]
    thread.sync_threads()
    element = y.get_mut(index)
    if element is not None:
        element.value = shared[63 - thread.thread_idx.x]  # after the barrier

n = int(os.environ.get("ELEMENTS", "64"))
x = np.arange(n, dtype=np.float32)
summed(h2d(x), zeros(n)).sync()
y = reversed_blocks(h2d(x), zeros(n)).last().to_host().sync()
print("ran as", os.getpid(), y[0])
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def place(marker: str) -> int:
    return next(n for n, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith(f"# {marker}"))


def run(program: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    setting = {name: value for name, value in os.environ.items() if not name.startswith("OXIDE_")}
    setting |= {"OXIDE_DEVICE": "cpu", "OXIDE_CACHE": "0", "PYTHONPATH": os.getcwd()} | variables
    return subprocess.run(
        [*command, sys.executable, str(program)], env=setting, capture_output=True, text=True, timeout=120, check=False
    )


def process_of(done: subprocess.CompletedProcess[str]) -> int:
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split("ran as ")[1].split()[0])


def test_a_perf_map_names_the_kernels(program: Path) -> None:
    done = run(program, OXIDE_PERF="map")
    path = Path(f"/tmp/perf-{process_of(done)}.map")
    try:
        lines = [line.split(" ", 2) for line in path.read_text(encoding="utf-8").splitlines()]
    finally:
        path.unlink()
    names = [name for _, _, name in lines]
    assert {"kernel summed", "kernel reversed_blocks", "kernel reversed_blocks [oxide.thread.resume]"} <= set(names)
    ranges = sorted((int(start, 16), int(start, 16) + int(size, 16)) for start, size, _ in lines)
    assert all(start < end for start, end in ranges)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(ranges))


@pytest.mark.nightly
def test_nothing_is_written_unless_it_is_asked_for(program: Path) -> None:
    process = process_of(run(program))
    assert not Path(f"/tmp/perf-{process}.map").exists()


@pytest.mark.nightly
def test_a_map_that_cannot_be_written_is_a_warning(program: Path) -> None:
    program.write_text("import os; os.mkdir(f'/tmp/perf-{os.getpid()}.map')\n" + PROGRAM, encoding="utf-8")
    done = run(program, OXIDE_PERF="map")
    Path(f"/tmp/perf-{process_of(done)}.map").rmdir()
    assert done.stderr.count("perf gets no names") == 1


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"OXIDE_PERF": "maps"}, "OXIDE_PERF='maps': map is needed"),
        ({"OXIDE_GDB": "yes"}, "OXIDE_GDB='yes': one of 0, 1 is needed"),
        ({"OXIDE_PERF": "map", "OXIDE_GDB": "1"}, "OXIDE_GDB=1 and OXIDE_PERF exclude each other"),
    ],
)
def test_wrong_settings_are_refused(variables: dict[str, str], problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = CpuDriver()
    code = Code(driver.device_info(0).target, "entry", b"no object")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DeviceError, match=problem):
        driver.load(0, code)


# The tools themselves


@pytest.mark.nightly
def test_perf_reports_kernels_by_name(program: Path, tmp_path: Path) -> None:
    perf = shutil.which("perf")
    if perf is None:
        pytest.skip("perf is not installed")
    data = str(tmp_path / "perf.data")
    done = run(program, perf, "record", "-q", "-e", "cpu-clock", "-o", data, OXIDE_PERF="map", ELEMENTS="20032")
    if done.returncode != 0 and "ran as" not in done.stdout:
        pytest.skip(f"perf record does not work here: {done.stderr.strip()[:200]}")
    process_of(done)
    names = subprocess.run(
        [perf, "report", "-i", data, "--stdio", "-s", "sym"], capture_output=True, text=True, check=True
    ).stdout
    assert "kernel summed" in names


@pytest.mark.nightly
def test_gdb_stops_at_a_line_of_a_kernel_and_shows_it(program: Path, tmp_path: Path) -> None:
    gdb = shutil.which("gdb")
    if gdb is None:
        pytest.skip("gdb is not installed")
    commands = tmp_path / "commands"
    commands.write_text(
        "set debuginfod enabled off\nset breakpoint pending on\nset print thread-events off\n"
        f"break program.py:{place('scaled')}\nbreak program.py:{place('after the barrier')}\n"
        "run\nbt 3\ninfo line\ndelete 1\ncontinue\nbt 3\nkill\n",
        encoding="utf-8",
    )
    gdb_run = (gdb, "-q", "-nx", "-batch", "-x", str(commands), "--args")
    done = run(program, *gdb_run, OXIDE_GDB="1")
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("gdb may not trace processes here")
    first, _, second = done.stdout.partition("Breakpoint 2,")
    assert "scaled (" in first or "summed (" in first, done.stdout + done.stderr
    assert f"program.py:{place('scaled')}" in first
    assert re.search(rf'Line {place("scaled")} of "[^"]*program\.py" starts at address', first)
    assert f"program.py:{place('after the barrier')}" in second
