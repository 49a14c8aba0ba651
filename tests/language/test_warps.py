"""``oxide.warp`` on either device, against NumPy; and what becomes of lanes that do not come."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oxide
from oxide import (
    BarrierError,
    CompileError,
    DisjointSlice,
    LaunchConfig,
    SharedArray,
    Slice,
    d2h,
    f32,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    u32,
    warp,
    zeros,
)
from tests.compiler.assembler import assembled, needs_ptxas

RANDOM = np.random.default_rng(3)
DTYPES = ["i32", "u32", "i64", "u64", "f32", "f64"]
THREADS = [1, 31, 32, 33, 64, 100, 1024]


def numbers(dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
    if dtype.kind == "f":
        return RANDOM.standard_normal(count).astype(dtype)
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max, count, dtype, endpoint=True)


def warps_of(x: np.ndarray[Any, Any], threads: int) -> list[np.ndarray[Any, Any]]:
    return [block[start : start + 32] for block in x.reshape(-1, threads) for start in range(0, threads, 32)]


def run(kernel: Any, threads: int, *args: Any, blocks: int = 2, dtype: Any = np.float32) -> Any:
    output = zeros(blocks * threads, dtype)
    return kernel[LaunchConfig(blocks, threads)](*args, output).last().and_then(d2h).sync()


@pytest.mark.slow
@pytest.mark.parametrize("name", DTYPES)
def test_shuffles_move_values_between_lanes(name: str) -> None:
    scalar = getattr(oxide, name)

    @kernel
    def moved(how: i32, by: i32, x: Slice[scalar], y: DisjointSlice[scalar]) -> None:  # type: ignore[valid-type]
        index = thread.index_1d()
        value = x[index.get()]
        if how == 0:
            value = warp.shuffle(value, by)
        elif how == 1:
            value = warp.shuffle_up(value, by)
        elif how == 2:
            value = warp.shuffle_down(value, by)
        else:
            value = warp.shuffle_xor(value, by)
        element = y.get_mut(index)
        if element is not None:
            element.value = value

    lanes = np.arange(32)
    for by in (0, 1, 5, 16, 31):
        sources = [
            np.full(32, by),
            np.where(lanes >= by, lanes - by, lanes),
            np.where(lanes + by < 32, lanes + by, lanes),
            lanes ^ by,
        ]
        for how, source in enumerate(sources):
            x = numbers(scalar.dtype, 192)
            expected = np.concatenate([part[source] for part in warps_of(x, 96)])
            np.testing.assert_array_equal(run(moved, 96, how, by, h2d(x), dtype=scalar.dtype), expected)


@pytest.mark.parametrize("threads", THREADS)
def test_votes_see_the_lanes_that_there_are(threads: int) -> None:
    @kernel
    def votes(x: Slice[f32], ballots: DisjointSlice[u32], alls: DisjointSlice[i32], anys: DisjointSlice[i32]) -> None:
        index = thread.index_1d()
        condition = x[index.get()] > f32(0)
        lanes = warp.ballot(condition)
        every = warp.all(condition)
        some = warp.any(condition)
        a, b, c = ballots.get_mut(index), alls.get_mut(index), anys.get_mut(index)
        if a is not None and b is not None and c is not None:
            a.value = lanes
            b.value = every
            c.value = some

    for x in (RANDOM.standard_normal(2 * threads).astype(np.float32), np.ones(2 * threads, np.float32)):
        x[: min(threads, 32)] -= 9
        outputs = zeros(2 * threads, np.uint32), zeros(2 * threads, np.int32), zeros(2 * threads, np.int32)
        ballots, alls, anys = (d2h(box).sync() for box in votes[2, threads](h2d(x), *outputs).sync()[1:])
        parts = [part > 0 for part in warps_of(x, threads)]
        expected = [(sum(1 << i for i, true in enumerate(part) if true), part.all(), part.any()) for part in parts]
        for got, place in ((ballots, 0), (alls, 1), (anys, 2)):
            each = [np.full(len(part), int(values[place])) for part, values in zip(parts, expected, strict=True)]
            np.testing.assert_array_equal(got, np.concatenate(each))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("threads", [1, 32, 50, 256])
def test_matches_find_equal_values(name: str, threads: int) -> None:
    scalar = getattr(oxide, name)

    @kernel
    def matches(x: Slice[scalar], some: DisjointSlice[u32], alike: DisjointSlice[u32]) -> None:  # type: ignore[valid-type]
        index = thread.index_1d()
        value = x[index.get()]
        one = warp.match_any(value)
        every = warp.match_all(value)
        a, b = some.get_mut(index), alike.get_mut(index)
        if a is not None and b is not None:
            a.value = one
            b.value = every

    x = RANDOM.integers(0, 4, 2 * threads).astype(scalar.dtype)
    x[: min(32, threads)] = 3
    outputs = zeros(2 * threads, np.uint32), zeros(2 * threads, np.uint32)
    some, alike = (d2h(box).sync() for box in matches[2, threads](h2d(x), *outputs).sync()[1:])
    expected, expected_all = [], []
    for part in warps_of(x, threads):
        full = (1 << len(part)) - 1
        expected += [sum(1 << i for i, other in enumerate(part) if other == value) for value in part]
        expected_all += [full if (part == part[0]).all() else 0] * len(part)
    np.testing.assert_array_equal(some, expected)
    # CUDA's match_all answers with the mask itself, of which only the lanes that exist are compared.
    np.testing.assert_array_equal(alike != 0, np.array(expected_all) != 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("operation", ["add", "min", "max", "and", "or", "xor"])
def test_reductions_over_the_warp(name: str, operation: str) -> None:
    scalar = getattr(oxide, name)
    function = getattr(warp, f"reduce_{operation}")

    @kernel
    def reduced(mask: u32, x: Slice[scalar], y: DisjointSlice[scalar]) -> None:  # type: ignore[valid-type]
        index = thread.index_1d()
        value = x[index.get()]
        result = value
        if mask >> u32(warp.lane_id()) & 1 == 1:
            result = function(value, mask)
        element = y.get_mut(index)
        if element is not None:
            element.value = result

    if scalar.dtype.kind == "f" and operation in ("and", "or", "xor"):
        with pytest.raises(CompileError, match=f"reduce_{operation} takes a 32- or 64-bit integer, not {name}"):
            reduced.specialize()
        return
    combine = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[operation]
    for mask in (0xFFFFFFFF, 0x0000FFFF, 0x80000001, 0x12345678, 1):
        x = numbers(scalar.dtype, 128)
        lanes = np.array([bool(mask >> i & 1) for i in range(32)])
        expected = x.copy().reshape(-1, 32)
        for row in expected:
            wide = row.astype(np.float64) if scalar.dtype.kind == "f" else row
            row[lanes] = combine.reduce(wide[lanes], dtype=wide.dtype)
        got = run(reduced, 64, mask, h2d(x), dtype=scalar.dtype)
        np.testing.assert_allclose(got, expected.reshape(-1), rtol=1e-5, atol=1e-6)


def test_lanes_and_warps_are_numbered_with_x_fastest() -> None:
    @kernel
    def numbered(lanes: DisjointSlice[i64], warps: DisjointSlice[i64]) -> None:
        index = thread.index_2d(24)
        if index is not None:
            lane, number = lanes.get_mut(index), warps.get_mut(index)
            if lane is not None and number is not None:
                lane.value = warp.lane_id()
                number.value = warp.warp_id()

    lanes, warps = (d2h(box).sync() for box in numbered[1, (24, 10)](zeros(240, np.int64), zeros(240, np.int64)).sync())
    np.testing.assert_array_equal(lanes, np.arange(240) % 32)
    np.testing.assert_array_equal(warps, np.arange(240) // 32)
    assert not numbered.specialize().portable.suspends


def test_halves_of_a_warp_go_different_ways_under_their_own_masks() -> None:
    @kernel
    def halves(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        value = x[index.get()]
        if warp.lane_id() < 16:
            total = warp.reduce_add(value, 0x0000FFFF)
            warp.sync(0x0000FFFF)
            total = total + warp.shuffle(value, 3, 0x0000FFFF)
        else:
            total = -warp.reduce_add(value, 0xFFFF0000)
        thread.sync_threads()
        element = y.get_mut(index)
        if element is not None:
            element.value = total

    x = RANDOM.random(128).astype(np.float32)
    low, high = x.reshape(-1, 2, 16)[:, 0], x.reshape(-1, 2, 16)[:, 1]
    expected = np.stack([low.sum(1) + low[:, 3], -high.sum(1)], 1)
    np.testing.assert_allclose(run(halves, 64, h2d(x)), np.repeat(expected.reshape(-1), 16), rtol=1e-5)


def test_the_lanes_that_are_here_count_themselves() -> None:
    @kernel
    def here(y: DisjointSlice[i32]) -> None:
        index = thread.index_1d()
        total = i32(0)
        if warp.lane_id() < 5:
            mask = warp.active_mask()
            total = warp.reduce_add(i32(1), mask)
        element = y.get_mut(index)
        if element is not None:
            element.value = total

    counts = run(here, 64, dtype=np.int32).reshape(-1, 32)
    assert (counts[:, :5] == 5).all()
    assert not counts[:, 5:].any()


def test_lanes_that_have_returned_are_not_waited_for() -> None:
    @kernel
    def some_return(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        if thread.thread_idx.x >= 40:
            return
        total = warp.reduce_max(x[index.get()], 0x000000FF if thread.thread_idx.x >= 32 else 0xFFFFFFFF)
        element = y.get_mut(index)
        if element is not None:
            element.value = total

    x = RANDOM.random(64).astype(np.float32)
    got = run(some_return, 64, h2d(x), blocks=1)
    np.testing.assert_array_equal(got, [x[:32].max()] * 32 + [x[32:40].max()] * 8 + [0] * 24)


@kernel
def waits_in_vain(y: DisjointSlice[f32]) -> None:
    if warp.lane_id() == 3:
        warp.sync()
    thread.sync_threads()


@kernel
def masks_differ(y: DisjointSlice[f32]) -> None:
    if warp.lane_id() == 0:
        warp.sync(0x3)
    elif warp.lane_id() == 1:
        warp.sync(0x7)


@pytest.mark.parametrize(("kernel", "lines"), [(waits_in_vain, (3, 4)), (masks_differ, (3, 5))])
def test_lanes_that_can_never_meet_are_a_fault_that_names_both_places(kernel: Any, lines: Any, device: str) -> None:
    if device == "cuda":
        pytest.skip("a GPU does not tell")
    first = inspect.getsourcelines(kernel.function)[1]
    with pytest.raises(BarrierError, match="the same call with the same mask") as caught:
        kernel[2, 64](zeros(1)).sync()
    assert caught.value.places == tuple((__file__, first + line) for line in lines)


@kernel
def elected(y: DisjointSlice[u32]) -> None:
    votes = warp.ballot(warp.elect())
    if warp.lane_id() >= 8:
        votes = votes | (warp.ballot(warp.elect(0xFFFFFF00), 0xFFFFFF00) << u32(1))
    out = y.get_mut(thread.index_1d())
    if out is not None:
        out.value = votes


@pytest.mark.parametrize("threads", [32, 64, 96])
def test_one_lane_is_elected(threads: int) -> None:
    votes = elected[5, threads](zeros(5 * threads, np.uint32)).last().and_then(d2h).sync().reshape(-1, 32)
    assert (votes[:, :8] == votes[:, :1]).all()
    assert (votes[:, 8:] == votes[:, 8:9]).all()
    assert all(int(each).bit_count() == 1 for each in votes[:, 0])
    assert all(int(each).bit_count() == 2 for each in votes[:, 8])
    assert "elect.sync" in elected.ptx(cc=(9, 0))
    assert "elect.sync" not in elected.ptx(cc=(8, 9))


@kernel
def warp_then_block(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """The sum of the block: shuffles within warps, shared memory between them."""
    sums = SharedArray(32, f32)
    index = thread.index_1d()
    total = warp.reduce_add(x[index.get()])
    if warp.lane_id() == 0:
        sums[warp.warp_id()] = total
    thread.sync_threads()
    block = f32(0)
    for number in range((thread.block_dim.x + 31) // 32):
        block += sums[number]
    element = y.get_mut(index)
    if element is not None:
        element.value = block


@pytest.mark.parametrize("threads", [1, 7, 32, 33, 97, 512, 1024])
def test_warps_and_barriers_together_sum_a_block(threads: int) -> None:
    x = RANDOM.random(3 * threads).astype(np.float32)
    expected = np.repeat(x.astype(np.float64).reshape(3, threads).sum(1), threads)
    np.testing.assert_allclose(run(warp_then_block, threads, h2d(x), blocks=3), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("a = warp.shuffle(True, 1)", "takes a 32- or 64-bit integer or float, not bool_"),
        ("a = warp.shuffle(x)", "takes 2 arguments and a mask"),
        ("a = warp.shuffle(x, 1.5)", "takes an integer for the lane, not f64"),
        ("a = warp.ballot(x > 0, 0.5)", "the mask of warp.ballot is an integer"),
        ("a = warp.all(x)", "takes a condition, not f32"),
        ("warp.lane_id(3)", "warp.lane_id takes no argument"),
    ],
)
def test_a_wrong_warp_call_is_a_compile_error(body: str, message: str, tmp_path: Path) -> None:
    source = f"from oxide import *\n@kernel\ndef wrong(x: f32, y: DisjointSlice[f32]):\n    {body}\n"
    path = tmp_path / "wrong.py"
    path.write_text(source)
    names: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), names)
    with pytest.raises(CompileError, match=message):
        names["wrong"].specialize()


@kernel
def every_instruction(x: Slice[i32], y: DisjointSlice[i32]) -> None:
    index = thread.index_1d()
    value = x[index.get()]
    total = warp.reduce_add(value) + warp.shuffle_xor(value, 1) + warp.shuffle_up(i64(value), 1)
    total += warp.match_any(value) + warp.match_all(value) + warp.ballot(value > 3) + warp.active_mask()
    total += thread.sync_threads_count(value > 1)
    warp.sync()
    if warp.all(value > 0) or warp.any(value < 0) or thread.sync_threads_or(value > 5):
        total += 1
    element = y.get_mut(index)
    if element is not None:
        element.value = total


def test_each_operation_is_the_hardwares_instruction() -> None:
    ptx = every_instruction.ptx((9, 0))
    for instruction in (
        "redux.sync.add.s32",
        "shfl.sync.bfly.b32",
        "shfl.sync.up.b32",
        "match.any.sync.b32",
        "match.all.sync.b32",
        "vote.sync.ballot.b32",
        "vote.sync.all.pred",
        "vote.sync.any.pred",
        "activemask.b32",
        "bar.warp.sync",
        "bar.red.popc.u32",
        "bar.red.or.pred",
    ):
        assert instruction in ptx.replace("barrier.cta.red.popc.aligned", "bar.red.popc").replace(
            "barrier.cta.red.or.pred.aligned", "bar.red.or.pred"
        ), instruction
    assert ".extern" not in ptx
    before = every_instruction.ptx((7, 5))
    assert "redux" not in before
    assert before.count("shfl.sync.bfly") == 6


@needs_ptxas
@pytest.mark.parametrize("cc", [(7, 5), (8, 0), (9, 0)])
def test_ptxas_accepts_every_instruction(cc: tuple[int, int]) -> None:
    for each in (every_instruction, warp_then_block):
        assembled(each.ptx(cc), cc)
