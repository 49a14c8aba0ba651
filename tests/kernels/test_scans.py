"""``inclusive_scan`` and ``exclusive_scan`` against NumPy: all dtypes, tiles' edges, blocks that wait for others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from oxide import (
    ArgumentError,
    AtomicSlice,
    CompileError,
    DisjointSlice,
    SanitizerError,
    d2h,
    empty,
    h2d,
    kernel,
    thread,
    u32,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.testing import seeded_driver, use_driver
from oxide_kernels import exclusive_scan, inclusive_scan, ops, scans

TILE, WIDE_TILE = (4 * scans._VECTORS[itemsize] * scans._BLOCK for itemsize in (4, 8))
SIZES = (0, 1, 31, 32, 33, 1025, TILE - 1, TILE, TILE + 1, WIDE_TILE, WIDE_TILE + 1, 33 * TILE + 7, 1_000_003)
INTEGERS = (np.int32, np.uint64)
ERRORS = {np.float16: 1e-3, np.float32: 2e-6, np.float64: 1e-13}


def numbers(size: int, dtype: Any) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(size)
    if np.dtype(dtype).kind == "f":
        return random.standard_normal(size).astype(dtype)
    return random.integers(0, 2**63, size, dtype=np.uint64).astype(dtype)  # of which the sums wrap


def assert_sums(found: Any, expected: Any) -> None:
    if found.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected)
        return
    error, scale = np.linalg.norm(found - expected), np.linalg.norm(expected)
    assert error <= ERRORS[found.dtype.type] * scale or error == 0, f"off by {error / (scale or 1):.2e} of the norm"


def both_sums(x: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    exact = x.astype(np.float64) if x.dtype.kind == "f" else x
    through = exact.cumsum(dtype=exact.dtype)
    return through, through - exact


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*ERRORS, *INTEGERS], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("size", SIZES)
def test_running_sums_of_all_dtypes(size: int, dtype: Any) -> None:
    x = numbers(size, dtype)
    through, before = both_sums(x)
    box = h2d(x).sync()
    assert_sums(d2h(ops.inclusive_scan(box)).sync(), through)
    assert_sums(d2h(exclusive_scan(box, box).last()).sync(), before)  # in place


@pytest.mark.nightly
def test_running_sums_of_bfloat16s_are_made_in_single_precision() -> None:
    x = np.full(1000, 0x3F81, np.uint16)  # 1.0078125, so that a sum in bf16 would stop at 256
    found = d2h(ops.inclusive_scan(h2d(x))).sync()
    wide = (found.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(wide, 1.0078125 * np.arange(1, 1001), rtol=2**-8)


def test_running_sums_of_a_piece_that_begins_in_the_middle_of_a_vector() -> None:
    x = numbers(3 * TILE + 1, np.float32)
    box = h2d(x).sync()
    piece = box.split(len(x) // 2)[1]
    result = zeros(len(x)).sync().split(len(x) // 2)[1]
    expected = x[len(x) // 2 :][: piece.size].cumsum(dtype=np.float64)
    assert_sums(d2h(inclusive_scan(piece, result).last()).sync(), expected)


def test_an_operation_of_running_sums_runs_again_and_in_a_graph() -> None:
    x = numbers(3 * TILE, np.int64)
    operation = d2h(ops.inclusive_scan(h2d(x)))
    for _ in range(2):
        np.testing.assert_array_equal(operation.sync(), x.cumsum())
    with ops.inclusive_scan(h2d(x)).graph() as graph:
        for _ in range(2):
            graph.launch().sync()
        np.testing.assert_array_equal(d2h(graph.take_output()).sync(), x.cumsum())


def test_other_dtypes_are_refused_with_those_that_there_are() -> None:
    names = "f16, bf16, f32, f64, i32, u32, i64, u64"
    with pytest.raises(ArgumentError, match=rf"input is Slice\[T\], and T is one of {names}; the argument is i8"):
        ops.inclusive_scan(zeros(4, np.int8)).sync()
    with pytest.raises(ArgumentError, match="input has f32 and output has f64"):
        inclusive_scan(zeros(4).sync(), zeros(4, np.float64).sync()).sync()
    with pytest.raises(ValueError, match=r"inclusive_scan: output has shape \(4,\), and input \(5,\)"):
        inclusive_scan(zeros(5), zeros(4)).sync()


@pytest.fixture
def on_the_cpu(device: str) -> None:
    if device != "cpu":
        pytest.skip("the schedule is the CPU device's")


@pytest.mark.slow
@pytest.mark.usefixtures("on_the_cpu")
@pytest.mark.parametrize("seed", range(4))
def test_blocks_find_their_predecessors_in_any_order(seed: int) -> None:
    x = numbers(70 * TILE + 3, np.int32)
    with use_driver(seeded_driver(seed)) as driver:
        np.testing.assert_array_equal(d2h(ops.inclusive_scan(h2d(x))).sync(), x.cumsum(dtype=np.int32))
    driver.close()


@pytest.fixture
def one_processor() -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


@pytest.mark.usefixtures("on_the_cpu", "one_processor")
def test_blocks_that_wait_leave_the_processor_to_those_that_they_wait_for() -> None:
    x = numbers(2_000_003, np.int64)
    with use_driver(CpuDriver(threads=8)) as driver:
        operation = inclusive_scan(h2d(x).sync(), zeros(len(x), np.int64).sync())
        for _ in range(3):
            _, result = operation.sync()
        np.testing.assert_array_equal(d2h(result).sync(), x.cumsum())
    driver.close()


@kernel
def pass_on(turns: AtomicSlice[u32], order: DisjointSlice[u32]) -> None:
    number = turns.fetch_add(0, 1)
    while turns.load(1) != number:
        thread.nanosleep(100)
    order.unchecked_mut[number] = thread.block_idx.x
    turns.store(1, number + 1)


def test_a_block_waits_for_those_that_drew_their_numbers_before() -> None:
    _, order = pass_on[300, 1](zeros(2, np.uint32), zeros(300, np.uint32)).sync()
    assert sorted(d2h(order).sync().tolist()) == list(range(300))


def test_nanosleep_takes_an_integer() -> None:
    @kernel
    def rest(x: DisjointSlice[u32]) -> None:
        thread.nanosleep(0.5)  # type: ignore[arg-type]

    with pytest.raises(CompileError, match=r"thread\.nanosleep takes an integer, the nanoseconds"):
        rest.ptx()
    with pytest.raises(TypeError, match="only inside a @kernel"):
        thread.nanosleep(5)
    assert "nanosleep.u32" in pass_on.ptx(cc=(7, 0))
    assert "nanosleep" not in pass_on.ptx(cc=(6, 0))


@pytest.fixture
def sanitized(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OXIDE_SANITIZE", "memory,race")
    scans._single_pass.cache_clear()
    yield
    scans._single_pass.cache_clear()


@pytest.mark.nightly
@pytest.mark.usefixtures("on_the_cpu", "sanitized")
def test_scans_have_no_race_and_end_where_the_input_was_never_written() -> None:
    x = numbers(3 * TILE + 5, np.int32)
    with use_driver(CpuDriver()) as driver:  # whose memory nobody wrote before
        np.testing.assert_array_equal(d2h(ops.inclusive_scan(h2d(x))).sync(), x.cumsum(dtype=np.int32))
        with pytest.raises(SanitizerError) as caught:
            inclusive_scan(empty(50 * TILE), zeros(50 * TILE)).sync()
        assert caught.value.kind == "uninitialized"
    driver.close()
