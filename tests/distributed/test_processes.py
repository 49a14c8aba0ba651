"""Collectives of several processes: their results, and what every rank sees when one fails."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.rank import TIMEOUT

ROOT = Path(__file__).parent.parent.parent
SOON = 20.0
"""The seconds within which the end of a rank is an error on the others, on a busy machine. The ranks would wait for one
another for 60, so a rank that was noticed only by its absence is told apart."""


def start(scenario: str, size: int, device: str) -> list[subprocess.Popen[str]]:
    group = secrets.token_hex(8)
    processes = []
    for rank in range(size):
        own = {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "OXIDE_GROUP": group,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        if device == "cuda":
            own["CUDA_VISIBLE_DEVICES"] = str(rank)
        processes.append(
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("rank.py")), scenario],
                cwd=ROOT,
                env={**os.environ, "OXIDE_DEVICE": device, **own},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    """The status of a process, and what it printed."""
    output, errors = process.communicate(timeout=110)
    assert process.returncode in (0, -signal.SIGKILL), errors
    return process.returncode, json.loads(output) if output else {}


def run(scenario: str, size: int, device: str) -> list[tuple[int, dict[str, Any]]]:
    processes = start(scenario, size, device)
    try:
        return [ended(process) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["results", "captured"])
def test_each_rank_gets_the_right_results(scenario: str, size: int, device: str) -> None:
    for rank, (status, seen) in enumerate(run(scenario, size, device)):
        assert status == 0
        assert seen == {"rank": rank}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["killed", "in_the_middle", "forked", "launched_graph"])
def test_the_end_of_a_rank_is_an_error_on_every_other(scenario: str, size: int, device: str) -> None:
    for rank, (status, seen) in enumerate(run(scenario, size, device)):
        if rank == 1:
            assert status == -signal.SIGKILL
            continue
        assert seen["here"] == rank
        assert seen["rank"] == 1
        assert "all_reduce of" in seen["message"]
        assert "the process of rank 1 has ended" in seen["message"]
        assert seen["seconds"] < SOON
        if scenario == "killed":
            assert "all_reduce: the group is broken: all_reduce of 1000 float32, sum on rank" in seen["again"]


@pytest.mark.nightly
def test_a_rank_that_does_not_arrive_is_named_after_the_timeout(size: int, device: str) -> None:
    processes = start("absent", size, device)
    try:
        for rank in (each for each in range(size) if each != 1):
            _, seen = ended(processes[rank])
            assert seen["rank"] == 1
            assert f"rank 1 did not arrive within {TIMEOUT:g} s" in seen["message"]
            assert TIMEOUT <= seen["seconds"] + 0.1 < TIMEOUT + SOON
        _, seen = ended(processes[1])  # which closes its standard input
        assert seen["rank"] == 1
        assert "has given up" in seen["message"]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("mismatched", ("all_reduce of 1000 float32, sum", "all_reduce of 7 float32, sum")),
        ("records", ("broadcast of 3 [('a', '<f4')] from rank 0", "broadcast of 3 [('a', '<i4')] from rank 0")),
        ("shapes", ("all_reduce of 1000 float32, sum", "all_reduce of 10x100 float32, sum")),
        ("other_kind", ("all_reduce of 1000 float32, sum", "broadcast of 1000 float32 from rank 0")),
    ],
)
def test_ranks_that_disagree_are_an_error_on_all(scenario: str, words: tuple[str, str], size: int, device: str) -> None:
    for rank, (_, seen) in enumerate(run(scenario, size, device)):
        assert seen["here"] == rank
        assert all(word in seen["message"] for word in words)
        assert "all ranks must ask for the same collectives in one order" in seen["message"]
        assert seen["rank"] is not None
        assert seen["seconds"] < SOON


@pytest.mark.nightly
def test_a_process_ends_whose_collective_never_does(size: int, device: str) -> None:
    began = time.monotonic()
    for rank, (status, seen) in enumerate(run("unfinished", size, device)):
        assert status == (-signal.SIGKILL if rank == 1 else 0)
        assert seen == ({} if rank == 1 else {"here": rank})
    assert time.monotonic() - began < 2 * SOON


def test_a_rank_that_has_left_is_named(size: int, device: str) -> None:
    for rank, (_, seen) in enumerate(run("left", size, device)):
        if rank != 1:
            assert seen["rank"] == 1
            assert "rank 1 has left the group" in seen["message"]
            assert seen["seconds"] < SOON


@pytest.mark.nightly
def test_a_block_left_by_an_exception_waits_for_nothing_and_tells_the_others(size: int, device: str) -> None:
    for rank, (status, seen) in enumerate(run("raised", size, device)):
        assert status == 0
        assert seen["here"] == rank
        assert seen["seconds"] < 2 * SOON
        assert seen["message"] == "a mistake" if rank == 1 else "rank 1 left its block by ValueError" in seen["message"]


@pytest.mark.nightly
def test_a_graph_of_a_closed_group_is_refused(size: int, device: str) -> None:
    for rank, (_, seen) in enumerate(run("closed", size, device)):
        assert seen["here"] == rank
        assert "the group of a collective was closed" in seen["message"]


@pytest.mark.nightly
def test_a_rank_that_never_joins_is_named(size: int, device: str) -> None:
    for rank, (_, seen) in enumerate(run("never_joins", size, device)):
        if rank != 1:
            assert seen["here"] == rank
            assert seen["rank"] == 1
            assert re.search(r"ranks? 1(, 2)? did not come within 3 s", seen["message"])
            assert seen["seconds"] < TIMEOUT + SOON


@pytest.mark.nightly
def test_groups_of_different_sizes_are_refused(size: int, device: str) -> None:
    seen = [each for _, each in run("other_size", size, device)]
    assert any(
        re.search(rf"rank 1( of this group)? says that it has {size + 1} ranks", each["message"]) for each in seen
    )
    assert all(each["message"] for each in seen)


@pytest.mark.nightly
def test_launch_starts_a_process_for_each_rank(device: str, size: int) -> None:
    command = [sys.executable, "-m", "oxide", "launch", "-n", str(size), "--device", device]
    program = [str(Path(__file__).with_name("rank.py")), "results"]
    done = subprocess.run([*command, *program], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    # The processes share the pipe, and may write between each other's lines and line ends.
    assert sorted(re.findall(r"{.*?}", done.stdout)) == [json.dumps({"rank": rank}) for rank in range(size)]


@pytest.mark.nightly
def test_launch_ends_with_the_status_of_the_rank_that_failed(device: str, size: int, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "import oxide\n"
        "with oxide.collectives.join_group() as group:\n"
        "    if group.rank == 1:\n"
        "        sys.exit(3)\n"
        "    group.all_reduce(oxide.ones(4)).sync()\n"
    )
    command = [sys.executable, "-m", "oxide", "launch", "-n", str(size), "--device", device, str(program)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode in (1, 3)  # whichever was seen first
    assert "rank 1 left its block by SystemExit" in done.stderr


def test_launch_ends_its_processes_when_it_is_ended(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, time\nos.write(1, b'%d\\n' % os.getpid())\ntime.sleep(100)\n")
    command = [sys.executable, "-m", "oxide", "launch", "-n", "2", "--device", "cpu", str(program)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        ranks = [int(launcher.stdout.readline()) for _ in range(2)]
        launcher.terminate()
        assert launcher.wait(60) == 128 + signal.SIGTERM
    for rank in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(rank, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "message"), [(["-n", "0"], "give the number of processes"), ([], "as -n 2")])
def test_launch_refuses_a_wrong_number(words: list[str], message: str) -> None:
    command = [sys.executable, "-m", "oxide", "launch", *words, __file__]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert message in done.stderr
