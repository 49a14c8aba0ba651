"""The devices of these tests: three CPU devices, or the GPUs of the machine, which must be two or more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import oxide
from oxide.driver.cpu import CpuDriver
from oxide.testing import use_driver
from tests.conftest import cuda_device_count


@pytest.fixture
def several(device: str) -> Iterator[tuple[oxide.Device, ...]]:
    """The devices of one process."""
    if device == "cpu":
        with use_driver(CpuDriver(3, threads=2)):
            yield oxide.devices()
        return
    require_gpus()
    yield oxide.devices()


@pytest.fixture
def size(device: str) -> int:
    """The number of ranks for tests with a process for each."""
    if device == "cpu":
        return 3
    require_gpus()
    return cuda_device_count()


def require_gpus() -> None:
    if cuda_device_count() < 2:
        pytest.skip("collectives of GPUs need two")
    pytest.importorskip("nccl", reason="collectives of GPUs need nccl4py")
