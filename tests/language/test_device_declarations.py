"""The vocabulary of kernels, as it looks from the host."""

from __future__ import annotations

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import oxide
from oxide import (
    DisjointSlice,
    Ref,
    Slice,
    ThreadIndex,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    thread,
    u8,
    u16,
    u32,
    u64,
)
from oxide.language.types import as_dtype

SCALARS: list[tuple[Any, Any]] = [
    (i8, np.int8), (i16, np.int16), (i32, np.int32), (i64, np.int64),
    (u8, np.uint8), (u16, np.uint16), (u32, np.uint32), (u64, np.uint64),
    (f16, np.float16), (f32, np.float32), (f64, np.float64), (bool_, np.bool_),
]  # fmt: skip


@pytest.mark.parametrize(("scalar", "expected"), SCALARS)
def test_a_scalar_type_is_a_dtype_and_a_conversion(scalar: Any, expected: Any) -> None:
    assert np.dtype(scalar) == scalar.dtype == as_dtype(scalar) == np.dtype(expected)
    assert np.zeros(3, scalar).dtype == expected
    assert type(scalar(1)) is expected
    assert repr(scalar) == scalar.name


def test_a_conversion_on_the_host_wraps_as_in_c() -> None:
    assert u8(300) == 44
    assert i8(np.int64(200)) == -56


def test_as_dtype_takes_what_numpy_takes() -> None:
    assert as_dtype("float32") == as_dtype(np.float32) == np.float32
    with pytest.raises(TypeError):
        as_dtype("no dtype")
    assert as_dtype(bf16) == bf16.dtype == np.dtype(ml_dtypes.bfloat16)


def test_scalar_types_are_immutable_values() -> None:
    with pytest.raises(AttributeError):
        f32.name = "other"  # type: ignore[attr-defined]
    assert len({f32, f64, f32}) == 2


@pytest.mark.parametrize(
    "use",
    [
        Slice, DisjointSlice, Ref, ThreadIndex, thread.index_1d, thread.index_2d_row, thread.index_2d_col,
        lambda: thread.index_2d(3), lambda: thread.thread_idx.x, lambda: thread.block_idx.y,
        lambda: thread.block_dim.z, lambda: thread.grid_dim.x,
    ],
)  # fmt: skip
def test_a_kernels_vocabulary_used_on_the_host_is_a_type_error(use: Any) -> None:
    with pytest.raises(TypeError, match="@kernel"):
        use()


def test_a_disjoint_slice_has_no_brackets() -> None:
    assert not hasattr(DisjointSlice, "__getitem__")
    assert not hasattr(DisjointSlice, "__setitem__")
    assert not hasattr(Slice, "__setitem__")


def test_the_decorator_and_the_thread_module_are_what_oxide_exports() -> None:
    assert callable(oxide.device)
    assert oxide.thread is thread


@pytest.mark.parametrize("module", [oxide.intrinsics, oxide.fast, oxide.debug], ids=lambda module: module.__name__)
def test_the_functions_of_kernels_have_no_meaning_on_the_host(module: Any) -> None:
    functions = [value for name, value in vars(module).items() if inspect.isfunction(value) and name[0] != "_"]
    assert functions
    for function in functions:
        count = len(inspect.signature(function).parameters)
        with pytest.raises(TypeError, match=rf"{function.__name__} has a meaning only inside a @kernel"):
            function(*[1] * count)
