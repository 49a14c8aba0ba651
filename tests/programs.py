"""Runs programs as files of their own, each in a fresh process that has imported the compiler already.

An interpreter that starts and imports the compiler takes more than a second, and a program of the book a tenth of one.
So one process imports it and forks for each program. It has neither threads nor a runtime: these are the program's own,
which ends as any program does, with its exit status, its handlers and its traceback.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from select import select
from types import ModuleType, TracebackType

import oxide

ROOT = Path(__file__).parent.parent


class Programs:
    """The process that forks, while its block lasts."""

    def __enter__(self) -> Programs:
        self._server = subprocess.Popen(
            [sys.executable, "-X", "utf8", "-W", "error::ResourceWarning", "-m", "tests.programs"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.communicate()

    def run(self, code: str, folder: Path, seconds: float = 100) -> subprocess.CompletedProcess[str]:
        """Runs code as a file in ``folder``, and returns its exit status and what it printed. Raises
        ``subprocess.TimeoutExpired`` if it takes longer, and then runs no further programs."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        (folder / "program.py").write_text(code, encoding="utf-8")  # a kernel's source must be in a file
        self._server.stdin.write(json.dumps(str(folder)).encode() + b"\n")
        self._server.stdin.flush()
        if not select([self._server.stdout], [], [], seconds)[0]:
            os.killpg(self._server.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired("program.py", seconds)
        status = json.loads(self._server.stdout.readline())
        printed, errors = ((folder / name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess("program.py", status, printed, errors)


def serve() -> Path | None:
    """Forks for each folder that is read. Returns the folder in the forked process, and None in this one at the end."""
    for line in _lines():
        folder = Path(json.loads(line))
        if (pid := os.fork()) == 0:
            return folder
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()
    return None


def _lines() -> Iterator[bytes]:
    """The lines of the standard input, without a buffer that a forked process would have too."""
    line = b""
    while byte := os.read(0, 1):
        line += byte
        if byte == b"\n":
            yield line
            line = b""


def become(folder: Path) -> None:
    """Makes this process that of the program in ``folder``, and runs it."""
    os.chdir(folder)
    for number, (name, how) in enumerate(
        [(os.devnull, os.O_RDONLY), *((name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in ("stdout", "stderr"))]
    ):
        file = os.open(name, how)
        os.dup2(file, number)
        os.close(file)
    script = str(folder / "program.py")
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = script
    sys.argv, sys.path[0] = [script], str(folder)
    sys.path.append(str(ROOT))
    exec(compile(Path(script).read_bytes(), script, "exec"), main.__dict__)


def warm() -> None:
    """Imports the compiler, and what it imports for the first kernel. ``oxide`` gets no name that a program would not
    find there, and neither a device nor a thread begins."""
    from oxide import DisjointSlice, f32, kernel, thread

    names = set(vars(oxide))

    @kernel
    def first(elements: DisjointSlice[f32]) -> None:
        element = elements.get_mut(thread.index_1d())
        if element is not None:
            element.value = f32(1)

    first.llvm_ir()
    first.ptx()
    assert set(vars(oxide)) == names
    assert threading.active_count() == 1


if __name__ == "__main__":
    warm()
    gc.collect()
    gc.freeze()  # or each program would walk and free all of the compiler as it ends, which takes most of a second
    if (given := serve()) is not None:
        become(given)
