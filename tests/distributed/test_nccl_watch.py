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
from oxide.native import is_compiled
from oxide.runtime.device.fault_records import HostReport
from oxide.testing import use_driver


class Nccl:
    """Notes the communicators that were aborted."""

    NCCLError = ValueError

    def __init__(self) -> None:
        self.aborted: list[Any] = []

    def comm_abort(self, communicator: Any) -> None:
        self.aborted.append(communicator)


@pytest.fixture
def planes() -> Iterator[list[Any]]:
    """The planes of two ranks, connected. Their threads look for nothing: the tests do."""
    library = Nccl()
    ends = socket.socketpair()
    segments = [mmap.mmap(-1, board_bytes(2)) for _ in ends]
    made: list[Any] = []
    for rank in (0, 1):
        peers = Peers(rank, 2, 60.0, {1 - rank: Channel(ends[rank])})
        boards = Boards(rank, segments)
        made.append(nccl.ManyProcesses(library, f"communicator of rank {rank}", peers, boards, look_seconds=3600.0))
    with use_driver(CpuDriver()):
        yield made
    for plane in made:
        plane._watch._over.set()
        plane._watch._peers.close()


def all_reduce(n: int = 4) -> Call:
    box = oxide.zeros(n).sync()
    return Call("all_reduce", (box,), (box,), n)


def arrived(plane: Any, *calls: Call) -> HostReport:
    report = HostReport()
    plane._watch.arrive(list(calls), report)
    return report


def test_ranks_that_agree_find_nothing(planes: list[Any]) -> None:
    for _ in range(3):
        reports = [arrived(plane, all_reduce()) for plane in planes]
        assert not any(report.claimed() for report in reports)
    graphs = [arrived(plane, *[all_reduce(n) for n in range(1, 40)]) for plane in planes]
    assert not any(report.claimed() for report in graphs)
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


@pytest.mark.skipif(is_compiled(), reason="compiled code refuses a stand-in for a context")
def test_a_graph_is_refused_once_the_group_was_closed(planes: list[Any]) -> None:
    recording: Any = SimpleNamespace(is_open=True, call=lambda *_: None, at_launch=[], uploads=[])
    context: Any = SimpleNamespace(recording=recording, timeline=SimpleNamespace(handle=None))
    now: Any = SimpleNamespace(watch_faults=lambda reports: None)
    planes[0].record(context, all_reduce())
    planes[0].record(context, all_reduce())
    (at_launch,) = recording.at_launch  # one message for both
    at_launch(now)
    planes[0].close()
    with pytest.raises(DeviceError, match="the group of a collective was closed"):
        at_launch(now)


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
    for _ in range(NOTES):
        arrived(planes[0], call)
    with pytest.raises(CollectiveError, match="rank 1 has left the group"):
        arrived(planes[0], call)


def test_collectives_that_differ_past_what_a_note_holds_are_told_apart(planes: list[Any]) -> None:
    graphs = [[all_reduce(n) for n in (*range(1, 60), last)] for last in (60, 61)]
    report = arrived(planes[0], *graphs[0])
    arrived(planes[1], *graphs[1])
    assert report.claimed()
    with pytest.raises(CollectiveError, match="a graph of 60 collectives: all_reduce of 1 float32"):
        report.raise_fault()


@pytest.mark.skipif(is_compiled(), reason="compiled code refuses a stand-in for a context")
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
