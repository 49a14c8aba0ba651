"""The commands on a GPU: doctor's kernel, a chosen GPU, resources, and compute-sanitizer with a planted bad write."""

from __future__ import annotations

from pathlib import Path

import pytest

from oxide.commands.machine import find_tool
from tests.commands.command_line import oxide

pytestmark = pytest.mark.gpu

PROGRAM = '''"""Writes an element past the end of an array, where nothing checks it."""

import numpy as np

from oxide import DisjointSlice, LaunchConfig, devices, f32, h2d, kernel, thread


@kernel(unchecked=True)
def beyond(x: DisjointSlice[f32]):
    i = thread.index_1d()
    if i.get() < 1:
        x.unchecked_mut[len(x) + 1000000000] = f32(1)


print(len(devices()), devices()[0])
beyond[LaunchConfig.for_num_elems(32)](h2d(np.zeros(32, np.float32))).sync()
'''


def test_the_doctor_runs_a_kernel_on_the_gpu(tmp_path: Path) -> None:
    ran = oxide("doctor", cwd=tmp_path, OXIDE_DEVICE="")
    assert ran.status == 0, ran.out + ran.err
    assert "ok      driver: " in ran.out
    assert "ok      kernel on cuda:0: compiled and run, with the right result" in ran.out


def test_a_program_runs_on_the_gpu_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("from oxide import devices\nprint(len(devices()), devices()[0])\n")
    ran = oxide("run", "--device", "cuda:0", "program.py", cwd=tmp_path, OXIDE_DEVICE="")
    assert ran.status == 0, ran.err
    assert ran.out.startswith("1 <oxide.Device cuda:0")


def test_resources_are_the_gpus(tmp_path: Path) -> None:
    ran = oxide("inspect", "oxide_kernels:sgemm_naive", "--resources", "--block", "64", cwd=tmp_path)
    assert ran.status == 0, ran.err
    assert "block: 64" in ran.out.splitlines()


@pytest.mark.skipif(not find_tool("compute-sanitizer"), reason="no compute-sanitizer")
def test_compute_sanitizer_finds_a_planted_write(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = oxide("sanitize", "--device", "cuda", "--kinds", "memory", "program.py", cwd=tmp_path, OXIDE_DEVICE="")
    assert ran.status == 1, ran.err
    assert "GPU, memcheck: " in ran.out
    assert "Invalid __global__ write of size 4 bytes" in ran.out
    assert "beyond" in ran.out
