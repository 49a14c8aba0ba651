"""``oxide launch``: starts the processes of one group, one for each rank."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from typing import Annotated, NoReturn

import typer

from oxide.commands.machine import cuda_driver, visible_gpus
from oxide.commands.output import refuse
from oxide.commands.running import Arguments, AsModule, File, checked_program, with_device

_LOOK_SECONDS = 0.05
_GRACE_SECONDS = 5.0
_RANKS_PER_PROCESSOR = 8  # more only wait for one another
_RANKS_ANYWHERE = 64  # for tests of many ranks on a machine with few processors


def launch(
    file: File,
    arguments: Arguments = None,
    as_module: AsModule = False,
    ranks: Annotated[int, typer.Option("--ranks", "-n", help="how many processes, each one rank")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu or cuda")] = None,
) -> None:
    """Runs a program as several processes, the ranks of one group: oxide.collectives.join_group() connects them.

    Each process has the variables RANK, LOCAL_RANK, WORLD_SIZE and OXIDE_GROUP, and sees one GPU of its own. If one
    fails, the others are ended, and its status is the command's: 128 plus the number of a signal that killed it.

    \b
    Examples:
      oxide launch -n 2 train.py
      oxide launch -n 4 --device cpu -m examples.data_parallel --steps 20
    """
    program = checked_program("launch", file, arguments, as_module)
    if ranks < 1:
        _refuse(ranks, "give the number of processes, as -n 2")
    environment: dict[str, str] = {}
    with_device("launch", device, environment)
    visible = _gpus_of(ranks, environment.get("OXIDE_DEVICE", os.environ.get("OXIDE_DEVICE")))
    group = secrets.token_hex(8)
    sys.stdout.flush()
    processes: list[subprocess.Popen[bytes]] = []
    for ending in (signal.SIGTERM, signal.SIGHUP):  # by default they would end this process, and leave its ranks
        signal.signal(ending, lambda number, _frame: sys.exit(128 + number))
    try:
        for rank in range(ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "OXIDE_GROUP": group}
            if visible:
                own["CUDA_VISIBLE_DEVICES"] = visible[rank]
            try:
                processes.append(subprocess.Popen(program.command, env={**os.environ, **environment, **own}))
            except OSError as error:
                refuse("launch", f"-n {ranks}: rank {rank} cannot be started: {error.strerror}; give fewer")
        _wait(processes)
    except BaseException as error:
        _end(processes, _GRACE_SECONDS if isinstance(error, KeyboardInterrupt) else 0.0)
        raise
    raise typer.Exit(_end(processes, _GRACE_SECONDS))


def _refuse(ranks: int, problem: str) -> NoReturn:
    from oxide.host.messages import written  # loads NumPy, without which `oxide doctor` runs

    refuse("launch", f"-n {written(ranks)}: {problem}")


def _gpus_of(ranks: int, kind: str | None) -> list[str]:
    """Returns the GPU for each rank, as ``CUDA_VISIBLE_DEVICES`` names it, and an empty list for the CPU device. Ends
    the command if there are too few GPUs, or too few processors for ranks on the CPU device."""
    found = None if kind == "cpu" else cuda_driver()
    if found is None or found.problem is not None or not found.gpus:
        processors = os.cpu_count() or 1
        most = max(_RANKS_ANYWHERE, _RANKS_PER_PROCESSOR * processors)
        if ranks > most:
            _refuse(
                ranks,
                f"each rank is a process, and on the CPU device this machine runs at most {most}, with {processors} "
                "processors; give fewer",
            )
        return []
    gpus = len(found.gpus)
    if gpus < ranks:
        are = "is 1 GPU" if gpus == 1 else f"are {gpus} GPUs"
        _refuse(ranks, f"there {are}, and each rank needs one; or run with --device cpu")
    return visible_gpus(ranks)


def _wait(processes: list[subprocess.Popen[bytes]]) -> None:
    """Waits until all processes have succeeded, or one has failed."""
    while any(process.poll() is None for process in processes) and not any(process.poll() for process in processes):
        time.sleep(_LOOK_SECONDS)


def _end(processes: list[subprocess.Popen[bytes]], grace: float) -> int:
    """Waits up to ``grace`` seconds, so that the other ranks can report why a rank failed. Then sends SIGTERM to the
    processes that still run, and SIGKILL to those that ignore SIGTERM.

    Returns the command's exit status: that of the rank that failed. The other ranks then fail too, with a
    ``CollectiveError``, perhaps before this rank's process has ended. Their status is 1, so a signal or another status
    has precedence.
    """
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(_LOOK_SECONDS)
    failed = [process.returncode for process in processes if process.returncode]
    for ending in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.poll() is None:
                process.send_signal(ending)
        for process in processes:
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                continue
    status = min(failed, key=lambda each: (each > 0, each == 1), default=0)
    return 128 - status if status < 0 else status
