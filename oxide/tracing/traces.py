"""``oxide.trace`` and the environment variable ``OXIDE_TRACE``: write events as Chrome's and Perfetto's JSON of traces.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. In the file, process 1 is
the program, and its threads are the tasks. Each device is a further process, and its threads are the streams. A slice
is an ``X`` event. An ``s`` and an ``f`` event with the same ``id`` make an arrow from the submission of work to the run
of the work. ``C`` events show the memory allocated on a device.
"""

from __future__ import annotations

import atexit
import json
import os
import stat
from time import perf_counter_ns
from typing import Any, NoReturn, final

from oxide.errors import TraceError
from oxide.tracing import recorder
from oxide.tracing.events import Event, Host, Memory, Track, Wait, Work

_VARIABLE = "OXIDE_TRACE"

HOST = 1
"""The process number of the program in the file."""

_CHUNK = 1 << 16

_written: dict[tuple[int, int], int] = {}  # the descriptors of traces that have not ended, by device and inode


@final
class Trace:
    """Records its ``with`` block in the trace file ``path``. ``oxide.trace`` returns a ``Trace``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file: TraceFile | None = None

    def __enter__(self) -> Trace:
        """Begins the trace. Raises ``TraceError`` if the file cannot be written, or if another trace writes to it, and
        ``RuntimeError`` if this trace was begun before."""
        if self._file is not None:
            raise RuntimeError(f"the trace of {self.path} was begun before; call oxide.trace again for another one")
        file = TraceFile(self.path)
        try:
            recorder.begin(file)
        except BaseException:
            file.finish("")
            raise
        self._file = file
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Waits for the work submitted so far, and completes the file. Raises ``TraceError`` if a write failed. In a
        forked child, which has no recorder and whose file is closed, does nothing."""
        if self._file is None:
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


def trace_program(path: str) -> None:
    """Traces the rest of the program, for ``OXIDE_TRACE``. Raises ``TraceError`` if the file cannot be written."""
    if "%p" in path:
        path = path.replace("%p", str(os.getpid()))
    else:
        os.environ.pop(_VARIABLE, None)  # otherwise a child process would write over the file
    whole = Trace(path)
    try:
        whole.__enter__()
    except TraceError as error:
        raise TraceError(f"{_VARIABLE}={path}: {error}") from None

    def finish() -> None:
        whole.__exit__(None, None, None)

    def finish_before_the_driver() -> None:
        atexit.unregister(finish)
        atexit.register(finish)  # the last to be registered runs first, before the driver is closed

    atexit.register(finish)
    recorder.when_attached(finish_before_the_driver)


@final
class TraceFile:
    """The sink that writes events to the file ``path``. Raises ``TraceError`` if the file cannot be written, or if
    another trace that has not ended writes to it."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._descriptor, self._identity = _open(path)
        except OSError as error:
            raise TraceError(f"the trace cannot be written to {path}: {error.strerror}") from error
        self._text: list[str] = []
        self._size = 0
        self._first = True
        self._base = perf_counter_ns()  # the time that is 0 in the file
        self._devices: dict[str, int] = {}
        self._flows = 0
        self._error: OSError | None = None
        self._open = True
        self._put('{"displayTimeUnit":"ns","traceEvents":[\n')
        self._process(HOST, f"program (process {os.getpid()})")

    def accept(self, event: Event) -> None:
        """Writes an event. If a write fails, ``finish`` raises the error."""
        if not self._open:
            return
        match event:
            case Work():
                self._work(event)
            case Wait():
                name = f"wait for {event.behind}" if event.behind else "wait"
                arguments = {"cause": event.cause or "not known", "behind": event.behind, **self._by(event)}
                self._slice(self._pid(event.device), event.stream, "wait", name, event.begun, event.ended, arguments)
            case Host():
                self._slice(HOST, event.track, event.kind, event.name, event.begun, event.ended, event.arguments)
            case Memory():
                counter = {"ph": "C", "name": "device memory", "pid": self._pid(event.device), "tid": 0}
                self._event({**counter, "ts": self._us(event.time), "args": {"bytes": event.nbytes}})
            case Track():
                pid = self._pid(event.device) if event.device else HOST
                named = {"ph": "M", "pid": pid, "tid": event.number}
                self._event({**named, "name": "thread_name", "args": {"name": event.name, **event.arguments}})
                self._event({**named, "name": "thread_sort_index", "args": {"sort_index": event.number}})

    def finish(self, sources: str) -> None:
        """Writes the end of the file and closes it. Raises ``TraceError`` if any write has failed."""
        if not self._open:
            return
        self._put('\n],"otherData":' + json.dumps({"made by": "oxide", "device times": sources or "none"}) + "}\n")
        self._flush()
        self._open = False
        _written.pop(self._identity, None)
        try:
            os.close(self._descriptor)
        except OSError as error:
            self._error = self._error or error
        if self._error is not None:
            raise TraceError(
                f"the trace in {self.path} is not complete, as a write failed: {self._error.strerror}"
            ) from self._error

    def forked(self) -> None:
        """Closes the file in a forked child, without a further write: it belongs to the parent."""
        if self._open:
            self._open = False
            self._text.clear()
            _written.pop(self._identity, None)
            os.close(self._descriptor)

    # Parts of the file

    def _work(self, work: Work) -> None:
        arguments: dict[str, Any] = {**work.arguments, **self._by(work)}
        if work.nbytes is not None:
            arguments["bytes"] = work.nbytes
            if work.kind != "kernel" and work.ended > work.begun:
                arguments["GB_per_s"] = round(work.nbytes / (work.ended - work.begun), 3)
        if work.state:
            arguments["state"] = work.state
        arguments["queued_us"] = round((work.begun - work.submitted) / 1e3, 3)
        pid = self._pid(work.device)
        self._slice(pid, work.stream, work.kind, work.name, work.begun, work.ended, arguments)
        for part in work.parts:
            self._slice(pid, work.stream, "node", part.name, part.begun, part.ended, {})
        if work.origin is not None:
            self._flows += 1
            arrow = {"cat": "submission", "name": "submission", "id": self._flows}
            self._event({"ph": "s", **arrow, "pid": HOST, "tid": work.origin.track, "ts": self._us(work.submitted)})
            self._event({"ph": "f", "bp": "e", **arrow, "pid": pid, "tid": work.stream, "ts": self._us(work.begun)})

    def _by(self, event: Work | Wait) -> dict[str, Any]:
        origin = event.origin
        if origin is None:
            return {}
        placed = {"place": origin.place} if origin.place else {}
        return {"operation": origin.name, "run": origin.run, **placed}

    def _slice(self, pid: int, tid: int, kind: str, name: str, begun: int, ended: int, arguments: Any) -> None:
        where = {"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": tid}
        duration = max(0, ended - begun) / 1000
        self._event({**where, "ts": self._us(begun), "dur": round(duration, 3), "args": arguments})

    def _pid(self, device: str) -> int:
        pid = self._devices.get(device)
        if pid is None:
            pid = self._devices[device] = HOST + 1 + len(self._devices)
            self._process(pid, f"device {device}")
        return pid

    def _process(self, pid: int, name: str) -> None:
        self._event({"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": name}})
        self._event({"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}})

    def _us(self, time_ns: int) -> float:
        """Converts a time to µs since the trace began. Returns 0 for an earlier time, which an inexact device clock can
        report."""
        return max(0, time_ns - self._base) / 1000

    def _event(self, event: dict[str, Any]) -> None:
        text = json.dumps(event, separators=(",", ":"))
        self._put(text if self._first else ",\n" + text)
        self._first = False

    def _put(self, text: str) -> None:
        self._text.append(text)
        self._size += len(text)
        if self._size > _CHUNK:
            self._flush()

    def _flush(self) -> None:
        data = "".join(self._text).encode()
        self._text.clear()
        self._size = 0
        try:
            while data and self._error is None:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            self._error = error


def _open(path: str) -> tuple[int, tuple[int, int]]:
    """Opens a file and empties it. Returns its descriptor and its identity. Raises ``TraceError``, and leaves the file
    as it is, if another trace writes to it. Several traces may write to a device file, such as /dev/null."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    found = os.fstat(descriptor)
    identity = found.st_dev, found.st_ino
    try:
        if stat.S_ISREG(found.st_mode):
            if _written.setdefault(identity, descriptor) != descriptor:
                raise TraceError(
                    f"the trace cannot be written to {path}: a trace that has not ended writes to this file; give each "
                    f"trace a file of its own"
                )
            os.ftruncate(descriptor, 0)
    except BaseException:
        if _written.get(identity) == descriptor:
            del _written[identity]
        os.close(descriptor)
        raise
    return descriptor, identity
