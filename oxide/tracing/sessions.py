"""Implements ``oxide.trace``, ``oxide.profile`` and the environment variable ``OXIDE_TRACE``."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter_ns
from typing import NoReturn, final

from oxide.errors import TraceError
from oxide.tracing import recorder
from oxide.tracing.profiles import Profile, checked_flops
from oxide.tracing.trace_file import TraceFile

VARIABLE = "OXIDE_TRACE"


@final
class Trace:
    """Records its ``with`` block in the trace file ``path``. ``oxide.trace`` returns a ``Trace``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file: TraceFile | None = None
        self._process = 0

    def __enter__(self) -> Trace:
        """Begins the trace. Raises ``TraceError`` if the file cannot be written, or if another trace writes to it, and
        ``RuntimeError`` if this trace was begun before."""
        if self._file is not None:
            raise RuntimeError(f"the trace of {self.path} was begun before; call oxide.trace again for another one")
        file = TraceFile(self.path)
        file.begin(perf_counter_ns())
        try:
            recorder.begin(file)
        except BaseException:
            file.finish("")
            raise
        self._file = file
        self._process = os.getpid()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Waits for the work submitted so far, and completes the file. Raises ``TraceError`` if a write failed. Does
        nothing in a forked child."""
        if self._file is None or os.getpid() != self._process:
            return
        sources = ""
        try:
            sources = recorder.end(self._file)
        finally:
            self._file.finish(sources)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Trace cannot be pickled or copied; oxide.trace(path) makes another")

    def __repr__(self) -> str:
        return f"<oxide.Trace {self.path}>"


def trace(path: str | os.PathLike[str]) -> Trace:
    """Returns a context manager that records a timeline of its ``with``, as a file for ui.perfetto.dev and Chrome.

    The file shows, for each operation that tasks and threads run: where it was built, when it was submitted, when and
    on which stream the device ran its launches, copies, fills and graphs, when the task awaited it, and when the task
    ran again. The file also shows the waits between streams with their causes, and the allocated memory. All threads,
    devices and event loops are recorded, also runtimes and streams that existed before.

    The end of the ``with`` blocks the thread until the work submitted so far has ended, also inside an event loop. The
    file is complete even if an exception ends the ``with``. Traces and profiles may be nested and may overlap: each
    records what is submitted inside it. A forked child is not traced. Memory stays bounded: the records of finished
    work are written while the trace goes on.

    Entering the ``with`` raises ``TraceError`` if the file cannot be written, or if another trace that has not ended
    writes to it. Leaving the ``with`` raises ``TraceError`` if a write has failed.

    ``OXIDE_TRACE=path`` traces a whole program, without child processes. In the path, ``%p`` stands for the number of
    the process; with ``%p``, child processes are traced too.
    """
    return Trace(path)


@contextmanager
def profile(*, flops: Mapping[str, float] | None = None) -> Iterator[Profile]:
    """Counts and times kernels, copies and fills inside the ``with``: ``with oxide.profile() as p: …``, then
    ``print(p)``.

    ``flops`` maps the name of a kernel to the number of floating-point operations of a launch, which the runtime does
    not know: ``flops={"sgemm": 2 * n**3}``. The end of the ``with`` blocks the thread until the work submitted so far
    has ended. Raises ``TypeError`` if ``flops`` is not a dict of numbers by name, ``ValueError`` if a number is
    negative or not finite.
    """
    taken = Profile(checked_flops(flops))
    recorder.begin(taken)
    process = os.getpid()
    try:
        yield taken
    finally:
        if os.getpid() == process:
            taken.device_times = recorder.end(taken)


def trace_program(path: str) -> None:
    """Traces the rest of the program, for ``OXIDE_TRACE``. Raises ``TraceError`` if the file cannot be written."""
    if "%p" in path:
        path = path.replace("%p", str(os.getpid()))
    else:
        os.environ.pop(VARIABLE, None)  # otherwise a child process would write over the file
    whole = Trace(path)
    try:
        whole.__enter__()
    except TraceError as error:
        raise TraceError(f"{VARIABLE}={path}: {error}") from None

    def finish() -> None:
        whole.__exit__(None, None, None)

    def finish_before_the_driver() -> None:
        atexit.unregister(finish)
        atexit.register(finish)  # the last to be registered runs first, before the driver is closed

    atexit.register(finish)
    recorder.when_attached(finish_before_the_driver)
