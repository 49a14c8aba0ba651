"""Programs of numba-cuda under ``OXIDE_SANITIZE=memory``: what the host has given counts as written, and no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxide import SanitizerError
from oxide import numba_cuda as cuda
from oxide.driver.sanitizing import Tracking
from tests.compiler.sanitizer.sanitized import on_the_cpu_device

pytestmark = on_the_cpu_device

POINT = np.dtype([("x", np.float64), ("n", np.int32)], align=True)


@pytest.fixture(autouse=True)
def memory_is_sanitized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_SANITIZE", "memory")
    monkeypatch.setattr(Tracking, "wanted", True)


def copying() -> Any:
    @cuda.jit
    def copy(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = x[i]

    return copy


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16", "i1", "M8[s]", POINT])
@pytest.mark.parametrize("order", [slice(None), slice(None, None, -2)], ids=["contiguous", "strided"])
def test_a_host_array_is_written_memory(dtype: Any, order: slice) -> None:
    x, y = np.ones(3000, "i4").astype(dtype)[order], np.zeros(3000, "i4").astype(dtype)[order]
    copy = copying()
    for _ in range(2):  # the second launch uses the memory of the first
        y[...] = np.zeros((), y.dtype)
        copy[12, 256](x, y)
        np.testing.assert_array_equal(x, y)


def test_records_and_host_matrices_are_written_memory() -> None:
    @cuda.jit
    def add(record, matrix):
        record.x += matrix[1, 2]

    record = np.array([(1.5, 3)], POINT)[0]
    add[1, 1](record, np.ones((3, 4), order="F"))
    assert record["x"] == 2.5


def test_an_output_that_the_kernel_reads_is_found() -> None:
    copy = copying()
    copy[1, 32](cuda.In(np.ones(8)), cuda.Out(np.zeros(8)))
    with pytest.raises(SanitizerError, match="uninitialized: a read of x"):
        copy[1, 32](cuda.Out(np.ones(8)), cuda.Out(np.zeros(8)))


def test_a_copy_of_unwritten_memory_to_the_host_does_not_count_as_a_write() -> None:
    x = cuda.device_array(8)
    x.copy_to_host(np.zeros(8))
    copying()[1, 32](x, cuda.device_array(8))
    with pytest.raises(SanitizerError, match="uninitialized: a read of x"):
        cuda.synchronize()
