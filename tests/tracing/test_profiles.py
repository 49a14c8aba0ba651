"""``oxide.profile``: counts, times and rates, as a table, as JSON and as HTML."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import oxide
from oxide.runtime.tracepoints import points
from oxide.testing import seeded_driver, use_driver
from oxide.tracing.events import Work
from oxide.tracing.profiles import Profile
from tests.tracing.programs import CONFIG, ONES, SIZE, add, concurrent_sums, sum_of
from tests.tracing.schema import read


@pytest.fixture(autouse=True)
def driver() -> Iterator[object]:
    with use_driver(seeded_driver(1)) as stepped:
        yield stepped


def work(duration: int, nbytes: int | None = 100, name: str = "add", state: str = "") -> Work:
    return Work("kernel", name, "cpu:0", 1, 0, 1000, 1000 + duration, nbytes, {}, None, state, ())


def test_kernels_and_copies_are_counted_with_their_bytes() -> None:
    with oxide.profile(flops={"add": SIZE}) as profile:
        trio.run(concurrent_sums, 5)
    rows = {row.name: row for row in profile.table()}
    assert rows["add"].count == 5
    assert rows["add"].kind == "kernel"
    assert rows["add"].bytes == 5 * 3 * ONES.nbytes
    assert rows["copy to device"].count == 10
    assert rows["copy to device"].bytes == 10 * ONES.nbytes
    assert rows["copy to host"].bytes == 5 * ONES.nbytes
    assert rows["fill"].bytes == 5 * ONES.nbytes
    assert sum(row.share for row in rows.values()) == pytest.approx(1)
    for row in rows.values():
        assert row.device == "cpu:0"
        assert row.total_us == pytest.approx(row.mean_us * row.count)
        assert row.bytes is None or row.gb_per_s == pytest.approx(row.bytes / row.total_us / 1e3)
    assert rows["add"].gflop_per_s == pytest.approx(5 * SIZE / rows["add"].total_us / 1e3)
    assert rows["fill"].gflop_per_s is None
    assert "workers" in profile.device_times


def test_the_sums_are_those_of_the_trace(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    with oxide.trace(file), oxide.profile() as profile:
        trio.run(concurrent_sums, 5)
    slices = read(file).slices("kernel")
    (row,) = [row for row in profile.table() if row.name == "add"]
    assert row.total_us == pytest.approx(sum(each["dur"] for each in slices), abs=0.01)


def test_what_was_submitted_before_is_not_counted() -> None:
    with oxide.profile() as outer:
        sum_of(ONES, ONES).sync()
        with oxide.profile() as inner:
            sum_of(ONES, ONES).sync()
    assert [row.count for row in inner.table() if row.name == "add"] == [1]
    assert [row.count for row in outer.table() if row.name == "add"] == [2]
    assert points.tracer is None


def test_the_nodes_of_a_graph_are_rows() -> None:
    boxes = oxide.zip(oxide.h2d(ONES), oxide.h2d(ONES), oxide.zeros(SIZE)).sync()
    with oxide.profile() as profile, add[CONFIG](*boxes).graph() as graph:
        for _ in range(4):
            graph.launch().sync()
    rows = {(row.name, row.kind): row for row in profile.table()}
    assert rows["add", "node of a graph"].count == 4
    assert not [name for name, kind in rows if kind == "graph"]


def test_the_99th_percentile_and_the_order_of_rows() -> None:
    profile = Profile({})
    for duration in range(1, 101):
        profile.accept(work(duration * 1000))
    profile.accept(work(10_000_000, name="long"))
    first, second = profile.table()
    assert (first.name, second.name) == ("long", "add")
    assert second.p99_us == 100
    assert second.mean_us == 50.5


def test_very_many_runs_keep_a_bounded_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxide.tracing.profiles._SAMPLES", 100)
    profile = Profile({})
    for number in range(10_000):
        profile.accept(work(number))
    (row,) = profile.table()
    assert row.count == 10_000
    assert row.p99_us == pytest.approx(9.9, rel=0.05)
    assert len(next(iter(profile._sums.values())).durations) <= 101


def test_work_without_times_is_said_and_not_summed() -> None:
    profile = Profile({})
    profile.accept(work(5, state="not run"))
    profile.accept(work(5))
    profile.accept(work(5, nbytes=None))
    (row,) = profile.table()
    assert row.count == 2
    assert row.bytes is None
    assert "1 submissions were not run or not measured" in str(profile)


def test_the_table_is_aligned_text() -> None:
    profile = Profile({"add": 1000.0})
    profile.accept(work(2000, nbytes=4000))
    head, row = str(profile).splitlines()
    assert head.split("  ")[0] == "name"
    assert len(head) == len(row)
    for text in ("add", "kernel", "cpu:0", "0.002", "2.00", "2.00", "0.5", "100.0 %"):
        assert text in row
    assert str(Profile({})).startswith("name")


def test_json_and_html_have_the_rows() -> None:
    profile = Profile({})
    profile.accept(work(2000, name="a<b"))
    (row,) = json.loads(profile.to_json())["rows"]
    assert row["name"] == "a<b"
    assert row["total_us"] == 2.0
    assert "<td" in profile._repr_html_()
    assert "a&lt;b" in profile._repr_html_()


@pytest.mark.parametrize("count", [-1, float("nan"), float("inf")])
def test_flops_must_be_finite(count: float) -> None:
    with pytest.raises(ValueError, match=r"flops\['add'\] is"), oxide.profile(flops={"add": count}):
        pass


@pytest.mark.parametrize("flops", [{"add": "many"}, {1: 2}, {"add": True}, 5])
def test_flops_must_be_numbers_by_name(flops: object) -> None:
    with pytest.raises(TypeError, match="flops"), oxide.profile(flops=flops):  # type: ignore[arg-type]
        pass
    assert points.tracer is None


def test_a_profile_is_taken_although_its_block_fails() -> None:
    with pytest.raises(ZeroDivisionError), oxide.profile() as profile:
        sum_of(ONES, ONES).sync()
        raise ZeroDivisionError
    assert [row.count for row in profile.table() if row.name == "add"] == [1]
