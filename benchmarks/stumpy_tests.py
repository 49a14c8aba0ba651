"""Runs stumpy's own tests of its GPU modules on ``oxide.numba_cuda``: ``python -m benchmarks.stumpy_tests [ARGS]``.

Downloads stumpy's source for its tests and installs what they need into an environment of its own, in
``build/stumpy``. Needs a network for the first run. ``OXIDE_DEVICE`` picks the device.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACE = ROOT / "build" / "stumpy"
SOURCE = "https://github.com/stumpy-dev/stumpy"
NEEDED = ("pandas<3", "python-dateutil", "pytz", "six", "tzdata", "scipy")  # stumpy 1.14 writes into read-only frames
PLUGIN = "from oxide import numba_cuda\n\nnumba_cuda.install()\n"


def main() -> int:
    python = PLACE / "environment" / "bin" / "python"
    if not python.exists():
        PLACE.mkdir(parents=True, exist_ok=True)
        venv.create(PLACE / "environment", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-e", ROOT, "pytest", *NEEDED], check=True)
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", SOURCE, PLACE / "source"], check=True)
        (PLACE / "installs_oxide.py").write_text(PLUGIN)
    tests = sorted((PLACE / "source" / "tests").glob("test_gpu_*.py"))
    environment = {**os.environ, "PYTHONPATH": f"{PLACE / 'source'}{os.pathsep}{PLACE}"}
    command = [python, "-m", "pytest", "-q", "-p", "installs_oxide", *sys.argv[1:], *tests]
    return subprocess.run(command, cwd=PLACE / "source", env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
