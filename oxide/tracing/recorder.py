"""The recorder: takes notes while a program runs, and turns them into events later.

While the program runs, a note is a tuple that is appended to a list; nothing is looked up or formatted. Whenever there
are more than ``_MANY`` notes, a thread of the recorder turns them into events (``events.py``). Notes of work that the
device has not finished are kept for the next time. If that thread cannot keep up, the submitting thread turns the notes
into events itself. So memory is bounded by ``_TOO_MANY`` notes and the work in flight, however long a trace is.

While anything is traced, there is one recorder. Traces and profiles are its *sinks*: they consume the events. The
recorder is the runtime's tracer (``runtime/tracepoints.py``). For each runtime it has a wrapper that replaces the
runtime's driver (``tracing_driver.py``), and a clock that measures when devices run work.
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

from oxide import errors
from oxide.driver.base import Clock, provided
from oxide.errors import OxideError
from oxide.host.locks import new_lock, unheld
from oxide.runtime.devices.runtime import Runtime, runtimes
from oxide.runtime.tracepoints import Built, TracedRun, points
from oxide.tracing.events import Builder, Event, Note, Sink
from oxide.tracing.tracing_driver import TracingDriver

_MANY: Final = 1 << 15
_TOO_MANY: Final = 1 << 17
_ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(errors.__file__)))
_PACKAGES: Final = (os.path.join(_ROOT, "oxide") + os.sep, os.path.join(_ROOT, "oxide_kernels") + os.sep)


@final
class Recorder:
    """Records for its sinks, as the tracer of all runtimes. ``clock_of`` returns a new clock for a runtime."""

    def __init__(self, clock_of: Callable[[Runtime], Clock]) -> None:
        self._clock_of = clock_of
        self.notes: list[Note] = []
        self.runs: dict[Any, TracedRun] = {}  # the run that each thread submits, by the thread's number
        self.many = _MANY
        self.too_many = _TOO_MANY
        self.open = True
        self._inside: dict[str, bool] = {}  # by file: whether it belongs to oxide or oxide_kernels
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
        """Gives ``sink`` the events of all submissions from now on. The first sink begins the recording."""
        with self._draining:
            if not self._sinks:
                for runtime in runtimes():
                    self.attach(runtime)
                points.tracer = self
                self._drainer.start()
            else:
                self.drain()
                self._builder.repeat_tracks(sink)
            self._sinks += ((sink, perf_counter_ns()),)

    def remove(self, sink: Sink) -> None:
        """Waits for the work submitted so far and gives ``sink`` the rest of its events. Ends the recording if no other
        sink remains."""
        try:
            self._finish()
        finally:
            with self._draining:
                self._sinks = tuple(entry for entry in self._sinks if entry[0] is not sink)
                if not self._sinks:
                    self._end()

    def join(self) -> None:
        """Waits for the end of the recorder's thread, if the recording has ended."""
        if not self.open and self._drainer.is_alive():
            self._drainer.join()

    def sinks(self) -> list[Sink]:
        return [sink for sink, _ in self._sinks]

    def sources(self) -> str:
        """Returns the sources of the clocks' times, such as "CUPTI", separated by commas."""
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
        """Turns notes into events. If ``final`` is True, notes of work without times become events too."""
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
        """Begins to record the submissions of ``runtime``."""
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
        """Waits for the work of ``runtime`` and ends the recording of this runtime. Does nothing if it is not
        recorded."""
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

    # Called by trace points

    def built(self) -> Built | None:
        """Returns the time, and the code and the instruction of the innermost frame outside of oxide. Returns None if
        there is no such frame."""
        frame: Any = sys._getframe()
        inside = self._inside
        while frame is not None:
            code = frame.f_code
            file = code.co_filename
            skip = inside.get(file)
            if skip is None:
                skip = inside[file] = file.startswith(_PACKAGES)
            if not skip:
                return perf_counter_ns(), code, frame.f_lasti
            frame = frame.f_back
        return None

    def enter(self, name: str, built: Any, captured: bool) -> TracedRun:
        """Begins a run, because the calling thread begins to submit an operation. Returns the run. Within an outer run,
        the new run is a part of it."""
        ident = threading.get_ident()
        runs = self.runs
        outer = runs.get(ident)
        if outer is None:
            run = TracedRun(self._next_run(), name, built, self._tracks.current(), ident, captured, perf_counter_ns())
        else:
            run = TracedRun(outer.number, name, built, outer.track, ident, captured, 0)
            run.outer = outer
        runs[ident] = run
        return run

    def leave(self, run: TracedRun) -> None:
        """Ends a run that ``enter`` began. Notes the run, unless it is a part of an outer run."""
        if run.outer is not None:
            self.runs[run.ident] = run.outer
            return
        del self.runs[run.ident]
        notes = self.notes
        notes.append(("run", run, perf_counter_ns()))
        if len(notes) > self.many:
            self._wake.set()
            if len(notes) > self.too_many:
                self.drain()

    def caused(self, cause: str) -> None:
        """Notes the reason for the last wait that the calling thread submitted."""
        self.notes.append(("cause", threading.get_ident(), cause))

    def awaits(self, name: str) -> tuple[int, int, str]:
        """Returns the time, the track and the name of an await that begins now, for ``resumed``."""
        return perf_counter_ns(), self._tracks.current(), name

    def resumed(self, awaited: tuple[int, int, str], outcome: str) -> None:
        """Notes an await that ends now. ``awaited`` is the result of ``awaits``."""
        begun, track, name = awaited
        self.notes.append(("await", begun, perf_counter_ns(), track, name, outcome))

    def blocked(self, begun: int, stream: Any) -> None:
        """Notes that the calling thread waited for a stream or an event from ``begun`` until now."""
        self.notes.append(("sync", begun, perf_counter_ns(), self._tracks.current(), stream))


@final
class _Tracks:
    """Numbers the tasks, and the threads without a task. Notes each new task or thread with its name."""

    def __init__(self, note: Callable[[Note], None]) -> None:
        self._note = note
        self._next = itertools.count(1).__next__
        self._of_tasks: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._of_thread: Any = threading.local()
        self._in_trio: Any = None  # this and the next are trio's functions, once trio is imported
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
        if entry is not None and entry[0]() is task:  # an earlier task may have had the same id
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


_lock = new_lock()
_recorder: Recorder | None = None
_attached: list[Callable[[], None]] = []


def clock_of(runtime: Runtime) -> Clock:
    return provided(runtime.driver.timing, "timing").clock()


def when_attached(hook: Callable[[], None]) -> None:
    """Registers ``hook``, to be called after each attachment of a runtime from now on."""
    _attached.append(hook)


def begin(sink: Sink, clock_of: Callable[[Runtime], Clock] = clock_of) -> None:
    """Gives ``sink`` the events of all submissions from now on. The first sink chooses the clocks."""
    global _recorder
    with unheld(_lock):
        if _recorder is None or not _recorder.open:
            _recorder = Recorder(clock_of)
        try:
            _recorder.add(sink)
        except BaseException:
            if not _recorder.sinks():
                _recorder._end()
            raise


def end(sink: Sink) -> str:
    """Gives ``sink`` its last events, once all submitted work has ended. Returns the sources of the times."""
    with unheld(_lock):
        recorder = _recorder
        if recorder is None or sink not in recorder.sinks():
            return ""
        sources = recorder.sources()
        recorder.remove(sink)
    recorder.join()
    return sources


def _forget() -> None:
    """Ends the recording in a forked child, where other threads and their locks are gone."""
    global _recorder, _lock
    _lock = new_lock()
    recorder, _recorder = _recorder, None
    points.tracer = None
    if recorder is not None:
        recorder.forked()


os.register_at_fork(after_in_child=_forget)
