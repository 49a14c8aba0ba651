"""The proof that a kernel is elementwise: what it accepts, and why it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from oxide import (
    AtomicSlice,
    DisjointSlice,
    DisjointSlice2,
    LaunchError,
    SharedArray,
    Slice,
    Slice2,
    Tiles,
    c64,
    f16,
    f32,
    i32,
    i64,
    kernel,
    thread,
)
from oxide.compiler.elementwise import Elementwise, OwnAccess
from oxide.compiler.fusion.fusion import Stage, fused, reason_against
from oxide_kernels import axpy, gelu, map_, relu


@kernel(block=64)
def plain(x: Slice[f32], a: f32, y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = a * x[i.get()]


@kernel(block=64)
def early_return(x: Slice[f16], y: DisjointSlice[f16]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is None:
        return
    assert x[i.get()] > f16(0)
    e.value += x[i.get()]


@kernel(block=64)
def two_outputs(x: Slice[f32], table: Slice[f32], y: DisjointSlice[f32], z: DisjointSlice[i32]) -> None:
    i = thread.index_1d()
    first = y.get_mut(i)
    second = z.get_mut(i)
    if first is not None and second is not None:
        first.value = x[i.get()] + table[3]
        if x[i.get()] > f32(1):
            second.value = 2


@kernel(block=64)
def neighbour(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = x[i.get() + 1]


@kernel(block=64)
def iterates(x: Slice[f32], n: i64, y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        total = f32(0)
        for _ in range(n):
            total = total * f32(0.5) + math.erf(x[i.get()])
        e.value = total


@kernel(block=64, unchecked=True)
def unchecked(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = x[i.get()]


@kernel(block=(32, 8))
def bias(x: Slice2[f32], b: Slice[f32], y: DisjointSlice2[f32]) -> None:
    row, column = thread.index_2d_row(), thread.index_2d_col()
    e = y.get_mut(thread.index_2d(y.shape[1]))
    if e is not None:
        e.value = x[row, column] + b[column]


@kernel(block=(32, 8))
def stencil(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
    row, column = thread.index_2d_row(), thread.index_2d_col()
    e = y.get_mut(thread.index_2d(y.shape[1]))
    if e is not None and column > 0:
        e.value += x[row, column - 1]


@kernel(block=(32, 8))
def matrix_past_the_end(x: Slice2[f32], y: DisjointSlice2[f32]) -> None:
    row, column = thread.index_2d_row(), thread.index_2d_col()
    e = y.get_mut(thread.index_2d(y.shape[1]))
    if row < y.shape[0]:
        value = x[row, column]
        if e is not None:
            e.value = value


def own(name: str, *words: str) -> OwnAccess:
    return OwnAccess(name, "reads" in words, "writes" in words or "always" in words, "always" in words)


ACCEPTED: dict[str, tuple[Any, dict[str, Any], Elementwise]] = {
    "plain": (plain, {}, Elementwise(1, (own("x", "reads"), own("y", "always")), ())),
    "early_return": (early_return, {}, Elementwise(1, (own("x", "reads"), own("y", "reads", "always")), ())),
    "two_outputs": (
        two_outputs,
        {},
        Elementwise(1, (own("x", "reads"), own("y", "always"), own("z", "writes")), ("table",)),
    ),
    "neighbour": (neighbour, {}, Elementwise(1, (own("y", "always"),), ("x",))),
    "iterates": (iterates, {}, Elementwise(1, (own("x", "reads"), own("y", "always")), ())),
    "bias": (bias, {}, Elementwise(2, (own("x", "reads"), own("y", "always")), ("b",))),
    "stencil": (stencil, {}, Elementwise(2, (own("y", "reads", "writes"),), ("x",))),
    "unchecked": (unchecked, {}, Elementwise(1, (own("x", "reads"), own("y", "always")), ())),
    "map_": (
        map_,
        {"A": f32, "C": f32, "f": lambda x: x * x},
        Elementwise(1, (own("x", "reads"), own("out", "always")), ()),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ACCEPTED)
def test_an_elementwise_kernel_is_proved(name: str) -> None:
    accepted, types, expected = ACCEPTED[name]
    special = accepted.specialize(**types)
    assert special.elementwise == expected
    assert reason_against(special) is None


@pytest.mark.parametrize("library_kernel", [relu, gelu, axpy])
def test_the_librarys_kernels_can_be_fused(library_kernel: Any) -> None:
    assert reason_against(library_kernel.specialize(T=f32)) is None


@kernel(block=64)
def past_the_end(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    value = x[i.get()]
    e = y.get_mut(i)
    if e is not None:
        e.value = value


@kernel(block=64)
def by_coordinate(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = x[i.get()] + f32(thread.thread_idx.x)


@kernel(block=(8, 8))
def matrix(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_2d(8)
    if i is not None:
        e = y.get_mut(i)
        if e is not None:
            e.value = x[i.get()]


@kernel(block=64)
def counts(x: Slice[i32], total: AtomicSlice[i32], y: DisjointSlice[i32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        total.fetch_add(0, x[i.get()])
        e.value = x[i.get()]


@kernel(block=64)
def prints(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        print(x[i.get()])
        e.value = x[i.get()]


@kernel(block=64)
def shares(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    shared = SharedArray(64, f32)
    shared[thread.thread_idx.x] = f32(1)
    thread.sync_threads()
    e = y.get_mut(i)
    if e is not None:
        e.value = shared[0] + x[i.get()]


@kernel(block=64)
def sums_all(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        total = f32(0)
        for k in range(len(x)):
            total += x[k]
        e.value = total


@kernel(block=64)
def scatters(x: Slice[f32], y: DisjointSlice[f32]) -> None:
    i = thread.index_1d()
    out = y.unchecked_mut
    if i.get() < len(x):
        out[len(x) - 1 - i.get()] = x[i.get()]


@kernel(block=64)
def tiled(x: Slice[f32], y: DisjointSlice[f32, Tiles(4)]) -> None:
    i = thread.index_1d()
    tile = y.get_mut(i)
    if tile is not None:
        tile[0] = x[0]


@kernel(block=64)
def complex_numbers(x: Slice[c64], y: DisjointSlice[c64]) -> None:
    i = thread.index_1d()
    e = y.get_mut(i)
    if e is not None:
        e.value = x[i.get()]


REFUSED = {
    past_the_end: "its threads past the end of its slices have checks",
    by_coordinate: "it uses its thread in other ways than by its index",
    matrix: "it accesses y at other indices than its thread's",
    matrix_past_the_end: "its threads past the end of its slices have checks",
    counts: "its parameter total is AtomicSlice[i32]",
    prints: "it prints",
    shares: "it uses shared memory",
    sums_all: "it loops over consecutive elements, which the threads of a warp load together",
    tiled: "its parameter y is DisjointSlice[f32, Tiles(4)]",
    scatters: "it accesses y at other indices than its thread's",
    complex_numbers: "it accesses y at other indices than its thread's",
}


@pytest.mark.slow
@pytest.mark.parametrize("refused", REFUSED, ids=lambda each: each.name)
def test_any_other_kernel_is_refused_with_a_reason(refused: Any) -> None:
    assert refused.specialize().elementwise == REFUSED[refused]


def test_a_refused_stage_is_an_error_with_its_reason() -> None:
    special = shares.specialize()
    with pytest.raises(LaunchError, match="shares cannot be one kernel: kernel shares: it uses shared memory"):
        fused([Stage(special, (0, 1))])


def test_a_stage_that_reads_other_threads_results_is_refused() -> None:
    stages = [Stage(unchecked.specialize(), (0, 1)), Stage(neighbour.specialize(), (1, 2))]
    with pytest.raises(LaunchError, match="one writes unchecked_y, and another reads it at other indices"):
        fused(stages)


def test_a_value_has_one_type() -> None:
    stages = [Stage(plain.specialize(), (0, 1, 2)), Stage(early_return.specialize(), (2, 3))]
    with pytest.raises(
        LaunchError, match=r"early_return takes a value as Slice\[f16\], another as DisjointSlice\[f32\]"
    ):
        fused(stages)
