"""Copies between fragments, shared memory and slices: ``ldmatrix`` and ``stmatrix``, ``load`` and ``store``,
``copy_async``.

The index of a fragment in an array is that of the fragment's first element. An array of three axes is a stack of
matrices, and the first number of its index is the number of a matrix. The whole fragment must be inside the array.
Otherwise the launch fails with a ``BoundsError``; a load gives undefined elements, and a store writes nothing.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from oxide.language import primitives

from .fragments import Fragment

Index: TypeAlias = tuple[int, ...]


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
