"""From process start to the first result of a kernel that was built ahead of time, where no compiler is installed.

``python -m benchmarks.prebuilt`` builds ``first_kernel``'s kernel for the CPU device and runs it in fresh interpreters
that find neither numba nor llvmlite nor CUDA's bindings, with the cache on disk off. A bare interpreter and one that
imports NumPy are measured in the same rounds: they are the part that is not oxide's.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["OXIDE_DEVICE"] = "cpu"

from benchmarks.record import write

ROOT = Path(__file__).parent.parent
ROUNDS = 21

HIDING = "from tests.hiding import COMPILERS, hide; hide(COMPILERS)\n"
FIRST = """
import numpy as np
import oxide
x = np.linspace(-1, 1, 1000, dtype=np.float32)
relu = oxide.load({directory!r})["relu"]
assert (relu(oxide.h2d(x), oxide.zeros(1000)).last().to_host().sync() == np.maximum(x, 0)).all()
"""


def seconds(program: str) -> tuple[float, float]:
    """Returns the time of a process that runs a program, and its processor time."""
    environment = {**os.environ, "OXIDE_CACHE": "0"}
    before, begun = processor_seconds(), time.perf_counter()
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=True)
    return time.perf_counter() - begun, processor_seconds() - before


def processor_seconds() -> float:
    """Returns the processor time of all ended child processes. Other programs of the machine add little to it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        built = str(Path(folder, "built"))
        command = [sys.executable, "-m", "oxide", "build", "benchmarks.first_kernel:relu", "--cpu", "-o", built]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        programs = {
            "python": "pass",
            "numpy": "import numpy",
            "prebuilt": HIDING + FIRST.format(directory=built),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        for turn in range(ROUNDS + 1):
            for name, program in programs.items():
                found = seconds(program)
                if turn:  # the first fills Python's own caches
                    times[name].append(found)
    figures: dict[str, float] = {}
    for name, found_times in times.items():
        elapsed, processor = zip(*found_times, strict=True)
        figures[f"{name}_s"] = round(statistics.median(elapsed), 4)
        figures[f"{name}_least_s"] = round(min(elapsed), 4)
        figures[f"{name}_processor_s"] = round(statistics.median(processor), 4)
    print(figures)
    write("prebuilt", figures, "numpy")


if __name__ == "__main__":
    main()
