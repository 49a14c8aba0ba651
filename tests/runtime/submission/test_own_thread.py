"""Operations that a finaliser, a callback of the garbage collector or a signal handler runs inside the package's own
code, on the same thread; in a child that was forked there; while the interpreter ends. They are right or an error, and
never hang."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import DeviceBox, DisjointSlice, Event, OrderingError, Stream, d2h, f32, h2d, kernel, thread
from oxide.host.core import FORM
from oxide.host.locks import DRIVER_LOCK, RUNTIME_LOCK, driver_threads, is_interrupt, new_lock, unheld
from tests.interrupting import needs_calls

PACKAGE = str(Path(oxide.__file__).parent)
NUMBERS = np.arange(5, dtype=np.float32)


@kernel(block=32)
def bump(x: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = x.get_mut(i)
    if element is not None:
        element.value += f32(1)


@kernel(block=32)
def double(x: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = x.get_mut(i)
    if element is not None:
        element.value *= f32(2)


def run(of: Any = bump) -> np.ndarray[Any, Any]:
    return h2d(NUMBERS).and_then(lambda box: of(box).last()).and_then(d2h).sync()


def in_finaliser(frame: FrameType | None) -> bool:
    """Returns whether a finaliser of the core's twin is running, which is Python."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


class CallAt:
    """``with CallAt(n, function):`` calls the function at the n-th place of the package where a signal handler may
    run, and keeps its error."""

    def __init__(self, number: int, function: Callable[[], object], *, raises: bool = False) -> None:
        self.left = number
        self.error: Exception | None = None
        self._function = function
        self._raises = raises

    def __enter__(self) -> CallAt:
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        code: CodeType = frame.f_code
        if self._raises and code.co_name == "__del__":  # of the core's twin: what is raised there goes nowhere
            return
        # What is raised as a function begins, inside a ``with``, confuses Python 3.11.
        if event in ("c_return", "c_return" if self._raises else "call") and code.co_filename.startswith(PACKAGE):
            if self._raises and FORM == "Python" and in_finaliser(frame):
                return  # it would be lost, and confuses Python 3.11 as well
            self.left -= 1
            if self.left == 0:
                try:
                    self._function()
                except Exception as error:
                    self.error = error
                    if self._raises:
                        raise


@needs_calls
@pytest.mark.parametrize("outer", ["sync", "graph", "close"])
@pytest.mark.parametrize("inner", ["sync", "graph", "synchronize"])
def test_an_operation_at_any_place_is_right_or_refused(inner: str, outer: str) -> None:
    stream = oxide.devices()[0].new_stream()
    graph = h2d(NUMBERS).and_then(lambda box: double(box).last()).graph_on(stream)
    box: Any = graph.take_output()

    def launch() -> np.ndarray[Any, Any]:
        return graph.launch().and_then(lambda _: d2h(box)).sync()

    def close() -> np.ndarray[Any, Any]:
        pending: list[DeviceBox] = [h2d(NUMBERS).async_on(stream) for _ in range(3)]
        pending.clear()
        stream.synchronize()
        return NUMBERS * 2

    def interrupting() -> None:
        if inner == "synchronize":
            stream.synchronize()
        else:
            found.append(run() - 1 if inner == "sync" else launch() / 2)

    outers = {"sync": lambda: run(double), "graph": launch, "close": close}
    for _ in range(3):
        outers[outer]()
        run()
    refused = number = 0
    while True:
        number += 1
        found: list[np.ndarray[Any, Any]] = []
        with CallAt(number, interrupting) as place:
            result = outers[outer]()
        assert np.array_equal(result, NUMBERS * 2), number
        assert place.error is None or isinstance(place.error, OrderingError), number
        refused += place.error is not None
        assert not found or np.array_equal(found[0], NUMBERS), number
        if place.left > 0:
            break
    assert refused < number - 1
    assert refused or inner == "synchronize"  # an idle stream is not waited for
    assert number > 30
    graph.close()


@needs_calls
@pytest.mark.filterwarnings("ignore:.*was never run:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # raised in a collector's callback
def test_an_error_of_a_signal_handler_at_any_place_leaves_everything_usable() -> None:
    def fail() -> None:
        raise TimeoutError

    run()
    raised = number = 0
    while True:
        number += 1
        try:
            with CallAt(number, fail, raises=True) as place:
                run()
        except TimeoutError:
            raised += 1
        assert np.array_equal(run(), NUMBERS + 1), number
        if place.left > 0:
            break
    assert raised > 12  # on a GPU C makes most of the calls
    oxide.reclaim.drain()


CALLS: dict[str, Callable[[Stream, DeviceBox, Event], object]] = {
    "sync": lambda stream, box, event: oxide.value(1).sync(),
    "async_on": lambda stream, box, event: d2h(box).async_on(stream),
    "graph": lambda stream, box, event: oxide.zeros(3).graph(),
    "new_stream": lambda stream, box, event: stream.device.new_stream(),
    "fork": lambda stream, box, event: stream.fork(),
    "join": lambda stream, box, event: stream.join(oxide.devices()[0].new_stream()),
    "wait": lambda stream, box, event: stream.wait(event),
    "record_event": lambda stream, box, event: stream.record_event(),
    "synchronize": lambda stream, box, event: stream.synchronize(),
    "query": lambda stream, box, event: stream.query(),
    "event.synchronize": lambda stream, box, event: event.synchronize(),
    "event.query": lambda stream, box, event: event.query(),
    "launch_host_function": lambda stream, box, event: stream.launch_host_function(lambda: None),
    "drain": lambda stream, box, event: oxide.reclaim.drain(),
}
ON_THE_CPU: dict[str, Callable[[Stream, DeviceBox, Event], object]] = {
    "host_view": lambda stream, box, event: box.host_view(),
    "to dlpack": lambda stream, box, event: np.from_dlpack(box),
    "from dlpack": lambda stream, box, event: oxide.from_dlpack(np.ones(3)),
}
if os.environ.get("OXIDE_DEVICE") != "cuda":
    CALLS |= ON_THE_CPU


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("where", ["runtime", "driver", "a thread of the driver's"])
def test_a_thread_that_holds_a_lock_makes_no_such_call_and_others_do(call: str, where: str) -> None:
    stream, box = oxide.devices()[0].new_stream(), h2d(NUMBERS).sync()
    function = partial(CALLS[call], stream, box, stream.record_event())
    if where == "a thread of the driver's":
        driver_threads.add(threading.get_ident())
    lock: Any = {"runtime": RUNTIME_LOCK, "driver": DRIVER_LOCK}.get(where, new_lock())
    try:
        with lock, pytest.raises(OrderingError, match="holds a lock of oxide's, or is oxide's own: a finaliser"):
            function()
    finally:
        driver_threads.discard(threading.get_ident())
    other = threading.Thread(target=function)
    other.start()
    other.join()
    function()


def test_a_lock_refuses_the_thread_that_holds_it() -> None:
    lock = new_lock()
    with unheld(lock), pytest.raises(OrderingError, match="no operation may run there"):
        unheld(lock)
    with unheld(lock):
        pass


def test_what_may_come_from_a_signal_handler() -> None:
    with RUNTIME_LOCK, pytest.raises(OrderingError) as held:
        oxide.value(1).sync()
    assert is_interrupt(held.value)
    assert is_interrupt(KeyboardInterrupt())
    assert is_interrupt(TimeoutError())
    assert not is_interrupt(OrderingError("two uses of one box"))


def ended(program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program on the CPU device. Its end is what is tested."""
    prelude = """
import os
os.environ["OXIDE_DEVICE"] = "cpu"
import gc, signal, sys, threading, time
import numpy as np
from oxide import *
from oxide_kernels import relu
def small():
    return h2d(np.arange(5, dtype=np.float32)).and_then(lambda b: relu(b, b).last()).and_then(d2h)
"""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", prelude + program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("how", ["callback", "finaliser"])
def test_collections_that_run_operations(how: str) -> None:
    done = ended(f"""
small().sync()
outcomes = []
def work(*_):
    try:
        outcomes.append(small().sync().sum() == 10)
    except OrderingError:
        outcomes.append("refused")
class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        work()
if {how == "callback"}:
    gc.callbacks.append(lambda phase, info: phase == "stop" and work())
gc.set_threshold({3 if how == "callback" else 40})
for _ in range(300):
    {"pass" if how == "callback" else "Cycle()"}
    assert small().sync().sum() == 10
gc.callbacks.clear()
gc.disable()
assert False not in outcomes, outcomes
print(len(outcomes) > 3)
""")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_collections_in_the_first_steps_of_threads() -> None:
    """Whoever has started the thread must not wait for it with a lock held."""
    done = ended("""
def run_in_new_threads(phase, info):
    if threading.get_ident() not in threading._active:
        h2d(np.arange(5.0)).and_then(d2h).sync()
gc.callbacks.append(run_in_new_threads)
gc.set_threshold(1)
def work():
    for _ in range(20):
        h2d(np.arange(4.0)).and_then(d2h).sync()
for _ in range(40):
    threads = [threading.Thread(target=work) for _ in range(3)]
    [each.start() for each in threads]
    [each.join() for each in threads]
os.write(1, b"ok")
os._exit(0)
""")
    assert (done.returncode, done.stdout) == (0, "ok"), done.stderr


@pytest.mark.parametrize("call", ["h2d(one).and_then(d2h).graph()", "devices()[0].new_stream()", "box.host_view()"])
def test_a_signal_handler_beside_busy_threads(call: str) -> None:
    done = ended(f"""
from oxide.errors import GraphError
one = np.ones(4)
box = h2d(one).sync()
def handle(*_):
    try:
        {call}
    except (OrderingError, GraphError):
        pass
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
stop = False
def work():
    while not stop:
        h2d(one).and_then(d2h).sync()
others = [threading.Thread(target=work) for _ in range(2)]
[each.start() for each in others]
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.0005)
for _ in range(1000):
    h2d(one).and_then(d2h).sync()
signal.signal(signal.SIGALRM, signal.SIG_IGN)
stop = True
[each.join() for each in others]
print("ok")
""")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_a_signal_handler_that_runs_operations() -> None:
    done = ended("""
small().sync()
outcomes = []
def handle(*_):
    try:
        outcomes.append(small().sync().sum() == 10)
    except OrderingError:
        outcomes.append("refused")
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.003)
while len(outcomes) < 100:
    assert small().sync().sum() == 10
signal.setitimer(signal.ITIMER_REAL, 0)
assert False not in outcomes and True in outcomes, outcomes
print("ok")
""")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_an_operation_in_a_finaliser_as_the_interpreter_ends() -> None:
    done = ended("""
class Late:
    def __init__(self):
        self.me = self
    def __del__(self):
        try:
            small().sync()
        except DeviceError as error:
            os.write(1, f"{type(error).__name__}: {error}".encode())
for _ in range(8):
    small().sync()
late = Late()
del Late
""")
    assert done.returncode == 0, done.stderr
    assert not done.stdout or "the interpreter is ending" in done.stdout


@pytest.mark.parametrize("at", ["set-up", "compilation"])
def test_a_child_forked_in_the_first_use_of_another_thread(at: str) -> None:
    done = ended(f"""
import oxide.runtime.devices.runtime as runtime
from oxide.compiler.kernel.kernel import Kernel
begun, go_on = threading.Event(), threading.Event()
place, name = (runtime, "_choose_driver") if {at == "set-up"} else (Kernel, "_specialize")
original = getattr(place, name)
def waiting(*arguments):
    begun.set()
    go_on.wait(50)
    return original(*arguments)
setattr(place, name, waiting)
other = threading.Thread(target=lambda: small().sync())
other.start()
begun.wait(50)
setattr(place, name, original)
child = os.fork()
if not child:
    for use in (lambda: small().sync(), lambda: relu.specialize(T=f32), init_device_contexts):
        try:
            use()
        except DeviceLostError as error:
            os.write(1, b"lost ")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
go_on.set()
other.join()
print(small().sync().sum())
""")
    assert (done.returncode, done.stdout) == (0, "lost lost lost 10.0\n"), done.stderr


def test_a_child_forked_before_the_first_use_has_devices_of_its_own() -> None:
    done = ended("""
child = os.fork()
if not child:
    os._exit(int(small().sync().sum()))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), small().sync().sum())
""")
    assert (done.returncode, done.stdout) == (0, "10 10.0\n"), done.stderr
