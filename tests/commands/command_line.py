"""Runs the program ``oxide`` as a user would: in a process of its own, its output into pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class Ran:
    """An ended process."""

    status: int
    out: str
    err: str


def oxide(
    *arguments: str, cwd: Path, stdin: str = "", program: tuple[str, ...] = ("-m", "oxide"), **variables: str
) -> Ran:
    """Runs ``oxide`` with this Python. ``variables`` are set in its environment; an empty one is unset there."""
    environment = {**os.environ, **variables}
    ran = subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=cwd,
        env={name: value for name, value in environment.items() if value or name not in variables},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)
