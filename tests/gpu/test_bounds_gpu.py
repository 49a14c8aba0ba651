"""Kernel faults on a real GPU: exceptions, one for each launch that failed, and a context that lives on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import oxide
from oxide import BoundsError, KernelAssertionError, LaunchConfig, d2h, h2d, zeros
from oxide.driver.cuda.driver import CudaDriver
from oxide_kernels import sgemm_naive
from tests.language.asserting_kernels import square_roots
from tests.language.wraparound import cases
from tests.runtime.faulting_launches import require_that_faults_leak_nothing

ROOT = Path(__file__).parents[2]
TILES = LaunchConfig(grid=(4, 4), block=(16, 16))


def test_a_slice_one_too_short_is_named_and_work_beside_and_behind_it_is_right() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 64), np.float32) for _ in range(2))
    expected = a.astype(np.float64) @ b
    good, bad = (oxide.devices()[0].new_stream() for _ in range(2))

    def product(left: np.ndarray) -> oxide.DeviceOperation:  # type: ignore[type-arg]
        return sgemm_naive[TILES](64, 64, 64, 1.0, h2d(left), h2d(b), 0.0, zeros((64, 64))).last().and_then(d2h)

    beside = product(a).async_on(good)
    with pytest.raises(
        BoundsError, match=r"kernel sgemm_naive: a\[4095\] is outside a, which has 4095 elements"
    ) as raised:
        product(a.reshape(-1)[:-1]).sync_on(bad)
    assert raised.value.parameter == "a"
    np.testing.assert_allclose(product(a).sync_on(bad), expected, rtol=1e-4, atol=1e-4)
    good.synchronize()
    np.testing.assert_allclose(beside, expected, rtol=1e-4, atol=1e-4)


def test_ten_thousand_faults_leak_nothing_and_leave_the_context_alive() -> None:
    require_that_faults_leak_nothing(CudaDriver(), 10_000)


def test_a_failed_assert_is_an_exception_on_the_gpu_too() -> None:
    with pytest.raises(KernelAssertionError, match="kernel square_roots: x must not be negative"):
        square_roots[LaunchConfig(grid=2, block=2)](h2d(np.array([1, 2, -3, 4], np.float32)), zeros(4)).sync()
    x = np.array([1, 2, 3, 4], np.float32)
    result = square_roots[LaunchConfig(grid=2, block=2)](h2d(x), zeros(4)).last().and_then(d2h).sync()
    np.testing.assert_array_equal(result, x * 2)


def test_wrap_around_is_decided_on_the_gpu_as_by_the_interpreter() -> None:
    from benchmarks.wraparound_memcheck import outcome

    wrong = [(str(case), outcome(case), case.expected(0)) for case in cases() if outcome(case) != case.expected(0)]
    assert not wrong


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed")
def test_the_memory_checker_sees_no_invalid_access_in_the_wrap_around_cases() -> None:
    command = [
        "compute-sanitizer",
        "--tool",
        "memcheck",
        "--report-api-errors",
        "no",
        "--error-exitcode",
        "9",
        sys.executable,
    ]
    done = subprocess.run(
        [*command, "-m", "benchmarks.wraparound_memcheck"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "ERROR SUMMARY: 0 errors" in done.stdout + done.stderr
