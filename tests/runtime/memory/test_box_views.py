"""Views of a box: what indices pick, what copies and kernels make of it, and that its memory and its order are one."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda

import oxide
from oxide import (
    ArgumentError,
    Array,
    DeviceBox,
    DisjointSlice,
    Slice,
    d2h,
    devices,
    dup,
    f32,
    h2d,
    i32,
    kernel,
    memcpy,
    reclaim,
    thread,
    to_device,
    value,
    zeros,
)
from oxide.driver.cpu import CpuDriver
from oxide.testing import step_driver, use_driver
from tests.compiler.sanitizer.sanitized import BOTH, error_of, on_the_cpu_device
from tests.source_lines import line_of

DATA = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
KEYS = [
    np.s_[1],
    np.s_[-1, 2],
    np.s_[1:],
    np.s_[:, 2],
    np.s_[:, 1:3],
    np.s_[..., 3],
    np.s_[...],
    np.s_[::-1, ..., ::2],
    np.s_[1, 2, 3, 4],
    np.s_[1, ..., 2],
    np.s_[:, :, 3:1:-1, -2:],
    np.s_[:, 5:],
    np.s_[()],
    np.s_[np.int64(1), :, np.uint8(2)],
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_view_is_what_numpys_is_and_shares_the_memory(key: Any) -> None:
    data = DATA.copy()
    box = h2d(data).sync()
    view, expected = box[key], data[key]
    assert isinstance(view, DeviceBox)
    assert (view.shape, view.ndim, view.size, view.dtype) == (expected.shape, expected.ndim, expected.size, data.dtype)
    assert view.nbytes == expected.nbytes
    assert view.is_contiguous == bool(expected.flags.c_contiguous)
    if expected.size and isinstance(expected, np.ndarray):
        assert view.ptr - box.ptr == expected.__array_interface__["data"][0] - data.ctypes.data
    for one, other in ((view, expected), (view.T, expected.T), (view.T.T, expected)):
        assert view.size == 0 or one.is_contiguous or one.strides == other.strides
        np.testing.assert_array_equal(d2h(one).sync(), other)
        copy = dup(one).sync()
        assert copy.is_contiguous
        np.testing.assert_array_equal(d2h(copy).sync(), other)
    memcpy(view, np.full(expected.shape, -1, np.float32)).sync()
    data[key] = -1
    np.testing.assert_array_equal(d2h(box).sync(), data)


AXIS = st.one_of(
    st.integers(-3, 3),
    st.builds(slice, *[st.one_of(st.none(), st.integers(-5, 5))] * 2, st.sampled_from([None, 1, 2, 3, -1, -2])),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 4), max_size=6),
    st.lists(st.one_of(AXIS, st.just(...)), max_size=4).map(tuple),
    st.permutations(range(2)),
    st.sampled_from(["u1", "i2", "f4", "c16", "S3", "f4,u1"]),
)
def test_any_view_of_a_view_is_numpys(shape: list[int], key: Any, turned: list[int], dtype: str) -> None:
    data = np.random.default_rng(1).integers(0, 100, shape).astype(np.dtype(dtype))
    box, expected = h2d(data).sync(), data
    for step in turned:
        if not step:
            box, expected = box.T, expected.T
            continue
        try:
            expected = expected[key if ... in key else (*key, ...)]  # an array also where one element is left
        except IndexError:
            with pytest.raises(IndexError):
                box[key]
            return
        box = box[key]
    assert box.shape == expected.shape
    np.testing.assert_array_equal(d2h(box).sync(), expected)
    target = h2d(np.zeros(expected.shape[::-1], data.dtype)).sync().T
    memcpy(target, box).sync()
    np.testing.assert_array_equal(d2h(target).sync(), expected)


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (2, IndexError, "index 2 is outside axis 0 of a box of shape"),
        ((0, -4), IndexError, "index -4 is outside axis 1"),
        ((0, 0, 0, 0, 0), IndexError, "has 4 axes, and 5 indices"),
        ((..., ...), IndexError, "one ... at most"),
        (np.s_[::0], ValueError, "step of a slice is 0"),
        (1.5, TypeError, "not with float 1.5"),
        (True, TypeError, "not with bool True"),
        (None, TypeError, "not with NoneType"),
        ([0, 1], TypeError, "not with list"),
        (np.array([True, False]), TypeError, "picks elements by an array or a mask"),
        ("x", TypeError, "not with str"),
        (np.s_["a":], TypeError, "not with str"),
    ],
)
def test_an_index_that_no_view_has_is_refused(key: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        h2d(DATA).sync()[key]


def test_a_step_past_64_bits_makes_an_axis_of_one_element() -> None:
    x = np.arange(6.0).reshape(2, 3)
    view = h2d(x).sync()[:: 2**62, ::2]
    assert view.strides == x[:: 2**62, ::2].strides
    np.testing.assert_array_equal(d2h(view).sync(), x[::2, ::2])


def test_a_box_is_gone_through_along_its_first_axis_and_one_without_axes_is_not() -> None:
    box = h2d(np.arange(6.0).reshape(2, 3)).sync()
    assert [d2h(part).sync().tolist() for part in box] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(TypeError, match="a box without axes has no parts"):
        iter(box[0, 0])


def test_a_box_has_the_length_of_its_first_axis() -> None:
    box = zeros((3, 4)).sync()
    assert (len(box), len(box.T), len(box[:0]), len(box[1])) == (3, 4, 0, 4)
    with pytest.raises(TypeError, match="has no axes, and so no length: it is one element"):
        len(box[0, 0])


def test_a_box_is_shown_with_its_shape_dtype_and_device() -> None:
    box = zeros((3, 4), i32).sync()
    label = box.device.label
    shown = [repr(each) for each in (box, box.T, box[0], box[0, 0], box[:0])]
    assert shown == [f"<oxide.DeviceBox {shape} int32 on {label}>" for shape in ("3x4", "4x3", "4", "scalar", "0x4")]


def test_an_array_of_any_order_is_uploaded_in_c_order() -> None:
    for data in (np.asfortranarray(DATA), DATA.T, DATA[:, ::-2], np.broadcast_to(DATA[0], (4, 3, 4, 5))):
        box = h2d(data).sync()
        assert box.is_contiguous
        np.testing.assert_array_equal(d2h(box).sync(), data)


def test_a_strided_view_is_not_reshaped_and_a_copy_of_it_is() -> None:
    box = h2d(DATA).sync()
    assert box[1].reshape(-1).shape == (60,)
    with pytest.raises(ValueError, match=r"shape \(2, 4, 5\) is a strided view \(strides \(240, 20, 4\) bytes\).*dup"):
        box[:, 1].reshape(40)
    np.testing.assert_array_equal(d2h(dup(box[:, 1]).sync().reshape(40)).sync(), DATA[:, 1].reshape(40))


def test_a_view_is_partitioned_by_its_own_rows() -> None:
    pieces = h2d(DATA).sync()[1, 0].T.split(2)
    assert [piece.shape for piece in pieces] == [(2, 4), (2, 4), (1, 4)]
    np.testing.assert_array_equal(d2h(pieces[1]).sync(), DATA[1, 0].T[2:4])


def test_copies_between_overlapping_views_read_what_was_there() -> None:
    data = np.arange(40_000, dtype=np.float32).reshape(200, 200)
    box = h2d(data).sync()
    for to, origin in ((np.s_[1:], np.s_[:-1]), (np.s_[:, 1:], np.s_[:, :-1]), (np.s_[::-1], np.s_[...])):
        memcpy(box[to], box[origin]).sync()
        data[to] = data[origin].copy()
        np.testing.assert_array_equal(d2h(box).sync(), data)
    memcpy(box.T, box).sync()
    np.testing.assert_array_equal(d2h(box).sync(), data.T)


def test_a_copy_between_views_of_other_shapes_keeps_c_order() -> None:
    data = np.arange(48, dtype=np.int16).reshape(4, 12)
    box, target = h2d(data).sync(), h2d(np.zeros((9, 16), np.int16)).sync()
    memcpy(target[:6, ::4], box[::2].T).sync()
    np.testing.assert_array_equal(d2h(target[:6, ::4]).sync(), data[::2].T.reshape(6, 4))
    assert not d2h(target[6:]).sync().any()
    memcpy(target[0, :12].reshape(3, 4), box.T[:, 1]).sync()
    np.testing.assert_array_equal(d2h(target[0, :12]).sync(), data.T[:, 1])


def test_a_view_of_more_axes_than_one_launch_takes_is_copied() -> None:
    data = np.arange(3**8, dtype=np.uint8).reshape((3,) * 8)
    expected = data[::2, :2, ::2, :2, ::2, :2, ::2, :2].transpose()
    np.testing.assert_array_equal(d2h(h2d(data).sync()[::2, :2, ::2, :2, ::2, :2, ::2, :2].T).sync(), expected)


def test_a_view_keeps_the_memory_and_lets_it_go() -> None:
    driver = CpuDriver(1)
    with use_driver(driver):
        view = h2d(DATA).sync()[:, 1].T
        gc.collect()
        reclaim.drain()
        np.testing.assert_array_equal(d2h(view).sync(), DATA[:, 1].T)
        del view
        gc.collect()
        reclaim.drain()
        assert driver.live_allocations.device_count == 0
    driver.close()


@pytest.mark.parametrize("through", ["d2h", "dup"])
def test_a_copy_of_one_view_waits_for_a_write_through_another(through: str) -> None:
    with use_driver(step_driver()) as driver:
        box = zeros((4, 4)).sync()
        writer, reader = devices()[0].new_stream(), devices()[0].new_stream()
        memcpy(box[:, 1], np.ones(4, np.float32)).async_on(writer)
        read = d2h(box.T[:2]) if through == "d2h" else dup(box.T[:2])
        result: Any = read.async_on(reader)
        while driver.step(reader._timeline.handle):  # as far as it can go
            pass
        reader.synchronize()
        found = result if through == "d2h" else d2h(result).sync()
        assert found.tolist() == [[0.0] * 4, [1.0] * 4]


def test_copies_of_views_are_captured_into_a_graph() -> None:
    box = h2d(DATA).sync()
    graph = dup(box[:, ::2].T).and_then(d2h).graph()
    memcpy(box[:, 0], np.full((2, 4, 5), -1, np.float32)).sync()
    graph.launch().sync()
    result = graph.take_output()
    expected = DATA.copy()
    expected[:, 0] = -1
    np.testing.assert_array_equal(result, expected[:, ::2].T)


def test_a_view_is_copied_to_another_device() -> None:
    with use_driver(CpuDriver(2)):
        box = h2d(DATA).sync()
        there = to_device(box[:, 1].T, 1).sync()
        assert (there.device.id, there.is_contiguous) == (1, True)
        np.testing.assert_array_equal(d2h(there).on(1).sync(), DATA[:, 1].T)
        memcpy(there[:, ::2], box[:, 2].T[:, ::2]).on(1).sync()
        np.testing.assert_array_equal(d2h(there).on(1).sync()[:, ::2], DATA[:, 2].T[:, ::2])
        memcpy(there, box[:, 2].T).on(0).sync()
        np.testing.assert_array_equal(d2h(there).on(1).sync(), DATA[:, 2].T)
        with pytest.raises(oxide.DeviceError, match="a strided view of another device's box"):
            memcpy(there[:, ::2], dup(box[:, 1].T[:, ::2]).sync()).on(0).sync()


def test_the_host_view_of_a_strided_box_of_records_is_the_memory(device: str) -> None:
    if device == "cuda":
        pytest.skip("a GPU's memory has no view on the host")
    data = np.zeros((3, 2), np.dtype([("x", np.float32), ("n", np.int16)]))
    box = h2d(data).sync()
    box[:, 1].host_view()["n"] = 7
    found = d2h(box).sync()
    assert (found["n"].tolist(), found.dtype) == ([[0, 7]] * 3, data.dtype)


# Kernels


@kernel
def doubled(x: Array[f32, 2], y: Array[f32, 2]) -> None:
    row, column = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        y[row, column] = x[row, column] * 2


@kernel
def doubled_untyped(x, y):
    row, column = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        y[row, column] = x[row, column] * 2


@kernel
def doubled_in_a_tuple(arrays):
    row, column = cuda.grid(2)
    if row < arrays[0].shape[0] and column < arrays[0].shape[1]:
        arrays[1][row, column] = arrays[0][row, column] * 2


@kernel(block=32)
def scaled(x: Array[f32, 1], y: DisjointSlice[f32]) -> None:
    element = y.get_mut(thread.index_1d())
    if element is not None:
        element.value = x[cuda.grid(1)] * f32(2)


adopted = kernel(cuda.jit(doubled.function))


@pytest.mark.slow
@pytest.mark.parametrize(
    "launch",
    [
        doubled[(2, 2), (8, 8)],
        doubled_untyped[(2, 2), (8, 8)],
        adopted[(2, 2), (8, 8)],
        lambda *arrays: doubled_in_a_tuple[(2, 2), (8, 8)](arrays),
        lambda *arrays: doubled[(2, 2), (8, 8)](*[oxide.value(array).map(lambda box: box) for array in arrays]),
        lambda *arrays: doubled[(2, 2), (8, 8)](
            *[array if array.is_contiguous else oxide.Arc(array) for array in arrays]
        ),
    ],
    ids=["Array", "no annotation", "adopted", "tuple", "operations", "Arc"],
)
def test_an_array_parameter_takes_strided_views(launch: Any) -> None:
    data = np.random.default_rng(0).random((10, 12), np.float32)
    box = h2d(data).sync()
    for pick in (np.s_[:, :10], np.s_[:, ::2], np.s_[::-1, 1:4], np.s_[2:], np.s_[...]):
        for turned in (False, True):
            x, expected = (box[pick].T, data[pick].T) if turned else (box[pick], data[pick])
            for y in (
                zeros(x.shape).sync(),
                zeros(x.shape[::-1]).sync().T,
                zeros((15, 30)).sync()[1:, ::2][: x.shape[0], : x.shape[1]],
            ):
                launch(x, y).sync()
                np.testing.assert_array_equal(d2h(y).sync(), expected * 2)


def test_a_view_and_an_output_slice_share_a_launch() -> None:
    box = h2d(DATA).sync()
    _, out = scaled(box[1, 2, :, 3], zeros(4)).sync()
    np.testing.assert_array_equal(d2h(out).sync(), DATA[1, 2, :, 3] * 2)


def test_strided_arrays_have_ptx() -> None:
    from oxide.compiler.signature.signature import NumbaParameter
    from oxide.compiler.signature.untyped_arguments import ArrayType

    kind = ArrayType(np.dtype(np.float32), 2, True)
    special = doubled.specialization(tuple(NumbaParameter("doubled", name, kind) for name in "xy"))
    assert special.ptx((9, 0)) != doubled.ptx((9, 0))


@kernel(block=32)
def increment(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    index = thread.index_1d()
    element = y.get_mut(index)
    if element is not None:
        element.value = x[index.get()] + f32(1)


def test_a_slice_refuses_a_strided_view_before_anything_is_submitted() -> None:
    box = h2d(DATA).sync()
    column, plain = box[0, 0, :, 1], zeros(4).sync()
    message = (
        r"kernel increment, parameter {}: expected a device buffer of float32, got a strided view, of shape \(4,\) and "
        r"strides \(20,\) bytes: {}\[f32\] takes contiguous memory; dup\(view\) .*, and Array\[f32, 1\] takes strides"
    )
    with pytest.raises(ArgumentError, match=message.format("x", "Slice")):
        increment(column, plain)
    with pytest.raises(ArgumentError, match=message.format("y", "DisjointSlice")):
        increment(plain, oxide.Arc(column))
    with pytest.raises(ArgumentError, match=message.format("x", "Slice")):
        increment(value(column).map(lambda box: box), plain).sync()
    _, out = increment(dup(column), plain).sync()
    np.testing.assert_array_equal(d2h(out).sync(), DATA[0, 0, :, 1] + 1)
    increment(box[0, 0, 1][1:], box[1, 2, 3][:4]).sync()  # contiguous ones are slices as any box is
    np.testing.assert_array_equal(d2h(box[1, 2, 3, :4]).sync(), DATA[0, 0, 1, 1:] + 1)


def test_contiguous_views_as_outputs_are_judged_as_any_boxes() -> None:
    @kernel(block=32)
    def both(x: DisjointSlice[f32], y: DisjointSlice[f32]) -> None:
        index = thread.index_1d()
        first, second = x.get_mut(index), y.get_mut(index)
        if first is not None and second is not None:
            first.value = f32(1)
            second.value = f32(2)

    box = zeros(16).sync()
    both(box[:8], box[8:]).sync()
    assert d2h(box).sync().tolist() == [1.0] * 8 + [2.0] * 8
    with pytest.raises(ArgumentError, match="share memory, and two threads could write the same element"):
        both(box[:8], box[7:15])


# The sanitizer


@kernel(sanitize=BOTH)
def shifted(x: Array[f32, 1], out: Array[f32, 1], by: i32) -> None:
    i = cuda.grid(1)
    out[i] = x[i + by]  # here


@on_the_cpu_device
def test_the_sanitizer_knows_which_elements_of_a_box_are_a_views() -> None:
    box = h2d(DATA[0, 0]).sync()
    column = box[:, 1]
    shifted[1, 4](column, zeros(4), 0).sync()
    shifted[1, 4](column[::-1], zeros(4), 0).sync()
    error = error_of(shifted[1, 4](column, zeros(4), 1))
    assert (error.kind, error.what, error.line) == ("out-of-bounds", "x", line_of(shifted, "here"))
    assert error.thread == (3, 0, 0)
    error = error_of(shifted[1, 4](box[3], column[:3], 0))
    assert (error.what, error.access) == ("out", "write")
    np.testing.assert_array_equal(d2h(box).sync()[3], DATA[0, 0, 3])  # the write was not made


@kernel(sanitize=BOTH)
def second_column(x: Array[f32, 2], out: Array[f32, 1]) -> None:
    i = cuda.grid(1)
    out[i] = x[i, 1]


@on_the_cpu_device
def test_an_index_that_lands_between_the_elements_of_a_view_is_found() -> None:
    box = h2d(DATA[0, 0]).sync()
    second_column[1, 4](box[:, 2:4], zeros(4)).sync()
    error = error_of(second_column[1, 4](box[:, 2:3], zeros(4)))
    assert (error.kind, error.what, error.thread) == ("out-of-bounds", "x", (0, 0, 0))
    assert "x is a strided view, whose elements lie among 64 bytes; this is byte 4, and no element's" in str(error)


@kernel(sanitize=BOTH)
def both_write(x: Array[f32, 1], y: Array[f32, 1]) -> None:
    i = cuda.grid(1)
    if i % 2 == 0:
        x[i // 2] = 1.0
    else:
        y[i // 2] = 2.0


@on_the_cpu_device
def test_a_race_through_two_views_of_a_box_is_found() -> None:
    box = zeros((4, 4)).sync()
    both_write[1, 8](box[:, 0], box[:, 1]).sync()
    assert error_of(both_write[1, 8](box[1], box[:, 1])).kind == "race"


@on_the_cpu_device
def test_a_copy_of_a_view_says_nothing_of_what_was_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OXIDE_SANITIZE", "memory")
    box = oxide.empty((4, 4)).sync()
    dup(box[:, 1]).and_then(d2h).sync()


@pytest.mark.parametrize("driver", ["cpu", "foreign"])
def test_numpys_functions_refuse_a_box_of_any_device_and_name_d2h(driver: str) -> None:
    from tests.interop.test_interop_streams import Foreign

    with use_driver(Foreign() if driver == "foreign" else CpuDriver()):
        box = h2d(DATA).sync()
        uses = {
            "NumPy": lambda: np.asarray(box),
            "np.exp": lambda: np.exp(box),
            "np.add": lambda: np.ones(3) + box,
            "np.concatenate": lambda: np.concatenate([box, box]),
        }
        for name, use in uses.items():
            with pytest.raises(
                TypeError, match=rf"^{name} takes host arrays, not .*; d2h\(box\) copies it to the host"
            ):
                use()
        with pytest.raises(AttributeError, match=r"a DeviceBox has no copy_to_host; d2h\(box\).sync\(\) or await d2h"):
            box.copy_to_host()
        assert not hasattr(box, "__array_interface__")


def test_mt_exchanges_the_last_two_axes() -> None:
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    box = h2d(data).sync()
    for view, expected in ((box.mT, data.mT), (box[1].mT, data[1].mT), (box[:, 1:].mT, data[:, 1:].mT)):
        assert view.shape == expected.shape
        np.testing.assert_array_equal(d2h(view).sync(), expected)
    assert box.mT.mT.is_contiguous
    with pytest.raises(ValueError, match=r"mT exchanges the last two axes, and this box has shape \(24,\)"):
        _ = box.reshape(24).mT


@pytest.mark.parametrize("size", [np.int64(3), np.uint8(3), 3])
def test_a_size_may_be_an_integer_of_numpys(size: Any) -> None:
    assert zeros(size).sync().shape == (3,)
    assert zeros((size, size)).sync().shape == (3, 3)


@pytest.mark.parametrize("dtype", [">f8", ">i4"] if sys.byteorder == "little" else ["<f8", "<i4"])
def test_numbers_in_the_other_byte_order_are_refused(dtype: str) -> None:
    with pytest.raises(TypeError, match="numbers in the machine's byte order are"):
        h2d(np.ones(3, dtype)).sync()


def test_a_size_is_no_bool() -> None:
    with pytest.raises(TypeError, match="a shape is an int or a tuple of ints, not True"):
        zeros(True)
