"""Kernels' machine code, made and loaded: in place where it must be, and beside an event loop where it can be.

A kernel's first launch turns its IR into machine code, 25 to 60 ms, and loads it, for which a GPU's driver waits until
nothing runs on the device, however long that is; no way of loading was found that does not wait. On an event loop's
thread all other tasks would wait with it. So a task that awaits an operation first has the kernels that are new, those
of which a launch has been built and that were never loaded, loaded by a thread, while the loop goes on. What is left in
place is the first launch of a kernel that a function of ``and_then`` builds: it is built and run in one step.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, final

from oxide.compiler.kernel import Specialization
from oxide.runtime.completion import reactor_of

if TYPE_CHECKING:
    from oxide.driver.base import Code, FunctionHandle
    from oxide.runtime.context import Device
    from oxide.runtime.event_loops import EventLoop


_new: deque[weakref.ref[Specialization]] = deque(maxlen=1024)  # of which a launch was built, and none was run


def announce(specialization: Specialization) -> None:
    """A launch of it was built, the first."""
    _new.append(specialization.reference)


def loaded_function(specialization: Any, device: Device) -> FunctionHandle:
    """The kernel's machine code, loaded on the device now if it is not yet."""
    # functions.get makes a weak reference for each call; the one that is there already finds the same entry.
    function = device.loaded.get(specialization.reference)
    if function is None:
        code: Code = specialization.code(device.info.target)
        with device.runtime.loading:
            function = device.functions.get(specialization)
            if function is None:
                function = device.functions[specialization] = device.driver.load(device.id, code)
        with contextlib.suppress(ValueError):  # another thread took it out to load it
            _new.remove(specialization.reference)
    return function


def may_load(device: Device) -> bool:
    """Whether ``load_beside`` may have something to do. Cheap: asked before every submission that is awaited."""
    return bool(_new or device.loading_beside)


async def load_beside(loop: EventLoop, device: Device) -> None:
    """Has new kernels loaded on ``device`` by a thread; returns when they are, or at once. Raises the loop's
    cancellation; an error is left for the launch, which tries again in place."""
    reactor = reactor_of(loop)
    while True:
        # What another task of this loop has loaded is waited for first: it may be all.
        wanted = [] if reactor.works_beside else _take_unloaded(device)
        if not (wanted or reactor.works_beside or device.loading_beside):
            return
        load = _Load(wanted, device)
        if wanted:
            device.loading_beside.add(load)  # from now on, so that no task of this turn loads them in place
        try:
            await reactor.work_beside(loop, load.run)
        finally:
            load.give_up()


def _take_unloaded(device: Device) -> list[Specialization]:
    taken = []
    while _new:
        try:
            specialization = _new.popleft()()
        except IndexError:
            break  # another thread's loop was quicker
        if specialization is not None and specialization.reference not in device.loaded:
            taken.append(specialization)
    return taken


@final
class _Load:
    """Some kernels to load, in a thread that goes on alone where its task is cancelled."""

    def __init__(self, wanted: list[Specialization], device: Device) -> None:
        self._wanted = wanted
        self._device = device
        self._begun = False

    def run(self) -> None:
        self._begun = True
        try:
            with self._device.load_turn:  # who has nothing to load waits here for the thread that has
                for specialization in self._wanted:
                    with contextlib.suppress(Exception):
                        loaded_function(specialization, self._device)
        finally:
            self._device.loading_beside.discard(self)

    def give_up(self) -> None:
        """The task no longer waits: without a thread, nobody loads."""
        if not self._begun:
            self._device.loading_beside.discard(self)
