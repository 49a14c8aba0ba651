"""What kernels refuse of complex numbers, and the errors that say what to write."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

from oxide import AtomicSlice, DisjointSlice, SharedArray, Slice, c64, f32, h2d, kernel, thread, warp, zeros
from oxide.errors import CompileError

T = TypeVar("T")
S = TypeVar("S")


@kernel(block=128)
def mapping(function: Callable[..., Any], x: Slice[T], out: DisjointSlice[S]) -> None:
    index = thread.index_1d()
    element = out.get_mut(index)
    if element is not None:
        element.value = function(x[index.get()])


def refused(function: Any, result: Any = c64) -> str:
    with pytest.raises(CompileError) as caught:
        mapping(function, h2d(np.zeros(1, np.complex64)), zeros(1, result))
    return str(caught.value)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda z: 1 if z < 1 else 2, "< of c64 and i64: complex numbers have no order; compare abs(z)"),
        (lambda z: max(z, z), "max of c64 and c64: complex numbers have no order"),
        (lambda z: z // 2, "// takes real numbers, not c64"),
        (lambda z: z % 2, "% takes real numbers, not c64"),
        (lambda z: divmod(z, 2)[0], "divmod takes real numbers"),
        (lambda z: math.exp(z), "math.exp takes real numbers, not c64; use cmath.exp"),
        (lambda z: math.sin(z), "math.sin takes real numbers, not c64; take z.real, z.imag or abs(z)"),
        (lambda z: cmath.sin(z), "cmath.sin is not supported in kernels; of cmath there are exp, isfinite"),
        (lambda z: float(z), "float(...) takes real numbers, not c64"),
        (lambda z: f32(z), "f32(...) takes no complex number, c64; take z.real or abs(z)"),
        (lambda z: round(z), "round(...) takes real numbers"),
        (lambda z: z**0.5, "a power of c64 and f64: the exponent is an integer"),
        (lambda z: z**z, "a power of c64 and c64: the exponent is an integer"),
        (lambda z: 2**z, "a power of i64 and c64: the exponent is an integer"),
        (lambda z: complex(z, z), "the parts of a complex number are real, not c64 and c64"),
        (lambda z: c64(z, 1), "the parts of a c64 are real numbers"),
        (lambda z: c64(), "c64(...) takes a number, or a real and an imaginary part, by position; the call has 0"),
        (lambda z: complex(1, 2, 3), "complex(...) takes a number, or a real and an imaginary part"),
        (
            lambda z: warp.shuffle(z, 0),
            "warp.shuffle takes a 32- or 64-bit integer or float, not c64; call it for each",
        ),
        (lambda z: warp.reduce_add(z), "warp.reduce_add takes a 32- or 64-bit integer or float, not c64"),
        (lambda z: ~z, "~ is not defined for c64"),
    ],
)
def test_what_complex_numbers_do_not_have_is_refused(function: Any, said: str) -> None:
    assert said in refused(function)


def test_a_complex_number_is_no_real_one() -> None:
    assert "the element is f32 and the value is c64; take its .real or abs(...) of it" in refused(lambda z: z, f32)


def test_statements_that_are_refused() -> None:
    def said(function: Any) -> str:
        with pytest.raises(CompileError) as caught:
            kernel(block=32)(function).ptx(cc=(9, 0))
        return str(caught.value)

    def assigns(a: Slice[c64]) -> None:
        z = a[0]
        z.real = 2  # type: ignore[misc]

    def loads(a: Slice[c64]) -> None:
        a.load4(0)

    def adds(a: Slice[c64]) -> None:
        shared = SharedArray(32, c64)
        shared.fetch_add(0, a[0])

    def prints(a: Slice[c64]) -> None:
        print(f"{a[0]:.3f}")

    def prints_by_percent(a: Slice[c64]) -> None:
        print("%d" % a[0])  # noqa: UP031

    def atomic(a: AtomicSlice[c64]) -> None:
        pass

    def of_python(a: Slice[complex]) -> None:
        pass

    assert "the parts of a complex number are not assigned to: make another one" in said(assigns)
    assert ".load4 moves real numbers, not c64" in said(loads)
    assert "atomics take i32 u32 i64 u64 f16 bf16 f32 f64, and SharedArray(32, c64) has elements of c64" in said(adds)
    assert "c64 has two parts: print z.real and z.imag" in said(prints)
    assert "c64 has two parts: print z.real and z.imag" in said(prints_by_percent)
    assert "an AtomicSlice has elements of i32 u32 i64 u64 f16 bf16 f32 f64, not c64" in said(atomic)
    assert "write c64 or c128, not complex" in said(of_python)
