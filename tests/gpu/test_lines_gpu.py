"""Line tables on a GPU: the driver keeps them, and NVIDIA's tools show lines of Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oxide import h2d, kernel, zeros
from oxide.driver.cuda.modules import has_lines
from tests.gpu import planted
from tests.source_lines import line_of


def run(tool: str, *command: str, **variables: str) -> str:
    """Returns the output of a tool that runs ``planted``. Skips without the tool."""
    found = shutil.which(tool) or shutil.which(tool, path="/usr/local/cuda/bin")
    if found is None:
        pytest.skip(f"{tool} is not installed")
    setting = {
        **os.environ,
        "OXIDE_DEVICE": "cuda",
        "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]),
    } | variables
    done = subprocess.run([found, *command], env=setting, capture_output=True, text=True, timeout=170, check=False)
    return done.stdout + done.stderr


def test_kernels_with_lines_compute_what_others_compute() -> None:
    function = planted.roots.function
    x = np.linspace(1, 2, 1023, dtype=np.float32)
    forms = [kernel(block=256, lineinfo=lines)(function) for lines in (False, True)]
    assert [has_lines(form.ptx().encode()) for form in forms] == [False, True]
    plain, lined = (form(h2d(x), zeros(x.size)).last().to_host().sync() for form in forms)
    assert np.array_equal(plain, lined)
    assert forms[0].resources(256).registers == forms[1].resources(256).registers


def test_memcheck_names_the_line_of_a_bad_access_in_an_unchecked_kernel() -> None:
    command = ("--tool", "memcheck", "--report-api-errors", "no", sys.executable, "-m", "tests.gpu.planted", "bad")
    said = run("compute-sanitizer", *command, OXIDE_LINEINFO="1")
    line = line_of(planted.stray, "bad access")
    assert "Invalid __global__ read of size 4 bytes" in said, said[-2000:]
    assert re.search(rf"stray.*planted\.py:{line}\b", said), said[-2000:]


def test_memcheck_gets_the_lines_without_being_asked() -> None:
    command = ("--tool", "memcheck", "--report-api-errors", "no", sys.executable, "-m", "tests.gpu.planted", "bad")
    assert re.search(rf"planted\.py:{line_of(planted.stray, 'bad access')}\b", run("compute-sanitizer", *command))


def test_ncu_shows_the_slow_line_of_a_helper(tmp_path: Path) -> None:
    report = str(tmp_path / "report")
    collect = ("--set", "source", "--import-source", "yes", "-k", "roots", "-f", "-o", report)
    said = run("ncu", *collect, sys.executable, "-m", "tests.gpu.planted", "slow", OXIDE_LINEINFO="1")
    if "ERR_NVGPUCTRPERM" in said:
        pytest.skip("ncu may not read the GPU's counters here (ERR_NVGPUCTRPERM)")
    page = run("ncu", "--import", f"{report}.ncu-rep", "--page", "source", "--print-source", "cuda", "--csv")
    assert "planted.py" in page, said[-2000:] + page[-2000:]
    assert "y = f32(0.5) * (y + x / y)  # slow" in page, page[:2000]
