"""Kernels that ``test_prebuilt.py`` builds ahead of time: one of each sort of parameter and of option."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from oxide import (
    AtomicSlice,
    DisjointSlice,
    DisjointSlice2,
    Rows,
    Slice,
    Slice2,
    Tiles,
    Vec3,
    c64,
    f32,
    f64,
    i32,
    kernel,
    thread,
    tile,
)

T = TypeVar("T", f32, f64)


@kernel(block=128, requires=("len(x) >= n",))
def shifted(out: DisjointSlice[f32], x: Slice[f32], a: f32, n: i32 = 4) -> None:
    """Computes ``out[i] = a * x[i + n]``."""
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        element.value = a * x[i.get() + n]


@kernel
def scale(out: DisjointSlice[T], x: Slice[T], a: T) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        element.value = a * x[i.get()]


@kernel
def add(x, y, out):  # type: ignore[no-untyped-def]
    i = thread.index_1d().get()
    if i < out.shape[0]:
        out[i] = x[i] + y[i]


@kernel(block=64, items_per_thread=1)
def by_fours(out: DisjointSlice[f32, Tiles(4)], x: Slice[f32]) -> None:
    i = thread.index_1d()
    piece = out.get_mut(i)
    if piece is not None:
        for k in range(4):
            piece[k] = 2.0 * x[4 * i.get() + k]


def leaky(x: f32) -> f32:
    return x if x > 0 else x * 0.5


@kernel(block=64)
def in_rows(out: DisjointSlice2[f32, Rows], *, scale: f32 = 2.0, shift: f32) -> None:
    row = out.get_mut(thread.index_1d())

    def moved(x: f32) -> f32:
        return leaky(x) * scale + shift

    if row is not None:
        for j in range(len(row)):
            row[j] = moved(row[j])


@kernel(block=64)
def shifted_points(out: DisjointSlice[Vec3[f32]], x: Slice[Vec3[f32]], a: f32) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        element.value = x[i.get()] + a


@kernel(block=(16, 16))
def transpose(out: DisjointSlice2[f64], x: Slice2[f64]) -> None:
    i = thread.index_2d(out.shape[1])
    if i is not None:
        element = out.get_mut(i)
        if element is not None:
            row, column = thread.index_2d_row(), thread.index_2d_col()
            element.value = x[column, row]


@kernel
def total(x: Slice[i32], out: AtomicSlice[i32]) -> None:
    i = thread.index_1d().get()
    if i < len(x):
        out.fetch_add(0, x[i])


@kernel(block=32)
def rotated(out: DisjointSlice[c64], x: Slice[c64], by: c64) -> None:
    i = thread.index_1d()
    element = out.get_mut(i)
    if element is not None:
        element.value = by * x[i.get()]


@tile.kernel
def softmax(y: tile.Partition2[f32], x: tile.Tensor2[f32], scale: tile.Constant[float] = 1.0) -> None:
    v = tile.load_like(x, y, padding=float("-inf")) * scale
    e = tile.exp(v - tile.max(v, axis=1, keepdims=True))
    y.store(e / tile.sum(e, axis=1, keepdims=True))


class Body(NamedTuple):
    place: Vec3[f32]
    mass: f32


@kernel
def with_structures(bodies: DisjointSlice[Body]) -> None:
    element = bodies.get_mut(thread.index_1d())
    if element is not None:
        element.value = element.value._replace(mass=1.0)


@kernel
def with_a_tuple(out: DisjointSlice[f32], pair: tuple[f32, f32]) -> None:
    element = out.get_mut(thread.index_1d())
    if element is not None:
        element.value = pair[0] + pair[1]
