"""What is made once: in place where it must be, and beside an event loop where it can be.

A kernel's first launch turns its IR into machine code, 25 to 60 ms, and loads it, for which a GPU's driver waits until
nothing runs on the device, however long that is; no way of loading was found that does not wait. On an event loop's
thread all other tasks would wait with it. So a task that awaits an operation first has the kernels that are new, those
of which a launch has been built and that were never loaded, loaded by a thread, while the loop goes on. What is left in
place is the first launch of a kernel that a function of ``and_then`` builds: it is built and run in one step.

The same goes for what the first large copy on a device needs: where one has been built, the next task that awaits an
operation on a device that never had one has its ring of page-locked memory made (``staging``). And for numbers that the
host makes (``numbers``): those of operations that were built and never run are made before the next is submitted.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from oxide.compiler.specialization import Specialization
from oxide.native import warn_caller
from oxide.runtime.awaiting.completion import reactor_of
from oxide.runtime.loop.event_loops import running_loop_name

if TYPE_CHECKING:
    from oxide.driver.base import Code, FunctionHandle
    from oxide.runtime.device.runtime import Device
    from oxide.runtime.loop.event_loops import EventLoop
    from oxide.runtime.operations.numbers import HostNumbers

T = TypeVar("T")

_new: Final[deque[weakref.ref[Specialization]]] = deque(maxlen=1024)  # of which a launch was built, and none was run

_numbers: Final[deque[weakref.ref[HostNumbers]]] = deque(maxlen=1024)  # that were asked for and not made
_large_copies = False  # whether one was built, and nothing awaited since


def announce_large_copy() -> None:
    """A copy that will be staged was built."""
    global _large_copies
    _large_copies = True


def large_copy_was_run() -> None:
    """A copy that was announced has been submitted, whoever did it."""
    global _large_copies
    _large_copies = False


def forget_announced() -> None:
    """Nothing that was built so far is made beside a loop; for tests."""
    _new.clear()
    _numbers.clear()
    large_copy_was_run()


def announce_numbers(numbers: HostNumbers) -> None:
    """An operation was built that needs many numbers of the host's."""
    _numbers.append(weakref.ref(numbers))


def announce(specialization: Specialization) -> None:
    """A launch of it was built, the first."""
    _new.append(specialization.reference)


def loaded_function(specialization: Any, device: Device) -> FunctionHandle:
    """The kernel's machine code, loaded on the device now if it is not yet."""
    # functions.get looks for a weak reference at each call; the one that is there already finds the same entry.
    function = device.loaded.get(specialization.reference)
    if function is None:
        code: Code = specialization.code(device.info.target)
        with device.runtime.loading:
            function = device.functions.get(specialization)
            if function is None:
                function = device.functions.set(specialization, device.driver.load(device.id, code))
        with contextlib.suppress(ValueError):  # another thread took it out to load it
            _new.remove(specialization.reference)
    return function


def load_announced(device: Device) -> None:
    """Loads the new kernels, prepares large copies and makes numbers, on the calling thread: no event loop's."""
    load = _Load(_take_unloaded(device), device, _take_large_copies(device), _take_unmade())
    device.loading_beside.add(load)
    load.run()


_MOST_SECONDS = 0.1  # of a loop's time, of which nobody is told
_warned = False


def note_compiled(kernel: str, seconds: float) -> None:
    """The calling thread has compiled ``kernel``, for ``seconds``. Warns, once in a process, where an event loop stood
    still for it."""
    global _warned
    if _warned or seconds < _MOST_SECONDS:
        return
    loop = running_loop_name()
    if loop is not None:
        _warned = True
        warn_caller(
            f"compiling kernel {kernel} kept the {loop} event loop for {seconds:.2f} s: await oxide.prepare({kernel}) "
            f"beforehand compiles it in a thread while the loop goes on; said once, of the first kernel"
        )


Specialization.compiled = staticmethod(note_compiled)


def may_load(device: Device) -> bool:
    """Whether ``load_beside`` may have something to do. Cheap: asked before every submission that is awaited."""
    return bool(_new or device.loading_beside or _large_copies or _numbers)


async def load_beside(loop: EventLoop, device: Device) -> None:
    """Has new kernels loaded on ``device`` by a thread, its large copies prepared and numbers made; returns when that
    is done, or at once. Raises the loop's cancellation; an error is left for the operation, which tries again in place.
    """
    reactor = reactor_of(loop)
    while True:
        # What another task of this loop has loaded is waited for first: it may be all.
        wanted = [] if reactor.works_beside else _take_unloaded(device)
        copies = not reactor.works_beside and _take_large_copies(device)
        numbers = [] if reactor.works_beside else _take_unmade()
        if not (wanted or copies or numbers or reactor.works_beside or device.loading_beside):
            return
        load = _Load(wanted, device, copies, numbers)
        if wanted or copies or numbers:
            device.loading_beside.add(load)  # from now on, so that no task of this turn loads them in place
        try:
            await reactor.work_beside(loop, load.run)
        finally:
            load.give_up()


def _take(queue: deque[weakref.ref[T]]) -> list[T]:
    """All that is in a queue and still there. Another thread's loop may take some at the same time."""
    taken = []
    while queue:
        try:
            announced = queue.popleft()()
        except IndexError:
            break
        if announced is not None:
            taken.append(announced)
    return taken


def _take_unloaded(device: Device) -> list[Specialization]:
    return [special for special in _take(_new) if special.reference not in device.loaded]


def _take_unmade() -> list[HostNumbers]:
    return [numbers for numbers in _take(_numbers) if not numbers.made]


def _take_large_copies(device: Device) -> bool:
    global _large_copies
    built, _large_copies = _large_copies, False
    return built and not device.staging.prepared


@final
class _Load:
    """Some kernels to load, ``copies`` to prepare and numbers to make, in a thread that goes on alone where its task is
    cancelled."""

    def __init__(self, wanted: list[Specialization], device: Device, copies: bool, numbers: list[HostNumbers]) -> None:
        self._wanted = wanted
        self._copies = copies
        self._numbers = numbers
        self._device = device
        self._begun = False

    def run(self) -> None:
        self._begun = True
        try:
            with self._device.load_turn:  # who has nothing to load waits here for the thread that has
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
        """The task no longer waits: without a thread, nobody loads."""
        if not self._begun:
            self._device.loading_beside.discard(self)
