"""Whatever waits next raises the error of a kernel: each copy between host and device, and each synchronisation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import KernelAssertionError
from oxide import numba_cuda as cuda


@cuda.jit
def refuse_small(x):
    assert x[0] > 5, "too small"


@cuda.jit
def double(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = 2 * x[i]


def synchronize_an_event_that_another_stream_records(d: Any) -> None:
    stream, event = cuda.stream(), cuda.event()
    double[1, 32, stream](d, d)  # runs after the launch before
    event.record(stream)
    event.synchronize()


def synchronize_another_stream(d: Any) -> None:
    stream = cuda.stream()
    double[1, 32, stream](d, d)
    stream.synchronize()


WAITS: dict[str, Callable[[Any], Any]] = {
    "copy_to_host()": lambda d: d.copy_to_host(),
    "copy_to_host(ary)": lambda d: d.copy_to_host(np.zeros(4)),
    "copy_to_host of a strided view": lambda d: d[::2].copy_to_host(),
    "copy_to_host on another stream": lambda d: d.copy_to_host(stream=cuda.stream()),
    "np.asarray": np.asarray,
    "an element": lambda d: d[1],
    "copy_to_device": lambda d: d.copy_to_device(np.zeros(4)),
    "copy_to_device from a device array": lambda d: d.copy_to_device(cuda.device_array(4)),
    "to_device": lambda d: cuda.to_device(np.zeros(4), to=d),
    "a launch with a host array": lambda d: double[1, 32](d, np.zeros(4)),
    "synchronize": lambda d: cuda.synchronize(),
    "default_stream().synchronize": lambda d: cuda.default_stream().synchronize(),
    "current_context().synchronize": lambda d: cuda.current_context().synchronize(),
    "another stream's synchronize": synchronize_another_stream,
    "an event's synchronize": synchronize_an_event_that_another_stream_records,
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_whatever_waits_raises_the_error_of_an_earlier_kernel_once(wait: Callable[[Any], Any]) -> None:
    d = cuda.to_device(np.zeros(4))
    refuse_small[1, 1](d)
    with pytest.raises(KernelAssertionError, match="kernel refuse_small: too small"):
        wait(d)
    wait(d)
    cuda.synchronize()


@pytest.mark.parametrize("wait", [WAITS["copy_to_host()"], WAITS["copy_to_host(ary)"], WAITS["synchronize"]])
def test_a_stream_that_was_dropped_after_the_launch_loses_no_error(wait: Callable[[Any], Any]) -> None:
    d = cuda.to_device(np.zeros(4))
    refuse_small[1, 1, cuda.stream()](d)
    with pytest.raises(KernelAssertionError, match="too small"):
        wait(d)


def test_a_stream_of_oxide_as_the_streams_argument_loses_no_error() -> None:
    d = cuda.to_device(np.zeros(4))
    stream = oxide.devices()[0].new_stream()
    refuse_small[1, 1, stream](d)
    with pytest.raises(KernelAssertionError, match="too small"):
        d.copy_to_host()
    stream.synchronize()


def test_an_awaited_stream_raises_the_error() -> None:
    async def main() -> None:
        stream = cuda.stream()
        d = cuda.device_array(4, stream=stream)
        d[:] = 0
        refuse_small[1, 1, stream](d)
        with pytest.raises(KernelAssertionError, match="too small"):
            await stream.async_done()
        assert await stream.async_done() is stream

    asyncio.run(main())


def test_dropped_streams_are_forgotten_when_their_work_has_run() -> None:
    from oxide.interop.numba_cuda import streams

    cuda.synchronize()
    before = set(streams._others)
    d = cuda.to_device(np.ones(4))
    for _ in range(3):
        double[1, 32, cuda.stream()](d, d)
    cuda.synchronize()
    cuda.synchronize()
    assert set(streams._others) <= before
    assert d.copy_to_host().tolist() == [8.0] * 4
