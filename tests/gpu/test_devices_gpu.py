"""Two real GPUs: copies between them, ordering across them, faults on one. Skipped on a host with fewer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import trio
from cuda.bindings import driver as bindings

import oxide
from examples.batch_splitter import splitter
from oxide import (
    d2h,
    h2d,
    init_device_contexts,
    memcpy,
    to_device,
    zeros,
)
from oxide.driver.cuda.driver import CudaDriver
from oxide.testing import use_driver
from tests.conftest import cuda_device_count
from tests.gpu.slow_kernel import slow_add

pytestmark = pytest.mark.skipif(cuda_device_count() < 2, reason="needs two GPUs")


@pytest.fixture(autouse=True)
def two_devices() -> Iterator[None]:
    init_device_contexts(0, 2)
    yield
    init_device_contexts()


SIZES = [1, 2, 3, 31, 4096, 4097, 1 << 20, (1 << 20) + 1, 1 << 26, 1 << 30]


@pytest.mark.parametrize("nbytes", SIZES)
def test_copies_between_two_gpus_are_right_at_every_size(nbytes: int) -> None:
    array = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    there = h2d(array).to_device(1).sync()
    assert there.device.id == 1
    np.testing.assert_array_equal(d2h(there).on(1).sync(), array)
    back = h2d(np.zeros(nbytes, np.uint8)).sync()
    bindings.cuCtxSetCurrent(None)  # as on a thread that never used CUDA
    memcpy(back, there).on(1).sync()
    np.testing.assert_array_equal(d2h(back).sync(), array)


def test_memory_allocated_before_and_after_the_first_copy_can_be_copied() -> None:
    with use_driver(CudaDriver()):
        early = h2d(np.arange(1000.0)).on(1).sync()
        to_device(early, 0).sync()
        late = h2d(np.arange(1 << 22).astype(np.float64)).on(1).sync()  # beyond what the pool had
        np.testing.assert_array_equal(d2h(to_device(late, 0)).sync(), np.arange(1 << 22))


def test_a_copy_without_direct_access_is_staged_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    import oxide.driver.cuda.driver as module

    monkeypatch.setattr(module, "open_peer_access", lambda *_: False)
    array = np.random.default_rng(0).random(1 << 22)
    there = h2d(array).to_device(1).sync()
    np.testing.assert_array_equal(d2h(there).on(1).sync(), array)


def test_work_on_one_gpu_waits_for_the_kernel_on_the_other_that_writes_its_input() -> None:
    here, there = (device.new_stream() for device in oxide.devices()[:2])
    for turn in range(5):
        x = h2d(np.full(1000, turn, np.float32)).async_on(here)
        y = slow_add(5_000_000, x, zeros(1000)).last().async_on(here)
        copy = to_device(y, 1).async_on(there)
        memcpy(y, np.full(1000, -1, np.float32)).async_on(here)  # must not overtake the copy
        z = slow_add(1_000_000, copy, zeros(1000)).last().async_on(there)
        back = d2h(to_device(z, 0)).async_on(here)
        here.synchronize()
        there.synchronize()
        np.testing.assert_allclose(back, np.full(1000, turn), rtol=2e-2)


def test_a_fault_on_one_gpu_is_raised_by_the_operation_and_the_other_goes_on() -> None:
    both = oxide.zip(
        slow_add(1, h2d(np.ones(9, np.float32)), zeros(10)).on(1), slow_add(1, h2d(np.ones(10, np.float32)), zeros(10))
    )
    with pytest.raises(oxide.BoundsError):
        both.sync()
    np.testing.assert_array_equal(h2d(np.ones(5)).to_host().on(1).sync(), np.ones(5))


@pytest.mark.parametrize("count", [1, 2])
def test_the_batch_splitter_is_right(count: int) -> None:
    batch, weights = splitter.make_batch(333, 128)

    async def main() -> splitter.Float32Array:
        copies = await splitter.spread(weights, range(count))
        return await splitter.run_split(batch, copies, range(count), depth=3)

    expected = splitter.reference(batch, weights, 3)
    np.testing.assert_allclose(trio.run(main), expected, rtol=1e-3, atol=1e-4 * float(np.abs(expected).max()))


def test_a_graph_on_the_second_gpu() -> None:
    x = np.ones(1000, np.float32)
    y = zeros(1000).on(1).sync()
    graph = h2d(x).and_then(lambda box: slow_add(1, box, y)).on(1).graph()
    for _ in range(3):
        graph.launch().sync()
    np.testing.assert_allclose(d2h(y).on(1).sync(), np.full(1000, 3), rtol=1e-2)
