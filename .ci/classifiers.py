"""Checks that each classifier of a Python version has a recorded run of the tests.

``python .ci/classifiers.py record`` runs tests with this interpreter, and records the run in ``.ci/runs.json`` if all
pass. ``python .ci/classifiers.py`` exits with 1 and names each version that ``pyproject.toml`` claims without a run.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUNS = ROOT / ".ci" / "runs.json"
TESTS = [
    "tests/runtime/launching/test_launch.py",
    "tests/runtime/launching/test_prebuilt.py",
    "tests/runtime/loop",
    "tests/runtime/operations/test_operations.py",
]
_VERSION = re.compile(r"Programming Language :: Python :: (\d+\.\d+)")


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    if arguments == ["record"]:
        return record()
    if arguments:
        print("usage: python .ci/classifiers.py [record]", file=sys.stderr)
        return 2
    claimed, runs = claims(ROOT / "pyproject.toml"), json.loads(RUNS.read_text(encoding="utf-8"))
    missing = without_run(claimed, runs)
    for version in missing:
        print(f"Python {version} is a classifier, and {RUNS.name} has no run of it: run {Path(__file__).name} record")
    return 1 if missing else 0


def claims(project: Path) -> list[str]:
    """Returns the Python versions that a project's classifiers name."""
    classifiers = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["classifiers"]
    return [found[1] for each in classifiers if (found := _VERSION.fullmatch(each))]


def without_run(claimed: list[str], runs: dict[str, dict[str, object]]) -> list[str]:
    """Returns the claimed versions of which no run with passed tests is recorded."""
    return [version for version in claimed if not runs.get(version, {}).get("passed")]


def record() -> int:
    """Runs the tests, and records the run if all pass. Returns pytest's exit status."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *TESTS]
    ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(ran.stdout)
    passed = re.search(r"(\d+) passed", ran.stdout)
    if ran.returncode or passed is None:
        return ran.returncode or 1
    runs = json.loads(RUNS.read_text(encoding="utf-8")) if RUNS.exists() else {}
    runs[f"{sys.version_info.major}.{sys.version_info.minor}"] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "passed": int(passed[1]),
        "tests": TESTS,
        "date": datetime.now(UTC).date().isoformat(),
    }
    RUNS.write_text(json.dumps(dict(sorted(runs.items())), indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
