"""A fused kernel computes what the launches of its stages compute, bit for bit, and touches no memory between them."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxide import (
    BoundsError,
    DisjointSlice,
    DisjointSlice2,
    Kernel,
    KernelAssertionError,
    LaunchError,
    Slice,
    Slice2,
    bf16,
    bool_,
    d2h,
    f16,
    f32,
    f64,
    h2d,
    i8,
    i32,
    i64,
    kernel,
    memcpy,
    thread,
    u16,
    zeros,
)
from oxide.compiler.fusion.fusion import FusedKernel, Stage, fused
from oxide_kernels import axpy, gelu, relu, sigmoid, silu

T = TypeVar("T", f16, bf16, f32, f64)
DTYPES = {f16: np.float16, bf16: ml_dtypes.bfloat16, f32: np.float32, f64: np.float64}
ROOT = Path(__file__).parents[3]
SIZES = (0, 1, 3, 4, 31, 33, 1_000_003)


@kernel(block=128)
def scale(a: T, x: Slice[T], y: DisjointSlice[T]) -> None:
    e = y.get_mut(thread.index_1d())
    if e is not None:
        e.value = a * x[thread.index_1d().get()]


@kernel(block=64)
def add(x: Slice[T], y: Slice[T], z: DisjointSlice[T]) -> None:
    i = thread.index_1d()
    e = z.get_mut(i)
    if e is not None:
        e.value = x[i.get()] + y[i.get()]


@kernel(block=64)
def subtract_from(x: Slice[T], y: DisjointSlice[T]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is None:
        return
    e.value -= x[i.get()]


@kernel(block=64)
def clip_some(x: Slice[T], y: DisjointSlice[T]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None and x[i.get()] > x[i.get()] - x[i.get()]:
        e.value = x[i.get()]


def bits(array: np.ndarray[Any, Any]) -> bytes:
    """The bits of an array, with one NaN for all: which NaN an operation on NaNs gives is not specified."""
    return np.where(np.isnan(array), array.dtype.type(np.nan), array).tobytes()


def numbers(n: int, dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    """Numbers of many magnitudes, some infinite."""
    random = np.random.default_rng(seed)
    found = random.standard_normal(n) * 2.0 ** random.integers(-12, 12, n)
    found[random.random(n) < 0.01] = np.inf
    return found.astype(dtype)


def compare(stages: list[tuple[Kernel, tuple[int, ...]]], values: dict[int, Any], dead: set[int], dtype: Any) -> None:
    """Launches the stages one by one, and their fused kernel, and compares the arrays that are not dead."""
    made = fused([Stage(stage.specialize(T=dtype), places) for stage, places in stages], dead)
    arrays = {place for place, value in values.items() if isinstance(value, np.ndarray)}
    first = {place: h2d(value).sync() if place in arrays else value for place, value in values.items()}
    for stage, places in stages:
        stage(*[first[place] for place in places]).sync()
    second = {place: h2d(value).sync() if place in arrays else value for place, value in values.items()}
    made.kernel(*[second[place] for place in made.arguments]).sync()
    for place in arrays:
        expected = values[place] if place in dead else d2h(first[place]).sync()
        assert bits(d2h(second[place]).sync()) == bits(expected), place


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", SIZES)
def test_gelu_scale_add_relu(dtype: Any, n: int) -> None:
    x = numbers(n, DTYPES[dtype])
    values = {0: x, 1: np.zeros_like(x), 2: 0.625, 3: np.zeros_like(x), 4: np.zeros_like(x), 5: np.zeros_like(x)}
    compare([(gelu, (0, 1)), (scale, (2, 1, 3)), (add, (3, 0, 4)), (relu, (4, 5))], values, {1, 3, 4}, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_and_a_difference_of_two_stages_are_not_contracted(dtype: Any) -> None:
    x, y = numbers(10_007, DTYPES[dtype], 1), numbers(10_007, DTYPES[dtype], 2)
    values = {0: x, 1: 1.1, 2: np.zeros_like(x), 3: y}
    compare([(scale, (1, 0, 2)), (subtract_from, (2, 3))], values, {2}, dtype)
    compare([(scale, (1, 0, 2)), (add, (2, 3, 3))], values, {2}, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("library_kernel", [relu, gelu, silu, sigmoid, axpy], ids=lambda each: each.name)
def test_the_form_of_a_library_kernel_that_is_fused_gives_the_same_bits(library_kernel: Kernel, dtype: Any) -> None:
    x = numbers(1003, DTYPES[dtype])
    x[:4] = np.nan, -np.inf, -0.0, 0.0
    values = {0: x, 1: numbers(1003, DTYPES[dtype], 1), 2: 1.5}
    places = (2, 0, 1) if library_kernel is axpy else (0, 1)
    compare([(library_kernel, places)], values, set(), dtype)


def test_a_value_that_is_needed_is_written_and_forwarded() -> None:
    x = numbers(1001, np.float32)
    values = {0: x, 1: np.zeros_like(x), 2: 3.0, 3: np.zeros_like(x)}
    stages = [(scale, (2, 0, 1)), (relu, (1, 3))]
    compare(stages, values, set(), f32)
    made = fused([Stage(each.specialize(T=f32), places) for each, places in stages])
    assert vector_accesses(made) == (1, 2)


@pytest.mark.parametrize("dtype", [i8, u16, i64, bool_], ids=str)
def test_elements_that_are_no_floats(dtype: Any) -> None:
    @kernel(block=64)
    def inverted(x: Slice[dtype], y: DisjointSlice[dtype]) -> None:  # type: ignore[valid-type]
        i = thread.index_1d()
        e = y.get_mut(i)
        if e is not None:
            e.value = x[i.get()] ^ dtype(1)

    special = inverted.specialize()
    made = fused([Stage(special, (0, 1)), Stage(special, (1, 2)), Stage(special, (2, 3))], {1, 2})
    x = np.random.default_rng(0).integers(0, 2, 1003).astype(dtype.dtype)
    y = zeros(1003, dtype).sync()
    made.kernel(h2d(x).sync(), y).sync()
    assert np.array_equal(d2h(y).sync(), x ^ x.dtype.type(1))


def test_in_place_stages() -> None:
    x = numbers(1001, np.float32)
    compare([(relu, (0, 0)), (scale, (1, 0, 0)), (axpy, (1, 0, 0))], {0: x, 1: 0.3}, set(), f32)


@pytest.mark.parametrize("dead", [set(), {1}])
def test_elements_that_a_stage_may_leave_keep_their_content(dead: set[int]) -> None:
    x = numbers(1001, np.float32)
    values = {0: x, 1: numbers(1001, np.float32, 1), 2: np.zeros_like(x)}
    compare([(clip_some, (0, 1)), (relu, (1, 2))], values, dead, f32)
    compare([(clip_some, (0, 1)), (relu, (0, 2))], values, set(), f32)


def test_misaligned_arrays() -> None:
    x, y = h2d(numbers(1001, np.float32)).sync(), zeros(1001, f32).sync()
    made = fused([Stage(relu.specialize(T=f32), (0, 1)), Stage(relu.specialize(T=f32), (1, 2))], {1})
    made.kernel(x[1:], y[1:]).sync()
    assert bits(d2h(y).sync()) == bits(np.concatenate([[np.float32(0)], np.maximum(d2h(x).sync()[1:], 0)]))


@kernel(block=(32, 8))
def bias(x: Slice2[f32], b: Slice[f32], y: DisjointSlice2[f32]) -> None:
    row, column = thread.index_2d_row(), thread.index_2d_col()
    e = y.get_mut(thread.index_2d(y.shape[1]))
    if e is not None:
        e.value = x[row, column] + b[column] * f32(row)


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (1, 9), (9, 1), (3, 4), (7, 5), (33, 1023)])
@pytest.mark.parametrize("dead", [{1, 3, 5}, {1}, {3, 5}, set()])
def test_stages_on_rows_and_columns(shape: tuple[int, int], dead: set[int]) -> None:
    def array(seed: int) -> np.ndarray[Any, Any]:
        return numbers(shape[0] * shape[1], np.float32, seed).reshape(shape)

    values = {0: array(0), 1: array(1), 2: numbers(shape[1], np.float32, 2), 3: array(3), 4: 0.7, 5: array(5)}
    values |= {6: array(6), 7: array(7)}
    first, last = gelu.specialize(T=f32), scale.specialize(T=f32)
    stages = [
        Stage(first, (0, 1)),
        Stage(bias.specialize(), (1, 2, 3)),
        Stage(last, (4, 3, 5)),
        Stage(bias.specialize(), (5, 2, 6)),
        Stage(first, (6, 7)),
    ]
    boxes = {place: h2d(value).sync() if place != 4 else value for place, value in values.items()}
    other = {place: h2d(value).sync() if place != 4 else value for place, value in values.items()}
    for stage in stages:
        stage.special.kernel(*[boxes[place] for place in stage.values]).sync()
    made = fused(stages, dead)
    made.kernel(*[other[place] for place in made.arguments]).sync()
    for place in {1, 3, 5, 6, 7} - dead:
        assert bits(d2h(other[place]).sync()) == bits(d2h(boxes[place]).sync()), place


def test_a_matrix_whose_shape_alone_is_needed_is_passed() -> None:
    special = relu.specialize(T=f32)
    stages = [Stage(special, (0, 1)), Stage(bias.specialize(), (1, 2, 3)), Stage(special, (3, 4))]
    made = fused(stages, {1, 3})
    assert made.arguments == (0, 1, 2, 4)
    assert made.kernel.specialize().ptx().count("ld.global.v4") == 1
    x, between, b, y = (zeros(shape, f32).sync() for shape in ((4, 5), (4, 6), 5, (4, 5)))
    with pytest.raises(LaunchError, match=re.escape("len(relu_input) == relu_output.shape[0] * relu_output.shape[1]")):
        made.kernel(x, between, b, y)


def vector_accesses(made: FusedKernel) -> tuple[int, int]:
    """The number of vector loads and stores in the kernel's PTX; as many scalar ones are behind the last vector."""
    ptx = made.kernel.specialize().ptx()
    loads, stores = (re.findall(rf"\b{word}\.global(\.v4)?\.b32", ptx) for word in ("ld", "st"))
    assert (loads.count(".v4"), stores.count(".v4")) == (loads.count(""), stores.count(""))
    return loads.count(".v4"), stores.count(".v4")


def test_dead_values_leave_no_access_and_no_parameter() -> None:
    stages = [
        Stage(gelu.specialize(T=f32), (0, 1)),
        Stage(scale.specialize(T=f32), (5, 1, 2)),
        Stage(add.specialize(T=f32), (2, 0, 3)),
        Stage(relu.specialize(T=f32), (3, 4)),
    ]
    made = fused(stages, {1, 2, 3})
    assert made.arguments == (0, 5, 4)
    assert vector_accesses(made) == (1, 1)
    names = [parameter.annotation for parameter in made.kernel.parameters]
    assert names == ["Slice[f32]", "f32", "DisjointSlice[f32]"]
    assert ".local" not in made.kernel.specialize().ptx()
    assert vector_accesses(fused(stages)) == (1, 4)


def test_every_product_and_sum_in_ptx_has_its_rounding() -> None:
    stages = [Stage(scale.specialize(T=f32), (0, 1, 2)), Stage(add.specialize(T=f32), (2, 1, 3))]
    ptx = fused(stages, {2}).kernel.specialize().ptx()
    found = set(re.findall(r"\b(?:add|sub|mul|fma)\.\S*f32\b", ptx))
    assert found == {"mul.rn.f32", "add.rn.f32"}


# Faults


@kernel(block=32)
def pick(table: Slice[f32], indices: Slice[i32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = table[indices[i.get()]]


@kernel(block=32)
def demand(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        assert x[i.get()] < f32(100), "too large"
        e.value = x[i.get()]


def picked() -> FusedKernel:
    stages = [
        Stage(demand.specialize(), (0, 1)),
        Stage(scale.specialize(T=f32), (2, 1, 3)),
        Stage(pick.specialize(), (4, 5, 6)),
        Stage(add.specialize(T=f32), (3, 6, 7)),
        Stage(demand.specialize(), (7, 8)),
    ]
    return fused(stages, {1, 3, 6, 7})


def run_picked(x: np.ndarray[Any, Any], indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    made, n = picked(), x.size
    table, y = h2d(np.arange(10, dtype=np.float32)).sync(), zeros(n, f32).sync()
    values = {0: h2d(x).sync(), 2: 2.0, 4: table, 5: h2d(indices).sync(), 8: y}
    made.kernel(*[values[place] for place in made.arguments]).sync()
    return d2h(y).sync()


def test_a_table_may_be_read_at_any_index() -> None:
    x, indices = np.arange(37, dtype=np.float32), (np.arange(37) % 10).astype(np.int32)
    assert bits(run_picked(x, indices)) == bits(2 * x + indices.astype(np.float32))


def test_a_bounds_error_names_the_stage() -> None:
    indices = np.zeros(37, np.int32)
    indices[36] = 10
    with pytest.raises(BoundsError) as caught:
        run_picked(np.zeros(37, np.float32), indices)
    error = caught.value
    assert (error.kernel, error.parameter, error.index, error.length) == ("pick", "table", 10, 10)
    assert (error.file, error.line) == (__file__, inspect.getsourcelines(pick.function)[1] + 5)


@pytest.mark.parametrize(("x", "index"), [(100.0, 0), (49.5, 1)])
def test_a_failed_assert_names_the_stage(x: float, index: int) -> None:
    values = np.zeros(37, np.float32)
    values[11] = x
    with pytest.raises(KernelAssertionError, match="too large") as caught:
        run_picked(values, np.full(37, index, np.int32))
    assert caught.value.kernel == "demand"


def test_two_stages_of_one_kernel_have_sites_of_their_own() -> None:
    sites = picked().kernel.specialize().sites
    assert [site.kernel for site in sites if site.assertion == "too large"] == ["demand", "demand"]
    assert {site.kernel for site in sites} == {"demand", "pick", "scale", "add"}


def test_a_fault_in_a_replayed_graph_names_the_stage() -> None:
    made = fused([Stage(relu.specialize(T=f32), (0, 1)), Stage(pick.specialize(), (2, 3, 4)),
                  Stage(add.specialize(T=f32), (1, 4, 5))], {1, 4})  # fmt: skip
    indices = h2d(np.zeros(9, np.int32)).sync()
    values = {0: zeros(9, f32).sync(), 2: zeros(3, f32).sync(), 3: indices, 5: zeros(9, f32).sync()}
    graph = made.kernel(*[values[place] for place in made.arguments]).graph()
    graph.launch().sync()
    memcpy(indices, np.full(9, 3, np.int32)).sync()
    with pytest.raises(BoundsError) as caught:
        graph.launch().sync()
    assert (caught.value.kernel, caught.value.parameter, caught.value.index) == ("pick", "table", 3)


# The kernel


def test_arrays_of_other_lengths_are_refused_at_the_launch() -> None:
    made = fused([Stage(scale.specialize(T=f32), (0, 1, 2))])
    with pytest.raises(LaunchError, match=re.escape("requires len(scale_x) == len(scale_y)")):
        made.kernel(1.0, zeros(4, f32).sync(), zeros(5, f32).sync())


def test_the_contracts_of_the_stages_hold_for_the_fused_kernel() -> None:
    @kernel(block=64, requires=("len(table) >= size * 2", "len(y) == len(x)"))
    def lookup(size: i32, table: Slice[f32], x: Slice[f32], y: DisjointSlice[f32]) -> None:
        i = thread.index_1d()
        e = y.get_mut(i)
        if e is not None and size > 0:
            e.value = table[2 * size - 1] + x[i.get()]

    stages = [Stage(relu.specialize(T=f32), (0, 1)), Stage(lookup.specialize(), (2, 3, 1, 4))]
    made = fused(stages, {1})
    assert [contract.text for contract in made.kernel.description.contracts] == [
        "len(relu_input) == len(lookup_y)",
        "len(lookup_table) >= lookup_size * 2",
    ]


def test_equal_fusions_are_one_kernel_and_others_have_other_code() -> None:
    special = scale.specialize(T=f32)
    chain = [Stage(special, (0, 1, 2)), Stage(special, (0, 2, 3))]
    other = [Stage(special, (0, 1, 2)), Stage(special, (4, 2, 3))]
    assert fused(chain, {2}) is fused(list(chain), [2])
    identities = {fused(stages, dead).kernel.specialize().kernel_id for stages, dead in [
        (chain, {2}), (chain, ()), (other, {2}),
    ]}  # fmt: skip
    assert len(identities) == 3


KERNELS = """
from oxide import DisjointSlice, Slice, f32, kernel, thread

@kernel(block=64)
def scale(x: Slice[f32], a: f32, y: DisjointSlice[f32]):
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = a * x[i.get()]
"""

PROGRAM = """
import sys
import numpy as np
from kernels import scale
from oxide import d2h, h2d, zeros
from oxide.compiler.fusion.fusion import Stage, fused
special = scale.specialize()
made = fused([Stage(special, (0, 1, 2)), Stage(special, (2, 3, 4))], {2})
values = {0: h2d(np.ones(9, np.float32)).sync(), 1: 2.0, 3: 3.0, 4: zeros(9).sync()}
made.kernel(*[values[place] for place in made.arguments]).sync()
assert (d2h(values[4]).sync() == 6).all()
print(*sorted({"numba", "llvmlite"} & sys.modules.keys()))
"""


def test_the_next_process_has_a_fused_kernel_from_the_cache(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS)
    path = os.pathsep.join([str(ROOT), str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OXIDE_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path}
    loaded = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert loaded == [["llvmlite", "numba"], []]


@settings(max_examples=12)
@given(st.data())
def test_random_chains(data: st.DataObject) -> None:
    n = data.draw(st.sampled_from([1, 7, 129]))
    count = data.draw(st.integers(2, 5))
    values: dict[int, Any] = {place: numbers(n, np.float32, place) for place in range(4)}
    stages: list[tuple[Kernel, tuple[int, ...]]] = []
    array = st.integers(0, 3)
    for stage in range(count):
        values[10 + stage] = data.draw(st.sampled_from([0.5, 1.1, -3.0]))
        chosen = data.draw(st.sampled_from([scale, add, subtract_from, clip_some, relu, axpy]))
        a, b, c = data.draw(array), data.draw(array), data.draw(array)
        if chosen in (scale, axpy):
            stages.append((chosen, (10 + stage, a, b)))
        else:
            stages.append((chosen, (a, b, c) if chosen is add else (a, b)))
    written = {places[-1] for _, places in stages}
    dead = data.draw(st.sets(st.sampled_from(sorted(written)), max_size=len(written) - 1))
    compare(stages, values, dead, f32)
