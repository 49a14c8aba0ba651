"""Tile kernels as plain NumPy: the kernel's own function, called once for each tile with NumPy's functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxide import f32, i64
from oxide.language.tile import Function


class Tensor:
    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = array.dtype

    def load(self, index: Any, shape: Any, padding: float = 0) -> NDArray[Any]:
        index = index if isinstance(index, tuple) else (index,)
        shape = shape if isinstance(shape, tuple) else (shape,)
        tile = np.full(shape, padding, self.array.dtype)
        for place in itertools.product(*map(range, shape)):
            at = tuple(int(i) * size + k for i, size, k in zip(index, shape, place, strict=True))
            if all(0 <= each < length for each, length in zip(at, self.shape, strict=True)):
                tile[place] = self.array[at]
        return tile


class Partition(Tensor):
    def __init__(self, array: NDArray[Any], tile_shape: tuple[int, ...]) -> None:
        super().__init__(array)
        self.tile_shape = tile_shape
        self.index: tuple[int, ...] = ()

    def load(self, index: Any = None, shape: Any = None, padding: float = 0) -> NDArray[Any]:
        return super().load(
            self.index if index is None else index, self.tile_shape if shape is None else shape, padding
        )

    def store(self, tile: Any) -> None:
        tile = np.broadcast_to(tile, self.tile_shape)
        assert np.can_cast(tile.dtype, self.array.dtype, "same_kind"), (tile.dtype, self.array.dtype)
        whole = tuple(slice(i * size, i * size + size) for i, size in zip(self.index, self.tile_shape, strict=True))
        part = self.array[whole]
        part[...] = tile[tuple(map(slice, part.shape))]


def _mma(a: Any, b: Any, acc: Any) -> Any:
    wide = np.int64 if acc.dtype.kind in "iu" else np.float64
    return (a.astype(wide) @ b.astype(wide) + acc.astype(wide)).astype(acc.dtype)


def _sort(x: Any, axis: int = -1, descending: bool = False) -> Any:
    return np.flip(np.sort(x, axis), axis) if descending else np.sort(x, axis)


def _topk(x: Any, k: int, axis: int = -1) -> tuple[Any, Any]:
    """Returns the largest elements; of equal ones the first: the last in the order of the reversed tile."""
    order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    order = np.take(order, range(k), axis)
    return np.take_along_axis(x, order, axis), order


def _words(grid: tuple[int, ...], partition: Partition) -> SimpleNamespace:
    from math import erf

    def unary(function: Any) -> Any:
        return lambda x: function(x) if np.asarray(x).dtype.kind == "f" else function(np.asarray(x, np.float64))

    names = [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sqrt",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "tanh",
        "arcsin",
        "arccos",
        "arctan",
    ]
    plain = {name: unary(getattr(np, name)) for name in names}
    return SimpleNamespace(
        **plain,
        rsqrt=unary(lambda x: 1 / np.sqrt(x)),
        erf=unary(lambda x: np.vectorize(erf)(x).astype(x.dtype)),
        zeros=lambda shape, dtype=f32: np.zeros(shape, dtype),
        ones=lambda shape, dtype=f32: np.ones(shape, dtype),
        full=lambda shape, value, dtype=f32: np.full(shape, value, dtype),
        arange=lambda n, dtype=i64: np.arange(n, dtype=dtype),
        where=np.where, maximum=np.maximum, minimum=np.minimum, abs=np.abs, floor=np.floor, ceil=np.ceil,
        sum=np.sum, max=np.max, min=np.min, argmax=np.argmax, argmin=np.argmin, cumsum=np.cumsum,
        reshape=np.reshape, transpose=np.transpose, broadcast_to=np.broadcast_to,
        cat=lambda tiles, axis=0: np.concatenate(tiles, axis),
        mma=_mma, sort=_sort, topk=_topk,
        load_like=lambda x, z, padding=0: x.load(z.index, z.tile_shape, padding),
        load_tile_like=lambda x, z, padding=0: x.load(z.index, z.tile_shape, padding),
        gather=lambda x, indices: x.array[indices],
        program_id=lambda axis=0: partition.index[axis],
        num_programs=lambda axis=0: grid[axis],
        cdiv=lambda a, b: -(-a // b),
        static_range=range,
    )  # fmt: skip


def run(kernel: Any, *arguments: Any) -> None:
    """Runs a tile kernel as NumPy. The arrays of its ``Partition``s change."""
    function: Callable[..., Any] = kernel.function
    first = next(each for each in arguments if isinstance(each, Partition))
    partitions = [each for each in arguments if isinstance(each, Partition)]
    grid = tuple(-(-length // size) for length, size in zip(first.shape, first.tile_shape, strict=True))
    helpers = {name: each.wrapped for name, each in function.__globals__.items() if isinstance(each, Function)}
    names = {**function.__globals__, **helpers, "tile": _words(grid, first)}
    plain = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    with np.errstate(all="ignore"):
        for index in itertools.product(*map(range, grid)):
            for each in partitions:
                each.index = index
            plain(*arguments)
