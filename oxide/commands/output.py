"""Prints for the commands: results on standard output, errors on standard error.

Colours and line wrapping are for terminals. A pipe or a file gets plain lines of any length, which can be searched,
compared and pasted. ``NO_COLOR`` turns colours off; rich reads it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console

STANDARD_OUTPUT = Path("-")
WRONG_USAGE = 2
FINDINGS = 1


def console(stream: TextIO | None = None) -> Console:
    """Returns a console that prints to a stream, by default to the current ``sys.stdout``."""
    from rich.console import Console  # takes 40 ms, which a program started by `oxide run` need not wait for

    stream = stream or sys.stdout
    plain = not stream.isatty()
    return Console(
        file=stream,
        width=10_000 if plain else None,
        force_terminal=False if plain else None,
        color_system=None if plain else "auto",
        soft_wrap=True,
        highlight=False,
        markup=False,
        emoji=False,
    )


def say(text: str) -> None:
    """Prints a line."""
    console().print(text)


def complain(command: str, message: str) -> None:
    """Prints an error of a command on standard error."""
    from rich.text import Text

    console(sys.stderr).print(Text(f"oxide {command}: ", style="bold red").append(message, style="not bold default"))


def refuse(command: str, message: str) -> NoReturn:
    """Prints an error and ends the command with status 2: wrong usage."""
    complain(command, message)
    raise typer.Exit(WRONG_USAGE)


def write(command: str, text: str, output: Path | None) -> None:
    """Writes text to the file ``output`` and prints the file's name. If ``output`` is None or ``-``, writes the text to
    standard output instead. Ends the command if the file cannot be written."""
    if output is None or output == STANDARD_OUTPUT:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        refuse(command, f"{output} cannot be written: {error.strerror}")
    say(str(output))


def check_output(command: str, option: str, output: Path | None) -> None:
    """Ends the command if the file that an option names cannot be written. Called before the user's program runs, so
    that its results are not lost."""
    if output is None:
        return
    if output == STANDARD_OUTPUT:
        refuse(command, f"{option} -: standard output is the program's; name a file")
    folder = output.absolute().parent
    if not folder.is_dir():
        refuse(command, f"{option} {output}: there is no folder {folder}")
    if output.is_dir():
        refuse(command, f"{option} {output} is a folder; name a file")
    if not os.access(output if output.exists() else folder, os.W_OK):
        refuse(command, f"{option} {output}: it may not be written")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> None:
    """Prints rows in columns. The columns ``right`` are aligned to the right."""
    from rich.table import Table

    printed = console()
    numbers = set(right)
    shown = Table(box=None, pad_edge=False, show_edge=False, header_style="bold" if printed.is_terminal else "")
    for number, heading in enumerate(headings):
        shown.add_column(
            heading, justify="right" if number in numbers else "left", no_wrap=not printed.is_terminal, overflow="fold"
        )
    for row in rows:
        shown.add_row(*row)
    if printed.is_terminal:
        printed.print(shown, soft_wrap=False)
        return
    with printed.capture() as captured:
        printed.print(shown, soft_wrap=False)
    for line in captured.get().splitlines():
        sys.stdout.write(f"{line.rstrip()}\n")


def size_text(nbytes: int) -> str:
    """Returns a number of bytes as readable text, such as 1.5 MiB."""
    amount = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{nbytes} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
