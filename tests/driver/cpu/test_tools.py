"""Other makers' tools on the CPU device's code: perf's two kinds of files, and gdb."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oxide.driver.base import Code
from oxide.driver.cpu import CpuDriver, line_programs
from oxide.driver.object import MappedObject, load_object
from oxide.errors import DeviceError
from tests.compiler.test_line_tables import reversed_blocks, scaled, squared, total
from tests.source_lines import line_of

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


def records(dump: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The records of a jitdump file: kind, time and content."""
    at = struct.unpack_from("<I", dump, 8)[0]
    while at < len(dump):
        kind, size, when = struct.unpack_from("<IIQ", dump, at)
        yield kind, when, dump[at + 16 : at + size]
        at += size
    assert at == len(dump)


@pytest.mark.nightly
def test_a_jitdump_has_the_code_and_the_lines(program: Path, tmp_path: Path) -> None:
    process = process_of(run(program, OXIDE_PERF="jitdump", JITDUMPDIR=str(tmp_path)))
    dump = (tmp_path / f"jit-{process}.dump").read_bytes()
    magic, version, size, machine, _, owner, begun, flags = struct.unpack_from("<IIIIIIQQ", dump)
    assert (magic, version, size, owner, flags) == (0x4A695444, 1, 40, process, 0)
    assert machine in (62, 183)
    lines: dict[int, set[tuple[str, int]]] = {}
    names: dict[str, int] = {}
    for kind, when, content in records(dump):
        assert when >= begun
        if kind == 2:
            address, count = struct.unpack_from("<QQ", content)
            at = 16
            for _ in range(count):
                _, line, _ = struct.unpack_from("<QII", content, at)
                end = content.index(b"\0", at + 16)
                lines.setdefault(address, set()).add((content[at + 16 : end].decode(), line))
                at = end + 1
            assert at == len(content)
        else:
            assert kind == 0
            owner, _, address, same, length, number = struct.unpack_from("<IIQQQQ", content)
            assert (owner, same, number) == (process, address, len(names))
            name, code = content[40:].split(b"\0", 1)
            assert len(code) == length
            names[name.decode()] = address
    assert {(str(program), place("scaled")), (str(program), place("loop"))} <= lines[names["kernel summed"]]
    resumed = lines[names["kernel reversed_blocks [oxide.thread.resume]"]]
    assert (str(program), place("after the barrier")) in resumed


@pytest.mark.nightly
def test_nothing_is_written_unless_it_is_asked_for(program: Path, tmp_path: Path) -> None:
    process = process_of(run(program, JITDUMPDIR=str(tmp_path)))
    assert not Path(f"/tmp/perf-{process}.map").exists()
    assert not list(tmp_path.glob("*.dump"))


@pytest.mark.nightly
def test_a_folder_that_does_not_exist_is_a_warning(program: Path, tmp_path: Path) -> None:
    done = run(program, OXIDE_PERF="jitdump", JITDUMPDIR=str(tmp_path / "missing"))
    process_of(done)
    assert done.stderr.count("perf gets no names") == 1


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"OXIDE_PERF": "maps"}, "OXIDE_PERF='maps': one of map, jitdump is needed"),
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


# Line programs


@pytest.mark.parametrize("function", [total, reversed_blocks])
def test_the_rows_of_a_line_table_are_those_that_readelf_shows(function: object, tmp_path: Path) -> None:
    from oxide import kernel
    from oxide.compiler.ir.llvm import host_target

    found: list[MappedObject] = []
    code = kernel(lineinfo=True)(function).specialize().code(host_target())  # type: ignore[arg-type]
    memory, _ = load_object(code.image, code.entry, found.append)
    (mapped,) = found
    assert memory is not None
    rows = list(line_programs.rows(mapped.line_table))
    assert rows
    assert {row.file for row in rows} == {total.__code__.co_filename}
    starts = {each.address for each in mapped.functions}
    ends = {each.address + each.size for each in mapped.functions}
    assert all(min(starts) <= row.address <= max(ends) for row in rows)
    lines = {row.line for row in rows}
    if function is total:
        assert {line_of(scaled.__wrapped__, "product"), line_of(squared.__wrapped__, "quotient")} <= lines
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf is not installed")
    file = tmp_path / "kernel.o"
    file.write_bytes(code.image)
    shown = subprocess.run(
        [readelf, "--debug-dump=decodedline", "--wide", str(file)], capture_output=True, text=True, check=True
    ).stdout
    listed = [line.split()[1] for line in shown.splitlines() if ".py " in line and line.split()[1:2] != ["number"]]
    assert [("-" if row.ends else str(row.line)) for row in rows] == [
        each for each in listed if each[0] in "-0123456789"
    ]


@pytest.mark.parametrize("size", [1, 3, 8, 20, 60])
def test_a_damaged_line_table_is_refused(size: int) -> None:
    from oxide import kernel
    from oxide.compiler.ir.llvm import host_target

    found: list[MappedObject] = []
    code = kernel(lineinfo=True)(total).specialize().code(host_target())
    load_object(code.image, code.entry, found.append)
    with pytest.raises(ValueError, match="line table"):
        list(line_programs.rows(found[0].line_table[:size]))
    with pytest.raises(ValueError, match="a line table of DWARF 5"):
        list(line_programs.rows(found[0].line_table[:4] + b"\5\0" + found[0].line_table[6:]))


# The tools themselves


@pytest.mark.nightly
def test_perf_reports_kernels_by_name_and_line(program: Path, tmp_path: Path) -> None:
    perf = shutil.which("perf")
    if perf is None:
        pytest.skip("perf is not installed")
    data, injected = str(tmp_path / "perf.data"), str(tmp_path / "injected.data")
    record = (perf, "record", "-q", "-k", "mono", "-e", "cpu-clock", "-o", data)
    done = run(program, *record, OXIDE_PERF="jitdump", JITDUMPDIR=str(tmp_path), ELEMENTS="20032")
    if done.returncode != 0 and "ran as" not in done.stdout:
        pytest.skip(f"perf record does not work here: {done.stderr.strip()[:200]}")
    process_of(done)
    subprocess.run([perf, "inject", "--jit", "-i", data, "-o", injected], check=True, capture_output=True)
    # Not `perf report -F srcline`, which asks for the line of every address in Python too: that takes minutes.
    command = [perf, "annotate", "-i", injected, "--stdio", "-l", "-s", "kernel summed"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    summary = dict(re.findall(r"^ +(\d+\.\d+) program\.py:(\d+)", shown, re.MULTILINE))
    shares = {int(line): float(share) for share, line in summary.items()}
    # On some machines nearly all samples are at the comparison that ends an iteration: it has the line of the `for`.
    loop = (place("scaled"), place("loop") - 1, place("loop"))
    assert sum(shares.get(line, 0) for line in loop) > 50, shown[:2000]
    names = subprocess.run(
        [perf, "report", "-i", injected, "--stdio", "-s", "sym"], capture_output=True, text=True, check=True
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
