"""What the sanitizer's tests share: where they run, and what a launch is found to do wrong."""

from __future__ import annotations

import os
from typing import Any

import pytest

from oxide import DeviceOperation, SanitizerError

BOTH = ("memory", "race")

on_the_cpu_device = pytest.mark.skipif(
    os.environ.get("OXIDE_DEVICE") == "cuda", reason="the sanitizer is the CPU device's"
)


def error_of(launch: DeviceOperation[Any]) -> SanitizerError:
    """The first thing that the sanitizer finds wrong with a launch."""
    with pytest.raises(SanitizerError) as caught:
        launch.sync()
    return caught.value
