"""Launching kernels: what comes back, what is refused before anything is submitted, and how faults arrive."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import trio

import oxide
from oxide import (
    DisjointSlice,
    LaunchConfig,
    LaunchError,
    Slice,
    d2h,
    f32,
    gather,
    h2d,
    i64,
    kernel,
    ones,
    thread,
    u32,
    value,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.testing import FailingDriver, RecordingDriver, step_driver, use_driver
from oxide_kernels import matvec_naive, relu, sgemm_naive


@kernel(block=64)
def axpy(alpha: f32, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value += alpha * x[i.get()]


@kernel(block=(8, 4))
def coordinates(width: u32, out: DisjointSlice[i64]) -> None:
    index = thread.index_2d(width)
    if index is not None:
        element = out.get_mut(index)
        if element is not None:
            element.value = thread.index_2d_row() * 1000 + thread.index_2d_col()


SIZES = [0, 1, 31, 33, 1000003]


@pytest.mark.parametrize("size", SIZES)
def test_a_launch_yields_its_arguments_in_order(size: int) -> None:
    rng = np.random.default_rng(size)
    x, y = rng.random(size, np.float32), rng.random(size, np.float32)
    box_x, box_y = h2d(x).sync(), h2d(y).sync()
    result = axpy(2.5, box_x, box_y).sync()
    assert result[0] == 2.5
    assert result[1] is box_x
    assert result[2] is box_y
    expected = 2.5 * x.astype(np.float64) + y
    np.testing.assert_allclose(d2h(box_y).sync(), expected, rtol=1e-6)


def test_arguments_may_be_operations_arcs_and_names() -> None:
    x = h2d(np.arange(10, dtype=np.float32)).arc().sync()
    launch = axpy(x=x.clone(), alpha=value(2), y=ones(10))
    _, owner, y = launch.sync()
    assert isinstance(owner, oxide.Arc)
    np.testing.assert_array_equal(d2h(y).sync(), 2 * np.arange(10) + 1)
    np.testing.assert_array_equal(launch.last().to_host().sync(), 2 * np.arange(10) + 1)


@pytest.mark.parametrize("brackets", [LaunchConfig(grid=4, block=32), (4, 32), ((4,), (32, 1, 1)), (4, 25)])
def test_brackets_take_a_config_or_grid_and_block(brackets: Any) -> None:
    y = axpy[brackets](1.0, ones(100), zeros(100)).last().to_host().sync()
    np.testing.assert_array_equal(y, np.ones(100))


def test_the_grid_of_a_block_of_two_axes_follows_from_an_output_of_two() -> None:
    for rows, columns in ((1, 1), (5, 9), (33, 31), (4, 8)):
        out = coordinates(columns, zeros((rows, columns), i64)).last().to_host().sync()
        np.testing.assert_array_equal(out, np.arange(rows)[:, None] * 1000 + np.arange(columns))
    with pytest.raises(LaunchError, match="no grid follows"):
        coordinates(3, zeros(9, i64))


def test_the_grid_follows_from_an_output_that_is_known_only_at_execution() -> None:
    y = axpy(3.0, ones(1000), value(0).and_then(lambda _: zeros(1000))).last().to_host().sync()
    np.testing.assert_array_equal(y, np.full(1000, 3.0))


def test_for_num_elems_covers_every_element() -> None:
    for n in (0, 1, 255, 256, 257, 1000003):
        config = LaunchConfig.for_num_elems(n)
        assert config.block == (256, 1, 1)
        assert (config.grid[0] - 1) * 256 < max(n, 1) <= config.grid[0] * 256
    assert LaunchConfig.for_num_elems(100, block=32).grid == (4, 1, 1)


def test_a_configuration_is_a_value() -> None:
    config = LaunchConfig((4, 2), 64, shared_mem_bytes=16)
    assert config == LaunchConfig((4, 2, 1), (64, 1, 1), 16) != LaunchConfig(4, 64)
    assert len({config, LaunchConfig((4, 2, 1), (64, 1, 1), 16)}) == 1
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
    assert config.__replace__(grid=3) == LaunchConfig(3, 64, 16)
    assert repr(config) == "LaunchConfig(grid=(4, 2, 1), block=(64, 1, 1), shared_mem_bytes=16)"
    with pytest.raises(AttributeError):
        config.grid = (1, 1, 1)  # type: ignore[misc]
    match config:
        case LaunchConfig(grid, block, shared):
            assert (grid, block, shared) == ((4, 2, 1), (64, 1, 1), 16)


@pytest.mark.parametrize("n", [1, 16, 33, 64])
def test_the_naive_gemm_equals_numpy(n: int) -> None:
    rng = np.random.default_rng(n)
    m, k = n + 3, n + 7
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    grid = (-(-n // 16), -(-m // 16))
    launch = sgemm_naive[grid, (16, 16)](m, n, k, 1.5, h2d(a), h2d(b), 0.5, h2d(c))
    result = launch.last().to_host().sync()
    expected = 1.5 * a.astype(np.float64) @ b.astype(np.float64) + 0.5 * c
    assert np.linalg.norm(result - expected) < 1e-6 * np.linalg.norm(expected)


def test_relu_in_place_and_matvec() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1000).astype(np.float32)
    box = h2d(x).sync()
    relu(box, box).sync()
    np.testing.assert_array_equal(d2h(box).sync(), np.maximum(x, 0))
    a, v = rng.standard_normal((33, 57)).astype(np.float32), rng.standard_normal(57).astype(np.float32)
    result = matvec_naive(33, 57, h2d(a), h2d(v), zeros(33)).last().to_host().sync()
    np.testing.assert_allclose(result, a.astype(np.float64) @ v, rtol=1e-5, atol=1e-5)


# Refused before anything is submitted, by its type and with a message that helps; the runtime stays usable.

BOX: Any = object()  # stands for a device box of ten float32
NUMBERS = np.ones(10)

REFUSED = [
    ("too few arguments", lambda b: axpy(1.0, b), (LaunchError, TypeError), r"axpy takes 3.*alpha, x, y.*got 2"),
    ("too many", lambda b: axpy(1.0, b, b, b), (LaunchError, TypeError), "got 4"),
    ("an unknown name", lambda b: axpy(1.0, b, z=b), (LaunchError, TypeError), "no parameter z"),
    ("a host array", lambda b: axpy(1.0, NUMBERS, b), (LaunchError, TypeError), r"axpy, parameter x.*NumPy.*h2d"),
    ("a list", lambda b: axpy(1.0, [1.0], b), (LaunchError, TypeError), "parameter x.*list"),
    ("none", lambda b: axpy(1.0, None, b), (LaunchError, TypeError), "parameter x.*None"),
    (
        "a tuple",
        lambda b: axpy(1.0, (b, b), b),
        (LaunchError, TypeError),
        "got a tuple, as a launch .*; pick one of them",
    ),
    ("float64 data", lambda b: axpy(1.0, h2d(NUMBERS), b), (LaunchError, TypeError), r"x.*float32.*float64.*astype"),
    ("a float64 output", lambda b: axpy(1.0, b, zeros(3, "f8")), (LaunchError, TypeError), "parameter y.*float64"),
    ("a box for a scalar", lambda b: axpy(b, b, b), (LaunchError, TypeError), "parameter alpha"),
    ("text for a scalar", lambda b: axpy("1", b, b), (LaunchError, TypeError), "parameter alpha"),
    ("an upload for a scalar", lambda b: axpy(zeros(1), b, b), (LaunchError, TypeError), "parameter alpha"),
    ("a negative unsigned", lambda b: coordinates[1, 1](-1, zeros(3, i64)), (LaunchError, TypeError), "width"),
    ("a float for an integer", lambda b: coordinates[1, 1](1.5, zeros(3, i64)), (LaunchError, TypeError), "width"),
    ("too wide an integer", lambda b: coordinates[1, 1](2**32, zeros(3, i64)), (LaunchError, TypeError), "width"),
    ("a tuple", lambda b: axpy(1.0, axpy(1.0, b, b), b), (LaunchError, TypeError), r"first\(\), last\(\)"),
    ("a block of 2048", lambda b: axpy[1, 2048](1.0, b, b), LaunchError, "from 1 to 1024"),
    ("a block of 64 × 32", lambda b: axpy[1, (64, 32)](1.0, b, b), LaunchError, "2048 threads.*at most 1024"),
    ("an empty grid", lambda b: axpy[0, 32](1.0, b, b), LaunchError, "grid"),
    ("a tall grid", lambda b: axpy[(1, 65536), 32](1.0, b, b), LaunchError, "65535"),
    ("four axes", lambda b: axpy[(1, 1, 1, 1), 32](1.0, b, b), LaunchError, "three"),
    ("a float grid", lambda b: axpy[1.5, 32](1.0, b, b), LaunchError, "integer"),
    ("a 2-D grid for index_1d", lambda b: axpy[(2, 2), 32](1.0, b, b), LaunchError, r"index_1d\(\).*y and z of 1"),
    ("a 2-D block for index_1d", lambda b: axpy[2, (8, 8)](1.0, b, b), LaunchError, r"index_1d\(\)"),
    ("a 3-D launch for index_2d", lambda b: coordinates[(1, 1, 2), 8](3, zeros(3, i64)), LaunchError, "z of 1"),
    ("brackets of one", lambda b: axpy[7](1.0, b, b), LaunchError, "brackets"),
    ("no grid at all", lambda b: sgemm_naive(1, 1, 1, 1.0, b, b, 0.0, b), LaunchError, r"sgemm_naive\[grid, block\]"),
]


@pytest.mark.parametrize(("build", "error", "message"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED])
def test_a_wrong_launch_is_refused_before_anything_is_submitted(build: Any, error: Any, message: str) -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        box = zeros(10).sync()
        driver.clear()
        with pytest.raises(error, match=message) as caught:
            build(box)
        assert isinstance(caught.value, oxide.OxideError)
        assert re.search("axpy|coordinates|sgemm_naive", str(caught.value))  # the kernel, always
        assert driver.submissions == []
        np.testing.assert_array_equal(axpy(1.0, ones(10), box).last().to_host().sync(), np.ones(10))


def test_what_only_execution_shows_is_refused_before_the_kernel_is_launched() -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        with pytest.raises(LaunchError, match=r"parameter x.*float64"):
            axpy(1.0, value(0).and_then(lambda _: zeros(3, "f8")), zeros(3)).sync()
        assert driver.count("launch") == 0


def test_a_box_of_another_device_is_refused() -> None:
    with use_driver(CpuDriver(2)):
        far = oxide.devices()[1].new_stream()
        box = zeros(3).sync_on(far)
        with pytest.raises(oxide.DeviceError, match=r"cpu:1.*cpu:0"):
            axpy(1.0, box, zeros(3)).sync()
        with pytest.raises(oxide.DeviceError, match=r"cpu:1.*cpu:0"):
            d2h(box).sync()
        np.testing.assert_array_equal(d2h(box).sync_on(far), np.zeros(3))


def test_an_unknown_device_number_is_refused_and_the_contexts_stay_as_they_were() -> None:
    before = oxide.devices()
    for arguments in ((7,), (-1,), (0, 9), (0, 0), ("0",)):
        with pytest.raises(oxide.DeviceError, match=r"device"):
            oxide.init_device_contexts(*arguments)
    assert oxide.devices() == before
    with pytest.raises(TypeError, match="next_stream"):
        oxide.init_device_contexts(policy="round robin")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="adaptive"):
        oxide.init_device_contexts(completion="magic")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"OXIDE_DEVICE": "gpu"}, "must be cuda or cpu"),
        ({"OXIDE_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": "-1"}, "OXIDE_DEVICE=cuda, but there is no CUDA device"),
        ({"OXIDE_DEVICE": "cpu", "OXIDE_CPU_DEVICES": "none"}, "OXIDE_CPU_DEVICES"),
        ({"OXIDE_DEVICE": "cpu", "OXIDE_COMPLETION": "fast"}, "OXIDE_COMPLETION='fast': one of adaptive, poll"),
        ({"OXIDE_DEVICE": "cpu", "OXIDE_ORDERING": "loose"}, "OXIDE_ORDERING='loose': one of wait, strict"),
    ],
)
def test_what_the_environment_asks_for_and_is_not_there_is_a_device_error(
    variables: dict[str, str], message: str
) -> None:
    program = "import oxide\ntry: oxide.zeros(1).sync()\nexcept oxide.DeviceError as error: print(error)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert message in done.stdout


def test_without_a_gpu_the_cpu_device_is_taken_and_said_once() -> None:
    program = "import oxide\nfor _ in range(3): oxide.zeros(1).sync()\nprint(oxide.devices()[0].kind)"
    variables = {name: text for name, text in os.environ.items() if name != "OXIDE_DEVICE"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**variables, "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "cpu\n"
    assert done.stderr.count("using the CPU device") == 1


# Faults


@kernel(block=32)
def shifted(offset: i64, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    element = y.get_mut(i)
    if element is not None:
        element.value = x[i.get() + offset]


def check_fault(error: oxide.BoundsError, length: int) -> None:
    assert (error.kernel, error.parameter, error.length) == ("shifted", "x", length)
    assert error.index == error.block[0] * 32 + error.thread[0] + 5
    assert error.index >= length
    assert error.file.endswith("test_launch.py")
    assert error.line == shifted.function.__code__.co_firstlineno + 5
    assert f"x[{error.index}]" in str(error)


def test_an_index_outside_a_slice_is_a_bounds_error_and_the_stream_goes_on() -> None:
    stream = oxide.devices()[0].new_stream()
    with pytest.raises(oxide.BoundsError) as caught:
        shifted(5, ones(100), zeros(100)).sync_on(stream)
    check_fault(caught.value, 100)
    good = shifted(5, ones(105), zeros(100)).last().to_host().sync_on(stream)
    np.testing.assert_array_equal(good, np.ones(100))


def test_a_fault_reaches_exactly_the_awaiting_caller() -> None:
    async def main() -> None:
        with pytest.raises(oxide.BoundsError) as caught:
            await shifted(5, ones(64), zeros(64)).last().to_host()
        check_fault(caught.value, 64)
        with pytest.raises(oxide.BoundsError) as caught:
            await gather(shifted(0, ones(64), zeros(64)), shifted(5, ones(40), zeros(64)))
        check_fault(caught.value, 40)
        good = [shifted(5, ones(69), zeros(64)).last().to_host() for _ in range(8)]
        bad = [shifted(5, ones(66), zeros(64)).into_future() for _ in range(8)]
        for future in bad:
            future.start()
        for result in await gather(*good):
            np.testing.assert_array_equal(result, np.ones(64))
        for future in bad:
            with pytest.raises(oxide.BoundsError):
                await future

    trio.run(main)


def test_a_fault_of_async_on_is_raised_by_synchronize_once() -> None:
    stream = oxide.devices()[0].new_stream()
    shifted(5, ones(64), zeros(64)).async_on(stream)
    with pytest.raises(oxide.BoundsError):
        stream.synchronize()
    stream.synchronize()


def test_a_fault_of_a_shared_source_reaches_every_consumer() -> None:
    source = shifted(5, ones(64), zeros(64)).last().shared()
    for _ in range(2):
        with pytest.raises(oxide.BoundsError):
            source.to_host().sync()


def test_a_none_reference_that_is_written_is_a_fault_and_touches_nothing() -> None:
    @kernel(block=32)
    def careless(y: DisjointSlice[f32]) -> None:
        y.get_mut(thread.index_1d()).value = 1.0  # type: ignore[union-attr]

    with pytest.raises(oxide.BoundsError) as caught:
        careless(zeros(33)).sync()
    assert (caught.value.parameter, caught.value.length) == ("y", 33)
    assert 33 <= caught.value.index < 64


def test_thousands_of_faults_leak_nothing() -> None:
    with use_driver(RecordingDriver(CpuDriver())) as driver:
        x, y = ones(3).sync(), zeros(64).sync()
        for _ in range(2000):
            with pytest.raises(oxide.BoundsError):
                shifted(5, x, y).sync()
        outstanding = driver.outstanding()
        with pytest.raises(oxide.BoundsError):
            shifted(5, x, y).sync()
        assert driver.outstanding() == outstanding
        np.testing.assert_array_equal(d2h(x).sync(), np.ones(3))


# Failures of the driver, at every call


def _program() -> Any:
    x = h2d(np.arange(64, dtype=np.float32))
    return axpy(2.0, x, zeros(64)).last().and_then(lambda y: relu(y, y)).last().and_then(d2h)


@pytest.mark.parametrize("completion", ["poll", "callback"])
def test_a_failure_of_any_driver_call_is_one_error_and_leaves_nothing_behind(completion: Any) -> None:
    expected = 2 * np.arange(64, dtype=np.float32)

    async def main() -> Any:
        return await _program()

    with use_driver(RecordingDriver(CpuDriver()), completion=completion) as recorder:
        trio.run(main)
        recorder.clear()
        trio.run(main)
        calls = len(recorder.calls)
    failures = 0
    for number in range(1, calls + 1):
        with use_driver(FailingDriver(CpuDriver()), completion=completion) as driver:
            np.testing.assert_array_equal(trio.run(main), expected)  # so that code and pools are there
            driver.fail_call(number, oxide.DriverError(1, "CUDA_ERROR_INVALID_VALUE", "injected"))
            for _ in range(3):
                try:
                    np.testing.assert_array_equal(trio.run(main), expected)
                except oxide.DriverError:
                    failures += 1
            driver.forget()  # polling makes the calls' number differ from run to run
            gc.collect()  # tracebacks hold what failed
            oxide.reclaim.drain()
            assert driver.live_allocations.device_count == driver.live_allocations.host_count == 0
    assert failures > 5  # a failed free, say, is tried again and is nobody's error


def test_running_out_of_memory_is_its_own_error_and_the_next_operation_runs() -> None:
    with use_driver(FailingDriver(CpuDriver())) as driver:
        for call in (1, 2):  # the first failure is met by giving back what was dropped, and a second try
            driver.fail("allocate", oxide.OutOfMemoryError("no room"), at=call)
        with pytest.raises(oxide.OutOfMemoryError, match="no room"):
            _program().sync()
        for call in (1, 2):  # the pool's, and the staging ring's that copies then go through
            driver.fail("allocate_host", oxide.OutOfMemoryError("no pinned room"), at=call)
        with pytest.raises(oxide.OutOfMemoryError, match="no pinned room"):
            h2d(np.ones(10**6)).sync()
        np.testing.assert_array_equal(_program().sync(), 2 * np.arange(64))


def test_a_kernel_dropped_while_it_runs_stays_loaded_until_it_is_done() -> None:
    with use_driver(step_driver()):

        def launch() -> Any:
            @kernel(block=32)
            def fill(y: DisjointSlice[f32]) -> None:
                element = y.get_mut(thread.index_1d())
                if element is not None:
                    element.value = 9.0

            return fill(zeros(50)).last().to_host()

        stream = oxide.devices()[0].new_stream()
        result = launch().async_on(stream)
        gc.collect()
        stream.synchronize()
        np.testing.assert_array_equal(result, np.full(50, 9.0))
