"""``oxide info`` and ``oxide --version``: say which version of the package runs, and the form of its core."""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import Annotated

import typer

from oxide.commands.output import say
from oxide.host import core


def info(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Says which version of oxide runs, where it is, and whether its core is in C or Python.

    \b
    Examples:
      oxide info
      oxide info --json | jq -r .version
    """
    from oxide import __version__  # imported here: `oxide doctor` must also start where this import fails

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if as_json:
        found = {
            "version": __version__,
            "package": package,
            "python": platform.python_version(),
            "core": core.FORM,
        }
        sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
        return
    say(f"oxide {__version__} in {package}, Python {platform.python_version()}")
    say(f"core: {core.FORM}")


def version(asked: bool) -> None:
    """Prints the version and ends the program, if ``--version`` was given."""
    if asked:
        from oxide import __version__

        say(f"oxide {__version__}")
        raise typer.Exit
