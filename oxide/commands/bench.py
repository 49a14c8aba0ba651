"""``oxide bench``: the benchmarks of a checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from oxide.commands.output import refuse


def bench(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[GROUP]...", help="groups, and options of `python -m benchmarks`; none: all groups"),
    ] = None,
) -> None:
    """Measures oxide beside what one would use instead: `python -m benchmarks`, in a checkout of oxide.

    Passes on all options and the exit status: 1 if a contender gives a wrong result.

    \b
    Examples:
      oxide bench --quick
      oxide bench launch completion
      oxide bench cpu --seconds 1
    """
    checkout = _checkout()
    if checkout is None:
        refuse("bench", "the benchmarks are not installed with the package; run this in a checkout of oxide")
    raise typer.Exit(subprocess.call([sys.executable, "-m", "benchmarks", *(arguments or [])], cwd=checkout))


def _checkout() -> Path | None:
    """Returns the checkout: the current folder or the package's parent, if it has the benchmarks. Else returns None."""
    package = Path(__file__).resolve().parent.parent
    return next((each for each in (Path.cwd(), package.parent) if (each / "benchmarks" / "harness.py").is_file()), None)
