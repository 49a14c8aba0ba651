"""What a run that fails has submitted before keeps its memory until the device is past it."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import DeviceOperation, d2h, h2d, memcpy, value, zeros
from oxide.testing import step_driver, use_driver


def test_the_buffer_of_an_upload_is_not_reused_before_the_device_has_read_it() -> None:
    with use_driver(step_driver()) as driver:
        box, stream = zeros(4).sync(), oxide.devices()[0].new_stream()
        with pytest.raises(ZeroDivisionError):
            memcpy(box, np.arange(4, dtype=np.float32)).map(lambda _: 1 / 0).async_on(stream)
        gc.collect()
        others = [h2d(np.full(4, 9, np.float32)).async_on(stream) for _ in range(3)]  # which take free buffers
        driver.run_until_idle()
        assert d2h(box).sync().tolist() == [0, 1, 2, 3]
        assert len(others) == 3


@pytest.mark.parametrize("run", ["sync_on", "async_on", "graph_on"])
@pytest.mark.parametrize("stages", [0, 1, 3])
def test_an_error_is_in_no_cycle_that_would_keep_the_runs_memory(run: str, stages: int) -> None:
    """What its frames refer to is freed as soon as the program has dealt with it, and not when the collector comes."""

    def fail(_: object) -> DeviceOperation[None]:
        raise ZeroDivisionError

    stream = oxide.devices()[0].new_stream()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        operation: Any = zeros(3)
        for _ in range(stages):
            operation = operation.and_then(value)
        with pytest.raises(ZeroDivisionError):
            getattr(operation.and_then(fail), run)(stream)
        del operation
        gc.collect()
        errors = [found for found in gc.garbage if isinstance(found, ZeroDivisionError)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not errors


@pytest.mark.parametrize("run", ["sync", "sync_on", "async_on", "future"])
def test_an_error_keeps_its_context_where_the_caller_handles_another(run: str) -> None:
    def fail(_: object) -> None:
        try:
            {}["missing"]
        except KeyError:
            raise ValueError("found nothing")  # noqa: B904

    operation = value(1).and_then(lambda one: value(one).map(fail))
    future = operation.into_future()
    run_it = {
        "sync": operation.sync,
        "sync_on": lambda: operation.sync_on(oxide.devices()[0].new_stream()),
        "async_on": lambda: operation.async_on(oxide.devices()[0].new_stream()),
        "future": lambda: (future.start(), future.outcome()),
    }[run]
    future.consume()
    with pytest.raises(ValueError, match="nothing") as found:
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            run_it()
    context = found.value.__context__
    assert isinstance(context, KeyError)
    assert isinstance(context.__context__, ZeroDivisionError)
