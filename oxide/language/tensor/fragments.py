"""``FragmentA``, ``FragmentB`` and ``Accumulator``: matrices whose elements are spread over the lanes of a warp.

A fragment is declared with the shape of the warp's whole matrix. It holds this lane's elements of the matrix, all 0 at
first. The shape is a multiple of the shape that one instruction multiplies, so a fragment may hold several tiles of
this shape, in row-major order::

    a = tensor.FragmentA((16, 16), bf16)
    b = tensor.FragmentB((16, 8), bf16)
    c = tensor.Accumulator((16, 8), f32)

=============  ===============  ===============  ======================
operands       A, a multiple    B, a multiple    accumulators
=============  ===============  ===============  ======================
f16, bf16      (16, 16)         (16, 8)          (16, 8) of f32 or, for f16, of f16
f32 (as tf32)  (16, 8)          (8, 8)           (16, 8) of f32
f64            (8, 4)           (4, 8)           (8, 8) of f64
i8, u8         (16, 32)         (32, 8)          (16, 8) of i32
f8             (16, 32)         (32, 8)          (16, 8) of f32
=============  ===============  ===============  ======================

``c[i]`` is the lane's element ``i``; ``c.row(i)`` and ``c.column(i)`` are its row and column in the matrix. A fragment
lives in registers if the compiler knows every index: use ``unroll``. Assignment gives a fragment a second name and
copies nothing. These are declarations: the compiler gives them their meaning inside a kernel.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, final

from oxide.language import primitives

T = TypeVar("T")


@primitives.made_in_kernels
class Fragment(Generic[T]):
    """The base of the fragments: this lane's elements."""

    def __init__(self, shape: tuple[int, int], dtype: type[T]) -> None: ...

    def __len__(self) -> int:
        """Returns the number of elements that each lane holds, an ``i64``."""

    def __getitem__(self, index: int) -> T: ...

    def __setitem__(self, index: int, value: T) -> None: ...

    def row(self, index: int) -> int:
        """Returns the row of the lane's element ``index`` in the matrix, an ``i64``."""

    def column(self, index: int) -> int:
        """Returns the column of the lane's element ``index`` in the matrix, an ``i64``."""

    def fill(self, value: T) -> None:
        """Sets each of the lane's elements to ``value``."""


@final
class FragmentA(Fragment[T]):
    """A left operand of ``mma``: ``FragmentA((16, 16), bf16)``, m rows and k columns."""


@final
class FragmentB(Fragment[T]):
    """A right operand of ``mma``: ``FragmentB((16, 8), bf16)``, k rows and n columns."""


@final
class Accumulator(Fragment[T]):
    """The sums that ``mma`` adds to: ``Accumulator((16, 8), f32)``, m rows and n columns of f32, f16, f64 or i32.

    An accumulator may also be of bf16, for ``stmatrix`` and ``store``. Its elements have the same order as those of a
    ``FragmentA`` with 16-bit elements and the same shape, if there is such a fragment. So the result of one product
    becomes the left operand of the next by copying element by element.
    """


@primitives.function
def convert(fragment: Fragment[Any], accumulator: Accumulator[Any]) -> None:
    """Converts an accumulator of f32 to a ``FragmentA`` or ``Accumulator`` of f16 or bf16 with the same shape. Rounds
    each element to nearest. Both fragments have the same elements in the same lanes, so nothing moves between lanes.
    One instruction rounds two elements, while ``fragment[i] = bf16(accumulator[i])`` may take four instructions.
    """
