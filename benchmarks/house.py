"""The size of the house: lines by package, and how much of it two small programs enter.

Counts the lines of Python in each package of ``oxide``, the functions of ``oxide`` and ``oxide_kernels`` that
``python -m examples.async_mlp`` and ``axpy.ptx()`` enter in a process of their own without a cache, and the calls of a
warm ``await h2d(x).and_then(f).and_then(d2h)`` on the CPU device: Python's, and beside them those of functions in C.
Needs no GPU.

    python -m benchmarks.house                 # prints a table
    python -m benchmarks.house --out house.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

_ENTERED = """
import inspect, json, sys, threading
FUNCTION = inspect.CO_OPTIMIZED  # not a module's or a class's body
roots = tuple(sys.argv[2:4])
entered = set()
def note(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_flags & FUNCTION and code.co_name[0] != "<" and code.co_filename.startswith(roots):
        entered.add((code.co_filename, code.co_firstlineno))
threading.setprofile(note); sys.setprofile(note)
try:
    {program}
finally:
    sys.setprofile(None)
    found = entered.copy()
    with open(sys.argv[1], "w") as out:
        json.dump({"files": len({file for file, _ in found}), "functions": len(found)}, out)
"""

_EXAMPLE = "from examples.async_mlp.__main__ import main; code = main([]); assert not code"

_AXPY = """import oxide
    from oxide import DisjointSlice, Slice, f32, kernel, thread
    @kernel
    def axpy(a: f32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
        place = thread.index_1d()
        element = y.get_mut(place)
        if element is not None:
            element.value += a * x[place.get()]
    axpy.ptx()"""

_AWAIT = """
import json, sys
import numpy as np, trio
import oxide
from oxide import DisjointSlice, LaunchConfig, Slice, d2h, f32, h2d, kernel, thread
@kernel
def twice(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    place = thread.index_1d()
    element = y.get_mut(place)
    if element is not None:
        element.value = 2.0 * x[place.get()]
async def main():
    x = np.ones(1000, np.float32)
    out = await oxide.zeros(1000)
    def launched(box):
        return twice[LaunchConfig.for_num_elems(1000)](box, out).map(lambda boxes: boxes[1])
    async def once():
        return await h2d(x).and_then(launched).and_then(d2h)
    for _ in range(50):
        await once()
    counts = {"call": 0, "c_call": 0}
    def note(frame, event, _):
        if event in counts:
            counts[event] += 1
    results = []
    for _ in range(9):
        counts.update(call=0, c_call=0)
        sys.setprofile(note)
        await once()
        sys.setprofile(None)
        results.append(dict(counts))
    with open(sys.argv[1], "w") as file:
        json.dump(sorted(results, key=lambda each: each["call"])[4], file)
trio.run(main)
"""


def lines_by_package() -> dict[str, int]:
    """Returns the lines of Python in each folder of ``oxide`` and of ``oxide/compiler`` and ``oxide/runtime``, in all
    of ``oxide``, and of ``oxide_kernels``."""
    found: Counter[str] = Counter()
    for package in ("oxide", "oxide_kernels"):
        for file in (ROOT / package).rglob("*.py"):
            parts = file.relative_to(ROOT).parent.parts
            deep = 3 if parts[:2] in (("oxide", "compiler"), ("oxide", "runtime")) else 2
            count = len(file.read_text().splitlines())
            found["/".join(parts[:deep])] += count
            if package == "oxide":
                found["all of oxide"] += count
    return dict(sorted(found.items()))


def run(program: str) -> dict[str, Any]:
    """Runs a program in a process without a cache, which writes what it counts to the file it is given."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counts.json"
        environment = {**os.environ, "OXIDE_CACHE_DIR": folder, "OXIDE_DEVICE": "cpu", "PYTHONPATH": str(ROOT)}
        source = Path(folder) / "program.py"
        source.write_text(program)
        arguments = [str(out), str(ROOT / "oxide") + os.sep, str(ROOT / "oxide_kernels") + os.sep]
        subprocess.run(
            [sys.executable, source, *arguments], env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, check=True
        )
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Counts, and prints or writes the counts. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", allow_abbrev=False)
    parser.add_argument("--out", type=Path, help="the file for the counts")
    options = parser.parse_args(arguments)
    counts = {
        "lines": lines_by_package(),
        "entered by examples.async_mlp": run(_ENTERED.replace("{program}", _EXAMPLE)),
        "entered by axpy.ptx()": run(_ENTERED.replace("{program}", _AXPY)),
        "calls of a warm await": run(_AWAIT),
    }
    if options.out:
        options.out.write_text(json.dumps(counts, indent=1) + "\n")
    for title, found in counts.items():
        print(title)
        for name, count in found.items():
            print(f"  {count:>7,}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
