"""Programs of numba.cuda with one changed import: arrays, launches, streams, events and devices."""

from __future__ import annotations

import asyncio
import gc
import math
import pickle
import re
import weakref
from typing import Any

import numba
import numpy as np
import pytest
from numba.cuda.dispatcher import CUDADispatcher

import oxide
from oxide import CompileError, LaunchError
from oxide import numba_cuda as cuda

RNG = np.random.default_rng(7)


@cuda.jit(device=True)
def scaled(x, factor):
    return x * factor


@cuda.jit
def scale(x, y, factor):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = scaled(x[i], factor)


@cuda.jit("void(float64[:], float64[:], float64)")
def shift(x, y, offset):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] + offset


@cuda.jit(["(float32[:], int64)", numba.void(numba.float64[:], numba.int64)])
def fill(x, number):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = number


@cuda.jit
def transpose(x, y):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        y[j, i] = x[i, j]


@cuda.jit
def block_sums(x, out):
    shared = cuda.shared.array(64, numba.float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    shared[t] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    step = 32
    while step > 0:
        if t < step:
            shared[t] += shared[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        cuda.atomic.add(out, 0, shared[0])


def test_a_launch_runs_at_once_on_device_arrays() -> None:
    x = RNG.random(1003)
    d = cuda.to_device(x)
    out = cuda.device_array_like(d)
    scale[8, 128](d, out, 3.0)
    np.testing.assert_array_equal(out.copy_to_host(), x * 3.0)
    given = np.empty(1003)
    assert out.copy_to_host(given) is given
    np.testing.assert_array_equal(given, x * 3.0)
    total = cuda.to_device(np.zeros(1))
    block_sums[16, 64](d, total)
    assert math.isclose(total[0], x.sum(), rel_tol=1e-12)


def test_numpy_arguments_are_copied_in_and_out() -> None:
    x, y = RNG.random(257), np.zeros(257)
    for factor in (2.0, 5.0):  # the second launch uses what the first one kept
        scale[2, 256](x, y, factor)
        np.testing.assert_array_equal(y, x * factor)
    x[:] = 1
    scale[2, 256](x, y, 4.0)
    assert (y == 4).all()
    strided = np.zeros(514)
    scale[2, 256](x, strided[::2], 4.0)
    assert (strided[::2] == 4).all()
    assert not strided[1::2].any()


@pytest.mark.parametrize("order", ["C", "F"])
def test_host_matrices_of_both_orders(order: Any) -> None:
    x = np.array(RNG.random((5, 7)), order=order)
    y = np.zeros((7, 5), order=order)
    transpose[(1, 1), (8, 8)](x, y)
    np.testing.assert_array_equal(y, x.T)


def test_arrays_that_share_memory_are_copied_each_by_itself() -> None:
    x = np.arange(64.0)
    scale[1, 64](x, x, 2.0)
    np.testing.assert_array_equal(x, np.arange(64) * 2.0)
    scale[1, 64](x[:32], x[16:48], 2.0)
    np.testing.assert_array_equal(x[16:48], np.arange(32) * 4.0)


def test_a_read_only_array_is_read_and_not_written() -> None:
    x = np.arange(8.0)
    x.flags.writeable = False
    y = np.zeros(8)
    scale[1, 8](x, y, 2.0)
    np.testing.assert_array_equal(y, x * 2)
    scale[1, 8](y, x, 2.0)
    np.testing.assert_array_equal(x, np.arange(8.0))


def test_directions_of_copies() -> None:
    x, y = np.ones(4), np.zeros(4)
    scale[1, 4](cuda.In(x), cuda.Out(y), 2.0)
    assert (y == 2).all()
    scale[1, 4](cuda.InOut(y), cuda.In(x), 2.0)
    assert (x == 1).all()


def test_what_a_launch_keeps_goes_with_the_array() -> None:
    from oxide.interop.numba_cuda import arguments

    x, y = np.ones(4), np.zeros(4)
    keys = {id(x), id(y)}
    scale[1, 4](x, y, 2.0)
    assert len(keys & arguments._kept.keys()) == 2
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None
    assert len(keys & arguments._kept.keys()) == 1


def test_an_array_of_a_subclass_keeps_its_memory_too() -> None:
    from oxide.interop.numba_cuda import arguments

    x, y = np.zeros(4).view(np.recarray), np.zeros(4)
    scale[1, 4](x, y, 2.0)
    kept = arguments._kept[id(x)]
    scale[1, 4](x, y, 2.0)
    assert arguments._kept[id(x)] is kept


def test_the_memory_of_a_record_goes_to_the_next_record_of_its_type() -> None:
    from oxide.interop.numba_cuda import arguments

    kind = np.dtype([("number", np.float64), ("count", np.int32)], align=True)

    @cuda.jit
    def double(one, other):
        one.number *= 2
        other.count += 1

    records = np.array([(1.5, 3), (2.5, 5)], kind)
    double[1, 1](records[0], records[1])
    spare = arguments._spare[kind]
    assert len(spare) == 2
    boxes = {id(each.box) for each in spare}
    double[1, 1](records[1], records[0])
    double[1, 1](cuda.In(records[0]), records[0])
    assert {id(each.box) for each in spare} == boxes
    assert records.tolist() == [(3.0, 5), (5.0, 6)]


@cuda.jit("void(float64[:, :], float64[:, :])")
def add_one(x, y):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        y[i, j] = x[i, j] + 1


def test_a_kernel_with_a_signature_takes_arrays_of_both_orders_by_turns() -> None:
    x = RNG.random((5, 7))
    given = {order: cuda.to_device(np.array(x, order=order)) for order in "CF"}
    for first, second in ("CC", "FF", "CF", "FC", "FF", "CC"):
        y = cuda.to_device(np.zeros((5, 7), order=second))
        add_one[(1, 1), (8, 8)](given[first], y)
        np.testing.assert_array_equal(y.copy_to_host(), x + 1)


def test_a_write_past_the_end_of_a_host_array_stays_on_the_device() -> None:
    memory = np.zeros(12)
    beyond = memory[:4]  # the device's memory has 256 bytes
    fill_unchecked[1, 12](beyond)
    assert memory.tolist() == [1] * 4 + [0] * 8


@cuda.jit
def fill_unchecked(x):
    x[cuda.grid(1)] = 1


def test_records_and_tuples_are_arguments() -> None:
    kind = np.dtype([("a", np.int32), ("b", np.float64)], align=True)

    @cuda.jit
    def both(records, pair, out):
        i = cuda.grid(1)
        out[i] = records[i].a * records[i].b + pair[1][i]
        records[i].a = 7

    records = np.array([(1, 2.0), (3, 4.0)], kind)
    out = np.zeros(2)
    both[1, 2](records, (1, np.array([0.5, 1.5])), out)
    assert out.tolist() == [2.5, 13.5]
    assert records["a"].tolist() == [7, 7]
    d = cuda.to_device(records)
    assert d["b"].copy_to_host().tolist() == [2.0, 4.0]
    d["a"] = 1
    assert d.copy_to_host()["a"].tolist() == [1, 1]


def test_device_arrays_are_sliced_reshaped_and_assigned() -> None:
    x = RNG.random((6, 8))
    d = cuda.to_device(x)
    assert (d.shape, d.dtype, d.size, d.nbytes, d.ndim, d.strides) == (x.shape, x.dtype, 48, 384, 2, x.strides)
    assert len(d) == 6
    assert d[2, 3] == x[2, 3]
    assert isinstance(d[2, 3], np.float64)
    for key in (slice(1, 3), (slice(None), slice(None, None, 2)), 4, (Ellipsis, 1), (slice(4, 0, -2), 3)):
        np.testing.assert_array_equal(d[key].copy_to_host(), x[key])
        assert d[key].strides == x[key].strides
    np.testing.assert_array_equal(d.T.copy_to_host(), x.T)
    np.testing.assert_array_equal(d.reshape(8, -1).copy_to_host(), x.reshape(8, 6))
    np.testing.assert_array_equal(d.ravel().copy_to_host(), x.ravel())
    np.testing.assert_array_equal(d.transpose((1, 0)).copy_to_host(), x.T)
    np.testing.assert_array_equal(d.view(np.int64).copy_to_host(), x.view(np.int64))
    np.testing.assert_array_equal(d.view(np.int32).copy_to_host(), x.view(np.int32))
    assert [part.shape for part in d.ravel().split(20)] == [(20,), (20,), (8,)]
    assert d.reshape(1, 6, 1, 8).squeeze().shape == (6, 8)
    assert d.is_c_contiguous()
    assert d.T.is_f_contiguous()
    assert not d[:, ::2].is_c_contiguous()
    d[1] = 3
    d[2, 2] = 4.5
    d[4:, ::2] = np.arange(4)
    d[0] = d[5]
    x[1], x[2, 2], x[4:, ::2] = 3, 4.5, np.arange(4)
    x[0] = x[5]
    np.testing.assert_array_equal(np.asarray(d), x)
    with pytest.raises(IndexError):
        d[9]
    with pytest.raises(NotImplementedError, match="reshape would require copy"):
        d.T.reshape(48)


def test_copies_between_host_and_device() -> None:
    d = cuda.to_device(np.zeros(4))
    d.copy_to_device(np.arange(4.0))
    d.copy_to_device(cuda.to_device(np.arange(4.0) + 1))
    assert d.copy_to_host().tolist() == [1, 2, 3, 4]
    assert cuda.to_device(np.ones(4), to=d) is d
    assert cuda.to_device([1, 2]).dtype == np.int64
    fortran = np.asfortranarray(RNG.random((3, 4)))
    moved = cuda.to_device(fortran)
    assert moved.strides == fortran.strides
    assert moved.copy_to_host().strides == fortran.strides
    np.testing.assert_array_equal(moved.copy_to_host(), fortran)
    assert cuda.device_array_like(fortran).strides == fortran.strides
    assert cuda.device_array_like(np.zeros((4, 6))[:, ::2].T).strides == (8, 24)
    assert cuda.pinned_array_like(fortran).strides == fortran.strides
    assert cuda.mapped_array((3, 4), order="F").strides == (8, 24)
    assert cuda.device_array((2, 3), np.float32, order="F").strides == (4, 8)
    with pytest.raises(TypeError, match="incompatible dtype"):
        d.copy_to_device(np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="incompatible shape"):
        d.copy_to_host(np.zeros(5))
    with pytest.raises(ValueError, match="non-contiguous"):
        cuda.to_device(np.zeros((4, 4))[::2, ::2])


def test_host_memory_of_every_kind() -> None:
    for make in (cuda.pinned_array, cuda.mapped_array, cuda.managed_array):
        x = make((3, 4), np.float32)
        x[...] = 2
        assert (x.shape, x.dtype) == ((3, 4), np.float32)
        flat = x.reshape(-1)
        scale[1, 16](flat, flat, 3.0)
        cuda.synchronize()
        assert (x == 6).all()
    mapped = cuda.mapped_array(5)
    mapped[:] = 1
    scale[1, 8](mapped, mapped, 3.0)
    cuda.synchronize()
    assert (mapped == 3).all()
    assert cuda.mapped_array_like(np.zeros(3, np.int8)).dtype == np.int8
    with cuda.pinned(np.zeros(3)):
        pass


def test_streams_events_and_their_times() -> None:
    one, two = cuda.stream(), cuda.stream()
    x = RNG.random(1000)
    d = cuda.to_device(x, stream=one)
    out = cuda.device_array(1000, stream=two)
    begin, end = cuda.event(), cuda.event()
    begin.record(one)
    scale[8, 128, one](d, out, 2.0)
    scale[8, 128, two](out, d, 2.0)
    end.record()  # on the default stream, which runs after both
    end.synchronize()
    assert end.query()
    assert cuda.event_elapsed_time(begin, end) >= 0
    np.testing.assert_array_equal(d.copy_to_host(stream=two), x * 4)
    with one.auto_synchronize():
        scale[8, 128, one, 0](d, out, 1.0)
    end.wait(two)
    two.synchronize()
    cuda.default_stream().synchronize()
    called: list[Any] = []
    one.add_callback(lambda stream, status, arg: called.append((status, arg)), "word")
    one.synchronize()
    assert called == [(0, "word")]
    with pytest.raises(cuda.cudadrv.driver.CudaAPIError, match="must have been recorded"):
        cuda.event_elapsed_time(cuda.event(), end)
    with pytest.raises(NotImplementedError, match="external_stream"):
        cuda.external_stream(0x1234567)
    with pytest.raises(TypeError, match=r"cuda.stream\(\)"):
        scale[1, 1, "stream"]


def test_a_stream_is_awaited() -> None:
    async def main() -> Any:
        stream = cuda.stream()
        d = cuda.to_device(np.ones(4))
        scale[1, 4, stream](d, d, 2.0)
        assert await stream.async_done() is stream
        return d.copy_to_host()

    with pytest.warns(RuntimeWarning, match="blocks the asyncio event loop"):
        assert asyncio.run(main()).tolist() == [2, 2, 2, 2]


def test_devices_and_contexts() -> None:
    assert cuda.is_available()
    assert len(cuda.gpus) == len(cuda.list_devices()) == len(oxide.devices())
    device = cuda.get_current_device()
    assert device.id == 0
    assert re.fullmatch("GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", device.uuid)
    assert device.WARP_SIZE == 32
    assert device.MAX_THREADS_PER_BLOCK == 1024
    assert device.MULTIPROCESSOR_COUNT > 0
    assert device.MAX_GRID_DIM_X == 2**31 - 1
    assert device.compute_capability >= (7, 0)
    with pytest.raises(AttributeError):
        device.NO_SUCH_THING  # noqa: B018
    with cuda.gpus[0] as context:
        free, total = context.get_memory_info()
        assert 0 < free <= total
    assert cuda.select_device(0) == cuda.current_context()
    with pytest.raises(IndexError, match="no device 99; there"):
        cuda.select_device(99)
    with pytest.raises(NotImplementedError, match=r"context\.memalloc"):
        cuda.current_context().memalloc(4)
    with cuda.defer_cleanup():
        cuda.current_context().deallocations.clear()
    cuda.close()


def test_the_driver_and_the_runtime_need_no_cuda_driver() -> None:
    assert cuda.runtime.get_version() == cuda.driver.driver.get_version() == cuda.cudadrv.driver.get_version()
    assert cuda.runtime.get_version() >= (12, 0)
    assert cuda.runtime.is_supported_version()
    assert cuda.driver.driver.is_available
    assert cuda.driver.driver.initialization_error is None
    assert cuda.driver.driver.get_device_count() == len(cuda.gpus)
    assert cuda.driver.driver.get_device(0) == cuda.get_current_device()
    assert cuda.is_fp8_supported() == (cuda.get_current_device().compute_capability >= (8, 9))
    if oxide.devices()[0].kind == "cpu":
        with pytest.raises(NotImplementedError, match=r"driver\.cuMemAlloc: the CPU device has no CUDA driver"):
            cuda.driver.driver.cuMemAlloc(64)


def test_a_function_that_requires_a_context_has_the_devices() -> None:
    @cuda.require_context
    def total(x: Any, *, times: int) -> Any:
        """Adds."""
        return cuda.reduce(lambda a, b: a + b)(cuda.to_device(x)) * times

    assert total(np.ones(4), times=2) == 8
    assert (total.__name__, total.__doc__) == ("total", "Adds.")
    assert cuda.devices.require_context is cuda.cudadrv.devices.require_context is cuda.require_context


def test_detect_prints_the_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert cuda.detect()
    assert f"Found {len(oxide.devices())} CUDA devices" in capsys.readouterr().out


def test_explicit_signatures_need_no_device_and_convert() -> None:
    x = np.zeros(4)
    fill[1, 4](x, True)
    assert x.tolist() == [1, 1, 1, 1]
    shift[1, 4](x, x, 2)
    assert x.tolist() == [3, 3, 3, 3]
    with pytest.raises(oxide.ArgumentError, match="kernel fill takes"):
        fill[1, 4](np.zeros(4, np.int8), 1)
    with pytest.raises(TypeError, match="void return type"):
        cuda.jit("float64(float64)")(lambda x: x)


def test_options_of_jit() -> None:
    @cuda.jit(fastmath=True, max_registers=32, debug=False, opt=True, lineinfo=True, cache=True, inline="never")
    def root(x):
        x[0] = math.sqrt(x[0])

    x = np.array([4.0])
    root[1, 1](x)
    assert x[0] == 2
    assert root.kernel.description.fastmath
    assert root.kernel.description.max_registers == 32
    with pytest.raises(TypeError, match=r"no option fastmaths; it has .*fastmath"):
        cuda.jit(fastmaths=True)(lambda x: None)
    with pytest.raises(NotImplementedError, match="link"):
        cuda.jit(link=["a.cu"])(lambda x: None)
    with pytest.raises(NotImplementedError, match="bounds checking"):
        cuda.jit(boundscheck=True)(lambda x: None)


def test_launch_configurations() -> None:
    x = np.zeros(6)
    for configuration in [(1, 6), [1, 6], (np.int64(1), (6,)), ((1, 1), (6, 1, 1)), (1, 6, 0, 0)]:
        x[:] = 0
        fill[configuration](x, 5)
        assert (x == 5).all()
    fill.forall(6)(x, 6)
    fill.forall(6, tpb=2, stream=cuda.stream())(x, 7)
    assert (x == 7).all()
    fill.forall(0)(x, 8)
    assert (x == 7).all()
    fill.configure(1, 6)(x, 9)
    assert (x == 9).all()
    with pytest.raises(ValueError, match="negative task count"):
        fill.forall(-1)
    with pytest.raises(ValueError, match="launch configuration"):
        fill[1]
    with pytest.raises(ValueError, match="Kernel launch configuration was not specified"):
        fill(x, 1)
    with pytest.raises(TypeError, match="blockdim must be"):
        fill[1, 2.5]
    with pytest.raises(LaunchError, match="kernel fill"):
        fill[1, 4096]


def test_a_kernel_is_a_device_function_of_another() -> None:
    @cuda.jit
    def outer(x):
        fill(x, 3)
        shift(x, x, 1.0)

    x = np.zeros(3)
    outer[1, 3](x)
    assert x.tolist() == [4, 4, 4]


def test_kernels_are_compiled_at_their_first_launch() -> None:
    @cuda.jit
    def wrong(x):
        x[0] = no_such_name  # noqa: F821

    with pytest.raises(CompileError, match="no_such_name"):
        wrong[1, 1](np.zeros(1))


def test_dynamic_shared_memory() -> None:
    @cuda.jit
    def reverse(x):
        shared = cuda.shared.array(0, numba.float64)
        t = cuda.threadIdx.x
        shared[t] = x[t]
        cuda.syncthreads()
        x[t] = shared[cuda.blockDim.x - 1 - t]

    x = np.arange(32.0)
    reverse[1, 32, 0, 32 * 8](x)
    np.testing.assert_array_equal(x, np.arange(32.0)[::-1])


def test_names_for_kernels_are_numba_cudas() -> None:
    from numba import cuda as numbas

    assert cuda.grid is numbas.grid
    assert cuda.libdevice is numbas.libdevice
    assert cuda.float32 is numbas.float32
    assert isinstance(scaled, CUDADispatcher)
    with pytest.raises(AttributeError, match="no_such_name"):
        cuda.no_such_name  # noqa: B018
    assert cuda.cudadrv.driver.IpcHandle is numbas.IpcHandle
    assert cuda.devicearray.array_core is numbas.devicearray.array_core
    with pytest.raises(NotImplementedError, match=r"cuda\.declare_device.*oxide\.module"):
        cuda.declare_device("f", "int32(int32)")


def test_kernels_of_libdevice_and_fp16() -> None:
    @cuda.jit
    def functions(x, h):
        i = cuda.grid(1)
        x[i] = cuda.libdevice.sqrt(x[i]) + cuda.popc(i)
        h[i] = cuda.fp16.hmul(h[i], h[i])

    x, h = np.full(4, 9.0), np.full(4, 3, np.float16)
    functions[1, 4](x, h)
    assert x.tolist() == [3, 4, 4, 5]
    assert h.tolist() == [9, 9, 9, 9]


def test_letters_of_any_alphabet() -> None:
    @cuda.jit
    def greek(μ, Σ):
        ι = cuda.grid(1)
        β = μ[ι] * 2
        Σ[ι] = β

    μ, Σ = np.ones(3), np.zeros(3)
    greek[1, 3](μ, Σ)
    assert Σ.tolist() == [2, 2, 2]


def test_a_global_kernel_is_pickled_by_name() -> None:
    x = np.zeros(3)
    pickle.loads(pickle.dumps(fill))[1, 3](x, 2)
    assert x.tolist() == [2, 2, 2]


def test_boxes_are_arguments_and_arrays_have_boxes() -> None:
    box = oxide.h2d(np.ones(4)).sync()
    fill[1, 4](box, 3)
    assert oxide.d2h(box).sync().tolist() == [3, 3, 3, 3]
    d = cuda.as_cuda_array(box)
    assert d.box is box
    assert cuda.is_cuda_array(d)
    assert not cuda.is_cuda_array(np.zeros(1))
    with pytest.raises(TypeError, match="cuda array interface"):
        cuda.as_cuda_array(np.zeros(1))


@pytest.mark.parametrize("dtype", [object, np.longdouble, np.dtype(">f8")])
def test_a_host_array_that_no_kernel_takes_is_refused_by_the_parameters_name(dtype: Any) -> None:
    @cuda.jit
    def copied(to, given):  # type: ignore[no-untyped-def]
        to[0] = given[0]

    with pytest.raises(TypeError, match=r"kernel copied, parameter given: .* astype"):
        copied[1, 1](np.zeros(1), np.zeros(1, dtype))


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_broadcast_array_of_either_order_keeps_its_strides(order: Any) -> None:
    x = np.asarray(np.random.default_rng().standard_normal((3, 4)), order=order)
    given = np.broadcast_to(x, (2, 3, 4))
    d = cuda.to_device(given)
    assert d.strides == given.strides
    np.testing.assert_array_equal(d.copy_to_host(), given)
