"""The program ``oxide``: registers the commands, parses the command line, returns the exit status. ``oxide info`` and
``oxide --version`` are here: they say which version of the package runs, and the form of its core."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from oxide.commands import cache, doctor, kernels, launch, new, profile, running, sanitize
from oxide.commands.output import say
from oxide.host import core

app = typer.Typer(
    name="oxide",
    help="""Looks inside kernels, runs programs and checks the installation.

    \b
    Examples:
      oxide doctor                       is everything here that kernels need?
      oxide new waves                    a project that runs and tests at once
      oxide run --sanitize=memory,race main.py
      oxide inspect module:kernel --ptx  what a kernel becomes
      oxide COMMAND --help               each command's options and examples

    \b
    Exit status:
      0  all is well
      1  a finding, or a failure of what ran
      2  wrong usage, or no such kernel, file or tool
      run and profile pass on the status of what they run.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help, as users copy from it and pipe it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_AS_GIVEN = {"allow_interspersed_args": False}
"""For a command that runs a file: all arguments after the file are the program's."""


def _print_version(asked: bool) -> None:
    """Prints the version and ends the program, if ``--version`` was given."""
    if asked:
        from oxide import __version__

        say(f"oxide {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version of oxide")
    ] = False,
) -> None:
    pass


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


app.command("doctor", short_help="is everything here that kernels need?")(doctor.doctor)
app.command("new", short_help="make a project that runs and tests at once")(new.new)
app.command("run", short_help="run a program on a chosen device", context_settings=_AS_GIVEN)(running.run)
app.command("launch", short_help="run a program as several ranks", context_settings=_AS_GIVEN)(launch.launch)
app.command("profile", short_help="which kernels take the time?", context_settings=_AS_GIVEN)(profile.profile)
app.command("trace", short_help="what ran in a timeline?")(profile.trace)
app.command("sanitize", short_help="find memory errors and races", context_settings=_AS_GIVEN)(sanitize.sanitize)
app.command("inspect", short_help="show what a kernel becomes")(kernels.inspect)
app.command("build", short_help="compile kernels ahead of time")(kernels.build)
app.command("graph", short_help="draw an operation or a captured graph")(kernels.graph)
app.add_typer(cache.app, name="cache", short_help="list, measure, verify or clear the cache")
app.command("info", short_help="say which package and form of it runs")(info)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that ``arguments`` name, by default those of the process. Returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=given, prog_name="oxide")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            raise
        return ended.code or 0
    return 0
