"""``make check``: format, lint and types of what changed, and the nearest tests that the change can reach.

    python -m tests.check                     what differs from the last commit, or the last commit if nothing does
    python -m tests.check --since main        what differs from a commit or a branch
    python -m tests.check oxide/errors.py     these files

The last line says what was left out. Exits with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import reach

SECONDS = 35.0
"""The seconds that the tests may take on each of two processes, by ``times.json``."""
TYPED = ("oxide", "oxide_kernels", "examples", "oxide_command.py")


def changed_files(since: str | None) -> tuple[str, list[Path]]:
    """Returns what the files differ from, in words, and the files that were changed or are new."""
    against = since or "HEAD"
    names = _git("diff", "--name-only", "--diff-filter=d", against) + _git("ls-files", "--others", "--exclude-standard")
    if not names and since is None:
        return "the last commit", [Path(name) for name in _git("diff", "--name-only", "--diff-filter=d", "HEAD~1")]
    return f"what differs from {against}", [Path(name) for name in names]


def _git(*arguments: str) -> list[str]:
    ran = subprocess.run(["git", *arguments], cwd=reach.ROOT, check=True, capture_output=True, text=True)
    return ran.stdout.splitlines()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="files, in place of those that git finds changed")
    parser.add_argument("--since", help="a commit or a branch to compare with (the last commit)")
    parser.add_argument("--tests-only", action="store_true", help="neither format nor lint nor types")
    parser.add_argument("--first", action="store_true", help="end at the first test that fails")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"what the tests may take ({SECONDS:g})")
    asked = parser.parse_args(arguments)
    whence, changed = ("the files named", asked.files) if asked.files else changed_files(asked.since)
    if not changed:
        print(f"make check: nothing has changed ({whence})")
        return 0
    print(f"make check: {whence}: {', '.join(map(str, changed))}", flush=True)
    python = [file for file in map(str, changed) if file.endswith(".py") and not asked.tests_only]
    # One process checks the types while the others run tests.
    types = subprocess.Popen([sys.executable, "-m", "mypy", "--strict", *TYPED], cwd=reach.ROOT) if python else None
    failed = [
        f"ruff {command[0]}"
        for command in (["format", "--check"], ["check"])
        if python and subprocess.run([sys.executable, "-m", "ruff", *command, *python], cwd=reach.ROOT).returncode
    ]
    failed += stale_recipes({str(file) for file in changed})
    reached = reach.files(changed)
    options = ["-x"] if asked.first else []
    if reached and (status := run_tests(reached, changed, asked.seconds, *options)) not in (0, 5):
        failed.append(f"pytest ({status})")
    if types is not None and types.wait():
        failed.append("mypy")
    if not reached:
        print("make check: no test is reached by the change")
    if failed:
        print(f"make check: failed: {', '.join(failed)}")
    return 1 if failed else 0


def stale_recipes(changed: set[str]) -> list[str]:
    """Returns the recipes that touch a changed file and no longer apply."""
    found = []
    for patch in sorted((reach.ROOT / "tests" / "recipes").glob("*.patch")):
        lines = patch.read_text().splitlines()
        if changed.intersection(line[len("+++ b/") :] for line in lines if line.startswith("+++ b/")):
            ran = subprocess.run(["git", "apply", "--check", patch], cwd=reach.ROOT, capture_output=True)
            found += [f"tests/recipes/{patch.name} no longer applies"] if ran.returncode else []
    return found


def run_tests(files: Sequence[Path], changed: Sequence[Path], seconds: float, *options: str) -> int:
    """Runs the nearest tests, and returns pytest's status."""
    processes = min(os.cpu_count() or 1, 4)
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-r", "fE", "-n", str(processes), "--dist", "loadfile"),
            *(f"--reached-by={file}" for file in changed),
            f"--reach-seconds={seconds * processes}",
            *options,
            *map(str, files),
        ],
        cwd=reach.ROOT,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
