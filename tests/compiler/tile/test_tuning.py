"""``k.tune``: candidates run in a child process; those that hang, fail or are wrong are excluded; results are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import ArgumentError, d2h, f32, h2d, tile, zeros
from oxide.runtime.launching import tuning
from tests.compiler.tile.slow_kernels import scaled


@pytest.fixture(autouse=True)
def forgotten(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OXIDE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "_SLOWEST", 6.0)
    yield
    scaled._tuned.clear()


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
