"""``oxide.trace``: the file holds every launch, copy and wait that the driver saw, whatever ends the trace."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trio

import oxide
from oxide import BoundsError, StreamPoolRoundRobin, TraceError, d2h, h2d
from oxide.driver.cpu import CpuDriver
from oxide.driver.sanitizing import Tracking
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.tracepoints import points
from oxide.testing import DelegatingDriver, FailingDriver, RecordingDriver, step_driver, use_driver
from tests.tracing.counting import seen, written
from tests.tracing.programs import CONFIG, ONES, SIZE, add, concurrent_sums, count_down, reads_outside, sum_of
from tests.tracing.schema import read

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "out.json"


@pytest.fixture
def driver() -> Iterator[RecordingDriver]:
    """The CPU device with worker threads, four streams, and every call recorded."""
    cpu = CpuDriver(threads=2)
    with use_driver(RecordingDriver(cpu), policy=StreamPoolRoundRobin(4)) as recording:
        add_once()
        recording.clear()
        yield recording
    cpu.close()


def add_once() -> None:
    assert (sum_of(ONES, ONES).sync() == 2).all()


def test_every_launch_copy_and_wait_is_in_the_file(driver: RecordingDriver, file: Path) -> None:
    with oxide.trace(file):
        trio.run(concurrent_sums, 16)
        shared = h2d(ONES).sync()
        streams = [oxide.devices()[0].new_stream() for _ in range(3)]
        gate = threading.Event()
        streams[0].launch_host_function(lambda: assert_set(gate))
        for stream in streams:  # each stream waits for the one before, which writes what it writes
            oxide.memcpy(shared, ONES).async_on(stream)
        gate.set()
        for stream in streams:
            stream.synchronize()
    contents = read(file)
    submitted = seen(driver)
    assert written(contents) == submitted
    assert sum(count for (kind, _, _), count in submitted.items() if kind == "kernel") == 16
    assert sum(count for (kind, _, _), count in submitted.items() if kind == "wait") >= 2
    assert len({each["tid"] for each in contents.slices("kernel")}) == 4
    assert all("state" not in each["args"] for each in contents.slices())
    assert "workers" in contents.clocks


def test_a_launch_says_what_and_where_it_is(driver: RecordingDriver, file: Path) -> None:
    with oxide.trace(file):
        add_once()
    (launch,) = read(file).slices("kernel")
    assert launch["name"] == "add"
    arguments = launch["args"]
    assert arguments["grid"] == list(CONFIG.grid)
    assert arguments["block"] == list(CONFIG.block)
    assert arguments["bytes"] == 3 * ONES.nbytes
    assert arguments["operation"] == "add"
    here, _, line = arguments["place"].rpartition(":")
    assert here.endswith(os.path.join("tests", "tracing", "programs.py"))
    assert "add[CONFIG](*boxes)" in Path(here).read_text().splitlines()[int(line) - 1]


def test_a_wait_says_its_cause_and_lasts_until_the_stream_goes_on(driver: RecordingDriver, file: Path) -> None:
    with oxide.trace(file):
        first, second = (oxide.devices()[0].new_stream() for _ in range(2))
        gate = threading.Event()
        first.launch_host_function(lambda: assert_set(gate))
        box = h2d(ONES).async_on(first)
        copied = d2h(box).async_on(second)
        gate.set()
        second.synchronize()
        assert (copied == 1).all()
    contents = read(file)
    (wait,) = contents.slices("wait")
    assert wait["args"]["cause"] == "memory is read that was written on the other stream"
    (held,) = contents.slices("host function")
    (upload,) = contents.slices("copy to device")
    (download,) = contents.slices("copy to host")
    assert wait["name"] == f"wait for {contents.track(upload)}"
    assert contents.track(wait) == contents.track(download)
    assert held["ts"] + held["dur"] <= upload["ts"] + 0.002
    assert upload["ts"] + upload["dur"] <= download["ts"] + 0.002
    assert wait["ts"] + wait["dur"] == pytest.approx(download["ts"], abs=0.002)


def assert_set(gate: threading.Event) -> None:
    assert gate.wait(60)


def test_tasks_have_tracks_with_their_nursery_awaits_and_arrows_to_streams(driver: RecordingDriver, file: Path) -> None:
    with oxide.trace(file):
        trio.run(concurrent_sums, 3)
    contents = read(file)
    awaits = contents.slices("await")
    assert sorted(contents.track(each) for each in awaits) == ["task sum 0", "task sum 1", "task sum 2"]
    for each in awaits:
        track = contents.tracks[each["pid"], each["tid"]]
        assert "concurrent_sums" in track["nursery"]
        assert track["loop"] == "trio"
        inside = [other for other in contents.slices("submit") if other["tid"] == each["tid"]]
        (submit,) = inside
        assert each["ts"] <= submit["ts"]
        assert submit["ts"] + submit["dur"] <= each["ts"] + each["dur"]
        assert submit["args"]["place"].rpartition(":")[0].endswith("programs.py")
        assert submit["args"]["built_us_before"] > 0
        works = [work for work in contents.slices("kernel") if work["args"]["run"] == submit["args"]["run"]]
        assert len(works) == 1
    starts = [event for event in contents.events if event["ph"] == "s"]
    assert {event["tid"] for event in starts} == {each["tid"] for each in awaits}


def test_tasks_of_asyncio_have_tracks(driver: RecordingDriver, file: Path) -> None:
    async def one() -> None:
        await sum_of(ONES, ONES)

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(one(), name="first")
            group.create_task(one(), name="second")

    with oxide.trace(file):
        asyncio.run(both())
    contents = read(file)
    tracks = sorted(contents.track(each) for each in contents.slices("await"))
    assert [track.split(" (")[0] for track in tracks] == ["task first", "task second"]


def test_threads_have_tracks(driver: RecordingDriver, file: Path) -> None:
    with oxide.trace(file):
        threads = [threading.Thread(target=add_once, name=f"adder {number}") for number in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    contents = read(file)
    names = sorted(contents.track(each) for each in contents.slices("submit"))
    assert names == ["thread adder 0", "thread adder 1", "thread adder 2"]
    assert sorted(contents.track(each) for each in contents.slices("sync")) == names


def test_memory_is_counted_from_what_is_held(driver: RecordingDriver, tmp_path: Path) -> None:
    def most(name: str) -> tuple[int, object]:
        """Returns the largest count of a trace in which 2,000 bytes are added, and what holds these."""
        with oxide.trace(tmp_path / name):
            more = h2d(np.ones(500, np.float32)).sync()
        events = read(tmp_path / name).events
        return max(event["args"]["bytes"] for event in events if event["ph"] == "C"), more

    gc.collect()
    kept = h2d(ONES).sync()
    first, held = most("first.json")
    second, held_too = most("second.json")
    assert first >= kept.nbytes + 2000
    assert second - first == 2000
    del held, held_too


def test_a_trace_in_a_program_that_runs_leaves_everything_as_it_was(driver: RecordingDriver, file: Path) -> None:
    runtime = current_runtime()

    async def program() -> None:
        await sum_of(ONES, ONES)
        with oxide.trace(file):
            await sum_of(ONES, ONES)
        await sum_of(ONES, ONES)

    trio.run(program)
    assert points.tracer is None
    assert runtime.driver is driver
    assert all(device.driver is driver for device in runtime.devices)
    assert all(timeline.driver is driver for device in runtime.devices for timeline in device.timelines)
    assert len(read(file).slices("kernel")) == 1
    assert not [each for each in threading.enumerate() if each.name == "oxide-trace"]


def test_traces_nest_and_each_has_what_was_submitted_inside(driver: RecordingDriver, tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer.json", tmp_path / "inner.json"
    with oxide.trace(outer):
        add_once()
        with oxide.trace(inner):
            add_once()
        add_once()
    assert len(read(outer).slices("kernel")) == 3
    assert len(read(inner).slices("kernel")) == 1


def test_two_traces_cannot_write_to_one_file(
    driver: RecordingDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.json"
    monkeypatch.chdir(tmp_path)
    os.symlink(file, tmp_path / "link.json")
    with oxide.trace(file):
        add_once()
        for same in (file, "out.json", "link.json"):
            with pytest.raises(TraceError, match=rf"{same}: a trace that has not ended writes to this file"):
                oxide.trace(same).__enter__()
        add_once()
    assert len(read(file).slices("kernel")) == 2
    with oxide.trace(file):  # it has ended
        add_once()
    assert len(read(file).slices("kernel")) == 1


def test_a_device_takes_several_traces(driver: RecordingDriver) -> None:
    with oxide.trace(os.devnull), oxide.trace(os.devnull):
        add_once()


def test_a_file_whose_trace_did_not_begin_can_be_traced_to(
    driver: RecordingDriver, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(TraceError, match=r"cannot be written to .*: No space"):
        patch.setattr(os, "ftruncate", full)
        oxide.trace(file).__enter__()
    with oxide.trace(file):
        add_once()
    assert len(read(file).slices("kernel")) == 1


def full(descriptor: int, length: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_file_is_complete_after_an_exception(driver: RecordingDriver, file: Path) -> None:
    with pytest.raises(ZeroDivisionError), oxide.trace(file):
        add_once()
        raise ZeroDivisionError
    assert len(read(file).slices("kernel")) == 1


def test_a_faulting_kernel_is_in_the_file(driver: RecordingDriver, file: Path) -> None:
    with pytest.raises(BoundsError), oxide.trace(file):
        oxide.zip(h2d(ONES), oxide.zeros(SIZE)).and_then(lambda boxes: reads_outside[CONFIG](*boxes)).sync()
    contents = read(file)
    assert [each["name"] for each in contents.slices("kernel")] == ["reads_outside"]
    assert contents.slices("sync")


def test_a_failed_submission_is_not_in_the_file(file: Path) -> None:
    with use_driver(FailingDriver(step_driver())) as failing, oxide.trace(file):
        add_once()
        failing.fail("copy_to_host", oxide.DeviceError("refused"))
        with pytest.raises(oxide.DeviceError, match="refused"):
            add_once()
    assert len(read(file).slices("copy to host")) == 1


def test_a_cancelled_await_says_so_and_its_work_was_not_run(file: Path) -> None:
    with use_driver(step_driver()), oxide.trace(file):
        box = h2d(ONES).sync()

        async def cancelled() -> None:
            with trio.move_on_after(60) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lose, box)
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()

        trio.run(cancelled)
    contents = read(file)
    (awaited,) = contents.slices("await")
    assert awaited["args"]["outcome"] == "cancelled"
    (download,) = contents.slices("copy to host")
    assert download["args"]["state"] == "not run"
    assert download["dur"] == 0


async def lose(box: oxide.DeviceBox) -> None:
    await d2h(box)


def test_a_graph_is_a_slice_with_its_nodes(driver: RecordingDriver, file: Path) -> None:
    with oxide.trace(file):
        boxes = oxide.zip(h2d(ONES), h2d(ONES), oxide.zeros(SIZE)).sync()
        chain = add[CONFIG](*boxes).and_then(lambda results: add[CONFIG](*results))
        with chain.graph() as graph:
            for _ in range(3):
                graph.launch().sync()
    contents = read(file)
    assert written(contents) == seen(driver)
    launches = contents.slices("graph")
    assert len(launches) == 3
    assert len(contents.slices("capture")) == 1
    for launch in launches:
        nodes = [
            node
            for node in contents.slices("node")
            if node["tid"] == launch["tid"] and launch["ts"] <= node["ts"] <= launch["ts"] + launch["dur"]
        ]
        assert [node["name"] for node in nodes] == ["add", "add", "report"]


def test_the_nodes_of_a_graph_have_their_names_while_the_sanitizer_tracks_memory(
    driver: RecordingDriver, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tracking, "wanted", True)  # a launch is then two tasks of the driver
    with oxide.trace(file):
        boxes = oxide.zip(h2d(ONES), h2d(ONES), oxide.zeros(SIZE)).sync()
        with add[CONFIG](*boxes).graph() as graph:
            graph.launch().sync()
    assert [node["name"] for node in read(file).slices("node")] == ["add", "report"]


def test_a_loop_is_one_node_of_its_graph_as_long_as_its_iterations(driver: RecordingDriver, file: Path) -> None:
    with oxide.trace(file):
        flag = h2d(np.array([200], np.int32)).sync()
        boxes = oxide.zip(h2d(ONES), h2d(ONES), oxide.zeros(SIZE)).sync()
        body = oxide.zip(add[CONFIG](*boxes), oxide.cond(flag, oxide.memcpy(boxes[0], boxes[1])), count_down(flag))
        with add[CONFIG](*boxes).and_then(lambda _: oxide.while_loop(flag, body)).graph() as graph:
            graph.launch().sync()
        oxide.while_loop(flag, body).sync()  # by itself, and not once
    contents = read(file)
    assert written(contents) == seen(driver)
    assert d2h(flag).sync().tolist() == [0]
    names = ["add", "while", "report", "while", "report"]
    nodes = sorted(contents.slices("node"), key=lambda node: node["ts"])
    assert [node["name"] for node in nodes] == names
    long, short = (node["dur"] for node in nodes if node["name"] == "while")
    assert long > 5 * short > 0


class WithForeignStreams(DelegatingDriver):
    """Another library's stream has a new handle each time, as on CUDA."""

    def __init__(self, inner: CpuDriver) -> None:
        super().__init__(inner)
        self.foreign: list[object] = []

    def foreign_stream(self, device: int, address: int) -> object:
        self.foreign.append(self.inner.create_stream(device))
        return self.foreign[-1]

    def stream_address(self, stream: object) -> int:
        return 77 if stream in self.foreign else self.inner.stream_address(stream)


def test_another_librarys_stream_is_one_track_however_often_it_is_met(file: Path) -> None:
    with use_driver(WithForeignStreams(step_driver())), oxide.trace(file):
        (device,) = oxide.devices()
        ours = device.new_stream()
        for _ in range(3):
            theirs = device.foreign_timeline(77)
            ours.launch_host_function(lambda: None)  # runs when the test waits, and not before
            theirs.wait_for(ours._timeline, ours._timeline.mark().position, "ours is read")
            ours._timeline.wait_for(theirs, theirs.mark().position, "theirs is read")
            theirs.forget_marks()
        ours.synchronize()
    contents = read(file)
    foreign = [key for key, track in contents.tracks.items() if track["name"].startswith("another library's")]
    assert len(foreign) == 1
    waits = [each for each in contents.slices("wait") if each["args"]["cause"].endswith(" is read")]
    assert sum((each["pid"], each["tid"]) in foreign for each in waits) == 3
    assert sum("another library's" in each["name"] for each in waits) == 3
    assert "a stream" not in {track["name"] for track in contents.tracks.values()}


def test_two_devices_are_two_processes(file: Path) -> None:
    cpu = CpuDriver(2, threads=2)
    with use_driver(RecordingDriver(cpu)) as recording, oxide.trace(file):
        recording.clear()
        moved = h2d(ONES).on(0).to_device(1).and_then(lambda box: d2h(box).on(1)).sync()
        assert (moved == 1).all()
        calls = seen(recording)
    cpu.close()
    contents = read(file)
    assert written(contents) == calls
    assert {contents.device(each) for each in contents.slices("copy to device")} == {"cpu:0"}
    assert {contents.device(each) for each in contents.slices("copy to host")} == {"cpu:1"}
    assert len(contents.slices("copy between devices")) == 1


def test_a_runtime_that_is_set_up_inside_a_trace_is_in_it(file: Path) -> None:
    with oxide.trace(file):
        with use_driver(step_driver()):
            add_once()
        assert points.tracer is not None
    contents = read(file)
    assert len(contents.slices("kernel")) == 1
    assert "workers" in contents.clocks


def test_a_long_trace_is_written_while_it_goes_on(driver: RecordingDriver, file: Path) -> None:
    most = 0
    with oxide.trace(file):
        assert points.tracer is not None
        points.tracer.many, points.tracer.too_many = 20, 60
        for _ in range(100):
            add_once()
            most = max(most, len(points.tracer.notes))
        partly = os.path.getsize(file)
    assert most < 120
    assert partly > 50_000
    assert written(read(file)) == seen(driver)


def test_a_path_that_cannot_be_written_is_an_error_at_the_with(tmp_path: Path) -> None:
    ran = False
    missing = tmp_path / "missing" / "out.json"
    with pytest.raises(TraceError, match=r"cannot be written to .*out\.json: No such file"), oxide.trace(missing):
        ran = True
    assert not ran
    assert points.tracer is None


def test_a_full_disk_is_an_error_at_the_end(driver: RecordingDriver) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with pytest.raises(TraceError, match="not complete, as a write failed: No space"), oxide.trace("/dev/full"):
        add_once()
    assert points.tracer is None


def test_a_trace_is_begun_once(driver: RecordingDriver, file: Path) -> None:
    trace = oxide.trace(file)
    with trace:
        pass
    with pytest.raises(RuntimeError, match="begun before"), trace:
        pass


@pytest.mark.nightly
def test_a_forked_child_leaves_the_file_to_its_parent(file: Path) -> None:
    program = f"""
        import os, oxide
        from tests.tracing.programs import ONES, sum_of
        with oxide.trace({str(file)!r}):
            sum_of(ONES, ONES).sync()
            child = os.fork()
            if child:
                assert os.waitpid(child, 0)[1] == 0
                sum_of(ONES, ONES).sync()
        if not child:
            from oxide.runtime.tracepoints import points
            assert points.tracer is None
            os._exit(0)
    """
    ran = python(program)
    assert ran.returncode == 0, ran.stderr
    assert len(read(file).slices("kernel")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "1 / 0"])
def test_the_environment_variable_traces_a_program(file: Path, ending: str) -> None:
    program = f"""
        import os
        from tests.tracing.programs import ONES, sum_of
        sum_of(ONES, ONES).sync()
        assert "OXIDE_TRACE" not in os.environ
        {ending}
    """
    python(program, OXIDE_TRACE=str(file))
    contents = read(file)
    assert len(contents.slices("kernel")) == 1
    assert all("state" not in each["args"] for each in contents.slices("kernel"))


def test_the_process_number_in_the_path_traces_child_processes_too(tmp_path: Path) -> None:
    program = """
        import subprocess, sys
        import oxide
        subprocess.run([sys.executable, "-c", "import oxide"], check=True)
    """
    python(program, OXIDE_TRACE=str(tmp_path / "t-%p.json"))
    files = list(tmp_path.glob("t-*.json"))
    assert len(files) == 2
    for each in files:
        read(each)


@pytest.mark.nightly
def test_the_example_writes_its_trace_and_prints_the_same(tmp_path: Path) -> None:
    file = tmp_path / "mlp.json"
    ran, plain = (
        subprocess.run(
            [sys.executable, "-m", "examples.async_mlp", "--device", "cpu", *options],
            cwd=ROOT, capture_output=True, text=True, timeout=300,
        )
        for options in (["--trace", str(file)], [])
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == plain.stdout
    contents = read(file)
    names = Counter(each["name"] for each in contents.slices("kernel"))
    assert names == {"sgemm_naive": 4, "matvec_naive": 4, "relu": 4}
    assert len({each["tid"] for each in contents.slices("kernel")}) == 4


def test_the_example_refuses_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.async_mlp", "--device", "cpu", "--trace", str(tmp_path / "no" / "t.json")],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "cannot be written" in ran.stderr
    assert "Batch" not in ran.stdout


def python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        env={**os.environ, "OXIDE_DEVICE": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
