"""A few modules of numba-cuda's own tests, run on oxide by ``suite.py``; by hand it runs all that concern kernels."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.numba_cuda import suite

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("numba.cuda.tests.cudapy") is None, reason="numba-cuda's tests are not installed"
)


# How many tests of each pass, so that none gets lost in silence. They share a process, as its start takes seconds.
PASSING = {
    "alignment": 2,
    "array_args": 11,
    "boolean": 1,
    "casting": 6,
    "complex_kernel": 1,
    "forall": 4,
    "freevar": 1,
    "frexp_ldexp": 4,
    "globals": 1,
    "idiv": 2,
    "iterators": 4,
    "lang": 3,
    "localmem": 5,
    "matmul": 1,
    "slicing": 2,
    "sm_creation": 8,
    "sync": 16,
}


@pytest.mark.nightly
@pytest.mark.skipif(os.environ.get("OXIDE_DEVICE") == "cuda", reason="suite.py takes minutes there; run it by hand")
def test_numbas_own_tests_keep_passing() -> None:
    outcomes = suite.run(*(f"cudapy.test_{name}" for name in PASSING))
    passed = Counter(
        outcome["test"].removeprefix(f"{suite.HOME}.cudapy.test_").split(".")[0]
        for outcome in outcomes
        if outcome["outcome"] == "passed"
    )
    lost = {name: (passed[name], count) for name, count in PASSING.items() if passed[name] < count}
    broken = [outcome for outcome in outcomes if outcome["outcome"] in ("failed", "crashed")]
    assert not lost, broken


def test_a_crash_takes_one_test_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that say what ``suite.py`` says, of three tests in one module, of which the second ends the process."""
    program = tmp_path / "child.py"
    program.write_text(
        "import json, os, sys\n"
        "for name in ('first', 'second', 'third'):\n"
        "    if name not in sys.argv[3:]:\n"
        "        print('@@' + json.dumps({'test': name}), flush=True)\n"
        "        if name == 'second':\n"
        "            os.abort()\n"
        "        print('@@' + json.dumps({'test': name, 'outcome': 'passed', 'why': ''}), flush=True)\n"
    )
    monkeypatch.setattr(suite, "__file__", str(program))
    assert [(outcome["test"], outcome["outcome"]) for outcome in suite.run("module")] == [
        ("first", "passed"),
        ("second", "crashed"),
        ("third", "passed"),
    ]
