"""The ranks of a group find one another, and some fail meanwhile. Here all ranks are threads of one process."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oxide.commands.launch import _end
from oxide.commands.program import main
from oxide.distributed import boards, peers
from oxide.errors import CollectiveError, DeviceError

LONG = 60.0


def begun(function: Callable[[], object]) -> Callable[[], object]:
    """Calls a function in a thread. Returns a function that waits, and returns its result or its error."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(function())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def end() -> object:
        thread.join(LONG)
        return outcome[0]

    return end


def connected(name: str, rank: int, size: int) -> peers.Channel:
    """A channel to rank 0, which has accepted ``rank``."""
    path = peers._socket_of(peers._folder(), name, 0)
    while (channel := peers._connect(path)) is None:
        time.sleep(0.001)  # until rank 0 listens
    peers._greet(channel, name, rank, size, time.monotonic() + LONG)
    return channel


def test_a_rank_that_ends_while_others_are_awaited_is_named_at_once() -> None:
    name = secrets.token_hex(8)
    joined = begun(lambda: peers.join(name, 0, 3, LONG))
    connected(name, 1, 3).close()
    error = joined()
    assert isinstance(error, CollectiveError)
    assert error.rank == 1
    assert str(error) == f"joining group {name!r} as rank 0 of 3: the process of rank 1 has ended"


def test_a_rank_that_gives_up_while_others_are_awaited_says_why() -> None:
    name = secrets.token_hex(8)
    joined = begun(lambda: peers.join(name, 0, 3, LONG))
    late = begun(lambda: peers.join(name, 1, 3, 0.05))
    for rank, found in enumerate((joined(), late())):
        assert isinstance(found, CollectiveError)
        assert found.rank == 2
        assert f"as rank {rank} of 3: " in str(found)
        assert "rank 2 did not come within 0.05 s" in str(found)


def test_a_rank_that_refuses_another_tells_those_that_wait() -> None:
    name = secrets.token_hex(8)
    joined = begun(lambda: peers.join(name, 0, 3, LONG))
    waiting = connected(name, 1, 3)
    with pytest.raises(DeviceError, match="rank 0 of this group says that it has 3 ranks"):
        peers.join(name, 2, 4, LONG)
    assert isinstance(joined(), DeviceError)
    assert waiting.has_message(LONG)
    message = waiting.take()
    assert message is not None
    assert message.startswith(peers.FAILED + b"0 ")
    assert b"rank 2 says that it has 4 ranks" in message


def test_what_killed_processes_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    paths = [tmp_path / f"{boards._PREFIX}{name}" for name in "abc"]
    for path in paths:
        path.touch()
    for path in paths[:2]:
        os.utime(path, (time.time() - 3700, time.time() - 3700))
    peers.sweep([*paths, tmp_path / "removed meanwhile"], is_used=lambda path: path == paths[1])
    assert sorted(tmp_path.iterdir()) == paths[1:]
    peers.sweep(paths)
    assert sorted(tmp_path.iterdir()) == paths[2:]


@pytest.mark.parametrize("ranks", [str(10**9), "9" * 4000])
def test_launch_starts_no_more_ranks_than_the_machine_can_run(
    ranks: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    assert main(["launch", "-n", ranks, "--device", "cpu", __file__]) == 2
    assert re.search(
        r"-n .{1,30}: each rank is a process, .* at most 128, with 16 processors; give fewer", capsys.readouterr().err
    )


def test_launch_ends_the_ranks_that_run_if_one_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Any] = []
    start = subprocess.Popen

    def one_alone(*_: Any, **__: Any) -> Any:
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(start([sys.executable, "-c", "import time; time.sleep(100)"]))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", one_alone)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert main(["launch", "-n", "2", "--device", "cpu", __file__]) == 2
    assert "-n 2: rank 1 cannot be started: Resource temporarily unavailable; give fewer" in capsys.readouterr().err
    assert started[0].returncode == -signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "status"),
    [
        (("exit(0)", "exit(0)"), 0),
        (("exit(1)", "exit(42)"), 42),
        (("exit(42)", "os.kill(os.getpid(), 9)"), 137),
        (("exit(1)", "exit(0)"), 1),
        (("exit(1)", "time.sleep(100)"), 1),
    ],
)
def test_the_status_of_launch_is_that_of_the_rank_that_failed(ends: Any, status: int) -> None:
    """The others end with 1, as their collective fails."""
    processes = [subprocess.Popen([sys.executable, "-c", f"import os, time; {end}"]) for end in ends]
    if "sleep" not in ends[1]:
        for process in processes:
            process.wait(LONG)
    else:
        processes[0].wait(LONG)
    assert _end(processes, 0.01) == status
