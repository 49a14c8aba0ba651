"""Preloads kernels, staging buffers and host numbers in a thread, so that the event loop does not stall.

A kernel's first launch compiles its IR to machine code, 25 to 60 ms, and loads the code. Before a GPU's driver loads
code, it waits until nothing runs on the device, however long that takes. No way of loading without this wait was found.
Loading on an event loop's thread would stall all other tasks. So when a task awaits an operation, a thread first loads
the new kernels: those of which a launch was built and whose code was never loaded. The loop runs meanwhile. If only the
run shows that a kernel is needed, because a function of the program builds its launch, the run stops there, and a
thread compiles and loads the kernel (``ready_function``, ``compiled_beside``). The typing of a kernel takes longer than
that, a second and more. A launch that is built in a run, or with operations as arguments on a loop's thread, is typed
by such a stop, too (``launching/launch.py``).

The thread also prepares a device for its first large copy. Once a large copy has been built, the next task that awaits
an operation has the thread make the staging ring of the operation's device (``memory/staging_ring.py``), unless a
thread has made it before. The thread also generates the numbers that the host generates for operations
(``operations/new_boxes.py``), for all operations that were built and not yet run.

A kernel without bounds checks may access memory that is not the process's. On the CPU device a signal then ends the
process. Before that, a handler of the signal prints a *crash report*: the name of the kernel whose code was running,
and how to find the access. Then the signal's previous action runs: the handler of Python's ``faulthandler``, for
example, or the system's. ``OXIDE_CRASH_REPORT=0`` turns crash reports off. They exist on Linux, for x86-64 and AArch64,
and need the extension (``host/core.py``).
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from oxide.compiler.kernel.specialization import Specialization
from oxide.errors import CompileError, place_name
from oxide.host.core import current_turn, watch_kernel
from oxide.host.environment import word
from oxide.host.locks import new_lock, unheld
from oxide.host.messages import warn_caller
from oxide.runtime.awaiting.completion import reactor_of
from oxide.runtime.loop.event_loops import blocked_loop_name
from oxide.runtime.submission.stops import Beside

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from oxide.compiler.signature.signature import Closed
    from oxide.driver.base import Code, FunctionHandle
    from oxide.runtime.devices.runtime import Device
    from oxide.runtime.loop.event_loops import EventLoop

T = TypeVar("T")


@final
class HostNumbers:
    """An array of numbers that is generated at the first request, in the requesting thread."""

    __slots__ = ("__weakref__", "_array", "_lock", "_make")

    def __init__(self, make: Callable[[], NDArray[Any]]) -> None:
        self._make: Callable[[], NDArray[Any]] | None = make
        self._array: NDArray[Any] | None = None
        self._lock = new_lock()

    def array(self) -> NDArray[Any]:
        """Returns the numbers. Waits if another thread is generating them."""
        if self._array is None:
            with unheld(self._lock):
                if self._make is not None:
                    self._array = self._make()
                    self._make = None
        assert self._array is not None
        return self._array

    @property
    def made(self) -> bool:
        return self._array is not None


_new: Final[deque[weakref.ref[Specialization]]] = deque(maxlen=1024)  # of each, a launch was built and none has run

_numbers: Final[deque[weakref.ref[HostNumbers]]] = deque(maxlen=1024)  # announced, and not yet generated
_large_copies = False  # whether a large copy was built, and neither run nor prepared since


def announce_large_copy() -> None:
    """Records that a large copy was built, which will go through page-locked staging memory."""
    global _large_copies
    _large_copies = True


def large_copy_was_run() -> None:
    """Records that a large copy has been submitted, so that the announced copy need not be prepared any more."""
    global _large_copies
    _large_copies = False


def forget_announced() -> None:
    """Forgets everything announced so far, so that nothing of it is preloaded; for tests."""
    _new.clear()
    _numbers.clear()
    large_copy_was_run()


def announce_numbers(numbers: HostNumbers) -> None:
    """Records that an operation was built that needs many host numbers."""
    _numbers.append(weakref.ref(numbers))


def announce(specialization: Any) -> None:
    """Records that the first launch of ``specialization`` was built. It is a ``Specialization``, or another object with
    ``reference`` and ``code``."""
    _new.append(specialization.reference)


def loaded_function(specialization: Any, device: Device) -> FunctionHandle:
    """Returns the driver's handle of a kernel on ``device``. Loads the kernel first if necessary."""
    # ``functions.get`` would look for the specialization's weak reference, which ``reference`` holds already.
    function = device.loaded.get(specialization.reference)
    if function is None:
        code: Code = specialization.code(device.info.target)
        with unheld(device.runtime.loading):
            function = device.functions.get(specialization)
            if function is None:
                function = device.functions.set(specialization, device.driver.load(device.id, code))
                if code.target.kind == "native" and not code.foreign and specialization.needs.unchecked:
                    _report_crashes(specialization, function)
        with contextlib.suppress(ValueError):  # a thread that loads the kernel has taken it out already
            _new.remove(specialization.reference)
    return function


def load_announced(device: Device) -> None:
    """Loads the announced kernels, prepares large copies and generates the announced host numbers, all in the calling
    thread. Do not call it on an event loop's thread: it blocks."""
    load = _Load(device)
    device.loading_beside.add(load)
    load.run()


_MOST_SECONDS = 0.1  # the longest compilation on a loop's thread that causes no warning


def note_compiled(kernel: str, seconds: float) -> None:
    """Records that the calling thread spent ``seconds`` compiling ``kernel``. Warns if that blocked an event loop for
    long."""
    if seconds < _MOST_SECONDS:
        return
    loop = blocked_loop_name()
    if loop is not None:
        warn_caller(
            f"compiling kernel {kernel} kept the {loop} event loop for {seconds:.2f} s: await oxide.prepare({kernel}) "
            f"beforehand, or with an operation that launches it, compiles it in a thread while the loop goes on"
        )


class CompilesLater(BaseException):
    """Raised instead of compiling a kernel, if the thread's ``Turn`` has ``defers`` set."""


def note_compiling() -> Callable[[str, Sequence[Closed]], None]:
    """Called by a thread that needs a kernel for new types. Returns a function to be called, in any thread, before the
    kernel is compiled for it. The function raises ``CompilesLater`` if a run can do it later, and ``CompileError`` if
    ``OXIDE_COMPILE=error`` refuses it: for a run that a task awaits, or on a loop's thread."""
    turn = current_turn()
    return partial(_refuse, turn.defers, turn.works_for_run, blocked_loop_name())


def _refuse(defers: bool, works_for_run: bool, loop: str | None, kernel: str, parameters: Sequence[Closed]) -> None:
    if defers:
        raise CompilesLater
    if word("OXIDE_COMPILE", ("error",)) is None:
        return
    if loop is not None or works_for_run:
        types = ", ".join([f"{parameter.name}: {parameter.annotation}" for parameter in parameters])
        where = "in a run that a task awaits" if works_for_run else f"on the thread of the {loop} event loop"
        raise CompileError(
            f"kernel {kernel}({types}) would be compiled {where}, and OXIDE_COMPILE=error refuses that: await "
            f"oxide.prepare({kernel}) beforehand, or with an operation that launches it with these types"
        )


def compiled_beside(make: Callable[[], T]) -> T:
    """Returns ``make()``. If it would compile a kernel in a run that a task awaits, raises a stop of the walk instead:
    a thread calls ``make``, and then the caller is called again."""
    turn = current_turn()
    if not turn.gives_up:
        return make()
    before, turn.defers = turn.defers, True
    try:
        return make()
    except CompilesLater:
        raise Beside(make) from None
    finally:
        turn.defers = before


def ready_function(specialization: Any, device: Device) -> FunctionHandle:
    """Returns the driver's handle of a kernel on ``device``, for a run. If the kernel must be compiled or loaded first,
    a run that a task awaits stops, and a thread does so. The CPU device loads code at once."""
    function = device.loaded.get(specialization.reference)
    if function is not None:
        return function
    target = device.info.target
    if current_turn().gives_up and not (target.kind == "native" and specialization.has_code(target)):
        raise Beside(partial(loaded_function, specialization, device))
    return loaded_function(specialization, device)


def may_load(device: Device) -> bool:
    """Returns whether ``load_beside`` may have something to do. This check is cheap, as every awaited submission calls
    it first."""
    return bool(_new or device.loading_beside or _large_copies or _numbers)


async def load_beside(loop: EventLoop, device: Device) -> None:
    """Starts a thread that loads the announced kernels on ``device``, prepares the device's large copies and generates
    the announced host numbers. Returns when the thread has finished, or at once if there is nothing to do. Raises the
    loop's cancellation. Suppresses other errors: the awaited operation does the failed step again, and raises its
    error."""
    reactor = reactor_of(loop)
    while True:
        # First waits for another task of this loop that is loading: perhaps nothing is left to do then.
        load = _Load(device, takes=not reactor.works_beside)
        if not (load.has_work or reactor.works_beside or device.loading_beside):
            return
        if load.has_work:
            device.loading_beside.add(load)  # before the thread starts, so that no other task loads them on the loop
        try:
            await reactor.work_beside(loop, Beside(load.run).block)  # for the run of the task
        finally:
            load.give_up()


def _take(queue: deque[weakref.ref[T]]) -> list[T]:
    """Empties a queue, and returns the objects of it that are still alive. Another thread's loop may take entries at
    the same time."""
    taken = []
    while queue:
        try:
            announced = queue.popleft()()
        except IndexError:
            break
        if announced is not None:
            taken.append(announced)
    return taken


@final
class _Load:
    """The work of one preloading thread: if it ``takes`` what was announced, loads kernels, prepares the device for
    large copies and generates numbers. The thread continues if the task that started it is cancelled."""

    def __init__(self, device: Device, *, takes: bool = True) -> None:
        global _large_copies
        copies = takes and _large_copies
        _large_copies = _large_copies and not takes
        self._device = device
        self._begun = False
        self._wanted = [each for each in _take(_new) if each.reference not in device.loaded] if takes else []
        self._numbers = [each for each in _take(_numbers) if not each.made] if takes else []
        self._copies = copies and not device.staging.prepared
        self.has_work = bool(self._wanted or self._numbers or self._copies)

    def run(self) -> None:
        self._begun = True
        try:
            with unheld(self._device.load_turn):  # a load with nothing to do waits here for the thread that is loading
                for specialization in self._wanted:
                    with contextlib.suppress(Exception):
                        loaded_function(specialization, self._device)
                if self._copies:
                    with contextlib.suppress(Exception):
                        self._device.staging.prepare()
                for numbers in self._numbers:
                    with contextlib.suppress(Exception):
                        numbers.array()
        finally:
            self._device.loading_beside.discard(self)

    def give_up(self) -> None:
        """Withdraws the load if no thread has begun it. Call it when the task no longer waits for the load."""
        if not self._begun:
            self._device.loading_beside.discard(self)


_crash_lock: Final = new_lock()


def _report_crashes(specialization: Specialization, function: Any) -> None:
    """Has crash reports name a kernel whose accesses are not all checked. Does nothing for a GPU's kernel, and if
    crash reports are off or do not exist for this system."""
    code: tuple[int, int] | None = getattr(function, "code_range", None)
    if code is None or watch_kernel is None:
        return
    if word("OXIDE_CRASH_REPORT", ("0", "1")) == "0":
        return
    described = specialization.description
    source = described.function.__code__
    place = place_name(source.co_filename, source.co_firstlineno)
    text = (
        f"oxide: kernel {described.name} ({place}) accessed memory that is not the "
        "process's, where nothing checks its accesses. OXIDE_SANITIZE=memory finds the access.\n"
    )
    with unheld(_crash_lock):
        watch_kernel(*code, text.encode(errors="backslashreplace"))
