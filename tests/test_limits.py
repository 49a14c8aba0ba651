"""A case that takes too long, or whose process dies, fails alone, and the run goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = """
import os, threading, time

def test_first(): pass

def test_spins():
    while True: sum(range(1000))

def test_waits_for_ever():
    threading.Thread(target=in_another_thread, daemon=True).start()
    threading.Lock().acquire() and threading.Event().wait()

def in_another_thread(): time.sleep(60)

def test_catches_the_first():
    try:
        while True: sum(range(1000))
    except BaseException: pass
    while True: sum(range(1000))

def test_dies(): os.abort()

def test_last(): pass
"""


@pytest.fixture
def run(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Runs pytest on the cases, with limits of a fraction of a second."""
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    root = Path(__file__).parent.parent
    limits = {"OXIDE_TEST_PROCESSOR_SECONDS": "0.2", "OXIDE_TEST_WALL_SECONDS": "1", "OXIDE_TEST_AGAIN": "0.2"}
    plugins = ["-p", "tests.limits", "-p", "tests.spreading", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-n", "2", "--dist", "loadfile", "-v", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, **limits, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_each_fails_alone_and_the_others_run(run: subprocess.CompletedProcess[str]) -> None:
    assert "2 passed" in run.stdout
    assert "4 failed" in run.stdout, run.stdout
    assert "test_cases.py::test_last" in run.stdout
    assert "the case takes more than 0.2 s of processor time" in run.stdout
    assert "the case takes more than 1 s; the stacks of all threads" in run.stdout
    assert "in in_another_thread" in run.stdout
    assert "crashed while running 'test_cases.py::test_dies'" in run.stdout
