"""The sanitizer says nothing of the kernel library: every public kernel, at sizes around those of warps and blocks."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

import oxide_kernels
from oxide_kernels import ops
from tests.kernels.sanitized_library import CASES

NAMES = [name for names in CASES.values() for name in names]


class Results:
    """What another process finds in each, as it goes: in this one they may have been compiled without the sanitizer."""

    def __init__(self, errors: IO[str]) -> None:
        self._errors = errors
        self._known: dict[str, str] = {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kernels.sanitized_library"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OXIDE_DEVICE": "cpu", "OXIDE_SANITIZE": "memory,race"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    def of(self, name: str) -> str:
        """ "clean", or what was found; waits until that is known."""
        assert self.process.stdout is not None
        while name not in self._known:
            line = self.process.stdout.readline()
            if not line:
                self._errors.seek(0)
                pytest.fail(f"the process ended before {name}: {self._errors.read()}")
            found, _, result = line.strip().partition(": ")
            self._known[found] = result
        return self._known[name]


@pytest.fixture(scope="module")
def results() -> Iterator[Results]:
    with tempfile.TemporaryFile("w+") as errors:
        results = Results(errors)
        with results.process as process:
            yield results
            process.kill()


@pytest.mark.parametrize("name", NAMES)
def test_a_public_kernel_is_right_and_clean(name: str, results: Results, device: str) -> None:
    if device != "cpu":
        pytest.skip("the sanitizer is the CPU device's")
    assert results.of(name) == "clean"


def test_no_public_kernel_is_left_out() -> None:
    public = {name for name in oxide_kernels.__all__ if name != "ops"}
    public |= {
        f"ops.{name}"
        for name, function in vars(ops).items()
        if inspect.isfunction(function) and function.__module__ == ops.__name__ and not name.startswith("_")
    }
    assert public == set(NAMES)
