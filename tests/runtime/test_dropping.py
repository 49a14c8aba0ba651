"""No finaliser runs Python, where Ctrl-C would be lost; what ordinary code does in its place may be interrupted."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import Arc, DisjointSlice, d2h, f32, from_dlpack, h2d, kernel, pinned_empty, thread, value, zeros
from oxide.driver.cpu import CpuDriver
from oxide.driver.cpu import driver as cpu
from oxide.driver.cpu import workers as cpu_workers
from oxide.driver.cpu.streams import BlockRange
from oxide.host.core import FORM
from oxide.interop import dlpack
from oxide.runtime.awaiting import unrun
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.memory import reclaim
from oxide.testing import use_driver
from tests.driver.conftest import Gate
from tests.interrupting import MODES, interrupt_child, interrupts_at_checks, needs_calls

PACKAGE = Path(oxide.__file__).parent
SEED = 20_260_101


@kernel(block=32)
def bump(x: DisjointSlice[f32]) -> None:
    element = x.get_mut(thread.index_1d())
    if element is not None:
        element.value = element.value + f32(1.0)


def box() -> oxide.DeviceBox:
    return h2d(np.ones(32, np.float32)).sync()


def new_stream() -> oxide.Stream:
    return oxide.devices()[0].new_stream()


def in_flight() -> object:
    """A future whose work was submitted, and that nothing awaits."""
    future = bump(box()).into_future()
    future.start()
    return future


def recorded() -> object:
    mark = new_stream()._timeline.mark()
    mark.timeline.event_of(mark)
    return mark


SHARED_WITH_NUMPY: dict[str, Callable[[], object]] = {"a box on an imported array": lambda: from_dlpack(np.ones(8))}
EXPORTED: dict[str, Callable[[], object]] = {  # which the core's twin releases in Python
    "an array on an exported box": lambda: np.from_dlpack(box()),
    "a capsule": lambda: box().__dlpack__(),
}
MADE: dict[str, Callable[[], object]] = {
    "an operation that was never run": lambda: value(3),
    "an operation of a user's": lambda: Mine(),
    "a launch that was run": lambda: launched(),
    "a future that was never awaited": lambda: zeros(3).into_future(),
    "a future in flight": in_flight,
    "a box": box,
    **({} if os.environ.get("OXIDE_DEVICE") == "cuda" else SHARED_WITH_NUMPY),
    **({} if os.environ.get("OXIDE_DEVICE") == "cuda" or FORM == "Python" else EXPORTED),
    "a downloaded array": lambda: d2h(box()).sync(),
    "a pinned array": lambda: pinned_empty(8),
    "an arc": lambda: Arc(3),
    "a fault report": lambda: current_runtime().fault_records.acquire(),
    "a fault page": lambda: current_runtime().fault_pages.acquire(),
    "a mark": recorded,
    "a stream with results": lambda: with_results(),
    "an event": lambda: new_stream().record_event(),
    "a graph": lambda: bump(box()).graph(),
    "a driver": lambda: CpuDriver(threads=1),
    "a device function": lambda: loaded(),
}


class Mine(oxide.DeviceOperation[int]):
    def execute(self, context: oxide.ExecutionContext) -> int:
        return 7


def launched() -> object:
    operation = bump(box())
    operation.sync()
    return operation


def with_results() -> object:
    stream = new_stream()
    zeros(3).async_on(stream)
    return stream


def loaded() -> object:
    def bump_again(x: DisjointSlice[f32]) -> None:
        element = x.get_mut(thread.index_1d())
        if element is not None:
            element.value = element.value + f32(1.0)

    made: Any = kernel(block=32)(bump_again)
    made(box()).sync()
    return made


FINALISERS = pytest.mark.skipif(FORM == "Python", reason="the finalisers of the core's twin are Python")


@FINALISERS
@needs_calls
@pytest.mark.parametrize("what", MADE)
@pytest.mark.filterwarnings("ignore:.*was never run")
def test_dropping_it_runs_no_python(what: str) -> None:
    made = [MADE[what]()]
    calls: list[CodeType] = []

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            calls.append(frame.f_code)

    gc.collect()
    gc.disable()
    sys.setprofile(look)
    made.clear()
    sys.setprofile(None)
    gc.enable()
    # The warning is given soon: in the program, and not in the finaliser, which only asks for it.
    assert not calls or calls[0] is unrun.report.__code__


@FINALISERS
def test_no_class_has_a_finaliser_in_python() -> None:
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "oxide"]
    classes = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    assert len(classes) > 100
    ours = [each for each in classes if each.__module__.partition(".")[0] == "oxide"]
    found = [each for each in ours if isinstance(vars(each).get("__del__"), FunctionType)]
    assert not found


def test_nothing_that_calls_python_when_an_object_goes_is_used() -> None:
    """``weakref``'s own tables and ``finalize`` do. The callback of a weak reference is a method in C."""
    tables = re.compile(r"Weak(Key|Value)Dictionary|WeakSet|weakref\.finalize")
    callback = re.compile(r"weakref\.\w*[rR]ef\([\w.]+, ([\w.]+)")
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert not tables.search(text), path
        assert set(callback.findall(text)) <= {"self.entries.pop", "_gone.append", "forget"}, path


@pytest.mark.filterwarnings("ignore:.*was never run")
def test_the_warning_names_the_line_that_dropped_it() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        operation: object = value(3)
        line = sys._getframe().f_lineno + 1
        del operation
        int("3")
    assert [(str(each.message)[:40], each.lineno) for each in caught] == [
        ("<oxide operation Value> was never run: a", line)
    ]


class Complaint:
    def _complaint(self) -> str:
        return "this was not seen"


@needs_calls
def test_an_interrupt_as_warnings_are_given_is_raised_in_the_program_and_loses_none() -> None:
    for interrupt in interrupts_at_checks(lambda code: code.co_filename == unrun.__file__, more_than=3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            unrun._dropped.append((Complaint(), sys._getframe(), 7))
            with interrupt:
                unrun.report()
            unrun.report()
        assert not unrun._dropped, interrupt.at
        assert len(caught) <= 1, interrupt.at


@pytest.fixture
def driver() -> Iterator[CpuDriver]:
    driver = CpuDriver(threads=1)
    with use_driver(driver):
        yield driver
    driver.close()


def in_files(*modules: Any) -> Callable[[CodeType], bool]:
    """Returns whether a function is of these modules, or of the core's twin."""
    files = {module.__file__ for module in modules} | {str(path) for path in PACKAGE.glob("_*_twin.py")}
    return lambda code: code.co_filename in files


RUNS: dict[str, Callable[[], object]] = {
    "pinned": lambda: pinned_empty(2000),
    "a part of a page": lambda: pinned_empty(20),
    "sync": lambda: bump(box()).sync(),
    "async_on": lambda: bump(box()).async_on(new_stream()),
    "graph": lambda: bump(box()).graph().launch().sync(),
    "export": lambda: np.from_dlpack(box()),
}


@pytest.mark.slow
@needs_calls
@pytest.mark.parametrize("what", RUNS)
@pytest.mark.filterwarnings("ignore:.*was never run")
def test_an_interrupt_at_any_place_leaves_nothing_in_flight_and_loses_no_memory(
    what: str, driver: CpuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "export" and FORM == "Python":
        pytest.skip("NumPy's calls of the twin's functions, which are ctypes', lose an interrupt")
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    from oxide.interop import sharing as interop
    from oxide.runtime.devices import fault_records
    from oxide.runtime.memory import addresses, memory, pinned
    from oxide.runtime.operations import graph
    from oxide.runtime.submission import capture, submission

    steps = in_files(addresses, pinned, submission, memory, reclaim, interop, dlpack, fault_records, capture, graph)
    run = RUNS[what]
    run()  # compiles
    gc.collect()
    gc.freeze()  # as ``small_heap``
    for interrupt in interrupts_at_checks(steps, more_than=5):
        with interrupt:
            run()
        gc.collect()
        oxide.reclaim.drain()
        runtime = current_runtime()
        assert oxide.statistics().in_flight == 0, interrupt.at
        assert runtime.reclaimer.pending() == (0, 0, 0, 0), interrupt.at
        assert not dlpack._exported, interrupt.at
        assert not lost, interrupt.at
        live = driver.live_allocations
        assert (live.device_bytes, live.host_bytes) == (0, 0), interrupt.at
        np.testing.assert_array_equal(d2h(box()).sync(), 1)
        gc.collect()
        oxide.reclaim.drain()
        assert "page-locked memory: 0 bytes in use" in runtime.pinned.describe(), interrupt.at


@needs_calls
@pytest.mark.usefixtures("small_heap")
def test_memory_in_use_on_another_stream_outlives_an_interrupted_submission(driver: CpuDriver) -> None:
    from oxide.runtime.launching import launch
    from oxide.runtime.submission import submission

    home, other = new_stream(), new_stream()
    bump(zeros(32).sync_on(home)).sync_on(home)
    steps = in_files(launch, submission, cpu, cpu_workers)
    held = 0
    for interrupt in interrupts_at_checks(steps, more_than=3):
        gate = Gate()
        other.launch_host_function(gate)
        try:
            used = zeros(32).sync_on(home)
            with interrupt:
                bump(used).async_on(other)
            del used
            gc.collect()
            reclaimer = current_runtime().reclaimer
            for _ in range(20):  # what is left over by other tests may take all of a sweep's time
                if reclaimer.sweep():
                    break
            submitted = any(isinstance(item, BlockRange) for item in list(other._timeline.handle.items))
            assert not submitted or driver.live_allocations.device_bytes, interrupt.at
            held += submitted
        finally:
            gate.release.set()
        other.synchronize()
        oxide.reclaim.drain()
        assert driver.live_allocations.device_bytes == 0, interrupt.at
    assert held


@FINALISERS
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the timer is Linux's")
@pytest.mark.parametrize("mode", MODES)
def test_a_process_that_is_interrupted_at_random_loses_none(mode: str) -> None:
    interrupt_child(mode, 20, SEED)


def test_public_objects_are_written_at_the_interpreters_end() -> None:
    """In a ``__del__`` that runs when modules are gone and nothing can be imported any more."""
    program = """
import sys, warnings
import numpy as np
import oxide
from oxide import *
warnings.simplefilter("ignore")
from tests.runtime.test_dropping import bump

class AtEnd:
    def __del__(self):
        gone = sys.meta_path is None
        for name, thing in self.things.items():
            for write in self.writes:
                try:
                    write(thing)
                except BaseException as error:
                    print(name, write, type(error), error)
        print("written", gone)

at_end = AtEnd()
stream = devices()[0].new_stream()
box = h2d(np.ones(32, np.float32)).sync()
graph = bump(box).graph_on(stream)
at_end.writes = (repr, str)
at_end.things = dict(
    box=box, launch=bump(box), value=value(box), chain=h2d(np.ones(3)).and_then(d2h), kernel=bump, stream=stream,
    event=stream.record_event(), future=zeros(3, "f8").into_future(), graph=graph, replay=graph.launch(), arc=Arc(box),
    placed=zeros(3).on(0), shared=zeros(3).shared(), numbers=arange(4), statistics=oxide.statistics(), dtype=f32,
    download=d2h(box), copy=memcpy(box, np.zeros(32, np.float32)), device=devices()[0], error=OutOfMemoryError("full"),
    policy=oxide.StreamPoolRoundRobin(2), label=box._allocation.label,
)
sys.modules["kept until the end"] = at_end
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "OXIDE_DEVICE": "cpu"}
    )
    assert done.stdout == "written True\n", done.stdout + done.stderr
    assert not done.stderr


def test_frames_that_form_a_circle_do_not_hang_a_warning() -> None:
    """CPython has given such frames: the place is then the recorded frame's own."""

    class Circle:
        f_code = (lambda: None).__code__.replace(co_filename=str(PACKAGE / "inside.py"))
        f_lineno = 7

        def __init__(self) -> None:
            self.f_globals: dict[str, Any] = {"__name__": "oxide.inside"}

        @property
        def f_back(self) -> Circle:
            return self

    with pytest.warns(RuntimeWarning, match="never run") as caught:
        unrun._warn("never run", Circle(), 7)  # type: ignore[arg-type]
    assert (caught[0].filename, caught[0].lineno) == (str(PACKAGE / "inside.py"), 7)


@pytest.mark.parametrize("holder", ["__main__", "numpy"])
def test_an_operation_that_lives_to_the_interpreters_end_warns_at_no_line_of_the_package(holder: str) -> None:
    """NumPy's module is cleared late: of Python's modules that print errors only the C part is left then."""
    program = f"import sys, numpy, oxide\nsys.modules[{holder!r}].kept = oxide.value(8)\nprint('alive')"
    warning = "RuntimeWarning: <oxide operation Value> was never run: await it, call sync() or make it part of another"
    for how, said in (("default", f"sys:1: {warning} operation\n"), ("error", f"\n{warning} operation\n")):
        done = subprocess.run([sys.executable, "-W", how, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout == "alive\n"
        if how == "default":
            assert done.stderr == said
        else:
            assert done.stderr.startswith("Exception ignored in: <")
            assert done.stderr.endswith(said)


def test_a_drop_while_a_coroutine_is_made_keeps_no_frame_that_moves() -> None:
    """On CPython 3.11 the collector may run between a coroutine's frame and its coroutine, which takes the frame over.
    A reference to the old frame was a crash some calls later."""
    program = """
import gc
import sys
import numpy as np
from oxide import h2d
class Node: pass
def drop():
    node = Node()
    node.itself, node.operation = node, h2d(np.zeros(3))
async def work(number, *rest):
    return number
def once(number):
    drop()
    gc.set_threshold(gc.get_count()[0] + number % 8)
    made = work(number)  # line 15: the collection runs in this call
    gc.set_threshold(0)
    made.cr_frame
    try:
        made.send(None)
    except StopIteration as end:
        assert end.value == number
gc.set_threshold(0)
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for number in range(400):
        once(number)
lines = {warning.lineno for warning in caught}
print(len(caught) > 300, lines == {15} if sys.version_info < (3, 12) else True)
gc.collect()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "OXIDE_DEVICE": "cpu"},
    )
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stdout + done.stderr


class Heir(Mine):
    """An operation of a user's, which inherits its finaliser from another."""


@pytest.mark.parametrize("kind", [Mine, Heir])
def test_dropping_a_users_operation_keeps_the_exception_that_is_being_raised(kind: type[Mine]) -> None:
    def fail() -> None:
        raise KeyError("the program's own")

    # The operation is on the stack of the frame that the exception leaves, and dropped while it is on its way.
    with pytest.warns(RuntimeWarning, match="was never run"), pytest.raises(KeyError, match="the program's own"):
        print(kind(), fail())
    assert kind().sync() == 7
