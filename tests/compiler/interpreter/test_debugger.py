"""A debugger inside a kernel that is interpreted: pdb by its terminal, bdb and a tracer by its lines."""

from __future__ import annotations

import bdb
import os
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import DisjointSlice, Slice, d2h, f32, h2d, kernel, thread, zeros

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def driven(commands: list[str]) -> str:
    """Returns what the program prints whose debugger is given commands."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OXIDE_DEVICE": "cpu"}
    environment.pop("OXIDE_INTERPRET", None)
    ran = subprocess.run(
        [sys.executable, str(HERE / "stopped_kernel.py")],
        input="\n".join(commands) + "\n",
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_pdb_stops_between_barriers_and_goes_on() -> None:
    out = driven(["p tile", "p here", "n", "n", "p total", "c", "p twice", "up", "up", "p here", "c", "c", "c", "c"])
    assert "-> element = y.get_mut(index)" in out
    assert "(Pdb) <SharedArray(4, f32): [0. 1. 2. 3.]>" in out
    assert "(Pdb) 2\n" in out  # the thread that it stopped in
    assert "stopped_kernel.py" in out
    assert "-> return twice" in out
    assert "(Pdb) 6.0" in out  # of the first thread, whose total is the last element
    assert "result [6.0, 4.0, 2.0, 0.0]" in out


@pytest.mark.nightly
def test_quitting_the_debugger_ends_the_launch() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OXIDE_DEVICE": "cpu"}
    ran = subprocess.run(
        [sys.executable, str(HERE / "stopped_kernel.py")],
        input="q\n",
        capture_output=True,
        text=True,
        env=environment,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 1
    assert "BdbQuit" in ran.stderr
    assert "result" not in ran.stdout


@kernel(block=2)
def scaled(x: Slice[f32], y: DisjointSlice[f32]):
    index = thread.index_1d()
    number = x[index.get()] * 3
    thread.sync_threads()
    element = y.get_mut(index)
    if element is not None:
        element.value = number


@pytest.mark.skipif(sys.gettrace() is not None, reason="another debugger traces this run")
def test_a_debuggers_breakpoint_by_line_stops_in_each_thread() -> None:
    seen: list[tuple[int, Any]] = []

    class Debugger(bdb.Bdb):
        def user_line(self, frame: FrameType) -> None:
            if frame.f_code.co_name == "scaled":
                seen.append((frame.f_lineno, frame.f_locals["number"]))
            self.set_continue()

    debugger = Debugger()
    line = scaled.function.__code__.co_firstlineno + 4
    debugger.set_break(__file__, line)
    boxes = h2d(np.array([1, 2], np.float32)).sync(), zeros(2).sync()
    scaled.interpret(*boxes).sync()  # rewritten before, so that the debugger steps through nothing else
    debugger.runcall(lambda: scaled.interpret(*boxes).sync())
    assert seen == [(line, 3.0), (line, 6.0)]


@pytest.mark.skipif(sys.gettrace() is not None, reason="another debugger traces this run")
def test_a_tracer_sees_the_lines_of_the_kernel() -> None:
    lines: set[int] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == __file__ and frame.f_code.co_name == "scaled":
            lines.add(frame.f_lineno)
        return trace

    operation = scaled.interpret(h2d(np.ones(2, np.float32)), zeros(2)).last().and_then(d2h)
    sys.settrace(trace)
    try:
        result = operation.sync()
    finally:
        sys.settrace(None)
    first = scaled.function.__code__.co_firstlineno
    assert result.tolist() == [3, 3]
    assert lines >= set(range(first + 2, first + 8))


def test_breakpoint_compiled_is_refused_and_names_the_interpreter() -> None:
    from tests.compiler.interpreter.stopped_kernel import stops

    with pytest.raises(oxide.CompileError, match=r"breakpoint.*interpret"):
        stops(zeros(4), zeros(4))


@kernel(block=2)
def traced(y: DisjointSlice[f32]):
    import_of_pdb.set_trace()  # type: ignore[name-defined] # noqa: F821 - bound below


def test_set_trace_is_refused_and_names_breakpoint() -> None:
    import pdb

    globals()["import_of_pdb"] = pdb
    with pytest.raises(oxide.CompileError, match=r"write breakpoint\(\).*interpret.*OXIDE_INTERPRET=1"):
        traced(zeros(2))
