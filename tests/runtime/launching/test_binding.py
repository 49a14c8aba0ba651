"""The fast path of a launch takes plain arguments only, and says the same about every other as the full one."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from numba import cuda

import oxide
from oxide import (
    Arc,
    Array,
    AtomicSlice,
    DisjointSlice,
    DynamicSharedArray,
    LaunchConfig,
    Slice,
    bool_,
    d2h,
    f32,
    f64,
    h2d,
    i16,
    i64,
    kernel,
    numba_cuda,
    thread,
    u8,
)
from oxide.compiler.signature.untyped_arguments import ArrayType, TupleType
from oxide.driver.cpu import CpuDriver
from oxide.runtime.launching.binding import Plan
from oxide.runtime.launching.launch import KernelLaunch
from oxide.testing import RecordingDriver, step_driver, use_driver


@kernel
def scale(factor: u8, x: Slice[f32], y: DisjointSlice[f32]) -> None:
    idx = thread.index_1d()
    elem = y.get_mut(idx)
    if elem is not None:
        elem.value = factor * x[idx.get()]


FOUR = LaunchConfig.for_num_elems(4)
ONES = np.ones(4, np.float32)


def bind(plan: Plan, given: tuple[Any, ...]) -> KernelLaunch | None:
    """A launch with these arguments, if they bind."""
    launch = KernelLaunch.__new__(KernelLaunch)
    return launch if launch.bind(plan, given) else None


@pytest.mark.parametrize("factor", [3, np.uint8(3), np.int64(3), np.array(3)])
def test_numbers_and_boxes_bind_and_give_what_the_full_way_gives(factor: Any) -> None:
    x, y = h2d(ONES).arc().sync(), h2d(2 * ONES).sync()
    assert (bind(Plan(scale.specialize()), (factor, x, y)) is not None) == (type(factor) is not np.ndarray)
    launch = scale[FOUR](factor, x, y)
    for _ in range(2):  # a recipe runs again
        result = launch.sync()
        assert result[1] is x
        assert result[2] is y
        np.testing.assert_array_equal(oxide.d2h(y).sync(), 3 * ONES)


@pytest.mark.parametrize(
    "arguments",
    [
        lambda x: (300, x, x),  # no u8
        lambda x: (1.5, x, x),
        lambda x: (1, ONES, x),
        lambda x: (1, x, h2d(np.ones(4)).sync()),  # float64
        lambda x: (1, (x,), x),
        lambda x: (1, x),
        lambda x: (1, x, x, x),
        lambda x: (None, x, x),
    ],
)
def test_what_is_wrong_does_not_bind_and_is_refused_by_the_launch(arguments: Any) -> None:
    x = h2d(ONES).sync()
    assert bind(Plan(scale.specialize()), arguments(x)) is None
    with pytest.raises(oxide.ArgumentError):
        scale[FOUR](*arguments(x))


@kernel
def total_of(out, a, b):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@kernel
def typed_total_of(out: Array[f32], a: Array[f32], b: Array[f32]) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@pytest.mark.parametrize("add", [total_of, typed_total_of])
def test_a_box_is_described_to_numbas_kernels_once(add: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[Any] = []
    flatten = ArrayType.flatten
    monkeypatch.setattr(ArrayType, "flatten", lambda self, value: described.append(value) or flatten(self, value))
    boxes = [h2d(ONES).sync() for _ in range(3)]
    for _ in range(5):
        add[FOUR](*boxes).sync()
    assert {*map(id, described)} == {*map(id, boxes)}
    assert len(described) == 3
    np.testing.assert_array_equal(d2h(boxes[0]).sync(), 2 * ONES)


def test_views_of_a_box_are_described_each_by_itself() -> None:
    whole, out = h2d(np.arange(8, dtype=np.float32)).sync(), h2d(ONES).sync()
    total_of[FOUR](whole, whole, whole).sync()
    first, second = whole.split(4)
    total_of[FOUR](out, first, second).sync()
    np.testing.assert_array_equal(d2h(out).sync(), [8, 12, 16, 20])


def test_an_operation_among_refused_arguments_counts_as_used(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(oxide.ArgumentError):
        scale[FOUR](300, h2d(ONES), h2d(ONES))
    assert not [warning for warning in recwarn if "never run" in str(warning.message)]


def test_boxes_of_another_device_are_refused_by_name_when_the_launch_runs() -> None:
    driver = CpuDriver(2)
    with use_driver(driver):
        first, second = oxide.devices()
        here, there = first.new_stream(), second.new_stream()
        x, y, z = (h2d(ONES).sync_on(stream) for stream in (here, here, there))
        assert bind(Plan(scale.specialize()), (1, x, z)) is None
        for launch in (scale[FOUR](1, x, z), scale[FOUR](1, z, z)):
            with pytest.raises(oxide.DeviceError, match=r"parameter (x|y)"):
                launch.sync_on(here)
        scale[FOUR](1, x, y).sync_on(here)
        del x, y, z, launch
    driver.close()


def test_each_launch_of_a_recipe_reports_into_its_own_submissions_fault_record() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        stream = oxide.devices()[0].new_stream()
        launch = scale[FOUR](1, h2d(ONES[:2]).sync_on(stream), h2d(ONES).sync_on(stream))
        launch.async_on(stream)
        launch.async_on(stream)
        params = [call.arguments[4] for call in driver.calls if call.method == "launch"]
        assert params[0][:-8] == params[1][:-8]
        assert params[0][-8:] != params[1][-8:]
        with pytest.raises(oxide.BoundsError):
            stream.synchronize()
        launch.consume()


def test_a_fault_record_that_was_claimed_is_clean_for_the_next_submission() -> None:
    with use_driver(step_driver()):
        stream = oxide.devices()[0].new_stream()
        wrong = scale[FOUR](1, h2d(ONES[:2]).sync_on(stream), h2d(ONES).sync_on(stream))
        right = scale[FOUR](1, h2d(ONES).sync_on(stream), h2d(ONES).sync_on(stream))
        for _ in range(70):  # more than a page of records
            with pytest.raises(oxide.BoundsError):
                wrong.sync_on(stream)
            right.sync_on(stream)


@kernel
def mixed(a: u8, x: Slice[f32], b: i16, c: f64, d: u8, y: DisjointSlice[f32], e: f32, f: bool_) -> None:
    elem = y.get_mut(thread.index_1d())
    if elem is not None:
        elem.value = x[0] + a + b + f32(c) + d + e if f else f32(0)


@kernel
def paired(a: u8, p: tuple[u8, i64], b: u8, x: Slice[f32], y: DisjointSlice[f32], c: i16) -> None:
    elem = y.get_mut(thread.index_1d())
    if elem is not None:
        elem.value = x[0] + a + p[0] + f32(p[1]) + b + c


@pytest.mark.parametrize(
    ("launched", "arguments"),
    [
        (scale, lambda x, y: (3, x, y)),
        (mixed, lambda x, y: (255, x, -7, 1 / 3, 9, y, 0.1, True)),
        (paired, lambda x, y: (1, (2, -3), 4, x, y, -5)),
    ],
)
def test_the_parameters_are_those_of_the_kernels_c_structure(launched: Any, arguments: Any) -> None:
    x, y = h2d(ONES).sync(), h2d(2 * ONES).sync()
    special = launched.specialize()
    values = [
        (given.ptr, given.size)
        if isinstance(given, oxide.DeviceBox)
        else parameter.lifted.words(given)
        if parameter.lifted is not None
        else parameter.convert(given)
        for parameter, given in zip(special.parameters, arguments(x, y), strict=True)
    ]
    binding = bind(Plan(special), arguments(x, y))
    assert binding is not None
    address = 0x0123456789ABCDEF
    assert binding._params + address.to_bytes(8, sys.byteorder) == special.pack(values, address)
    assert binding._reads == [x._allocation]
    assert binding._writes == [y._allocation]


def test_an_arc_binds_to_its_box() -> None:
    box = h2d(ONES).sync()
    binding = bind(Plan(scale.specialize()), (1, Arc(box), box))
    assert binding is not None
    assert binding._reads == binding._writes == [box._allocation]


def test_many_submissions_in_flight_ask_the_driver_once_each_at_most() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        stream = oxide.devices()[0].new_stream()
        box = oxide.zeros(4).sync_on(stream)
        driver.clear()
        for _ in range(100):
            oxide.d2h(box).async_on(stream)
        assert driver.count("query_event", "query_stream") <= 100
        stream.synchronize()


@kernel(requires=("len(x) >= len(y)",))
def copy(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    idx = thread.index_1d()
    elem = y.get_mut(idx)
    if elem is not None:
        elem.value = x[idx.get()]


def test_the_contracts_of_a_launch_of_plain_boxes_are_checked_when_it_is_built() -> None:
    short, box = h2d(ONES[:2]).sync(), h2d(ONES).sync()
    copy[FOUR](box, box).sync()
    with pytest.raises(oxide.LaunchError, match="len"):
        copy[FOUR](short, box)


@kernel
def lengths(y: DisjointSlice[f32]) -> None:
    values = DynamicSharedArray(f32)
    elem = y.get_mut(thread.index_1d())
    if elem is not None:
        elem.value = f32(len(values))


def test_a_launch_of_plain_boxes_gets_its_dynamic_shared_memory() -> None:
    box = h2d(ONES).sync()
    lengths[LaunchConfig(1, 4, shared_mem_bytes=32)](box).sync()
    assert set(d2h(box).sync()) == {8}


def test_a_captured_launch_of_plain_boxes_has_its_shared_memory_and_is_ordered_by_its_boxes() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        here, there, other = (oxide.devices()[0].new_stream() for _ in range(3))
        box = h2d(ONES).sync_on(here)
        graph = lengths[LaunchConfig(1, 4, shared_mem_bytes=32)](box).graph_on(here)
        (captured,) = [call for call in driver.calls if call.method == "launch"]
        assert captured.arguments[3] == 32
        zeroing = oxide.memcpy(box, 0 * ONES)
        zeroing.async_on(there)
        graph.launch().async_on(here)  # after the zeroing
        result = d2h(box).async_on(other)  # after the graph
        other.synchronize()
        assert set(result) == {8}
        graph.close()
        for stream in (here, there):
            stream.synchronize()
        del result, box


@kernel
def count(y: AtomicSlice[f32]) -> None:
    y.fetch_add(0, f32(1))


def test_a_launch_with_an_atomic_slice_takes_the_full_way_and_writes_it() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        here, there = (oxide.devices()[0].new_stream() for _ in range(2))
        box = h2d(ONES).sync_on(here)
        assert bind(Plan(count.specialize()), (box,)) is None
        count[LaunchConfig(1, 4)](box).async_on(here)
        driver.clear()
        result = d2h(box).async_on(there)
        assert driver.count("wait_event") == 1
        there.synchronize()
        assert result[0] == 5
        here.synchronize()
        del result, box


@kernel
def mixed_untyped(narrow, pair, skipped, turned, out):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < out.size:
        out[i] = narrow + pair[0][i] * pair[1] + turned.real + 2 * turned.imag
        if skipped is not None:
            out[i] = skipped


@pytest.mark.parametrize("skipped", [None, 7.0])
def test_tuples_none_and_complex_numbers_bind_as_the_full_way_packs_them(skipped: Any) -> None:
    """Not only the first time: a tuple of other numbers, a view, and one of numbers alone, which is kept."""
    whole, out = h2d(np.arange(8, dtype=np.float32)).sync(), h2d(ONES).sync()
    first, second = whole.split(4)
    for array, factor in ((first, 2.0), (first, 3.0), (second, 2.0), (first, 2.0)):
        launch = mixed_untyped[FOUR](np.int8(-3), (array, factor), skipped, 1 + 2j, out)
        binding = launch
        assert binding._bound
        types = [parameter.type for parameter in launch.specialization.parameters]
        given = (np.int8(-3), (array, factor), skipped, 1 + 2j, out)
        values = [kind.flatten(value) for kind, value in zip(types, given, strict=True)]
        assert binding._params + bytes(8) == launch.specialization.pack(values, 0)
        assert binding._writes == [array._allocation, out._allocation]
        launch.sync()
        expected = -3 + d2h(array).sync() * factor + 5 if skipped is None else np.full(4, skipped)
        np.testing.assert_array_equal(d2h(out).sync(), expected)


@kernel
def first_of(pair, out):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < out.size:
        out[i] = pair[0]


@numba_cuda.jit("void(int32[:], complex64)")
def signed(out, number):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < out.size:
        out[i] += number.imag


def test_a_tuple_of_numbers_is_packed_once_and_others_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    out = h2d(ONES).sync()
    kept = (5.0, 6.0)
    for pair in (kept, kept, (8.0, 6.0), kept, (5, 6.0), kept):
        first_of[FOUR](pair, out).sync()
        np.testing.assert_array_equal(d2h(out).sync(), pair[0])
    packed: list[Any] = []
    flatten = TupleType.flatten
    monkeypatch.setattr(TupleType, "flatten", lambda self, value: packed.append(value) or flatten(self, value))
    for _ in range(3):
        first_of[FOUR](kept, out).sync()
    assert not packed


def test_arrays_of_the_other_sign_bind_where_an_explicit_signature_takes_them() -> None:
    for dtype in (np.uint32, np.int32, np.uint32):
        out = h2d(np.arange(4, dtype=dtype)).sync()
        launch = signed.kernel[FOUR](out, 3j)
        assert launch._bound
        launch.sync()
        np.testing.assert_array_equal(d2h(out).sync(), np.arange(3, 7))
    with pytest.raises(oxide.ArgumentError):
        signed.kernel[FOUR](h2d(np.arange(4, dtype=np.int64)).sync(), 3j)


def test_arrays_of_two_devices_in_a_tuple_do_not_bind() -> None:
    driver = CpuDriver(2)
    with use_driver(driver):
        here, there = (device.new_stream() for device in oxide.devices())
        x, out = h2d(ONES).sync_on(there), h2d(ONES).sync_on(here)
        launch = mixed_untyped[FOUR](np.int8(1), (x, 2.0), None, 1j, out)
        assert not launch._bound
        with pytest.raises(oxide.DeviceError, match="parameter pair"):
            launch.sync_on(here)
        del x, out, launch
    driver.close()


def test_boxes_of_another_object_for_the_same_dtype_bind() -> None:
    equal = np.dtype(np.float32).newbyteorder("=")
    x, y = h2d(np.ones(4, equal)).sync(), h2d(ONES).sync()
    assert x.dtype is not y.dtype
    assert bind(Plan(scale.specialize()), (3, x, y)) is not None
    scale[FOUR](3, x, y).sync()
    np.testing.assert_array_equal(d2h(y).sync(), 3 * ONES)


def test_a_launch_of_operations_is_bound_anew_at_each_run() -> None:
    y = h2d(ONES).sync()
    factors = iter([2, 300, 3])
    launch = scale[FOUR](oxide.value(None).map(lambda _: next(factors)), h2d(ONES), y)
    launch.sync()
    np.testing.assert_array_equal(d2h(y).sync(), 2 * ONES)
    with pytest.raises(oxide.ArgumentError, match="300"):
        launch.sync()
    launch.sync()
    np.testing.assert_array_equal(d2h(y).sync(), 3 * ONES)


def test_an_operation_that_yields_an_operation_is_refused() -> None:
    y = h2d(ONES).sync()
    inner = h2d(ONES)
    with pytest.raises(oxide.ArgumentError, match="yields an operation"):
        scale[FOUR](1, oxide.value(inner), y).sync()
