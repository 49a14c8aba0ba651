"""``examples/data_parallel``: the weights of several devices are those of one, and those of NumPy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oxide
from examples.data_parallel import __main__ as example
from examples.data_parallel.training import captured_step, replicas, shares, step, step_of_numpy
from oxide import d2h
from oxide.collectives import local_group

ROOT = Path(__file__).parent.parent.parent


def run(*words: str, **environment: str) -> str:
    command = [sys.executable, *words]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(("rows", "hidden", "captured"), [(31, 33, False), (64, 48, True)])
def test_a_step_is_that_of_numpy_on_any_number_of_devices(several: Any, rows: int, hidden: int, captured: bool) -> None:
    random = np.random.default_rng(rows)
    w0, w1 = random.normal(0, 0.1, (65, hidden)).astype("f"), random.normal(0, 0.1, (hidden, 10)).astype("f")
    pixels, labels = random.random((rows, 65), dtype=np.float32), random.integers(0, 10, rows)
    expected = step_of_numpy(w0, w1, pixels, labels, 0.5)
    for count in (1, len(several)):
        with local_group(several[:count]) as group:
            here = replicas(group.devices, w0, w1)
            parts = shares(group.devices, pixels, labels, group.ranks, group.size).sync()
            if captured:
                captured_step(group, here, parts, rows, 0.5)().sync()
            else:
                step(group, here, parts, rows, 0.5).sync()
            for replica in here:
                found = oxide.zip(d2h(replica.w0), d2h(replica.w1)).on(replica.device).sync()
                for weights, right in zip(found, expected, strict=True):
                    assert np.linalg.norm(weights - right) <= 1e-6 * np.linalg.norm(right)


def test_one_process_trains_as_one_device_does(several: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main(["--steps", "5", "--batch", "64", "--hidden", "32"]) == 0
    assert "the weights differ from those of one device by" in capsys.readouterr().out


@pytest.mark.nightly
def test_two_processes_train_as_one_device_does(size: int, device: str) -> None:
    words = ("-m", "oxide", "launch", "-n", str(size), "--device", device, "-m", "examples.data_parallel")
    out = run(*words, "--steps", "5", "--batch", "64", "--hidden", "32")
    assert all(f"rank {rank} of {size} on {device}:0" in out for rank in range(size))
    assert "the weights differ from those of one device by" in out


@pytest.mark.nightly
def test_the_benchmark_runs(size: int, device: str, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    run("-m", "benchmarks.collectives", "--quick", "--out", str(out), OXIDE_DEVICE=device, OXIDE_CPU_DEVICES="2")
    figures = json.loads(out.read_text())
    assert figures["step"]["difference of the weights"] <= 1e-6
    assert figures["one process"]["difference of the weights"] <= 1e-6
    assert figures["overlap"]["collectives"] == 6
