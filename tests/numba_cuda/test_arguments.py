"""What a kernel with numba-cuda's semantics takes: parameters without annotations, ``Array``, records, tuples."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import cuda

from oxide import (
    ArgumentError,
    Array,
    CompileError,
    DisjointSlice,
    KernelFault,
    Slice,
    d2h,
    empty,
    f32,
    f64,
    h2d,
    i32,
    i64,
    kernel,
    thread,
    value,
    zeros,
)
from tests.numba_cuda.launching import launch

RNG = np.random.default_rng(5)


@kernel
def store(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x


@kernel
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 1025])
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64, np.float32, np.float64, np.complex128])
def test_an_array_without_an_annotation_has_the_type_of_its_box(n: int, dtype: Any) -> None:
    x = RNG.integers(0, 50, n).astype(dtype)
    y = RNG.integers(0, 50, n).astype(dtype)
    _, _, out = launch(add, max(1, -(-n // 64)), 64, x, y, np.zeros(n, dtype))
    np.testing.assert_array_equal(out, x + y)


@pytest.mark.parametrize(
    "number", [3, -3, 2**63, 2.5, True, 1 + 2j, np.int8(-7), np.uint64(2**64 - 1), np.float32(0.1), np.complex64(1j)]
)
def test_a_scalar_without_an_annotation_has_the_type_of_its_value(number: Any) -> None:
    dtype = np.asarray(number).dtype
    assert launch(store, 1, 1, number, np.zeros(1, dtype))[0] == number


def test_a_kernel_is_compiled_once_for_each_choice_of_types() -> None:
    @kernel
    def fill(x, out):
        out[0] = x

    for number in (1, 2, 3, np.int64(4)):
        launch(fill, 1, 1, number, np.zeros(1))
    assert len(fill._specializations) == 1
    launch(fill, 1, 1, 1.5, np.zeros(1))
    launch(fill, 1, 1, 1.5, np.zeros(1, np.float32))
    assert len(fill._specializations) == 3


def test_scalars_and_arrays_mix_in_a_typed_kernel() -> None:
    @kernel
    def scale(factor: f32, x: Array[f32, 1], shift: i32, out: Array[f32, 1]) -> None:  # type: ignore[valid-type]
        i = cuda.grid(1)
        if i < out.size:
            out[i] = factor * x[i] + shift  # type: ignore[index]

    x = RNG.random(100).astype(np.float32)
    _, out = launch(scale, 4, 32, 3, x, -2, np.zeros(100, np.float32))
    np.testing.assert_allclose(out, 3 * x - 2, rtol=1e-6)


def test_slices_keep_their_checks_and_their_rules_beside_arrays() -> None:
    @kernel
    def gather(index: Array[i64, 1], x: Slice[f32], out: DisjointSlice[f32]) -> None:  # type: ignore[valid-type]
        t = thread.index_1d()
        element = out.get_mut(t)
        if element is not None:
            element.value = x[index[t.get()]]  # type: ignore[index]

    x = RNG.random(10).astype(np.float32)
    index = RNG.integers(0, 10, 33)
    _, _, out = launch(gather, 2, 32, index, x, np.zeros(33, np.float32))
    np.testing.assert_array_equal(out, x[index])
    index[7] = 10
    with pytest.raises(KernelFault, match="x"):
        launch(gather, 2, 32, index, x, np.zeros(33, np.float32))

    @kernel
    def two_widths(n: i64, out: DisjointSlice[f32]) -> None:
        first = out.get_mut(thread.index_2d(5))
        if first is not None:
            first.value = 1.0
        second = out.get_mut(thread.index_2d(n))
        if second is not None:
            second.value = 2.0

    with pytest.raises(CompileError, match=r"thread\.index_2d is called with width"):
        launch(two_widths, 1, 1, 3, np.zeros(9, np.float32))


def test_an_array_parameter_takes_a_box_of_its_dtype_and_number_of_axes() -> None:
    @kernel
    def total(x: Array[f64, 2], out: Array[f64, 1]) -> None:  # type: ignore[valid-type]
        for i in range(x.shape[0]):  # type: ignore[attr-defined]
            for j in range(x.shape[1]):  # type: ignore[attr-defined]
                out[0] += x[i, j]  # type: ignore[index]

    x = RNG.random((3, 5))
    _, out = launch(total, 1, 1, x, np.zeros(1))
    np.testing.assert_allclose(out[0], x.sum())
    with pytest.raises(ArgumentError, match=r"parameter x: expected Array\[float64, 2\], got Array\[float32, 2\]"):
        launch(total, 1, 1, x.astype(np.float32), np.zeros(1))
    with pytest.raises(ArgumentError, match=r"expected Array\[float64, 2\], got Array\[float64, 1\]"):
        launch(total, 1, 1, x[0], np.zeros(1))
    with pytest.raises(ArgumentError, match=r"expected Array\[float64, 2\], got float64"):
        total[1, 1](1.0, zeros(1, f64))


def test_an_array_annotation_that_says_too_little_is_refused() -> None:
    with pytest.raises(CompileError, match=r"annotated Array; say of what"):

        @kernel
        def bare(x: Array) -> None:  # type: ignore[type-arg]
            pass

    with pytest.raises(TypeError, match="give the number of axes"):
        Array[f32, 1.5]  # type: ignore[valid-type]


def test_a_host_array_is_refused_with_what_to_do() -> None:
    with pytest.raises(ArgumentError, match=r"kernel add, parameter x: a NumPy array.*h2d\(array\).*d2h\(box\)"):
        add[1, 1](np.zeros(3), np.zeros(3), np.zeros(3))
    with pytest.raises(ArgumentError, match="a record, which is in host memory"):
        store[1, 1](np.zeros(1, [("a", "f4")])[0], zeros(1))
    with pytest.raises(ArgumentError, match="kernels take numbers, members of enumerations, None, device buffers"):
        store[1, 1]("text", zeros(1))
    with pytest.raises(ArgumentError, match="takes 3 arguments"):
        add[1, 1](zeros(1))


def test_operations_are_arguments_where_they_say_what_they_yield() -> None:
    x = RNG.random(40)
    result = add[2, 32](h2d(x), h2d(x), zeros(40, f64)).last()
    np.testing.assert_allclose(d2h(result).sync(), 2 * x)
    with pytest.raises(ArgumentError, match="does not say beforehand what it yields"):
        add[2, 32](value(1).and_then(lambda _: h2d(x)), h2d(x), zeros(40, f64))


class Point(NamedTuple):
    x: float
    y: int


class Colour(enum.IntEnum):
    RED = 7
    BLUE = 9


class Planet(enum.Enum):
    EARTH = (1.0, 2.0)
    MARS = (3.0, 4.0)


def test_tuples_and_named_tuples_are_passed_by_their_elements() -> None:
    @kernel
    def use(pair, point, arrays, out):
        out[0] = pair[0] + pair[1]
        out[1] = point.x * point.y
        out[2] = arrays[0][1] + arrays[1][0, 0]

    arrays = (h2d(np.arange(3.0)).sync(), h2d(np.full((1, 1), 5, np.int32)).sync())
    out = h2d(np.zeros(3)).sync()
    use[1, 1]((1, 2.5), Point(1.5, 4), arrays, out).sync()
    assert d2h(out).sync().tolist() == [3.5, 6.0, 6.0]


def test_members_of_enumerations_are_passed_by_their_value() -> None:
    @kernel
    def use(colour, planet, out):
        if colour == Colour.BLUE:
            out[0] = colour + 1
        if planet != Planet.EARTH:
            out[1] = 1

    assert launch(use, 1, 1, Colour.BLUE, Planet.MARS, np.zeros(2)).tolist() == [10, 1]
    assert launch(use, 1, 1, Colour.RED, Planet.EARTH, np.zeros(2)).tolist() == [0, 0]


RECORD = np.dtype([("a", np.float64), ("b", np.int32), ("v", np.float32, (3,))], align=True)


def test_records_are_read_and_written_by_field() -> None:
    @kernel
    def use(one, many):
        i = cuda.grid(1)
        if i < many.size:
            many[i].a = one.a + i
            many[i].b = one.b * i
            for k in range(3):
                many[i].v[k] = k * i
        if i == 0:
            one.v[2] = -1  # which no thread reads

    one = np.zeros((), RECORD)
    one["a"], one["b"] = 0.5, 3
    got, many = launch(use, 2, 32, one, np.zeros(33, RECORD))
    i = np.arange(33)
    np.testing.assert_array_equal(many["a"], 0.5 + i)
    np.testing.assert_array_equal(many["b"], 3 * i)
    np.testing.assert_array_equal(many["v"], np.arange(3) * i[:, None])
    assert got["v"].tolist() == [0, 0, -1]


def test_an_empty_box_of_records_is_one_to_write_into() -> None:
    @kernel
    def fill(many):
        i = cuda.grid(1)
        many[i].a = 0.5 * i
        many[i].b = i

    many = empty(32, RECORD).sync()
    found = d2h(fill[1, 32](many).sync()[0]).sync()
    np.testing.assert_array_equal(found["a"], 0.5 * np.arange(32))
    np.testing.assert_array_equal(found["b"], np.arange(32))
    with pytest.raises(TypeError, match="empty: dtype object is not supported"):
        empty(3, np.dtype([("a", object)]))  # type: ignore[arg-type]


def test_dates_and_fixed_strings_are_data() -> None:
    @kernel
    def difference(x, y, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] - y[i]

    days = np.array(["2024-02-28", "2024-03-01"], "datetime64[D]")
    _, _, out = launch(difference, 1, 32, days[1:], days[:1], np.zeros(1, "timedelta64[D]"))
    assert out[0] == np.timedelta64(2, "D")


def test_a_kernel_of_numba_cudas_is_adopted() -> None:
    @cuda.jit
    def times(x, factor, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] * factor

    adopted = kernel(times)
    assert adopted.name == "times"
    x = RNG.random(50)
    _, out = launch(adopted, 2, 32, x, 2, np.zeros(50))
    np.testing.assert_allclose(out, 2 * x)


class Declared:
    """A dispatcher as ``cuda.jit`` makes it of a function and explicit signatures, which needs a GPU."""

    def __init__(self, function: Any, *signatures: Any) -> None:
        self.py_func = function
        self.targetoptions: dict[str, Any] = {}
        self.overloads = dict.fromkeys(signatures)
        self._can_compile = False


def test_the_explicit_signatures_of_an_adopted_kernel_convert_its_arguments() -> None:
    from numba import types

    def times(factor, out):
        out[0] = factor / 2

    array = types.Array(types.float64, 1, "A")
    adopted = kernel(Declared(times, (types.int32, array), (types.complex128, array)))  # type: ignore[arg-type]
    assert launch(adopted, 1, 1, 2**32 + 5, np.zeros(1))[0] == 2.5  # wrapped to 32 bits
    with pytest.raises(ArgumentError, match=r"kernel times takes \(int32, Array\[float64, 1\]\); .*\); convert them"):
        launch(adopted, 1, 1, 1, np.zeros(1, np.float32))


def test_asking_for_machine_code_needs_the_types_that_a_launch_would_say() -> None:
    with pytest.raises(ArgumentError, match=r"say what x is, as in add.specialize\(x=Array\[f32, 1\]"):
        add.ptx()
    text = add.specialize(x=Array[f32, 1], y=Array[f64, 1], out=Array[f64, 1]).ptx()  # type: ignore[valid-type]
    assert ".entry add" in text
    assert "cvt.f64.f32" in text
    with pytest.raises(ArgumentError, match="parameter x, which has no annotation, cannot be 3"):
        add.specialize(x=3, y=f32, out=f32)
