"""Traces on a GPU, by events and by CUPTI where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trio

import oxide
from oxide import LaunchConfig, StreamPoolRoundRobin, d2h, h2d
from oxide.driver.cuda.driver import CudaDriver
from oxide.testing import RecordingDriver, use_driver
from oxide_kernels import sgemm_naive
from tests.tracing.counting import seen, written
from tests.tracing.programs import CONFIG, ONES, SIZE, add, concurrent_sums, sum_of
from tests.tracing.schema import read

CLOCKS = {"events": "events", "cupti": "CUPTI"}


@pytest.fixture(params=CLOCKS)
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cupti" and importlib.util.find_spec("cupti") is None:
        pytest.skip("cupti-python is not installed")
    monkeypatch.setenv("OXIDE_TRACE_CLOCK", request.param)
    return CLOCKS[request.param]


@pytest.fixture
def driver() -> Iterator[RecordingDriver]:
    with use_driver(RecordingDriver(CudaDriver()), policy=StreamPoolRoundRobin(4)) as recording:
        sum_of(ONES, ONES).sync()
        recording.clear()
        yield recording


def test_every_launch_copy_and_wait_is_in_the_file(driver: RecordingDriver, clock: str, tmp_path: Path) -> None:
    with oxide.trace(tmp_path / "out.json"):
        trio.run(concurrent_sums, 16)
        shared = h2d(ONES).sync()
        for _ in range(3):
            oxide.memcpy(shared, ONES).sync()
    contents = read(tmp_path / "out.json")
    assert written(contents) == seen(driver)
    assert contents.clocks == clock
    kernels = contents.slices("kernel")
    assert len(kernels) == 16
    assert all(0 < each["dur"] < 1000 for each in kernels)


def test_the_time_of_a_kernel_is_that_of_the_device(driver: RecordingDriver, clock: str) -> None:
    n = 1024
    a, b = np.random.default_rng().standard_normal((2, n, n), np.float32)
    stream = oxide.devices()[0].new_stream()
    boxes = oxide.zip(h2d(a), h2d(b), oxide.zeros((n, n))).sync_on(stream)
    launch = sgemm_naive[LaunchConfig(grid=(n // 16, n // 16), block=(16, 16))]
    operation = oxide.zip(*[launch(n, n, n, 1.0, boxes[0], boxes[1], 0.0, boxes[2]) for _ in range(20)])
    operation.sync_on(stream)
    begun = stream.record_event()
    operation.async_on(stream)
    ended = stream.record_event()
    stream.synchronize()
    with oxide.profile() as profile:
        operation.sync_on(stream)
    (row,) = [row for row in profile.table() if row.kind == "kernel"]
    assert row.count == 20
    assert row.total_us == pytest.approx(begun.elapsed_ms(ended) * 1e3, rel=0.1)


def test_the_kernels_of_a_graph_have_times_by_cupti(driver: RecordingDriver, clock: str, tmp_path: Path) -> None:
    boxes = oxide.zip(h2d(ONES), h2d(ONES), oxide.zeros(SIZE)).sync()
    with oxide.trace(tmp_path / "out.json"):
        chain = add[CONFIG](*boxes).and_then(lambda results: add[CONFIG](*results))
        with chain.graph() as graph:
            for _ in range(3):
                graph.launch().sync()
        total = d2h(boxes[2]).sync()
    assert (total == 2).all()
    contents = read(tmp_path / "out.json")
    assert len(contents.slices("graph")) == 3
    assert len(contents.slices("node")) == (9 if clock == "CUPTI" else 3)
