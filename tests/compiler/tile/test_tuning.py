"""``k.tune``: candidates run in a child process; those that hang, fail or are wrong are excluded; results are kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import ArgumentError, d2h, f32, f64, h2d, tile, zeros
from oxide.runtime.launching import tuning
from tests.compiler.tile.slow_kernels import counted, doubled, scaled


@pytest.fixture(autouse=True)
def forgotten(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OXIDE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "_SLOWEST", 6.0)
    yield
    for each in (scaled, doubled._tuning(), counted._tuning()):
        each._tuned.clear()  # type: ignore[union-attr]


def arguments(n: int = 100) -> tuple[Any, Any]:
    return zeros(n).sync().partition(32), h2d(np.arange(n, dtype=np.float32)).sync()


def test_the_fastest_candidate_is_used_and_remembered() -> None:
    z, x = arguments()
    found = scaled.tune(None, z, x)
    assert not found.from_disk
    assert found.config in ({"factor": 2, "how": "run"}, {"factor": 2, "how": "run", "warps": 2})
    assert all(isinstance(result, float) for _, result in found.measured)
    assert d2h(z.box).sync().sum() == 0, "tuning ran on copies"
    np.testing.assert_array_equal(d2h(scaled(z, x).first().unpartition()).sync(), np.arange(100) * 2)
    assert scaled._config_for({"z": z, "x": x}) == found.config
    again = scaled.tune(None, z, x)
    assert again.from_disk
    assert (again.config, again.measured) == (found.config, found.measured)


ANOTHER_PROCESS = """
import numpy as np
from oxide import h2d, zeros
from oxide.runtime.launching import tuning
from tests.compiler.tile.slow_kernels import scaled
def no_child(*given):
    raise AssertionError("a candidate was about to be measured")
tuning._Child = no_child
found = scaled.tune(None, zeros(100).sync().partition(32), h2d(np.arange(100, dtype=np.float32)).sync())
print(found.from_disk, found.config)
"""


def test_another_process_measures_nothing() -> None:
    found = scaled.tune(None, *arguments())
    there = subprocess.run([sys.executable, "-c", ANOTHER_PROCESS], capture_output=True, text=True, check=False)
    assert there.returncode == 0, there.stderr
    assert there.stdout == f"True {found.config}\n"


@pytest.mark.nightly
def test_a_candidate_that_hangs_one_that_fails_and_one_that_is_wrong_are_excluded() -> None:
    z, x = arguments()
    candidates = [
        {"factor": 3, "how": "run"}, {"factor": 3, "how": "loop"}, {"factor": 4, "how": "run"},
        {"factor": 1.5, "how": "run"}, {"factor": 3, "how": "run", "warps": 1},
    ]  # fmt: skip
    found = scaled.tune(candidates, z, x)
    good, hung, wrong, failed, last = (result for _, result in found.measured)
    assert isinstance(good, float)
    assert isinstance(last, float)
    assert hung == "took longer than 6 s"
    assert wrong == "wrong: its result differs from that of the first candidate"
    assert str(failed).startswith("failed: kernel scaled: factor is a tile.Constant[int], not 1.5")
    assert found.config["factor"] == 3


def test_what_the_budget_does_not_allow_is_not_measured() -> None:
    z, x = arguments()
    with pytest.raises(ArgumentError, match=r"no candidate could be measured: .*the budget was spent"):
        scaled.tune(None, z, x, budget=0)


def test_tuning_goes_on_beside_an_event_loop() -> None:
    z, x = arguments(33)
    assert trio.run(scaled.tune_async, None, z, x).config["factor"] == 2


def test_the_first_candidate_is_used_until_then() -> None:
    z, x = arguments()
    found = d2h(scaled(z, x, how="run").first().unpartition()).sync()
    np.testing.assert_array_equal(found, np.arange(100) * 2)
    with pytest.raises(oxide.ArgumentError, match="missing a required argument: 'x'"):
        scaled(z)


@pytest.mark.parametrize(
    ("configs", "problem"),
    [
        ({"warps": 4}, "configs is a list of dicts"),
        ([3], "a candidate is a dict"),
        ([{"block": 4}], "a candidate has factor, how, warps, stages, not 'block'"),
        ([{"warps": 0}], "a candidate's warps is a number from 1 on, not 0"),
        ([], "tune needs candidates"),
    ],
)
def test_wrong_candidates(configs: Any, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        scaled.tune(configs, *arguments())


def test_a_kernel_without_a_name_in_a_module_is_refused() -> None:
    @tile.kernel
    def local(z: tile.Partition[f32, 1]) -> None:
        z.store(tile.zeros(z.tile_shape))

    with pytest.raises(ArgumentError, match="tune runs it in another process"):
        local.tune([{"warps": 1}], zeros(9).sync().partition(4))
    operations = zeros(9).partition(4), zeros(9)
    for each in operations:
        each.consume()
    with pytest.raises(ArgumentError, match="run operations first"):
        scaled.tune(None, *operations)


def test_a_result_is_shipped_with_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    z, x = arguments()
    file = tmp_path / "tuned.json"
    found = scaled.tune(None, z, x)
    found.save(file)
    scaled.tune(None, *arguments(33)).save(file)
    found.save(file)
    x2 = h2d(np.ones(100, np.float32)).sync()
    doubled.tune(None, x2, zeros(100).sync()).save(file)
    records = json.loads(file.read_text())["records"]
    assert [each["kernel"] for each in records] == ["scaled", "scaled", "doubled"]
    assert all(len(each["measured"]) == 2 and each["device"] for each in records)
    scaled._tuned.clear()
    assert scaled.load_tuned(file) == 2
    assert scaled._config_for({"z": z, "x": x}) == found.config
    assert doubled.load_tuned(file) == 1
    scaled._tuned.clear()
    file.write_text(file.read_text().replace(found.device, "another device"))
    assert scaled.load_tuned(file) == 0
    with pytest.raises(ArgumentError, match=r"kernel counted: .*tuned.json has no results for it"):
        counted.load_tuned(file)
    other = file.read_text().replace(found.device, "another device")
    stale = json.loads(other)
    stale["records"] += [{**stale["records"][0], "source": "0", "shapes": "()"}]
    file.write_text(json.dumps(stale))
    assert scaled.load_tuned(file) == 0  # what another version left does not hide the results of this one
    file.write_text(other.replace(found.source, "0"))
    with pytest.raises(ArgumentError, match="of another source; tune it again"):
        scaled.load_tuned(file)
    for damaged in ("[]", "[" * 200_000, json.dumps({tuning._FORMAT: 1, "records": [{"kernel": "scaled"}]})):
        file.write_text(damaged)
        with pytest.raises(ArgumentError, match="has no results of tuning"):
            scaled.load_tuned(file)
        with pytest.raises(ArgumentError, match="has no results of tuning"):
            found.save(file)
    for name, damage in (
        ("shapes", "-" * 100_000 + "1"),
        ("shapes", "(" * 400),
        ("shapes", "[1]"),
        ("config", 1),
        ("config", {"dtype": {"dtype": "f31"}}),
        ("config", {"shape": {"tuple": [{"dtype": "f31"}]}}),
    ):
        (record,) = json.loads(other)["records"][:1]
        record |= {"device": found.device, "source": found.source, name: damage}
        file.write_text(json.dumps({tuning._FORMAT: 1, "records": [record]}))
        with pytest.raises(ArgumentError, match=r"the results in .*tuned\.json are damaged; tune it again"):
            scaled.load_tuned(file)


def test_types_and_tuples_of_a_candidate_are_kept() -> None:
    config = {"dtype": f32, "shape": (1, (2, f64)), "name": "a", "warps": 4}
    assert tuning._decoded(json.loads(json.dumps(tuning._encoded(config)))) == config


def test_a_thread_kernel_is_tuned_over_blocks() -> None:
    x, out = h2d(np.arange(1000, dtype=np.float32)).sync(), zeros(1000).sync()
    first = doubled(x, out)
    first.consume()
    assert first._config.block == (64, 1, 1), "the first candidate, until then"
    found = doubled.tune(None, x, out=out)
    assert all(isinstance(result, float) for _, result in found.measured)
    assert d2h(out).sync().sum() == 0, "tuning ran on copies"
    assert doubled.tune(None, x, out).from_disk
    launch = doubled(x, out)
    assert launch._config.block == (found.config["block"], 1, 1)
    np.testing.assert_array_equal(d2h(launch.last()).sync(), np.arange(1000) * 2)
    assert trio.run(doubled.tune_async, None, x, out).from_disk


@pytest.mark.nightly
def test_blocks_that_hang_or_give_another_result_are_excluded() -> None:
    out = zeros(500).sync()
    found = counted.tune([{"block": 64}, {"block": 32}, {"block": 96}, {"block": 128}], out)
    good, hung, wrong, last = (result for _, result in found.measured)
    assert isinstance(good, float)
    assert isinstance(last, float)
    assert hung == "took longer than 6 s"
    assert wrong == "wrong: its result differs from that of the first candidate"
    np.testing.assert_array_equal(d2h(counted(out).first()).sync(), np.ones(500))
    np.testing.assert_array_equal(d2h(counted[5, 96](out).first()).sync()[:480], np.full(480, 96))


@pytest.mark.parametrize(
    ("configs", "error", "problem"),
    [
        ([{"warps": 4}], ArgumentError, "a candidate has block, items_per_thread, max_registers, not 'warps'"),
        ([{"block": 4096}], oxide.OxideError, "4096"),
        ([{"max_registers": -1}], oxide.OxideError, "max_registers"),
        ([], ArgumentError, r"tune needs candidates, as in k.tune\(\[\{'block': 128\}\]"),
    ],
)
def test_wrong_candidates_of_a_thread_kernel(configs: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        counted.tune(configs, zeros(9).sync())
