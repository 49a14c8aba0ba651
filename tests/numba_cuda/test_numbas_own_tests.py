"""A few modules of numba-cuda's own tests, run on oxide by ``suite.py``; by hand it runs all that concern kernels."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest

from tests.numba_cuda import suite

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("numba.cuda.tests.cudapy") is None, reason="numba-cuda's tests are not installed"
)


@pytest.mark.skipif(os.environ.get("OXIDE_DEVICE") == "cuda", reason="suite.py takes minutes there; run it by hand")
@pytest.mark.parametrize("module", ["cudapy.test_idiv", "cudapy.test_sync"])
def test_numbas_own_tests_pass(module: str) -> None:
    outcomes: list[dict[str, Any]] = suite.run(module)
    failed = [outcome for outcome in outcomes if outcome["outcome"] in ("failed", "crashed")]
    assert not failed
    assert sum(outcome["outcome"] == "passed" for outcome in outcomes) >= 1
