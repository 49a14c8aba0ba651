"""Schedules drawn from a seed: order-dependent programs fail under some seed, and always under that one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import (
    AtomicSlice,
    DisjointSlice,
    SharedArray,
    Slice,
    arange,
    d2h,
    f32,
    h2d,
    i32,
    kernel,
    thread,
    u32,
    warp,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.errors import DeviceError
from oxide.host.messages import written
from oxide.runtime.devices.runtime import current_runtime
from oxide.testing import failing_seed, seeded_driver, step_driver, use_driver
from oxide_kernels import block_inclusive_sum


@pytest.fixture(autouse=True)
def only_the_cpu_device(device: str) -> None:
    if device != "cpu":
        pytest.skip("seeds are the CPU device's")


@kernel
def take_numbers(counter: AtomicSlice[u32], taken: DisjointSlice[u32]) -> None:
    """Each thread's place in the order in which they ran."""
    number = counter.fetch_add(0, 1)
    out = taken.get_mut(thread.index_1d())
    if out is not None:
        out.value = number


@kernel
def take_numbers_after_a_barrier(counter: AtomicSlice[u32], taken: DisjointSlice[u32]) -> None:
    thread.sync_threads()
    number = counter.fetch_add(0, 1)
    out = taken.get_mut(thread.index_1d())
    if out is not None:
        out.value = number


@kernel
def take_numbers_after_the_grid(counter: AtomicSlice[u32], taken: DisjointSlice[u32]) -> None:
    thread.sync_grid()
    number = counter.fetch_add(0, 1)
    out = taken.get_mut(thread.index_1d())
    if out is not None:
        out.value = number


def order_of(kernel: oxide.Kernel, grid: int, block: int) -> list[int]:
    *_, taken = kernel[grid, block](zeros(1, np.uint32), zeros(grid * block, np.uint32)).sync()
    return [int(number) for number in d2h(taken).sync()]


def under(seed: int, program: Callable[[], list[int]]) -> list[int]:
    driver = seeded_driver(seed)
    try:
        with use_driver(driver):
            return program()
    finally:
        driver.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel", [take_numbers, take_numbers_after_a_barrier, take_numbers_after_the_grid], ids=lambda kernel: kernel.name
)
def test_the_same_seed_gives_the_same_order_and_others_give_others(kernel: oxide.Kernel) -> None:
    def program() -> list[int]:
        return order_of(kernel, 5, 100)

    orders = [under(seed, program) for seed in (0, 1, 2)]
    assert orders == [under(seed, program) for seed in (0, 1, 2)]
    assert len({tuple(order) for order in orders}) == 3
    for order in orders:
        assert sorted(order) == list(range(500))
        assert order != sorted(order)


def test_blocks_warps_and_threads_of_a_warp_all_change_places() -> None:
    order = np.array(under(3, lambda: order_of(take_numbers_after_a_barrier, 8, 128))).reshape(8, 4, 32)
    blocks = order.min(axis=(1, 2))
    assert list(blocks) != sorted(blocks)
    assert all(np.ptp(block) == 127 for block in order)  # one block after the other
    warps = order.min(axis=2)
    assert any(list(row) != sorted(row) for row in warps)
    assert all(np.ptp(lanes) == 31 for block in order for lanes in block)  # one warp after the other, up to a barrier
    assert any(list(lanes) != sorted(lanes) for block in order for lanes in block)


def test_without_a_seed_everything_runs_in_order() -> None:
    with use_driver(CpuDriver(threads=1)) as driver:
        assert order_of(take_numbers_after_a_barrier, 3, 70) == list(range(210))
    driver.close()


@kernel
def last_one_wins(x: Slice[i32], winner: AtomicSlice[i32]) -> None:
    """Order-dependent: whoever runs last leaves its number."""
    i = thread.index_1d()
    winner.store(0, x[i.get()])


def expects_the_last_thread() -> None:
    _, winner = last_one_wins[2, 64](arange(128, dtype=i32), zeros(1, np.int32)).sync()
    assert d2h(winner).sync()[0] == 127


def test_an_order_dependent_program_fails_under_some_seed_and_always_under_that_one() -> None:
    found = failing_seed(expects_the_last_thread)
    assert found is not None
    seed, error = found
    assert isinstance(error, AssertionError)
    assert f"OXIDE_SEED={seed}" in "\n".join(error.__notes__)
    for _ in range(3):
        again = failing_seed(expects_the_last_thread, first=seed, tries=1)
        assert again is not None
        assert again[0] == seed


@kernel
def reads_its_neighbour_too_early(y: DisjointSlice[f32]) -> None:
    tile = SharedArray(64, f32)
    i = thread.index_1d()
    tile[i.get()] = f32(0)
    thread.sync_threads()
    tile[i.get()] = f32(1)
    if warp.lane_id() != 0:
        out = y.get_mut(i)
        if out is not None:
            out.value = tile[i.get() - 1]


def test_a_missing_barrier_that_the_usual_order_hides_is_found() -> None:
    def program() -> None:
        y = d2h(reads_its_neighbour_too_early[1, 64](zeros(64)).last()).sync()
        assert y.sum() == 62

    with use_driver(CpuDriver()) as driver:
        program()
    driver.close()
    assert failing_seed(program) is not None


def test_the_sanitizer_finds_the_same_race_under_every_seed() -> None:
    sanitized = oxide.kernel(sanitize="race")(reads_its_neighbour_too_early.function)

    def program() -> None:
        sanitized[1, 64](zeros(64)).sync()

    for seed in range(3):
        found = failing_seed(program, first=seed, tries=1)
        assert found is not None
        assert isinstance(found[1], oxide.SanitizerError)


def test_kernels_that_are_right_are_right_under_every_seed() -> None:
    @kernel
    def scan(x: Slice[f32], y: DisjointSlice[f32]) -> None:
        i = thread.index_1d()
        total = block_inclusive_sum(x[i.get()], f32)
        out = y.get_mut(i)
        if out is not None:
            out.value = total

    def program() -> None:
        _, y = scan[3, 100](h2d(np.ones(300, np.float32)), zeros(300)).sync()
        np.testing.assert_array_equal(d2h(y).sync(), np.tile(np.arange(1, 101), 3))

    assert failing_seed(program, tries=20) is None


def test_streams_make_progress_in_an_order_of_the_seeds() -> None:
    def program() -> list[int]:
        driver = current_runtime().driver
        order: list[int] = []
        streams = [driver.create_stream(0) for _ in range(5)]
        for number, stream in enumerate(streams):
            driver.launch_host_function(lambda number=number: order.append(number), stream)
        for stream in streams:
            driver.synchronize_stream(stream)
        return order

    orders = [under(seed, program) for seed in range(8)]
    assert orders == [under(seed, program) for seed in range(8)]
    assert len({tuple(order) for order in orders}) > 4


def test_awaiting_drives_the_work_to_its_end() -> None:
    async def main() -> list[int]:
        *_, taken = await take_numbers[2, 32](zeros(1, np.uint32), zeros(64, np.uint32))
        return [int(number) for number in await d2h(taken)]

    first = under(5, lambda: trio.run(main))
    assert sorted(first) == list(range(64))
    assert under(5, lambda: trio.run(main)) == first


@pytest.mark.parametrize("completion", ["poll", "callback"])
def test_every_way_to_learn_of_the_end_works(completion: str) -> None:
    async def main() -> float:
        return float((await d2h(zeros(3))).sum())

    with use_driver(seeded_driver(1), completion=completion) as driver:  # type: ignore[arg-type]
        assert trio.run(main) == 0
    driver.close()


def test_the_environment_sets_the_seed() -> None:
    program = (
        "import numpy as np\nfrom tests.driver.cpu.test_seeds import order_of, take_numbers\n"
        "print(order_of(take_numbers, 2, 40))"
    )
    environment = {**os.environ, "OXIDE_DEVICE": "cpu", "OXIDE_SEED": "11"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == str(under(11, lambda: order_of(take_numbers, 2, 40)))


def test_a_seed_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_SEED", "lucky")
    with pytest.raises(DeviceError, match=r"OXIDE_SEED='lucky'"):
        CpuDriver()


@pytest.mark.parametrize(
    ("seed", "kind"),
    [("x", TypeError), (1.5, TypeError), (-1, ValueError), (-(10**5000), ValueError)],
    ids=["word", "fraction", "negative", "long"],
)
def test_a_seed_that_the_environment_could_not_hold_is_refused(seed: Any, kind: type[Exception]) -> None:
    for driver in (seeded_driver, lambda seed: step_driver(seed=seed)):
        with pytest.raises(kind, match=rf"seed={written(seed)}: a whole number of 0 or more"):
            driver(seed)
