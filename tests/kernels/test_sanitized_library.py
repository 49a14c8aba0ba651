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
from tests.choosing import is_sampled
from tests.kernels.sanitized_library import CASES


class Results:
    """What another process finds in each, as it goes: in this one they may have been compiled without the sanitizer."""

    def __init__(self, errors: IO[str], *, sample: bool) -> None:
        self._errors = errors
        self._known: dict[str, str] = {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kernels.sanitized_library", *(["--sample"] if sample else [])],
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
def results(pytestconfig: pytest.Config) -> Iterator[Results]:
    with tempfile.TemporaryFile("w+") as errors:
        results = Results(errors, sample=is_sampled(pytestconfig))
        with results.process as process:
            yield results
            process.kill()


@pytest.mark.parametrize("family", [case.__name__ for case in CASES])
def test_public_kernels_are_right_and_clean(family: str, results: Results, device: str) -> None:
    if device != "cpu":
        pytest.skip("the sanitizer is the CPU device's")
    assert results.of(family) == "clean"


def test_no_public_kernel_is_left_out() -> None:
    public = {name for name in oxide_kernels.__all__ if name != "ops"}
    public |= {
        f"ops.{name}"
        for name, function in vars(ops).items()
        if inspect.isfunction(function) and function.__module__ == ops.__name__ and not name.startswith("_")
    }
    assert public == {name for names in CASES.values() for name in names}
