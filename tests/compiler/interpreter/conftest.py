"""The interpreter runs on the CPU device."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def on_the_cpu_device(device: str) -> None:
    if device == "cuda":
        pytest.skip("the interpreter runs on the CPU device")
