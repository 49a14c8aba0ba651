"""What tests of the library's kernels share."""

from __future__ import annotations

import pytest

from oxide import devices


@pytest.fixture
def hopper(request: pytest.FixtureRequest) -> None:
    """Skips a test of whole warpgroups where nothing runs them."""
    if request.config.getoption("--interpret"):
        pytest.skip("the interpreter has no Barriers")
    info = devices()[0].info
    if info.target.kind == "ptx" and info.target.arch != "sm_90":
        pytest.skip("the instructions belong to compute capability 9.0")
