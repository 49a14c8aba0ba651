"""What two ranks on GPUs find out about each other, with stand-ins for NCCL and the GPUs: no collective runs here."""

from __future__ import annotations

import mmap
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import oxide
from oxide import DeviceError
from oxide.distributed import nccl
from oxide.distributed.boards import NOTES, Boards, board_bytes
from oxide.distributed.calls import Call
from oxide.distributed.peers import Channel, Peers
from oxide.driver.cpu import CpuDriver
from oxide.errors import CollectiveError
from oxide.runtime.devices.fault_records import HostReport
from oxide.testing import use_driver


class Nccl:
    """Notes the communicators that were aborted."""

    NCCLError = ValueError

    def __init__(self) -> None:
        self.aborted: list[Any] = []

    def comm_abort(self, communicator: Any) -> None:
        self.aborted.append(communicator)


class Stream:
    """A stream of the stand-in for a driver, which is the stream itself."""

    is_over = True

    def query_stream(self, _: Any) -> bool:
        return self.is_over


def connected(size: int) -> list[Any]:
    """The planes of a group's ranks. Their threads look for nothing: the tests do."""
    library = Nccl()
    segments = [mmap.mmap(-1, board_bytes(size)) for _ in range(size)]
    channels: list[dict[int, Channel]] = [{} for _ in range(size)]
    for low in range(size):
        for high in range(low + 1, size):
            ends = socket.socketpair()
            channels[low][high], channels[high][low] = Channel(ends[0]), Channel(ends[1])
    made: list[Any] = []
    for rank in range(size):
        peers, boards = Peers(rank, size, 60.0, channels[rank]), Boards(rank, segments)
        made.append(nccl.ManyProcesses(library, f"communicator of rank {rank}", peers, boards, look_seconds=3600.0))
        nccl.atexit.unregister(made[-1]._finish)
    return made


@pytest.fixture
def planes() -> Iterator[list[Any]]:
    """The planes of two ranks."""
    made = connected(2)
    with use_driver(CpuDriver()):
        yield made
    for plane in made:
        plane._watch._over.set()
        plane._watch._peers.close()


def killed(plane: Any) -> None:
    """Closes the connections of a rank, as the system does for a process that ends."""
    for channel in plane._watch._peers._channels.values():
        channel.close()


def all_reduce(n: int = 4) -> Call:
    box = oxide.zeros(n).sync()
    return Call("all_reduce", (box,), (box,), n)


def transfer(to: int = -1, source: int = -1) -> Call:
    box = oxide.zeros(4).sync()
    return Call("send" if to >= 0 else "recv", (box,), (box,), 4, to=to, source=source)


def arrived(plane: Any, call: Call, stream: Stream | None = None) -> HostReport:
    report, stream = HostReport(), stream or Stream()
    plane._watch.arrive(call, report, stream, stream)
    return report


def test_ranks_that_agree_find_nothing(planes: list[Any]) -> None:
    for n in range(1, 40):
        reports = [arrived(plane, all_reduce(n)) for plane in planes]
        assert not any(report.claimed() for report in reports)
    assert not planes[0]._nccl.aborted


def test_ranks_that_disagree_find_it_when_the_collective_has_ended(planes: list[Any]) -> None:
    first, second = arrived(planes[0], all_reduce(4)), arrived(planes[1], all_reduce(7))
    for report, rank in ((first, 1), (second, 0)):
        assert report.claimed()
        with pytest.raises(CollectiveError, match="all ranks must ask for the same") as raised:
            report.raise_fault()
        assert raised.value.rank == rank
    assert planes[0]._nccl.aborted == ["communicator of rank 0", "communicator of rank 1"]
    assert isinstance(planes[0].failure, CollectiveError)


def test_a_rank_that_is_late_is_named(planes: list[Any]) -> None:
    planes[0]._watch._peers.timeout = 0.01
    report = arrived(planes[0], all_reduce())
    while planes[0]._watch.look() is None:
        time.sleep(0.01)
    with pytest.raises(CollectiveError, match=r"rank 1 did not arrive within 0.01 s"):
        report.raise_fault()
    assert planes[0]._nccl.aborted == ["communicator of rank 0"]


def test_a_rank_that_gave_up_after_it_had_arrived_is_noticed(planes: list[Any]) -> None:
    """Its part of the collective may have been aborted, and the result be wrong."""
    report = arrived(planes[0], all_reduce())
    arrived(planes[1], all_reduce())
    planes[1].give_up(CollectiveError("enough", "all_reduce", 1))
    assert report.claimed()
    with pytest.raises(CollectiveError, match="rank 1 has given up: enough"):
        report.raise_fault()


def test_the_end_of_a_rank_matters_once_it_is_waited_for(planes: list[Any]) -> None:
    reports = [arrived(plane, all_reduce()) for plane in planes]
    planes[1].close()
    assert not any(report.claimed() for report in reports)
    assert planes[0]._watch.look() is None
    report = arrived(planes[0], all_reduce())
    assert report.claimed()
    with pytest.raises(CollectiveError, match="rank 1 has left the group"):
        report.raise_fault()


def test_what_ended_well_is_no_error_after_the_group_was_closed(planes: list[Any]) -> None:
    reports = [arrived(plane, all_reduce()) for plane in planes]
    for plane in planes:
        plane.close()
    assert not any(report.claimed() for report in reports)


def test_an_error_of_nccl_names_the_rank_that_is_the_reason(planes: list[Any]) -> None:
    call = all_reduce()
    arrived(planes[0], call)
    planes[1].close()
    error = planes[0]._watch.failed(call, DeviceError("NCCL: a remote error"))
    assert error.rank == 1
    assert "rank 1 has left the group" in str(error)


def test_a_rank_that_is_far_ahead_waits_until_the_others_have_read(planes: list[Any]) -> None:
    call = all_reduce()
    for _ in range(NOTES):
        arrived(planes[0], call)
    assert not planes[0]._watch._boards.has_room()
    ahead = threading.Thread(target=arrived, args=(planes[0], call))
    ahead.start()
    for _ in range(NOTES):
        arrived(planes[1], call)
    assert planes[1]._watch.look() is None
    ahead.join()
    assert planes[0]._watch.look() is None
    assert len(planes[0]._watch._mine[1]) == 1


def test_a_rank_that_is_far_ahead_of_one_that_has_ended_gets_the_error(planes: list[Any]) -> None:
    planes[1].close()
    call = all_reduce()
    reports = [arrived(planes[0], call) for _ in range(NOTES + 1)]
    assert reports[-1].claimed()
    with pytest.raises(CollectiveError, match="rank 1 has left the group"):
        reports[-1].raise_fault()
    with pytest.raises(CollectiveError, match="rank 1 has left the group"):
        arrived(planes[0], call)


def test_collectives_that_differ_past_what_a_note_holds_are_told_apart(planes: list[Any]) -> None:
    texts = ["x" * 1000 + last for last in "ab"]
    calls = [all_reduce(), all_reduce()]
    for call, text in zip(calls, texts, strict=True):
        call.text = text
    report = arrived(planes[0], calls[0])
    arrived(planes[1], calls[1])
    assert report.claimed()
    with pytest.raises(CollectiveError, match="xxx"):
        report.raise_fault()


def test_a_rank_that_has_left_does_not_fill_the_boards_of_others() -> None:
    planes = connected(3)
    with use_driver(CpuDriver()):
        planes[2].close()
        to, source = transfer(to=1), transfer(source=0)
        for number in range(2 * NOTES):
            reports = [arrived(planes[0], to), arrived(planes[1], source)]
            if number % 1000 == 0:
                assert not any(report.claimed() for report in reports)
        assert planes[0]._watch.look() is planes[1]._watch.look() is None
    for plane in planes:
        plane.close()


def test_a_rank_that_never_reads_is_named_after_the_timeout() -> None:
    planes = connected(3)
    planes[0]._watch._peers.timeout = 0.05
    with use_driver(CpuDriver()):
        to, source = transfer(to=1), transfer(source=0)
        with pytest.raises(CollectiveError, match=r"rank 2 has not read for 0.05 s") as raised:
            for _ in range(NOTES + 1):
                arrived(planes[0], to)
                arrived(planes[1], source)
                planes[1]._watch.look()
    assert raised.value.rank == 2
    for plane in planes:
        plane.close()


def test_transfers_between_the_same_ranks_are_told_in_one_order(planes: list[Any]) -> None:
    box, other = oxide.zeros(4).sync(), oxide.zeros(4).sync()
    reports = []
    for rank, plane in enumerate(planes):
        call = Call("send_recv", (box,), (other,), 4, to=1 - rank, source=1 - rank)
        reports.append(arrived(plane, call))
    assert not any(report.claimed() for report in reports)


def test_a_rank_that_was_killed_after_it_arrived_ends_the_wait_of_the_others() -> None:
    planes = connected(2)
    running = Stream()
    running.is_over = False
    with use_driver(CpuDriver()):
        reports = [arrived(plane, all_reduce(), running) for plane in planes]
        killed(planes[1])
        assert planes[0]._watch.look_around() is None  # the kernel may be about to end
        assert planes[0]._watch.look_around() is not None
        assert planes[0]._nccl.aborted == ["communicator of rank 0"]
        assert reports[0].claimed()
        with pytest.raises(CollectiveError, match=r"all_reduce of 4 float32, sum.*the process of rank 1 has ended"):
            reports[0].raise_fault()
    planes[0].close()


def test_what_ended_before_a_rank_was_killed_is_no_error() -> None:
    planes = connected(2)
    with use_driver(CpuDriver()):
        reports = [arrived(plane, all_reduce(), Stream()) for plane in planes]
        killed(planes[1])
        assert [planes[0]._watch.look_around() for _ in range(3)] == [None] * 3
        assert 1 in planes[0]._watch._ends
        assert not reports[0].claimed()
    planes[0].close()


def test_no_comparison_passes_once_a_failure_was_found(planes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends while another thread tells of the failure gets it, too."""
    first, second = arrived(planes[0], all_reduce(4)), arrived(planes[0], all_reduce(4))
    arrived(planes[1], all_reduce(7))
    arrived(planes[1], all_reduce(4))
    seen: list[bool] = []
    planes[0]._nccl.comm_abort = lambda _: seen.append(second.claimed())
    assert first.claimed()
    assert seen == [True]


def test_a_check_that_is_interrupted_is_made_again() -> None:
    outcomes: list[Any] = [KeyboardInterrupt(), CollectiveError("lost", "all_reduce", 1)]

    def check() -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, KeyboardInterrupt):
            raise outcome
        return outcome

    report = HostReport()
    report.check = check
    with pytest.raises(KeyboardInterrupt):
        report.claimed()
    assert report.claimed()


def test_an_interrupt_in_the_middle_of_telling_breaks_the_group(
    planes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Boards, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        arrived(planes[0], all_reduce())
    monkeypatch.undo()
    assert "interrupted" in str(planes[0].failure)
    report = arrived(planes[1], all_reduce())
    assert report.claimed()
    with pytest.raises(CollectiveError, match="rank 0 has given up: rank 0 was interrupted: KeyboardInterrupt"):
        report.raise_fault()


def test_a_broken_or_closed_group_takes_no_collectives(planes: list[Any]) -> None:
    """A thread may have passed the group's own test before."""
    planes[1].close()
    with pytest.raises(DeviceError, match="the group of a collective was closed"):
        arrived(planes[1], all_reduce())
    planes[0].give_up(CollectiveError("enough", "all_reduce", 0))
    with pytest.raises(CollectiveError, match="enough"):
        arrived(planes[0], all_reduce())


def test_a_graph_that_is_not_launched_breaks_the_group_if_it_was_told(planes: list[Any]) -> None:
    hook = nccl._CapturedCall(planes[0], all_reduce())
    hook.launched(MemoryError())  # an upload before it failed
    assert planes[0].failure is None
    hook._told = True
    hook.launched(None)
    hook.launched(MemoryError())
    assert planes[0].failure is None
    hook._told = True
    hook.launched(MemoryError())
    assert "rank 0 has not submitted it: MemoryError" in str(planes[0].failure)


class Graph:
    """A stand-in for an executable graph."""

    handle: Any = 1


class GraphDriver:
    """A stand-in for a driver: notes for each destroyed graph which launches were under way."""

    def __init__(self, plane: Any) -> None:
        self.plane = plane
        self.launching: list[set[Any]] = []
        self.has_destroyed = threading.Event()

    def destroy_graph(self, graph: Graph) -> None:
        graph.handle = None
        self.launching.append(self.plane.launching.copy())
        self.has_destroyed.set()


def captured(plane: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, GraphDriver]:
    """The hook of a graph with a collective, and the graph's driver. NCCL waits for the graph, as it does."""
    driver = GraphDriver(plane)
    hook = nccl._CapturedCall(plane, all_reduce())
    hook.captured(Graph(), driver)  # type: ignore[arg-type]
    plane._in_graphs = True

    def abort(communicator: Any) -> None:
        assert driver.has_destroyed.wait(60)
        plane._nccl.aborted.append(communicator)

    monkeypatch.setattr(plane._nccl, "comm_abort", abort)
    return hook, driver


def test_a_group_is_closed_while_the_program_holds_a_graph_of_it(
    planes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL frees a communicator only when the graphs are destroyed. If it is still at that when CUDA is unloaded, the
    process crashes as it ends."""
    _, driver = captured(planes[0], monkeypatch)
    planes[0].close()
    assert driver.launching == [set()]
    assert planes[0]._nccl.aborted == ["communicator of rank 0"]
    with pytest.raises(DeviceError, match="the group of a collective was closed"):
        planes[0].require_going()  # as the graph's hook does at each launch


def test_the_end_of_the_process_waits_for_a_broken_group_with_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[Any] = []
    monkeypatch.setattr(nccl.atexit, "register", at_exit.append)
    plane = connected(2)[0]
    (finish, _) = at_exit
    _, driver = captured(plane, monkeypatch)
    plane.give_up(CollectiveError("enough", "all_reduce", 0))
    assert plane._nccl.aborted == []  # the program may still use its graphs' boxes
    finish()
    assert driver.launching == [set()]
    assert plane._nccl.aborted == ["communicator of rank 0"]


@pytest.mark.parametrize("breaks", [False, True])
def test_the_end_of_the_process_waits_for_its_collectives_or_the_groups_end(
    planes: list[Any], monkeypatch: pytest.MonkeyPatch, breaks: bool
) -> None:
    running = Stream()
    running.is_over = False
    planes[0]._watch.arrive(all_reduce(), HostReport(), running, running)

    def sleep(_: float) -> None:
        assert not planes[0]._watch._over.is_set()
        if breaks:
            planes[0].give_up(CollectiveError("enough", "all_reduce", 0))
        else:
            running.is_over = True

    monkeypatch.setattr(nccl.time, "sleep", sleep)
    planes[0]._finish()
    assert planes[0]._watch._over.is_set()
    assert bool(planes[0]._nccl.aborted) == breaks


def test_the_end_of_the_process_waits_for_an_abort(planes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The program has got the error already: it comes before the abort."""
    begun, ending = threading.Event(), threading.Event()

    def abort(communicator: Any) -> None:
        begun.set()
        assert ending.wait(60)
        planes[0]._nccl.aborted.append(communicator)

    monkeypatch.setattr(planes[0]._nccl, "comm_abort", abort)
    watching = threading.Thread(target=planes[0].give_up, args=(CollectiveError("enough", "all_reduce", 0),))
    watching.start()
    assert begun.wait(60)
    monkeypatch.setattr(planes[0]._watch, "stop", ending.set)  # what the end does first
    planes[0]._finish()
    assert planes[0]._nccl.aborted == ["communicator of rank 0"]
    watching.join()


def test_a_graph_is_not_destroyed_while_a_thread_launches_it(
    planes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hook, driver = captured(planes[0], monkeypatch)
    planes[0].launching.add(hook)  # as after its look at ``closed``
    monkeypatch.setattr(nccl.time, "sleep", lambda _: hook.launched(None))
    planes[0].close()
    assert driver.launching == [set()]


def test_destroyed_graphs_are_forgotten(planes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    hook, driver = captured(planes[0], monkeypatch)
    (first,) = planes[0]._graphs
    first.handle = None  # the program has dropped the graph
    second = Graph()
    hook.captured(second, driver)
    assert list(planes[0]._graphs) == [second]


def test_an_abort_does_not_wait_for_ever_for_a_call_of_nccls(
    planes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    planes[0]._calling.acquire()  # a call that waits for another rank
    began = time.monotonic()
    planes[0].give_up(CollectiveError("enough", "all_reduce", 0))
    assert planes[0]._nccl.aborted == ["communicator of rank 0"]
    assert time.monotonic() - began < 10
    planes[0]._calling.release()


@pytest.mark.parametrize("refused", ["group_start", "all_reduce", "group_end"])
def test_what_nccl_refuses_is_a_device_error_and_the_group_of_calls_is_ended(refused: str) -> None:
    """NCCL reports most failures of several ranks at the end of their group of calls."""
    called: list[str] = []

    class Refusing(Nccl):
        def __getattr__(self, name: str) -> Any:
            def function(*_: Any) -> None:
                called.append(name)
                if name == refused:
                    raise self.NCCLError("unhandled system error")

            return function

    with use_driver(CpuDriver(devices=2)):
        plane = nccl.NcclPlane(Refusing(), ["first", "second"])
        boxes = tuple(oxide.zeros(4).on(number).sync() for number in (0, 1))
        contexts: Any = tuple(
            SimpleNamespace(
                runtime=SimpleNamespace(driver=SimpleNamespace(call=lambda _text, submit, stream: submit(stream))),
                timeline=SimpleNamespace(handle=0),
            )
            for _ in boxes
        )
        with pytest.raises(DeviceError, match="all_reduce of 4 float32, sum: NCCL: unhandled system error"):
            plane.submit(contexts, Call("all_reduce", boxes, boxes, 4), HostReport())
    assert called.count("group_end") == (refused != "group_start")
