"""``FragmentA``, ``FragmentB`` and ``Accumulator``: matrices whose elements are spread over the lanes of a warp; their
products, and copies between them, shared memory and slices.

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
copies nothing.

In copies, the index of a fragment in an array is that of the fragment's first element. An array of three axes is a
stack of matrices, and the first number of its index is the number of a matrix. The whole fragment must be inside the
array. Otherwise the launch fails with a ``BoundsError``; a load gives undefined elements, and a store writes nothing.

These are declarations: the compiler gives them their meaning inside a kernel.
"""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar, final

from oxide.language import primitives

T = TypeVar("T")
Index: TypeAlias = tuple[int, ...]


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


@primitives.function
def mma(c: Accumulator[Any], a: FragmentA[Any], b: FragmentB[Any]) -> None:
    """Adds the matrix product of ``a`` and ``b`` to ``c``.

    All 32 lanes of the warp make the call together. If some lanes cannot make it, the CPU device reports a
    ``KernelAssertionError``, and on a GPU the result is undefined. The elements of ``a`` and ``b`` have one type,
    except that i8 may be combined with u8, and f8e4m3 with f8e5m2. f32 operands are taken as tf32: the low 13 bits of
    each element are ignored. To round elements instead, call ``tf32`` first.

    Products of two elements of f16, bf16, tf32 and 8-bit floats are exact. For an element of an f32 accumulator, let S
    be the sum of the magnitudes of its k products and of its earlier value. The element's error is at most ``2 * k *
    2**-24 * S``. An f16 accumulator is rounded once more for each tile along k. For 8-bit floats a GPU keeps fewer bits
    of a sum, and the error is at most ``k * 2**-13 * S``. Integer accumulators wrap modulo 2**32. A GPU needs compute
    capability 8.0, and 8.9 for 8-bit floats.
    """


@primitives.function
def tf32(x: float) -> float:
    """Returns an f32 rounded to tf32, to nearest with ties away from zero: the low 13 bits of the result are 0.

    This is PTX's ``cvt.rna.tf32.f32``: 10 bits of fraction with f32's range. The largest numbers become infinite.
    """


@primitives.function
def ldmatrix(fragment: Fragment[Any], array: Any, index: Index, transposed: bool = False) -> None:
    """Loads a ``FragmentA`` or ``FragmentB`` from a ``SharedArray`` of the same type, 8 rows of 16 bytes at a time.

    With ``transposed`` the array holds the matrix's transpose: a ``FragmentB`` of k rows and n columns is read from n
    rows and k columns of the array. All 32 lanes of the warp make the call together, with the same index. The length of
    the array's rows must be a multiple of 16 bytes, and so must the distance of the index from the beginning of its
    row. To avoid bank conflicts, give a row 16 bytes more than a multiple of 128: ``SharedArray((64, 64 + 8), bf16)``.

    The instruction transposes 16-bit elements only. Elements of 8 and 32 bits must be contiguous along k in the array:
    a ``FragmentA`` is loaded without ``transposed``, a ``FragmentB`` with ``transposed``. For all other cases use
    ``load``. A GPU needs compute capability 7.5.
    """


@primitives.function
def load(fragment: Fragment[Any], array: Any, index: Index, transposed: bool = False) -> None:
    """Loads any fragment from a ``SharedArray``, or from a ``Slice2`` or ``Slice3``, of the same type.

    Each lane reads its own elements, independently of the other lanes: the call may be made by some lanes only. With
    ``transposed`` the array holds the matrix's transpose.
    """


@primitives.function
def store(array: Any, index: Index, fragment: Fragment[Any]) -> None:
    """Stores a fragment in a ``SharedArray``, or in the ``scatter`` or ``unchecked_mut`` of a ``DisjointSlice2`` or
    ``DisjointSlice3``.

    Each lane writes its own elements, converted to the array's type as an assignment would: the call may be made by
    some lanes only.
    """


@primitives.function
def stmatrix(array: Any, index: Index, fragment: Fragment[Any], transposed: bool = False) -> None:
    """Stores a ``FragmentA`` or an ``Accumulator`` of f16 or bf16 in a ``SharedArray`` or ``SharedTiles`` of the same
    type.

    It is the reverse of ``ldmatrix``, and has the same rules for rows, the index and the lanes. It writes 8 rows of 16
    bytes at a time, while ``store`` writes single elements. A GPU needs compute capability 9.0.
    """


@primitives.function
def copy_async(array: Any, index: int | Index, source: Any, source_index: int | Index, count: int) -> None:
    """Begins to copy ``count`` neighbouring elements of a ``Slice``, ``Slice2`` or ``Slice3`` to a ``SharedArray`` of
    the slice's type.

    ``count`` is a constant, and the copied elements take 4, 8 or 16 bytes together. They are neighbours along the last
    axis. For elements outside of the source, zeros are stored in the array. The destination must be inside the array,
    and its address must be a multiple of the number of copied bytes. The length of the array's rows must be a multiple
    of this number too.

    The copy has ended when this thread has called ``wait`` for the copy's group. Until then no thread may read or write
    the elements in the array. A barrier after the wait lets other threads read them. If the source's address is not a
    multiple of the number of copied bytes, or if the index is negative, the elements are moved one by one through
    registers instead. A GPU needs compute capability 8.0.
    """


@primitives.function
def commit() -> None:
    """Closes a group of this thread's copies: all copies that ``copy_async`` has begun since the last ``commit``."""


@primitives.function
def wait(groups: int = 0) -> None:
    """Waits for this thread's groups of copies, except for the last ``groups`` groups, which may still run. ``groups``
    is a constant. Does not wait for copies that no ``commit`` has put in a group."""
