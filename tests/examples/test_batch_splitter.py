"""The batch splitter runs the same program on any number of devices, and says so truthfully."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import trio

from examples.batch_splitter import splitter
from oxide.driver.cpu import CpuDriver
from oxide.testing import RecordingDriver, use_driver

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_device_computes_its_share_and_the_whole_is_right(count: int) -> None:
    batch, weights = splitter.make_batch(37, 24)
    with use_driver(RecordingDriver(CpuDriver(count, threads=2))) as driver:

        async def main() -> np.ndarray:
            copies = await splitter.spread(weights, range(count))
            return await splitter.run_split(batch, copies, range(count), depth=3)

        result = trio.run(main)
        launches = [call.arguments[-1].device for call in driver.calls if call.method == "launch"]
        assert driver.count("copy_peer") == count - 1
    assert sorted(set(launches)) == list(range(count))
    assert len(launches) == 6 * count
    np.testing.assert_allclose(result, splitter.reference(batch, weights, 3), rtol=1e-4, atol=1e-4)


def test_the_shares_of_all_devices_are_submitted_before_any_is_waited_for() -> None:
    batch, weights = splitter.make_batch(8, 8)
    with use_driver(RecordingDriver(CpuDriver(2, threads=2)), completion="poll") as driver:

        async def main() -> None:
            copies = await splitter.spread(weights, range(2))
            driver.clear()
            await splitter.run_split(batch, copies, range(2), depth=1)

        trio.run(main)
        methods = [call.method for call in driver.calls]
        before_the_last_launch = methods[: len(methods) - methods[::-1].index("launch")]
        assert not {"query_event", "query_stream"} & set(before_the_last_launch)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.batch_splitter", *arguments],
        cwd=ROOT,
        env={**os.environ, "OXIDE_DEVICE": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_command_runs_on_1_2_and_4_devices() -> None:
    ran = run("--devices", "4", "--rows", "64", "--dim", "32", "--device", "cpu")
    assert ran.returncode == 0, ran.stderr
    assert [line.split(":")[0] for line in ran.stdout.splitlines() if " ms, " in line] == [
        "1 device",
        "2 devices",
        "4 devices",
    ]
    assert "Device: cpu:3" in ran.stdout
    assert "SUCCESS: Every result is right." in ran.stdout


def test_more_devices_than_there_are_is_one_line_and_exit_code_2() -> None:
    ran = run("--devices", "3", OXIDE_CPU_DEVICES="2")
    assert ran.returncode == 2
    assert "num_devices, how many devices to set up, is 3; it must be an int from 1 to 2" in ran.stderr
    assert run("--rows", "0").returncode == 2


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from examples.batch_splitter import __main__ as command

    right = splitter.reference
    monkeypatch.setattr(splitter, "reference", lambda *arguments: right(*arguments) + 1.0)
    with use_driver(CpuDriver(2, threads=2)):
        assert trio.run(command.run, 2, 8, 8, 1) is False
    assert "FAILED" in capsys.readouterr().out
