"""Completion: how an awaiting task learns, without a thread that waits, that the device has done its work.

There are two ways, and the default mode uses both. *Polling*: the task queries its mark (a point in the work of a
stream, ``ordering/timeline.py``), lets other tasks run, and queries the mark again. For short work this is the fastest
way (12 µs from launch to result under trio on an H100), but it keeps the loop busy. So after a budget of time, learned
for each stream (``loop/pace.py``), the task is *parked*: a host callback writes to a file descriptor that the loop
watches. The callback is on a separate stream, which waits for the mark. The wake-up takes 39 µs. The callback is
compiled and never takes the GIL. For very short work the default mode *spins* first: it queries the mark without
letting other tasks run.

Two other ways were measured and left out: a Python callback that calls ``run_sync_soon`` (68 µs, and it runs Python on
the driver's thread), and a thread that blocks in ``cuStreamSynchronize`` (73 µs, and it takes a thread for each wait).

A *reactor* holds the parked tasks of one run of one event loop. Its invariant: *for each task that is parked on a mark,
either a callback is outstanding that fires when the device passes this mark or an earlier mark of the same stream, or
the task has been woken.* The invariant holds because a callback is submitted whenever a task becomes the first parked
task of its stream: when it parks, or when all earlier tasks have been woken. The device passes a stream's marks in
order, so one callback for each stream is enough, and one wake-up finds everything that has finished.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import final

from oxide.errors import DeviceError
from oxide.host.core import NOTIFY, current_turn
from oxide.runtime.devices.runtime import Runtime
from oxide.runtime.loop.event_loops import Alarm, EventLoop, Sleeper
from oxide.runtime.memory.reclaim import StreamOrder
from oxide.runtime.ordering.timeline import Mark, Timeline
from oxide.runtime.submission.stops import Once

LOOK_SECONDS = 0.25
"""The interval at which the marks of parked tasks are queried even if no callback has fired: on a lost CUDA device no
callback fires."""


WAKE_AT_ONCE = 128
"""The largest number of tasks that are woken at a time. A loop runs all ready tasks before it looks at timers and file
descriptors, and each task takes 10 to 20 microseconds, 4 of them in trio itself."""


async def wait_any(loop: EventLoop, runtime: Runtime, marks: list[Mark]) -> None:
    """Returns once the device is past one of ``marks``. Is always a checkpoint.

    Raises the loop's cancellation, and the error of a mark's stream.
    """
    await checkpoint(loop)
    if not _one_passed(marks):
        begun = time.perf_counter()
        if not spin(runtime, marks, begun):
            await wait_on(loop, runtime, marks, begun)


def spin(runtime: Runtime, marks: list[Mark], begun: float) -> bool:
    """Busy-polls ``marks`` in adaptive mode, for the spin budget of the first mark's stream. Returns True once the
    device is past a mark. Returns False when the budget is used up, and at once in other modes. This function is
    separate from ``wait_on``, because starting a coroutine takes longer than most spins."""
    if runtime.completion != "adaptive":
        return False
    # The first of several marks was submitted first, so it is the likeliest to pass next.
    pace = marks[0].timeline.pace
    until = begun + pace.spin_budget
    now = begun
    while now < until:
        if _one_passed(marks):
            lasted = time.perf_counter() - begun
            pace.learn(lasted, lasted, parked=False)
            return True
        now = time.perf_counter()
    return False


async def wait_on(loop: EventLoop, runtime: Runtime, marks: list[Mark], begun: float) -> None:
    """Returns once the device is past one of ``marks``. Call it after a checkpoint, if ``spin`` returned False.
    ``begun`` is the start of the wait by ``time.perf_counter``."""
    if runtime.completion == "poll":
        while not _one_passed(marks):
            await checkpoint(loop)
        return
    pace = marks[0].timeline.pace
    now = time.perf_counter()
    budget = 0.0  # caps the time that counts as polling: between two polls other tasks may run for long
    if runtime.completion == "adaptive":
        budget = pace.budget()
        poll_until = begun + budget
        while now < poll_until:
            await checkpoint(loop)
            if _one_passed(marks):
                lasted = time.perf_counter() - begun
                pace.learn(lasted, min(lasted, budget), parked=False)
                return
            now = time.perf_counter()
    reactor = reactor_of(loop)
    while True:
        await reactor.park(loop, marks)
        if _one_passed(marks):
            pace.learn(time.perf_counter() - begun, min(now - begun, budget), parked=True)
            return


async def checkpoint(loop: EventLoop) -> None:
    """Lets other tasks run. Raises the loop's cancellation."""
    turn = current_turn()
    number = turn.number
    await loop.checkpoint()
    turn.over(number)


def _one_passed(marks: list[Mark]) -> bool:
    for mark in marks:  # noqa: SIM110 (any() would make a generator for each poll)
        if mark.passed():
            return True
    return False


def reactor_of(loop: EventLoop) -> Reactor:
    """Returns the reactor of the running loop. The first call makes it."""
    reactor: Reactor = loop.local(Reactor)
    return reactor


@final
class Reactor:
    """The parked tasks of one run of an event loop, and the wake-ups for them. It is used on the loop's thread only."""

    def __init__(self, loop: EventLoop) -> None:
        self._parked: StreamOrder[Sleeper | None] = StreamOrder()
        self._armed: dict[Timeline, int] = {}
        self._look_planned = False
        self._ready: deque[Sleeper] = deque()  # tasks to wake, now or in a later turn of the loop
        self._in_line: deque[Sleeper] = deque()  # tasks that may submit in a later turn of the loop
        # The tasks that wait while a thread runs another task's work. None if no thread does.
        self._beside: list[Sleeper] | None = None
        self._alarm = Alarm.take()
        loop.watch_readable(self._alarm.descriptor, self._on_alarm, self._alarm.give_back)

    async def park(self, loop: EventLoop, marks: list[Mark]) -> None:
        """Sleeps until the device may be past one of ``marks``. The caller must then query the marks again."""
        sleeper = loop.sleeper()
        for mark in marks:
            self._add(mark, sleeper)
        self._plan_look(loop)
        await sleeper.sleep()

    async def next_turn(self, loop: EventLoop) -> None:
        """Sleeps until a turn of the event loop has time left for submissions (``loop/pace.py``)."""
        sleeper = loop.sleeper()
        if not self._in_line:
            self._alarm.ring()
        self._in_line.append(sleeper)
        await sleeper.sleep()

    async def left(self, loop: EventLoop, once: Once) -> None:
        """Sleeps until another thread's run of ``once`` has ended. Is always a checkpoint."""
        sleeper = loop.sleeper()

        def wake() -> None:  # runs in the other thread
            self._ready.append(sleeper)
            self._alarm.ring()

        if not once.call_when_left(wake):
            await checkpoint(loop)
            return
        try:
            await sleeper.sleep()
        finally:
            once.forget(wake)

    @property
    def works_beside(self) -> bool:
        """Returns whether a thread is running the work of a task that called ``work_beside``."""
        return self._beside is not None

    async def work_beside(self, loop: EventLoop, work: Callable[[], None]) -> None:
        """Calls ``work`` in a thread and waits for the thread. If a thread is already running another task's work,
        waits for that thread instead and does not call ``work``. The caller must then check again whether work is
        left."""
        if self._beside is not None:
            sleeper = loop.sleeper()
            self._beside.append(sleeper)
            await sleeper.sleep()
            return
        self._beside = []
        try:
            await loop.in_thread(work)
        finally:
            waiting, self._beside = self._beside, None
            self._ready.extend(waiting)
            if waiting:
                self._alarm.ring()

    def notice(self, mark: Mark) -> None:
        """Makes the reclaimer sweep twice after a cancellation. The first sweep is in the loop's next turn: by then the
        cancelled task no longer references the results of its run, so the run can be dropped. The second sweep is once
        the device is past ``mark``."""
        with contextlib.suppress(DeviceError):
            self._add(mark, None)
            self._alarm.ring()

    def _add(self, mark: Mark, sleeper: Sleeper | None) -> None:
        self._parked.add(mark, sleeper)
        self._arm(self._parked.head(mark.timeline))

    def _arm(self, mark: Mark) -> None:
        timeline = mark.timeline
        # An outstanding callback for this mark or an earlier one is enough: its wake-up submits the next callback.
        if not timeline.seen < self._armed.get(timeline, 0) <= mark.position:
            timeline.watch(mark, NOTIFY, self._alarm.argument)
            self._armed[timeline] = mark.position

    def _plan_look(self, loop: EventLoop) -> None:
        if self._parked and not self._look_planned:
            self._look_planned = True
            # The loop is not stored in self: that would be a reference cycle.
            loop.call_later(LOOK_SECONDS, lambda: self._look(loop))

    def _look(self, loop: EventLoop) -> None:
        self._look_planned = False
        self._wake_finished()
        self._plan_look(loop)

    def _on_alarm(self) -> None:
        """Handles the alarm. It runs in the loop and not in a task, so it raises no error of the device: the woken
        tasks query again, and these queries raise the error."""
        self._alarm.clear()
        turn = current_turn()
        turn.next()
        for _ in range(min(len(self._in_line), turn.admitted)):
            self._in_line.popleft().wake()
        self._wake_finished()
        if self._in_line:
            self._alarm.ring()

    def _wake_finished(self) -> None:
        """Wakes the tasks whose marks the device has passed, then has the reclaimers sweep. Each of the two takes a few
        milliseconds at most. If more is left to do, rings the alarm, so that the loop's next turn continues."""
        if not self._ready:
            self._wait_turn(self._parked.pop_passed(WAKE_AT_ONCE))
        for _ in range(min(len(self._ready), WAKE_AT_ONCE)):
            self._ready.popleft().wake()
        more = bool(self._ready)
        for mark in self._parked.heads():
            try:
                if mark.passed():  # the limit was reached: the loop's next turn wakes the rest
                    more = True
                else:
                    self._arm(mark)
            except DeviceError:
                self._armed.pop(mark.timeline, None)
                self._wait_turn(self._parked.remove(mark.timeline))
                more = True
        for runtime in {timeline.device.runtime for timeline in self._armed}:
            more |= not runtime.reclaimer.sweep()
        if more:
            self._alarm.ring()

    def _wait_turn(self, sleepers: list[Sleeper | None]) -> None:
        self._ready.extend(sleeper for sleeper in sleepers if sleeper is not None)
