"""Elementwise stages before and after kernels that are not elementwise: ``op.fused()`` and ``op.explain()``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import pytest

import oxide
from oxide import (
    BoundsError,
    DeviceBox,
    DeviceOperation,
    DisjointSlice,
    DisjointSlice2,
    SharedArray,
    Slice,
    Slice2,
    bf16,
    empty,
    f16,
    f32,
    f64,
    h2d,
    i64,
    kernel,
    thread,
    zeros,
)
from oxide.testing import RecordingDriver, step_driver, use_driver
from oxide_kernels import gelu, layer_norm, matmul, ops, reduce_max, relu, rms_norm, silu, softmax
from oxide_kernels.operands import Operand, with_boxes

T = TypeVar("T", f16, bf16, f32, f64)
U = TypeVar("U", f16, bf16, f32, f64)
DTYPES = {f16: np.float16, bf16: ml_dtypes.bfloat16, f32: np.float32, f64: np.float64}
SHAPES = ((1, 1), (3, 4), (7, 129), (3, 1003), (2, 2048), (1, 40001), (5, 33), (2, 1024))


@kernel(block=64)
def scale(a: T, x: Slice[T], y: DisjointSlice[T]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = a * x[i.get()]


@kernel(block=64)
def add(x: Slice[T], y: Slice[T], z: DisjointSlice[T]) -> None:
    i = thread.index_1d()
    e = z.get_mut(i)
    if e is not None:
        e.value = x[i.get()] + y[i.get()]


@kernel(block=64)
def converted(x: Slice[T], y: DisjointSlice[U]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = y.dtype(x[i.get()])


@kernel(block=64)
def clip_some(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None and x[i.get()] > f32(0):
        e.value = x[i.get()]


@kernel(block=(16, 16), requires=("len(mask) >= y.shape[1]",))
def mask_columns(x: Slice2[f32], mask: Slice[f32], y: DisjointSlice2[f32]) -> None:
    row, column = thread.index_2d_row(), thread.index_2d_col()
    index = thread.index_2d(y.shape[1])
    if index is None:
        return
    e = y.get_mut(index)
    if e is not None:
        e.value = x[row, column] + mask[column] * f32(row)


@kernel(block=128)
def block_sums(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """y[b] is the sum of block b's elements, made in shared memory."""
    shared = SharedArray(128, f32)
    t = thread.thread_idx.x
    i = thread.block_idx.x * 128 + t
    shared[t] = x[i] if i < len(x) else f32(0)
    half = 64
    while half > 0:
        thread.sync_threads()
        if t < half:
            shared[t] += shared[t + half]
        half = half // 2
    if t == 0:
        y.scatter[thread.block_idx.x] = shared[0]


@kernel(block=64)
def broadcast(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    """Each block reads the first elements."""
    y.scatter[thread.block_idx.x * 64 + thread.thread_idx.x] = x[thread.thread_idx.x]


@kernel(block=64)
def copied(x: Slice[f32], by: i64, y: DisjointSlice[f32]) -> None:
    i = thread.block_idx.x * 64 + thread.thread_idx.x
    if i < len(y):
        y.scatter[i] = x[i + by]


@kernel(block=64)
def looked_up(table: Slice[f32], x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = table[i64(x[i.get()])]


def numbers(shape: Any, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def boxes(shape: Any, dtype: Any = np.float32, count: int = 2) -> list[DeviceBox]:
    return [h2d(numbers(shape, dtype, seed)).sync() for seed in range(count)]


def masked(x: DeviceBox, mask: DeviceBox) -> DeviceOperation[DeviceBox]:
    """0.3 x + mask, in two launches."""
    scaled = scale(0.3, x, empty(x.shape, x.dtype)).last()
    return scaled.and_then(lambda box: add(box, mask, empty(x.shape, x.dtype)).last())


def bits(operation: DeviceOperation[DeviceBox]) -> bytes:
    return operation.to_host().sync().tobytes()


def launches(operation: DeviceOperation[Any]) -> str:
    return operation.explain().splitlines()[0]


def reasons(operation: DeviceOperation[Any]) -> list[str]:
    return [line for line in operation.explain().splitlines() if "not fused" in line]


def normed(operand: Operand) -> DeviceOperation[DeviceBox]:
    def of(x: DeviceBox) -> DeviceOperation[DeviceBox]:
        weight, bias = (h2d(numbers(x.shape[-1], x.dtype, seed)) for seed in (5, 6))
        return ops.layer_norm(x, weight, bias)

    return with_boxes(of, operand)


CONSUMERS: dict[str, Callable[[Operand], DeviceOperation[DeviceBox]]] = {
    "softmax": ops.softmax,
    "layer_norm": normed,
    "reduce_sum": ops.reduce_sum,
    "reduce_max": ops.reduce_max,
    "argmax": ops.argmax,
}


@pytest.mark.nightly
@pytest.mark.parametrize(("dtype", "shapes"), [(f16, 3), (bf16, 1), (f32, len(SHAPES)), (f64, 4)], ids=str)
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_stages_before_a_library_kernel_give_the_same_bits(consumer: str, dtype: Any, shapes: int) -> None:
    for shape in SHAPES[-shapes:]:
        compare(consumer, shape, dtype)


def on_cpu() -> bool:
    return oxide.devices()[0].kind == "cpu"


def compare(consumer: str, shape: Any, dtype: Any) -> None:
    x, mask = boxes(shape, DTYPES[dtype])
    operation = masked(x, mask).and_then(CONSUMERS[consumer])
    assert any(line.startswith("scale + add + ") for line in operation.explain().splitlines()), operation.explain()
    assert bits(operation.fused()) == bits(operation)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(f16, f32), (f32, f16), (f32, f64), (f64, bf16)], ids=str)
@pytest.mark.parametrize("shape", [(3, 33), (2, 1024), (3, 1000)], ids=str)
def test_stages_of_other_types_than_the_kernels(first: Any, second: Any, shape: Any) -> None:
    x = h2d(numbers(shape, DTYPES[first])).sync()
    operation = converted(x, empty(shape, second)).last().and_then(ops.softmax)
    assert launches(operation) == "launches: 2 -> 1", operation.explain()
    assert bits(operation.fused()) == bits(operation)


def into_part(x: DeviceBox, place: int, between: DeviceBox) -> DeviceOperation[DeviceBox]:
    return scale(0.3, x, between[place : place + x.size]).last()


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("width", [64, 1024])
def test_inputs_that_are_not_aligned(place: int, width: int) -> None:
    x, y = boxes(4 * width + 3)
    for first, second in (
        (x[place : place + 4 * width], y[: 4 * width]),
        (x[: 4 * width], y[place : place + 4 * width]),
    ):
        operation = masked(first.reshape(4, width), second.reshape(4, width)).and_then(ops.softmax)
        assert launches(operation) == "launches: 3 -> 1"
        assert bits(operation.fused()) == bits(operation)
        total = zeros(4 * width + 3).and_then(partial(into_part, first, place)).and_then(ops.reduce_sum)
        assert launches(total) == "launches: 3 -> 2"
        assert bits(total.fused()) == bits(total)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (17, 128)], ids=str)
def test_stages_on_rows_and_columns(shape: Any) -> None:
    (x,) = boxes(shape, count=1)
    (mask,) = boxes(shape[1], count=1)
    operation = (
        mask_columns(x, mask, empty(shape)).last().and_then(lambda box: relu(box, empty(shape)).last())
    ).and_then(ops.softmax)
    assert launches(operation) == "launches: 3 -> 1"
    assert bits(operation.fused()) == bits(operation)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 127, 128, 1000])
def test_stages_before_a_kernel_with_barriers_of_the_program(size: int) -> None:
    x, mask = boxes(size)
    operation = masked(x, mask).and_then(
        lambda box: block_sums[-(-size // 128), 128](box, empty(-(-size // 128))).last()
    )
    assert launches(operation) == "launches: 3 -> 1"
    assert bits(operation.fused()) == bits(operation)
    graph = operation.to_host().graph(fuse=True)
    graph.launch().sync()
    assert graph.take_output().tobytes() == bits(operation)


def test_elements_that_a_stage_leaves_are_read_from_its_memory() -> None:
    x, before = boxes((3, 33))
    operation = oxide.dup(before).and_then(lambda box: clip_some(x, box).last()).and_then(ops.softmax)
    assert launches(operation) == "launches: 2 -> 1"
    assert bits(operation.fused()) == bits(operation)


def test_a_computed_slice_is_neither_written_nor_read() -> None:
    with use_driver(RecordingDriver(step_driver())) as driver:
        x, mask = boxes((4, 256))
        out = zeros((4, 256)).sync()
        operation = masked(x, mask).and_then(lambda box: softmax(box, out).last())
        graph = operation.graph(fuse=True)
        assert graph.summary() == "1 launch, 0 copies"
        assert graph.memory().after == 0
        assert operation.explain().splitlines()[1] == "memory traffic saved: 16 KiB a run"
        plan = operation.fused()
        driver.clear()
        plan.sync()
        assert driver.count("launch") == 1


def test_a_fault_names_the_kernel_that_reads_and_its_place() -> None:
    x, mask = boxes(100)
    operation = masked(x, mask).and_then(lambda box: copied[2, 64](box, 7, empty(100)).last())
    assert launches(operation) == "launches: 3 -> 1"
    with pytest.raises(BoundsError) as caught:
        operation.fused().sync()
    error = caught.value
    assert (error.kernel, error.parameter, error.length) == ("copied", "x", 100)
    assert error.index in range(100, 107)
    assert (error.file, error.line) == (__file__, inspect.getsourcelines(copied.function)[1] + 4)
    assert "in <oxide launch of copied>" in "\n".join(error.__notes__)


def test_explain_says_why_stages_are_no_prologue() -> None:
    x, y, t = (zeros((10, 10)).sync() for _ in range(3))
    row = zeros(10).sync()

    def temporary(then: Callable[[DeviceBox], DeviceOperation[Any]], size: Any = (10, 10)) -> DeviceOperation[Any]:
        source = x if size == (10, 10) else row
        return scale(2.0, source, empty(size)).last().and_then(then)

    most = zeros(()).sync()
    many, tall = zeros(1000).sync(), zeros((1000, 10)).sync()
    for operation, expected in (
        (
            oxide.zip(scale(2.0, x, t), softmax(t, y)),
            "softmax is not fused: its threads have no index: it uses neither thread.index_1d() nor thread.index_2d(); "
            "scale cannot be its prologue: other launches or the program need the result, too",
        ),
        (
            temporary(lambda box: oxide.zip(softmax(box, y).last(), softmax(box, empty((10, 10))).last())),
            "scale cannot be its prologue: other launches or the program need the result, too",
        ),
        (
            temporary(lambda box: softmax(box, x).last()),
            "scale cannot be its prologue: it writes output, which is an array of theirs",
        ),
        (
            temporary(lambda box: layer_norm(tall, box, row, empty((1000, 10))).last(), 10),
            "scale cannot be its prologue: threads with different ctaid.x read the same elements of weight",
        ),
        (
            scale(2.0, many, empty(1000)).last().and_then(lambda box: broadcast[15, 64](box, empty(960)).last()),
            "scale cannot be its prologue: threads with different ctaid.x read the same elements of x",
        ),
        (
            looked_up(row, row, empty(10)).last().and_then(lambda box: ops.reduce_sum(box)),
            "looked_up cannot be its prologue: looked_up has checks, which would be done only for the elements that "
            "are read",
        ),
        (
            temporary(lambda box: matmul(box, y, empty((10, 10))).last()),
            "scale cannot be its prologue: it accesses a in other ways than by loads of its elements",
        ),
        (
            temporary(lambda box: oxide.zip(rms_norm(box, row, y).last(), reduce_max(box[1:], most).last())),
            "scale cannot be its prologue: other launches or the program need the result, too",
        ),
    ):
        if on_cpu() or "accesses a in other ways" not in expected:
            assert any(expected in line for line in reasons(operation)), operation.explain()
        operation.fused().sync()


@kernel(block=64)
def backwards(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d().get()
    if i < len(x):
        y.scatter[len(x) - 1 - i] = x[i] + x[i]


def test_a_stage_before_a_kernel_that_writes_at_computed_places() -> None:
    """The kernel has no loop and no barrier, so the CPU device runs its threads as a loop of its own."""
    x = numbers(1000, np.float32)
    operation = relu(h2d(x), empty(1000)).last().and_then(lambda y: backwards(y, empty(1000)).last())
    if on_cpu():
        assert launches(operation) == "launches: 2 -> 1"
    assert bits(operation.fused()) == bits(operation)
    assert bits(operation) == (2 * np.maximum(x, 0)[::-1]).tobytes()


# Epilogues


@pytest.mark.slow
@pytest.mark.parametrize("activation", [relu, gelu, silu], ids=lambda each: each.name)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1), (65, 33, 17), (128, 64, 128)], ids=str)
def test_an_activation_after_a_product_gives_the_same_bits(shape: Any, dtype: Any, activation: Any) -> None:
    m, k, n = shape
    a, b = (h2d(numbers(each, DTYPES[dtype])).sync() for each in ((m, k), (k, n)))
    (bias,) = boxes(n, DTYPES[dtype], 1)
    for product in (
        matmul(a, b, empty((m, n), dtype)).last(),
        matmul(a, b, empty((m, n), dtype), bias=bias).last(),
        matmul(a, b, empty((m, n), dtype), alpha=0.7).last(),
    ):
        operation = product.and_then(lambda c: activation(c, empty((m, n), dtype)).last())
        line = f" + {activation.name}: 2 launches -> 1"  # a GPU has kernels of its own for products
        assert any(line in each for each in operation.explain().splitlines()), operation.explain()
        assert bits(operation.fused()) == bits(operation)


def test_an_activation_in_place_and_one_that_other_stages_follow() -> None:
    a, b = boxes((70, 70))
    c = zeros((70, 70)).sync()
    in_place = oxide.zip(matmul(a, b, c), relu(c, c)).map(lambda _: c)
    if on_cpu():
        assert launches(in_place) == "launches: 2 -> 1"
    assert bits(in_place.fused()) == bits(in_place)
    longer = ops.relu(ops.matmul(a, b)).and_then(lambda y: scale(0.3, y, zeros((70, 70))).last()).and_then(ops.softmax)
    if on_cpu():
        assert launches(longer) == "launches: 4 -> 2"
    assert bits(longer.fused()) == bits(longer)


def test_explain_says_why_a_stage_is_no_epilogue() -> None:
    a, b = boxes((20, 20))
    narrow = [h2d(numbers((20, 20), np.float16)).sync() for _ in range(2)]
    c, y = zeros((20, 20)).sync(), zeros((20, 20)).sync()
    for operation, expected in (
        (oxide.zip(matmul(a, b, c), relu(c, y)), "relu cannot be its epilogue: the result itself is needed, too"),
        (
            ops.relu(ops.matmul(narrow[0], narrow[1])),
            "relu cannot be its epilogue: it would be computed before the result is rounded to f16, which gives other "
            "bits",
        ),
        (
            ops.matmul(a, b).and_then(lambda found: relu(found, a).last()),
            "relu cannot be its epilogue: it writes memory that is read",
        ),
        (
            ops.matmul(a, b).and_then(lambda found: scale(2.0, found, y).last()),
            "scale cannot be its epilogue: its epilogues are relu, gelu, silu",
        ),
        (ops.relu(ops.matmul(a, b, activation="relu")), "relu cannot be its epilogue: it computes relu already"),
        (
            oxide.zip(matmul(a, b, c, beta=1.0), relu(c, c)),
            "relu cannot be its epilogue: it reads its result",
        ),
        (ops.relu(ops.softmax(a)), "relu cannot be its epilogue: it has no form with an epilogue"),
    ):
        if on_cpu() or "accesses a in other ways" not in expected:
            assert any(expected in line for line in reasons(operation)), operation.explain()
        operation.fused().sync()
