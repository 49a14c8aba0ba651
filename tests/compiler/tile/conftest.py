"""The code that a test runs: the CPU's own, or that of a GPU, thread by thread on the CPU device."""

from __future__ import annotations

import os

import pytest

from oxide.compiler.tile import tile_source as source

NAMES = {0: "cpu", 80: "ampere", 90: "hopper"}


@pytest.fixture(params=NAMES, ids=NAMES.values())
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns the compute capability of the GPU whose code runs, or 0 for the device's own code."""
    capability: int = request.param
    if capability and os.environ["OXIDE_DEVICE"] != "cpu":
        pytest.skip("a GPU runs its own code")
    monkeypatch.setattr(source, "simulated", capability)
    return capability
