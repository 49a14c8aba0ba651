"""The sanitizer says nothing of the kernel library: every public kernel, at sizes around those of warps and blocks."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import oxide_kernels
from oxide_kernels import ops
from tests.kernels.sanitized_library import CASES

NAMES = [name for names in CASES.values() for name in names]


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """What was found in each, by another process: in this one they may have been compiled without the sanitizer."""
    environment = {**os.environ, "OXIDE_DEVICE": "cpu", "OXIDE_SANITIZE": "memory,race"}
    finished = subprocess.run(
        [sys.executable, "-m", "tests.kernels.sanitized_library"],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    lines = [line.partition(": ") for line in finished.stdout.splitlines()]
    return {name: result for name, _, result in lines}


@pytest.mark.parametrize("name", NAMES)
def test_a_public_kernel_is_right_and_clean(name: str, results: dict[str, str], device: str) -> None:
    if device != "cpu":
        pytest.skip("the sanitizer is the CPU device's")
    assert results[name] == "clean"


def test_no_public_kernel_is_left_out() -> None:
    public = {name for name in oxide_kernels.__all__ if name != "ops"}
    public |= {
        f"ops.{name}"
        for name, function in vars(ops).items()
        if inspect.isfunction(function) and function.__module__ == ops.__name__ and not name.startswith("_")
    }
    assert public == set(NAMES)
