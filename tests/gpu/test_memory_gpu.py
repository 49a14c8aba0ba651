"""Memory on a real GPU: sharing it with torch, CuPy and cuBLAS, staged copies, pinned memory, strict ordering."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import trio
from numba import cuda

import oxide
from oxide import DeviceBox, DeviceOperation, ExecutionContext, d2h, from_dlpack, h2d, pinned_empty, value, with_context
from oxide.driver.cuda.driver import CudaDriver
from oxide.runtime.devices.runtime import current_runtime
from oxide.runtime.memory.staging_ring import CHUNK_BYTES
from oxide.runtime.submission import staging
from oxide.testing import RecordingDriver, use_driver

RNG = np.random.default_rng(0)
A, B = (RNG.standard_normal((64, 64), np.float32) for _ in range(2))


def torch_matmul(a: DeviceBox, b: DeviceBox) -> DeviceOperation[DeviceBox]:
    """``a @ b`` by torch, on the operation's own stream: declared, so that it is ordered like any launch."""
    import torch

    def multiply(context: ExecutionContext) -> DeviceOperation[DeviceBox]:
        context.reads(a, b)
        with torch.cuda.stream(torch.cuda.ExternalStream(context.stream.handle)):
            product = torch.matmul(*(torch.from_dlpack(box) for box in (a, b)))
            return value(from_dlpack(product))

    return with_context(multiply)


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_a_torch_matmul_inside_a_chain() -> None:
    pytest.importorskip("torch")
    for _ in range(20):
        chain = oxide.zip(h2d(A), h2d(B)).and_then(lambda boxes: torch_matmul(*boxes)).and_then(d2h)
        np.testing.assert_allclose(chain.sync(), A.astype(float) @ B.astype(float), rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_torch_tensors_and_boxes_share_memory_and_order_on_any_streams() -> None:
    torch = pytest.importorskip("torch")
    for turn in range(20):
        box = h2d(np.full(1 << 20, turn, np.float32)).async_on(oxide.devices()[0].new_stream())
        with torch.cuda.stream(torch.cuda.Stream()):
            tensor = torch.from_dlpack(box)
            assert tensor.data_ptr() == box.ptr
            doubled = tensor * 2
            back = from_dlpack(doubled)
        assert back.ptr == doubled.data_ptr()
        del tensor, doubled
        np.testing.assert_array_equal(d2h(back).sync(), np.full(1 << 20, 2 * turn))
    del box, back
    gc.collect()
    oxide.reclaim.drain()


def test_a_box_dropped_while_the_default_stream_of_torch_uses_it_keeps_its_memory() -> None:
    torch = pytest.importorskip("torch")
    for _ in range(10):
        box = h2d(np.ones(1 << 22, np.float32)).sync()
        tensor = torch.from_dlpack(box)
        for _ in range(50):
            result = tensor * 1.0
        del tensor, box
        gc.collect()
        others = [h2d(np.full(1 << 22, -1, np.float32)).sync() for _ in range(3)]
        assert bool((result == 1).all())
        del others


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_cupy_arrays_and_boxes_share_memory_and_order() -> None:
    cupy = pytest.importorskip("cupy")
    for turn in range(20):
        box = h2d(np.full(1 << 20, turn, np.float32)).async_on(oxide.devices()[0].new_stream())
        with cupy.cuda.Stream(non_blocking=True):
            theirs = cupy.from_dlpack(box) + 1
            described = cupy.asarray(box) + 2
            one, two = from_dlpack(theirs), oxide.from_cuda_array_interface(described)
        np.testing.assert_array_equal(d2h(one).sync(), np.full(1 << 20, turn + 1))
        np.testing.assert_array_equal(d2h(two).sync(), np.full(1 << 20, turn + 2))
        assert (one.ptr, two.ptr) == (theirs.data.ptr, described.data.ptr)


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_cublas_through_cupy_on_the_stream_of_a_chain() -> None:
    cupy = pytest.importorskip("cupy")

    def multiply(a: DeviceBox, b: DeviceBox, c: DeviceBox) -> DeviceOperation[DeviceBox]:
        def put(context: ExecutionContext) -> DeviceOperation[DeviceBox]:
            context.reads(a, b)
            context.writes(c)
            with cupy.cuda.Stream.from_external(context.stream):
                cupy.matmul(*(cupy.from_dlpack(box) for box in (a, b)), out=cupy.from_dlpack(c))
            return value(c)

        return with_context(put)

    a, b, c = (h2d(x).sync() for x in (A, B, np.zeros_like(A)))
    first, second = (oxide.devices()[0].new_stream() for _ in range(2))
    for _ in range(20):
        multiply(a, b, c).async_on(first)
        result = d2h(c).async_on(second)
        second.synchronize()
        np.testing.assert_allclose(result, A.astype(float) @ B.astype(float), rtol=1e-3, atol=1e-3)
    first.synchronize()


def test_strided_tensors_are_boxes_and_strided_boxes_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(2 * 3 * 40, dtype=torch.float32, device="cuda").reshape(2, 3, 40)
    for theirs in (tensor[1], tensor[:, 1], tensor[..., ::3], tensor.permute(2, 0, 1), tensor[:, :, 5]):
        box = from_dlpack(theirs)
        expected = theirs.cpu().numpy()
        assert (box.ptr, box.shape) == (theirs.data_ptr(), tuple(theirs.shape))
        np.testing.assert_array_equal(d2h(box).sync(), expected)
        np.testing.assert_array_equal(d2h(box.T[::-1]).sync(), expected.T[::-1])
        np.testing.assert_array_equal(torch.from_dlpack(box.T).cpu().numpy(), expected.T)
        np.testing.assert_array_equal(oxide.dup(box).to_host().sync(), expected)
    oxide.memcpy(from_dlpack(tensor)[:, 0, ::2], np.full((2, 20), -1, np.float32)).sync()
    assert bool((tensor[:, 0, ::2] == -1).all())
    assert bool((tensor[:, 0, 1::2] >= 0).all())


@oxide.kernel
def doubled(x: oxide.Array[oxide.f32, 2], y: oxide.Array[oxide.f32, 2]) -> None:
    row, column = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        y[row, column] = x[row, column] * 2


def test_a_kernel_of_arrays_takes_strided_views() -> None:
    data = RNG.standard_normal((48, 100), np.float32)
    box = h2d(data).sync()
    out = oxide.zeros((100, 24)).sync()
    doubled[(13, 3), (8, 8)](box[::2].T, out).sync()
    np.testing.assert_array_equal(d2h(out).sync(), data[::2].T * 2)
    doubled[(3, 13), (8, 8)](box[::-2], out.T).sync()
    np.testing.assert_array_equal(d2h(out).sync(), data[::-2].T * 2)


@pytest.mark.parametrize("limit", [None, 0], ids=["pool", "ring"])
@pytest.mark.parametrize("nbytes", [1, staging.SMALL_BYTES + 1, CHUNK_BYTES, 5 * CHUNK_BYTES + 3])
def test_copies_of_all_sizes_are_right_staged_or_not(nbytes: int, limit: int | None) -> None:
    with use_driver(RecordingDriver(CudaDriver())) as driver:
        if limit is not None:
            current_runtime().pinned.limit = limit
        data = RNG.integers(0, 255, 2 * nbytes, np.uint8)
        for _ in range(5):
            for array in (data[:nbytes], data[::2]):
                np.testing.assert_array_equal(h2d(array).to_host().sync(), array)
        assert driver.count("free_host") == 0


def test_many_staged_uploads_at_once_on_all_streams() -> None:
    arrays = [RNG.integers(0, 255, 3 * CHUNK_BYTES + number, np.uint8) for number in range(12)]

    async def main() -> None:
        for result, array in zip(await oxide.gather(*[h2d(a).to_host() for a in arrays]), arrays, strict=True):
            np.testing.assert_array_equal(result, array)

    trio.run(main)


def test_an_upload_from_pinned_memory_is_not_staged() -> None:
    with use_driver(RecordingDriver(CudaDriver())) as driver:
        array = pinned_empty(1 << 24, oxide.u8)
        array[:] = 7
        driver.clear()
        box = h2d(array).sync()
        assert driver.count("copy_to_device") == 1
        assert driver.count("launch_native_host_function") == 0
        np.testing.assert_array_equal(d2h(box).sync(), array)


def test_out_of_memory_on_the_gpu_says_what_is_held_and_goes_on_once_it_is_dropped() -> None:
    device = oxide.devices()[0]
    held: list[Any] = []
    with pytest.raises(oxide.OutOfMemoryError) as caught:
        while True:
            held.append(oxide.zeros(4 << 30, "u1").sync())
    assert "4294967296 uint8 (4 GiB each)" in str(caught.value)
    count = len(held)
    assert count * (4 << 30) > device.info.memory // 2
    del caught
    held.clear()
    gc.collect()
    held.extend(oxide.zeros(4 << 30, "u1").async_on(device.new_stream()) for _ in range(count))
    held.clear()
    oxide.reclaim.drain()
