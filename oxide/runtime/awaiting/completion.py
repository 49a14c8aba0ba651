"""How an awaiting task finds out that the device is done, while no thread waits.

Two ways, and the default uses both. *Polling*: ask the mark's event, let other tasks run, ask again; for short work
this is the fastest there is (12 µs from launch to result under trio on an H100), but it keeps the loop busy. So
after a budget, learned for each stream (``loop/pace.py``), the task is *parked*: a host callback, submitted behind the
mark on a stream of its own, writes to a file descriptor that the loop watches (39 µs). The callback is compiled and
never takes the GIL. What was measured and left out: a Python callback with ``run_sync_soon`` (68 µs, and Python on the
driver's thread), and a thread that blocks in ``cuStreamSynchronize`` (73 µs, and a thread for each wait).

A reactor belongs to one run of one event loop. Its invariant: *whenever a task is parked on a mark, a callback is
outstanding that fires when the device passes this mark or an earlier one of the same stream, or the task has been
woken.* It holds because a callback is submitted whenever a task becomes the first of its stream, by parking or
because those before it were woken. A stream passes its marks in order, so one callback a stream is enough, and one
wake-up finds everything that has finished.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import final

from oxide.errors import DeviceError
from oxide.runtime.device.reclaim import StreamOrder
from oxide.runtime.device.runtime import Runtime
from oxide.runtime.device.timeline import Mark, Timeline
from oxide.runtime.loop.alarm import Alarm, notify_function
from oxide.runtime.loop.event_loops import EventLoop, Sleeper
from oxide.runtime.loop.turns import current_turn
from oxide.runtime.submission.once import Once

LOOK_SECONDS = 0.25
"""How often the marks of parked tasks are asked although no callback came: a lost CUDA device calls none any more."""


WAKE_AT_ONCE = 128
"""A loop runs all tasks that are ready before it looks at anything else, and each takes 10 to 20 microseconds; trio
itself takes 4 for each."""


async def wait_any(loop: EventLoop, runtime: Runtime, marks: list[Mark]) -> None:
    """Returns once the device is past one of ``marks``. Always a checkpoint.

    Raises the loop's cancellation, and what a mark's stream failed with.
    """
    await checkpoint(loop)
    if not _one_passed(marks):
        begun = time.perf_counter()
        if not spin(runtime, marks, begun):
            await wait_on(loop, runtime, marks, begun)


def spin(runtime: Runtime, marks: list[Mark], begun: float) -> bool:
    """How a wait for marks that were asked once goes on: asks them again, where the stream's waits are short. Whether
    the device was seen past one. Apart from ``wait_on``, as a coroutine takes longer than most spins do."""
    if runtime.completion != "adaptive":
        return False
    # Of several, the first was submitted first and is the likeliest to be the next.
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
    """Where ``spin`` has seen none passed: returns once one is. The wait has ``begun`` then, of ``time.perf_counter``,
    after a checkpoint."""
    if runtime.completion == "poll":
        while not _one_passed(marks):
            await checkpoint(loop)
        return
    pace = marks[0].timeline.pace
    now = time.perf_counter()
    budget = 0.0  # which bounds what counts as polling: between two looks other tasks may run for long
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
    """Lets other tasks run; raises the loop's cancellation."""
    turn = current_turn()
    number = turn.number
    await loop.checkpoint()
    turn.over(number)


def _one_passed(marks: list[Mark]) -> bool:
    for mark in marks:  # noqa: SIM110 (any() would make a generator for each look)
        if mark.passed():
            return True
    return False


def reactor_of(loop: EventLoop) -> Reactor:
    """The reactor of the running loop."""
    reactor: Reactor = loop.local(Reactor)
    return reactor


@final
class Reactor:
    """Wakes the tasks of one event loop. Used on the loop's thread only."""

    def __init__(self, loop: EventLoop) -> None:
        self._parked: StreamOrder[Sleeper | None] = StreamOrder()
        self._armed: dict[Timeline, int] = {}
        self._look_planned = False
        self._ready: deque[Sleeper] = deque()  # to be woken in one of the loop's next turns
        self._in_line: deque[Sleeper] = deque()  # to submit in one of the loop's next turns
        self._beside: list[Sleeper] | None = None  # who waits for the work that another task has done beside
        self._alarm = Alarm.take()
        loop.watch_readable(self._alarm.descriptor, self._on_alarm, self._alarm.give_back)

    async def park(self, loop: EventLoop, marks: list[Mark]) -> None:
        """Sleeps until the device may be past one of ``marks``: the caller asks them again."""
        sleeper = loop.sleeper()
        for mark in marks:
            self._add(mark, sleeper)
        self._plan_look(loop)
        await sleeper.sleep()

    async def next_turn(self, loop: EventLoop) -> None:
        """Sleeps until a turn of the loop that has time for the caller's submission."""
        sleeper = loop.sleeper()
        if not self._in_line:
            self._alarm.ring()
        self._in_line.append(sleeper)
        await sleeper.sleep()

    async def left(self, loop: EventLoop, once: Once) -> None:
        """Sleeps until another thread's run of ``once`` has ended; a checkpoint in any case."""
        sleeper = loop.sleeper()

        def wake() -> None:  # in the other thread
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
        """Whether a task of this loop has work done in a thread."""
        return self._beside is not None

    async def work_beside(self, loop: EventLoop, work: Callable[[], None]) -> None:
        """Calls ``work`` in a thread and waits for it. Of several tasks the first has its work done; the others wait
        for its end, and ask again what there is to do."""
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
        """Has the reclaimer swept once the device is past ``mark``, though nobody waits for it any more; and in the
        loop's next turn, where the cancelled task holds nothing of the run any more, so that it can be dropped."""
        with contextlib.suppress(DeviceError):
            self._add(mark, None)
            self._alarm.ring()

    def _add(self, mark: Mark, sleeper: Sleeper | None) -> None:
        self._parked.add(mark, sleeper)
        self._arm(self._parked.head(mark.timeline))

    def _arm(self, mark: Mark) -> None:
        timeline = mark.timeline
        # An outstanding callback at or before the mark will do: its wake-up comes back here for the next.
        if not timeline.seen < self._armed.get(timeline, 0) <= mark.position:
            timeline.watch(mark, notify_function(), self._alarm.argument)
            self._armed[timeline] = mark.position

    def _plan_look(self, loop: EventLoop) -> None:
        if self._parked and not self._look_planned:
            self._look_planned = True
            # The loop is not kept here: this object would keep it alive, and it this object.
            loop.call_later(LOOK_SECONDS, lambda: self._look(loop))

    def _look(self, loop: EventLoop) -> None:
        self._look_planned = False
        self._wake_finished()
        self._plan_look(loop)

    def _on_alarm(self) -> None:
        """Runs in the loop, in no task of the user's: errors are left for the woken tasks, who ask again."""
        self._alarm.clear()
        turn = current_turn()
        turn.next()
        for _ in range(min(len(self._in_line), turn.admitted)):
            self._in_line.popleft().wake()
        self._wake_finished()
        if self._in_line:
            self._alarm.ring()

    def _wake_finished(self) -> None:
        """Does a few milliseconds' worth; should more be left, the alarm rings for the loop's next turn."""
        if not self._ready:
            self._wait_turn(self._parked.pop_passed(WAKE_AT_ONCE))
        for _ in range(min(len(self._ready), WAKE_AT_ONCE)):
            self._ready.popleft().wake()
        more = bool(self._ready)
        for mark in self._parked.heads():
            try:
                if mark.passed():  # there were too many to take: then the alarm is what comes back for the next
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
