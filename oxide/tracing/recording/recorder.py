"""The recorder: takes notes while a program runs, and turns them into events later.

While the program runs, a note is a tuple that is appended to a list; nothing is looked up or formatted. A thread turns
notes into events (``timeline.py``) whenever ``_MANY`` have come together, and what the device has not finished stays
for the next time. If the thread cannot keep up, the thread that submits does it. So memory is bounded by ``_TOO_MANY``
notes and the work in flight, however long a trace is.

This module and the driver are compiled with the host path: their cost is what a trace adds to each operation.

There is one recorder while anything is traced, and traces and profiles are its sinks. It is the runtime's tracer
(``runtime/tracepoints.py``), and for each runtime it has a driver that stands in for the runtime's own
(``tracing_driver.py``) and a clock that says when devices run things.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns
from typing import Any, Final, final

import oxide.errors
from oxide.driver.base import Clock
from oxide.errors import OxideError
from oxide.runtime.device.runtime import Runtime, runtimes
from oxide.runtime.tracepoints import Built, TracedRun, points
from oxide.tracing.events import Event, Sink
from oxide.tracing.recording.notes import Note
from oxide.tracing.recording.tracing_driver import TracingDriver
from oxide.tracing.timeline import Builder

_MANY: Final = 1 << 15
_TOO_MANY: Final = 1 << 17
_ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(oxide.errors.__file__)))
_PACKAGES: Final = (os.path.join(_ROOT, "oxide") + os.sep, os.path.join(_ROOT, "oxide_kernels") + os.sep)
_get_ident: Final = threading.get_ident  # in compiled code a constant costs no look-up
_getframe: Final = sys._getframe
_clock: Final = perf_counter_ns


@final
class Recorder:
    """The tracer, while there are sinks."""

    def __init__(self, clock_of: Callable[[Runtime], Clock]) -> None:
        self._clock_of = clock_of
        self.notes: list[Note] = []
        self.runs: dict[Any, TracedRun] = {}  # the run that each thread submits, by the thread's number
        self.many = _MANY
        self.too_many = _TOO_MANY
        self.open = True
        self._inside: dict[str, bool] = {}  # whether a file belongs to this package
        self._next_run = itertools.count(1).__next__
        self._tracks = _Tracks(self.notes.append)
        self._clocks: dict[Runtime, tuple[Clock, TracingDriver]] = {}
        self._sources: set[str] = set()
        self._sinks: tuple[tuple[Sink, int], ...] = ()
        self._builder = Builder(self._give)
        self._draining = threading.RLock()
        self._wake = threading.Event()
        self._drainer = threading.Thread(target=self._serve, name="oxide-trace", daemon=True)

    # Sinks

    def add(self, sink: Sink) -> None:
        """Gives ``sink`` the events of everything submitted from now on. The first sink begins the recording."""
        with self._draining:
            if not self._sinks:
                for runtime in runtimes():
                    self.attach(runtime)
                points.tracer = self
                self._drainer.start()
            else:
                self.drain()
                self._builder.repeat_tracks(sink)
            self._sinks += ((sink, _clock()),)

    def remove(self, sink: Sink) -> None:
        """Waits for the work submitted so far and gives ``sink`` the rest of its events. The last sink ends the
        recording."""
        try:
            self._finish()
        finally:
            with self._draining:
                self._sinks = tuple(entry for entry in self._sinks if entry[0] is not sink)
                if not self._sinks:
                    self._end()

    def join(self) -> None:
        """Waits for the thread's end, if the recording has ended."""
        if not self.open and self._drainer.is_alive():
            self._drainer.join()

    def sinks(self) -> list[Sink]:
        """Returns the sinks."""
        return [sink for sink, _ in self._sinks]

    def sources(self) -> str:
        """Returns how the clocks have measured."""
        return ", ".join(sorted(self._sources))

    def _give(self, event: Event, time_ns: int) -> None:
        for sink, since in self._sinks:
            if time_ns >= since:
                sink.accept(event)

    def _end(self) -> None:
        self.open = False
        if points.tracer is self:
            points.tracer = None
        for runtime in list(self._clocks):
            self._let_go(runtime)
        self._wake.set()

    # Notes into events

    def drain(self, *, final: bool = False) -> None:
        """Turns notes into events. With ``final``, also those of work that has no times."""
        with self._draining:
            for clock, _ in list(self._clocks.values()):
                with suppress(OxideError):
                    clock.collect(final=final)
            count = len(self.notes)
            taken = self.notes[:count]
            del self.notes[:count]
            self._builder.take(taken)
            self._builder.give(final=final)

    def _serve(self) -> None:
        while self.open:
            self._wake.wait()
            self._wake.clear()
            if self.open:
                self.drain()

    def _finish(self) -> None:
        """Waits for the work that was submitted, and turns all notes into events."""
        try:
            for _, driver in list(self._clocks.values()):
                driver.settle()
        finally:
            self.drain(final=True)

    # Runtimes

    def attach(self, runtime: Runtime) -> None:
        """Begins to record what ``runtime`` submits."""
        clock = self._clock_of(runtime)
        driver = TracingDriver(runtime.driver, clock, self)
        for device in runtime._found:
            sizes = {address: entry[0] for address, entry in device.live.copy().items()}
            self.notes.append(("held", device.label, sizes))
            for timeline in device.timelines:
                driver.know_stream(timeline.handle, device.id)
                if timeline._watcher is not None:
                    driver.know_stream(timeline._watcher, device.id)
        driver.know_kernels(runtime._found)
        self._clocks[runtime] = clock, driver
        self._sources.add(clock.source)
        runtime.stand_in(driver)
        for hook in _attached:
            hook()

    def detach(self, runtime: Runtime) -> None:
        """Ends the recording of ``runtime``."""
        if runtime in self._clocks:
            try:
                self._clocks[runtime][1].settle()
            finally:
                self.drain(final=True)
                self._let_go(runtime)

    def _let_go(self, runtime: Runtime) -> None:
        clock, driver = self._clocks.pop(runtime)
        driver.end()
        if not runtime.forked and runtime.driver is driver:
            runtime.stand_in(driver.inner)
        with suppress(OxideError):
            clock.close()

    def forked(self) -> None:
        """Ends the recording in a forked child, which owns neither the devices nor the sinks."""
        self.open = False
        for sink, _ in self._sinks:
            sink.forked()
        self._sinks = ()
        self._clocks.clear()

    # What trace points call

    def built(self) -> Built | None:
        """Returns the time, and the innermost frame outside of this package."""
        frame: Any = _getframe()
        inside = self._inside
        while frame is not None:
            code = frame.f_code
            file = code.co_filename
            skip = inside.get(file)
            if skip is None:
                skip = inside[file] = file.startswith(_PACKAGES)
            if not skip:
                return _clock(), code, frame.f_lasti
            frame = frame.f_back
        return None

    def enter(self, name: str, built: Any, captured: bool) -> TracedRun:
        """Notes that the calling thread begins to submit an operation."""
        ident: Any = _get_ident()
        runs = self.runs
        outer = runs.get(ident)
        if outer is None:
            run = TracedRun(self._next_run(), name, built, self._tracks.current(), ident, captured, _clock())
        else:
            run = TracedRun(outer.number, name, built, outer.track, ident, captured, 0)
            run.outer = outer
        runs[ident] = run
        return run

    def leave(self, run: TracedRun) -> None:
        """Notes the end of what ``enter`` began."""
        if run.outer is not None:
            self.runs[run.ident] = run.outer
            return
        del self.runs[run.ident]
        notes = self.notes
        notes.append(("run", run, _clock()))
        if len(notes) > self.many:
            self._wake.set()
            if len(notes) > self.too_many:
                self.drain()

    def caused(self, cause: str) -> None:
        """Notes why the last wait was submitted."""
        self.notes.append(("cause", _get_ident(), cause))

    def awaits(self, name: str) -> tuple[int, int, str]:
        """Notes the begin of an await."""
        return _clock(), self._tracks.current(), name

    def resumed(self, awaited: tuple[int, int, str], outcome: str) -> None:
        """Notes the end of an await."""
        begun, track, name = awaited
        self.notes.append(("await", begun, _clock(), track, name, outcome))

    def blocked(self, begun: int, stream: Any) -> None:
        """Notes that the calling thread waited for a stream or an event from ``begun`` until now."""
        self.notes.append(("sync", begun, _clock(), self._tracks.current(), stream))


@final
class _Tracks:
    """The numbers of tasks and threads. Each new one is noted with its name."""

    def __init__(self, note: Callable[[Note], None]) -> None:
        self._note = note
        self._next = itertools.count(1).__next__
        self._of_tasks: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._of_thread: Any = threading.local()  # not of a class of its own: a compiled one breaks its memory
        self._in_trio: Any = None  # trio's functions, once the program has imported it
        self._trio_task: Any = None
        self._asyncio_loop: Any = None

    def current(self) -> int:
        """Returns the number of the task that runs, or of the thread if no task does."""
        if self._in_trio is None:
            self._find_trio()
        if self._in_trio is not None and self._in_trio():
            return self._number(self._trio_task(), _trio_task)
        if self._asyncio_loop is None:
            self._asyncio_loop = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
        if self._asyncio_loop is not None and (loop := self._asyncio_loop()) is not None:
            task = sys.modules["asyncio"].current_task(loop)
            if task is not None:
                return self._number(task, _asyncio_task)
        track: int = getattr(self._of_thread, "track", 0)
        if not track:
            track = self._of_thread.track = self._next()
            self._note(("track", track, f"thread {threading.current_thread().name}", {}))
        return track

    def _find_trio(self) -> None:
        lowlevel = getattr(sys.modules.get("trio"), "lowlevel", None)
        current = getattr(lowlevel, "current_task", None)  # None while another thread is importing trio
        if current is not None:
            self._trio_task = current
            self._in_trio = getattr(lowlevel, "in_trio_task", None)

    def _number(self, task: Any, describe: Callable[[Any], tuple[str, dict[str, str]]]) -> int:
        entry = self._of_tasks.get(id(task))
        if entry is not None and entry[0]() is task:  # another task may have been there before
            return entry[1]
        number: int = self._next()
        self._of_tasks[id(task)] = (weakref.ref(task), number)
        name, arguments = describe(task)
        self._note(("track", number, name, arguments))
        return number


def _trio_task(task: Any) -> tuple[str, dict[str, str]]:
    name = task.name.replace("oxide.spawn <oxide operation ", "spawn <")
    nursery = task.parent_nursery
    if nursery is None:
        return f"task {name}", {"loop": "trio"}
    parent = nursery.parent_task
    place = parent.child_nurseries.index(nursery) + 1 if nursery in parent.child_nurseries else 1
    return f"task {name}", {"loop": "trio", "nursery": f"nursery {place} of {parent.name}"}


def _asyncio_task(task: Any) -> tuple[str, dict[str, str]]:
    code = getattr(task.get_coro(), "__qualname__", "")
    return f"task {task.get_name()}" + (f" ({code})" if code else ""), {"loop": "asyncio"}


_lock = threading.Lock()
_recorder: Recorder | None = None
_attached: list[Callable[[], None]] = []
_watches_forks = False


def clock_of(runtime: Runtime) -> Clock:
    """Returns the clock of a runtime's driver."""
    return runtime.driver.clock()


def when_attached(hook: Callable[[], None]) -> None:
    """Calls ``hook`` after each runtime that is attached, now and later."""
    _attached.append(hook)


def begin(sink: Sink, clock_of: Callable[[Runtime], Clock] = clock_of) -> None:
    """Gives ``sink`` the events of everything submitted from now on. The first sink chooses the clocks."""
    global _recorder, _watches_forks
    with _lock:
        if not _watches_forks:
            _watches_forks = True
            os.register_at_fork(after_in_child=_forget)
        if _recorder is None or not _recorder.open:
            _recorder = Recorder(clock_of)
        try:
            _recorder.add(sink)
        except BaseException:
            if not _recorder.sinks():
                _recorder._end()
            raise


def end(sink: Sink) -> str:
    """Gives ``sink`` its last events, after the work submitted so far has ended. Returns how times were measured."""
    with _lock:
        recorder = _recorder
        if recorder is None or sink not in recorder.sinks():
            return ""
        sources = recorder.sources()
        recorder.remove(sink)
    recorder.join()
    return sources


def catch_up() -> None:
    """Gives the sinks the events of what devices have finished."""
    recorder = _recorder
    if recorder is not None and recorder.open:
        recorder.drain()


def _forget() -> None:
    """Ends the recording in a forked child, where other threads and their locks are gone."""
    global _recorder, _lock
    _lock = threading.Lock()
    recorder, _recorder = _recorder, None
    points.tracer = None
    if recorder is not None:
        recorder.forked()
