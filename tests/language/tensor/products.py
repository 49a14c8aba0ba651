"""Kernels that multiply by fragments, made for given shapes and types, and what the PTX ISA says of their layouts."""

from __future__ import annotations

from typing import Any

import numpy as np

from oxide import (
    DisjointSlice2,
    Kernel,
    LaunchConfig,
    Slice2,
    d2h,
    f32,
    f64,
    h2d,
    i32,
    kernel,
    tensor,
    unroll,
    warp,
    zeros,
)

NUMPY = {"f32": np.float32, "f64": np.float64, "i32": np.int32}


def host_type(dtype: Any) -> Any:
    """Returns the type that numbers of a type are brought in: f32 for those that have no dtype of NumPy's."""
    return {"f64": f64, "i8": i32, "u8": i32, "i32": i32}.get(str(dtype), f32)


def product(shape: tuple[int, int, int], a_type: Any, b_type: Any, c_type: Any) -> Kernel:
    """Returns a kernel of one warp: ``d = c + a @ b``, with operands converted from numbers of the host's types."""
    m, n, k = shape
    a_host, b_host, c_host = map(host_type, (a_type, b_type, c_type))

    @kernel
    def multiply(
        a: Slice2[a_host],  # type: ignore[valid-type]
        b: Slice2[b_host],  # type: ignore[valid-type]
        c: Slice2[c_host],  # type: ignore[valid-type]
        d: DisjointSlice2[c_host],  # type: ignore[valid-type]
    ) -> None:
        left = tensor.FragmentA((m, k), a_type)
        right = tensor.FragmentB((k, n), b_type)
        total = tensor.Accumulator((m, n), c_type)
        for i in unroll(range(len(left))):
            left[i] = a_type(a[left.row(i), left.column(i)])
        for i in unroll(range(len(right))):
            right[i] = b_type(b[right.row(i), right.column(i)])
        for i in unroll(range(len(total))):
            total[i] = c_type(c[total.row(i), total.column(i)])
        tensor.mma(total, left, right)
        for i in unroll(range(len(total))):
            d.scatter[total.row(i), total.column(i)] = c_host(total[i])

    return multiply


def multiplied(made: Kernel, a: Any, b: Any, c: Any) -> Any:
    """Returns what a kernel of ``product`` computes."""
    given = [h2d(np.ascontiguousarray(each)) for each in (a, b, c)]
    launched = made[LaunchConfig(grid=1, block=32)](*given, zeros(c.shape, c.dtype))
    return launched.last().and_then(d2h).sync()


def places(kind: str, shape: tuple[int, int], dtype: Any) -> Kernel:
    """Returns a kernel that writes the row and the column of each lane's elements of a fragment."""
    declared = getattr(tensor, kind)
    height, width = shape

    @kernel
    def put(rows: DisjointSlice2[i32], columns: DisjointSlice2[i32]) -> None:
        fragment = declared((height, width), dtype)
        for i in range(len(fragment)):
            rows.scatter[warp.lane_id(), i] = i32(fragment.row(i))
            columns.scatter[warp.lane_id(), i] = i32(fragment.column(i))

    return put
