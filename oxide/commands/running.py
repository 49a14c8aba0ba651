"""Programs that the commands run: the file, its arguments, and the environment variables that the options set."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
import traceback
from dataclasses import dataclass
from typing import Annotated

import typer

from oxide.commands.output import refuse

File = Annotated[str, typer.Argument(metavar="FILE", help="the program: a file, or with -m a module")]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGS]...", help="what the program gets as sys.argv[1:]")
]
AsModule = Annotated[bool, typer.Option("-m", help="FILE names a module, as for python -m")]


@dataclass(frozen=True, slots=True)
class Program:
    """A program: a file or a module, and its arguments."""

    name: str
    arguments: tuple[str, ...]
    is_module: bool

    @property
    def words(self) -> list[str]:
        """Returns the arguments of ``python`` that run the program."""
        if self.is_module:
            return ["-m", self.name, *self.arguments]
        return [f"./{self.name}" if self.name.startswith("-") else self.name, *self.arguments]

    @property
    def command(self) -> list[str]:
        """Returns the command that runs the program with this Python."""
        return [sys.executable, *self.words]


def checked_program(command: str, file: str, arguments: list[str] | None, as_module: bool) -> Program:
    """Returns the program that a command names. Ends the command if there is no such file, or if it is a folder without
    ``__main__.py``."""
    if not as_module and not os.path.exists(file):
        refuse(command, f"{file}: there is no such file; name a Python program, or a module with -m")
    if not as_module and os.path.isdir(file) and not os.path.isfile(os.path.join(file, "__main__.py")):
        refuse(command, f"{file} is a folder without __main__.py; name a Python program, or a module with -m")
    return Program(file, tuple(arguments or ()), as_module)


def run_as_main(program: Program) -> None:
    """Runs a program in this process as ``__main__``, with its arguments. Raises the program's errors."""
    sys.argv = [program.name, *program.arguments]
    if program.is_module:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        runpy.run_module(program.name, run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, os.path.dirname(os.path.abspath(program.name)))
    runpy.run_path(program.name, run_name="__main__")


def print_traceback(error: BaseException, *ours: str) -> None:
    """Prints the error's traceback without its outermost frames: those of this file, of the files ``ours`` and of
    Python's import system. No frame is left if the program's file has a syntax error."""
    at = error.__traceback__
    passed = {__file__, runpy.__file__, importlib.__file__, *ours}
    while at is not None and (
        at.tb_frame.f_code.co_filename in passed or at.tb_frame.f_code.co_filename.startswith("<frozen ")
    ):
        at = at.tb_next
    traceback.print_exception(error.with_traceback(at))


def with_device(command: str, device: str | None, environment: dict[str, str]) -> None:
    """Sets the environment variables that select the device ``cpu``, ``cuda`` or ``cuda:N``. Ends the command for any
    other word. Ends it for a GPU that is missing or cannot be used, with the message of ``oxide doctor``.

    ``cuda:N`` makes this GPU the only one that the program sees, so that every library has it as device 0.
    """
    if device is None:
        return
    kind, colon, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (colon and (kind == "cpu" or not (number.isascii() and number.isdecimal()))):
        refuse(command, f"--device {device}: name cpu, cuda or one GPU, as cuda:1")
    environment["OXIDE_DEVICE"] = kind
    if kind == "cpu":
        return
    from oxide.commands.diagnosis import bindings_major, gpus
    from oxide.commands.machine import cuda_driver, nvidia_cards

    found = cuda_driver()
    if found.problem is not None:
        finding = next(gpus(found, nvidia_cards(), "cuda", bindings_major()))
        refuse(command, f"--device {device}: {finding.found}; {finding.fix}; or run with --device cpu")
    if not colon:
        return
    if int(number) >= len(found.gpus):
        there = f"there {'is' if len(found.gpus) == 1 else 'are'} {len(found.gpus)}, numbered from 0"
        refuse(command, f"--device {device}: there is no such GPU; {there}")
    visible = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    environment["CUDA_VISIBLE_DEVICES"] = visible[int(number)].strip() if visible else str(int(number))


def with_sanitizer(command: str, kinds: str | None, environment: dict[str, str]) -> None:
    """Sets the environment variable that turns the sanitizer on for ``kinds``. Ends the command for an unknown kind."""
    if kinds is None:
        return
    from oxide.driver.sanitizing import VARIABLE, parse_kinds

    try:
        asked = parse_kinds(kinds, f"--sanitize={kinds}")
    except ValueError as error:
        refuse(command, str(error))
    if not asked:
        refuse(command, f"--sanitize={kinds}: name memory, race or memory,race")
    environment[VARIABLE] = ",".join(sorted(asked))
