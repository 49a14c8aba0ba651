"""The line on standard error that names a kernel which ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oxide.host.core import watch_kernel

pytestmark = pytest.mark.skipif(
    watch_kernel is None, reason="no handler: another kind of machine, or the core's twin in Python"
)

PROGRAM = """
import sys
import faulthandler

import numpy as np
from oxide import Array, DisjointSlice, Slice, f32, h2d, i64, kernel, thread, zeros

if "faulthandler" in sys.argv:
    faulthandler.enable()


@kernel(block=32, unchecked=True)
def harmless(x: Slice[f32], y: DisjointSlice[f32], n: i64):
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[n]


def wild(x: Slice[f32], y: DisjointSlice[f32], n: i64):
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[n]


def by_name(x: Slice[f32], y: DisjointSlice[f32], n: i64):
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x.unchecked[n]


def as_numba_cuda(x: Array[f32, 1], y: Array[f32, 1], n: i64):
    y[0] = x[n]


def writing(x: Slice[f32], y: DisjointSlice[f32], n: i64):
    y.unchecked_mut[n] = x[0]


KERNELS = {
    "wild": kernel(block=32, unchecked=True)(wild),
    "by_name": kernel(block=32)(by_name),
    "as_numba_cuda": kernel(block=32)(as_numba_cuda),
    "writing": kernel(block=32)(writing),
}
x, y = h2d(np.ones(4, np.float32)).sync(), zeros(4).sync()
harmless(x, y, 3).sync()
KERNELS[sys.argv[1]][1, 32](x, y, 3).sync()
harmless(x, y, 3).sync()
print("so far", flush=True)
KERNELS[sys.argv[1]][1, 32](x, y, 1 << 45).sync()
"""


# The package, and what else this run finds by a path of its own.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OXIDE_DEVICE": "cpu"}


def run(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(program), *arguments],
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wild", "by_name", "as_numba_cuda", "writing"])
def test_a_kernel_that_ends_the_process_is_named(tmp_path: Path, name: str) -> None:
    ended = run(tmp_path, name)
    assert ended.returncode == -signal.SIGSEGV
    assert ended.stdout == "so far\n"
    line = next(n for n, text in enumerate(PROGRAM.splitlines(), 1) if text.startswith(f"def {name}("))
    assert ended.stderr == (
        f"oxide: kernel {name} ({tmp_path / 'program.py'}:{line}) accessed memory that is not the process's, where "
        "nothing checks its accesses. OXIDE_SANITIZE=memory finds the access.\n"
    )


@pytest.mark.nightly
def test_the_handler_that_there_was_runs_behind_it(tmp_path: Path) -> None:
    ended = run(tmp_path, "wild", "faulthandler")
    assert ended.returncode == -signal.SIGSEGV
    first, second, *_ = ended.stderr.splitlines()
    assert first.startswith("oxide: kernel wild (")
    assert second == "Fatal Python error: Segmentation fault"


@pytest.mark.nightly
def test_the_line_can_be_left_out(tmp_path: Path) -> None:
    ended = run(tmp_path, "wild", OXIDE_CRASH_REPORT="0")
    assert (ended.returncode, ended.stderr) == (-signal.SIGSEGV, "")


def test_the_advice_finds_the_access(tmp_path: Path) -> None:
    ended = run(tmp_path, "wild", OXIDE_SANITIZE="memory")
    assert ended.returncode == 1
    assert "SanitizerError: kernel wild: out-of-bounds: a read of x by block (0, 0, 0)" in ended.stderr


def test_a_crash_elsewhere_is_not_a_kernels(tmp_path: Path) -> None:
    program = PROGRAM.rsplit("KERNELS[", 1)[0] + "import ctypes\nctypes.string_at(8)\n"
    (tmp_path / "other.py").write_text(program, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "other.py"), "wild"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGSEGV, "so far\n", "")


def test_watching_many_kernels_takes_little_memory() -> None:
    program = """if True:
        import resource
        from oxide.host.core import watch_kernel
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(4000):
            watch_kernel(number, number, b"x")
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 20  # MB; a table for each kernel took 249
