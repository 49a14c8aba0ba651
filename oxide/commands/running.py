"""``oxide run``, and the programs that any command runs: the file, its arguments, and the environment variables that
options set.

``python -m oxide.commands.running HOW [-m] PROGRAM [ARGS]`` runs a program as ``__main__`` in a prepared process. If
HOW is ``numba-cuda``, ``oxide.numba_cuda`` stands in the place of ``numba.cuda``, for ``oxide run --numba-cuda``. Any
other HOW is a file that gets what the sanitizer finds, for ``oxide sanitize``: a line of JSON for each finding. It is
written at once, so it is not lost if the program handles the error or is killed.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oxide.commands.output import check_output, refuse

if TYPE_CHECKING:
    from oxide.errors import SanitizerError

File = Annotated[str, typer.Argument(metavar="FILE", help="the program: a file, or with -m a module")]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGS]...", help="what the program gets as sys.argv[1:]")
]
AsModule = Annotated[bool, typer.Option("-m", help="FILE names a module, as for python -m")]
_NUMBA_CUDA = "numba-cuda"


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

    def hosted(self, how: str) -> list[str]:
        """Returns the command that runs the program in a process that is prepared as ``how`` says."""
        return [sys.executable, "-m", "oxide.commands.running", how, *self.words]


def run(
    file: File,
    arguments: Arguments = None,
    as_module: AsModule = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, or one GPU as cuda:1")] = None,
    sanitize: Annotated[
        str | None, typer.Option(help="memory, race or memory,race: the CPU device's sanitizer in every kernel")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="the CPU device's schedule, drawn from this number")] = None,
    trace: Annotated[Path | None, typer.Option(metavar="OUT.json", help="write a timeline of the run")] = None,
    interpret: Annotated[
        bool, typer.Option("--interpret", help="run kernels as plain Python, for debuggers and print")
    ] = False,
    numba_cuda: Annotated[
        bool, typer.Option("--numba-cuda", help="let numba.cuda, which the program imports, be oxide.numba_cuda")
    ] = False,
) -> None:
    """Runs a program as Python does, with options for the device. The options stand before FILE.

    FILE runs as __main__ in this process, with its arguments, standard streams and exit status. --sanitize, --seed and
    --interpret are of the CPU device: with one of them and no --device, that is the device.

    \b
    Examples:
      oxide run main.py
      oxide run --device cuda:1 main.py --epochs 3
      oxide run --sanitize=memory,race main.py
      oxide run --device cpu --seed 7 main.py
      oxide run --trace out.json -m examples.async_mlp --dim 256
      oxide run --device cpu --numba-cuda simulation.py
    """
    program = checked_program("run", file, arguments, as_module)
    environment: dict[str, str] = {}
    with_sanitizer("run", sanitize, environment)
    if seed is not None:
        if seed < 0:
            refuse("run", f"--seed {seed}: give a whole number of 0 or more")
        environment["OXIDE_SEED"] = str(seed)
    if interpret:
        environment["OXIDE_INTERPRET"] = "1"
    if environment:
        options = (("--sanitize", sanitize), ("--seed", seed), ("--interpret", interpret or None))
        option = next(name for name, given in options if given is not None)
        if device is not None and device != "cpu":
            refuse("run", f"{option} is of the CPU device, and --device is {device}; leave one of them out")
        environment["OXIDE_DEVICE"] = "cpu"
    with_device("run", device, environment)
    if trace is not None:
        check_output("run", "--trace", trace)
        environment["OXIDE_TRACE"] = str(trace)
    sys.stdout.flush()
    # Replaces this process, so that signals, streams, tracebacks and the exit status are the program's own.
    command = program.hosted(_NUMBA_CUDA) if numba_cuda else program.command
    os.execve(sys.executable, command, {**os.environ, **environment})


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
    from oxide.commands.doctor import bindings_major, gpus
    from oxide.commands.machine import cuda_driver, nvidia_cards, visible_gpus

    found = cuda_driver()
    if found.problem is not None:
        finding = next(gpus(found, nvidia_cards(), "cuda", bindings_major()))
        refuse(command, f"--device {device}: {finding.found}; {finding.fix}; or run with --device cpu")
    if not colon:
        return
    if int(number) >= len(found.gpus):
        there = f"there {'is' if len(found.gpus) == 1 else 'are'} {len(found.gpus)}, numbered from 0"
        refuse(command, f"--device {device}: there is no such GPU; {there}")
    environment["CUDA_VISIBLE_DEVICES"] = visible_gpus(int(number) + 1)[-1]


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


def _run_hosted(how: str, words: Sequence[str]) -> None:
    """Runs a program in this process, prepared as ``how`` says. Raises the program's errors."""
    if how == _NUMBA_CUDA:
        from oxide.numba_cuda import install

        install()
    else:
        _write_findings(how)
    is_module = words[0] == "-m"
    name, *rest = words[1:] if is_module else words
    run_as_main(Program(name, tuple(rest), is_module))


def _write_findings(to: str) -> None:
    from oxide.driver import sanitizing

    file = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    recorded = os.getpid()

    def write(errors: tuple[SanitizerError, ...]) -> None:
        if os.getpid() == recorded:
            lines = (json.dumps({"kind": each.kind, "kernel": each.kernel, "text": str(each)}) for each in errors)
            os.write(file, "".join(f"{line}\n" for line in lines).encode())

    sanitizing.observe(write)


if __name__ == "__main__":
    sys.excepthook = lambda _kind, error, _frames: print_traceback(error)
    _run_hosted(sys.argv[1], sys.argv[2:])
