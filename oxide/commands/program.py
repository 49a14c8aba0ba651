"""The program ``oxide``: registers the commands, parses the command line, returns the exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from oxide.commands import (
    build,
    cache,
    doctor,
    graph,
    info,
    inspect,
    launch,
    new,
    profile,
    run,
    sanitize,
    trace,
)

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


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=info.version, is_eager=True, help="print the version of oxide")
    ] = False,
) -> None:
    pass


app.command("doctor", short_help="is everything here that kernels need?")(doctor.doctor)
app.command("new", short_help="make a project that runs and tests at once")(new.new)
app.command("run", short_help="run a program on a chosen device", context_settings=_AS_GIVEN)(run.run)
app.command("launch", short_help="run a program as several ranks", context_settings=_AS_GIVEN)(launch.launch)
app.command("profile", short_help="which kernels take the time?", context_settings=_AS_GIVEN)(profile.profile)
app.command("trace", short_help="what ran in a timeline?")(trace.trace)
app.command("sanitize", short_help="find memory errors and races", context_settings=_AS_GIVEN)(sanitize.sanitize)
app.command("inspect", short_help="show what a kernel becomes")(inspect.inspect)
app.command("build", short_help="compile kernels ahead of time")(build.build)
app.command("graph", short_help="draw an operation or a captured graph")(graph.graph)
app.add_typer(cache.app, name="cache", short_help="list, measure, verify or clear the cache")
app.command("info", short_help="say which package and form of it runs")(info.info)


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
