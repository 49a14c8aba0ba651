"""What a run that fails has submitted before keeps its memory until the device is past it."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import oxide
from oxide import d2h, h2d, memcpy, zeros
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
