"""NVTX ranges around what the driver submits: their names, and that there are none unless they are wanted."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
import trio

from oxide import DeviceError, DisjointSlice, Slice, f32, h2d, kernel, thread, zeros
from oxide.driver.base import Driver
from oxide.driver.cpu import CpuDriver
from oxide.driver.tools import DOMAIN, NamingDriver, with_ranges
from oxide.errors import DriverError
from oxide.testing import use_driver

LISTED = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "OXIDE_NVTX")


class Ranges(ModuleType):
    """Stands for the package ``nvtx``: the names of the ranges, in the order in which they began."""

    def __init__(self) -> None:
        super().__init__("nvtx")
        self.names: list[str] = []
        self.open = 0

    def push_range(self, message: str, *, domain: str) -> None:
        assert domain == DOMAIN
        self.names.append(message)
        self.open += 1

    def pop_range(self, *, domain: str) -> None:
        assert domain == DOMAIN
        self.open -= 1


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Ranges:
    for name in LISTED:
        monkeypatch.delenv(name, raising=False)
    found = Ranges()
    monkeypatch.setitem(sys.modules, "nvtx", found)
    return found


@kernel(block=32)
def doubled(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get()] * f32(2)


def here() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_the_driver_is_wrapped_only_if_ranges_are_wanted(ranges: Ranges, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = cast(Driver, CpuDriver())
    assert with_ranges(driver) is driver
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "3")
    assert isinstance(with_ranges(driver), NamingDriver)
    monkeypatch.setenv("OXIDE_NVTX", "0")
    assert with_ranges(driver) is driver
    monkeypatch.setenv("OXIDE_NVTX", "on")
    with pytest.raises(DeviceError, match="OXIDE_NVTX='on': one of 0, 1 is needed"):
        with_ranges(driver)


def test_a_missing_package_is_a_warning_only_if_it_was_asked_for(
    ranges: Ranges, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    driver = cast(Driver, CpuDriver())
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "3")
    assert with_ranges(driver) is driver
    assert not recwarn.list
    monkeypatch.setenv("OXIDE_NVTX", "1")
    with pytest.warns(RuntimeWarning, match=r"pip install oxide-gpu\[nvtx\]"):
        assert with_ranges(driver) is driver


def test_launches_and_copies_are_named_by_operation_and_place(ranges: Ranges, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_NVTX", "1")
    x = np.arange(5, dtype=np.float32)

    async def program() -> tuple[Any, int]:
        y = await doubled(h2d(x), zeros(5)).last().to_host()
        return y, here() - 1

    with use_driver(with_ranges(cast(Driver, CpuDriver()))):
        y, awaited = trio.run(program)
        doubled(h2d(x), zeros(5)).sync()
        ran = here() - 1
    assert np.array_equal(y, x * 2)
    file = __file__.rpartition("/")[2]
    for line in (awaited, ran):
        assert any(name.startswith("oxide_run_") and name.endswith(f" at {file}:{line}") for name in ranges.names)
    assert f"copy to device, 20 bytes at {file}:{awaited}" in ranges.names
    assert f"copy to host, 20 bytes at {file}:{awaited}" in ranges.names
    assert ranges.open == 0


def test_a_range_ends_where_the_call_fails(ranges: Ranges) -> None:
    class Failing:
        copy_to_device = copy_to_host = copy_on_device = copy_peer = fill = launch_graph = None

        def launch(self, *arguments: Any) -> None:
            raise DriverError(1, "ERROR", "refused")

    class Function:
        entry = "doubled"

    driver: Any = NamingDriver(cast(Driver, Failing()), ranges)
    with pytest.raises(DriverError):
        driver.launch(Function())
    assert ranges.names[0].startswith("doubled at test_nvtx_ranges.py:")
    assert ranges.open == 0


def test_the_package_takes_the_calls() -> None:
    nvtx = pytest.importorskip("nvtx")
    driver: Any = NamingDriver(cast(Driver, CpuDriver()), nvtx)
    assert driver.device_count() == 1
    driver._in_range("nothing", lambda: None, ())
